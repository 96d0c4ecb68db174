"""Encodings of queries that describe columns by their values: quantiles, means, correlations, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from veilsum_aggregation.quantiles import toeplitz_column
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.base import Floats
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.lookups import looked_up
from veilsum_privacy.tasks.queries.base import Encoding, Integers, mark_cells
from veilsum_privacy.tasks.queries.cells import Cells, number_cells
from veilsum_privacy.tasks.queries.language import WORD_SCALE, Columns, Query, complete_edges, cut, scaled

SHIFT = 0.7
"""c of the shifted square x^2 - c that stands for the second moment."""

SQUARE = 1.0 / SHIFT
"""Its factor s: at x = 0 a number then has norm 1."""

LINEAR = math.sqrt(1.0 - ((1.0 - SHIFT) * SQUARE) ** 2)
"""The factor a of x: at x = 1 and x = -1 the norm is 1 as well.

Between, a^2 x^2 + s^2 (x^2 - c)^2 is convex in x^2, and so at most 1.
"""


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
        rows[known[:, None], places] = looked_up(self._columns_of_intervals, code[known])


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
        number = (self.scale + 1) ** 2 if self.scale > WORD_SCALE else self._largest_number()
        return round(self._weights[0]) ** 2 + sum(
            max(number, self.scale**2) if name in self.open else number for name in self._over
        )

    def _largest_number(self) -> int:
        """Largest squared norm of a number's two integers: the reals have at most the scale, and each is rounded."""
        _, _, linear, square = self._weights
        steps = np.arange(0.5, max(linear, square) + 1.0)
        turns = np.concatenate(
            [[0.0, 1.0], steps / linear, np.sqrt(np.maximum(0.0, SHIFT + np.concatenate([steps, -steps]) / square))]
        )
        turns = np.unique(turns[(turns >= 0.0) & (turns <= 1.0)])
        tried = np.concatenate([turns, (turns[1:] + turns[:-1]) / 2.0])
        first, second = self._values(tried)
        return int((first**2 + second**2).max())

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
