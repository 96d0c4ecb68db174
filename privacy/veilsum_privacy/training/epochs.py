"""Local training in epochs, in studies without noise: it holds the records, and no study with noise loads it.

Gradients are means over a batch: of perceptrons under cross-entropy and losses of outcomes in closed form, of other models or
losses by autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_privacy.training import closed_form
from veilsum_privacy.training.arrays import flatten, load, unflatten
from veilsum_privacy.training.batches import array, compute_module, one_thread, tensor
from veilsum_privacy.training.descent import Descended, Walk
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


def descend(
    start: Floats,
    x: Floats,
    labels: Targets,
    gradient: MeanGradient,
    objective: LocalObjective,
    descent: Descent,
    rng: np.random.Generator,
) -> Descended:
    """Epochs over shuffled batches, without noise; the start where there are no records.

    Args:
        start: the model (P,).
        x, labels: the records (n, d), and :data:`Targets`.
        gradient: from :func:`mean_gradient`.
        objective: of the round; of it the pull is used here.
        rng: source of the order of records.
    """
    walk = Walk(start, descent, objective)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(descent.epochs):
            order = rng.permutation(len(x))
            for first in range(0, len(x), descent.batch):
                rows = order[first : first + descent.batch]
                walk.step(gradient(walk.theta, x[rows], labels[rows]))
    return walk.done()


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
        found = closed_form.mean_gradient(architecture, arrays, x, lambda scores: outcome.gradient(scores, outcomes))
        return flatten(found, shapes)

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
