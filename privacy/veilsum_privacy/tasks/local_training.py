"""The task "local-training": a site trains the broadcast model on its own records for one round and reports what changed.

Without noise it trains in epochs. With noise it takes the declared number of DP-SGD steps: it asks for sums of clipped
gradients and is sent each with the site's own noise in it. It holds no record, so the trained model, what the objective
exchanges, and what the site keeps for its next round are made of noised sums and public values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Real
from veilsum_privacy.computation.weights import WEIGHTS
from veilsum_privacy.mechanism.factors import Entries, Products
from veilsum_privacy.mechanism.requests import MapAt
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined, lookup, only, opaque, real, record_of, traced
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, Request, Trained, Training, TrainingTask
from veilsum_privacy.tasks.generation import DIRECTIONS, MOST_GENERATED, PROTOTYPES, USE, Generation, finite_array
from veilsum_privacy.tasks.gradient import SLACK, TrainedRecord, trained_record
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.outcomes import Outcome, outcome_model
from veilsum_privacy.tasks.parameters import PartParameters
from veilsum_privacy.training.arrays import MODEL, flatten, from_broadcast, to_broadcast, unflatten
from veilsum_privacy.training.descent import Descended, descend_noised
from veilsum_privacy.training.gradients import ModelGradient
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.mlp import Descent
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.objectives import ObjectiveSpec, build_objective
from veilsum_privacy.training.objectives.base import Done, LocalObjective, Received, RecordRows, scaled_to

if TYPE_CHECKING:
    from veilsum_privacy.training.epochs import Targets

SEEDS = "training.seeds"
"""Broadcast array (sites, 2): each site's seed of the order of records, and its seed of generation; whole numbers."""

OF_OUTCOMES = ("none", "prox", "scaffold", "dyn")
"""Objectives that outcomes are trained under: those whose loss is the record's own."""

WEIGHT, STEPS = "weight", "steps"
"""Blocks (1,): the site's weight, and that weight times how many steps it took, where updates are normalised."""


class LocalTrainingParameters(PartParameters):
    """Parameters of :class:`LocalTraining`; all public and independent of the data.

    Attributes:
        model: what is trained, every option stated.
        objective: of the training, every option stated.
        epochs, batch: without noise, see :class:`veilsum_privacy.training.mlp.Descent`.
        learning_rate, momentum, decay: with noise and without.
        noise_step: None, or with noise the learning rate at which a step's noise moves each value by this standard deviation.
        norm: L2 norm N that an update is scaled down to if it exceeds it.
        weighting: of a site's update: ``equal``; by its ``records``, without noise only; or ``public``, by the weight that the
            broadcast gives it (:mod:`veilsum_privacy.computation.weights`).
        normalised: an update is divided by how many steps it took (FedNova).
        local_steps: steps of DP-SGD in a round, with noise.
        gradient_clip: C, L2 norm that a record's gradient is scaled down to, with noise.
        expected_records: records that a site is taken to have: with the sampling rate, what a step's sum is divided by.
        generation: None for none; without noise only.
        outcome: what is trained on in place of classes; as of :class:`.gradient.GradientParameters`. The learning rate is then
            the largest that a noised step takes.
        class_weights: (K,), the largest 1, what a record's gradient is multiplied by, clipped before with noise; empty for 1.
    """

    model: ModelSpec
    objective: ObjectiveSpec
    epochs: int = Field(ge=1, le=1000)
    batch: int = Field(ge=1, le=2**20)
    learning_rate: Real = Field(gt=0, le=1e6)
    momentum: Real = Field(ge=0, lt=1)
    decay: Real = Field(ge=0, le=1e6)
    noise_step: Real | None = Field(default=None, gt=0, le=1e6)
    norm: Real = Field(gt=0, le=1e9)
    weighting: Literal["equal", "records", "public"]
    normalised: bool
    local_steps: int = Field(ge=1, le=100_000)
    gradient_clip: Real = Field(ge=1e-9, le=1e6)
    expected_records: int = Field(ge=1, le=2**40)
    generation: Generation | None = None
    # studies signed before do not state these
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    class_weights: tuple[Annotated[Real, Field(gt=0, le=1)], ...] = Field(default=(), exclude_if=lambda given: not given)

    @property
    def descent(self) -> Descent:
        """How the model is trained."""
        return Descent(self.epochs, self.batch, self.learning_rate, self.momentum, self.decay)


