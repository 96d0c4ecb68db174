"""Heads that the coordinator trains on generated features. These descend from released sums alone, so training is free."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.heads import LinearHead
from veilsum_aggregation.softmax import fit_softmax
from veilsum_coordinator.parts.alignment import LINEAR
from veilsum_privacy.training.mlp import Descent, layer_shapes, train

TOLERANCE = 1e-6
"""Size of the gradient, of a mean cross-entropy of features of unit variance, at which a fit has converged."""


def softmax_head(features: Floats, labels: Integers, ridge: float, names: Sequence[str]) -> LinearHead:
    """Multinomial logistic regression on generated features: least mean cross-entropy + ridge / 2 |V|^2.

    Features are centred and divided by the root of their mean variance first, all by one number, so that ``ridge`` means the
    same whatever the unit of the features; the head takes features as they are.

    Args:
        features: (n, d).
        labels: (n,) indices into ``names``.
        ridge: positive.
        names: of all classes.

    Returns:
        a head of the classes that occur, in the order of ``names``.
    """
    known, places = np.unique(labels, return_inverse=True)
    centre, scale = features.mean(axis=0), unit(features)
    weights = np.full(len(features), 1.0 / len(features))
    places = places.astype(np.int64)
    fit = fit_softmax((features - centre) / scale, places, weights, len(known), ridge, tolerance=TOLERANCE)
    w = fit.weights / scale
    return LinearHead(w, fit.bias - w @ centre, tuple(names[index] for index in known))


def unit(features: Floats) -> float:
    """Root of the mean variance of features (n, d); 1 where they do not vary."""
    return float(np.sqrt(features.var(axis=0).mean())) or 1.0


def mlp_head(
    features: Floats, labels: Integers, names: Sequence[str], hidden: int, descent: Descent, rng: np.random.Generator
) -> tuple[list[tuple[Floats, Floats]], tuple[str, ...]]:
    """A perceptron with one hidden layer, or a linear head where ``hidden`` is 0, trained on generated features.

    Features are centred and brought to a root mean square norm of 1 for training; the first layer takes them as they are.

    Args:
        features: (n, d).
        labels: (n,) indices into ``names``.
        names: of all classes.
        hidden: width of the hidden layer.
        rng: source of the first weights and of the order of samples.

    Returns:
        weight and bias of each layer, and the names of the classes that occur, in the order of the scores.
    """
    known, places = np.unique(labels, return_inverse=True)
    centre, scale = features.mean(axis=0), unit(features) * features.shape[1] ** 0.5
    model = first_model(features.shape[1], hidden, len(known), rng)
    trained = train(model, (features - centre) / scale, places.astype(np.int64), descent, rng)
    layers = list(zip(trained[::2], trained[1::2], strict=True))
    weight = layers[0][0] / scale
    layers[0] = weight, layers[0][1] - weight @ centre
    return layers, tuple(names[index] for index in known)


def first_model(inputs: int, hidden: int, classes: int, rng: np.random.Generator) -> list[Floats]:
    """Weights to begin with, normal with variance 2 / inputs before a rectifier and 1 / inputs at the end; biases of 0."""
    model: list[Floats] = []
    shapes = layer_shapes(inputs, hidden, classes)
    for index, shape in enumerate(shapes):
        if len(shape) == 1:
            model.append(np.zeros(shape))
        else:
            gain = 1.0 if index == len(shapes) - 2 else 2.0
            model.append(rng.standard_normal(shape) * (gain / shape[1]) ** 0.5)
    return model


def mlp_arrays(layers: Sequence[tuple[Floats, Floats]]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """A head as an application says it, and its arrays; a single layer is a linear head."""
    if len(layers) == 1:
        return dict(LINEAR), {"weights": layers[0][0], "bias": layers[0][1]}
    names = [(f"head.{index}.weight", f"head.{index}.bias") for index in range(len(layers))]
    arrays = {name: array for pair, layer in zip(names, layers, strict=True) for name, array in zip(pair, layer, strict=True)}
    return {"kind": "mlp", "layers": [list(pair) for pair in names], "activation": "relu"}, arrays
