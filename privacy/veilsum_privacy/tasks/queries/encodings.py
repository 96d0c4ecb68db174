"""Encodings of each kind of query; what all have in common is in :mod:`veilsum_privacy.tasks.queries.base`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from veilsum_aggregation.contrasts import PairPlan
from veilsum_aggregation.quantiles import toeplitz_column
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.base import Block, Floats
from veilsum_privacy.tasks.queries.base import Axis, Encoding, Integers, mark_cells
from veilsum_privacy.tasks.queries.conditions import (
    Cells,
    Condition,
    NumberDomain,
    level_cells,
    number_cells,
    parse_condition,
)
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, cut, interval_names, scaled
from veilsum_privacy.tasks.queries.outcome_encodings import EffectEncoding, LinearEncoding

SCORES = 16
"""Intervals of a score."""

PARTS = 8
"""Intervals of a number in synthetic records."""

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


class TableEncoding(Encoding):
    """One cell of a table a record: count, histogram and independence. A row has one ``scale``; the norm is its square."""

    def prepare(self, query: Query, columns: Columns) -> None:
        if query.kind == "histogram":
            self.axes: tuple[Axis, ...] = (self._bin_axis(self._one_column()),)
        else:
            self.axes = tuple(self._level_axis(name) for name in query.over)
            if query.kind == "independence" and len(self.axes) != 2:
                raise HostileInput(f"{self.what}: independence is of two columns with categories.")

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
        mark_cells(rows, cell, self.scale)


class SurvivalEncoding(Encoding):
    """One cell a record of group x interval of time x (censored, causes), and one cell a group for who is past the horizon.

    Intervals are (e_b, e_b+1], the first one closed; a time beyond the last edge, or at the column's upper bound, to which
    longer ones are clamped, is past the horizon.
    """

    def prepare(self, query: Query, columns: Columns) -> None:
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
        mark_cells(rows, np.where(known, cell, -1), self.scale)


class QuantileEncoding(Encoding):
    """For each group the Toeplitz matrix's column of the interval: sums over intervals then have far less noise.

    ``scale`` multiplies the coefficients before they are rounded; the norm is the sum of their squares, from the first
    interval.
    """

    def prepare(self, query: Query, columns: Columns) -> None:
        self.domain = columns.number(self._one_column(), self.what)
        self.edges = complete_edges(query.edges, self.domain, self.what)
        self._scaled = scaled(self.edges, self.domain)

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

    def prepare(self, query: Query, columns: Columns) -> None:
        self._over = self._numbers()
        if query.kind == "compare" and not query.by:
            raise HostileInput(f"{self.what}: `by` names no groups to compare.")
        self.single = len(self._over) == 1
        self.open = () if self.single else tuple(name for name in self._over if name not in columns.imputed)

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
        mark_cells(rows, group, round(self._weights[0]))
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

    def prepare(self, query: Query, columns: Columns) -> None:
        self._over = self._numbers()
        if len(self._over) < 2:
            raise HostileInput(f"{self.what}: a correlation is of two numeric columns or more.")
        if query.by:
            raise HostileInput(f"{self.what}: correlations are not given by group.", "Use `where`, one query a group.")

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


class MissingEncoding(Encoding):
    """By group: records, and for each column whether its value is missing. A record may lack them all."""

    def prepare(self, query: Query, columns: Columns) -> None:
        if not query.over:
            raise HostileInput(f"{self.what}: `over` names no column.")
        if imputed := [name for name in query.over if name in columns.imputed]:
            raise HostileInput(
                f"{self.what}: the schema imputes {imputed[0]!r}, so no value of it is missing.", "Leave it out."
            )
        for name in query.over:
            if name not in columns.domains:
                columns.number(name, self.what)

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
        mark_cells(rows, group, self.scale)
        known, m = np.flatnonzero(group >= 0), len(self.query.over)
        for place, name in enumerate(self.query.over):
            rows[known, self.group_count + group[known] * m + place] = self.scale * ~cells[name].present[known]


class SyntheticEncoding(Encoding):
    """The contrasts of all pairs of columns (:mod:`veilsum_aggregation.contrasts`); a missing value is a level of its own.

    Numbers are cut into :data:`PARTS` equal intervals; others come by a derived column.
    """

    def prepare(self, query: Query, columns: Columns) -> None:
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

    def prepare(self, query: Query, columns: Columns) -> None:
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
        mark_cells(rows, np.where(known, (group * len(self.score.levels) + score) * self.ends + end, -1), self.scale)

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
