"""Rows of a graph, clipped, truncated and added exactly: the one way in which what a task says enters a sum.

Sensitivity. A record's row is a function of that record and of public arrays, to the last bit (:mod:`.evaluation`). It is
clipped and truncated by :func:`~veilsum_privacy.mechanism.clipping.truncate_to_grid` after the last primitive, so its integers
have a norm of at most ``grid``, whatever the task says of its own bound: a bound that it states too small costs accuracy, and
no privacy. Sums of integers are exact. So adding or removing a record changes the sum by at most ``grid``; and a subject with
all its records, whose rows are added and clipped once more, as well.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_privacy.mechanism.clipping import SiteSum, UnitSums, pulled_to, truncate_to_grid
from veilsum_privacy.mechanism.persons import Persons
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import CACHED, Evaluation, Sparse, spread_out


def rows_sum(
    evaluation: Evaluation, records: Records, clip: float, grid: int, *, persons: Persons | None, units: Integers | None
) -> SiteSum:
    """The sum of some records' rows on the grid; not clamped.

    Args:
        evaluation: of the graph.
        records: whole units of them, as they were sampled.
        clip: C > 0, which a record's row is scaled down to.
        grid: what C becomes, in grid units.
        persons: how a subject's records count; None where every record counts.
        units: (n,) whose record each one is, never descending; None where each record is a unit of its own.
    """
    counted: NDArray[np.bool_] | None = None
    if persons is not None:
        records, counted = persons.counted(records)
    total = np.zeros(evaluation.size, dtype=np.int64)
    groups = None if units is None else UnitSums(units, evaluation.size, partial(pulled_to, grid=grid))
    clipped = invalid = 0
    for _, sparse in evaluation.blocks(records, counted):
        integers, was_clipped, was_invalid = truncate_to_grid(sparse.values, clip, grid)
        clipped, invalid = clipped + int(was_clipped.sum()), invalid + int(was_invalid.sum())
        if groups is None:
            add_to(total, sparse, integers)
            continue
        step = max(1, CACHED // evaluation.size)
        for start in range(0, len(integers), step):
            part = slice(start, start + step)
            rows = np.zeros((len(integers[part]), evaluation.size), dtype=np.int64)
            total += groups.complete(spread_out(sparse.taken(part), integers[part], rows)).sum(axis=0)
    if groups is not None:
        total += groups.last()[0]
        clipped += groups.clipped
    return SiteSum(total, clipped, invalid)


def add_to(total: Integers, sparse: Sparse, integers: Integers) -> None:
    """Add up integers (b, compact), none larger than 2^26, in their places of a sum (size,)."""
    groups: dict[tuple[int, int], _Groups] = {}
    for part, start, places, count in sparse.segments:
        own = integers[:, part]
        if places is None:
            total[start : start + own.shape[1]] += own.sum(axis=0)
            continue
        slots = places.shape[1]
        each = own.shape[1] // slots
        target = total[start : start + slots * count * each].reshape(slots * count, each)
        key = id(places), count
        if key not in groups:
            known = (places >= 0) & (places < count)
            groups[key] = _Groups(np.where(known, places + count * np.arange(slots), -1).ravel())
        groups[key].add(own.reshape(-1, each), target)


class _Groups:
    """Values by their places among so many; -1 of those that have none."""

    def __init__(self, at: Integers) -> None:
        self._at, self._known = at, at >= 0
        self._ordered: tuple[NDArray[np.intp], Integers, NDArray[np.intp]] | None = None

    def add(self, values: Integers, target: Integers) -> None:
        """Add values (n, k) to those of a table (m, k) at their places."""
        if values.shape[1] == 1:  # reals add such integers exactly
            counted = np.bincount(self._at[self._known], weights=values[self._known, 0], minlength=len(target))
            target[:, 0] += counted.astype(np.int64)
            return
        if self._ordered is None:
            order = np.argsort(self._at, kind="stable")
            self._ordered = order, *np.unique(self._at[order], return_index=True)
        order, found, starts = self._ordered
        rows = values[order]
        for at, start, end in zip(found.tolist(), starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=False):
            if at >= 0:
                target[at] += rows[start:end].sum(axis=0)
