"""Evaluating classifiers: what is asked of the sites, and the figures that the sums tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.classification import ClassCounts, folded, noised_calibration
from veilsum_aggregation.concordance import area
from veilsum_aggregation.figures import Row
from veilsum_aggregation.tables import count
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.moment_plans import Missing
from veilsum_coordinator.parts.predictions import LABEL
from veilsum_coordinator.parts.query_scales import weigh
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.model_tables import (
    CLASS,
    LOSS,
    PREDICTED,
    RIGHT,
    SCORE,
    UNCLIPPED,
    ModelTables,
    ModelTablesParameters,
    classified_schema,
    same_two,
)
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.language import Columns, Query
from veilsum_privacy.tasks.tables import questions_of
from veilsum_privacy.training.models import ModelSpec

CONFUSION, SCORES = "confusion", "scores"
"""Queries: records by true and predicted class; by score, and class or whether it was the predicted one."""

BY_CLASS, BY_PREDICTION = "right_by_class", "right_by_prediction"
"""Queries in place of the first where it has too many cells: records by class, and whether it was the predicted one."""

MOST_CELLS = 50_000
"""Of a query; two marginal tables then tell shares with far less noise."""

TABLE = "/table"
"""How the block of a query that counts ends."""

IMPORTANCE = {CONFUSION: 40.0, BY_CLASS: 40.0, BY_PREDICTION: 40.0, SCORES: 1.0, LOSS: 0.27}
"""Of each query, of the loss for one of a nat: classes are what is asked for."""

LEAST_TABLE = 64
"""Least integer that stands for a record in a table, so that the parts of the budget are these."""


class ClassifierRequest(Frozen):
    """What a study asks of a released classifier; nothing is open once ``largest_loss`` is stated.

    Attributes:
        model, sha256, classes: of the model, as the task states them.
        missing: the missing rule; by default the model's own.
        clip: L2 norm that a record's features are scaled down to before they are scored; by default so large that none is, as
            `veilsum participant apply` has it.
        bins: of scores, even, for the calibration and, with two classes, the area under the ROC curve; 0 for none of it.
        largest_loss: what a record's log loss is cut to, in nats; by default 3 log K; 0 for none of it.
        per_site: whether every site's counts are released by themselves; the noise is the same in each.
    """

    model: ModelSpec | None = None
    sha256: str | None = None
    classes: tuple[Name, ...] = ()
    missing: Missing = "skip"
    clip: Real = Field(default=UNCLIPPED, gt=0, le=UNCLIPPED)
    bins: int = Field(default=10, ge=0, le=1000, multiple_of=2)
    largest_loss: Real | None = Field(default=None, ge=0, le=1000)
    per_site: bool = False


def classifier_plan(asked: ClassifierRequest, inputs: Inputs, persons: Mapping[str, Any]) -> TaskPlan:
    """The one release.

    Args:
        asked: resolved.
        persons: how a person's records count, as parameters of the task.

    Raises:
        HostileInput: the model's classes are not the schema's.
    """
    schema = classified_schema(inputs.schema, asked.classes, float(asked.largest_loss or 0.0))
    columns = Columns(schema)
    low = columns.number(SCORE, SCORES).low
    queries = [
        Query(name=name, kind="count", over=over, importance=IMPORTANCE[name])
        for name, over in _counted(len(schema.classes), len(asked.classes)).items()
    ]
    if asked.bins:
        edges = tuple((low + (1.0 - low) * np.arange(1, asked.bins) / asked.bins).tolist())
        by = CLASS if same_two(inputs.schema, asked.classes) else RIGHT
        queries.append(
            Query(name=SCORES, kind="histogram", over=(SCORE,), by=(by,), edges=edges, importance=IMPORTANCE[SCORES])
        )
    if asked.largest_loss:
        queries.append(
            Query(name=LOSS, kind="mean", over=(LOSS,), importance=max(IMPORTANCE[LOSS] * asked.largest_loss**2, 1e-6))
        )
    largest = inputs.sites * inputs.schema.max_records
    weighed = weigh(
        queries,
        (),
        columns,
        largest=largest,
        least_table=LEAST_TABLE,
        private=inputs.private,
        exact_rows=inputs.exact_rows(persons),
    )
    named = ("model", "sha256", "classes", "missing", "clip", "largest_loss")
    about = {name: getattr(asked, name) for name in named} | {"low": low, "high": 1.0}
    width = None if inputs.encoder is None else inputs.width
    task = ModelTablesParameters.model_validate({**dict(weighed), **about, **persons, "width": width})
    return TaskPlan(LABEL, ModelTables.name, task, disclosure="per-site" if asked.per_site else "joint")


def _counted(rows: int, columns: int) -> dict[str, tuple[str, ...]]:
    """The columns of each query that counts classes, by its name."""
    if rows * columns <= MOST_CELLS:
        return {CONFUSION: (CLASS, PREDICTED)}
    return {BY_CLASS: (CLASS, RIGHT), BY_PREDICTION: (PREDICTED, RIGHT)}


def classifier_tables(study: Study, release: Release) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Summary and arrays of a result; where sites are told apart, of each by itself as well."""
    reader, values, noise = _ClassReader(study), release.values, release.noise_std
    summary: dict[str, Any] = {"model": reader.asked.model.name}
    if study.tasks[0].disclosure == "per-site":
        each = [{name: block[place] for name, block in values.items()} for place in range(len(release.cohort))]
        summary["sites"] = [
            {"site": name, **reader.overall(own, noise)} for name, own in zip(release.cohort, each, strict=True)
        ]
        values = {name: block.sum(axis=0) for name, block in values.items()}
        noise = {name: std * math.sqrt(len(each)) for name, std in noise.items()}
    kept = {name.removesuffix(TABLE): block for name, block in release.values.items() if name.endswith(TABLE)}
    return summary | reader.overall(values, noise) | reader.detail(values, noise), kept


