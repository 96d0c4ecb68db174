"""Quantiles of a number."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from veilsum_aggregation import quantiles
from veilsum_aggregation.arrays import Integers
from veilsum_aggregation.figures import Answer, NotEstimable, Row
from veilsum_privacy.mechanism.rows.symbols import Symbol, lookup, placed
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.cells import RecordCells, number_cells
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, cut, default_edges, scaled


class Quantiles(QueryKind):
    """For each group the Toeplitz matrix's column of the interval: sums over intervals then have far less noise.

    ``scale`` multiplies the coefficients before they are rounded; the norm is the sum of their squares, from the first
    interval.
    """

    names: ClassVar = {"quantiles": ("edges", "at")}
    least_scale = 32

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        return default_edges(query, columns) | {"at": (0.25, 0.5, 0.75)}

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
        return quantiles.toeplitz_column(self.bins, self.scale)

    def blocks(self) -> tuple[Block, ...]:
        return (self._block("prefix", self.group_count, self.bins, weight=1.0),)

    def norm(self) -> int:
        return int((self.column() ** 2).sum())

    def figures(self) -> int:
        return 2 * self.group_count * max(1, len(self.query.at))

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        code = cut(number_cells(cells, self.query.over[0]), self._scaled)
        return placed(lookup(self._columns_of_intervals, code), group, self.group_count)

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        query, std = self.query, part.std("prefix")
        for levels, sums in zip(self.group_levels(), part.block("prefix"), strict=True):
            found = quantiles.quantiles(sums, self.column(), std, self.edges, query.at)
            count = float((quantiles.prefix_matrix(self.column()) @ sums)[-1])
            for q, answer in zip(query.at, found, strict=True):
                about = {"column": query.over[0], "unit": self.domain.unit, "quantile": q}
                yield {**levels, **about, "value": part.cell(count, self._within_edges(answer))}

    def _within_edges(self, answer: Answer) -> Answer:
        """A figure, if it lies within the edges that were asked for: beyond them nobody knows more than on which side."""
        first, last, rounding = self.query.edges[0], self.query.edges[-1], 1e-6 * self.domain.half
        if isinstance(answer, NotEstimable) or first - rounding <= answer.value <= last + rounding:
            return answer
        side = f"below the first edge, {first:g}" if answer.value < first else f"above the last edge, {last:g}"
        return NotEstimable(f"it lies {side}", "edges that reach further")
