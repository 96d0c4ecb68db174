"""Synthetic records from the noised tables of all pairs of columns: a tree of the strongest pairs, sampled from its root.

Selection costs nothing, for it reads the tables that were released anyway. What is made is for tools that need rows: intervals
computed from synthetic records are wrong, and figures should come from the released tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.tables import project

Pair = tuple[int, int]

MIXED = 0.02
"""Share of independence in each pair's table, so that no combination has probability 0."""

ROUNDS = 30
"""Rounds of proportional fitting of each pair's table to the margins."""


@dataclass(frozen=True)
class Edge:
    """A pair of the tree.

    Attributes:
        parent, child: columns.
        kept: share of the association that is kept, in [0, 1]; at 0 the two are taken as independent.
        table: (levels of the parent, levels of the child), probabilities.
    """

    parent: int
    child: int
    kept: float
    table: Floats


@dataclass(frozen=True)
class PairTree:
    """A distribution of records in which each column depends on one other column.

    Attributes:
        margins: probabilities of each column's levels.
        edges: in an order in which a parent comes before its children; the first parent is the root.
    """

    margins: tuple[Floats, ...]
    edges: tuple[Edge, ...]

    def sample(self, records: int, random: np.random.Generator) -> Integers:
        """Draw records: (records, columns) of levels."""
        rows = np.zeros((records, len(self.margins)), dtype=np.int64)
        root = self.edges[0].parent if self.edges else 0
        rows[:, root] = random.choice(len(self.margins[root]), records, p=self.margins[root])
        for edge in self.edges:
            given = edge.table / edge.table.sum(axis=1, keepdims=True)
            steps = np.cumsum(given, axis=1)[rows[:, edge.parent]]
            rows[:, edge.child] = np.minimum((random.random(records)[:, None] > steps).sum(axis=1), given.shape[1] - 1)
        return rows


def pair_tree(
    levels: Sequence[int], table: Callable[[int, int], Floats], std: Callable[[int, int], Floats]
) -> tuple[PairTree, Mapping[Pair, float]]:
    """The tree of the strongest associations, and every pair's association without what noise adds to it.

    A pair's association is the L1 norm of its double-centred table less its expectation under noise alone. The tree is the
    maximum spanning tree. An edge's interaction D is shrunk by k = max(0, 1 - cells sigma^2 / |D|^2), projected onto
    probabilities, mixed with 2% of independence, and fitted to the margins.

    Args:
        levels: of each column.
        table: the noised table of a pair, i before j.
        std: standard deviations of its cells.
    """
    count = len(levels)
    tables = {(i, j): table(i, j) for i in range(count) for j in range(i + 1, count)}
    margins = [_margin(place, tables) for place in range(count)]
    strength: dict[Pair, float] = {}
    kept: dict[Pair, tuple[float, Floats]] = {}
    for (i, j), found in tables.items():
        n = max(float(found.sum()), 1.0)
        rest = found - np.outer(found.sum(axis=1), found.sum(axis=0)) / n
        sigma = float(np.sqrt((std(i, j) ** 2).mean()))
        strength[i, j] = float(np.abs(rest).sum()) - rest.size * sigma * np.sqrt(2.0 / np.pi)
        share = max(0.0, 1.0 - rest.size * sigma**2 / max(float((rest**2).sum()), 1e-300))
        kept[i, j] = share, rest / n
    edges: list[Edge] = []
    inside = {0}
    while len(inside) < count:
        pair = max(((i, j) for i, j in tables if (i in inside) != (j in inside)), key=strength.__getitem__)
        share, rest = kept[pair]
        fitted = _fitted(np.outer(margins[pair[0]], margins[pair[1]]) + share * rest, margins[pair[0]], margins[pair[1]])
        parent, child = pair if pair[0] in inside else pair[::-1]
        edges.append(Edge(parent, child, share, fitted if parent == pair[0] else fitted.T))
        inside.add(child)
    return PairTree(tuple(margins), tuple(edges)), strength


def _margin(place: int, tables: Mapping[Pair, Floats]) -> Floats:
    """Probabilities of a column's levels, from the first pair that it is in."""
    whole = tables[0, 1].sum(axis=1) if place == 0 else tables[0, place].sum(axis=0)
    shown = project(whole)
    return np.asarray(shown / shown.sum() if shown.sum() > 0 else np.full(len(shown), 1.0 / len(shown)), dtype=np.float64)


def _fitted(table: Floats, rows: Floats, columns: Floats) -> Floats:
    mixed = (1.0 - MIXED) * project(table) + MIXED * np.outer(np.maximum(rows, 1e-9), np.maximum(columns, 1e-9))
    mixed = np.maximum(mixed, 1e-12)
    for _ in range(ROUNDS):
        mixed = mixed * (np.maximum(rows, 1e-12) / mixed.sum(axis=1))[:, None]
        mixed = mixed * (np.maximum(columns, 1e-12) / mixed.sum(axis=0))
    return np.asarray(mixed / mixed.sum(), dtype=np.float64)