class _ClassReader:
    """Reads noised tables of a study's classifier: blocks of a release, and the standard deviation of their noise."""

    def __init__(self, study: Study) -> None:
        self.asked = ModelTablesParameters.model_validate(study.task(LABEL).parameters)
        self._questions = {each.query.name: each for each in questions_of(AgreedStudy(study).task(LABEL).task)}
        self._classes, self._named = study.data.classes, self.asked.classes
        self._two = same_two(study.data, self.asked.classes)
        self._columns = [self._named.index(name) if name in self._named else None for name in self._classes]

    def _counts(self, values: Mapping[str, Floats], noise: Mapping[str, float]) -> ClassCounts:
        if CONFUSION + TABLE in values:
            return ClassCounts.of_table(values[CONFUSION + TABLE], self._columns, noise[CONFUSION + TABLE])
        own, said = BY_CLASS + TABLE, BY_PREDICTION + TABLE
        return ClassCounts(self._columns, values[own], values[said], std=(noise[own], noise[said]))

    def overall(self, values: Mapping[str, Floats], noise: Mapping[str, float]) -> Row:
        """Records, area and calibration, accuracy, that of the constant guess, and log loss, as JSON."""
        counts = self._counts(values, noise)
        found: Row = {"records": counts.records.to_json()}
        if SCORES + TABLE in values:
            found |= self._of_scores(values[SCORES + TABLE], noise[SCORES + TABLE])
        found["accuracy"] = counts.accuracy.to_json()
        found["accuracy_of_constant_guess"] = counts.accuracy_of_constant_guess.to_json()
        if self.asked.largest_loss:
            loss = self._questions[LOSS]
            found["log_loss"] = next(loss.answer(ReleasedPart(loss.query, values, noise)))["mean"]
        return found

    def _of_scores(self, histogram: Floats, std: float) -> Row:
        found: Row = {}
        low, (wrong, right) = self.asked.low, histogram
        if self._two:
            found["auc"] = area(histogram[0], histogram[1], std).to_json()
            low, (wrong, right), std = 0.5, folded(histogram), math.sqrt(2.0) * std
        calibration = noised_calibration(wrong, right, low, std)
        found["calibration_error"] = calibration.error.to_json()
        if std > 0 and math.isfinite(calibration.by_noise):
            found["calibration_error_of_noise"] = calibration.by_noise
        return found

    def detail(self, values: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, list[Row]]:
        """Tables by class: recall, precision and F1, and the confusion counts where they were asked for."""
        rows = zip(self._classes, self._counts(values, noise).figures(), strict=True)
        found: dict[str, list[Row]] = {
            "classes": [{"class": name} | {key: told.to_json() for key, told in row.items()} for name, row in rows]
        }
        if CONFUSION + TABLE in values:
            std = noise[CONFUSION + TABLE]
            found["confusion"] = [
                {"class": own}
                | {f"predicted {said}": count(n, std).to_json() for said, n in zip(self._named, row, strict=True)}
                for own, row in zip(self._classes, values[CONFUSION + TABLE].tolist(), strict=True)
            ]
        return found
