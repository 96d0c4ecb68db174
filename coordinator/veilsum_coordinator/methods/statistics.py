"""The method "statistics": tables, means, tests, quantiles and survival over all sites, from one noised sum.

It is what a federation runs first: without a query it gives a table one of all columns. No figure is of a single site.

Answers to queries from the released sum: rows that people read, with both errors, and tests.

Every row is one figure or a few, with the levels of its group; what noise drowned says so and what would help.
"""

from functools import partial
from operator import not_
from typing import Any

from numpy.typing import NDArray
from pydantic import Field, ValidationError

from veilsum_aggregation.figures import Row
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan, told_arrays, told_tables
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.query_requests import DeriveRequest, QueryRequest, check_persons, expand, overview, weigh
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn
from veilsum_privacy.tasks.tables import questions_of

TABLES = "statistics"
"""Label of the release."""


class FederatedStatisticsParameters(Frozen):
    """What is asked.

    Without a query: the number of records, each number's mean and standard deviation, how many have each category and class.

    Attributes:
        query: ``[[query]]`` tables of the study.
        derive: ``[derive.NAME]`` tables.
        person: of queries in a study whose unit is the subject, how a person's records become one: ``first``, ``last``,
            ``max`` or ``mean`` (:class:`~veilsum_privacy.tasks.persons.PersonParameters`).
        at_most: in its place, how many of a person's records count, each as a record; noise grows with it.
        smallest_cell: a table's cell, or a figure of a group, with fewer records than that is not printed; 0 prints all. It is
            held against the noised count, so it hides what would be read into noise; privacy rests on the noise alone.
    """

    # what is empty is left out: a study without queries is signed in the form that it always had
    query: tuple[QueryRequest, ...] = Field(default=(), exclude_if=not_)
    derive: dict[str, DeriveRequest] = Field(default_factory=dict, exclude_if=not_)
    person: Reduction | None = Field(default=None, exclude_if=not_)
    at_most: int = Field(default=0, ge=0, le=1000, exclude_if=not_)
    smallest_cell: int = Field(default=0, ge=0, le=10**6, exclude_if=not_)


class FederatedStatistics(Method[FederatedStatisticsParameters]):
    """One round, of the task "tables". Missing numbers that the schema imputes enter with the imputed value."""

    name = "statistics"

    def declare(self, parameters: FederatedStatisticsParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.derive and not parameters.query:
            raise ConfigurationError("Derived columns are for queries, and none is asked.", "Add a query.")
        persons = {"person": parameters.person, "at_most": parameters.at_most}
        try:
            derived = [request.column(name) for name, request in parameters.derive.items()]
            columns = Columns(inputs.schema, derived)
            queries = expand(parameters.query or overview(inputs.schema), columns)
            largest = inputs.sites * inputs.schema.max_records
            exact = inputs.exact_rows(persons)
            tables = weigh(queries, derived, columns, largest=largest, private=inputs.private, exact_rows=exact)
        except ValidationError as error:
            raise ConfigurationError(" ".join(explain(error, DerivedColumn)), "Correct the study's file.") from error
        except HostileInput as error:
            raise ConfigurationError(error.message, error.advice) from error
        return (TaskPlan(TABLES, "tables", tables.model_copy(update=persons)),)

    def check(self, study: Study) -> None:
        parameters = FederatedStatisticsParameters.model_validate(study.parameters)
        check_persons(parameters.person, parameters.at_most, study)

    def compute(self, federation: Federation) -> Result:
        return answers(federation)


def answers(federation: Federation) -> Result:
    """Run the one round and answer every query.

    The summary has ``queries``, what was asked, and an item for each query with its rows, and one each for its tests and
    its other tables if it has any.
    """
    questions, release = questions_of(AgreedStudy(federation.study).task(TABLES).task), federation.sum(TABLES)
    smallest = int(federation.study.parameters.get("smallest_cell", 0))
    summary: dict[str, Any] = {"queries": [_asked(question) for question in questions], "cohort": len(release.cohort)}
    made: dict[str, NDArray[Any]] = {}
    # A table one shows what is missing, but a test compares it only where the study says that it is a level.
    asked = federation.study.parameters.get("query", ())
    told = {query.get("name") or query["kind"] for query in asked if query.get("missing") == "level"}
    for question in questions:
        query = question.query
        missing = not query.part_of or query.part_of in told
        part = ReleasedPart(query, release.values, release.noise_std, release.digest, smallest, missing)
        found = told_tables(f"query {query.name}", question.result_tables(part))
        summary |= {f"{query.name}{suffix}": rows for suffix, rows in found.items() if rows or not suffix}
        drawn = told_arrays(f"query {query.name}, arrays", partial(question.arrays, part))
        made |= {f"{query.name}{suffix}": values for suffix, values in drawn.items()}
    arrays = {name.replace("/", "."): values for name, values in release.values.items()} if not smallest else {}
    return Result("statistics", summary, {**arrays, **made})


def _asked(question: QueryKind) -> Row:
    query = question.query
    about = {"over": ", ".join(query.over), "by": ", ".join(query.by), "where": query.where, "part_of": query.part_of}
    return {"query": query.name, "kind": query.kind, **about}
