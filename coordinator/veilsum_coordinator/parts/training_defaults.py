"""What the training methods fill in where a study leaves it open: models, norms, travels and rates.

How much a record's gradient counts, by its class: rare classes weigh more, by released frequencies or a stated table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.moment_plans import resolved_clip
from veilsum_coordinator.parts.server_optimisers import OptimiserParameters
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.models import ModelSpec
from veilsum_privacy.training.models.perceptrons import Perceptron

RARITY = {"sqrt": 0.5, "balanced": 1.0}
"""Powers of :func:`.rarity_weights`, by what a study asks for."""

CONVEX_CLIP, CONVEX_BIAS, CENTRED_BIAS, CONVEX_TRAVEL = 0.1, 0.3, 0.1, 50.0
"""Gradient norm, constant of the bias and travel of linear models on features of norm 1 at most: the best of sweeps over four
data sets and several epsilons (docs/results.md). A small clip leaves of the gradient little more than its direction."""

TWO_CLASS_TRAVEL = 30.0
"""Travel of linear models of two classes: chosen by area under the ROC curve, over eleven data sets (docs/results.md)."""

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


def resolved_class_weights(
    asked: str | Mapping[str, float] | None, inputs: Inputs, *, counted: bool
) -> str | Mapping[str, float]:
    """Class weights as a compiled study states them.

    Args:
        asked: the parameter.
        counted: whether a centre is released, with which classes are counted.

    Raises:
        ConfigurationError: a table of other classes, or frequencies that no release tells.
    """
    if asked is None:
        return "sqrt" if counted else "none"
    if isinstance(asked, str):
        if asked in RARITY and not counted:
            raise ConfigurationError(
                f"fedsgd's class_weights = \"{asked}\" needs the classes' frequencies, which come with a centre.",
                "State the weights in a table by class, or leave them out.",
            )
        return asked
    stated_weights(asked, inputs.classes, "fedsgd")
    return asked


def stated_weights(asked: Mapping[str, float] | None, classes: Sequence[str], method: str) -> tuple[float, ...]:
    """A table of class weights in the order of the classes, its largest 1; empty without one.

    Raises:
        ConfigurationError: it is of other classes.
    """
    if asked is None:
        return ()
    if set(asked) != set(classes):
        raise ConfigurationError(
            f"The table class_weights of {method} must give each class of the label a weight.",
            f"Give one to each of {', '.join(classes)}." if classes else "Add a [label] table with classes.",
        )
    return tuple(float(asked[name]) / max(map(float, asked.values())) for name in classes)


def weights_of_classes(
    asked: str | Mapping[str, float] | None, classes: Sequence[str], means: Release | None
) -> Floats | None:
    """Weights (K,) from 0 to 1, or None where all records count alike.

    Args:
        asked: resolved.
        means: of :func:`.centre_plan`, by class, where weights follow from frequencies.
    """
    if asked is None or asked == "none":
        return None
    if isinstance(asked, str):
        return None if means is None else rarity_weights(means, RARITY[asked])
    return np.array(stated_weights(asked, classes, "fedsgd"))


def rarity_weights(release: Release, power: float) -> Floats:
    """Weights (K,) of classes by their noised counts: (smallest count / count)^power, the rarest class's being 1.

    The smallest count is taken two standard deviations of its noise larger, so that where classes may well be alike they count
    alike.

    Args:
        release: of :func:`centre_plan` by class.
        power: 1 makes all classes weigh alike, 1/2 goes half of the way.
    """
    noise = release.noise_std["count"]
    counts = np.maximum(release.values["count"], max(noise, 1.0))
    weights: Floats = np.minimum(1.0, (float(counts.min()) + 2.0 * noise) / counts) ** power
    return weights
