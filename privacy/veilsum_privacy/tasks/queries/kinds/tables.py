"""Counts, histograms and independence: a table of which a record adds one cell."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from veilsum_aggregation import tables
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer, Row, Test, test_row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, placed, where
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import Axis, CellKind, ReleasedPart, codes_within, levels_of
from veilsum_privacy.tasks.queries.cells import Cells, RecordCells
from veilsum_privacy.tasks.queries.language import Columns, Query, default_edges

if TYPE_CHECKING:
    from veilsum_aggregation.ratios import StrataNoise

STEPS = 32
"""Intervals of a histogram for which nobody stated any."""

CONTRASTS = 0.4
"""What a record adds to contrasts of the table of all groups together, as a share of the squared norm of what it adds to its
group's. Cells have 18% more noise by it, and intervals of what groups have in common are 6 to 16% shorter (decision 88)."""


class CountTable(CellKind):
    """The table of count, histogram and independence."""

    names: ClassVar = {"count": (), "histogram": ("edges",), "independence": ()}

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        if query.kind == "histogram":
            return default_edges(query, columns, STEPS)
        if query.kind == "independence" and query.by and len(query.over) == 2:
            exposures, ends = (len(columns.levels(name, f"query {query.name!r}")) for name in query.over)
            return {"pooled": exposures > 1 and ends == 2}
        return {}

    def prepare(self, query: Query, columns: Columns) -> None:
        if query.kind == "histogram":
            self.axes: tuple[Axis, ...] = (self._bin_axis(self._one_column()),)
        else:
            self.axes = tuple(self._level_axis(name) for name in query.over)
            if query.kind == "independence" and len(self.axes) != 2:
                raise HostileInput(f"{self.what}: independence is of two columns with categories.")
        if query.pooled and (len(self.axes) != 2 or len(self.axes[0].levels) < 2):
            raise HostileInput(f"{self.what}: nothing is compared that groups could have in common.", "Leave `pooled` out.")

    def blocks(self) -> tuple[Block, ...]:
        shape = tuple(len(axis.levels) for axis in (*self.groups, *self.axes))
        table = self._block("table", *(shape or (1,)))
        if not self.query.pooled:
            return (table,)
        return table, self._block("pooled", *shape[len(self.groups) :], weight=self._step * shape[-2])

    @property
    def _step(self) -> int:
        """What a record takes from every exposure's contrast; to its own it adds that as often as there are exposures."""
        exposures = len(self.axes[0].levels)
        return max(1, round(self.scale * math.sqrt(CONTRASTS / (exposures * (exposures - 1)))))

    def figures(self) -> int:
        return self.blocks()[0].size

    def norm(self) -> int:
        if not self.query.pooled:
            return super().norm()
        exposures = len(self.axes[0].levels)
        return super().norm() + exposures * (exposures - 1) * self._step**2

    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        return codes_within(group, self.axes, cells)

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        table, *pooled = self.blocks()
        own = placed(self.scale, self.cell(cells, group), table.size)
        if not pooled:
            return own
        exposure, event = self.axes
        apart = where(self.cell(cells, group) < 0, -1, 0)
        ended = placed(self._step, codes_within(apart, (event,), cells), len(event.levels))
        exposures = len(exposure.levels)
        contrast = placed(self._step * exposures, codes_within(apart, self.axes, cells), pooled[0].size)
        return joined(own, contrast - joined(*[ended] * exposures))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def _tables(self, part: ReleasedPart) -> Floats:
        """Each group's table, (group, ...)."""
        table = part.block("table")
        return table.reshape(self.group_count, *table.shape[len(self.groups) :])

    def _strata(self, part: ReleasedPart) -> "tuple[Floats, StrataNoise]":
        """The same with what the contrasts of all tell of them, (group, exposure, event), and its noise."""
        from veilsum_aggregation.ratios import StrataNoise, consistent

        squares, std = self._tables(part), part.std("table")
        if not self.query.pooled:
            return squares, StrataNoise(std)
        return consistent(squares, part.block("pooled"), std, part.std("pooled"))

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        std, cells = part.std("table"), levels_of(self.axes)
        for group, counts in zip(self.group_levels(), self._tables(part).reshape(self.group_count, -1), strict=True):
            parts: list[Answer] = tables.shares(counts, std) if len(cells) > 1 else []
            for place, (cell, value) in enumerate(zip(cells, counts, strict=True)):
                row: Row = {**group, **cell, "count": part.cell(value, tables.count(float(value), std))}
                if parts:
                    row["share"] = part.cell(value, parts[place])
                yield row

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        query = self.query
        if query.kind == "independence":
            for group, square in zip(self.group_levels(), self._tables(part), strict=True):
                yield self._independence(" and ".join(query.over), square, part.std("table"), group)
            yield from self._strata_tests(part)
        elif query.part_of and query.by and len(self.axes) == 1 and self.group_count > 1:
            axes = *self.groups, *self.axes
            kept = [len(axis.levels) - (axis.missing and not part.missing) for axis in axes]
            table, std = part.block("table")[tuple(map(slice, kept))], part.std("table")
            flat = table.reshape(-1, table.shape[-1])
            yield self._independence(f"{query.over[0]} by {', '.join(query.by)}", flat, std, {})

    def result_tables(self, part: ReleasedPart) -> dict[str, Callable[[], Iterator[Row]]]:
        return super().result_tables(part) | {" ratios": partial(self.ratio_rows, part)}

    def ratio_rows(self, part: ReleasedPart) -> Iterator[Row]:
        """Ratios of an event of two levels: each level of the first column against its first, by group and over all groups."""
        if self.query.kind != "independence":
            return
        exposure, event = self.axes
        levels, ends = (axis.levels[:-1] if axis.missing else axis.levels for axis in (exposure, event))
        if len(ends) != 2:
            return
        from veilsum_aggregation.ratios import POOLED_RATIOS, RATIOS

        (strata, noise), std = self._strata(part), part.std("table")
        for place in range(1, len(levels)):
            own, common = (squares[:, [place, 0], :][:, :, [1, 0]] for squares in (self._tables(part), strata))
            about = {"of": f"{event.column}: {ends[1]}", "compared": f"{exposure.column}: {levels[place]} against {levels[0]}"}
            cells = [
                f"{exposure.column} = {level} and {event.column} = {end}"
                for level in (levels[place], levels[0])
                for end in ends[::-1]
            ]
            for group, table in zip(self.group_levels(), own, strict=True):
                found = {name: figure(table, std, cells) for name, figure in RATIOS.items()}
                yield from self._told_ratios(part, group | about, found, float(table.min()))
            if len(common) > 1:
                everywhere = dict.fromkeys((axis.key for axis in self.groups), "all strata")
                found = {f"{name} (Mantel-Haenszel)": figure(common, noise) for name, figure in POOLED_RATIOS.items()}
                yield from self._told_ratios(part, everywhere | about, found, float(common.sum()))

    def _told_ratios(self, part: ReleasedPart, about: Row, found: Mapping[str, Answer], records: float) -> Iterator[Row]:
        for name, answer in found.items():
            told = None if part.small(records) else answer.p_value
            yield about | {"figure": name, "value": part.cell(records, answer), "p_value": told}

    def _strata_tests(self, part: ReleasedPart) -> Iterator[Row]:
        exposure, event = self.axes
        if [len(axis.levels) - axis.missing for axis in (exposure, event)] == [2, 2] and self.group_count > 1:
            by = ", ".join(self.query.by)
            squares, noise = self._strata(part)
            from veilsum_aggregation.ratios import no_association

            found = no_association(squares[:, 1::-1, 1::-1], noise)
            everywhere = dict.fromkeys((axis.key for axis in self.groups), "all strata")
            of = f"{' and '.join(self.query.over)} within {by}"
            yield test_row(
                "no association in any stratum (Mantel-Haenszel)", of, found, detectable_cramers_v=None, **everywhere
            )

    @staticmethod
    def _independence(of: str, table: Floats, std: float, group: Mapping[str, str]) -> Row:
        found = tables.independence(table, std)
        rows, columns = (int(np.count_nonzero(table.any(axis=axis))) for axis in (1, 0))
        effect = tables.cramers_v(found, float(table.sum()), (rows, columns)) if isinstance(found, Test) else None
        return test_row("independence (chi-squared)", of, found, detectable_cramers_v=effect, **group)
