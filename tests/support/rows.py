"""Values of records as the kernel computes them from what is said on symbols, as arrays to look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.primitives import DTYPES
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, hash_is_low, record_of, symbol, traced, whole
from veilsum_privacy.tasks.base import Records, RowTask
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.cells import Cells, LevelCells, ScaledNumbers
from veilsum_privacy.tasks.queries.language import Columns


def computed(said: Callable[[Record], Any], records: Records) -> NDArray[Any]:
    """What is said of a record, computed of each of them: (n, *shape)."""
    return computing(said, records)(records)


def in_statistics_part(records: Records, share: float) -> NDArray[np.bool_]:
    """Which records (n,) are for statistics, as tasks split them."""
    return computed(lambda record: hash_is_low(record, share), records)


def computing(said: Callable[[Record], Any], like: Records) -> Callable[[Records], NDArray[Any]]:
    """What computes what is said of a record, of records (n) as others are: (n, *shape). It is traced once."""
    found = symbol(said(record_of(like.features.shape[1], labelled=like.labels is not None)))
    row = (whole(found) if found.kind == "truth" else found).reshape(-1)
    evaluation = Evaluation(traced(row))

    def values(records: Records) -> NDArray[Any]:
        made = [np.zeros((0, row.shape[0])), *evaluation.rows(records)]
        each = np.concatenate(made[1:] or made).reshape(len(records), *found.shape)
        return each.astype(np.bool_) if found.kind == "truth" else each

    return values


def of_values(said: Callable[[Symbol], Any], values: NDArray[np.float64]) -> NDArray[Any]:
    """What is said of values (m,), computed of rows (n, m)."""
    return computed(lambda record: said(record.features), Records(values, np.ones(values.shape, dtype=np.bool_), None))


def cells_of(columns: Columns, records: Records, names: Collection[str]) -> dict[str, Cells]:
    """The cells of columns as arrays (n,)."""
    found: dict[str, Cells] = {}
    for name in names:
        if columns.level_names(name):
            found[name] = LevelCells(computed(lambda r, name=name: columns.cells(r)[name].codes, records))
        else:
            x = computed(lambda r, name=name: columns.cells(r)[name].x, records)
            found[name] = ScaledNumbers(x, computed(lambda r, name=name: columns.cells(r)[name].present, records))
    return found


def rows_of(task: RowTask[Any], broadcast: Mapping[str, Floats]) -> Callable[[Records], NDArray[Any]]:
    """What gives the rows (n, size) of records as a task's graph has them, before they are clipped; it is traced once."""
    evaluation, persons = Evaluation(task.traced(broadcast), task.maps(broadcast)), task.persons

    def rows(records: Records) -> NDArray[Any]:
        own, counted = (records, None) if persons is None else persons.counted(records)
        return np.concatenate([np.zeros((0, task.row_size()), dtype=DTYPES[evaluation.kind]), *evaluation.rows(own, counted)])

    return rows


def question_rows(question: QueryKind, columns: Columns, records: Records) -> NDArray[np.int64]:
    """The rows (n, size) of a question."""
    return question_of_rows(question, columns, records)(records)


def question_of_rows(question: QueryKind, columns: Columns, like: Records) -> Callable[[Records], NDArray[np.int64]]:
    """What computes the rows (n, size) of a question, of records as others are."""
    return computing(lambda record: question.row(columns.cells(record)), like)
