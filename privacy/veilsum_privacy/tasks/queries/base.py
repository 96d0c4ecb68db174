"""What a kind of question is: one class, which says what a record adds to the sum and what is read of the released sum.

A question is a query on a study's columns. It insists on what its kind needs, lists the blocks of its part of the vector, and
says the row of a record, times the query's scale: small public integers, so that nothing is truncated and the largest squared
norm of a row, :meth:`QueryKind.norm`, is an exact integer. A record that does not fulfil the query's condition, or lacks a
value that the query needs, has a row of zeros. Of the released blocks it makes the rows of its answer, and tests.

The first half, up to :meth:`QueryKind.values`, is traced on symbols and meets no record; the second one, from
:meth:`QueryKind.answer` on, sees released sums.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer, Row
from veilsum_aggregation.moments import symmetric
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Symbol, Value, joined, placed, rounded, symbol, where, whole
from veilsum_privacy.tasks.layout import Block
from veilsum_privacy.tasks.queries.cells import Cells, NumberDomain, RecordCells, ScaledNumbers
from veilsum_privacy.tasks.queries.conditions import Condition, parse_condition
from veilsum_privacy.tasks.queries.language import Columns, Query, complete_edges, cut, interval_names, scaled

MAX_VALUES = 50_000
"""Values of one query's part of the vector."""

FIELDS = frozenset((
    "at_risk", "column", "compared", "correlation", "count", "degrees", "detectable_cramers_v", "effect",
    "effective_records", "figure", "level", "mean", "missing", "noise_share", "note", "of", "p_value", "quantile", "score",
    "share", "standard_deviation", "statistic", "test", "time", "unit", "value", "with",
))  # fmt: skip
"""What an answer's rows hold beside the levels of their groups."""

OTHER_FIELDS = frozenset((
    "class", "coefficient", "hazard_ratio", "levels", "log", "measure", "number", "odds_ratio", "per", "rate_ratio", "ratio",
    "term",
))  # fmt: skip
"""What rows of other tables hold by which forecasts, papers and pictures tell what a row is."""

MISSING, NO_VALUE = "missing", "no value"
"""What the level of missing values is called, and what where a category has that name."""

OVERALL = " overall"
"""What follows a query's name in that of the table of all its groups together."""

IN_ROWS = " (column)"
"""What follows the name of a column whose levels would stand in a row under the name of something else."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a table.

    Attributes:
        column: that it is of.
        levels: names of its cells, where missing values are counted with one for them at the end (:func:`with_missing`).
        edges: scaled edges of a numeric column; None of a categorical one.
        missing: whether missing values have a cell.
    """

    column: str
    levels: tuple[str, ...]
    edges: Floats | None = None
    missing: bool = False

    @property
    def key(self) -> str:
        """Under which a row of an answer has the level."""
        return self.column + IN_ROWS if self.column in FIELDS | OTHER_FIELDS else self.column

    def codes(self, cells: Mapping[str, Cells]) -> Value:
        """The cell of a record, -1 where it has none."""
        found = cells[self.column]
        if isinstance(found, ScaledNumbers):
            codes = cut(found, np.zeros(2) if self.edges is None else self.edges)
        else:
            codes = found.codes
        return where(codes < 0, len(self.levels) - 1, codes) if self.missing else codes


def with_missing(levels: tuple[str, ...]) -> tuple[str, ...]:
    """Levels and the name of missing values' own, "missing" unless a category is called so."""
    return (*levels, NO_VALUE if MISSING in levels else MISSING)


def missing_among(levels: Sequence[str]) -> str:
    """What missing values are called among such levels."""
    return NO_VALUE if {MISSING, NO_VALUE} <= {*levels} else MISSING


def codes_within(group: Symbol, axes: Sequence[Axis], cells: Mapping[str, Cells]) -> Symbol:
    """The cell of a record in a table of groups by these axes, -1 where it has none."""
    for axis in axes:
        codes = axis.codes(cells)
        group = where((group < 0) | (codes < 0), -1, group * len(axis.levels) + codes)
    return group


