"""Deal the rows of one table to simulated sites: evenly, unevenly, or with skewed classes.

The seed decides who gets which row and nothing else: noise and keys never come from it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.errors import Misuse

Rows = NDArray[np.int64]


def partition(classes: NDArray[np.int64], sites: int, how: str, seed: int) -> list[Rows]:
    """Split rows among sites; every row goes to exactly one, and no site stays empty.

    Args:
        classes: (n,) class index of each row.
        sites: number of sites, 1 to n.
        how: ``iid`` (sizes differ by one at most), ``uneven`` (site i has a share in proportion to 1 / i, classes mixed), or
            ``dirichlet:ALPHA`` (each class is split by a Dirichlet draw; a small alpha gives each site few classes).
        seed: of the split.

    Returns:
        Sorted row numbers of each site.

    Raises:
        Misuse: an unknown partition, or more sites than rows.
    """
    count = len(classes)
    if not 1 <= sites <= count:
        raise Misuse(f"{count} records cannot be dealt to {sites} sites.", "Use fewer sites; each needs a record.")
    rng = np.random.default_rng(seed)
    if how == "iid":
        parts = np.array_split(rng.permutation(count), sites)
    elif how == "uneven":
        parts = np.split(rng.permutation(count), _cuts(1.0 / np.arange(1, sites + 1), count))
    else:
        parts = _dirichlet(classes, sites, _alpha(how), rng)
    return _without_empty([np.sort(part).astype(np.int64) for part in parts])


def hold_out(classes: NDArray[np.int64], share: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into (kept, held out), the same share of every class, rounded.

    Raises:
        Misuse: the share is not in [0, 1).
    """
    if not 0.0 <= share < 1.0:
        raise Misuse(f"A share of {share:g} cannot be held out.", "Use a share from 0 to below 1.")
    rng = np.random.default_rng(seed)
    held = np.zeros(len(classes), dtype=np.bool_)
    for value in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == value))
        held[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def _alpha(how: str) -> float:
    kind, _, number = how.partition(":")
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if kind != "dirichlet" or not (math.isfinite(alpha) and alpha > 0):
        raise Misuse(f"Unknown partition {how!r}.", "Use iid, uneven, or dirichlet:ALPHA, for example dirichlet:0.5.")
    return alpha


def _cuts(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Where to cut ``count`` rows so that the parts have the shares; one cut fewer than parts."""
    cuts: NDArray[np.int64] = np.rint(np.cumsum(shares / shares.sum())[:-1] * count).astype(np.int64)
    return cuts


def _dirichlet(classes: NDArray[np.int64], sites: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(sites)]
    for value in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == value))
        shares = np.maximum(rng.dirichlet(np.full(sites, alpha)), 1e-12)
        for part, dealt in zip(parts, np.split(rows, _cuts(shares, len(rows))), strict=True):
            part.append(dealt)
    return [np.concatenate(part) for part in parts]


def _without_empty(parts: list[Rows]) -> list[Rows]:
    """Give each empty site one row of the largest."""
    for index, part in enumerate(parts):
        if not len(part):
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[index], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts
