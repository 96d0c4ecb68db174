"""All pairs of categorical columns from one sum, each table from as many noised numbers as it has cells, none of them twice.

For a column of n levels let H (n - 1, n) have orthonormal rows that are orthogonal to 1. A record with levels a contributes,
for each set A of at most two columns, w_A times the Kronecker product of their H[:, a_i]: 1 for the empty set, a margin's
contrasts for one column, a pair's interaction for two (ResidualPlanner; Xiao, He, Zhang and Kifer 2023). The table of a pair
is made of four of these blocks. Entries are multiplied by a scale and rounded to integers; decoding inverts the same
integers, so that rounding costs nothing but a little of the weights' optimality.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers

Columns = tuple[int, ...]

MARGIN = 0.5
"""Importance of a column's own table, against a pair's 1: without it margins would come out poorly."""


@dataclass(frozen=True)
class PairPlan:
    """What a record adds for all pairs of columns, and how their tables come back.

    Attributes:
        levels: of each column, at least 2.
        scale: that weights are multiplied by before entries are rounded.
    """

    levels: tuple[int, ...]
    scale: int

    @cached_property
    def sets(self) -> tuple[Columns, ...]:
        """The empty set, single columns and pairs, in the order of their blocks."""
        places = range(len(self.levels))
        return ((), *((i,) for i in places), *combinations(places, 2))

    @cached_property
    def blocks(self) -> dict[Columns, Integers]:
        """For each set the integers (cells, values) that each combination of its levels adds."""
        weights = dict(zip(self.sets, _weights(self.levels, self.sets), strict=True))
        found: dict[Columns, Integers] = {}
        for columns in self.sets:
            matrix: Floats = np.ones((1, 1))
            for place in columns:
                matrix = np.asarray(np.kron(matrix, orthonormal_contrasts(self.levels[place])), dtype=np.float64)
            found[columns] = np.asarray(np.rint(self.scale * weights[columns] * matrix.T), dtype=np.int64)
        return found

    @cached_property
    def places(self) -> dict[Columns, slice]:
        """Where each set's values lie in a record's row."""
        sizes = [self.blocks[columns].shape[1] for columns in self.sets]
        ends = np.cumsum(sizes).tolist()
        return {columns: slice(end - size, end) for columns, size, end in zip(self.sets, sizes, ends, strict=True)}

    @property
    def size(self) -> int:
        """Values of a record's row."""
        return sum(block.shape[1] for block in self.blocks.values())

    @property
    def norm(self) -> int:
        """A bound on a row's squared norm: the sum of the blocks' largest, which differ by rounding alone."""
        return int(sum((block**2).sum(axis=1).max() for block in self.blocks.values()))

    def rows(self, codes: Integers) -> Integers:
        """The rows (b, size) of records with these levels (b, columns)."""
        rows = np.empty((len(codes), self.size), dtype=np.int64)
        for columns, block in self.blocks.items():
            cell = np.zeros(len(codes), dtype=np.int64)
            for place in columns:
                cell = cell * self.levels[place] + codes[:, place]
            rows[:, self.places[columns]] = block[cell]
        return rows

    def table(self, released: Floats, i: int, j: int) -> Floats:
        """The noised table (levels of i, levels of j) of a pair, i before j, from the released sum (size,)."""
        told = np.concatenate([released[self.places[columns]] for columns in ((), (i,), (j,), (i, j))])
        found: Floats = np.linalg.solve(self._system(i, j), told)
        return found.reshape(self.levels[i], self.levels[j])

    def cell_std(self, i: int, j: int, std: float) -> Floats:
        """Standard deviation of each cell of a pair's table, for noise of ``std`` on the released sum."""
        inverse = np.linalg.inv(self._system(i, j))
        return np.asarray(std * np.linalg.norm(inverse, axis=1).reshape(self.levels[i], self.levels[j]), dtype=np.float64)

    def _system(self, i: int, j: int) -> Floats:
        """What the four blocks tell of the pair's cells, (cells, cells)."""
        n, m = self.levels[i], self.levels[j]
        parts = [
            np.tile(self.blocks[()].T, (1, n * m)),
            np.repeat(self.blocks[(i,)].T, m, axis=1),
            np.tile(self.blocks[(j,)].T, (1, n)),
            self.blocks[(i, j)].T,
        ]
        return np.concatenate(parts).astype(np.float64)


def orthonormal_contrasts(n: int) -> Floats:
    """H (n - 1, n): orthonormal rows, orthogonal to 1 (Helmert)."""
    rows = np.zeros((n - 1, n))
    for k in range(1, n):
        rows[k - 1, :k] = 1.0
        rows[k - 1, k] = -k
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float64)


def _weights(levels: Sequence[int], sets: Sequence[Columns]) -> list[float]:
    """w_A with the least summed variance of the tables' cells at norm 1: w_A^2 = sqrt(v_A / p_A) / sum_B sqrt(v_B p_B).

    p_A = prod (1 - 1/n_i) is a block's squared norm at weight 1; v_A = p_A sum_T imp_T prod_{i in T \\ A} n_i^-2 over the
    tables T that contain A.
    """
    norms = [math.prod(1.0 - 1.0 / levels[i] for i in columns) for columns in sets]
    inverse = [n**-2.0 for n in levels]
    others = sum(inverse)
    pairs = (others**2 - sum(value**2 for value in inverse)) / 2.0
    variances = []
    for columns, norm in zip(sets, norms, strict=True):
        if not columns:
            told = MARGIN * others + pairs
        elif len(columns) == 1:
            told = MARGIN + others - inverse[columns[0]]
        else:
            told = 1.0
        variances.append(norm * told)
    total = sum(math.sqrt(v * p) for v, p in zip(variances, norms, strict=True))
    return [math.sqrt(math.sqrt(v / p) / total) for v, p in zip(variances, norms, strict=True)]
