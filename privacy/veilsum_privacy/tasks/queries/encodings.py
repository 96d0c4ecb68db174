"""What a record adds to the sum for a query: small public integers whose norm is known exactly.

An encoding lists the blocks of its part of the vector and gives each record's row, times the query's scale. Rows are integers:
nothing is truncated, and the largest squared norm of a row, :meth:`Encoding.norm`, is an exact integer. A record that does not
fulfil the query's condition, or lacks a value that the query needs, has a row of zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.contrasts import PairPlan
from veilsum_aggregation.quantiles import toeplitz_column
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.tasks.base import Block, Floats
from veilsum_privacy.tasks.queries.conditions import (
    Cells,
    Condition,
    NumberCells,
    NumberDomain,
    level_cells,
    number_cells,
    parse_condition,
)
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, cut, interval_names, scaled

Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_VALUES = 50_000
"""Values of one query's part of the vector."""

PARTS = 8
"""Intervals of a number in synthetic records."""

SCORES = 16
"""Intervals of a score."""

LARGEST_LOG_ODDS = 20.0
"""Of a treatment; weights of larger ones would be those of single records."""

MAX_CONTRASTS = 4e7
"""Integers that the contrasts of all pairs of columns may take, about (sum of n (n - 1))^2 / 2 for columns of n levels."""

SHIFT = 0.7
"""c of the shifted square x^2 - c that stands for the second moment."""

SQUARE = 1.0 / SHIFT
"""Its factor s: at x = 0 a number then has norm 1."""

LINEAR = math.sqrt(1.0 - ((1.0 - SHIFT) * SQUARE) ** 2)
"""The factor a of x: at x = 1 and x = -1 the norm is 1 as well.

Between, a^2 x^2 + s^2 (x^2 - c)^2 is convex in x^2, and so at most 1.
"""


@dataclass(frozen=True)
class Axis:
    """One dimension of a table.

    Attributes:
        column: that it is of.
        levels: names of its cells; with "missing" at the end where missing values are counted.
        edges: scaled edges of a numeric column; None of a categorical one.
        missing: whether missing values have a cell.
    """

    column: str
    levels: tuple[str, ...]
    edges: Floats | None = None
    missing: bool = False

    def codes(self, cells: Mapping[str, Cells]) -> Integers:
        """The cell of each record, -1 where it has none."""
        found = cells[self.column]
        if isinstance(found, NumberCells):
            codes = cut(found, np.zeros(2) if self.edges is None else self.edges)
        else:
            codes = found.codes
        return np.where(codes < 0, len(self.levels) - 1, codes) if self.missing else codes


