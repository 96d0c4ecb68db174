"""Local training: stochastic gradient descent at one site, in epochs without noise, or in noised steps.

A model is one flat vector here. Gradients without noise are means over a batch: of perceptrons under cross-entropy in closed
form, of other models or losses by autograd. Gradients with noise are sums of clipped gradients of a sample, noised, over a
public number of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.steps import Mask, Steps
from veilsum_privacy.mechanism.units import Faults, Rows, together
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.arrays import flatten, load, unflatten
from veilsum_privacy.training.batches import array, compute_module, one_thread, tensor
from veilsum_privacy.training.gradients import clipped_gradient_sum, clipped_outcome_sum
from veilsum_privacy.training.losses import OutcomeLoss
from veilsum_privacy.training.mlp import Descent, gradients
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.objectives.base import LocalObjective

Labels = NDArray[np.int64]
Targets = NDArray[Any]
"""Labels (n,) int64 from 0 to K - 1, or outcomes (n, t) float64."""

MeanGradient = Callable[[Floats, Floats, Targets], Floats]
"""A model (P,), features (n, d) and targets of n records, n positive, to the gradient (P,) of the mean loss."""


class Descended(NamedTuple):
    """What training came to.

    Attributes:
        end: the model (P,); not always finite.
        gradient: mean over the steps of the records' mean gradient (P,), without pull and decay; zeros where there was none.
        steps: how many were taken.
    """

    end: Floats
    gradient: Floats
    steps: int


class Sample(NamedTuple):
    """The records of a site that take part in training, and how a step draws from them.

    Attributes:
        x, labels: (n, d), and :data:`Targets`.
        subjects: (n,), where the unit of privacy is the subject.
        expected: public number of records that a step is expected to draw.
    """

    x: Floats
    labels: Targets
    subjects: Labels | None
    expected: float

    def take(self, rows: Rows) -> Sample:
        """Some of the records."""
        subjects = None if self.subjects is None else self.subjects[rows]
        return Sample(self.x[rows], self.labels[rows], subjects, self.expected)

    def joined(self, other: Sample) -> Sample:
        """These records and then others of the same site."""
        subjects = None
        if self.subjects is not None and other.subjects is not None:
            subjects = np.concatenate([self.subjects, other.subjects])
        return Sample(np.concatenate([self.x, other.x]), np.concatenate([self.labels, other.labels]), subjects, self.expected)

    def draw(self, steps: Steps) -> Sample:
        """A Poisson sample, at the rate of ``steps``."""
        taken: Mask = steps.sample(len(self.x), self.subjects)
        return self.take(taken)


class _Walk:
    """A model on its way: momentum, decay and the objective's pull."""

    def __init__(self, start: Floats, descent: Descent, objective: LocalObjective) -> None:
        self.theta = start.copy()
        self._descent, self._objective = descent, objective
        self._speed, self._sum, self.steps = np.zeros_like(start), np.zeros_like(start), 0

    def step(self, gradient: Floats) -> None:
        """v <- momentum v + gradient + pull + decay theta; theta <- theta - learning_rate v."""
        self._sum += gradient
        self.steps += 1
        whole = gradient
        if self._objective.pull is not None:
            whole = whole + self._objective.pull(self.theta)
        if self._descent.decay:
            whole = whole + self._descent.decay * self.theta
        self._speed = self._descent.momentum * self._speed + whole
        self.theta = self.theta - self._descent.learning_rate * self._speed

    def done(self) -> Descended:
        return Descended(self.theta, self._sum / max(self.steps, 1), self.steps)


def descend(
    start: Floats,
    x: Floats,
    labels: Targets,
    gradient: MeanGradient,
    objective: LocalObjective,
    descent: Descent,
    rng: np.random.Generator,
    faults: Faults | None = None,
) -> Descended:
    """Epochs over shuffled batches, without noise; the start where there are no records.

    Args:
        start: the model (P,).
        x, labels: the records (n, d), and :data:`Targets`.
        gradient: from :func:`mean_gradient`.
        objective: of the round; of it the pull is used here.
        descent: how to train.
        rng: source of the order of records.
        faults: takes note of records that the gradient fails on, which are left out; None to raise it.
    """
    walk = _Walk(start, descent, objective)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(descent.epochs):
            order = rng.permutation(len(x))
            for first in range(0, len(x), descent.batch):
                rows = order[first : first + descent.batch]
                walk.step(_mean(gradient, walk.theta, x[rows], labels[rows], faults))
    return walk.done()


