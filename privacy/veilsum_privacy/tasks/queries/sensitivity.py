"""How much one record can change in the sum of all queries together, and the weights that make the best of it.

A record contributes to the queries whose conditions it fulfils. Which ones these are depends on its *atom* only: for each
column, between which constants of the conditions its value lies. So the atoms are enumerated: for each column its categories,
or the constants, the values between them and the bounds, and a missing value; for columns that some condition connects, all
combinations. The largest sum of squared norms over the atoms is the sensitivity, exactly but for what questions of different
queries leave unused at one record; it is never less. What was computed wrongly here could not leak: every row is held against
the declared norm where it is summed (:mod:`veilsum_privacy.mechanism.clipping`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools, Floats, Integers
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.cells import Cells, LevelCells, LevelDomain, ScaledNumbers, number_cells
from veilsum_privacy.tasks.queries.conditions import Leaf
from veilsum_privacy.tasks.queries.language import Columns

MAX_ATOMS = 2_000_000
"""Atoms that are enumerated for the columns of one component; beyond, a bound is taken."""


@dataclass(frozen=True)
class Incidence:
    """Which queries one record can fulfil together.

    Attributes:
        patterns: (p, q) bool, one row for each combination that can occur and lies within no other one.
        exact: whether they were enumerated; a bound otherwise.
    """

    patterns: Bools
    exact: bool

    def largest(self, norms: Sequence[float] | Integers | Floats) -> float:
        """The largest sum of the queries' squared norms over the combinations."""
        return float((self.patterns * np.asarray(norms, dtype=np.float64)).sum(axis=1).max())

    def largest_integer(self, norms: Sequence[int]) -> int:
        """The same for integers, exactly."""
        return max(sum(norm for norm, taken in zip(norms, row, strict=True) if taken) for row in self.patterns.tolist())


