"""Queries as an analyst writes them, and what they become: every column and edge stated, from public values alone.

Each query of a release has an integer scale: its part of the budget, weighed by what one record can fulfil together.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.study.schema import ColumnName, DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.cells import LevelDomain, NumberDomain
from veilsum_privacy.tasks.queries.kinds import KINDS, build_questions
from veilsum_privacy.tasks.queries.language import (
    EXACT_SCALE,
    MAX_OVER,
    MAX_QUERIES,
    TABLE_ONE,
    WORD_SCALE,
    Columns,
    DerivedColumn,
    Query,
    Text,
    even_edges,
)
from veilsum_privacy.tasks.queries.sensitivity import Incidence, balance, find_incidence
from veilsum_privacy.tasks.tables import TablesParameters

LONGEST_PART = 31
"""Characters of a table one's name, and of what tells its parts apart."""


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
        """The ``steps`` + 1 edges."""
        return even_edges(self.start, self.to, self.steps, np.geomspace if self.scale == "log" else np.linspace)


class DeriveRequest(Frozen):
    """A ``[derive.NAME]`` table: a :class:`~veilsum_privacy.tasks.queries.language.DerivedColumn` without its name."""

    of: str = ""
    edges: tuple[Real, ...] | EdgeRange = ()
    number: str = ""
    low: Real = 0.0
    high: Real = 0.0
    unit: str = ""

    def column(self, name: str) -> DerivedColumn:
        edges = self.edges.edges() if isinstance(self.edges, EdgeRange) else self.edges
        return DerivedColumn.model_validate({**dict(self), "name": name, "edges": edges})


def _share(at: float) -> float:
    """A share of records with a value or an event."""
    if not 0.0 < at < 1.0:
        raise ValueError(
            f"it is a share of records between 0 and 1, as 0.5 of the median, and not {at:g}; survival is told at all edges"
        )
    return at


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
    at: tuple[Annotated[Real, AfterValidator(_share)], ...] = Field(default=(), max_length=99)
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
        ConfigurationError: it does not, or whole sites are, of which nothing can be described.
    """
    stated = person is not None, at_most > 0
    if study.privacy.unit == "site":
        raise ConfigurationError(
            f"The method {study.method} describes records; those of a site are shortened together: no count is right.",
            'Leave unit = "site" out, or train a model: fedsgd, fedcgs and others divide one released block by another.',
        )
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
        QueryRequest(kind=TABLE_ONE, name="overview", over=tuple(column.name for column in schema.columns)),
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
    if taken := next((query.name for query in found if query.name in BESIDE_TABLES), ""):
        raise ConfigurationError(f"A query named {taken!r} would take the place of what a result tells so.", "Rename it.")
    _check_distinct([query.name for query in found])
    return tuple(found)


def _check_distinct(names: Sequence[str]) -> None:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"Two queries are named {repeated[0]!r}.", "Give each a name of its own.")


def _named(requests: Sequence[QueryRequest]) -> Iterator[QueryRequest]:
    names = [request.name for request in requests if request.name]
    _check_distinct(names)
    taken = {*names, *BESIDE_TABLES}
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
        "whole": True,
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


BESIDE_TABLES = ("cohort", "queries")
"""What a result's summary tells beside the tables of its queries."""

LANE = 2**23
"""What the sum of a cohort should stay below, so that a lane has 24 bits."""

FINEST_NORM, EXACT_LANE = 2**26, 2**44
"""Largest sensitivity of a task, and what a sum should stay below, where no noise takes a part of it."""

MOST_LIMBS = 32

MOST_SCALE = 256
"""More brings no more than a part in a thousand."""


