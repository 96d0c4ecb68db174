"""Clip each record's vector to a public L2 norm and truncate it onto the integer grid, then sum exactly.

One grid unit is clip / grid. Every record's integer vector has an L2 norm of at most ``grid``, checked in integers, so adding
or removing one record changes a site's sum by at most ``grid``: that is the sensitivity, exactly. A record that is not finite
contributes zero; nothing here raises because of what a record holds. This module adds no noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.errors import Misuse

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_GRID = 2**26
"""Largest grid: squares of a record's values then sum below 2^63."""

MAX_BOUND = 2**62
MAX_VALUES = 2**36
"""Most records of one site's sum: with the largest grid it stays below 2^62."""


class SiteSum(NamedTuple):
    """A site's exact sum, before noise.

    Attributes:
        total: (size,) int64 in grid units, clamped to [-bound, bound].
        clipped: records that were scaled down; stays at the site.
        invalid: records that were not finite and contributed zero; stays at the site.
    """

    total: Integers
    clipped: int
    invalid: int


def truncate_to_grid(vectors: Floats, clip: float, grid: int) -> Integers:
    """Clip rows to an L2 norm of ``clip`` and truncate them toward zero onto the grid.

    Args:
        vectors: (b, d) float64, one record a row; rows that are not finite become zero.
        clip: public norm bound C > 0, in the vectors' unit.
        grid: norm bound in grid units, 1 to 2^26.

    Returns:
        (b, d) int64; the squared norm of every row is at most ``grid``^2.
    """
    return _truncate(vectors, clip, grid)[0]


def site_sum(batches: Iterator[Floats], size: int, clip: float, grid: int, bound: int) -> SiteSum:
    """Sum a site's records on the grid, exactly; ``bound`` clamps each value (1-Lipschitz: it costs no privacy).

    Args:
        batches: arrays (b, size) of per-record vectors.
        size: length of a vector.
        clip, grid: as in :func:`truncate_to_grid`.
        bound: largest absolute value of the result, 1 to 2^62.

    Raises:
        Misuse: a batch of another shape, more than 2^36 records, or a parameter out of range.
    """
    if not 1 <= bound <= MAX_BOUND:
        raise Misuse("The clamping bound must lie between 1 and 2^62.")
    total = np.zeros(size, dtype=np.int64)
    records = clipped = invalid = 0
    for batch in batches:
        if batch.ndim != 2 or batch.shape[1] != size:
            raise Misuse(f"A batch of shape {batch.shape} came where rows of {size} values were declared.")
        records += len(batch)
        if records > MAX_VALUES:
            raise Misuse("A site's sum takes at most 2^36 records.")
        rows, was_clipped, was_invalid = _truncate(batch, clip, grid)
        total += rows.sum(axis=0)
        clipped += int(was_clipped.sum())
        invalid += int(was_invalid.sum())
    return SiteSum(np.clip(total, -bound, bound), clipped, invalid)


def _truncate(vectors: Floats, clip: float, grid: int) -> tuple[Integers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the integer rows, which rows were scaled down, and which were not finite."""
    if not (math.isfinite(clip) and clip > 0):
        raise Misuse("The clipping norm must be positive and finite.")
    if not 1 <= grid <= MAX_GRID:
        raise Misuse("The grid must lie between 1 and 2^26.")
    if vectors.ndim != 2:
        raise Misuse("Records come as the rows of a matrix.")
    vectors = np.asarray(vectors, dtype=np.float64)
    invalid: NDArray[np.bool_] = np.logical_not(np.isfinite(vectors).all(axis=1))
    rows = np.where(invalid[:, None], 0.0, vectors)
    # Norms relative to the largest value: no square overflows or vanishes.
    peak = np.abs(rows).max(axis=1, initial=0.0)
    unit = rows / np.where(peak > 0, peak, 1.0)[:, None]
    norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))
    with np.errstate(over="ignore"):
        clipped = peak * norm > clip
        scaled = np.where(clipped[:, None], unit / np.where(norm > 0, norm, 1.0)[:, None], rows / clip)
    integers = np.trunc(scaled * grid).astype(np.int64)
    shrink = 2.0**-52
    while (above := np.flatnonzero(np.einsum("ij,ij->i", integers, integers) > grid * grid)).size:
        # Rounding can leave a row a hair above the bound: pull it in, by twice as much each time.
        integers[above] = np.trunc(scaled[above] * (1.0 - shrink) * grid).astype(np.int64)
        shrink *= 2
    return cast(Integers, integers), clipped, invalid
