"""The method "federated-evaluation": how a released model does on the sites' records, at the cost of one release.

Every site applies the model to its own records; so a model is measured on data that nobody can pool. Sites may offer held-out
records as a dataset of their own for it. What happened is counted by what the model says of it: of a classifier true and
predicted classes (:func:`classifier_plan`), of any other prediction the outcome at each of its levels
(:mod:`..parts.predictions`). Everything that is told is computed from the noised sums.

Evaluating classifiers: what is asked of the sites, and the figures that the sums tell.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.classification import ClassCounts, folded, noised_calibration
from veilsum_aggregation.concordance import area
from veilsum_aggregation.figures import Row
from veilsum_aggregation.tables import count
from veilsum_coordinator.parts.base import Inputs, Method, Missing, TaskPlan, need_label
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.predictions import LABEL, Prediction, prediction_plan, prediction_tables
from veilsum_coordinator.parts.query_requests import check_persons, weigh
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
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
"""The most cells of one query; beyond them two marginal tables tell shares with far less noise."""

TABLE = "/table"
"""How the block of a query that counts ends."""

IMPORTANCE = {CONFUSION: 40.0, BY_CLASS: 40.0, BY_PREDICTION: 40.0, SCORES: 1.0, LOSS: 0.27}
"""Importance of each query, that of the loss for a loss of one nat: classes are what is asked for."""

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


class FederatedEvaluationParameters(ClassifierRequest):
    """Parameters, all public. In a study's file ``result``, a directory, stands for model, sha256, classes and missing, or for
    prediction.

    Attributes:
        prediction: what a regression released, in place of all parameters of a classifier.
        person: in a study whose unit is the subject, how a person's records become one
            (:class:`~veilsum_privacy.tasks.persons.PersonParameters`).
        at_most: in its place, how many of a person's records count. Of a classifier with neither, all of them do, together as
            much as one.
    """

    prediction: Prediction | None = Field(default=None, exclude_if=lambda stated: stated is None)
    person: Reduction | None = Field(default=None, exclude_if=lambda stated: stated is None)
    at_most: int = Field(default=0, ge=0, le=1000, exclude_if=lambda stated: not stated)

    @model_serializer(mode="wrap")
    def _stated(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What the study states of a prediction, without the items of a classifier."""
        hidden = () if self.prediction is None else ClassifierRequest.model_fields
        return {name: value for name, value in dump(self).items() if name not in hidden}


class FederatedEvaluation(Method[FederatedEvaluationParameters]):
    """One round of the task "model-tables", or of a prediction by a formula of the task "tables"."""

    name = "federated-evaluation"
    rehearsals = 8

    def resolve(self, parameters: FederatedEvaluationParameters, inputs: Inputs) -> FederatedEvaluationParameters:
        if parameters.prediction is not None:
            if stated := sorted(parameters.model_fields_set & ClassifierRequest.model_fields.keys()):
                raise ConfigurationError(
                    f"federated-evaluation of a regression's prediction has no {', '.join(stated)}.", "Leave it out."
                )
            return parameters
        need_label(inputs, f"the method {self.name}")
        if parameters.model is None or parameters.sha256 is None:
            raise ConfigurationError(
                f"The method {self.name} evaluates a released model.", "Name its result's directory as parameters.result."
            )
        most = 3.0 * math.log(len(parameters.classes)) if parameters.largest_loss is None else parameters.largest_loss
        return parameters.model_copy(update={"largest_loss": most})

    def declare(self, parameters: FederatedEvaluationParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        persons = {"person": parameters.person, "at_most": parameters.at_most}
        try:
            if parameters.prediction is None:
                return (classifier_plan(parameters, inputs, persons),)
            if inputs.encoder is not None:
                raise ConfigurationError("A regression's prediction is of the schema's own columns.", "Leave out [encoder].")
            return (prediction_plan(parameters.prediction, inputs, persons),)
        except ValidationError as error:
            advice = "" if parameters.prediction is None else "Evaluate the result as it was released."
            raise ConfigurationError(" ".join(explain(error, Prediction)), advice) from error
        except (HostileInput, Misuse) as error:
            raise ConfigurationError(error.message, error.advice) from error

    def check(self, study: Study) -> None:
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        whole = study.privacy.unit == "site"
        if whole or parameters.prediction is not None or parameters.person is not None or parameters.at_most:
            check_persons(parameters.person, parameters.at_most, study)

    def compute(self, federation: Federation) -> Result:
        study, release = federation.study, federation.sum(LABEL)
        cohort = {"cohort": len(release.cohort)}
        if "prediction" not in study.parameters:
            summary, arrays = classifier_tables(study, release)
            return Result(self.name, summary | cohort, arrays)
        prediction = Prediction.model_validate(study.parameters["prediction"])
        about = {"predicts": prediction.predicts, "outcome": prediction.outcome}
        return Result(self.name, about | cohort | prediction_tables(study, release.values, release.noise_std))