def weigh(
    queries: Sequence[Query],
    derived: Sequence[DerivedColumn],
    columns: Columns,
    *,
    largest: int,
    fine: float = 1.0,
    least_table: int = 8,
    private: bool = True,
    exact_rows: int = 0,
) -> TablesParameters:
    """Give each query its integer scale, by the optimal weights of what one record can fulfil together.

    Up to some 10,000 records a lane has 24 bits; beyond that means need finer steps than it holds, and it grows. Without noise
    counts fill a lane of 46 bits, and where values are rounded, steps are so fine that only float64 shows (:func:`_exact`).

    Args:
        largest: most records of the whole federation, by which a sum should fit a lane of 24 bits.
        fine: how much finer the steps are to which values are rounded, where they should not show even in sums of few values.
        least_table: least scale of a table; the coarser, the less weights are what they should be, by up to a tenth.
        private: whether there is noise.
        exact_rows: of a unit, as :meth:`veilsum_coordinator.parts.base.Inputs.exact_rows` has them.

    Raises:
        HostileInput: a query asks for what its kind cannot give, or for a column that is not there.
    """
    # where length costs nothing, a fit is that of all records alike
    linear = {"unshortened": not private, "counted": True}
    queries = [query.model_copy(update=linear if query.kind == "linear" else {}) for query in queries]
    questions = build_questions(queries, columns)
    for question in questions:
        _check_possible(question, columns)
    incidence = find_incidence(questions, columns)
    if exact_rows and any(question.rounded for question in questions):
        return _exact(questions, derived, columns, incidence, largest, exact_rows)
    reference = [query.model_copy(update={"scale": 4096}) for query in queries]
    unit = [question.norm() / 4096.0**2 for question in build_questions(reference, columns)]
    costs = [question.figures() * question.query.importance for question in questions]
    weights = np.sqrt(balance(incidence, unit, costs))
    steps = fine * math.sqrt(largest)  # what rounding adds to a mean, 0.1 steps or so, stays well below its sampling error
    scales = [max(question.least_scale, steps if question.rounded else least_table) for question in questions]
    least = max(scale / weight for scale, weight in zip(scales, weights, strict=True))
    least = min(least, WORD_SCALE / float(weights.max()))  # the largest that a query may have, whatever the others need
    wanted = min(max(least, 0.95 * LANE / largest), max(least, MOST_SCALE / float(weights.min())))
    if not private:
        wanted = max(wanted, WORD_SCALE / float(weights.max()))
        norms = [math.ceil(each * (weight * wanted) ** 2) for each, weight in zip(unit, weights, strict=True)]
        reach = math.sqrt(incidence.largest_integer(norms))
        wanted *= min(1.0, 0.95 * min(FINEST_NORM, EXACT_LANE / largest) / max(reach, 1.0))
    best: tuple[float, TablesParameters] | None = None
    for size in np.unique(np.rint(np.linspace(max(least, 0.8 * wanted), max(least, wanted), 12))):
        scaled = [
            query.model_copy(update={"scale": max(1, round(size * weight))})
            for query, weight in zip(queries, weights, strict=True)
        ]
        parameters = _parameters(scaled, derived, columns, incidence)
        loss = sum(cost / query.scale**2 for cost, query in zip(costs, scaled, strict=True)) * parameters.sensitivity**2
        if best is None or loss < best[0]:
            best = loss, parameters
    if best is None:
        raise HostileInput("No query is asked.")
    return best[1]


def _exact(
    questions: Sequence[QueryKind],
    derived: Sequence[DerivedColumn],
    columns: Columns,
    incidence: Incidence,
    largest: int,
    rows: int,
) -> TablesParameters:
    """Values in steps of 2^-48, written in as few limbs as fit the sensitivity of a task and a lane of 46 bits.

    A limb below the highest is at most B/2, the lowest at most the value itself; limb j, what is left of a value F, is at
    most F / B^j and one for its rounding. So limb j of a row of e values and norm N has a squared norm of at most e B^2 / 4,
    but for the highest, and of at most (N / B^j + sqrt e)^2.
    """
    scales = [EXACT_SCALE if question.rounded else question.least_scale for question in questions]
    asked = [question.query.model_copy(update={"scale": scale}) for question, scale in zip(questions, scales, strict=True)]
    exact = build_questions(asked, columns)
    for limbs in range(2, MOST_LIMBS + 1):
        bits = math.ceil((EXACT_SCALE.bit_length() + 1) / limbs)
        norms = [_limb_norm(question, limbs, bits) for question in exact]
        sensitivity = math.isqrt(incidence.largest_integer(norms)) + 1
        if sensitivity * rows <= min(FINEST_NORM, EXACT_LANE // largest):
            return TablesParameters(
                queries=tuple(asked), derived=tuple(derived), sensitivity=sensitivity, limbs=limbs, limb_bits=bits
            )
    raise HostileInput(
        f"The exact sums of {largest} records do not fit.", "Lower the schema's max_records, or ask fewer queries at once."
    )


def _limb_norm(question: QueryKind, limbs: int, bits: int) -> int:
    """Bound on the squared norm of a record's row in limbs: a record stands in one group."""
    norm, entries = question.norm(), question.size // question.group_count
    most: int = entries * 4 ** (bits - 1)
    rest = [math.ceil((math.sqrt(norm) / 2.0 ** (bits * limb) + math.sqrt(entries)) ** 2) for limb in range(1, limbs)]
    return min(norm, most) + sum([min(each, most) for each in rest[:-1]], rest[-1])


def _parameters(
    queries: Sequence[Query], derived: Sequence[DerivedColumn], columns: Columns, incidence: Incidence
) -> TablesParameters:
    norms = [question.norm() for question in build_questions(queries, columns)]
    squared = incidence.largest_integer(norms)
    return TablesParameters(
        queries=tuple(queries), derived=tuple(derived), sensitivity=math.isqrt(squared - 1) + 1 if squared else 1
    )


def _check_possible(question: QueryKind, columns: Columns) -> None:
    """Refuse a condition that no record can meet."""
    if question.condition is not None and not find_incidence([question], columns).patterns.any():
        why = [text for leaf in question.condition.leaves() if (text := leaf.settled(columns.domains[leaf.column]))]
        advice = f"{'; '.join(why)}." if why else "Correct `where`."
        raise HostileInput(f"{question.what}: no record can meet {question.query.where!r}.", advice)
