"""The method "statistics": counts, means, variances and class balance over all sites, in each column's own unit.

It is what a federation runs first. It gives no breakdown by class and no figure of a single site.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from veilsum_aggregation import moments
from veilsum_aggregation.moments import Estimate, NotEstimable, Statistic
from veilsum_coordinator.federation import Federation, Release
from veilsum_coordinator.methods.base import Method, TaskPlan
from veilsum_coordinator.results import Result
from veilsum_privacy.schema import CategoryColumn, DatasetSchema, Frozen, NumberColumn
from veilsum_privacy.tasks.statistics import StatisticsParameters


class FederatedStatisticsParameters(Frozen):
    """The method has none."""


class FederatedStatistics(Method):
    """One round of the task "statistics". Missing numbers that the schema imputes enter with the imputed value."""

    name = "statistics"
    Parameters: ClassVar[type[Frozen]] = FederatedStatisticsParameters

    def declare(self, parameters: Frozen, schema: DatasetSchema) -> tuple[TaskPlan, ...]:
        return (TaskPlan("statistics", "statistics", StatisticsParameters()),)

    def run(self, federation: Federation) -> Result:
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
        return Result(self.name, summary)


def plain(statistic: Statistic) -> dict[str, Any]:
    """A statistic as JSON: ``value`` and ``std_error``, or ``not_estimable`` with the reason."""
    if isinstance(statistic, NotEstimable):
        return {"not_estimable": statistic.reason}
    return {"value": statistic.value, "std_error": statistic.std_error}


def _numbers(schema: DatasetSchema, release: Release, records: float) -> Iterator[dict[str, Any]]:
    values, std = release.values, release.noise_std
    columns = [column for column in schema.columns if isinstance(column, NumberColumn)]
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
