"""What the training methods fill in where a study leaves it open: models, norms, travels and rates."""

from __future__ import annotations

from dataclasses import replace

from veilsum_coordinator.parts.base import Inputs
from veilsum_coordinator.parts.moment_plans import resolved_clip
from veilsum_coordinator.parts.server_optimisers import OptimiserParameters
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.models import ModelSpec
from veilsum_privacy.training.models.perceptrons import Perceptron

CONVEX_CLIP, CONVEX_BIAS, CENTRED_BIAS, CONVEX_TRAVEL = 0.1, 0.3, 0.1, 50.0
"""Gradient norm, constant of the bias and travel of linear models on features of norm 1 at most: the best of sweeps over four
data sets and several epsilons (docs/results.md). A small clip leaves of the gradient little more than its direction."""

TWO_CLASS_TRAVEL = 30.0
"""Of linear models of two classes: by area under the ROC curve, over eleven data sets (docs/results.md)."""

NETWORK_RATE, TRAVEL = 4.0, 15.0
"""Learning rate without noise, and travel, of other models at a gradient norm of 1."""

OUTCOME_CLIP, COUNT_CLIP, OUTCOME_TRAVEL = 0.2, 0.3, 10.0
"""Gradient norm of models of numbers and times, of counts, whose tails are longer, and their travel (decision 55)."""


def feature_clip(inputs: Inputs) -> float:
    """A norm that hardly a record's features exceed, with noise or without.

    Raises:
        ConfigurationError: a program makes the features, whose scale nobody can know.
    """
    return resolved_clip(None, replace(inputs, private=False))


def default_model(inputs: Inputs, clip: float, *, centred: bool) -> ModelSpec:
    """A linear softmax classifier on features scaled to a norm of about 1."""
    scale = 1.0 / clip if inputs.encoder is None or isinstance(inputs.encoder, Program) else 1.0
    return ModelSpec(name="linear", options={"scale": scale, "bias": CENTRED_BIAS if centred else CONVEX_BIAS})


def default_gradient_clip(outcome: Outcome | None, *, convex: bool) -> float:
    """Gradient norm where none is stated."""
    if outcome is not None:
        return COUNT_CLIP if outcome.loss == "poisson" else OUTCOME_CLIP
    return CONVEX_CLIP if convex else 1.0


def default_travel(scores: int, *, convex: bool) -> float:
    """Travel where none is stated."""
    if not convex:
        return TRAVEL
    return CONVEX_TRAVEL if scores > 2 else TWO_CLASS_TRAVEL


def default_rate(optimiser: OptimiserParameters, *, convex: bool) -> float:
    """Learning rate on the mean clipped gradient where none is stated."""
    if optimiser.name != "sgd":
        return 0.05
    return (256.0 if convex else NETWORK_RATE) * (1.0 - optimiser.momentum)


def stable_rate(architecture: Perceptron, curvature: float, spread: float, count: float) -> float:
    """Learning rate on a sum over so many records at which gradient descent is stable.

    It is 1 over the number of records, the loss's curvature and the squared norm of what all layers are given: features of
    mean square ``spread``, and of a hidden layer what random weights make of them.
    """
    squares = architecture.scale**2 * spread
    given = 0.0
    for layer in architecture.layers():
        given += squares + layer.constant**2
        outputs, inputs = architecture.shapes()[layer.weight]
        squares *= outputs / inputs
    return 1.0 / (max(count, 1.0) * max(curvature, 1e-6) * given)