def find_incidence(questions: Sequence[QueryKind], columns: Columns) -> Incidence:
    """Enumerate which queries a record can fulfil together."""
    count = len(questions)
    always = [index for index, question in enumerate(questions) if question.condition is None]
    exact = True
    parts: list[tuple[list[int], Bools]] = []
    for members in _components(questions, columns):
        leaves = [leaf for index in members for leaf in _leaves(questions[index])]
        found = _Component([questions[index] for index in members], leaves, columns)
        if found.atoms <= MAX_ATOMS:
            parts.append((members, found.enumerate()))
        else:
            parts.append((members, found.bound()))
            exact = False
    rows = np.zeros((1, count), dtype=np.bool_)
    rows[:, always] = True
    for members, patterns in parts:
        rows = np.repeat(rows, len(patterns), axis=0)
        rows[:, members] = np.tile(patterns, (len(rows) // len(patterns), 1))
        rows = _maximal(rows)
    return Incidence(rows, exact)


def balance(incidence: Incidence, norms: Sequence[float], costs: Sequence[float]) -> Floats:
    """Squared weights x_q that make sum costs_q / x_q least while no pattern's sum of x_q norms_q exceeds 1.

    With one pattern x_q is sqrt(costs_q / norms_q) over a total; with several, multipliers mu_i of the patterns are found by
    mu_i <- mu_i sqrt(their sums), which keeps sum mu = 1 at the optimum; the result is scaled to be feasible.

    Args:
        incidence: which queries a record can fulfil together.
        norms: (q,) squared norms of the queries at weight 1.
        costs: (q,) what a unit of noise variance in a query costs: its number of figures times its importance.
    """
    patterns = incidence.patterns.astype(np.float64)
    c, d = np.asarray(norms, dtype=np.float64), np.asarray(costs, dtype=np.float64)
    mu = np.full(len(patterns), 1.0 / len(patterns))
    x = np.ones(len(c))
    for _ in range(500):
        x = np.sqrt(d / (c * np.maximum(patterns.T @ mu, 1e-12)))
        sums = patterns @ (x * c)
        mu = mu * np.sqrt(sums / sums.max())
        mu /= mu.sum()
    return np.asarray(x / (patterns @ (x * c)).max(), dtype=np.float64)


def _leaves(question: QueryKind) -> Iterator[Leaf]:
    if question.condition is not None:
        yield from question.condition.leaves()


def _components(questions: Sequence[QueryKind], columns: Columns) -> list[list[int]]:
    """Queries with conditions, in groups that share no column."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, question in enumerate(questions):
        if question.condition is None:
            continue
        read = {source for name in question.condition.columns for source in columns.sources(name)}
        touched = [group for group in groups if group[0] & read]
        merged = (read.union(*(group[0] for group in touched)), sorted([index, *(i for group in touched for i in group[1])]))
        groups = [group for group in groups if group not in touched] + [merged]
    return [members for _, members in groups]


class _Component:
    """Queries whose conditions share columns, and what values of these columns differ for them."""

    def __init__(self, questions: Sequence[QueryKind], leaves: Sequence[Leaf], columns: Columns) -> None:
        self._questions, self._columns = questions, columns
        read = sorted({leaf.column for leaf in leaves})
        self._derived = [name for name in read if columns.cuts(name)]
        sources = sorted({columns.sources(name)[0] for name in read})
        self._values: list[tuple[str, Cells]] = []
        for name in sources:
            domain = columns.domains[name]
            if isinstance(domain, LevelDomain):
                codes = np.arange(-1, len(domain.levels), dtype=np.int64)
                self._values.append((name, LevelCells(codes)))
                continue
            points = {leaf.value for leaf in leaves if leaf.column == name and leaf.operator is not None}
            points |= {point for other in self._derived if columns.sources(other)[0] == name for point in columns.cuts(other)}
            ends = sorted({-1.0, 1.0, *(point for point in points if -1.0 <= point <= 1.0)})
            between = [(a + b) / 2.0 for a, b in zip(ends[1:], ends[:-1], strict=True)]
            x = np.array([*ends, *between, 0.0])
            self._values.append((name, ScaledNumbers(x, np.arange(len(x)) < len(x) - 1)))
        self.atoms = math.prod(len(cells.present) for _, cells in self._values)

    def enumerate(self) -> Bools:
        """Every combination of the queries that some atom fulfils and that lies within no other one."""
        found: set[bytes] = set()
        sizes = [len(cells.present) for _, cells in self._values]
        outer, inner = self._values[:-2], self._values[-2:]
        rest = math.prod(sizes[-2:])
        for chosen in product(*(range(size) for size in sizes[:-2])):
            places = [np.full(rest, place) for place in chosen]
            grid = np.indices([len(cells.present) for _, cells in inner]).reshape(len(inner), -1)
            cells = {
                name: _taken(values, place) for (name, values), place in zip([*outer, *inner], [*places, *grid], strict=True)
            }
            truths = np.unique(self._truths(cells), axis=0)
            found |= {row.tobytes() for row in truths}
        rows = np.array([np.frombuffer(row, dtype=np.bool_) for row in sorted(found)])
        return _maximal(rows)

    def _truths(self, cells: dict[str, Cells]) -> Bools:
        self._add_derived(cells)
        conditions = [question.condition for question in self._questions]
        return np.stack([condition.holds(cells) for condition in conditions if condition is not None], axis=1)

    def _add_derived(self, cells: dict[str, Cells]) -> None:
        """Add the columns that are cut from those given."""
        for name in self._derived:
            (source,) = self._columns.sources(name)
            if source in cells:
                numbers = number_cells(cells, source)
                codes = np.searchsorted(np.array(self._columns.cuts(name)), numbers.x, side="right").astype(np.int64)
                cells[name] = LevelCells(np.where(numbers.present, codes, -1))

    def bound(self) -> Bools:
        """Combinations that contain every one that can occur: for the column that leaves fewest together, what is possible at
        each of its values while the others may be anything."""
        best = np.ones((1, len(self._questions)), dtype=np.bool_)
        for name, values in self._values:
            cells: dict[str, Cells] = {name: values}
            self._add_derived(cells)
            conditions = [question.condition for question in self._questions]
            truths = [condition.holds(cells) for condition in conditions if condition is not None]
            rows = _maximal(np.unique(np.stack(truths, axis=1), axis=0))
            if rows.sum(axis=1).max() < best.sum(axis=1).max():
                best = rows
        return best


def _taken(cells: Cells, places: NDArray[np.intp] | Integers) -> Cells:
    if isinstance(cells, LevelCells):
        return LevelCells(cells.codes[places])
    return ScaledNumbers(cells.x[places], cells.present[places])


def _maximal(rows: Bools) -> Bools:
    """Rows that lie within no other row."""
    rows = np.unique(rows, axis=0)
    if len(rows) > 4096:
        return rows
    counts = rows.astype(np.int64) @ rows.T.astype(np.int64)
    own = rows.sum(axis=1)
    within = (counts == own[:, None]) & (own[:, None] < own[None, :])
    kept: Bools = rows[~within.any(axis=1)]
    return kept
