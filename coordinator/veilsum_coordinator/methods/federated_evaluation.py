"""The method "federated-evaluation": how a released model does on the sites' records, at the cost of one release.

Every site applies the model to its own records; so a model is measured on data that nobody can pool. Sites may offer held-out
records as a dataset of their own for it. What happened is counted by what the model says of it: of a classifier true and
predicted classes (:mod:`..parts.classifications`), of any other prediction the outcome at each of its levels
(:mod:`..parts.predictions`). Everything that is told is computed from the noised sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.classifications import Classifier, classifier_plan, classifier_tables, expected_shares
from veilsum_coordinator.parts.expectations import Expectation
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.moment_plans import Missing, need_label
from veilsum_coordinator.parts.predictions import LABEL, Prediction, expected_measures, prediction_plan, prediction_tables
from veilsum_coordinator.parts.query_requests import check_persons
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Disclosure, Study
from veilsum_privacy.tasks.model_tables import UNCLIPPED
from veilsum_privacy.tasks.persons import Reduction
from veilsum_privacy.training.models import ModelSpec


class FederatedEvaluationParameters(Frozen):
    """Parameters, all public. In a study's file ``result``, a directory, stands for model, sha256, classes and missing, or for
    prediction.

    Attributes:
        prediction: what a regression released; the parameters below but the last two are of classifiers alone.
        model, sha256, classes: of the model, as the task states them.
        missing: the missing rule; by default the model's own.
        clip: L2 norm that a record's features are scaled down to before they are scored; by default so large that none is, as
            `veilsum participant apply` has it.
        bins: of scores, even, for the calibration and, with two classes, the area under the ROC curve; 0 for none of it.
        largest_loss: what a record's log loss is cut to, in nats; by default 3 log K; 0 for none of it.
        per_site: whether every site's counts are released by themselves; the noise is the same in each.
        person: in a study whose unit is the subject, how a person's records become one
            (:class:`~veilsum_privacy.tasks.persons.PersonParameters`).
        at_most: in its place, how many of a person's records count. Of a classifier with neither, all of them do, together as
            much as one.
    """

    prediction: Prediction | None = None
    model: ModelSpec | None = None
    sha256: str | None = None
    classes: tuple[Name, ...] = ()
    missing: Missing = "skip"
    clip: Real = Field(default=UNCLIPPED, gt=0, le=UNCLIPPED)
    bins: int = Field(default=10, ge=0, le=1000, multiple_of=2)
    largest_loss: Real | None = Field(default=None, ge=0, le=1000)
    per_site: bool = False
    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)

    @model_serializer(mode="wrap")
    def _stated(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Of a prediction what is stated of it; of a classifier all that are its own."""
        found: dict[str, Any] = dump(self)
        always = () if self.prediction is not None else type(self).model_fields.keys() - set(OF_PREDICTIONS)
        return {name: value for name, value in found.items() if name in always or (name in OF_PREDICTIONS and value)}


OF_PREDICTIONS = ("prediction", "person", "at_most")
"""Parameters that an evaluation of a prediction has."""


class FederatedEvaluation(Method):
    """One round of the task "model-tables", or of a prediction by a formula of the task "tables"."""

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
        if not isinstance(parameters, FederatedEvaluationParameters):
            raise ConfigurationError(f"The method {self.name} needs its own parameters, with defaults resolved.")
        persons = {"person": parameters.person, "at_most": parameters.at_most}
        try:
            if parameters.prediction is None:
                disclosure: Disclosure = "per-site" if parameters.per_site else "joint"
                return (classifier_plan(_classifier(parameters), inputs, persons, disclosure),)
            if inputs.encoder is not None:
                raise ConfigurationError("A regression's prediction is of the schema's own columns.", "Leave out [encoder].")
            return (prediction_plan(parameters.prediction, inputs, persons),)
        except ValidationError as error:
            advice = "" if parameters.prediction is None else "Evaluate the result as it was released."
            raise ConfigurationError(" ".join(explain(error, Prediction)), advice) from error
        except HostileInput as error:
            raise ConfigurationError(error.message, error.advice) from error

    def check(self, study: Study) -> None:
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        if parameters.prediction is not None or parameters.person is not None or parameters.at_most:
            check_persons(parameters.person, parameters.at_most, study)

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """Of a classifier accuracy and recalls, of a prediction its measures, by the formulas of :meth:`run`."""
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        if parameters.prediction is not None:
            return expected_measures(study, cohort, records)
        return expected_shares(study, _classifier(parameters), cohort, records)

    def compute(self, federation: Federation) -> Result:
        study, release = federation.study, federation.sum(LABEL)
        parameters = FederatedEvaluationParameters.model_validate(study.parameters)
        if parameters.prediction is not None:
            about = {"predicts": parameters.prediction.predicts, "outcome": parameters.prediction.outcome}
            found = prediction_tables(study, release.values, release.noise_std)
            return Result(self.name, {**about, "cohort": len(release.cohort), **found})
        summary, arrays = classifier_tables(study.data.classes, _classifier(parameters), release, per_site=parameters.per_site)
        return Result(self.name, {**summary, "cohort": len(release.cohort)}, arrays)


def _classifier(parameters: FederatedEvaluationParameters) -> Classifier:
    """What is evaluated, of resolved parameters."""
    if parameters.model is None or parameters.sha256 is None or parameters.largest_loss is None:
        raise ConfigurationError("A classifier's evaluation needs its own parameters, with defaults resolved.")
    return Classifier(
        model=parameters.model,
        sha256=parameters.sha256,
        classes=parameters.classes,
        missing=parameters.missing,
        clip=parameters.clip,
        bins=parameters.bins,
        largest_loss=parameters.largest_loss,
    )
