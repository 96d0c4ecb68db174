"""Scores of named models as rows are computed: those that are graphs of primitives, and what others are opaque maps of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import (
    Symbol,
    affine,
    every,
    finite,
    joined,
    length,
    margin,
    maximum,
    opaque,
    where,
)
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.discriminants import CENTRE, Discriminant
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees

NETWORK = "network"
"""Name of the opaque map of models that are no graph."""


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

    def network(x: Floats) -> Floats:
        from veilsum_privacy.training.predict import scores

        return scores(architecture, arrays, x)

    return {NETWORK: network}


def traced_margin(arrays: Mapping[str, Floats], x: Symbol) -> Symbol:
    """What the leaves of trees add up to, (1,) or (C,); see :func:`veilsum_privacy.training.trees.tree_margin`."""
    base = arrays[BASE]
    leaves = arrays[LEAVES].reshape(*arrays[LEAVES].shape[:2], -1)
    told = leaves.any(axis=(1, 2))
    return margin(x, named_features(arrays)[told], arrays[THRESHOLDS][told], leaves[told], base)


def named_features(arrays: Mapping[str, Floats]) -> Integers:
    """The features that trees split.

    Raises:
        HostileInput: these are no places.
    """
    named: Integers = np.rint(arrays[FEATURES]).astype(np.int64)
    if (named != arrays[FEATURES]).any():
        raise HostileInput("The trees split features by places that are not whole.")
    return named


def _layers(architecture: Perceptron, arrays: Mapping[str, Floats], x: Symbol) -> Symbol:
    z = x * architecture.scale
    for index, layer in enumerate(architecture.layers()):
        z = affine(maximum(z, 0.0) if index else z, arrays[layer.weight], layer.constant * arrays[layer.bias])
    return z
