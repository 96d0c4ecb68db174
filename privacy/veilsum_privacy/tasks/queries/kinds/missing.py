"""How many values are missing."""

from collections.abc import Iterator
from typing import Any, ClassVar

from veilsum_aggregation import tables
from veilsum_aggregation.figures import Row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, placed, symbol
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import RecordCells
from veilsum_privacy.tasks.queries.language import Columns, Query


class Missing(QueryKind):
    """For each group, records, and whether each column's value is missing. A record may lack them all."""

    names: ClassVar = {"missing": ()}

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        return {"over": tuple(name for name in columns.domains if name not in columns.imputed and name not in query.by)}

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
        groups = self.group_count
        return self._block("records", groups), self._block("absent", groups, len(self.query.over))

    def norm(self) -> int:
        return (1 + len(self.query.over)) * self.scale**2

    def figures(self) -> int:
        return self.group_count * len(self.query.over)

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        absent = self.scale * ~cells.present(self.query.over)
        return joined(*(placed(each, group, self.group_count) for each in (symbol(self.scale), absent)))

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        for group, levels in enumerate(self.group_levels()):
            records, std = float(part.block("records")[group]), part.std("absent")
            for name, absent in zip(self.query.over, part.block("absent")[group], strict=True):
                share = tables.share_of(float(absent), records, std, part.std("records"))
                row: Row = {**levels, "column": name}
                row["missing"] = part.cell(absent, tables.count(float(absent), std))
                yield row | {"share": part.cell(absent, share)}
