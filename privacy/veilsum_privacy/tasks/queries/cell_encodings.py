"""Encodings of queries to which a record adds one cell of a table: counts, survival, discrimination, pairs of columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from veilsum_aggregation.contrasts import PairPlan
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.lookups import looked_up
from veilsum_privacy.tasks.queries.base import Axis, Encoding, Integers, OutcomeEncoding, mark_cells
from veilsum_privacy.tasks.queries.cells import Cells, NumberDomain, level_cells, number_cells
from veilsum_privacy.tasks.queries.conditions import parse_condition
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, interval_names, scaled

SCORES = 16
"""Intervals of a score."""

PARTS = 8
"""Intervals of a number in synthetic records."""

MAX_CONTRASTS = 4e7
"""Integers that the contrasts of all pairs of columns may take, about (sum of n (n - 1))^2 / 2 for columns of n levels."""


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
        inside = group * per + interval * kinds + looked_up(self._kind_of, ends.codes)
        cell = np.where(beyond, self.group_count * per + group, inside)
        mark_cells(rows, np.where(known, cell, -1), self.scale)


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


class DiscriminationEncoding(OutcomeEncoding):
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
        self.event = None
        self.times: SurvivalEncoding | None = None
        if query.event:
            times = {"name": query.name, "kind": "survival", "over": (query.outcome,), "event": query.event}
            more = {"edges": query.edges, "censored": query.censored}
            self.times = SurvivalEncoding(Query.model_validate(times | more), columns)
        else:
            self.event = parse_condition(query.outcome, columns.domains)

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
