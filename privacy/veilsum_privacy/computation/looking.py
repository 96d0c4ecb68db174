"""Rows and sums of records as a task makes them, for looking at and not for a release."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.mechanism.clipping import MAX_GRID
from veilsum_privacy.mechanism.factors import FactorSums, FineUnits
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.tasks.base import FactorTask, RowTask


def task_rows(task: RowTask[Any], records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats | Integers]:
    """Rows (b, size) of records as a task's graph has them, before they are clipped.

    Of a :class:`FactorTask` these are factors.
    """
    persons, counted = task.persons, None
    evaluation = Evaluation(task.traced(broadcast), task.maps(broadcast))
    if persons is not None:
        records, counted = persons.counted(records)
    yield from evaluation.rows(records, counted)


def task_sum(task: FactorTask[Any], records: Records, broadcast: Mapping[str, Floats]) -> Floats:
    """The weighted vector (size,) of records that are units of their own."""
    fine = FineUnits.of(task.clip(), MAX_GRID, task.layout().size)
    sums = FactorSums(Evaluation(task.traced(broadcast), task.maps(broadcast)), task.products(), fine)
    sums.add(records)
    total: Floats = sums.total().astype(np.float64) * (2.0**fine.shift / fine.scale)
    return total
