"""What a query states, and which columns it can use: the schema's, its label, and columns that public rules derive."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import not_
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.config import did_you_mean
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Value,
    joined,
    place_of_largest,
    record_of,
    search,
    symbol,
    traced,
    where,
    whole,
)
from veilsum_privacy.study.schema import ColumnName, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.queries.arithmetic import Product, evaluate_sum, parse_sum
from veilsum_privacy.tasks.queries.cells import (
    Cells,
    Domain,
    LevelCells,
    LevelDomain,
    NumberDomain,
    RecordCells,
    ScaledNumbers,
    number_cells,
    within_bounds,
)
from veilsum_privacy.tasks.queries.conditions import Condition
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH

TABLE_ONE = "table-one"
"""The kind that becomes queries of other kinds."""

MAX_QUERIES = 512
MAX_EDGES = 1025
WORD_SCALE, EXACT_SCALE = 2**16, 2**48
"""Largest scale of values that are written in one word, and in several: float64 has little more."""

MAX_OVER = 256

FINE_STEPS = 256
"""Intervals of a number for which nobody stated any, where noise grows with the logarithm of how many they are."""

PROBES = 64
"""Made-up records on which a derived number must have a value once."""

MOST_CHECKED = 64
_CHECKED = set[tuple[DatasetSchema, tuple["DerivedColumn", ...]]]()
"""What was found to have values: a study's tasks are made again and again, and this takes longest. All of it is public."""

Text = Annotated[str, StringConstraints(max_length=MAX_LENGTH)]


class DerivedColumn(Frozen):
    """A column made of others by a public rule; either of the two forms.

    Attributes:
        name: new in the schema.
        of: numeric column that is cut at ``edges`` into a category.
        edges: in the column's unit, ascending, within its bounds.
        number: an expression such as ``systolic - diastolic`` (:func:`~veilsum_privacy.tasks.queries.arithmetic.parse_sum`),
            clamped to ``low`` and ``high``.
        unit: of the number.
    """

    name: ColumnName
    of: str = ""
    edges: tuple[Real, ...] = Field(default=(), max_length=256)
    number: Text = ""
    low: Real = 0.0
    high: Real = 0.0
    unit: str = Field(default="", max_length=64)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.of) == bool(self.number):
            raise ValueError(f"column {self.name!r}: state either `of` with `edges`, or `number` with `low` and `high`")
        if self.of and not self.edges:
            raise ValueError(f"column {self.name!r}: `edges` is missing")
        if self.number and not self.low < self.high:
            raise ValueError(f"column {self.name!r}: a derived number needs `low` below `high`, to which it is clamped")
        return self


class Query(Frozen):
    """One query, with nothing left open.

    Attributes:
        name: of its result.
        kind: what is asked, one of :data:`~veilsum_privacy.tasks.queries.kinds.KINDS`.
        over: the columns that it is about; of ``survival`` and ``logrank`` the time.
        by: categorical columns; every combination of their levels is a group.
        where: a condition (:mod:`.conditions`); empty for all records.
        edges: in the unit of the one column that it is over, ascending; of survival the ends of the intervals of time, the
            last one the horizon.
        at: quantiles, in (0, 1).
        outcome: of ``linear`` what is explained: a numeric column, or a condition that counts as 1 where it holds, else as 0;
            of ``discrimination`` what is ranked: a condition, or the time to an event; of ``effect`` as of ``linear``.
        event: of survival, and of a time's discrimination, the column that tells how the time ended.
        censored: its levels that do not count as the event; each other level is a cause.
        missing: whether a missing level is left out, or is a level of its own, of the columns counted, and of ``by`` but in
            a table one.
        importance: of its errors against the other queries'; twice as important halves the weight that variance has.
        part_of: table that its result belongs to.
        pooled: of ``independence``, whether the table of all groups together is released as well, so that what they have in
            common has less noise.
        scale: integer that its values are multiplied by; more scale, less noise, at the other queries' cost.
        unshortened: of ``linear``, whether every record counts alike, however large its terms, as without noise.
        counted: of ``linear``, whether records are counted as they are, however large their terms, with no more noise.
        whole: of a table one, whether it tells all groups together and how many records lack each number, with no more noise.
    """

    name: Name
    kind: Name
    over: tuple[ColumnName, ...] = Field(default=(), max_length=MAX_OVER)
    by: tuple[ColumnName, ...] = Field(default=(), max_length=8)
    where: Text = ""
    edges: tuple[Real, ...] = Field(default=(), max_length=MAX_EDGES)
    at: tuple[Real, ...] = Field(default=(), max_length=99)
    outcome: Text = ""
    event: str = ""
    censored: tuple[str, ...] = Field(default=(), max_length=256)
    missing: Literal["drop", "level"] = "drop"
    importance: Real = Field(default=1.0, gt=0, le=1e6)
    part_of: str = Field(default="", max_length=64)
    pooled: bool = Field(default=False, exclude_if=not_)  # studies signed before do not state it
    scale: int = Field(default=64, ge=1, le=EXACT_SCALE)
    unshortened: bool = Field(default=False, exclude_if=not_)  # as `pooled`
    counted: bool = Field(default=False, exclude_if=not_)  # as `pooled`
    whole: bool = Field(default=False, exclude_if=not_)  # as `pooled`


