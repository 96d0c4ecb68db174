"""The method "federated-evaluation": how a released model does on the sites' records, at the cost of one release.

Every site applies the model to its own records; so a model is measured on data that nobody can pool. Sites may offer held-out
records as a dataset of their own for it. What happened is counted by what the model says of it: of a classifier true and
predicted classes (:mod:`..parts.classifications`), of any other prediction the outcome at each of its levels
(:mod:`..parts.predictions`). Everything that is told is computed from the noised sums.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.classifications import ClassifierRequest, classifier_plan, classifier_tables
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.moment_plans import need_label
from veilsum_coordinator.parts.predictions import LABEL, Prediction, prediction_plan, prediction_tables
from veilsum_coordinator.parts.query_requests import check_persons
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_node.fields import Frozen
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study


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
        """Of a prediction without what is a classifier's."""
        hidden = () if self.prediction is None else ClassifierRequest.model_fields
        return {name: value for name, value in dump(self).items() if name not in hidden}


class FederatedEvaluation(Method[FederatedEvaluationParameters]):
    """One round of the task "model-tables", or of a prediction by a formula of the task "tables"."""

    name = "federated-evaluation"
    Parameters: ClassVar[type[Frozen]] = FederatedEvaluationParameters
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
        if parameters.prediction is not None or parameters.person is not None or parameters.at_most:
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
