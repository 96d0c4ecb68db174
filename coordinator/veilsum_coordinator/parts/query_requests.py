"""Queries as an analyst writes them, and what they become: every column and edge stated, from public values alone.

Their scales are :mod:`.query_scales`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.study.schema import ColumnName, DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.cells import LevelDomain, NumberDomain
from veilsum_privacy.tasks.queries.kinds import KINDS
from veilsum_privacy.tasks.queries.language import MAX_OVER, MAX_QUERIES, Columns, DerivedColumn, Query, Text

LONGEST_PART = 31
"""Characters of a table one's name, and of what tells its parts apart."""


TABLE_ONE = "table-one"
"""The kind that becomes queries of other kinds."""


def _known(kind: str) -> str:
    """A kind that there is."""
    if kind not in (known := (*KINDS, TABLE_ONE)):
        raise ValueError(f"no kind of question is called {kind!r}. {did_you_mean(kind, known)}".removesuffix("."))
    return kind


def _listed(value: object) -> object:
    """One name stands for a list of it."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[ColumnName, ...], BeforeValidator(_listed), Field(max_length=4096)]


class EdgeRange(Frozen):
    """``{ from = 0, to = 120, steps = 64, scale = "log" }``: evenly spaced edges, or evenly in their logarithm."""

    model_config = ConfigDict(populate_by_name=True)

    start: Real = Field(alias="from")
    to: Real
    steps: int = Field(ge=1, le=1024)
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.start < self.to:
            raise ValueError("`from` must be below `to`")
        if self.scale == "log" and not self.start > 0:
            raise ValueError('a scale "log" starts above 0')
        return self

    def edges(self) -> tuple[float, ...]:
        """The ``steps`` + 1 edges, to 12 digits."""
        space = np.geomspace if self.scale == "log" else np.linspace
        return tuple(float(f"{edge:.12g}") for edge in space(self.start, self.to, self.steps + 1))


class DeriveRequest(Frozen):
    """A ``[derive.NAME]`` table: a :class:`~veilsum_privacy.tasks.queries.language.DerivedColumn` without its name."""

    of: str = ""
    edges: tuple[Real, ...] | EdgeRange = ()
    number: str = ""
    low: Real = 0.0
    high: Real = 0.0
    unit: str = ""

    def column(self, name: str) -> DerivedColumn:
        """The column of that name."""
        edges = self.edges.edges() if isinstance(self.edges, EdgeRange) else self.edges
        return DerivedColumn.model_validate({**dict(self), "name": name, "edges": edges})


class QueryRequest(Frozen):
    """A ``[[query]]`` table; attributes as of :class:`~veilsum_privacy.tasks.queries.language.Query`, but for these.

    Attributes:
        name: by default the kind, with a number where it occurs more than once.
        kind: or ``table-one``, which becomes means of all numbers, counts of all categories and, with ``at``, quantiles, by
            group.
        over: a column or a list of columns; of ``table-one``, ``missing`` and ``synthetic`` all of them by default.
        edges: a list, or a range.
        at: of quantiles by default the quartiles, of survival the median.
    """

    name: Name | None = None
    kind: Annotated[str, AfterValidator(_known)]
    over: Names = ()
    by: Names = ()
    where: Text = ""
    edges: tuple[Real, ...] | EdgeRange = ()
    at: tuple[Annotated[Real, Field(gt=0, lt=1)], ...] = Field(default=(), max_length=99)
    outcome: Text = ""
    event: str = ""
    censored: Names = ()
    missing: Literal["drop", "level"] | None = None
    importance: Real = Field(default=1.0, gt=0, le=1e6)

    def check(self) -> None:
        """Insist that nothing is stated that the kind does not use.

        Raises:
            ConfigurationError: something is.
        """
        used = ("at",) if self.kind == TABLE_ONE else KINDS[self.kind].names[self.kind]
        for key in ("edges", "at", "outcome", "event", "censored"):
            if getattr(self, key) and key not in used:
                raise ConfigurationError(f"query {self.name!r}: a query of kind {self.kind} has no {key!r}.", "Leave it out.")

    def stated(self) -> dict[str, Any]:
        """The keys of a query that are stated."""
        own = {key: getattr(self, key) for key in type(self).model_fields}
        edges = self.edges.edges() if isinstance(self.edges, EdgeRange) else self.edges
        return {key: value for key, value in {**own, "edges": edges}.items() if value}


def check_persons(person: Reduction | None, at_most: int, study: Study) -> None:
    """Insist that a study says how a person's records count exactly if persons are its unit.

    Raises:
        ConfigurationError: it does not.
    """
    stated = person is not None, at_most > 0
    if all(stated):
        raise ConfigurationError("`person` and `at_most` exclude each other.", "Leave one of them out.")
    if any(stated) != (study.privacy.unit == "subject"):
        joined = " It is, for the schema says that a person may have several (joined = true)." if study.data.joined else ""
        raise ConfigurationError(
            f'A study states how a person\'s records count exactly if unit = "subject".{joined}',
            'Among the parameters: person = "first", "last", "max" or "mean"; or at_most = 3, for three times the noise.',
        )


def overview(schema: DatasetSchema) -> tuple[QueryRequest, ...]:
    """What is asked where nothing is: how many records, a table one of all columns, and how many of each class.

    The numbers of records and classes are few figures that a study is read by first: half the error costs the others little.
    """
    asked = [
        QueryRequest(kind="count", name="records", importance=16.0),
        QueryRequest(kind="table-one", name="overview", over=tuple(column.name for column in schema.columns)),
    ]
    if schema.label is not None:
        asked.append(QueryRequest(kind="count", name="classes", over=(schema.label.column,), importance=16.0))
    return tuple(asked)


def expand(requests: Sequence[QueryRequest], columns: Columns) -> tuple[Query, ...]:
    """The queries that are asked, with nothing left open but their scales.

    Raises:
        ConfigurationError: a name stands twice, or something is stated that makes no sense.
        HostileInput: a column that is not there.
    """
    named = _named(requests)
    found: list[Query] = []
    for request in named:
        request.check()
        found += _table_one(request, columns) if request.kind == TABLE_ONE else [_completed(request.stated(), columns)]
    if len(found) > MAX_QUERIES:
        raise ConfigurationError(
            f"The study asks {len(found)} queries; at most {MAX_QUERIES} share one release.", "Ask the rest in another study."
        )
    return tuple(found)


def _named(requests: Sequence[QueryRequest]) -> Iterator[QueryRequest]:
    names = [request.name for request in requests if request.name]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"Two queries are named {repeated[0]!r}.", "Give each a name of its own.")
    taken = set(names)
    for request in requests:
        if request.name is not None:
            yield request
            continue
        name, number = request.kind, 1
        while name in taken:
            number += 1
            name = f"{request.kind}-{number}"
        taken.add(name)
        yield request.model_copy(update={"name": name})


def _completed(asked: Mapping[str, Any], columns: Columns) -> Query:
    """The query, with the kind's defaults for what is not stated."""
    return Query.model_validate({**KINDS[asked["kind"]].defaults(Query.model_validate(asked), columns), **asked})


