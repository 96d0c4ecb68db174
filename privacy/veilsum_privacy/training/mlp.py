"""A multilayer perceptron with ReLU and softmax cross-entropy, trained by stochastic gradient descent with momentum.

Written out for small heads on features, where a framework's cost per step is many times that of the products. Deterministic
for given numbers from ``rng``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats

Layers = Sequence[Floats]
"""Weight (out, in) and bias (out,) of each layer in turn; ReLU between layers, none after the last."""


@dataclass(frozen=True)
class Descent:
    """How a model is trained.

    Attributes:
        epochs: passes over the samples, each in an order of its own.
        batch: samples of one step; the last of a pass may be smaller.
        learning_rate: of the mean loss over a batch.
        momentum: v <- momentum v + gradient; the step is learning_rate v.
        decay: L2 penalty on weights and biases, decay / 2 |theta|^2.
    """

    epochs: int
    batch: int
    learning_rate: float
    momentum: float = 0.0
    decay: float = 0.0


def layer_shapes(inputs: int, hidden: int, classes: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of weights and biases of a perceptron with one hidden layer, or of a linear model where ``hidden`` is 0."""
    if hidden == 0:
        return (classes, inputs), (classes,)
    return (hidden, inputs), (hidden,), (classes, hidden), (classes,)


def gradients(
    layers: Layers, x: Floats, labels: NDArray[np.int64], weights: Floats | None = None
) -> tuple[float, list[Floats]]:
    """Mean cross-entropy over (n, d) features with labels (n,), n positive, and its gradient by each of ``layers``.

    With ``weights`` (n,) each record's loss is multiplied by its own; the mean is over n all the same.
    """
    inputs, z = [x], x
    for index in range(0, len(layers), 2):
        z = inputs[-1] @ layers[index].T + layers[index + 1]
        inputs.append(np.maximum(z, 0.0))
    z -= z.max(axis=1, keepdims=True)
    p = np.exp(z)
    totals = p.sum(axis=1, keepdims=True)
    rows = np.arange(len(x))
    own = np.ones(len(x)) if weights is None else weights
    loss = float(np.mean(own * (np.log(totals[:, 0]) - z[rows, labels])))
    p /= totals
    p[rows, labels] -= 1.0
    error = own[:, None] * p / len(x)
    found: list[Floats] = []
    for index in range(len(layers) - 2, -1, -2):
        entering = inputs[index // 2]
        found += [error.sum(axis=0), error.T @ entering]
        if index:
            error = (error @ layers[index]) * (entering > 0.0)
    return loss, found[::-1]


def train(layers: Layers, x: Floats, labels: NDArray[np.int64], descent: Descent, rng: np.random.Generator) -> list[Floats]:
    """Train a copy of the model on features (n, d) with labels (n,); the same model where n is 0.

    A step that is not finite is not taken back: the caller checks the result.
    """
    model = [np.array(values, dtype=np.float64) for values in layers]
    speed = [np.zeros_like(values) for values in model]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(descent.epochs):
            order = rng.permutation(len(x))
            for start in range(0, len(x), descent.batch):
                rows = order[start : start + descent.batch]
                _, gradient = gradients(model, x[rows], labels[rows])
                for i, g in enumerate(gradient):
                    speed[i] = descent.momentum * speed[i] + g
                    if descent.decay:
                        speed[i] += descent.decay * model[i]
                    model[i] -= descent.learning_rate * speed[i]
    return model
