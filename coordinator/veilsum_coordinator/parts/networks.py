"""Trained models as results say them: a linear head or a perceptron by its layers, any other by its architecture's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.application import LINEAR
from veilsum_node.errors import ConfigurationError, HostileInput, told_as
from veilsum_privacy.training.arrays import MODEL, to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.perceptrons import Perceptron


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
        architecture: of the model.
        arrays: its values.
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


def without_centre(architecture: Architecture, arrays: Mapping[str, Floats], centre: Floats | None) -> Mapping[str, Floats]:
    """A model's arrays for features that no centre (d,) was taken off: the first bias of a perceptron takes that up."""
    if centre is None or not isinstance(architecture, Perceptron):
        return arrays
    first = architecture.layers()[0]
    shift = architecture.scale * arrays[first.weight] @ centre / first.constant
    return {**arrays, first.bias: arrays[first.bias] - shift}


def _times(array: Floats, factor: float) -> Floats:
    """The array itself where the factor is 1, for it may be large."""
    return array if factor == 1.0 else array * factor
