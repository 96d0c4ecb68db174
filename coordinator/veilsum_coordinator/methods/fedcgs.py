"""The method "fedcgs": a linear discriminant from one secure sum of class counts, class sums and pooled second moments.

After FedCGS (Guan et al. 2025), with the within-class covariance in place of the total one, and with block weights and
shrinkage that follow from the noise. No training rounds: one release is the whole cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation import moments
from veilsum_aggregation.heads import LinearHead, lda_head
from veilsum_coordinator.federation import Federation, Release
from veilsum_coordinator.methods.base import Inputs, Method, TaskPlan
from veilsum_coordinator.methods.expectations import OFFSET, SPREAD, Z95, Expectation, half_width, released_noise
from veilsum_coordinator.methods.statistics import plain
from veilsum_coordinator.results import Result
from veilsum_privacy.errors import ConfigurationError
from veilsum_privacy.schema import DatasetSchema, Frozen, NumberColumn, Real
from veilsum_privacy.study import Study
from veilsum_privacy.tasks.base import balanced_weights
from veilsum_privacy.tasks.class_moments import ClassMomentsParameters

IMPORTANCE = (10.0, 1.0, 0.03, 0.003)
"""Importance of counts, sums, squares and products in the split of the budget.

A count stands under a whole class mean, so its noise matters most. Class means say where the classes lie, covariances only
refine the direction between them, and there are many more of these: with equal importance the products would take most of
the budget and, shrunk by their noise, give little back. Fixed constants, the same for every study.
"""


class FedCGSParameters(Frozen):
    """Parameters, all public.

    Attributes:
        clip: L2 norm that a record's features are scaled down to; by default the root mean square norm of a record whose
            numbers are spread evenly between their bounds, sqrt(numbers / 3 + categorical columns).
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds.
        priors: class probabilities of the discriminant, ``released`` (from the noised counts) or ``equal``.
    """

    clip: Real | None = Field(default=None, gt=0, le=1e6)
    missing: Literal["skip", "centre"] = "skip"
    priors: Literal["released", "equal"] = "released"


class FedCGS(Method):
    """One round of "class-moments", then shrinkage and linear discriminant analysis."""

    name = "fedcgs"
    Parameters: ClassVar[type[Frozen]] = FedCGSParameters

    def resolve(self, parameters: Frozen, inputs: Inputs) -> Frozen:
        if isinstance(parameters, FedCGSParameters) and parameters.clip is None:
            return parameters.model_copy(update={"clip": default_clip(inputs.schema)})
        return parameters

    def declare(self, parameters: Frozen, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if not isinstance(parameters, FedCGSParameters) or parameters.clip is None:
            raise ConfigurationError("The method fedcgs takes its own parameters, resolved.")
        schema = inputs.schema
        if schema.label is None:
            raise ConfigurationError("The method fedcgs needs a label.", "Add a [label] table with classes to the schema.")
        clip, d, k = parameters.clip, schema.width, len(schema.classes)
        squares_norm = min(clip, math.sqrt(d)) * min(clip, 1.0)
        counts, sums, squares, products = balanced_weights(
            (1.0, clip, squares_norm, clip**2), (k, k * d, d, max(1, d * (d - 1) // 2)), IMPORTANCE
        )
        task = ClassMomentsParameters(
            clip=clip,
            missing=parameters.missing,
            count_weight=counts,
            sum_weight=sums,
            square_weight=squares,
            product_weight=products,
        )
        return (TaskPlan("class-moments", "class-moments", task),)

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """Class counts, class means and the pooled within-class covariances that the discriminant is made of.

        The class means are the main ones: they say where the classes lie. Variances and covariances are in scaled units (half
        a number's range; an indicator as it is); those within their noise are shrunk away before the discriminant is computed.
        """
        parameters = FedCGSParameters.model_validate(study.parameters)
        std, schema = released_noise(study, "class-moments", cohort), study.data
        shrink = _left_by_clipping(schema, parameters.clip or default_clip(schema))
        k, each = len(schema.classes), f"count of each class of {schema.label.column if schema.label else ''}"
        width, basis = Z95 * std["counts"], f"{len(schema.classes)} equal classes"
        return [
            Expectation("class counts", each, records / k, width, basis=basis, number=k),
            *_expected_means(schema, shrink, std, records / k),
            *_expected_covariances(schema, shrink, std, records),
        ]

    def run(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedCGSParameters.model_validate(study.parameters)
        release = federation.sum("class-moments")
        counts, std = release.values["counts"], release.noise_std["counts"]
        known = [index for index, number in enumerate(counts) if not moments.within_noise(float(number), std)]
        summary: dict[str, Any] = {
            "cohort": len(release.cohort),
            "classes": [
                {"class": name, "count": plain(moments.count(float(number), std)), "in_head": index in known}
                for index, (name, number) in enumerate(zip(study.data.classes, counts, strict=True))
            ],
        }
        if not known:
            summary["not_estimable"] = "every class's released count is within its noise; ask for less noise or more records"
            return Result(self.name, summary)
        head = discriminant(release, study.data, known, parameters)
        return Result(
            self.name,
            summary,
            arrays={"weights": head.weights, "bias": head.bias},
            application={**application(study.data), "classes": list(head.classes)},
        )


def default_clip(schema: DatasetSchema) -> float:
    """Root mean square L2 norm of a record whose numbers are uniform in [-1, 1] and whose categories are all present."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return math.sqrt(numbers / 3.0 + (len(schema.columns) - numbers))


class _Features(NamedTuple):
    """Features of one kind: how many, and their expected mean and standard deviation (root mean squares over columns)."""

    number: int
    mean: float
    spread: float


def _expected_means(schema: DatasetSchema, shrink: float, std: Mapping[str, float], records: float) -> Iterator[Expectation]:
    """Class means, in each column's unit, of classes of ``records`` records."""
    k = len(schema.classes)
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            name, number, centre, half = column.name, 1, OFFSET, (column.high - column.low) / 2.0
            size, unit, basis = half, column.unit, f"half of {column.low:g} to {column.high:g}"
        else:
            name, number, half = f"each {column.name}", column.width, 1.0
            size = centre = 1.0 / number
            unit, basis = "", f"{number} equal categories"
        mean = moments.mean(centre * shrink * records, records, std["sums"], std["counts"], low=-1.0, high=1.0)
        width = half_width(mean, half)
        yield Expectation("class means", f"class mean of {name}", size * shrink, width, unit, basis, k * number, main=True)


def _expected_covariances(
    schema: DatasetSchema, shrink: float, std: Mapping[str, float], records: int
) -> Iterator[Expectation]:
    """Within-class variances, and covariances measured against the largest that the variances allow, in scaled units."""

    def width(second_std: float, one: _Features, other: _Features, covariance: float, *, diagonal: bool = False) -> float:
        means = (one.mean, other.mean)
        return Z95 * moments.within_covariance_error(
            records, len(schema.classes), second_std, std["sums"], std["counts"], means, covariance, diagonal=diagonal
        )

    kinds = _features(schema, shrink)
    for kind, it in kinds.items():
        found, basis = width(std["squares"], it, it, it.spread**2, diagonal=True), "as the schema suggests"
        yield Expectation("variances", f"variance of {kind}s", it.spread**2, found, basis=basis, number=it.number)
        if it.number > 1:
            found, pairs = width(std["products"], it, it, 0.0), it.number * (it.number - 1) // 2
            what = f"covariance of {kind}s"
            yield Expectation("covariances", what, it.spread**2, found, basis="fully correlated", number=pairs)
    if len(kinds) == 2:
        one, other = kinds.values()
        found, size = width(std["products"], one, other, 0.0), one.spread * other.spread
        what, pairs = "covariance of numbers with indicators", one.number * other.number
        yield Expectation("covariances", what, size, found, basis="fully correlated", number=pairs)


def _features(schema: DatasetSchema, shrink: float) -> dict[str, _Features]:
    """The expected features of each kind, after clipping."""
    found: dict[str, list[_Features]] = {}
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            found.setdefault("number", []).append(_Features(1, OFFSET * shrink, SPREAD * shrink))
        else:
            p = 1.0 / column.width
            found.setdefault("indicator", []).append(_Features(column.width, p * shrink, math.sqrt(p * (1.0 - p)) * shrink))
    kinds = {}
    for kind, features in found.items():
        d = sum(item.number for item in features)
        mean = math.sqrt(sum(item.number * item.mean**2 for item in features) / d)
        kinds[kind] = _Features(d, mean, math.sqrt(sum(item.number * item.spread**2 for item in features) / d))
    return kinds


def _left_by_clipping(schema: DatasetSchema, clip: float) -> float:
    """What clipping leaves of a record of the expected norm, as a share of it."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return min(1.0, clip / math.sqrt(numbers * (OFFSET**2 + SPREAD**2) + (len(schema.columns) - numbers)))


def discriminant(release: Release, schema: DatasetSchema, known: list[int], parameters: FedCGSParameters) -> LinearHead:
    """The head over the classes ``known``, whose released counts are beyond their noise.

    Without noise the covariance is shrunk by OAS; with noise by :func:`veilsum_aggregation.moments.shrink_noised`. Second
    moments are pooled over all classes, so those that a left-out class put in stay in, as a little extra spread.
    """
    values, std = release.values, release.noise_std
    counts, sums = values["counts"][known], values["sums"][known]
    second = moments.symmetric(values["squares"], values.get("products", np.zeros(0)))
    number = float(counts.sum())
    within = moments.within_covariance(counts, sums, second, std["sums"])
    if std["squares"] > 0:
        covariance = moments.shrink_noised(within, number, std["squares"], std.get("products", 0.0))
    else:
        # A feature without spread within classes leaves a singular matrix that OAS alone need not mend.
        shrunk = moments.shrink_oas(within, number)
        covariance = moments.project_psd(shrunk, floor=max(1e-9 * float(np.trace(shrunk)) / len(shrunk), 1e-12))
    priors = counts if parameters.priors == "released" else np.ones(len(known))
    classes = tuple(schema.classes[index] for index in known)
    return lda_head(sums / counts[:, None], covariance, priors, classes)


def application(schema: DatasetSchema) -> dict[str, Any]:
    """How to turn a new record into the features that the head's weights meet, as JSON."""
    columns: list[dict[str, Any]] = []
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            shape = {"low": column.low, "high": column.high, "unit": column.unit}
        else:
            shape = {"categories": list(column.categories)}
        columns.append({"kind": column.kind, "name": column.name, **shape, "impute": column.impute})
    label = None if schema.label is None else schema.label.model_dump(mode="json")
    return {
        "features": columns,
        "file": {
            "label": label,
            "header": schema.header,
            "order": list(schema.order),
            "missing": list(schema.missing),
        },
        "scaling": "number: 2 (clamp(x, low, high) - low) / (high - low) - 1; category: one indicator each, in order",
        "missing": "take impute; where there is none, 0",
        "scores": "features @ weights.T + bias; the class with the largest score",
    }
