"""Correlations of numbers."""

import math
from collections.abc import Iterator
from typing import ClassVar

from veilsum_aggregation.figures import Row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, every, joined, real
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart, products
from veilsum_privacy.tasks.queries.cells import RecordCells
from veilsum_privacy.tasks.queries.language import Columns, Query


class Correlations(QueryKind):
    """z z' of z = (1, x): the diagonal, and sqrt 2 times the entries above it, of records that have all the numbers.

    Every value grows with |x|, so the largest norm is at a corner of the box, where all |x| = 1: (d + 1) k^2 for the diagonal
    and d (d + 1) / 2 times the square of the rounded sqrt 2 k.
    """

    names: ClassVar = {"correlation": ()}
    least_scale, rounded = 16, True

    def prepare(self, query: Query, columns: Columns) -> None:
        self._over = self._numbers()
        if len(self._over) < 2:
            raise HostileInput(f"{self.what}: a correlation is of two numeric columns or more.")
        if query.by:
            raise HostileInput(f"{self.what}: correlations are not given by group.", "Use `where`, one query a group.")

    def blocks(self) -> tuple[Block, ...]:
        return self._products(len(self._over) + 1)

    def norm(self) -> int:
        d = len(self._over)
        return (d + 1) * self.scale**2 + d * (d + 1) // 2 * round(self.scale * math.sqrt(2.0)) ** 2

    def figures(self) -> int:
        d = len(self._over)
        return d * (d - 1) // 2

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        found = cells.numbers(self._over)
        known = (group >= 0) & every(found.present)
        return products(real(joined(known, found.x * known)), self.scale)

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        from veilsum_aggregation.correlations import correlation

        names, matrix = self.query.over, part.moments
        for i in range(len(names)):
            for j in range(i + 1, len(names)):
                found = correlation(matrix, i, j, part.std("diagonal"), part.std("cross"), part.grain)
                yield {"column": names[i], "with": names[j], "correlation": part.cell(float(matrix[0, 0]), found)}