class Encoding(ABC):
    """A query's part of the vector."""

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns = query, columns
        self.what = f"query {query.name!r}"
        self.condition: Condition | None = parse_condition(query.where, columns.domains) if query.where.strip() else None
        if query.where and self.condition is None:
            raise HostileInput(f"{self.what}: `where` is empty.", "Leave it out to ask about all records.")
        self.groups = tuple(self._level_axis(name, gaps=not query.part_of) for name in query.by)
        if len(set(query.by)) != len(query.by) or set(query.by) & set(query.over):
            raise HostileInput(f"{self.what}: a column stands twice in `by` and `over`.")
        if self.size > MAX_VALUES:
            raise HostileInput(
                f"{self.what} asks for {self.size} values; at most {MAX_VALUES} can be.", "Use fewer levels or edges."
            )

    # -- of every kind -----------------------------------------------------------------------------------------------------

    @property
    def group_shape(self) -> tuple[int, ...]:
        """Cells of each grouping column."""
        return tuple(len(axis.levels) for axis in self.groups)

    @property
    def group_count(self) -> int:
        """Number of groups; 1 without grouping."""
        return math.prod(self.group_shape)

    @property
    def size(self) -> int:
        """Values of the query's part."""
        return sum(block.size for block in self.blocks())

    @property
    def reads(self) -> frozenset[str]:
        """Columns that it is computed from."""
        condition = frozenset() if self.condition is None else self.condition.columns
        return (
            condition
            | {axis.column for axis in self.groups}
            | set(self.query.over)
            | self.explained
            | ({self.query.event} - {""})
        )

    @property
    def explained(self) -> frozenset[str]:
        """Columns that an outcome is computed from."""
        return frozenset()

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks; a block's weight is what one unit of it counts in the integer row."""

    @abstractmethod
    def norm(self) -> int:
        """Largest squared norm of a record's row: an exact integer."""

    @abstractmethod
    def figures(self) -> int:
        """How many figures its result has, by which it is weighed against other queries."""

    @abstractmethod
    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        """Write each record's values to zeroed rows (b, size); ``group`` is -1 of a record that is in none."""

    def rows(self, cells: Mapping[str, Cells], count: int) -> Integers:
        """Rows (b, size) of so many records."""
        group = np.zeros(count, dtype=np.int64)
        for axis in self.groups:
            codes = axis.codes(cells)
            group = np.where((group < 0) | (codes < 0), -1, group * len(axis.levels) + codes)
        if self.condition is not None:
            group = np.where(self.condition.holds(cells), group, -1)
        rows = np.zeros((count, self.size), dtype=np.int64)
        self.fill(cells, group, rows)
        return rows

    # -- for kinds ---------------------------------------------------------------------------------------------------------

    @property
    def scale(self) -> int:
        """Integer that stands for 1."""
        return self.query.scale

    def _level_axis(self, name: str, *, gaps: bool = True) -> Axis:
        levels = self.columns.levels(name, self.what)
        gaps = gaps and self.query.missing == "level" and name not in self.columns.imputed
        return Axis(name, (*levels, "missing") if gaps else levels, missing=gaps)

    def _bin_axis(self, name: str) -> Axis:
        domain = self.columns.number(name, self.what)
        edges = complete_edges(self.query.edges, domain, self.what)
        gaps = self.query.missing == "level" and name not in self.columns.imputed
        names = interval_names(edges)
        return Axis(name, (*names, "missing") if gaps else names, scaled(edges, domain), gaps)

    def _one_column(self) -> str:
        if len(self.query.over) != 1:
            raise HostileInput(f"{self.what}: a query of kind {self.query.kind} is over one column.")
        return self.query.over[0]

    def _numbers(self) -> tuple[str, ...]:
        if not self.query.over:
            raise HostileInput(f"{self.what}: `over` names no column.")
        for name in self.query.over:
            self.columns.number(name, self.what)
        return self.query.over

    def _name(self, part: str) -> str:
        return f"{self.query.name}/{part}"


class TableEncoding(Encoding):
    """One cell of a table a record: count, histogram and independence. A row has one ``scale``; the norm is its square."""

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        if query.kind == "histogram":
            self.axes: tuple[Axis, ...] = (self._bin_axis(self._one_column()),)
        else:
            self.axes = tuple(self._level_axis(name) for name in query.over)
            if query.kind == "independence" and len(self.axes) != 2:
                raise HostileInput(f"{self.what}: independence is of two columns with categories.")
        super().__init__(query, columns)

    def blocks(self) -> tuple[Block, ...]:
        shape = (*(len(axis.levels) for axis in self.groups), *(len(axis.levels) for axis in self.axes))
        return (Block(self._name("table"), shape or (1,), float(self.scale)),)

    def norm(self) -> int:
        return self.scale**2

    def figures(self) -> int:
        return self.size

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        cell = group
        for axis in self.axes:
            codes = axis.codes(cells)
            cell = np.where((cell < 0) | (codes < 0), -1, cell * len(axis.levels) + codes)
        _place(rows, cell, self.scale)


