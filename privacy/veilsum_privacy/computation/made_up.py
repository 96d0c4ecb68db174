"""Records that nobody has: what a task is tried on before any record is read. They follow from what is public alone.

Tasks whose rows the kernel computes need none: their code is traced, and nothing that a record holds can make a graph fail.
Those that compute on records themselves are tried on each column absent alone, each level, each class and bounds; and on what
no reader gives. The same ones are made every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

MOST = 256
"""Most made-up records of a task."""

MOST_VALUES = 2**19
"""Most values of their vectors together, which is what they take in time; :data:`LEAST` records are made of any task."""

LEAST = 6
"""Fewest made-up records."""

FEW = 8
"""Made-up records that a task is tried on again."""

MOST_CELLS = 2**22
"""Most cells of all made-up records together: of schemas with thousands of features there are fewer of them."""

Row = dict[str, float]
"""A made-up value of each column that is not at its middle, by name: scaled, or a level; NaN where it is missing."""


def how_many(size: int, width: int) -> int:
    """How many made-up records a task whose vector has so many values is tried on, of a schema of so many features."""
    return max(LEAST, min(MOST, MOST_VALUES // max(size, 1), MOST_CELLS // max(width, 1)))


def made_up_records(schema: DatasetSchema, most: int, *, first: bool = False) -> Records:
    """So many made-up records of a schema at most; some share a subject.

    Args:
        schema: of the records.
        most: how many there may be.
        first: only those that come first, complete ones, without odd ones.
    """
    width, classes = schema.width, len(schema.classes)
    made = [plain_records(width, classes)]
    made = [made[0].take(slice(1, 4))] if first else [*made, poisoned(width, classes)]
    left = most - sum(map(len, made))
    if left > 0:
        plan = _Plan(schema)
        made.append(plan.records(list(islice(plan.rows(), left))))
    return _one_after_another(made).take(slice(0, most))


def encoded_records(width: int, classes: int) -> Records:
    """Made-up features of an encoder, which treats all alike."""
    return _one_after_another([plain_records(width, classes), poisoned(width, classes)])


def _one_after_another(parts: Sequence[Records]) -> Records:
    features, present = np.concatenate([part.features for part in parts]), np.concatenate([part.present for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    subjects = np.arange(len(features))
    subjects[3] = subjects[2]  # those at opposite bounds
    subjects[-3:] = subjects[-3]
    return Records(features, present, np.concatenate(labels) if labels else None, subjects)


def plain_records(width: int, classes: int) -> Records:
    """In the middle, at both ends of all bounds, of every pattern of low and high, and with nothing known."""
    features = np.array([[0.0], [1.0], [-1.0], [1.0], [0.0]]) * np.ones(width)
    features[3, ::2] = -1.0
    present = np.ones(features.shape, dtype=np.bool_)
    present[4] = False
    labels = np.array([0, classes - 1, 0, classes - 1, -1], dtype=np.int64) if classes else None
    return Records(features, present, labels, np.array([0, 1, 2, 2, 3], dtype=np.int64))


def poisoned(width: int, classes: int) -> Records:
    """What no reader gives: values that are no numbers, infinite or far beyond all bounds, and classes that there are not."""
    features = np.zeros((7, width))
    features[0], features[1], features[2], features[3] = np.nan, np.inf, -np.inf, 1e300
    features[4, :1], features[5, -1:] = np.nan, -1e300
    labels = np.array([0, 0, 0, 0, 0, classes, 2**40]) if classes else None
    return Records(features, np.ones(features.shape, dtype=np.bool_), labels, np.arange(7))


@dataclass(frozen=True)
class _Column:
    """A column of the schema or its label.

    Attributes:
        place: of its features; None of the label.
        levels: how many it has; 0 of a number.
        values: that are tried, NaN for a missing one, which comes first.
    """

    place: slice | None
    levels: int
    values: tuple[float, ...]


class _Plan:
    """Which values are tried in which records."""

    def __init__(self, schema: DatasetSchema) -> None:
        self._schema = schema
        self._columns: dict[str, _Column] = {}
        for column, place in schema.places():
            number = isinstance(column, NumberColumn)
            values = (-1.0, 1.0, 0.0) if number else tuple(map(float, range(column.width)))
            self._columns[column.name] = _Column(place, 0 if number else column.width, (np.nan, *values))
        if schema.label is not None:
            classes = len(schema.classes)
            self._columns[schema.label.column] = _Column(None, classes, (np.nan, *map(float, range(classes))))

    def rows(self) -> Iterator[Row]:
        """All columns at their middle; each absent alone; then each of their values in turn."""
        yield {}
        for name in self._columns:
            yield {name: np.nan}
        for turn in range(1, max((len(column.values) for column in self._columns.values()), default=0)):
            for name, column in self._columns.items():
                if turn < len(column.values) and column.values[turn] != 0.0:
                    yield {name: column.values[turn]}

    def records(self, rows: Sequence[Row]) -> Records:
        """Records of these values; the others are in the middle, or the first level or class."""
        named = frozenset[str]().union(*rows)
        return self._of_values(len(rows), {name: np.array([row.get(name, 0.0) for row in rows]) for name in named})

    def _of_values(self, n: int, given: Mapping[str, Floats]) -> Records:
        """So many records of the given columns' values (n,)."""
        features, labels = np.zeros((n, self._schema.width)), np.zeros(n, dtype=np.int64)
        present: NDArray[np.bool_] = np.ones(features.shape, dtype=np.bool_)
        for name, column in self._columns.items():
            values = given.get(name)
            if values is None:
                if column.levels and column.place is not None:
                    features[:, column.place.start] = 1.0
                continue
            known = ~np.isnan(values)
            if column.place is None:
                labels = np.where(known, values, -1.0).astype(np.int64)
            elif column.levels:
                features[:, column.place] = values[:, None] == np.arange(column.levels)
                present[:, column.place] = known[:, None]
            else:
                features[:, column.place.start] = np.where(known, values, 0.0)
                present[:, column.place.start] = known
        return Records(features, present, labels if self._schema.classes else None, None)
