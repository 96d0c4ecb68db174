"""What methods that train share: defaults, and models as results and checkpoints say them.

A result states a linear head or a perceptron by its layers, any other model by its architecture's name; a checkpoint is an
intermediate model with the application that the finished one will have.

Models, norms, travels and rates are filled in where a study leaves them open. A record's gradient counts by its class: rare
classes weigh more, by released frequencies or a stated table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.alignment import LINEAR, study_result
from veilsum_coordinator.parts.base import Inputs, resolved_clip
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_node.errors import ConfigurationError, HostileInput, VeilsumError, told_as
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.tasks.features import CENTRE
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.arrays import MODEL, from_broadcast, to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.server_steps import RARITY, OptimiserParameters, rarity_weights, stated_weights


def resolved_model(spec: ModelSpec, width: int, classes: int, what: str) -> ModelSpec:
    """The model with every option stated.

    Raises:
        ConfigurationError: it does not suit features and classes; the message says why.
    """
    with told_as(ConfigurationError, HostileInput, what=what):
        resolved = resolve_model(spec)
        build_architecture(resolved, width, classes)
    return resolved


def network_head(
    architecture: Architecture, arrays: Mapping[str, Floats], centre: Floats | None = None
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """A trained model as an application's head, and the result's arrays.

    Perceptrons are given by their layers, with scale and bias constants multiplied in, so that no reader needs this package.

    Args:
        centre: (d,) what was taken off the features before the first layer of a perceptron; its bias takes that up.
    """
    if not isinstance(architecture, Perceptron):
        spec = ModelSpec(
            name=architecture.name, inputs=architecture.inputs, options=architecture.options.model_dump(mode="json")
        )
        return {"kind": "network", "model": spec.model_dump(mode="json"), "prefix": MODEL}, to_broadcast(arrays)
    layers = [
        (_times(arrays[layer.weight], 1.0 if index else architecture.scale), _times(arrays[layer.bias], layer.constant))
        for index, layer in enumerate(architecture.layers())
    ]
    if centre is not None:
        layers[0] = layers[0][0], layers[0][1] - layers[0][0] @ centre
    if len(layers) == 1:
        return dict(LINEAR), {"weights": layers[0][0], "bias": layers[0][1], **to_broadcast(arrays)}
    names = [(f"head.{index}.weight", f"head.{index}.bias") for index in range(len(layers))]
    flat = {name: array for pair, layer in zip(names, layers, strict=True) for name, array in zip(pair, layer, strict=True)}
    head = {"kind": "mlp", "layers": [list(pair) for pair in names], "activation": "relu"}
    return head, {**flat, **to_broadcast(arrays)}


def _times(array: Floats, factor: float) -> Floats:
    """The array itself where the factor is 1, for it may be large."""
    return array if factor == 1.0 else array * factor


def checkpoint_due(every: int, number: int, last: int) -> bool:
    """Whether a model is kept after so many of ``last`` rounds; none after the last one, which is the result."""
    return every > 0 and number % every == 0 and number < last


def checkpoint_result(federation: Federation, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> Result:
    """A bundle of a model that its study is still training.

    It can be applied where the study's parameters name the model and sites do not align their features; other checkpoints
    hold the arrays alone.

    Args:
        arrays: ``model.<name>``, and what the study's features are centred by, as its rounds broadcast them.
    """
    study, plain = federation.study, Result(federation.study.method, summary, arrays)
    told, missing = study.parameters.get("model"), study.parameters.get("missing")
    centre = arrays.get(CENTRE) if study.parameters.get("centre") else None
    if study.parameters.get("centre") and centre is None:
        return plain
    aligned = any(task.parameters.get("alignment") is not None for task in study.tasks)
    if not isinstance(told, Mapping) or missing not in ("skip", "centre") or aligned:
        return plain
    try:
        architecture = build_architecture(ModelSpec.model_validate(told), study.width, len(study.data.classes))
        model = from_broadcast(arrays, architecture.shapes())
    except (VeilsumError, ValueError):  # the method keeps something else than the model that it was asked for
        return plain
    head, named = network_head(architecture, model, centre)
    return study_result(federation, summary, missing, head, {**arrays, **named}, study.data.classes)


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


def weights_of_classes(
    asked: str | Mapping[str, float] | None, classes: Sequence[str], means: Release | None
) -> Floats | None:
    """Weights (K,) from 0 to 1, or None where all records count alike.

    Args:
        means: of :func:`.centre_plan`, by class, where weights follow from frequencies.
    """
    if asked is None or asked == "none":
        return None
    if isinstance(asked, str):
        return None if means is None else rarity_weights(means.values["count"], means.noise_std["count"], RARITY[asked])
    return np.array(stated_weights(asked, classes, "fedsgd"))