class Columns:
    """The columns that queries of one study can use.

    Attributes:
        domains: what values each can have, by name; those of the schema, then the label, then the derived ones.

    Raises:
        HostileInput: a derived column that cannot be made.
    """

    def __init__(self, schema: DatasetSchema, derived: Sequence[DerivedColumn] = ()) -> None:
        self._places: dict[str, slice] = {}
        self._numbers: dict[str, int] = {}
        self.domains: dict[str, Domain] = {}
        self.imputed: set[str] = set()
        for column, place in schema.places():
            self._places[column.name] = place
            if isinstance(column, NumberColumn):
                self._numbers[column.name] = place.start
            if column.impute is not None:
                self.imputed.add(column.name)
            self.domains[column.name] = (
                NumberDomain(column.low, column.high, column.unit)
                if isinstance(column, NumberColumn)
                else LevelDomain(column.categories)
            )
        self._label = "" if schema.label is None else schema.label.column
        self._classes = len(schema.classes)
        if schema.label is not None:
            self.domains[schema.label.column] = LevelDomain(schema.classes)
        self._cuts: dict[str, tuple[str, Floats]] = {}
        self._sums: dict[str, tuple[Product, ...]] = {}
        for item in derived:
            self._derive(item)
        stated = schema, tuple(derived)
        if self._sums and stated not in _CHECKED:
            self._check_numbers(schema)
            if len(_CHECKED) >= MOST_CHECKED:
                _CHECKED.clear()
            _CHECKED.add(stated)

    def _derive(self, item: DerivedColumn) -> None:
        if item.name in self.domains:
            raise HostileInput(f"[derive.{item.name}]: the schema already has a column {item.name!r}.", "Take another name.")
        if item.number:
            self._sums[item.name] = parse_sum(item.number, self.domains)
            self.domains[item.name] = NumberDomain(item.low, item.high, item.unit)
            return
        domain = self.number(item.of, f"[derive.{item.name}]")
        edges = complete_edges(item.edges, domain, f"[derive.{item.name}]")
        self._cuts[item.name] = item.of, scaled(edges, domain)
        self.domains[item.name] = LevelDomain(interval_names(edges))

    def _check_numbers(self, schema: DatasetSchema) -> None:
        """Insist that every derived number has a value for somebody: it is computed for values within all public bounds.

        Raises:
            HostileInput: a number is infinite or undefined wherever its columns lie, so that it would say nothing of anybody.
        """
        record, found = record_of(schema.width, labelled=schema.label is not None), dict[str, Cells]()
        valued = list[Value]()
        for name in self._sums:
            self._read(name, record, found)
            valued.append(np.isfinite(self._sum(name, record, found).x) & number_cells(found, name).present)
        probes = records_within(schema, PROBES)
        told = np.concatenate(list(Evaluation(traced(joined(*map(whole, valued)))).rows(probes)))
        for place, name in enumerate(self._sums):
            if not told[:, place].any():
                raise HostileInput(
                    f"[derive.{name}]: the number is infinite or undefined for every record, whatever its columns hold.",
                    "Its terms overflow within the columns' bounds: divide by constants of their size.",
                )

    def _sum(self, name: str, record: Record, found: dict[str, Cells]) -> ScaledNumbers:
        """A derived number in its own unit."""
        terms = self._sums[name]
        for source in sorted({source for term in terms for source in term.sources}):
            self._read(source, record, found)
        return evaluate_sum(terms, found, self.domains)

    def sources(self, name: str) -> tuple[str, ...]:
        """The columns that one is read from: itself, or those that it was derived from."""
        if name in self._cuts:
            return self.sources(self._cuts[name][0])
        return (name,)

    @property
    def derived(self) -> frozenset[str]:
        """The columns that are no part of the schema."""
        return frozenset(self._cuts) | self._sums.keys()

    def origins(self, name: str) -> frozenset[str]:
        """The columns of the schema, or its label, that one is computed of; itself, if it is one of these."""
        if name in self._cuts:
            return self.origins(self._cuts[name][0])
        terms = self._sums.get(name)
        if terms is None:
            return frozenset([name])
        return frozenset().union(*(self.origins(source) for term in terms for source in term.sources))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that derived numbers are made of."""
        return tuple(each for terms in self._sums.values() for term in terms for each in term.conditions)

    def cuts(self, name: str) -> tuple[float, ...]:
        """Where, on its source, a column cut into levels changes; empty for others."""
        return tuple(self._cuts[name][1][1:-1].tolist()) if name in self._cuts else ()

    def number(self, name: str, what: str) -> NumberDomain:
        """The domain of a numeric column.

        Raises:
            HostileInput: there is none of that name.
        """
        domain = self._domain(name, what)
        if not isinstance(domain, NumberDomain):
            raise HostileInput(f"{what}: {name!r} has categories; a numeric column is needed.")
        return domain

    def levels(self, name: str, what: str) -> tuple[str, ...]:
        """The levels of a categorical column.

        Raises:
            HostileInput: there is none of that name.
        """
        domain = self._domain(name, what)
        if not isinstance(domain, LevelDomain):
            raise HostileInput(
                f"{what}: {name!r} is a number; groups need categories.",
                f"Cut it: in a file [derive.{name}_group] of = {name!r}, edges = [..]; in Python"
                f" derive={{'{name}_group': {{'of': {name!r}, 'edges': [..]}}}}.",
            )
        return domain.levels

    def level_names(self, name: str) -> tuple[str, ...]:
        """The levels of a column; none of a number."""
        domain = self.domains[name]
        return domain.levels if isinstance(domain, LevelDomain) else ()

    def _domain(self, name: str, what: str) -> Domain:
        if name not in self.domains:
            raise HostileInput(f"{what}: the schema has no column {name!r}.", did_you_mean(name, self.domains))
        return self.domains[name]

    def cells(self, record: Record) -> RecordCells:
        """The cells of a record by column."""
        return RecordCells(record, self._numbers, lambda name, found: self._read(name, record, found))

    def _read(self, name: str, record: Record, found: dict[str, Cells]) -> None:
        if name in found:
            return
        if name in self._places:
            place, domain = self._places[name], self.domains[name]
            present = record.present[place.start]
            if isinstance(domain, NumberDomain):
                found[name] = within_bounds(record.features[place.start], present)
            else:
                found[name] = LevelCells(where(present, place_of_largest(record.features[place]), -1))
        elif name == self._label:
            label = symbol(-1) if record.label is None else record.label
            found[name] = LevelCells(where(label < self._classes, label, -1))
        elif name in self._cuts:
            source, edges = self._cuts[name]
            self._read(source, record, found)
            found[name] = LevelCells(cut(number_cells(found, source), edges))
        else:
            domain = self.number(name, name)
            raw = self._sum(name, record, found)
            scaled_sum = (np.clip(raw.x, domain.low, domain.high) - domain.low) / (domain.high / 2.0 - domain.low / 2.0) - 1.0
            found[name] = within_bounds(scaled_sum, raw.present)


def records_within(schema: DatasetSchema, count: int) -> Records:
    """So many complete made-up records: all numbers at the middle, at a bound, or anywhere between; any level, any class.

    The same ones whenever they are made: nothing but the schema has a part in them.
    """
    rng = np.random.default_rng(0)
    features = np.zeros((count, schema.width))
    for column, place in schema.places():
        if isinstance(column, NumberColumn):
            ends = np.where(np.arange(count) % 4 == 0, 0.0, rng.integers(-1, 2, count))
            features[:, place.start] = np.where(np.arange(count) % 4 == 3, rng.uniform(-1.0, 1.0, count), ends)
        else:
            features[:, place] = np.eye(column.width)[rng.integers(0, column.width, count)]
    labels = None if schema.label is None else rng.integers(0, len(schema.classes), count)
    return Records(features, np.ones(features.shape, dtype=np.bool_), labels)


def cut(numbers: ScaledNumbers, edges: Floats) -> Value:
    """The interval [e_b, e_b+1) of each number, the last one closed, by complete scaled edges; -1 where it is missing."""
    return np.where(numbers.present, search(edges[1:-1], numbers.x, "right"), -1)


def complete_edges(edges: Iterable[float], domain: NumberDomain, what: str) -> tuple[float, ...]:
    """Edges with the column's bounds at both ends, so that every value lies in an interval.

    Raises:
        HostileInput: they do not ascend, or do not lie within the bounds.
    """
    inner = tuple(edges)
    if any(not a < b for a, b in pairwise(inner)):
        raise HostileInput(f"{what}: edges must ascend.", "Sort them, each one once.")
    if inner and not domain.low <= inner[0] <= inner[-1] <= domain.high:
        raise HostileInput(
            f"{what}: edges reach from {inner[0]:g} to {inner[-1]:g}, the column from {domain.low:g} to {domain.high:g}.",
            "Values beyond the bounds do not occur: leave such edges out.",
        )
    if not inner:
        raise HostileInput(f"{what}: edges are missing.")
    below = () if inner[0] == domain.low else (domain.low,)
    above = () if inner[-1] == domain.high else (domain.high,)
    return (*below, *inner, *above)


def default_edges(query: Query, columns: Columns, steps: int = FINE_STEPS) -> dict[str, tuple[float, ...]]:
    """So many equal intervals between the bounds of the one column that a query is over."""
    if len(query.over) != 1:
        return {}
    domain = columns.number(query.over[0], f"query {query.name!r}")
    return {"edges": even_edges(domain.low, domain.high, steps)[1:-1]}


def even_edges(low: float, high: float, steps: int, spaced: Callable[..., Floats] = np.linspace) -> tuple[float, ...]:
    """The ends of so many intervals from ``low`` to ``high``, to 12 digits where these leave their lengths alone."""
    ends = np.array([low, *spaced(low, high, steps + 1)[1:-1], high])  # both ends as they are stated, to the last bit
    found = np.array([low, *(float(f"{place:.12g}") for place in ends[1:-1]), high])
    return tuple((found if np.allclose(np.diff(found), np.diff(ends), rtol=0.01, atol=0.0) else ends).tolist())


def scaled(edges: Iterable[float], domain: NumberDomain) -> Floats:
    """Edges as the column's cells are scaled."""
    return np.array([domain.scale(edge) for edge in edges])


def interval_names(edges: Sequence[float], digits: int = 6) -> tuple[str, ...]:
    """``18 to 40`` for each interval, with so many digits of its edges, or as many as tell them apart."""
    for places in range(digits, 18):
        names = [f"{float(f'{edge:.{places}g}'):.{max(places, 6)}g}" for edge in edges]
        if len(set(names)) == len(names):
            break
    return tuple(f"{a} to {b}" for a, b in pairwise(names))
