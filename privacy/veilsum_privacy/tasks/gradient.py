"""The task "gradient": the sum of the records' clipped gradients of a broadcast model, one step of DP-SGD."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, told_as
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.factors import Entries, Products
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, every, finite, joined, lookup, only, symbol, where
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.base import FactorTask, Task
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS, centre_of, class_weights
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.outcome_rows import parted, targets
from veilsum_privacy.tasks.outcomes import Outcome, outcome_model
from veilsum_privacy.tasks.parameters import PartParameters
from veilsum_privacy.training.arrays import MODEL, from_broadcast, to_broadcast
from veilsum_privacy.training.gradients import ModelGradient
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.server_steps import ServerSteps, stated_weights
from veilsum_privacy.training.sketches import GradientProjection, Sketches

COUNT_WEIGHT = 2.0**-7
"""Weight of the count against C: small, so that it hardly lengthens a record's vector."""

SLACK = 2.0 * 2**24 * (unit := (3 + 1024 + 256 + 2**16 + 1) * 2.0**-53) / (1.0 - unit)
"""A share of C that ``clip()`` is above it: what rounding could add to sums of 2^24 records in floating point. Sums are exact
now; it stays in the unit of a sum, by which results of studies signed before are verified."""


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
        steps: how the broadcast follows from the releases before it, where every member takes the steps itself
            (:mod:`~veilsum_privacy.tasks.followed`); None where it takes what the coordinator sends.
        projection: how a record's gradient is projected before it is clipped, by the draw that is broadcast
            (:mod:`~veilsum_privacy.training.sketches`); None for gradients as they are.
    """

    model: ModelSpec
    gradient_clip: Real = Field(ge=1e-9, le=1e6)
    centre: bool = False
    count: bool = False
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    class_weights: bool = Field(default=False, exclude_if=lambda asked: not asked)  # studies signed before do not state it
    steps: ServerSteps | None = Field(default=None, exclude_if=lambda stated: stated is None)
    projection: GradientProjection | None = Field(default=None, exclude_if=lambda stated: stated is None)


class TrainedRecord(NamedTuple):
    """A record as a model is trained on it.

    Attributes:
        x: the features that the model is given, finite.
        target: its class (), or its outcome (t,).
        used: whether it counts.
    """

    x: Symbol
    target: Symbol
    used: Symbol


def trained_record(
    parameters: PartParameters,
    outcome: Outcome | None,
    schema: DatasetSchema,
    classes: int,
    record: Record,
    centre: Floats | None = None,
) -> TrainedRecord:
    """A record's features, clipped, less ``centre``, and what a model is to tell of them.

    Raises:
        Misuse: the record has no label.
    """
    known = symbol(np.True_)
    if outcome is not None:
        told = targets(outcome, record, schema)
        record, _, known = parted(outcome, record, schema)
    elif record.label is not None:
        told = record.label
    else:
        raise Misuse("A model of classes needs labelled records.")
    used = known & usable(parameters, record, classes if outcome is None else None)
    x = clipped(parameters, record, used)
    if centre is not None:
        x = x - centre
    used = used & every(finite(x))
    return TrainedRecord(where(used, x, 0.0), only(told, used), used)


class Gradient(FactorTask[GradientParameters]):
    """Sum over the sampled records of the gradient of the cross-entropy, or an outcome's loss, each clipped to a norm of C.

    Blocks: the model's arrays, ``model.<name>``, all of weight 1, and ``count`` (1,) if asked for; with a projection those of
    a gradient's sketch, which is what is clipped. The broadcast holds the model in arrays of these names.

    The sum is over whichever records the framework's Poisson sample took; nothing is divided by their number. A record that
    does not count, by its label, a missing feature or a gradient that is not finite, adds zero. With class weights, which the
    broadcast holds as :data:`.features.CLASS_WEIGHTS`, a record's clipped gradient is multiplied by its class's.

    A subject's gradients are added and pulled in again, as far as ``clip()`` says: that is C but for some 2e-4, the slack of
    sums in floating point of studies signed before, whose units stay what they were.
    """

    name = "gradient"
    architecture: Architecture

    def __init__(self, parameters: GradientParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        outcome = parameters.outcome
        self._loss: OutcomeLoss | None = None
        if outcome is not None:
            self._loss, self.dimension = outcome_model(parameters, outcome, parameters.model, schema)
            if parameters.class_weights:
                raise Misuse("The task gradient weighs classes, which an outcome has not.", "Leave class_weights out.")
            if parameters.projection is not None:
                raise Misuse("The task gradient projects gradients by classes only.", "Leave the projection out.")
        elif len(schema.classes) < 2:
            raise Misuse("The task gradient needs a label with two classes or more.", "Add a [label] table with classes.")
        self._classes = len(schema.classes) if self._loss is None else self._loss.scores
        with told_as(Misuse, HostileInput):
            check_resolved(parameters.model)
            self.architecture = build_architecture(parameters.model, self.dimension, self._classes)
        self._gradient = ModelGradient(self.architecture, outcome=self._loss)
        self.sketches = Sketches(self.architecture.shapes(), parameters.projection)

    def check(self, declared: TaskDeclaration, study: Study, source: Task[Any] | None) -> None:
        super().check(declared, study, source)
        if self.parameters.steps is not None:
            self._check_steps_declared(declared, study, self.parameters.steps)

    def _check_steps_declared(self, declared: TaskDeclaration, study: Study, steps: ServerSteps) -> None:
        """Insist that all that the study's rounds broadcast follows from its releases by what it declares."""
        p, what = self.parameters, f"Task {declared.label!r} declares its steps"
        before = [other for other in study.tasks if other.label != declared.label]
        by_classes = isinstance(steps.class_weights, str) and steps.class_weights != "none"
        if study.privacy.noise == "none" or p.count:
            raise HostileInput(f"{what}, which only a study with noise does.")
        if p.outcome is not None or p.alignment is not None or isinstance(study.encoder, Projection):
            raise HostileInput(f"{what}, which a study of outcomes, aligned features or a projection does not.")
        if [other.task for other in before] != ["feature-means"] * bool(p.centre) or study.tasks[-1].label != declared.label:
            raise HostileInput(f"{what}: it takes a release of means before it if features are centred, and no other.")
        if any(other.releases != 1 or other.disclosure != "joint" for other in before):
            raise HostileInput(f"{what}: means are released once, as one sum.")
        if p.class_weights != (steps.class_weights != "none") or by_classes > any(
            other.parameters.get("classes") for other in before
        ):
            raise HostileInput(f"{what} with other class weights than it computes by, or than its means tell.")
        if steps.steps != declared.releases or (steps.travel is None) == (steps.optimiser.learning_rate is None):
            raise HostileInput(f"{what}, but another number of them than of its releases, or not one learning rate.")
        if not isinstance(steps.class_weights, str):
            with told_as(HostileInput, ConfigurationError, what=what):
                stated_weights(steps.class_weights, self.schema.classes, "a study")

    def layout(self) -> Layout:
        blocks = [Block(MODEL + name, shape) for name, shape in self.sketches.shapes().items()]
        if self.parameters.count:
            blocks.append(Block("count", (1,), COUNT_WEIGHT * self.parameters.gradient_clip))
        return Layout(tuple(blocks))

    def only_without_noise(self) -> str | None:
        return "adds up how many records there are" if self.parameters.count else None

    def clip(self) -> float:
        longer = math.hypot(1.0, COUNT_WEIGHT) if self.parameters.count else 1.0
        return self.parameters.gradient_clip * longer * (1.0 + SLACK)

    def products(self) -> Products:
        p = self.parameters
        counted = (Entries(1, apart=COUNT_WEIGHT * p.gradient_clip),) if p.count else ()
        return Products((*self.sketches.terms(self._gradient.terms), *counted), p.gradient_clip, p.class_weights)

    def single_arrays(self) -> frozenset[str]:
        return frozenset(to_broadcast(self.architecture.shapes()))

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        centre = {CENTRE: np.zeros(self.dimension)} if self.parameters.centre else {}
        weights = {CLASS_WEIGHTS: np.ones(self._classes)} if self.parameters.class_weights else {}
        return {**to_broadcast(self.architecture.initial(0)), **centre, **weights, **self.sketches.broadcast(0, 1)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p = self.parameters
        centre = centre_of(broadcast, self.dimension) if p.centre else None
        x, target, used = trained_record(p, p.outcome, self.schema, self._classes, record, centre)
        sketch, whole = self.sketches.sketch(broadcast), self._gradient.row(self._arrays(broadcast), x, target)
        parts = [sketch.factors(self._gradient.terms, whole)]
        if p.class_weights:
            parts.insert(0, lookup(class_weights(broadcast, self._classes), target))
        if p.count:
            parts.append(symbol(COUNT_WEIGHT * p.gradient_clip))
        return only(joined(*parts) if len(parts) > 1 else parts[0], used)

    def maps(self, broadcast: Mapping[str, Floats]) -> Mapping[str, OpaqueMap]:
        return self._gradient.maps(self._arrays(broadcast))

    def _arrays(self, broadcast: Mapping[str, Floats]) -> dict[str, Floats]:
        return from_broadcast(broadcast, self.architecture.shapes())
