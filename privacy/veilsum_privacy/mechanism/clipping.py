"""Clip each record's vector to a public L2 norm and truncate it onto the integer grid, then sum exactly.

One grid unit is clip / grid. Every record's integer vector has an L2 norm of at most ``grid``, checked in integers, and does
not depend on any other record, to the bit: so adding or removing one record changes a site's sum by at most ``grid``. That is
the sensitivity, exactly. Where the unit of privacy is a subject with several records, the same holds for the sum of its
records' vectors. What is not finite contributes zero; nothing here raises because of what a record holds. This module adds no
noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse

MAX_GRID = 2**26
"""Largest grid: squares of a record's values then sum below 2^63."""

MAX_BOUND = 2**62
MAX_VALUES = 2**36
"""Most records of one site's sum: with the largest grid it stays below 2^62."""


class SiteSum(NamedTuple):
    """A site's exact sum, before noise.

    Attributes:
        total: (size,) int64 in grid units, clamped to [-bound, bound].
        clipped: records, and sums of a subject's records, that were scaled down; stays at the site.
        invalid: records that were not finite and contributed zero; stays at the site.
    """

    total: Integers
    clipped: int
    invalid: int


def site_sum(
    batches: Iterator[Floats | Integers], size: int, clip: float, grid: int, bound: int, subjects: Integers | None = None
) -> SiteSum:
    """Sum a site's records on the grid, exactly; ``bound`` clamps each value (1-Lipschitz: it costs no privacy).

    Without ``subjects`` each record's vector is clipped to C and truncated. With them, a subject's vectors are clipped and
    truncated one by one, summed in integers, and their sum, if it is longer than ``grid``, is clipped to it and truncated
    again.

    Sensitivity. Write v_s for the integer vector that subject s ends up with. It depends on the records of s alone: sums of
    integers are exact, so neither the order of the records nor the borders of the batches enter. And |v_s|_2 <= grid. The
    site's sum is the sum of the v_s, so adding or removing a subject, with however many records, changes it by one v_s: by at
    most ``grid``, as one record does where the record is the unit. A subject of one record gets the same v_s in both units.
    An invalid record adds zero to its subject's sum and leaves the subject's other records as they are.

    Args:
        batches: arrays (b, size) of per-record vectors.
        size: length of a vector.
        clip, grid: as in :func:`truncate_to_grid`.
        bound: largest absolute value of the result, 1 to 2^62.
        subjects: (n,) whose record each one is, never descending, so that a subject's records stand together; None where each
            record is a unit of its own.

    Raises:
        Misuse: a batch of another shape, more than 2^36 records, subjects that do not fit them, or a parameter out of range.
    """
    if not 1 <= bound <= MAX_BOUND:
        raise Misuse("The clamping bound must lie between 1 and 2^62.")
    groups = None if subjects is None else _Subjects(subjects, size, grid)
    total = np.zeros(size, dtype=np.int64)
    records = clipped = invalid = 0
    for batch in batches:
        if batch.ndim != 2 or batch.shape[1] != size:
            raise Misuse(f"A batch of shape {batch.shape} came where rows of {size} values were declared.")
        records += len(batch)
        if records > MAX_VALUES:
            raise Misuse("A site's sum takes at most 2^36 records.")
        rows, was_clipped, was_invalid = truncate_to_grid(batch, clip, grid)
        total += _added(rows if groups is None else groups.complete(rows))
        clipped += int(was_clipped.sum())
        invalid += int(was_invalid.sum())
    if groups is not None:
        total += _added(groups.last())
        clipped += groups.clipped
    return SiteSum(np.clip(total, -bound, bound), clipped, invalid)


