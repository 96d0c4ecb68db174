"""Synthetic records, drawn of the noised tables of all pairs of columns."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.contrasts import PairPlan
from veilsum_aggregation.figures import Row
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, lookup, symbol, where
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.base import Axis, QueryKind, ReleasedPart, with_missing
from veilsum_privacy.tasks.queries.cells import NumberDomain, RecordCells
from veilsum_privacy.tasks.queries.language import Columns, Query, even_edges, interval_names, scaled

if TYPE_CHECKING:
    from veilsum_aggregation.synthetic import PairTree

PARTS = 8
"""Intervals of a number in synthetic records."""

MAX_CONTRASTS = 4e7
"""Integers that the contrasts of all pairs of columns may take, about (sum of n (n - 1))^2 / 2 for columns of n levels."""

MOST_RECORDS = 1_000_000
"""Synthetic records of one result."""

RECORDS, PAIRS, SCALE, NOISE = " records", ".pairs", ".scale", ".noise_std"
"""After its name: the array of its records, and the table of what their levels mean; the released contrasts of all pairs, what
they are multiplied by, and the noise in each."""


class Synthetic(QueryKind):
    """The contrasts of all pairs of columns (:mod:`veilsum_aggregation.contrasts`); a missing value is a level of its own.

    Numbers are cut into :data:`PARTS` equal intervals; others come by a derived column.
    """

    names: ClassVar = {"synthetic": ()}
    least_scale = 500

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        return {"over": tuple(columns.domains), "missing": "level"}

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
        edges = even_edges(domain.low, domain.high, PARTS)
        gaps = name not in self.columns.imputed
        names = interval_names(edges)
        return Axis(name, with_missing(names) if gaps else names, scaled(edges, domain), gaps)

    def blocks(self) -> tuple[Block, ...]:
        return (self._block("pairs", self.plan.size, weight=1.0),)

    def norm(self) -> int:
        return self.plan.norm

    def figures(self) -> int:
        return math.comb(len(self.axes), 2)

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        codes = [axis.codes(cells) for axis in self.axes]
        known = reduce(and_, (code >= 0 for code in codes), group >= 0)
        parts = []
        for columns, block in self.plan.blocks.items():
            cell = symbol(0)
            for place in columns:
                cell = cell * self.plan.levels[place] + codes[place]
            parts.append(lookup(block, where(known, cell, -1)))
        return joined(*parts)

    # -- what is read of the sum -------------------------------------------------------------------------------------------

    def _tree(self, part: ReleasedPart) -> "tuple[PairTree, float]":
        from veilsum_aggregation.synthetic import pair_tree

        plan, released = self.plan, part.block("pairs")
        std = part.std("pairs")
        tree, _ = pair_tree(plan.levels, lambda i, j: plan.table(released, i, j), lambda i, j: plan.cell_std(i, j, std))
        return tree, float(plan.table(released, 0, 1).sum())

    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        names = self.query.over
        for edge in self._tree(part)[0].edges:
            note = "taken as independent" if edge.kept == 0 else ""
            yield {"column": names[edge.parent], "with": names[edge.child], "association_kept": edge.kept, "note": note}

    def records(self, part: ReleasedPart) -> NDArray[np.int64]:
        """As many records as were counted, drawn by the release itself, so that whoever repeats it gets the same ones."""
        tree, count = self._tree(part)
        random = np.random.default_rng(int.from_bytes(part.digest, "big"))
        return tree.sample(int(min(max(count, 0.0), MOST_RECORDS)), random)

    def result_tables(self, part: ReleasedPart) -> dict[str, Callable[[], Iterator[Row]]]:
        return super().result_tables(part) | {RECORDS: self.levels}

    def levels(self) -> Iterator[Row]:
        """What the numbers of the records mean."""
        for axis in self.axes:
            yield {"column": axis.column, "levels": list(axis.levels)}

    def arrays(self, part: ReleasedPart) -> Mapping[str, NDArray[Any]]:
        """The records; and what a reader of the released sums needs beside the levels, (1,) each."""
        scales = {SCALE: np.array([self.scale]), NOISE: np.array([part.std("pairs")])}
        return {RECORDS: self.records(part), **({} if part.smallest else scales)}
