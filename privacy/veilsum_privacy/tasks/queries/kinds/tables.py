"""Counts, histograms and independence: a table of which a record adds one cell."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

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

STEPS = 32
"""Intervals of a histogram for which nobody stated any."""

POOLED = 0.7
"""What a record adds to the table of all groups together, as a share of what it adds to its group's. Cells of two to six
groups have 6 to 14% more noise by it, and intervals of what the groups have in common are 4 to 10% shorter (decision 88)."""


class CountTable(CellKind):
    """The table of count, histogram and independence."""

    names: ClassVar = {"count": (), "histogram": ("edges",), "independence": ()}

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        if query.kind == "histogram":
            return default_edges(query, columns, STEPS)
        if query.kind == "independence" and query.by and len(query.over) == 2:
            return {"pooled": len(columns.levels(query.over[1], f"query {query.name!r}")) == 2}
        return {}

    def prepare(self, query: Query, columns: Columns) -> None:
        if query.kind == "histogram":
            self.axes: tuple[Axis, ...] = (self._bin_axis(self._one_column()),)
        else:
            self.axes = tuple(self._level_axis(name) for name in query.over)
            if query.kind == "independence" and len(self.axes) != 2:
                raise HostileInput(f"{self.what}: independence is of two columns with categories.")

    def blocks(self) -> tuple[Block, ...]:
        shape = tuple(len(axis.levels) for axis in (*self.groups, *self.axes))
        table = self._block("table", *(shape or (1,)))
        if not self.query.pooled:
            return (table,)
        return table, self._block("pooled", *shape[len(self.groups) :], weight=self._pooled_scale)

    @property
    def _pooled_scale(self) -> int:
        return round(POOLED * self.scale)

    def figures(self) -> int:
        return self.blocks()[0].size

    def norm(self) -> int:
        return super().norm() + (self._pooled_scale**2 if self.query.pooled else 0)

    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        return codes_within(group, self.axes, cells)

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        table, *pooled = self.blocks()
        own = placed(self.scale, self.cell(cells, group), table.size)
        whole = self.cell(cells, where(group < 0, -1, 0)) if pooled else None
        return joined(own, *(placed(self._pooled_scale, whole, block.size) for block in pooled))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def _tables(self, part: ReleasedPart) -> tuple[Floats, float, float]:
        """Each group's table, (group, ...), the noise in each cell, and its correlation between two groups."""
        table, std = part.block("table"), part.std("table")
        table = table.reshape(self.group_count, *table.shape[len(self.groups) :])
        if not self.query.pooled:
            return table, std, 0.0
        from veilsum_aggregation.ratios import consistent

        return consistent(table, part.block("pooled"), std, part.std("pooled"))

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        table, std, _ = self._tables(part)
        flat = table.reshape(self.group_count, -1)
        cells = levels_of(self.axes)
        for group, counts in zip(self.group_levels(), flat, strict=True):
            parts: list[Answer] = tables.shares(counts, std) if len(cells) > 1 else []
            for place, (cell, value) in enumerate(zip(cells, counts, strict=True)):
                row: Row = {**group, **cell, "count": part.cell(value, tables.count(float(value), std))}
                if parts:
                    row["share"] = part.cell(value, parts[place])
                yield row

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        query = self.query
        if query.kind == "independence":
            squares, std, _ = self._tables(part)
            for group, square in zip(self.group_levels(), squares, strict=True):
                yield self._independence(" and ".join(query.over), square, std, group)
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

        squares, std, correlation = self._tables(part)
        for place in range(1, len(levels)):
            strata = squares[:, [place, 0], :][:, :, [1, 0]]
            about = {"of": f"{event.column}: {ends[1]}", "compared": f"{exposure.column}: {levels[place]} against {levels[0]}"}
            cells = [
                f"{exposure.column} = {level} and {event.column} = {end}"
                for level in (levels[place], levels[0])
                for end in ends[::-1]
            ]
            for group, table in zip(self.group_levels(), strata, strict=True):
                found = {name: figure(table, std, cells) for name, figure in RATIOS.items()}
                yield from self._told_ratios(part, group | about, found, float(table.min()))
            if len(strata) > 1:
                everywhere = dict.fromkeys((axis.key for axis in self.groups), "all strata")
                found = {
                    f"{name} (Mantel-Haenszel)": figure(strata, std, correlation) for name, figure in POOLED_RATIOS.items()
                }
                yield from self._told_ratios(part, everywhere | about, found, float(strata.sum()))

    def _told_ratios(self, part: ReleasedPart, about: Row, found: Mapping[str, Answer], records: float) -> Iterator[Row]:
        for name, answer in found.items():
            told = None if part.small(records) else answer.p_value
            yield about | {"figure": name, "value": part.cell(records, answer), "p_value": told}

    def _strata_tests(self, part: ReleasedPart) -> Iterator[Row]:
        exposure, event = self.axes
        if [len(axis.levels) - axis.missing for axis in (exposure, event)] == [2, 2] and self.group_count > 1:
            by = ", ".join(self.query.by)
            squares, std, correlation = self._tables(part)
            from veilsum_aggregation.ratios import no_association

            found = no_association(squares[:, 1::-1, 1::-1], std, correlation)
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