def _mean(gradient: MeanGradient, theta: Floats, x: Floats, labels: Targets, faults: Faults | None) -> Floats:
    """The gradient of a batch, without records that it fails on."""

    def of(rows: Rows) -> Floats:
        return gradient(theta, x[rows], labels[rows]) if len(x[rows]) else np.zeros_like(theta)

    return together(of, len(x), None, faults)


def descend_noised(
    start: Floats,
    sample: Sample,
    architecture: Architecture,
    objective: LocalObjective,
    descent: Descent,
    clip: float,
    steps: Steps,
    number: int,
    class_weights: Sequence[float] = (),
    outcome: OutcomeLoss | None = None,
) -> Descended:
    """Exactly ``number`` steps of DP-SGD. Nothing but the noised sums of ``steps`` depends on the records.

    A step draws a Poisson sample, adds up its records' gradients, each clipped to ``clip``, has the sum noised, and divides it
    by the expected number of records, which is public, in place of the true one.

    Args:
        start: the model (P,).
        sample: all of the site's records.
        architecture: of the model.
        objective: of the round; its loss is a record's own.
        descent: learning rate, momentum and decay.
        clip: C.
        steps: the framework's.
        number: of steps.
        class_weights: (K,) in [0, 1], what a record's clipped gradient is multiplied by; empty for 1.
        outcome: the loss, where the sample has outcomes in place of labels.
    """
    clipped_sum = _clipped_sum(architecture, objective, clip, class_weights, outcome)
    walk, shapes = _Walk(start, descent, objective), architecture.shapes()
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(number):
            drawn, arrays = sample.draw(steps), unflatten(walk.theta, shapes)
            if not np.isfinite(walk.theta).all():  # of noised steps only; the declared steps are taken all the same
                arrays = unflatten(start, shapes)

            def of(rows: Rows, arrays: Mapping[str, Floats] = arrays, drawn: Sample = drawn) -> Floats:
                return clipped_sum(arrays, drawn.take(rows))

            walk.step(steps.noised(steps.summed(of, len(drawn.x), drawn.subjects)) / sample.expected)
    return walk.done()


def _clipped_sum(
    architecture: Architecture,
    objective: LocalObjective,
    clip: float,
    class_weights: Sequence[float],
    outcome: OutcomeLoss | None,
) -> Callable[[Mapping[str, Floats], Sample], Floats]:
    """A model's arrays and a sample to the sum (P,) of its clipped gradients. A loss's engine is made and checked once."""
    if outcome is not None:
        perceptron = _perceptron_of_outcomes(architecture, objective)
        return lambda arrays, drawn: (
            clipped_outcome_sum(
                perceptron,
                arrays,
                drawn.x,
                drawn.labels,
                np.ones(len(drawn.x), dtype=np.bool_),
                outcome,
                clip,
                groups=drawn.subjects,
            ).total
        )
    loss, weights_of = objective.loss, _weights_of(class_weights)
    if loss is None:
        return lambda arrays, drawn: (
            clipped_gradient_sum(
                architecture, arrays, drawn.x, drawn.labels, clip, groups=drawn.subjects, weights=weights_of(drawn.labels)
            ).total
        )
    from veilsum_privacy.training.per_record import PerRecordGradients  # with Opacus, which takes seconds

    module = compute_module(architecture)
    engine = PerRecordGradients(module)

    def clipped_sum(arrays: Mapping[str, Floats], drawn: Sample) -> Floats:
        load(module, arrays)
        names = np.where(drawn.labels < architecture.classes, drawn.labels, -1)
        weights = weights_of(drawn.labels)
        return engine.clipped_sum(lambda x, y: loss(module, x, y), drawn.x, names, clip, drawn.subjects, weights).total

    return clipped_sum


