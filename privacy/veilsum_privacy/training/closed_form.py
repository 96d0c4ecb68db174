"""Gradients by record of perceptrons in closed form: the factors of every layer's gradient, of any loss of the scores.

All products go through :func:`veilsum_privacy.mechanism.exact.exact_affine`, and everything else is elementwise or adds along
a row. So a record's factors depend on that record and the model alone, to the last bit, whatever the number of records or
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.exact import exact_affine
from veilsum_privacy.training.clipped_sums import Factors
from veilsum_privacy.training.models.perceptrons import Perceptron

BATCH = 1024
"""Records at once; public."""


def factors(
    architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats, by_scores: Callable[[Floats], Floats]
) -> list[Factors]:
    """Factors of each layer's gradient.

    The last layer's outputs have the gradient delta that the loss gives them; a layer below has W^T delta, where its output
    was positive.

    Args:
        x: (n, width), finite.
        by_scores: scores (n, K) to the derivatives (n, K) of each record's loss by them, each record's by itself.
    """
    inputs, z = _forward(architecture, arrays, x)
    delta, found = np.ascontiguousarray(by_scores(z)), list[Factors]()
    layers = architecture.layers()
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        found.append(Factors(layer.weight, layer.bias, layer.constant, delta, inputs[index]))
        if index:
            weight = arrays[layer.weight]
            delta = exact_affine(delta, weight.T, np.zeros(weight.shape[1])) * (inputs[index] > 0.0)
    return found[::-1]


def cross_entropy_by_scores(z: Floats, labels: NDArray[np.int64]) -> Floats:
    """Derivatives (n, K) of the cross-entropy by scores, for labels (n,) from 0 to K - 1: softmax less unit vectors."""
    z = np.ascontiguousarray(z - z.max(axis=1, keepdims=True))
    p = np.exp(z)
    p /= np.add.reduce(p, axis=1, keepdims=True)
    p[np.arange(len(p)), labels] -= 1.0
    return p


def scores(architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """Scores (n, K) of features (n, width)."""
    return _forward(architecture, arrays, x)[1]


def representations(architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats) -> Floats:
    """What the last layer is given, (n, H)."""
    return _forward(architecture, arrays, x)[0][-1]


def _forward(architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats) -> tuple[list[Floats], Floats]:
    """What each layer is given, and the last one's outputs."""
    entering = np.ascontiguousarray(x) * architecture.scale
    inputs: list[Floats] = []
    z = entering
    for index, layer in enumerate(architecture.layers()):
        if index:
            entering = np.maximum(z, 0.0)
        inputs.append(entering)
        z = exact_affine(entering, arrays[layer.weight], layer.constant * arrays[layer.bias])
    return inputs, z