class LocalTraining(TrainingTask[LocalTrainingParameters]):
    """What local training changes in the broadcast model, scaled down to a norm of N.

    Blocks: ``model.<name>`` for each array of the model; the objective's own; ``steps`` (1,) where updates are normalised;
    ``weight`` (1,). The broadcast holds the model in arrays of these names. The sum of updates over the sum of weights is the
    mean update. A site that has nothing to train on, or whose training ends in something that is not finite, changes nothing.

    With noise it asks for sums of gradients, or, once a round for objectives that need it, of rows of norm 1, times C. The
    kernel samples, clips to C, multiplies by a class's weight of at most 1, adds and noises. Everything else (momentum, decay,
    pull, the bound on the update, the division by the expected number of records) is computed from noised sums, broadcasts
    and earlier state.

    The order of records and what is generated come from public seeds. They protect nothing.
    """

    name = "local-training"
    architecture: Architecture

    def __init__(self, parameters: LocalTrainingParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        self._asked: tuple[bytes, Request] | None = None
        self.loss: OutcomeLoss | None = None
        if parameters.outcome is not None:
            self.loss, self.dimension = outcome_model(parameters, parameters.outcome, parameters.model, schema)
            if parameters.class_weights or parameters.generation or parameters.objective.name not in OF_OUTCOMES:
                advice = f"Take an objective of {', '.join(OF_OUTCOMES)}, and neither class weights nor generated samples."
                raise Misuse("The task local-training knows outcomes under few objectives only.", advice)
        elif len(schema.classes) < 2:
            advice = "Add a [label] table with classes."
            raise Misuse("The task local-training needs a label with two classes or more.", advice)
        self.classes = len(schema.classes) if self.loss is None else self.loss.scores
        if parameters.class_weights and len(parameters.class_weights) != self.classes:
            raise Misuse(f"The task local-training needs a weight for each of {self.classes} classes, or none.")
        self._most = schema.max_records
        width = self.dimension
        check_resolved(parameters.model)
        self.objective = build_objective(parameters.objective, build_architecture(parameters.model, width, self.classes))
        self.architecture = self.objective.trained()
        generation = parameters.generation
        # Of what is public: a site that ran out of memory would tell how many records it has.
        if generation is not None and generation.most(self._most, self.classes) * width > MOST_GENERATED:
            raise Misuse(f"The task local-training would generate more than {MOST_GENERATED} values.", "Generate fewer.")

    def layout(self) -> Layout:
        norm = self.parameters.norm
        blocks = [Block(MODEL + name, shape) for name, shape in self.architecture.shapes().items()]
        # Every block is carried such that its values reach N, so that none is coarser on the grid than another.
        blocks += [Block(own.name, own.shape, norm / own.bound) for own in self.objective.blocks()]
        if self.parameters.normalised:
            blocks.append(Block(STEPS, (1,), norm / self._most_steps))
        return Layout((*blocks, Block(WEIGHT, (1,), norm)))

    @property
    def _most_steps(self) -> int:
        """Most steps of a round, with noise or without."""
        p = self.parameters
        samples = self._most if p.generation is None else self._most + p.generation.most(self._most, self.classes)
        return max(p.local_steps, p.epochs * -(-samples // p.batch))

    def clip(self) -> float:
        return self.parameters.norm

    def weighted(self) -> bool:
        return self.parameters.weighting == "public"

    def noised_sums(self) -> int:
        """Noised sums of a round: what a study with noise declares as the task's steps."""
        return self.parameters.local_steps + (1 if self.objective.row_size() else 0)

    def step_clip(self) -> float:
        return self.parameters.gradient_clip * (1.0 + SLACK)

    def step_size(self) -> int:
        return max(self.architecture.size, self.objective.row_size())

    def only_without_noise(self) -> str | None:
        p = self.parameters
        if p.weighting == "records":
            return "weighs a site by its number of records"
        if p.generation is not None and p.generation.fill is not None:
            return "copies a record the oftener, the fewer its class has"
        if p.generation is not None and p.generation.copies:
            return "trains on samples around its records, which are not clipped together"
        return self.objective.only_without_noise()

    def site_arrays(self) -> tuple[str, ...]:
        generation = self.parameters.generation
        return (SEEDS, USE) if generation is not None and generation.prototypes else (SEEDS,)

    def steers_sites(self) -> bool:
        # An honest coordinator's seeds are of orders of records, by which no site is told apart. A malicious one's are,
        # without noise, a case of a broadcast that it chooses (docs/threat-model.md).
        # Samples that a site generates act on its training.
        generation = self.parameters.generation
        own = self.parameters.alignment
        return (generation is not None and generation.prototypes > 0) or (own is not None and own.kind == "broadcast")

    def single_arrays(self) -> frozenset[str]:
        return frozenset({*to_broadcast(self.architecture.shapes()), *self.objective.broadcast()})

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        found = {**to_broadcast(self.architecture.initial(0)), SEEDS: np.zeros((sites, 2))}
        found |= {name: np.zeros(shape) for name, shape in self.objective.broadcast().items()}
        if self.parameters.weighting == "public":
            found[WEIGHTS] = np.ones(sites)
        if self.parameters.generation is not None:
            d = self.dimension
            found[DIRECTIONS] = np.zeros((self.classes, d, d))
            if self.parameters.generation.prototypes:
                found |= {PROTOTYPES: np.zeros((1, self.classes, d)), USE: np.zeros((sites, 1, self.classes))}
        return found

    def train(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], course: StepNoise) -> Training:
        if course.number != self.noised_sums():
            raise Misuse(f"The task local-training takes {self.noised_sums()} noised steps a round, not {course.number}.")
        p, received = self.parameters, self._received(broadcast, state)
        objective, descent = self.objective.begin(received), p.descent
        expected = max(1.0, course.rate * p.expected_records)
        if p.noise_step is not None:
            rate = float(p.noise_step) * expected / course.std_of(received.start.size)
            descent = replace(descent, learning_rate=rate if p.outcome is None else min(rate, descent.learning_rate))
        if objective.penalty is not None:
            raise Misuse("A penalty on a batch has no gradient by record to clip.")
        gradient = ModelGradient(self.architecture, outcome=self.loss, loss=objective.loss)

        begun = _digest(broadcast, state)

        def ask(theta: Floats) -> Request:
            """What is asked first is kept: trials of one round, as an audit's, all begin with it."""
            first = theta.tobytes() == received.start.tobytes()
            if first and self._asked is not None and self._asked[0] == begun:
                return self._asked[1]
            request = self._gradient_at(gradient, unflatten(theta, self.architecture.shapes()))
            if first:
                self._asked = begun, request
            return request

        found = yield from descend_noised(received.start, ask, objective, descent, p.local_steps, expected)
        found = self.bounded(received.start, found)
        total = np.zeros(self.objective.row_size())
        if objective.rows is not None:
            rows = MapAt(self._scaled(objective.rows(found.end)), found.end)
            total = (yield self._rows_of(rows, total.size)) / p.gradient_clip
        empty = np.zeros((0, self.dimension)), np.zeros(0, dtype=np.int64)
        return self.reported(received.start, found, 1.0, objective, total, *empty)

    def _gradient_at(self, gradient: ModelGradient, arrays: Mapping[str, Floats]) -> Request:
        """The sum of clipped gradients of a model."""
        record, weights = self.record, self.parameters.class_weights
        row = gradient.row(arrays, record.x, record.target)
        if weights:
            row = joined(lookup(np.array(weights, dtype=np.float64), record.target), row)
        products = Products(gradient.terms, self.parameters.gradient_clip, bool(weights))
        at = flatten(arrays, self.architecture.shapes())
        maps = {name: MapAt(compute, at) for name, compute in gradient.maps(arrays).items()}
        return Request(traced(only(row, record.used)), products, maps)

    def _rows_of(self, scaled: MapAt, size: int) -> Request:
        """The sum of an objective's rows, times C."""
        record, clip = self.record, self.parameters.gradient_clip
        row: Symbol = only(opaque(ROWS, joined(record.x, real(record.target)), size), record.used)
        return Request(traced(row), Products((Entries(size),), clip), {ROWS: scaled})

    def _scaled(self, rows: RecordRows) -> OpaqueMap:
        """An objective's rows, times C."""
        clip = self.parameters.gradient_clip
        return lambda given: clip * rows(given[:, :-1], given[:, -1].astype(np.int64))

    def maps_at(
        self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats]
    ) -> Callable[[Floats], Mapping[str, OpaqueMap]]:
        objective, shapes = self.objective.begin(self._received(broadcast, state)), self.architecture.shapes()
        gradient = ModelGradient(self.architecture, outcome=self.loss, loss=objective.loss)

        def maps(at: Floats) -> Mapping[str, OpaqueMap]:
            found = gradient.maps(unflatten(at, shapes))
            return found if objective.rows is None else {**found, ROWS: self._scaled(objective.rows(at))}

        return maps

    @property
    def record(self) -> TrainedRecord:
        """A record as the model is trained on it."""
        own = record_of(self.width, labelled=self.schema.label is not None)
        return trained_record(self.parameters, self.parameters.outcome, self.schema, self.classes, own)

    def _received(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats]) -> Received:
        shapes = self.architecture.shapes()
        start = flatten(from_broadcast(broadcast, shapes), shapes)
        order, generated = (_seed(seed) for seed in finite_array(broadcast, SEEDS, (2,)))
        return Received(start, broadcast, state, order, generated)

    def train_plainly(
        self,
        records: Records,
        broadcast: Mapping[str, Floats],
        state: Mapping[str, Floats],
        note: Callable[[Exception], object],
    ) -> Trained:
        from veilsum_privacy.tasks.plain_training import train_plainly  # which no study with noise loads

        return train_plainly(self, records, self._received(broadcast, state), note)

    def bounded(self, start: Floats, found: Descended) -> Descended:
        """With the start and the update, after its norm is bounded, as the end."""
        return found._replace(end=start + scaled_to(found.end - start, self.parameters.norm))

    def reported(
        self,
        start: Floats,
        found: Descended,
        share: float,
        objective: LocalObjective,
        total: Floats,
        x: Floats,
        labels: Targets,
    ) -> Trained:
        """The vector and the state. ``found.end`` is bounded; ``x`` and ``labels`` are empty with noise."""
        p = self.parameters
        gradient = np.where(np.isfinite(found.gradient).all(), found.gradient, 0.0)
        outcome = objective.finish(Done(found.end, gradient, total, x, labels))
        taken = max(found.steps, 1)
        update = found.end - start
        parts = [share * (update / effective_steps(taken, p.momentum) if p.normalised else update)]
        for own in self.objective.blocks():
            values = np.clip(np.nan_to_num(outcome.blocks[own.name].ravel(), nan=0.0), -own.bound, own.bound)
            parts.append(values * (p.norm / own.bound) * (share if own.weighted else 1.0))
        if p.normalised:
            parts.append(np.array([share * effective_steps(taken, p.momentum) * p.norm / self._most_steps]))
        parts.append(np.array([share * p.norm]))
        return Trained(np.concatenate(parts), outcome.state)


ROWS = "rows"
"""Name of the opaque map of an objective's rows."""


def effective_steps(steps: int, momentum: float) -> float:
    """How many gradients an update of so many steps is worth, divided by 1 / (1 - m) with momentum m (FedNova, section 4).

    A step's gradient counts 1 + m + m^2 + ... up to the last step; all of them together [t - m (1 - m^t) / (1 - m)] / (1 - m).
    Multiplied by 1 - m, so that it never exceeds the number of steps.
    """
    return steps - momentum * (1.0 - momentum**steps) / (1.0 - momentum)


def _seed(seed: float) -> int:
    if not (0.0 <= seed < 2.0**53 and seed == int(seed)):
        raise HostileInput(f"The seeds in {SEEDS} must be whole numbers from 0 to 2^53.")
    return int(seed)


def _digest(*given: Mapping[str, Floats]) -> bytes:
    """Digest of the arrays that training begins with."""
    said = blake2b()
    for place, arrays in enumerate(given):
        for name, array in sorted(arrays.items()):
            said.update(f"{place} {name} {array.dtype.str} {array.shape} ".encode())
            said.update(np.ascontiguousarray(array).tobytes())
    return said.digest()
