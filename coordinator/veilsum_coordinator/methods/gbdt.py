"""The method "gbdt": gradient-boosted trees whose splits are drawn at random, and whose leaves are noised sums over all sites.

Each round draws B trees, sums every record's gradient and Hessian in the leaf that it reaches in each of them, and adds the
trees to the model with Newton steps for leaves (:mod:`veilsum_aggregation.boosting`). The splits depend on no record, so the
whole budget is spent on leaves.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.boosting import LeafSums, SplitColumn, first_base, newton_leaves, random_trees, split_gains
from veilsum_coordinator.parts.alignment import outcome_application, study_application
from veilsum_coordinator.parts.base import Inputs, Method, Missing, TaskPlan, need_label
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.networks import network_head
from veilsum_coordinator.parts.outcomes import resolved_outcome
from veilsum_node.errors import ConfigurationError, HostileInput, told_as
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.tree_gradients import GRADIENTS, HESSIANS, Loss, TreeGradientsParameters
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, tree_shapes

TREES = "trees"
"""Label of the releases."""

RIDGES = {"logistic": 1.0, "softmax": 1.0, "squared": 6.0, "poisson": 4.0}
"""Defaults of ``ridge`` by loss. Numbers and counts vary less than the norm that a record is charged for (decision 53)."""

LOSSES = ("squared", "poisson")
"""The losses that an outcome may have."""

FEWEST_TREES = 16
"""Trees of a round by default; with more columns, one tree per column."""


class GBDTParameters(Frozen):
    """Parameters, all public.

    Attributes:
        clip: L2 norm of a record's features; trees need none, and any below the square root of their number is refused.
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds, and of a
            category none.
        outcome: a number or count to predict in place of classes, from the other columns.
        most: of a count the largest mean of a record, in the column's unit; by default half of its upper bound.
        rounds: releases.
        trees: of a round; by default one a column, and 16 at least.
        depth: of a tree, which has 2^depth leaves; up to so many columns interact.
        bins: equal ones of each number's bounds, at whose edges trees split.
        learning_rate: how much of the mean of a round's trees is added to the model.
        ridge: of leaves, in standard deviations of their noise; by default 1 of classes, 6 of a number and 4 of a count.
        seed: of the splits; it protects nothing.
    """

    clip: Real = Field(default=1e6, gt=0, le=1e6)
    missing: Missing = "skip"
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    most: Real | None = Field(default=None, gt=0, le=1e100, exclude_if=lambda stated: stated is None)
    rounds: int = Field(default=30, ge=1, le=1000)
    trees: int | None = Field(default=None, ge=1, le=4096)
    depth: int = Field(default=4, ge=1, le=8)
    bins: int = Field(default=32, ge=2, le=1024)
    learning_rate: Real = Field(default=1.0, gt=0, le=100)
    ridge: Real | None = Field(default=None, ge=0, le=1000)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class GBDT(Method[GBDTParameters]):
    """``rounds`` releases of the task "tree-gradients"."""

    name = "gbdt"
    rehearsals = 2

    def resolve(self, parameters: GBDTParameters, inputs: Inputs) -> GBDTParameters:
        stated = parameters.outcome
        if stated is None:
            need_label(inputs, "the method gbdt", ", or name an outcome in [parameters.outcome]")
        elif stated.loss not in LOSSES:
            raise ConfigurationError(
                f'gbdt has no loss "{stated.loss}".', f"It has {' and '.join(LOSSES)}; the method fedsgd has {stated.loss}."
            )
        if parameters.most is not None and (stated is None or stated.loss != "poisson"):
            raise ConfigurationError("Only counts have a largest mean, `most`.", "Leave it out.")
        outcome, used, _ = resolved_outcome(stated, inputs, "gbdt")
        most = parameters.most
        if outcome is not None and outcome.loss == "poisson":
            high = outcome.number(inputs.schema).high
            most = most or high / 2.0
            if most > high:
                raise ConfigurationError(f"No mean exceeds the upper bound of {outcome.column!r}.", f"State most <= {high}.")
        trees = parameters.trees or max(FEWEST_TREES, len(used.schema.columns))
        filled = {"outcome": outcome, "most": most, "trees": trees, "ridge": ridge_of(parameters, inputs.schema)}
        return parameters.model_copy(update=filled)

    def declare(self, parameters: GBDTParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.trees is None:
            raise ConfigurationError("The method gbdt needs the defaults of its parameters resolved.")
        if inputs.encoder is not None:
            raise ConfigurationError("The method gbdt splits the columns themselves.", "Leave the encoder out.")
        if parameters.clip < math.sqrt(inputs.width):
            raise ConfigurationError("The method gbdt clips no features.", "Leave `clip` out.")
        task = TreeGradientsParameters(
            clip=parameters.clip,
            missing=parameters.missing,
            loss=loss_of(parameters, inputs.schema),
            outcome="" if parameters.outcome is None else parameters.outcome.column,
            most=parameters.most or 1.0,
            trees=parameters.trees,
            depth=parameters.depth,
            largest_model=parameters.rounds * parameters.trees,
        )
        with told_as(ConfigurationError, HostileInput):
            build_task("tree-gradients", task.model_dump(mode="json"), inputs.schema)
        return (TaskPlan(TREES, "tree-gradients", task, releases=parameters.rounds, share=1.0 / parameters.rounds),)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        p = GBDTParameters.model_validate(study.parameters)
        outcome, data, scores = p.outcome, study.data, len(study.data.classes)
        if outcome is not None:
            data, scores = outcome.features(study.data), 1
        trees, width, columns = p.trees or FEWEST_TREES, data.width, split_columns(data)
        rng = np.random.default_rng((p.seed, 0x7472656573))
        shapes = tree_shapes(trees, p.depth, scores)
        arrays = {BASE: np.zeros(shapes[BASE])}
        gains, ridge = np.zeros(width), ridge_of(p, study.data)
        for number in range(p.rounds):
            features, thresholds = random_trees(rng, columns, trees, p.depth, p.bins)
            release = federation.sum(TREES, to_broadcast(grown(arrays, features, thresholds, np.zeros(shapes[LEAVES]))))
            sums = leaf_sums(release)
            if number == 0 and outcome is not None:
                base, sums = first_base(sums, *start_of(outcome, study.data, p.most))
                arrays = {BASE: np.full(shapes[BASE], base)}
            leaves = newton_leaves(sums, float(p.learning_rate), ridge)
            arrays = grown(arrays, features, thresholds, leaves)
            gains += split_gains(features, sums, ridge, width)
        spec = ModelSpec(name="trees", options={"trees": p.rounds * trees, "depth": p.depth})
        head, released = network_head(build_architecture(spec, width, scores, trained=False), arrays)
        summary: dict[str, Any] = {
            "model": "trees",
            "trees": p.rounds * trees,
            "depth": p.depth,
            "rounds": p.rounds,
            "importance": importance(data, gains),
        }
        if outcome is not None:
            most = None if p.most is None else float(p.most)
            applied = outcome_application(study.data, outcome, missing=p.missing, head=head, most=most)
            return Result(self.name, summary, released, applied)
        return Result(self.name, summary, released, study_application(federation, p.missing, None, head, study.data.classes))


def loss_of(parameters: GBDTParameters, schema: DatasetSchema) -> Loss:
    """The loss of the task."""
    if parameters.outcome is not None:
        return "squared" if parameters.outcome.loss == "squared" else "poisson"
    return "logistic" if len(schema.classes) == 2 else "softmax"


def ridge_of(parameters: GBDTParameters, schema: DatasetSchema) -> float:
    """The ridge, by default as the loss asks for."""
    return RIDGES[loss_of(parameters, schema)] if parameters.ridge is None else float(parameters.ridge)


def start_of(outcome: Outcome, schema: DatasetSchema, most: float | None) -> tuple[Literal["squared", "poisson"], float]:
    """The loss and the largest mean of a count in half ranges of its column, as :func:`first_base` takes them."""
    if outcome.loss == "squared" or most is None:
        return "squared", 1.0
    number = outcome.number(schema)
    return "poisson", float(most) / (number.high / 2.0 - number.low / 2.0)


def grown(arrays: Mapping[str, Floats], features: Floats, thresholds: Floats, leaves: Floats) -> dict[str, Floats]:
    """The model with further trees."""
    new = {FEATURES: features, THRESHOLDS: thresholds, LEAVES: leaves}
    return {**arrays, **{name: np.concatenate([arrays[name], rows]) if name in arrays else rows for name, rows in new.items()}}


def leaf_sums(release: Release) -> LeafSums:
    """A release as the formulas take it."""
    return LeafSums(
        gradients=release.values[GRADIENTS],
        hessians=release.values[HESSIANS],
        gradient_std=release.noise_std[GRADIENTS],
        hessian_std=release.noise_std[HESSIANS],
    )


def split_columns(schema: DatasetSchema) -> list[SplitColumn]:
    """The columns as trees split them, in order."""
    return [
        SplitColumn(place.start, column.width if isinstance(column, CategoryColumn) else 0)
        for column, place in schema.places()
    ]


def importance(schema: DatasetSchema, gains: Floats) -> list[dict[str, Any]]:
    """Each column's share of what all splits lowered the loss by, the largest first; none below what noise explains."""
    by_column = {column.name: max(0.0, float(gains[place].sum())) for column, place in schema.places()}
    total = math.fsum(by_column.values())
    rows = sorted(by_column.items(), key=lambda item: -item[1])
    return [{"column": name, "share_of_gain": gain / total if total > 0 else 0.0} for name, gain in rows]
