"""Sums of rows that a test has made, clipped and truncated as the kernel does, with nothing of a graph between."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.clipping import SiteSum, UnitSums, pulled_to, truncate_to_grid


def site_sum(
    batches: Iterator[Floats | Integers], size: int, clip: float, grid: int, bound: int, subjects: Integers | None = None
) -> SiteSum:
    """The sum of batches of rows (b, size) on the grid, clamped to ``bound``; by subject where ``subjects`` (n,) are given."""
    groups = None if subjects is None else UnitSums(subjects, size, partial(pulled_to, grid=grid))
    total = np.zeros(size, dtype=np.int64)
    clipped = invalid = 0
    for batch in batches:
        if batch.ndim != 2 or batch.shape[1] != size:
            raise Misuse(f"A batch of shape {batch.shape} came where rows of {size} values were declared.")
        rows, was_clipped, was_invalid = truncate_to_grid(batch, clip, grid)
        total += (rows if groups is None else groups.complete(rows)).sum(axis=0)
        clipped, invalid = clipped + int(was_clipped.sum()), invalid + int(was_invalid.sum())
    if groups is not None:
        total += groups.last()[0]
        clipped += groups.clipped
    return SiteSum(np.clip(total, -bound, bound), clipped, invalid)