def levels_of(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """The level of each axis, cell by cell."""
    names = [axis.key for axis in axes]
    return [dict(zip(names, levels, strict=True)) for levels in product(*(axis.levels for axis in axes))]


@dataclass(frozen=True)
class ReleasedPart:
    """A query's part of a released sum, and what of it may be shown.

    Attributes:
        query: whose part it is.
        values: blocks of the whole sum by name, in their own units.
        noise_std: standard deviation of the noise in each value of a block.
        digest: of the release.
        smallest: count below which no cell is printed; 0 prints all.
        missing: whether tests compare missing values, where they have a cell, as a level of their own.
    """

    query: Query
    values: Mapping[str, Floats]
    noise_std: Mapping[str, float]
    digest: bytes = b""
    smallest: int = 0
    missing: bool = True

    def block(self, name: str) -> Floats:
        """A block's released values."""
        return self.values[f"{self.query.name}/{name}"]

    def std(self, name: str) -> float:
        """Standard deviation of the noise in a block's values."""
        return float(self.noise_std[f"{self.query.name}/{name}"])

    @property
    def moments(self) -> Floats:
        """The matrix of blocks as :func:`products` has them, (d, d)."""
        return symmetric(self.block("diagonal"), self.block("cross"))

    @property
    def grain(self) -> float:
        """What rounding changes a sum by at most, for each record, in units of numbers in [-1, 1]; 0 where noise hides it."""
        return 0.0 if any(self.noise_std.values()) else 0.5 / self.query.scale

    def cell(self, records: float, answer: Answer) -> dict[str, Any]:
        """A figure of so many records, or that they are fewer than may be printed."""
        return {"below": self.smallest} if self.small(records) else answer.to_json()

    def small(self, records: float) -> bool:
        """Whether so few records are not to be shown."""
        return self.smallest > 0 and records < self.smallest


class QueryKind(ABC):
    """A query on columns, of one of its class's kinds.

    Attributes:
        names: of the kinds that share the class, each with the keys that it takes beside ``over``, ``by``, ``where``
            and ``missing``: some of ``edges``, ``at``, ``outcome``, ``event`` and ``censored``.
        least_scale: integers that stand for 1 at least.
        rounded: whether values are rounded to such integers record by record, the same way wherever a value occurs again.
        open_groups: whether a missing value of a column in ``by`` can be a group of its own.

    Raises:
        HostileInput: the query names columns that are not there, or asks for what its kind cannot give.
    """

    names: ClassVar[Mapping[str, tuple[str, ...]]]
    least_scale: ClassVar[int] = 8
    rounded: ClassVar[bool] = False
    open_groups: ClassVar[bool] = True

    def __init__(self, query: Query, columns: Columns) -> None:
        self.query, self.columns = query, columns
        self.what = f"query {query.name!r}"
        self.prepare(query, columns)
        self.condition: Condition | None = parse_condition(query.where, columns.domains) if query.where.strip() else None
        if query.where and self.condition is None:
            raise HostileInput(f"{self.what}: `where` is empty.", "Leave it out to ask about all records.")
        self.groups = tuple(self._level_axis(name, gaps=self.open_groups and not query.part_of) for name in query.by)
        if len(set(query.by)) != len(query.by) or set(query.by) & set(query.over):
            raise HostileInput(f"{self.what}: a column stands twice in `by` and `over`.")
        if self.size > MAX_VALUES:
            raise HostileInput(
                f"{self.what} asks for {self.size} values; at most {MAX_VALUES} can be.", "Use fewer levels or edges."
            )

    # -- of a kind ---------------------------------------------------------------------------------------------------------

    @classmethod
    def defaults(cls, query: Query, columns: Columns) -> dict[str, Any]:
        """What the kind takes for keys that an analyst left open."""
        return {}

    @abstractmethod
    def prepare(self, query: Query, columns: Columns) -> None:
        """Insist on what the kind needs of a query, and keep what :meth:`blocks` is made of."""

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks; a block's weight is what one unit of it counts in the integer row."""

    @abstractmethod
    def norm(self) -> int:
        """Largest squared norm of a record's row: an exact integer."""

    @abstractmethod
    def figures(self) -> int:
        """How many figures its result has, by which it is weighed against other queries."""

    @abstractmethod
    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        """A record's whole values (size,), those of its blocks one after another; ``group`` is -1 of a record that is in none,
        whose values are zeros."""

    @abstractmethod
    def answer(self, part: ReleasedPart) -> Iterator[Row]:
        """The answer, row by row."""

    def tests(self, part: ReleasedPart) -> Iterator[Row]:
        """Tests that the query asks for."""
        yield from ()

    def result_tables(self, part: ReleasedPart) -> dict[str, Callable[[], Iterator[Row]]]:
        """The tables of a result, by what follows the query's name in theirs."""
        found: dict[str, Callable[[], Iterator[Row]]] = {"": partial(self.answer, part), " tests": partial(self.tests, part)}
        # beside cells that are not printed a total would tell them
        together = self.query.whole and self.group_count > 1 and not part.smallest
        return found | {OVERALL: partial(self.overall, part)} if together else found

    def overall(self, part: ReleasedPart) -> Iterator[Row]:
        """The answer of all groups together, whose blocks are the sums of theirs, and the noise in them as well."""
        alone = type(self)(self.query.model_copy(update={"by": ()}), self.columns)
        values, noise = dict[str, Floats](), dict[str, float]()
        for block in alone.blocks():
            own = part.values[block.name].reshape(self.group_count, -1)
            values[block.name] = own.sum(axis=0).reshape(block.shape)
            noise[block.name] = math.sqrt(self.group_count) * part.noise_std[block.name]
        yield from alone.answer(replace(part, query=alone.query, values=values, noise_std=noise))

    def arrays(self, part: ReleasedPart) -> Mapping[str, NDArray[Any]]:
        """Arrays of the answer, by what follows the query's name in theirs."""
        return {}

    # -- of every kind -----------------------------------------------------------------------------------------------------

    @property
    def group_count(self) -> int:
        """Number of groups; 1 without grouping."""
        return math.prod(len(axis.levels) for axis in self.groups)

    @property
    def size(self) -> int:
        """Values of the query's part."""
        return sum(block.size for block in self.blocks())

    @property
    def reads(self) -> frozenset[str]:
        """Columns that it is computed from."""
        condition = frozenset() if self.condition is None else self.condition.columns
        return condition | self.explained | {*self.query.by, *self.query.over, self.query.event} - {""}

    @property
    def explained(self) -> frozenset[str]:
        """Columns that an outcome is computed from."""
        return frozenset()

    def group_levels(self) -> list[dict[str, str]]:
        """The level of each grouping column, group by group, in the order of the blocks."""
        return levels_of(self.groups)

    def row(self, cells: RecordCells) -> Symbol:
        """A record's row (size,)."""
        group = codes_within(symbol(0), self.groups, cells)
        if self.condition is not None:
            group = where(self.condition.holds(cells), group, -1)
        return self.values(cells, group).reshape(-1)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All that a record may meet: of the query, its outcome and derived columns."""
        event = getattr(self, "event", None)
        return *(each for each in (self.condition, event) if each is not None), *self.columns.conditions

    # -- for kinds ---------------------------------------------------------------------------------------------------------

    @property
    def scale(self) -> int:
        """Integer that stands for 1."""
        return self.query.scale

    def _level_axis(self, name: str, *, gaps: bool = True) -> Axis:
        levels = self.columns.levels(name, self.what)
        gaps = gaps and self.query.missing == "level" and name not in self.columns.imputed
        return Axis(name, with_missing(levels) if gaps else levels, missing=gaps)

    def _bin_axis(self, name: str) -> Axis:
        domain = self.columns.number(name, self.what)
        edges = complete_edges(self.query.edges, domain, self.what)
        gaps = self.query.missing == "level" and name not in self.columns.imputed
        names = interval_names(edges)
        return Axis(name, with_missing(names) if gaps else names, scaled(edges, domain), gaps)

    def _one_column(self) -> str:
        if len(self.query.over) != 1:
            raise HostileInput(f"{self.what}: a query of kind {self.query.kind} is over one column.")
        return self.query.over[0]

    def _numbers(self) -> tuple[str, ...]:
        if not self.query.over:
            raise HostileInput(f"{self.what}: `over` names no column.")
        for name in self.query.over:
            self.columns.number(name, self.what)
        return self.query.over

    def _block(self, name: str, *shape: int, weight: float | None = None) -> Block:
        return Block(f"{self.query.name}/{name}", shape, float(self.scale) if weight is None else weight)

    def _products(self, size: int) -> tuple[Block, Block]:
        """Blocks for what :func:`products` writes of so many numbers."""
        cross = self._block("cross", size * (size - 1) // 2, weight=self.scale * math.sqrt(2.0))
        return self._block("diagonal", size), cross


class CellKind(QueryKind):
    """One to which a record adds one cell of a table: a row has one ``scale``, and the norm is its square."""

    @abstractmethod
    def cell(self, cells: Mapping[str, Cells], group: Symbol) -> Symbol:
        """The place of a record's cell in its row; -1 where it has none."""

    def norm(self) -> int:
        return self.scale**2

    def values(self, cells: RecordCells, group: Symbol) -> Symbol:
        return placed(self.scale, self.cell(cells, group), self.size)


class OutcomeKind(QueryKind):
    """One that explains an outcome: a numeric column, or an event.

    Attributes:
        event: the condition that an outcome is, if it is not a column.
    """

    event: Condition | None

    @property
    def explained(self) -> frozenset[str]:
        return frozenset({self.query.outcome}) if self.event is None else self.event.columns

    def told(self, cells: Mapping[str, Cells]) -> Value:
        """Whether a record has its outcome."""
        return cells[self.query.outcome].present if self.event is None else self.event.known(cells)


def outcome_of(query: Query, columns: Columns) -> tuple[NumberDomain, Condition | None]:
    """The domain of a query's outcome, and the condition if it is an event.

    Raises:
        HostileInput: the outcome does not exist.
    """
    if not query.outcome:
        raise HostileInput(f"query {query.name!r}: `outcome` names nothing to explain.", 'outcome = "systolic"')
    if query.outcome in columns.domains and not columns.level_names(query.outcome):
        return columns.number(query.outcome, f"query {query.name!r}, outcome"), None
    if query.outcome in columns.domains or not query.outcome.strip():
        raise HostileInput(
            f"query {query.name!r}: the outcome {query.outcome!r} is neither a number nor a condition.",
            "For an event: outcome = \"died = 'yes'\".",
        )
    return NumberDomain(0.0, 1.0), parse_condition(query.outcome, columns.domains)


def products(z: Symbol, scale: int) -> Symbol:
    """z z' of values (d,), as :attr:`ReleasedPart.moments` reads it: the diagonal, then sqrt 2 times what is above."""
    one, other = np.triu_indices(z.shape[0], 1)
    cross = scale * math.sqrt(2.0)
    return whole(joined(rounded(scale * z * z), rounded(cross * z[one] * z[other])))
