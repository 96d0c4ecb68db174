"""The task "gradient": the sum of the records' clipped gradients of a broadcast model, one step of DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, SiteTask
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS, centre_of, class_weights, clipped, usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.outcomes import Outcome, outcome_model
from veilsum_privacy.tasks.parameters import PartParameters
from veilsum_privacy.training.arrays import MODEL, from_broadcast, to_broadcast
from veilsum_privacy.training.gradients import clipped_gradient_sum, clipped_outcome_sum, summation_slack
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.models import ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.models.perceptrons import Perceptron

COUNT_WEIGHT = 2.0**-7
"""Weight of the count against C: small, so that it hardly lengthens a record's vector."""

LARGEST_SITE = 2**24
"""Records of a site up to which rounding is bounded."""


class GradientParameters(PartParameters):
    """Parameters of :class:`Gradient`; all public and independent of the data.

    Attributes:
        model: whose gradient is summed; every option stated.
        gradient_clip: L2 norm C that a record's gradient is scaled down to if it exceeds it.
        centre: whether the broadcast array :data:`CENTRE` is taken off the features.
        count: whether the number of records that count is added up as well; without noise only.
        outcome: what is trained on in place of classes, by models linear and mlp of the schema's own features; None for
            classes.
        class_weights: whether a record's clipped gradient is multiplied by its class's weight, which is broadcast.
    """

    model: ModelSpec
    gradient_clip: Real = Field(ge=1e-9, le=1e6)
    centre: bool = False
    count: bool = False
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    class_weights: bool = Field(default=False, exclude_if=lambda asked: not asked)  # studies signed before do not state it


class Gradient(SiteTask[GradientParameters]):
    """Sum over the sampled records of the gradient of the cross-entropy, or an outcome's loss, each clipped to a norm of C.

    Blocks: the model's arrays, ``model.<name>``, all of weight 1, and ``count`` (1,) if asked for.
    The broadcast holds the model in arrays of these names.

    The sum is over whichever records the framework's Poisson sample took; nothing is divided by their number. A record that
    does not count, by its label, a missing feature or a gradient that is not finite, adds zero. With class weights, which the
    broadcast holds as :data:`.features.CLASS_WEIGHTS`, a record's clipped gradient is multiplied by its class's.

    Sensitivity: C (1 + s). A record's gradient and weight depend on the record and the broadcast alone, its gradient is no
    longer than C and its weight at most 1; s,
    about 2e-4, is what floating point may add when up to 2^24 of them are summed
    (:class:`veilsum_privacy.training.clipped_sums.ClippedGradients`). A subject's gradients are added and clipped to C again.
    A record whose gradient has a norm of C reaches the bound but for s.
    """

    name = "gradient"
    additive = True
    Parameters: ClassVar[type[Frozen]] = GradientParameters

    def __init__(self, parameters: GradientParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        outcome = parameters.outcome
        self._loss: OutcomeLoss | None = None
        if outcome is not None:
            self._loss, self.dimension = outcome_model(parameters, outcome, parameters.model, schema)
            if parameters.class_weights:
                raise Misuse("The task gradient weighs classes, which an outcome has not.", "Leave class_weights out.")
        elif len(schema.classes) < 2:
            raise Misuse("The task gradient needs a label with two classes or more.", "Add a [label] table with classes.")
        self._classes = len(schema.classes) if self._loss is None else self._loss.scores
        try:
            check_resolved(parameters.model)
            self._architecture = build_architecture(parameters.model, self.dimension, self._classes)
        except HostileInput as error:
            raise Misuse(error.message, error.advice) from error

    def layout(self) -> Layout:
        blocks = [Block(MODEL + name, shape) for name, shape in self._architecture.shapes().items()]
        if self.parameters.count:
            blocks.append(Block("count", (1,), COUNT_WEIGHT * self.parameters.gradient_clip))
        return Layout(tuple(blocks))

    def only_without_noise(self) -> str | None:
        return "adds up how many records there are" if self.parameters.count else None

    def clip(self) -> float:
        longer = math.hypot(1.0, COUNT_WEIGHT) if self.parameters.count else 1.0
        return self.parameters.gradient_clip * longer * (1.0 + summation_slack(self._architecture, LARGEST_SITE))

    def single_arrays(self) -> frozenset[str]:
        return frozenset(to_broadcast(self._architecture.shapes()))

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        centre = {CENTRE: np.zeros(self.dimension)} if self.parameters.centre else {}
        weights = {CLASS_WEIGHTS: np.ones(self._classes)} if self.parameters.class_weights else {}
        return {**to_broadcast(self._architecture.initial(0)), **centre, **weights}

    def inputs(self, records: Records, broadcast: Mapping[str, Floats]) -> tuple[Floats, NDArray[np.bool_]]:
        """What the model is given (n, d), and which records count (n,); each record's by itself."""
        every = slice(0, len(records))
        used = usable(self.parameters, records, every, self._classes if self._loss is None else None)
        x = clipped(self.parameters, records, every, used)
        if self.parameters.centre:
            x = np.where(used[:, None], x - centre_of(broadcast, x.shape[1]), 0.0)
        return x, used

    def vector(self, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
        parameters = self.parameters
        arrays = from_broadcast(broadcast, self._architecture.shapes())
        if self._loss is not None and parameters.outcome is not None and isinstance(self._architecture, Perceptron):
            own, outcomes, known = parameters.outcome.split(records, self.schema)
            x, used = self.inputs(own, broadcast)
            found = clipped_outcome_sum(
                self._architecture,
                arrays,
                x,
                outcomes,
                used & known,
                self._loss,
                parameters.gradient_clip,
                groups=records.subjects,
            )
            return self._counted(found.total, used & known)
        if records.labels is None:
            raise Misuse("The task gradient needs labelled records.")
        x, used = self.inputs(records, broadcast)
        labels = np.where(used, records.labels, -1)
        weights = class_weights(broadcast, labels, self._classes) if parameters.class_weights else None
        found = clipped_gradient_sum(
            self._architecture, arrays, x, labels, parameters.gradient_clip, groups=records.subjects, weights=weights
        )
        return self._counted(found.total, used)

    def _counted(self, total: Floats, used: NDArray[np.bool_]) -> Floats:
        """The sum, and the number of records if it is asked for."""
        if not self.parameters.count:
            return total
        return np.append(total, COUNT_WEIGHT * self.parameters.gradient_clip * float(used.sum()))
