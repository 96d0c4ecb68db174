"""The method "statistics": counts, means, variances and class balance over all sites, in each column's own unit.

It is what a federation runs first. With ``[[query]]`` tables it gives what they ask: tables, tests, quantiles, survival. It
never gives a figure of a single site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from veilsum_aggregation import moments
from veilsum_aggregation.moments import Estimate, NotEstimable, Statistic
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.expectations import OFFSET, SPREAD, Z95, Expectation, half_width, released_noise
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.query_answers import answers, expected_answers
from veilsum_coordinator.parts.query_requests import EdgeRange, QueryRequest, expand, weigh
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn
from veilsum_privacy.tasks.statistics import StatisticsParameters
from veilsum_privacy.tasks.tables import Reduction


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


class FederatedStatisticsParameters(Frozen):
    """What is asked; without any query, every column's overview.

    Attributes:
        query: ``[[query]]`` tables of the study.
        derive: ``[derive.NAME]`` tables.
        person: of queries in a study whose unit is the subject, how a person's records become one: ``first``, ``last``,
            ``max`` or ``mean`` (:class:`~veilsum_privacy.tasks.tables.TablesParameters`).
        at_most: in its place, how many of a person's records count, each as a record; noise grows with it.
        smallest_cell: a table's cell, or a figure of a group, with fewer records than that is not printed; 0 prints all. It is
            held against the noised count, so it hides what would be read into noise; privacy rests on the noise alone.
    """

    query: tuple[QueryRequest, ...] = ()
    derive: dict[str, DeriveRequest] = Field(default_factory=dict)
    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)
    smallest_cell: int = Field(default=0, ge=0, le=10**6)

    @model_serializer(mode="wrap")
    def _stated(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is empty is left out: a study without queries is signed in the form that it always had."""
        return {name: value for name, value in dump(self).items() if value}