def scattered_sum(pieces: Iterable[tuple[NDArray[np.intp], Floats]], size: int, clip: float, grid: int, bound: int) -> SiteSum:
    """:func:`site_sum` of records whose vectors are mostly zeros, each piece given without columns of zeros.

    Sensitivity: as there. A record stands in one piece, and truncation leaves zeros where they are.

    Args:
        pieces: (places (s,), rows (b, s)): where the values of the rows belong in the vector, and the rows.
        size, clip, grid, bound: as in :func:`site_sum`.

    Raises:
        Misuse: as there; or places that are not in the vector, or stand twice.
    """
    if not 1 <= bound <= MAX_BOUND:
        raise Misuse("The clamping bound must lie between 1 and 2^62.")
    total = np.zeros(size, dtype=np.int64)
    records = clipped = invalid = 0
    for places, rows in pieces:
        if rows.ndim != 2 or places.shape != (rows.shape[1],) or len(np.unique(places)) != len(places):
            raise Misuse("A piece needs one position for each of its columns, all distinct.")
        if len(places) and not 0 <= places.min() <= places.max() < size:
            raise Misuse(f"A piece has a position outside a vector of {size} values.")
        records += len(rows)
        if records > MAX_VALUES:
            raise Misuse("A site's sum takes at most 2^36 records.")
        integers, was_clipped, was_invalid = truncate_to_grid(rows, clip, grid)
        total[places] += _added(integers)
        clipped += int(was_clipped.sum())
        invalid += int(was_invalid.sum())
    return SiteSum(np.clip(total, -bound, bound), clipped, invalid)


def _added(rows: Integers) -> Integers:
    """The sum of rows (b, d): (d,)."""
    total: Integers = rows[0] if len(rows) == 1 else rows.sum(axis=0)
    return total


def row_norms(rows: Floats, spare: Floats | None = None) -> Floats:
    """L2 norm of each row of (b, d), as (b,); the same to the last bit whatever rows stand beside it.

    numpy may add a row's squares in another order where the rows are laid out by columns, or where there is but one of them.
    ``spare`` (b, d), contiguous by rows, is written over where it is given, in place of a new array.
    """
    squares = np.square(np.ascontiguousarray(rows), out=spare)
    return cast(Floats, np.sqrt(np.add.reduce(squares, axis=1)))


def clipped_about(rows: Floats, centre: Floats, clip: float) -> Floats:
    """Rows (b, d) less ``centre`` (d,), scaled down to an L2 norm of ``clip``; each by itself, as :func:`row_norms` has it."""
    moved = rows - centre
    clipped: Floats = moved * (clip / np.maximum(row_norms(moved), clip))[:, None]
    return clipped


class _Subjects:
    """Sums rows by subject, batch after batch; the subject that a batch ends in is carried over to the next."""

    def __init__(self, subjects: Integers, size: int, grid: int) -> None:
        if subjects.ndim != 1 or (subjects[1:] < subjects[:-1]).any():
            raise Misuse("The records of one subject must stand together, in ascending order of subjects.")
        self._subjects = subjects
        self._grid = grid
        self._open = np.zeros((1, size), dtype=np.int64)
        self._done = 0
        self.clipped = 0

    def complete(self, rows: Integers) -> Integers:
        """Take the next records' rows (b, size); return the bounded vectors of the subjects that they complete."""
        begin, self._done = self._done, self._done + len(rows)
        if self._done > len(self._subjects):
            raise Misuse("There are more records than subjects were given for.")
        if not len(rows):
            return rows
        subjects = self._subjects[begin : self._done]
        starts = np.flatnonzero(np.concatenate([[True], subjects[1:] != subjects[:-1]]))
        sums = np.add.reduceat(rows, starts, axis=0)
        if begin and subjects[0] == self._subjects[begin - 1]:
            sums[0] += self._open[0]
        else:
            sums = np.concatenate([self._open, sums])
        self._open = sums[-1:].copy()
        return self._bound(sums[:-1])

    def last(self) -> Integers:
        """Return the bounded vector (1, size) of the last subject."""
        if self._done != len(self._subjects):
            raise Misuse("There are fewer records than subjects were given for.")
        return self._bound(self._open)

    def _bound(self, sums: Integers) -> Integers:
        """Clip the rows that are longer than the grid; a row that is not stays as it is."""
        long = _longer(sums, self._grid)
        self.clipped += int(long.sum())
        sums[long] = truncate_to_grid(sums[long].astype(np.float64), float(self._grid), self._grid)[0]
        return sums


