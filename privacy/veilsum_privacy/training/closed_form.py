"""Scores, representations and mean gradients of perceptrons in closed form.

Products with a model go through :func:`veilsum_privacy.mechanism.exact.ExactAffine`, so that a record's scores and
representation depend on that record and the model alone, to the last bit, whatever the number of records or threads.
"""

from collections.abc import Callable, Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.exact import ExactAffine
from veilsum_privacy.training.models.perceptrons import Perceptron


def mean_gradient(
    architecture: Perceptron, arrays: Mapping[str, Floats], x: Floats, by_scores: Callable[[Floats], Floats]
) -> dict[str, Floats]:
    """The mean over records of the gradient of a loss, by array.

    The last layer's outputs have the gradient delta that the loss gives them; a layer below has W^T delta, where its output
    was positive.

    Args:
        x: (n, width), finite; n positive.
        by_scores: scores (n, K) to the derivatives (n, K) of each record's loss by them.
    """
    inputs, z = _forward(architecture, arrays, x)
    delta, found = np.ascontiguousarray(by_scores(z)) / len(x), dict[str, Floats]()
    layers = architecture.layers()
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        found[layer.weight], found[layer.bias] = delta.T @ inputs[index], layer.constant * delta.sum(axis=0)
        if index:
            weight = arrays[layer.weight]
            delta = ExactAffine(weight.T, np.zeros(weight.shape[1]))(delta) * (inputs[index] > 0.0)
    return found


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
        z = ExactAffine(arrays[layer.weight], layer.constant * arrays[layer.bias])(entering)
    return inputs, z
