"""The method "federated-evaluation": how a released model does on the sites' records, at the cost of one release.

Every site applies the model to its own records; so a model is measured on data that nobody can pool. Sites may offer held-out
records as a dataset of their own for it. Of a classifier, whose arrays are broadcast, they add counts of true and predicted
classes; of a prediction that is a formula of columns, what happened at each of its levels (:mod:`..parts.predictions`).
Everything that is told is computed from the noised sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from veilsum_aggregation import classification
from veilsum_aggregation.concordance import area
from veilsum_aggregation.figures import NotEstimable, bounded_mean
from veilsum_aggregation.tables import count, share
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.expectations import Expectation, half_width, released_noise
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.moment_plans import Missing, need_label
from veilsum_coordinator.parts.predictions import LABEL as PREDICTIONS
from veilsum_coordinator.parts.predictions import Prediction, expected_measures, prediction_plan, prediction_tables
from veilsum_coordinator.parts.query_requests import check_persons
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.evaluation import CONFUSION, LOSS, SCORES, EvaluationParameters
from veilsum_privacy.tasks.layout import balanced_weights
from veilsum_privacy.tasks.persons import Reduction
from veilsum_privacy.training.models import ModelSpec

Floats = NDArray[np.float64]

EVALUATION = "evaluation"
"""Label of the release."""

TYPICAL = 0.8
"""Accuracy and recall that expectations are for."""

IMPORTANCE = (40.0, 1.0, 1.0)
"""Of a cell of the confusion counts, of the scores' and of the loss, as in :func:`.moment_plans`: the first are what is asked
for."""


class FederatedEvaluationParameters(Frozen):
    """Parameters, all public. In a study's file ``result``, a directory, stands for model, sha256, classes and missing, or for
    prediction.

    Attributes:
        prediction: what a regression released; the parameters below but the last two are of classifiers.
        model, sha256, classes: of the model, as the task states them.
        missing: the missing rule; by default the model's own.
        clip: L2 norm that a record's features are scaled down to before they are scored; by default so large that none is, as
            `veilsum participant apply` has it.
        bins: of scores, even, for the calibration and, with two classes, the area under the ROC curve; 0 for none of it.
        largest_loss: what a record's log loss is cut to, in nats; by default 3 log K; 0 for none of it.
        per_site: whether every site's counts are released by themselves; the noise is the same in each.
        person: of a prediction in a study whose unit is the subject, how a person's records become one
            (:class:`~veilsum_privacy.tasks.persons.PersonParameters`).
        at_most: in its place, how many of a person's records count.
    """

    prediction: Prediction | None = None
    model: ModelSpec | None = None
    sha256: str | None = None
    classes: tuple[Name, ...] = ()
    missing: Missing = "skip"
    clip: Real = Field(default=1e6, gt=0, le=1e6)
    bins: int = Field(default=10, ge=0, le=1000, multiple_of=2)
    largest_loss: Real | None = Field(default=None, ge=0, le=1000)
    per_site: bool = False
    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)

    @model_serializer(mode="wrap")
    def _stated(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Of a prediction what is stated of it; of a classifier the form that it always had."""
        found: dict[str, Any] = dump(self)
        if self.prediction is not None:
            return {name: value for name, value in found.items() if name in OF_PREDICTIONS and value}
        return {name: value for name, value in found.items() if name not in OF_PREDICTIONS}


OF_PREDICTIONS = ("prediction", "person", "at_most")
"""Parameters that an evaluation of a prediction has."""


