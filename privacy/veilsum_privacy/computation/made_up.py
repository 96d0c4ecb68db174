"""Records that nobody has: what a task is tried on before any record is read. They follow from what is public alone.

A task may fail on a record only where its code takes a branch, so they take as many as there are: each column absent alone,
each level, each class, bounds, constants of conditions and edges with the values beside them; and what conditions hold for,
as well as what they do not hold for, with each column that is read then absent alone. The same ones are made every time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.queries.branches import Branch, Branches
from veilsum_privacy.tasks.queries.cells import Cells
from veilsum_privacy.tasks.queries.conditions import Both, Condition, Not

MOST = 256
"""Most made-up records of a task."""

MOST_VALUES = 2**19
"""Most values of their vectors together, which is what they take in time; :data:`LEAST` records are made of any task."""

LEAST, LEAST_BRANCHED = 6, 64
"""Fewest made-up records; of a task with branches, if there are so many."""

FEW = 8
"""Made-up records that a task is tried on again."""

MOST_CELLS = 2**22
"""Most cells of all made-up records together: of schemas with thousands of features there are fewer of them."""

POINTS = 24
"""Most values of one numeric column beside its bounds that are tried."""

POOL = 256
"""Records of values at random among which one that meets a condition is looked for."""

CLIMBS = 64
"""Conditions for which, if none of these meets it, it is searched for one value after another."""

STEPS = 24
"""Values that are changed in such a search."""

Row = dict[str, float]
"""A made-up value of each column that is not at its middle, by name: scaled, or a level; NaN where it is missing."""


def how_many(size: int, width: int, branched: bool) -> int:
    """How many made-up records a task whose vector has so many values is tried on, of a schema of so many features."""
    least = LEAST_BRANCHED if branched else LEAST
    return max(LEAST, min(MOST, max(least, MOST_VALUES // max(size, 1)), MOST_CELLS // max(width, 1)))


def made_up_records(schema: DatasetSchema, branches: Branches | None, most: int, *, first: bool = False) -> Records:
    """So many made-up records of a schema at most; some share a subject.

    Args:
        schema: of the records.
        branches: where the task's rows take branches by columns; None for a task of features, which treats all alike.
        most: how many there may be.
        first: only those that come first, complete ones and where conditions hold and do not, without odd ones.
    """
    width, classes = schema.width, len(schema.classes)
    made = [plain_records(width, classes)]
    made = [made[0].take(slice(1, 4))] if first else [*made, poisoned(width, classes)]
    left = most - sum(map(len, made))
    if left > 0:
        plan = _Plan(schema, branches)
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

    def __init__(self, schema: DatasetSchema, branches: Branches | None) -> None:
        self._schema, self._branches = schema, branches
        points = {} if branches is None else branches.points()
        self._columns: dict[str, _Column] = {}
        for column, place in schema.places():
            if isinstance(column, NumberColumn):
                values = (np.nan, -1.0, 1.0, 0.0, *_around(points.get(column.name, ())))
                self._columns[column.name] = _Column(place, 0, values)
            else:
                levels = tuple(float(level) for level in range(column.width))
                self._columns[column.name] = _Column(place, column.width, (np.nan, *levels))
        if schema.label is not None:
            classes = len(schema.classes)
            levels = tuple(float(level) for level in range(classes))
            self._columns[schema.label.column] = _Column(None, classes, (np.nan, *levels))

    def rows(self) -> Iterator[Row]:
        """What is most likely to be a branch first: columns absent alone and levels where each condition holds, and beside."""
        around = [self._varied({}, list(self._columns))]
        if self._branches is not None:
            starts = self._starts(self._branches.branches)
            around = [self._varied(row, read) for row, read in starts] + around
        yield from _round_robin(around)

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

    def _varied(self, row: Row, names: Iterable[str]) -> Iterator[Row]:
        """The row, each of these columns absent alone, then each of their values in turn."""
        known = [name for name in names if name in self._columns]
        yield row
        for name in known:
            yield {**row, name: np.nan}
        longest = max((len(self._columns[name].values) for name in known), default=0)
        for turn in range(1, longest):
            for name in known:
                values = self._columns[name].values
                if turn < len(values) and values[turn] != row.get(name, 0.0):
                    yield {**row, name: values[turn]}

    # -- conditions -------------------------------------------------------------------------------------------------------

    def _starts(self, branches: Sequence[Branch]) -> Iterator[tuple[Row, list[str]]]:
        """Of each branch a row that meets its condition, and one that does not, with the columns that are read then."""
        conditions: dict[str, tuple[Condition | None, set[str]]] = {}
        for branch in branches:  # one condition may stand above many queries
            read = conditions.setdefault(repr(branch.condition), (branch.condition, set()))[1]
            read |= branch.reads
        for number, (condition, read) in enumerate(conditions.values()):
            names = sorted(read)
            if condition is None:
                yield {}, names
                continue
            for wanted in (True, False):
                row = self._meeting(condition, wanted, climb=number < CLIMBS)
                if row is not None:
                    yield row, names if wanted else []

    @cached_property
    def _pool(self) -> tuple[dict[str, Floats], Records]:
        """Values at random of the columns that conditions are about, all of them in the middle first, and these records."""
        rng = np.random.default_rng(0)
        asked = frozenset() if self._branches is None else self._branches.asked
        drawn = {name: rng.choice(column.values, POOL) for name, column in self._columns.items() if name in asked}
        for values in drawn.values():
            values[0] = 0.0
        return drawn, self._of_values(POOL, drawn)

    def _meeting(self, condition: Condition, wanted: bool, *, climb: bool) -> Row | None:
        """A row that meets a condition, or does not; None if none is found."""
        drawn, records = self._pool
        read = [name for name in self._bases(condition) if name in self._columns]
        degrees = self._degrees(condition, wanted, records)
        best = int(degrees.argmax())
        row, degree = {name: float(drawn[name][best]) for name in read}, float(degrees[best])
        for _ in range(STEPS if climb else 0):
            if degree >= 1.0:
                break
            tried = [{**row, name: value} for name in read for value in self._columns[name].values]
            if not tried:
                break
            degrees = self._degrees(condition, wanted, self.records(tried))
            best = int(degrees.argmax())
            if degrees[best] <= degree:
                break
            row, degree = tried[best], float(degrees[best])
        return row if degree >= 1.0 else None

    def _bases(self, condition: Condition) -> list[str]:
        return [] if self._branches is None else sorted(self._branches.bases(condition.columns))

    def _degrees(self, condition: Condition, wanted: bool, records: Records) -> Floats:
        """How nearly each record meets a condition, from 0 to 1, which it is exactly where it does."""
        if self._branches is None:
            return np.zeros(len(records))
        return _degree(condition, wanted, self._branches.cells(records, condition.columns))


def _degree(condition: Condition, wanted: bool, cells: Mapping[str, Cells]) -> Floats:
    """The share of what has to hold together that does; of alternatives the largest."""
    if isinstance(condition, Not):
        return _degree(condition.part, not wanted, cells)
    if isinstance(condition, Both):
        parts = np.array([_degree(part, wanted, cells) for part in condition.parts])
        if condition.any_of == wanted:
            return np.asarray(parts.max(axis=0), dtype=np.float64)
        return np.asarray(np.where((parts >= 1.0).all(axis=0), 1.0, np.minimum(parts.mean(axis=0), 0.999)), dtype=np.float64)
    return np.asarray(condition.holds(cells) == wanted, dtype=np.float64)


def _around(points: Iterable[float]) -> list[float]:
    """Points within the bounds, and what lies between them; evenly spread ones where there are too many."""
    inner = sorted({float(point) for point in points if -1.0 < point < 1.0})
    ends = [-1.0, *inner, 1.0]
    found = [*inner, *((a + b) / 2.0 for a, b in pairwise(ends))] if inner else []
    if len(found) <= POINTS:
        return found
    return [found[int(place)] for place in np.linspace(0, len(found) - 1, POINTS)]


def _round_robin(rows: Sequence[Iterator[Row]]) -> Iterator[Row]:
    """One of each in turn, until all are at their end."""
    left = list(rows)
    while left:
        going = []
        for each in left:
            row = next(each, None)
            if row is not None:
                going.append(each)
                yield row
        left = going
