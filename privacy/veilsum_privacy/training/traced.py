"""Scores and gradients of named models as rows are computed: graphs of primitives, and what others are opaque maps of."""

from collections.abc import Callable, Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.factors import Outer
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import (
    Symbol,
    Value,
    affine,
    every,
    exp,
    finite,
    joined,
    largest,
    length,
    margin,
    maximum,
    opaque,
    placed,
    total,
    where,
)
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.discriminants import CENTRE, Discriminant
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees
from veilsum_privacy.training.predict import network_map

NETWORK = "network"
"""Name of the opaque map of models that are not graphs."""


def traced_scores(architecture: Architecture, arrays: Mapping[str, Floats], x: Symbol) -> Symbol:
    """Scores (K,) of features (width,), as of :func:`veilsum_privacy.training.predict.scores`; NaN of what is not finite."""
    valued = every(finite(x))
    x = where(valued, x, 0.0)
    if isinstance(architecture, Trees):
        found = traced_margin(arrays, x)
        if architecture.classes == 2:
            found = joined(0.0, found)
    elif isinstance(architecture, Discriminant):
        moved = x - arrays[CENTRE]
        clip = architecture.options.clip
        found = _layers(architecture.linear, arrays, moved * (clip / maximum(length(moved), clip)))
    elif isinstance(architecture, Perceptron):
        found = _layers(architecture, arrays, x)
    else:
        found = opaque(NETWORK, x, architecture.classes)
    return where(valued, found, np.nan)


def opaque_scores(architecture: Architecture, arrays: Mapping[str, Floats]) -> dict[str, OpaqueMap]:
    """The opaque maps of a model's scores; none where they are a graph."""
    if isinstance(architecture, Trees | Discriminant | Perceptron):
        return {}

    return {NETWORK: network_map(architecture, arrays)}


def traced_margin(arrays: Mapping[str, Floats], x: Symbol) -> Symbol:
    """What the leaves of trees add up to, (1,) or (C,); see :func:`veilsum_privacy.training.predict.tree_margin`."""
    base = arrays[BASE]
    leaves = arrays[LEAVES].reshape(*arrays[LEAVES].shape[:2], -1)
    told = leaves.any(axis=(1, 2))
    return margin(x, named_features(arrays)[told], arrays[THRESHOLDS][told], leaves[told], base)


def named_features(arrays: Mapping[str, Floats]) -> Integers:
    """The features that trees split.

    Raises:
        HostileInput: these are not places.
    """
    named: Integers = np.rint(arrays[FEATURES]).astype(np.int64)
    if (named != arrays[FEATURES]).any():
        raise HostileInput("The trees split features by places that are not whole.")
    return named


def traced_gradient(
    architecture: Perceptron, arrays: Mapping[str, Floats], x: Symbol, by_scores: Callable[[Symbol], Symbol]
) -> Symbol:
    """Factors of the gradient of a loss at finite features (width,), as :func:`gradient_terms` has them.

    The last layer's outputs have the gradient delta that the loss gives them; a layer below has W^T delta, where its output
    was positive.

    Args:
        by_scores: scores (K,) to the derivatives (K,) of the loss by them.
    """
    layers, entering, inputs = architecture.layers(), x * architecture.scale, list[Symbol]()
    for index, layer in enumerate(layers):
        if index:
            entering = maximum(entering, 0.0)
        inputs.append(entering)
        entering = affine(entering, arrays[layer.weight], layer.constant * arrays[layer.bias])
    delta, found = by_scores(entering), list[Value]()
    for index in range(len(layers) - 1, -1, -1):
        found = [delta, inputs[index], layers[index].constant, *found]
        if index:
            weight = arrays[layers[index].weight]
            delta = affine(delta, weight.T, np.zeros(weight.shape[1])) * (inputs[index] > 0.0)
    return joined(*found)


def gradient_terms(architecture: Perceptron) -> tuple[Outer, ...]:
    """What the factors of a record's gradient are: of each layer the derivatives by its outputs, its inputs, and what its bias
    is multiplied by."""
    shapes = architecture.shapes()
    return tuple(Outer(shapes[layer.weight][0], shapes[layer.weight][1] + 1, bias=True) for layer in architecture.layers())


def cross_entropy_by_scores(scores: Symbol, label: Symbol) -> Symbol:
    """Derivatives (K,) of the cross-entropy by scores, for a label from 0 to K - 1: softmax less a unit vector."""
    p = exp(scores - largest(scores))
    return p / total(p) - placed(1.0, label, scores.shape[0])


def _layers(architecture: Perceptron, arrays: Mapping[str, Floats], x: Symbol) -> Symbol:
    z = x * architecture.scale
    for index, layer in enumerate(architecture.layers()):
        z = affine(maximum(z, 0.0) if index else z, arrays[layer.weight], layer.constant * arrays[layer.bias])
    return z