class FederatedStatistics(Method):
    """One round: of the task "tables" with the study's queries, or of the task "statistics" without any.

    Missing numbers that the schema imputes enter with the imputed value.
    """

    name = "statistics"
    Parameters: ClassVar[type[Frozen]] = FederatedStatisticsParameters

    def declare(self, parameters: Frozen, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if not isinstance(parameters, FederatedStatisticsParameters):
            raise Misuse("The method statistics takes its own parameters.")
        if not parameters.query:
            if parameters.derive:
                raise ConfigurationError("[derive] makes columns for queries, and none is asked.", "Add a [[query]] table.")
            return (TaskPlan("statistics", "statistics", StatisticsParameters()),)
        try:
            derived = [request.column(name) for name, request in parameters.derive.items()]
            columns = Columns(inputs.schema, derived)
            queries = expand(parameters.query, columns)
            tables = weigh(queries, derived, columns, largest=inputs.sites * inputs.schema.max_records)
        except ValidationError as error:
            raise ConfigurationError(" ".join(explain(error, DerivedColumn)), "Correct the study's file.") from error
        except HostileInput as error:
            raise ConfigurationError(error.message, error.advice) from error
        persons = {"person": parameters.person, "at_most": parameters.at_most}
        return (TaskPlan("tables", "tables", tables.model_copy(update=persons)),)

    def check(self, study: Study) -> None:
        parameters = FederatedStatisticsParameters.model_validate(study.parameters)
        stated = parameters.person is not None, parameters.at_most > 0
        if not parameters.query and any(stated):
            raise ConfigurationError("`person` and `at_most` are of queries, and none is asked.", "Add a [[query]] table.")
        if all(stated):
            raise ConfigurationError("`person` and `at_most` exclude each other.", "Leave one of them out.")
        if parameters.query and any(stated) != (study.privacy.unit == "subject"):
            raise ConfigurationError(
                'Queries state how a person\'s records count exactly if unit = "subject".',
                'Under [parameters]: person = "first", "last", "max" or "mean"; or at_most = 3, for three times the noise.',
            )

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """How well each query's figures will be known; without queries counts, means, variances and shares.

        Those are by the formulas that :meth:`run` uses; the main ones are the means, and where there is no number, the shares.
        """
        if study.tasks[0].task == "tables":
            return expected_answers(study, cohort, records)
        std = released_noise(study, "statistics", cohort)
        return [
            *_expected_counts(study.data, std, records),
            *_expected_numbers(study.data, std, records),
            *_expected_categories(study.data, std, records),
            *_expected_classes(study.data, std, records),
        ]

    def run(self, federation: Federation) -> Result:
        if federation.study.tasks[0].task == "tables":
            return answers(federation)
        schema = federation.study.data
        release = federation.sum("statistics")
        records = float(release.values["records"][0])
        summary: dict[str, Any] = {"records": plain(moments.count(records, release.noise_std["records"]))}
        summary["numbers"] = list(_numbers(schema, release, records))
        categories = list(_categories(schema, release, records))
        if categories:
            summary["categories"] = categories
        if schema.label is not None:
            counts, std = release.values["classes"], release.noise_std["classes"]
            summary["classes"] = [
                {"class": name, "count": plain(moments.count(float(number), std)), "share": plain(share)}
                for name, number, share in zip(schema.classes, counts, moments.share(counts, std), strict=True)
            ]
        summary["cohort"] = len(release.cohort)
        smallest = FederatedStatisticsParameters.model_validate(federation.study.parameters).smallest_cell
        return Result(self.name, without_small_cells(summary, smallest))


def without_small_cells(summary: dict[str, Any], smallest: int) -> dict[str, Any]:
    """The summary with ``below`` in place of every figure of a row whose noised count is smaller."""

    def masked(row: dict[str, Any]) -> dict[str, Any]:
        if not smallest or row["count"]["value"] >= smallest:
            return row
        return {key: {"below": smallest} if isinstance(value, dict) else value for key, value in row.items()}

    return {key: [masked(row) for row in value] if isinstance(value, list) else value for key, value in summary.items()}


def plain(statistic: Statistic) -> dict[str, Any]:
    """A statistic as JSON: ``value`` and ``std_error``, or ``not_estimable`` with the reason."""
    if isinstance(statistic, NotEstimable):
        return {"not_estimable": statistic.reason}
    return {"value": statistic.value, "std_error": statistic.std_error}


def _numbers(schema: DatasetSchema, release: Release, records: float) -> Iterator[dict[str, Any]]:
    values, std = release.values, release.noise_std
    columns = _number_columns(schema)
    present = iter(values.get("present", np.zeros(0)))
    for index, column in enumerate(columns):
        number, number_std = records, std["records"]
        if column.impute is None:
            number, number_std = float(next(present)), std["present"]
        t1, t2 = float(values["t1"][index]), float(values["t2"][index])
        mean = moments.mean(t1, number, std["t1"], number_std, low=-1.0, high=1.0)
        variance = moments.variance(t1, t2, number, std["t1"], std["t2"], number_std)
        half = (column.high - column.low) / 2.0
        yield {
            "column": column.name,
            "unit": column.unit,
            "count": plain(moments.count(number, number_std)),
            "mean": plain(_rescaled(mean, half, column.low + half)),
            "variance": plain(_rescaled(variance, half * half, 0.0)),
        }


def _categories(schema: DatasetSchema, release: Release, records: float) -> Iterator[dict[str, Any]]:
    columns = [column for column in schema.columns if isinstance(column, CategoryColumn)]
    counts = iter(release.values.get("categories", np.zeros(0)))
    for column in columns:
        for category in column.categories:
            number, std = float(next(counts)), release.noise_std["categories"]
            share = moments.proportion(number, records, std, release.noise_std["records"])
            yield {
                "column": column.name,
                "category": category,
                "count": plain(moments.count(number, std)),
                "share_of_records": plain(share),
            }


def _rescaled(statistic: Statistic, factor: float, shift: float) -> Statistic:
    if isinstance(statistic, NotEstimable):
        return statistic
    return Estimate(statistic.value * factor + shift, statistic.std_error * factor)


def _expected_counts(schema: DatasetSchema, std: Mapping[str, float], records: int) -> Iterator[Expectation]:
    yield Expectation("counts", "number of records", records, Z95 * std["records"], basis="all records")
    gaps = [column for column in _number_columns(schema) if column.impute is None]
    if gaps:
        each = "number of values in each column with gaps"
        yield Expectation("counts", each, records, Z95 * std["present"], basis="all records", number=len(gaps))


def _expected_numbers(schema: DatasetSchema, std: Mapping[str, float], records: int) -> Iterator[Expectation]:
    for column in _number_columns(schema):
        half = (column.high - column.low) / 2.0
        span = f"{column.low:g} to {column.high:g}"
        number_std = std["records"] if column.impute is not None else std["present"]
        mean = moments.mean(OFFSET * records, records, std["t1"], number_std, low=-1.0, high=1.0)
        width, basis = half_width(mean, half), f"half of {span}"
        yield Expectation("means", f"mean of {column.name}", half, width, column.unit, basis, main=True)
        second = 2.0 * (OFFSET**2 + SPREAD**2) - 1.0
        variance = moments.variance(OFFSET * records, second * records, records, std["t1"], std["t2"], number_std)
        size, width = (SPREAD * half) ** 2, half_width(variance, half * half)
        unit, basis = f"{column.unit}²" if column.unit else "", f"a sixth of {span}, squared"
        yield Expectation("variances", f"variance of {column.name}", size, width, unit, basis)


def _expected_categories(schema: DatasetSchema, std: Mapping[str, float], records: int) -> Iterator[Expectation]:
    main = not _number_columns(schema)
    for column in schema.columns:
        if isinstance(column, CategoryColumn):
            k = len(column.categories)
            yield Expectation(
                "category counts", f"count of each {column.name}", records / k, Z95 * std["categories"],
                basis=f"{k} equal categories", number=k,
            )  # fmt: skip
            share = moments.proportion(records / k, records, std["categories"], std["records"])
            yield Expectation(
                "category shares", f"share of each {column.name}", 1.0 / k, half_width(share),
                basis=f"{k} equal categories", number=k, main=main,
            )  # fmt: skip


def _expected_classes(schema: DatasetSchema, std: Mapping[str, float], records: int) -> Iterator[Expectation]:
    if schema.label is not None:
        k, each, basis = len(schema.classes), f"each class of {schema.label.column}", f"{len(schema.classes)} equal classes"
        yield Expectation("class counts", f"count of {each}", records / k, Z95 * std["classes"], basis=basis, number=k)
        share = moments.share(np.full(k, records / k), std["classes"])[0]
        yield Expectation("class shares", f"share of {each}", 1.0 / k, half_width(share), basis=basis, number=k)


def _number_columns(schema: DatasetSchema) -> list[NumberColumn]:
    return [column for column in schema.columns if isinstance(column, NumberColumn)]