def _weights_of(class_weights: Sequence[float]) -> Callable[[Labels], Floats | None]:
    """Labels (n,) from 0 to K - 1 to the records' weights (n,); to None where all are 1."""
    table = np.array(class_weights, dtype=np.float64)
    return lambda labels: table[labels] if len(table) else None


def _perceptron_of_outcomes(architecture: Architecture, objective: LocalObjective) -> Perceptron:
    if not isinstance(architecture, Perceptron) or objective.loss is not None or objective.penalty is not None:
        raise Misuse("Outcomes are trained on by models linear and mlp, under objectives without a loss of their own.")
    return architecture


def mean_gradient(
    architecture: Architecture,
    objective: LocalObjective,
    class_weights: Sequence[float] = (),
    outcome: OutcomeLoss | None = None,
) -> MeanGradient:
    """The gradient of the mean loss of a batch, with the objective's loss and penalty, or of an outcome's loss.

    With ``class_weights`` (K,) a record's loss is multiplied by its class's; the mean is over the records all the same.
    """
    if outcome is not None:
        return _outcome_gradient(_perceptron_of_outcomes(architecture, objective), outcome)
    weights_of = _weights_of(class_weights)
    if isinstance(architecture, Perceptron) and objective.loss is None and objective.penalty is None:
        return _perceptron_gradient(architecture, weights_of)
    return _network_gradient(architecture, objective, weights_of)


def _outcome_gradient(architecture: Perceptron, outcome: OutcomeLoss) -> MeanGradient:
    shapes = architecture.shapes()

    def gradient(theta: Floats, x: Floats, outcomes: Targets) -> Floats:
        arrays = unflatten(theta, shapes)
        parts = closed_form.factors(architecture, arrays, x, lambda scores: outcome.gradient(scores, outcomes))
        alike = np.full(len(x), 1.0 / len(x))
        named = {name: values.reshape(shapes[name]) for part in parts for name, values in part.weighted(alike).items()}
        return flatten(named, shapes)

    return gradient


def _perceptron_gradient(architecture: Perceptron, weights_of: Callable[[Labels], Floats | None]) -> MeanGradient:
    shapes, layers = architecture.shapes(), architecture.layers()

    def gradient(theta: Floats, x: Floats, labels: Labels) -> Floats:
        arrays = unflatten(theta, shapes)
        flat: list[Floats] = []
        for layer in layers:
            flat += [arrays[layer.weight], layer.constant * arrays[layer.bias]]
        found = gradients(flat, architecture.scale * x, labels, weights_of(labels))[1]
        named: dict[str, Floats] = {}
        for index, layer in enumerate(layers):
            named |= {layer.weight: found[2 * index], layer.bias: layer.constant * found[2 * index + 1]}
        return flatten(named, shapes)

    return gradient


def _network_gradient(
    architecture: Architecture, objective: LocalObjective, weights_of: Callable[[Labels], Floats | None]
) -> MeanGradient:
    import torch
    from torch.nn import functional

    module, shapes = compute_module(architecture), architecture.shapes()
    parameters = dict(module.named_parameters())

    def gradient(theta: Floats, x: Floats, labels: Labels) -> Floats:
        load(module, unflatten(theta, shapes))
        given, names = tensor(x, module), tensor(labels, module, torch.int64)
        with one_thread():
            if objective.loss is None:
                losses = functional.cross_entropy(module(given), names, reduction="none")
            else:
                losses = objective.loss(module, given, names)
            weights = weights_of(labels)
            loss = losses.mean() if weights is None else (losses * tensor(weights, module)).mean()
            if objective.penalty is not None:
                loss = loss + objective.penalty(module, given, names)
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        named = {
            name: np.zeros(shapes[name]) if values is None else array(values)
            for name, values in zip(parameters, found, strict=True)
        }
        return flatten(named, shapes)

    return gradient