class SurvivalEncoding(Encoding):
    """One cell a record of group x interval of time x (censored, causes), and one cell a group for who is past the horizon.

    Intervals are (e_b, e_b+1], the first one closed; a time beyond the last edge, or at the column's upper bound, to which
    longer ones are clamped, is past the horizon.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self.domain = columns.number(self._one_column(), self.what)
        if len(query.edges) < 2 or query.edges[0] < self.domain.low or query.edges[-1] > self.domain.high:
            raise HostileInput(
                f"{self.what}: edges must be two times or more within {self.domain.low:g} and {self.domain.high:g}.",
                "The last one is the horizon.",
            )
        complete_edges(query.edges, self.domain, self.what)
        levels = columns.levels(query.event, f"{self.what}, event")
        unknown = [name for name in query.censored if name not in levels]
        if unknown or not query.censored or len(set(query.censored)) >= len(levels):
            raise HostileInput(
                f"{self.what}: `censored` must name those categories of {query.event!r} that are no event, not all of them.",
                f"Categories: {', '.join(levels)}.",
            )
        self.causes = tuple(name for name in levels if name not in query.censored)
        self._kind_of = np.array([0 if name in query.censored else 1 + self.causes.index(name) for name in levels])
        self._edges = scaled(query.edges, self.domain)
        super().__init__(query, columns)

    @property
    def bins(self) -> int:
        """Number of intervals."""
        return len(self.query.edges) - 1

    def blocks(self) -> tuple[Block, ...]:
        inside = (self.group_count, self.bins, len(self.causes) + 1)
        weight = float(self.scale)
        return (Block(self._name("ends"), inside, weight), Block(self._name("beyond"), (self.group_count,), weight))

    def norm(self) -> int:
        return self.scale**2

    def figures(self) -> int:
        return self.group_count * self.bins

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        times, ends = number_cells(cells, self.query.over[0]), level_cells(cells, self.query.event)
        kinds, per = len(self.causes) + 1, self.bins * (len(self.causes) + 1)
        interval = np.clip(np.searchsorted(self._edges, times.x, side="left") - 1, 0, None)
        beyond = (times.x > self._edges[-1]) | (times.x >= 1.0)
        known = (group >= 0) & times.present & (ends.present | beyond)
        inside = group * per + interval * kinds + self._kind_of[np.maximum(ends.codes, 0)]
        cell = np.where(beyond, self.group_count * per + group, inside)
        _place(rows, np.where(known, cell, -1), self.scale)


class QuantileEncoding(Encoding):
    """For each group the Toeplitz matrix's column of the interval: sums over intervals then have far less noise.

    ``scale`` multiplies the coefficients before they are rounded; the norm is the sum of their squares, from the first
    interval.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self.domain = columns.number(self._one_column(), self.what)
        self.edges = complete_edges(query.edges, self.domain, self.what)
        self._scaled = scaled(self.edges, self.domain)
        super().__init__(query, columns)

    @property
    def bins(self) -> int:
        """Number of intervals."""
        return len(self.edges) - 1

    @cached_property
    def _columns_of_intervals(self) -> Integers:
        """(bins, bins): row b is what a record in interval b adds."""
        column, bins = self.column(), self.bins
        lower = np.zeros((bins, bins), dtype=np.int64)
        for start in range(bins):
            lower[start, start:] = column[: bins - start]
        return lower

    def column(self) -> Integers:
        """The first column of the integer matrix."""
        return toeplitz_column(self.bins, self.scale)

    def blocks(self) -> tuple[Block, ...]:
        return (Block(self._name("prefix"), (self.group_count, self.bins), 1.0),)

    def norm(self) -> int:
        return int((self.column() ** 2).sum())

    def figures(self) -> int:
        return 2 * self.group_count * max(1, len(self.query.at))

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        numbers = number_cells(cells, self.query.over[0])
        code = cut(numbers, self._scaled)
        known = np.flatnonzero((group >= 0) & (code >= 0))
        places = group[known, None] * self.bins + np.arange(self.bins)
        rows[known[:, None], places] = self._columns_of_intervals[code[known]]