def _table_one(request: QueryRequest, columns: Columns) -> Iterator[Query]:
    what = f"query {request.name!r}"
    for name in request.over:
        if name not in columns.domains:
            columns.number(name, what)
    over = request.over or tuple(name for name in columns.domains if name not in request.by)
    numbers = tuple(name for name in over if isinstance(columns.domains[name], NumberDomain))
    if len(request.name or "") > LONGEST_PART:
        raise ConfigurationError(
            f"{what}: the name of a table one has at most {LONGEST_PART} characters.", "Take a shorter one."
        )
    common: dict[str, object] = {
        "by": request.by,
        "where": request.where,
        "importance": request.importance,
        "part_of": request.name,
    }
    for begin in range(0, len(numbers), MAX_OVER):
        some, name = numbers[begin : begin + MAX_OVER], "numbers" if begin == 0 else f"numbers-{begin}"
        yield Query.model_validate({"name": f"{request.name}.{name}", "kind": "mean", "over": some, **common})
    parts = {"numbers"}
    for place, name in enumerate(over):
        part = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST_PART]
        part = part if part and part not in parts else str(place)
        parts.add(part)
        asked: dict[str, object] = {"name": f"{request.name}.{part}", "over": (name,)}
        if isinstance(columns.domains[name], LevelDomain):
            asked |= {"kind": "count", "missing": request.missing or "level"}
        elif request.at:
            asked |= {"kind": "quantiles", "at": request.at}
        if "kind" in asked:
            yield _completed({**asked, **common}, columns)
