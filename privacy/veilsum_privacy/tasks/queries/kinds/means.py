"""Means and standard deviations of numbers, and their comparison by group."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from veilsum_aggregation import tables
from veilsum_aggregation.figures import Row, test_row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, Value, joined, placed, symbol, where, whole
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import RecordCells
from veilsum_privacy.tasks.queries.language import WORD_SCALE, Columns, Query

if TYPE_CHECKING:
    from veilsum_aggregation.group_means import NumberSums

SHIFT = 0.7
"""c of the shifted square x^2 - c that stands for the second moment."""

SQUARE = 1.0 / SHIFT
"""Its factor s: at x = 0 a number then has norm 1."""

LINEAR = math.sqrt(1.0 - ((1.0 - SHIFT) * SQUARE) ** 2)
"""The factor a of x: at x = 1 and x = -1 the norm is 1 as well.

Between, a^2 x^2 + s^2 (x^2 - c)^2 is convex in x^2, and so at most 1.
"""


class Means(QueryKind):
    """Mean and compare. By group: records, and of each number x in [-1, 1] a x and s (x^2 - c), or its absence.

    A record has a number or its absence, each of norm at most 1 (utility.md, U1), so m numbers cost m, beside W^2 = max(1,
    m/8) for the count. Of one number, records without it are left out, and no absence is counted.
    """

    names: ClassVar = {"mean": (), "compare": ()}
    least_scale, rounded = 32, True

    def prepare(self, query: Query, columns: Columns) -> None:
        self._over = self._numbers()
        if query.kind == "compare" and not query.by:
            raise HostileInput(f"{self.what}: `by` names no groups to compare.")
        self.single = len(self._over) == 1
        self.open = () if self.single else tuple(name for name in self._over if name not in columns.imputed)

    @property
    def _weights(self) -> tuple[float, float, float, float]:
        """Weights of records, absences, x and the shifted square."""
        m = len(self._over)
        return (round(self.scale * math.sqrt(max(1.0, m / 8.0))), self.scale, self.scale * LINEAR, self.scale * SQUARE)

    def blocks(self) -> tuple[Block, ...]:
        records, absent, linear, square = self._weights
        groups, m, gaps = self.group_count, len(self._over), len(self.open)
        found = (
            self._block("records", groups, weight=records),
            self._block("absent", groups, gaps, weight=absent),
            self._block("sum", groups, m, weight=linear),
            self._block("square", groups, m, weight=square),
        )
        return tuple(block for block in found if block.size)

    def _integers(self, x: Value) -> tuple[Value, Value]:
        """The two integers of a number, as reals."""
        _, _, linear, square = self._weights
        return np.rint(linear * x), np.rint(square * (x * x - SHIFT))

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
        first, second = self._integers(tried)
        return int((first**2 + second**2).max())

    def figures(self) -> int:
        return 2 * self.group_count * len(self._over)

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        if self.single:
            group = where(cells[self._over[0]].present, group, -1)
        numbers = cells.numbers(self._over)
        parts = [symbol(round(self._weights[0]))]
        if self.open:
            parts.append(self.scale * ~numbers.present[np.array([self._over.index(name) for name in self.open])])
        parts += [whole(each) * numbers.present for each in self._integers(numbers.x)]
        return joined(*(placed(part, group, self.group_count) for part in parts))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def sums(self, part: ReleasedPart, group: int, place: int) -> "NumberSums":
        """Those of one number in one group."""
        from veilsum_aggregation.group_means import NumberSums

        name = self.query.over[place]
        records, std = float(part.block("records")[group]), part.std("records")
        if name in self.open:
            absent = float(part.block("absent")[group, self.open.index(name)])
            records, std = records - absent, math.hypot(std, part.std("absent"))
        sums = float(part.block("sum")[group, place]), float(part.block("square")[group, place])
        return NumberSums(records, *sums, SHIFT, std, part.std("sum"), part.std("square"))

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        from veilsum_aggregation import group_means

        for group, levels in enumerate(self.group_levels()):
            for place, name in enumerate(self.query.over):
                domain = self.columns.number(name, self.what)
                sums = self.sums(part, group, place)
                mean, variance = group_means.mean(sums), group_means.variance(sums)
                row: Row = {**levels, "column": name, "unit": domain.unit}
                row["count"] = part.cell(sums.count, tables.count(sums.count, sums.count_std))
                if self.query.whole and name in self.open:
                    absent = float(part.block("absent")[group, self.open.index(name)])
                    row["missing"] = part.cell(absent, tables.count(absent, part.std("absent")))
                mean = mean.widened(part.grain).scaled(domain.half, domain.middle).within(domain.low, domain.high)
                row["mean"] = part.cell(sums.count, mean)
                deviation = variance.widened(4.0 * part.grain).root().scaled(domain.half).within(0.0, domain.half)
                row["standard_deviation"] = part.cell(sums.count, deviation)
                yield row

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        from veilsum_aggregation.group_means import equal_means

        query = self.query
        if not query.by or not (query.kind == "compare" or query.part_of) or self.group_count < 2:
            return
        for place, name in enumerate(query.over):
            groups = [self.sums(part, group, place) for group in range(self.group_count)]
            yield test_row("equal means (Welch)", f"{name} by {', '.join(query.by)}", equal_means(groups))