class MeanEncoding(Encoding):
    """Mean and compare. By group: records, and of each number x in [-1, 1] a x and s (x^2 - c), or its absence.

    A record has a number or its absence, each of norm at most 1 (utility.md, U1), so m numbers cost m, beside W^2 = max(1,
    m/8) for the count. Of one number, records without it are left out, and no absence is counted.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self._over = self._numbers()
        if query.kind == "compare" and not query.by:
            raise HostileInput(f"{self.what}: `by` names no groups to compare.")
        self.single = len(self._over) == 1
        self.open = () if self.single else tuple(name for name in self._over if name not in columns.imputed)
        super().__init__(query, columns)

    @property
    def _weights(self) -> tuple[float, float, float, float]:
        """Of records, absences, x and the shifted square."""
        m = len(self._over)
        return (round(self.scale * math.sqrt(max(1.0, m / 8.0))), self.scale, self.scale * LINEAR, self.scale * SQUARE)

    def blocks(self) -> tuple[Block, ...]:
        records, absent, linear, square = self._weights
        groups, m, gaps = self.group_count, len(self._over), len(self.open)
        found = (
            Block(self._name("records"), (groups,), records),
            Block(self._name("absent"), (groups, gaps), absent),
            Block(self._name("sum"), (groups, m), linear),
            Block(self._name("square"), (groups, m), square),
        )
        return tuple(block for block in found if block.size)

    def _values(self, x: Floats) -> tuple[Integers, Integers]:
        _, _, linear, square = self._weights
        return np.rint(linear * x).astype(np.int64), np.rint(square * (x * x - SHIFT)).astype(np.int64)

    def norm(self) -> int:
        _, _, linear, square = self._weights
        steps = np.arange(0.5, max(linear, square) + 1.0)
        turns = np.concatenate(
            [[0.0, 1.0], steps / linear, np.sqrt(np.maximum(0.0, SHIFT + np.concatenate([steps, -steps]) / square))]
        )
        turns = np.unique(turns[(turns >= 0.0) & (turns <= 1.0)])
        tried = np.concatenate([turns, (turns[1:] + turns[:-1]) / 2.0])
        first, second = self._values(tried)
        number = int((first**2 + second**2).max())
        return round(self._weights[0]) ** 2 + sum(
            max(number, self.scale**2) if name in self.open else number for name in self._over
        )

    def figures(self) -> int:
        return 2 * self.group_count * len(self._over)

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        groups, m, gaps = self.group_count, len(self._over), len(self.open)
        if self.single:
            group = np.where(cells[self._over[0]].present, group, -1)
        _place(rows, group, round(self._weights[0]))
        known = np.flatnonzero(group >= 0)
        at = group[known]
        for place, name in enumerate(self.open):
            rows[known, groups + at * gaps + place] = self.scale * ~cells[name].present[known]
        for place, name in enumerate(self._over):
            found = number_cells(cells, name)
            here = found.present[known]
            first, second = self._values(found.x[known])
            start = groups * (1 + gaps)
            rows[known, start + at * m + place] = first * here
            rows[known, start + groups * m + at * m + place] = second * here


class CorrelationEncoding(Encoding):
    """z z' of z = (1, x): the diagonal, and sqrt 2 times the entries above it, of records that have all the numbers.

    Every value grows with |x|, so the largest norm is at a corner of the box, where all |x| = 1: (d + 1) k^2 for the diagonal
    and d (d + 1) / 2 times the square of the rounded sqrt 2 k.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self._over = self._numbers()
        if len(self._over) < 2:
            raise HostileInput(f"{self.what}: a correlation is of two numeric columns or more.")
        if query.by:
            raise HostileInput(f"{self.what}: correlations are not given by group.", "Use `where`, one query a group.")
        super().__init__(query, columns)

    @property
    def _cross(self) -> float:
        return self.scale * math.sqrt(2.0)

    def blocks(self) -> tuple[Block, ...]:
        d = len(self._over)
        return (
            Block(self._name("diagonal"), (d + 1,), float(self.scale)),
            Block(self._name("cross"), (d * (d + 1) // 2,), self._cross),
        )

    def norm(self) -> int:
        d = len(self._over)
        return (d + 1) * self.scale**2 + d * (d + 1) // 2 * round(self._cross) ** 2

    def figures(self) -> int:
        d = len(self._over)
        return d * (d - 1) // 2

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        known = group >= 0
        z = [np.ones(len(group))]
        for name in self._over:
            found = number_cells(cells, name)
            known = known & found.present
            z.append(found.x)
        columns = np.stack(z, axis=1)
        d = len(z)
        upper = np.triu_indices(d, 1)
        rows[:, :d] = np.rint(self.scale * columns * columns) * known[:, None]
        rows[:, d:] = np.rint(self._cross * columns[:, upper[0]] * columns[:, upper[1]]) * known[:, None]


class LinearEncoding(Encoding):
    """z z' of z = c (1, terms, outcome), as of correlations, of records that have them all; and who is at the bounds.

    Terms are numbers in [-1, 1], and an indicator of each level of a category but the first. c = min(1, C / |(1, terms)|)
    shortens by the terms alone, so the regression stays unbiased (design: statistics.md, section 5). The norm of z z' is
    |z|^2 <= C^2 + 1; rounding adds half a unit a value at most.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self.outcome, self.event = _outcome(query, columns)
        if not query.over or self.explained & set(query.over) or len(set(query.over)) != len(query.over):
            raise HostileInput(
                f"{self.what}: `over` names the terms that explain {query.outcome!r}, each once.", 'over = ["age", "sex"]'
            )
        if query.by:
            raise HostileInput(
                f"{self.what}: a regression is not given by group.", "Name the group among the terms, or use `where`."
            )
        domains = [columns.domains.get(name) or columns.number(name, self.what) for name in query.over]
        self.terms = tuple(
            (name, level)
            for name, domain in zip(query.over, domains, strict=True)
            for level in ("",) * isinstance(domain, NumberDomain) + columns.level_names(name)[1:]
        )
        numbers = sum(isinstance(domain, NumberDomain) for domain in domains)
        self.longest = math.sqrt(1.0 + numbers / 3.0 + (len(domains) - numbers) / 2.0)
        super().__init__(query, columns)

    @property
    def explained(self) -> frozenset[str]:
        return frozenset({self.query.outcome}) if self.event is None else self.event.columns

    @property
    def _entries(self) -> int:
        return (len(self.terms) + 2) * (len(self.terms) + 3) // 2

    def blocks(self) -> tuple[Block, ...]:
        size = len(self.terms) + 2
        return (
            Block(self._name("diagonal"), (size,), float(self.scale)),
            Block(self._name("cross"), (size * (size - 1) // 2,), self.scale * math.sqrt(2.0)),
            Block(self._name("bounds"), (1,), float(self._light)),
        )

    @property
    def _light(self) -> int:
        return max(1, round(self.scale / 2))

    def norm(self) -> int:
        reach = self.scale * (self.longest**2 + 1.0) + math.sqrt(self._entries) / 2.0
        return math.floor(reach * reach) + self._light**2

    def figures(self) -> int:
        return len(self.terms)

    def design(self, cells: Mapping[str, Cells], group: Integers) -> tuple[Floats, Floats, Bools]:
        """(1, terms) as (b, p), the outcome in [-1, 1] as (b,), and which records have them all; 0 in those that lack one."""
        known = group >= 0
        z = np.ones((len(group), len(self.terms) + 1))
        for place, (name, level) in enumerate(self.terms, 1):
            if level:
                found = level_cells(cells, name)
                z[:, place] = found.codes == self.columns.level_names(name).index(level)
                known = known & found.present
            else:
                number = number_cells(cells, name)
                z[:, place] = number.x
                known = known & number.present
        for name in self.explained:
            known = known & cells[name].present
        if self.event is None:
            outcome = number_cells(cells, self.query.outcome).x
        else:
            outcome = np.where(self.event.holds(cells), 1.0, -1.0)
        return z * known[:, None], outcome * known, known

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        z, outcome, known = self.design(cells, group)
        short = np.minimum(1.0, self.longest / np.maximum(row_norms(z), 1.0))
        rotated = np.hstack([z, outcome[:, None]]) * short[:, None]
        size = rotated.shape[1]
        upper = np.triu_indices(size, 1)
        rows[:, :size] = np.rint(self.scale * rotated * rotated)
        cross = self.scale * math.sqrt(2.0)
        rows[:, size:-1] = np.rint(cross * rotated[:, upper[0]] * rotated[:, upper[1]])
        if self.event is None:
            rows[:, -1] = self._light * (known & (np.abs(outcome) >= 1.0))


class MissingEncoding(Encoding):
    """By group: records, and for each column whether its value is missing. A record may lack them all."""

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        if not query.over:
            raise HostileInput(f"{self.what}: `over` names no column.")
        if imputed := [name for name in query.over if name in columns.imputed]:
            raise HostileInput(
                f"{self.what}: the schema imputes {imputed[0]!r}, so no value of it is missing.", "Leave it out."
            )
        for name in query.over:
            if name not in columns.domains:
                columns.number(name, self.what)
        super().__init__(query, columns)

    def blocks(self) -> tuple[Block, ...]:
        weight = float(self.scale)
        return (
            Block(self._name("records"), (self.group_count,), weight),
            Block(self._name("absent"), (self.group_count, len(self.query.over)), weight),
        )

    def norm(self) -> int:
        return (1 + len(self.query.over)) * self.scale**2

    def figures(self) -> int:
        return self.group_count * len(self.query.over)

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        _place(rows, group, self.scale)
        known, m = np.flatnonzero(group >= 0), len(self.query.over)
        for place, name in enumerate(self.query.over):
            rows[known, self.group_count + group[known] * m + place] = self.scale * ~cells[name].present[known]


class SyntheticEncoding(Encoding):
    """The contrasts of all pairs of columns (:mod:`veilsum_aggregation.contrasts`); a missing value is a level of its own.

    Numbers are cut into :data:`PARTS` equal intervals; others come by a derived column.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        if len(query.over) < 2:
            raise HostileInput(f"{self.what}: synthetic records are of two columns or more.")
        if query.by:
            raise HostileInput(f"{self.what}: synthetic records are not made by group.", "Add the group's column to `over`.")
        self.axes = tuple(self._any_axis(name) for name in query.over)
        levels = [len(axis.levels) for axis in self.axes]
        if sum((n * (n - 1)) for n in levels) ** 2 / 2.0 > MAX_CONTRASTS:
            raise HostileInput(
                f"{self.what}: the pairs of these columns have too many combinations.",
                "Cut columns of many categories by a derived column, or leave some out.",
            )
        self.plan = PairPlan(tuple(levels), query.scale)
        super().__init__(query, columns)

    def _any_axis(self, name: str) -> Axis:
        domain = self.columns.domains.get(name)
        if not isinstance(domain, NumberDomain):
            return self._level_axis(name)
        step = (domain.high - domain.low) / PARTS
        edges = tuple(float(f"{domain.low + step * place:.12g}") for place in range(PARTS + 1))
        edges = (domain.low, *edges[1:-1], domain.high)
        gaps = name not in self.columns.imputed
        names = interval_names(edges)
        return Axis(name, (*names, "missing") if gaps else names, scaled(edges, domain), gaps)

    def blocks(self) -> tuple[Block, ...]:
        return (Block(self._name("pairs"), (self.plan.size,), 1.0),)

    def norm(self) -> int:
        return self.plan.norm

    def figures(self) -> int:
        return math.comb(len(self.axes), 2)

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        codes = np.stack([axis.codes(cells) for axis in self.axes], axis=1)
        known = np.flatnonzero((group >= 0) & (codes >= 0).all(axis=1))
        rows[known] = self.plan.rows(codes[known])


class DiscriminationEncoding(Encoding):
    """One cell a record of group x level of the score x what happened: no event or one, or when and how a time ended.

    A score is a number, cut into :data:`SCORES` equal intervals, or a category whose levels ascend.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        name = self._one_column()
        domain = columns.domains.get(name)
        if isinstance(domain, NumberDomain):
            edges = tuple(float(f"{edge:.12g}") for edge in np.linspace(domain.low, domain.high, SCORES + 1)[1:-1])
            complete = complete_edges(edges, domain, self.what)
            self.score = Axis(name, interval_names(complete), scaled(complete, domain))
        else:
            self.score = self._level_axis(name, gaps=False)
        self.event: Condition | None = None
        self.times: SurvivalEncoding | None = None
        if query.event:
            times = {"name": query.name, "kind": "survival", "over": (query.outcome,), "event": query.event}
            more = {"edges": query.edges, "censored": query.censored}
            self.times = SurvivalEncoding(Query.model_validate(times | more), columns)
        else:
            self.event = parse_condition(query.outcome, columns.domains)
        super().__init__(query, columns)

    @property
    def explained(self) -> frozenset[str]:
        return frozenset({self.query.outcome}) if self.event is None else self.event.columns

    @property
    def ends(self) -> int:
        """What can happen: of a condition none and one, of a time the cells of its survival."""
        return 2 if self.times is None else self.times.size

    def blocks(self) -> tuple[Block, ...]:
        return (Block(self._name("ends"), (self.group_count, len(self.score.levels), self.ends), float(self.scale)),)

    def norm(self) -> int:
        return self.scale**2

    def figures(self) -> int:
        return self.group_count * len(self.score.levels)

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        score, end = self.score.codes(cells), self._end(cells, len(group))
        known = (group >= 0) & (score >= 0) & (end >= 0)
        _place(rows, np.where(known, (group * len(self.score.levels) + score) * self.ends + end, -1), self.scale)

    def _end(self, cells: Mapping[str, Cells], count: int) -> Integers:
        """What happened to each record; -1 where that is missing."""
        if self.event is not None:
            known = np.ones(count, dtype=np.bool_)
            for name in self.event.columns:
                known &= cells[name].present
            return np.where(known, self.event.holds(cells).astype(np.int64), -1)
        rows = np.zeros((count, self.ends), dtype=np.int64)
        if self.times is not None:
            self.times.fill(cells, np.zeros(count, dtype=np.int64), rows)
        return np.where(rows.any(axis=1), rows.argmax(axis=1), -1)


class EffectEncoding(Encoding):
    """By treatment w (1, y) and w^2 (1, y, y^2) of each record: w its inverse-probability weight as a share of the largest.

    The score in ``over`` is the log odds of the treatment's second level; its bounds bound the weights. Outcomes y are numbers
    in [-1, 1], or 1 with the event and 0 without. With w and y at 1 a row has two values of ``scale`` and three of 2/5 of it.
    """

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns, self.what = query, columns, f"query {query.name!r}"
        self.outcome, self.event = _outcome(query, columns)
        self.odds = columns.number(self._one_column(), f"{self.what}, over")
        if len(query.by) != 1 or len(columns.levels(query.by[0], f"{self.what}, by")) != 2:
            raise HostileInput(
                f"{self.what}: `by` names the treatment, a category of two levels.", "The second is the treated."
            )
        self.largest = 1.0 + math.exp(min(max(abs(self.odds.low), abs(self.odds.high)), LARGEST_LOG_ODDS))
        super().__init__(query, columns)

    @property
    def explained(self) -> frozenset[str]:
        return frozenset({self.query.outcome}) if self.event is None else self.event.columns

    @property
    def light(self) -> int:
        """What 1 counts among the squares."""
        return max(1, round(0.4 * self.scale))

    def blocks(self) -> tuple[Block, ...]:
        return (Block(self._name("sums"), (2, 2), float(self.scale)), Block(self._name("squares"), (2, 3), float(self.light)))

    def norm(self) -> int:
        return 2 * self.scale**2 + 3 * self.light**2

    def figures(self) -> int:
        return 4

    def fill(self, cells: Mapping[str, Cells], group: Integers, rows: Integers) -> None:
        odds = number_cells(cells, self.query.over[0])
        known = (group >= 0) & odds.present
        for name in self.explained:
            known = known & cells[name].present
        log_odds = self.odds.low + (odds.x + 1.0) * (self.odds.high / 2.0 - self.odds.low / 2.0)
        against = np.clip(np.where(group == 1, -log_odds, log_odds), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
        w = np.minimum((1.0 + np.exp(against)) / self.largest, 1.0)
        y = number_cells(cells, self.query.outcome).x if self.event is None else self.event.holds(cells).astype(np.float64)
        values = [self.scale * w, self.scale * w * y, *(self.light * w * w * power for power in (1.0, y, y * y))]
        places = np.array([[0, 1, 4, 5, 6], [2, 3, 7, 8, 9]])[np.where(known, group, 0)]
        chosen = np.flatnonzero(known)
        rows[chosen[:, None], places[chosen]] = np.rint(np.stack(values, axis=1))[chosen]


def _outcome(query: Query, columns: Columns) -> tuple[NumberDomain, Condition | None]:
    """The domain of a query's outcome, and the condition if it is an event."""
    if query.outcome in columns.domains and not columns.level_names(query.outcome):
        return columns.number(query.outcome, f"query {query.name!r}, outcome"), None
    if query.outcome in columns.domains or not query.outcome.strip():
        raise HostileInput(
            f"query {query.name!r}: the outcome {query.outcome!r} is neither a number nor a condition.",
            "For an event: outcome = \"died = 'yes'\".",
        )
    return NumberDomain(0.0, 1.0), parse_condition(query.outcome, columns.domains)


def _place(rows: Integers, cell: Integers, value: int) -> None:
    """Write a value at each row's cell, where it has one."""
    known = np.flatnonzero(cell >= 0)
    rows[known, cell[known]] = value


ENCODINGS: Mapping[str, type[Encoding]] = {
    "count": TableEncoding,
    "histogram": TableEncoding,
    "independence": TableEncoding,
    "quantiles": QuantileEncoding,
    "mean": MeanEncoding,
    "compare": MeanEncoding,
    "correlation": CorrelationEncoding,
    "missing": MissingEncoding,
    "survival": SurvivalEncoding,
    "logrank": SurvivalEncoding,
    "synthetic": SyntheticEncoding,
    "linear": LinearEncoding,
    "discrimination": DiscriminationEncoding,
    "effect": EffectEncoding,
}


def build_encoding(query: Query, columns: Columns) -> Encoding:
    """A query's part of the vector.

    Raises:
        HostileInput: it names columns that are not there, or asks for what its kind cannot give.
    """
    return ENCODINGS[query.kind](query, columns)


def build_encodings(queries: Sequence[Query], columns: Columns) -> tuple[Encoding, ...]:
    """All queries' parts, in order.

    Raises:
        HostileInput: as :func:`build_encoding`; or two queries have one name.
    """
    names = [query.name for query in queries]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise HostileInput(f"Two queries are named {repeated[0]!r}.", "Give each a name of its own.")
    return tuple(build_encoding(query, columns) for query in queries)