def _longer(rows: Integers, bound: int) -> NDArray[np.bool_]:
    """Which rows are longer than a bound of at most 2^26, exactly, whatever integers they hold.

    Sums of squares are exact in floating point up to 2^53, and rounding takes none that is larger below 2^52.
    """
    reals = rows.astype(np.float64)
    long: NDArray[np.bool_] = np.einsum("ij,ij->i", reals, reals) > bound**2
    return long


def truncate_to_grid(
    vectors: Floats | Integers, clip: float, grid: int
) -> tuple[Integers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Clip rows to an L2 norm of ``clip`` and truncate them toward zero onto the grid.

    Rows of integers whose bound C is an integer that divides ``grid`` are not truncated: they are multiplied by grid / C.

    Args:
        vectors: (b, d) float64, one record a row; rows that are not finite become zero. Or int64.
        clip: public norm bound C > 0, in the vectors' unit.
        grid: norm bound in grid units, 1 to 2^26.

    Returns:
        (b, d) int64, the squared norm of every row at most ``grid``^2; which rows were scaled down; and which were not finite.
    """
    if not (math.isfinite(clip) and clip > 0):
        raise Misuse("The clipping norm must be positive and finite.")
    if not 1 <= grid <= MAX_GRID:
        raise Misuse("The grid must lie between 1 and 2^26.")
    if vectors.ndim != 2:
        raise Misuse("Records come as the rows of a matrix.")
    if vectors.dtype == np.int64 and grid % clip == 0:  # so clip is an integer, at most grid
        return _multiply_to_grid(cast(Integers, vectors), int(clip), grid)
    vectors = np.asarray(vectors, dtype=np.float64)
    # Norms relative to the largest value: no square overflows or vanishes. It is finite if all values are.
    peak = np.maximum(vectors.max(axis=1, initial=0.0), -vectors.min(axis=1, initial=0.0))
    invalid: NDArray[np.bool_] = np.logical_not(np.isfinite(peak))
    rows = vectors
    if invalid.any():
        rows, peak = np.where(invalid[:, None], 0.0, vectors), np.where(invalid, 0.0, peak)
    scaled = rows / np.where(peak > 0, peak, 1.0)[:, None]
    spare = np.empty(scaled.shape)  # rows are long: what is allocated anew costs as much as what is computed
    norm = row_norms(scaled, spare)
    with np.errstate(over="ignore"):
        clipped = peak * norm > clip
        if clipped.all():
            scaled /= norm[:, None]
        elif not clipped.any():
            np.divide(rows, clip, out=scaled)
        else:
            scaled[clipped] /= norm[clipped, None]
            scaled[~clipped] = rows[~clipped] / clip
    integers = np.multiply(scaled, grid, out=spare).astype(np.int64)  # toward zero
    shrink = 2.0**-52
    while (above := np.flatnonzero(np.einsum("ij,ij->i", integers, integers) > grid * grid)).size:
        # Rounding can leave a row a hair above the bound: pull it in, by twice as much each time.
        integers[above] = (scaled[above] * (1.0 - shrink) * grid).astype(np.int64)
        shrink *= 2
    return integers, clipped, invalid


def _multiply_to_grid(vectors: Integers, clip: int, grid: int) -> tuple[Integers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows of integers on the grid, exactly; one that is longer than the bound is clipped as a row of reals."""
    long = _longer(vectors, clip)
    integers = vectors * (grid // clip)  # which wraps around in long rows only
    integers[long] = truncate_to_grid(vectors[long].astype(np.float64), float(clip), grid)[0]
    return integers, long, np.zeros(len(vectors), dtype=np.bool_)