class FederatedEvaluation(Method):
    """One round of the task "evaluation", or of a prediction of the task "tables"."""

    name = "federated-evaluation"
    Parameters: ClassVar[type[Frozen]] = FederatedEvaluationParameters

    def resolve(self, parameters: Frozen, inputs: Inputs) -> Frozen:
        if not isinstance(parameters, FederatedEvaluationParameters):
            return parameters
        if parameters.prediction is not None:
            self._check_prediction(parameters)
            return parameters
        need_label(inputs, f"the method {self.name}")
        if parameters.model is None or parameters.sha256 is None:
            raise ConfigurationError(
                f"The method {self.name} evaluates a released model.", "Name its result's directory as parameters.result."
            )
        most = 3.0 * math.log(len(parameters.classes)) if parameters.largest_loss is None else parameters.largest_loss
        return parameters.model_copy(update={"largest_loss": most})

    @staticmethod
    def _check_prediction(parameters: FederatedEvaluationParameters) -> None:
        given = FederatedEvaluationParameters.model_fields.keys() - set(OF_PREDICTIONS)
        if stated := sorted(parameters.model_fields_set & given):
            raise ConfigurationError(
                f"federated-evaluation of a regression's prediction has no {', '.join(stated)}.", "Leave it out."
            )

    def declare(self, parameters: Frozen, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if isinstance(parameters, FederatedEvaluationParameters) and parameters.prediction is not None:
            if inputs.encoder is not None:
                raise ConfigurationError("A regression's prediction is of the schema's own columns.", "Leave out [encoder].")
            persons = {"person": parameters.person, "at_most": parameters.at_most}
            try:
                return (prediction_plan(parameters.prediction, inputs, persons),)
            except ValidationError as error:
                raise ConfigurationError(
                    " ".join(explain(error, Prediction)), "Evaluate the result as it was released."
                ) from error
            except HostileInput as error:
                raise ConfigurationError(error.message, error.advice) from error
        if not isinstance(parameters, FederatedEvaluationParameters) or parameters.largest_loss is None:
            raise ConfigurationError(f"The method {self.name} needs its own parameters, with defaults resolved.")
        most, cells = float(parameters.largest_loss), len(inputs.classes) * len(parameters.classes)
        weights = balanced_weights((1.0, 1.0, most or 1.0), (cells, 2 * max(parameters.bins, 1), 1), IMPORTANCE)
        if parameters.model is None or parameters.sha256 is None:
            raise ConfigurationError(f"The method {self.name} needs its own parameters, with defaults resolved.")
        task = EvaluationParameters(
            width=None if inputs.encoder is None else inputs.width,
            clip=parameters.clip,
            missing=parameters.missing,
            model=parameters.model,
            sha256=parameters.sha256,
            classes=parameters.classes,
            bins=parameters.bins,
            score_weight=weights[1] / weights[0],
            largest_loss=most,
            loss_weight=weights[2] / weights[0],
        )
        return (TaskPlan(EVALUATION, "evaluation", task, disclosure="per-site" if parameters.per_site else "joint"),)

    def check(self, study: Study) -> None:
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        if parameters.prediction is not None:
            check_persons(parameters.person, parameters.at_most, study)

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """Accuracy and the recalls at an accuracy of 80% and equally frequent classes, by the formulas of :meth:`run`.

        Of a prediction its measures, if it is calibrated.
        """
        if "prediction" in study.parameters:
            return expected_measures(study, cohort, records)
        noise, k = released_noise(study, EVALUATION, cohort), len(study.data.classes)
        columns = len(FederatedEvaluationParameters.model_validate(study.parameters).classes)
        right = TYPICAL * records
        counts = noise[CONFUSION] * math.sqrt(cohort if study.tasks[0].disclosure == "per-site" else 1)
        whole = share(right, records, (k, k * columns - k), counts)
        one = share(right / k, records / k, (1, columns - 1), counts)
        basis = f"an accuracy of {TYPICAL:.0%}"
        return [
            Expectation(
                "accuracies", "share of records predicted rightly", TYPICAL, half_width(whole), basis=basis, main=True
            ),
            Expectation("recalls", "share of a class predicted rightly", TYPICAL, half_width(one), basis=basis, number=k),
        ]

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        if parameters.prediction is not None:
            predictions = federation.sum(PREDICTIONS)
            about = {"predicts": parameters.prediction.predicts, "outcome": parameters.prediction.outcome}
            found = prediction_tables(study, predictions.values, predictions.noise_std)
            return Result(self.name, {**about, "cohort": len(predictions.cohort), **found})
        release = federation.sum(EVALUATION)
        reader = Reader(study.data.classes, parameters)
        summary: dict[str, Any] = {"model": None if parameters.model is None else parameters.model.name}
        values, noise = release.values, release.noise_std
        if parameters.per_site:
            sites = len(release.cohort)
            each = [{name: block[place] for name, block in values.items()} for place in range(sites)]
            summary["sites"] = [
                {"site": name, **reader.overall(own, noise)} for name, own in zip(release.cohort, each, strict=True)
            ]
            values = {name: block.sum(axis=0) for name, block in values.items()}
            noise = {name: std * math.sqrt(sites) for name, std in noise.items()}
        summary |= reader.overall(values, noise) | reader.detail(values, noise) | {"cohort": len(release.cohort)}
        arrays = {name: np.asarray(release.values[name]) for name in (CONFUSION, SCORES) if name in release.values}
        return Result(self.name, summary, arrays)


class Reader:
    """Reads noised counts.

    Args:
        classes: of the schema.
        parameters: resolved.
    """

    def __init__(self, classes: Sequence[str], parameters: FederatedEvaluationParameters) -> None:
        self._classes, self._named, self._parameters = tuple(classes), parameters.classes, parameters
        self._right = np.array([[own == said for said in self._named] for own in self._classes])

    def overall(self, values: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, Any]:
        """Records, area and calibration, accuracy, that of the constant guess, and log loss, as JSON.

        The constant guess is the class that most records have: where its accuracy is close to the model's, that says little.
        """
        counts, std = values[CONFUSION], noise[CONFUSION]
        number, cells = float(counts.sum()), (int(self._right.sum()), int((~self._right).sum()))
        accuracy = share(float(counts[self._right].sum()), number, cells, std)
        whole_std = std * math.sqrt(counts.size)
        found: dict[str, Any] = {"records": count(number, whole_std).to_json()}
        if SCORES in values:
            found |= self._of_scores(values[SCORES], noise[SCORES])
        found["accuracy"] = accuracy.to_json()
        columns = counts.shape[1]
        guess = share(float(counts.sum(axis=1).max()), number, (columns, counts.size - columns), std)
        found["accuracy_of_constant_guess"] = guess.to_json()
        if LOSS in values:
            most = float(self._parameters.largest_loss or 0.0)
            found["log_loss"] = bounded_mean(float(values[LOSS][0]), number, noise[LOSS], whole_std, 0.0, most).to_json()
        return found

    def _of_scores(self, histogram: Floats, std: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        low, wrong, right = 1.0 / len(self._named), histogram[0], histogram[1]
        if len(self._classes) == len(self._named) == 2:
            found["auc"] = area(histogram[0], histogram[1], std).to_json()
            low, (wrong, right), std = 0.5, classification.folded(histogram), math.sqrt(2.0) * std
        calibration = classification.noised_calibration(wrong, right, low, std)
        found["calibration_error"] = calibration.error.to_json()
        if std > 0 and math.isfinite(calibration.by_noise):
            found["calibration_error_of_noise"] = calibration.by_noise
        return found

    def detail(self, values: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, Any]:
        """Tables by class: recall, precision and F1, and the confusion counts."""
        counts, std = values[CONFUSION], noise[CONFUSION]
        confusion = [
            {
                "class": own,
                **{
                    f"predicted {said}": count(float(counts[row, column]), std).to_json()
                    for column, said in enumerate(self._named)
                },
            }
            for row, own in enumerate(self._classes)
        ]
        return {"classes": list(self._by_class(counts, std)), "confusion": confusion}

    def _by_class(self, counts: Floats, std: float) -> Iterator[dict[str, Any]]:
        rows, columns = counts.shape
        for row, own in enumerate(self._classes):
            number = float(counts[row].sum())
            known = {"class": own, "records": count(number, std * math.sqrt(columns)).to_json()}
            if own not in self._named:
                unknown = NotEstimable("the model does not know the class").to_json()
                yield known | {"recall": unknown, "precision": unknown, "f1": unknown}
                continue
            column = self._named.index(own)
            hit, said = float(counts[row, column]), float(counts[:, column].sum())
            yield known | {
                "recall": share(hit, number, (1, columns - 1), std).to_json(),
                "precision": share(hit, said, (1, rows - 1), std).to_json(),
                "f1": classification.f1(hit, number + said - 2.0 * hit, rows + columns - 2, std).to_json(),
            }
