"""Optimisers of a model at the coordinator: what is made of each round's released mean gradient, or mean update.

Gradient descent with momentum, and the adaptive optimisers of Reddi et al. 2021 (Adaptive Federated Optimization).
A gradient g makes a step against g; FedOPT takes a mean update for -g. All of it is post-processing of released sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.long_arrays import LongArrays, cut
from veilsum_node.fields import Frozen, Real

Arrays = Mapping[str, Floats]


class OptimiserParameters(Frozen):
    """Which optimiser, and its constants; all public.

    Attributes:
        name: ``sgd`` with momentum (0 for plain descent), ``adam`` or ``yogi``.
        learning_rate: eta of a step.
        momentum: of ``sgd``: v <- momentum v + g, step eta v.
        beta1, beta2: decay of the means of g and of g^2.
        tau: what is added to the root of the mean square, for values of about the gradient's size.
    """

    name: Literal["sgd", "adam", "yogi"] = "sgd"
    learning_rate: Real | None = Field(default=None, gt=0, le=1e6)
    momentum: Real = Field(default=0.0, ge=0, lt=1)
    beta1: Real = Field(default=0.9, ge=0, lt=1)
    beta2: Real = Field(default=0.99, ge=0, lt=1)
    tau: Real = Field(default=1e-3, gt=0, le=1e3)


class ServerOptimiser:
    """State of an optimiser over the rounds of one study.

    Args:
        parameters: with a learning rate.
        shapes: of the model's arrays, by name.
    """

    def __init__(self, parameters: OptimiserParameters, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if parameters.learning_rate is None:
            raise ValueError("an optimiser needs a learning rate")
        self._parameters, self._rate = parameters, float(parameters.learning_rate)
        # Plain descent remembers nothing, and momentum no squares.
        self._first = LongArrays(shapes if parameters.name != "sgd" or parameters.momentum else {})
        # Adaptive rates begin at tau^2, as in the experiments of Reddi et al. (2021); nothing corrects their beginning.
        self._second = LongArrays(shapes if parameters.name != "sgd" else {}, float(parameters.tau) ** 2)

    def step(self, model: Arrays, gradient: Arrays) -> dict[str, Floats]:
        """The model after one step.

        Args:
            model: arrays by name.
            gradient: g, arrays of the same names and shapes.
        """
        moved = {}
        for name, values in model.items():
            moved[name] = np.empty(values.shape)
            old, g, new = (array.reshape(-1) for array in (values, gradient[name], moved[name]))
            for part in cut(values.size):
                new[part] = old[part] - self.change(name, part, g[part])
        return moved

    def change(self, name: str, part: slice, g: Floats) -> Floats:
        """What a step takes off some of an array's values; every value must be asked for once a step.

        Args:
            name: of the array.
            part: which of its values, as they lie flat, row by row.
            g: their gradient.
        """
        p = self._parameters
        if p.name == "sgd" and not p.momentum:
            return self._rate * g
        if p.name == "sgd":
            first = p.momentum * self._first.read(name, part) + g
            self._first.write(name, part, first)
            return self._rate * first
        first = p.beta1 * self._first.read(name, part) + (1.0 - p.beta1) * g
        square, old = g**2, self._second.read(name, part)
        if p.name == "adam":
            second = p.beta2 * old + (1.0 - p.beta2) * square
        else:
            second = old - (1.0 - p.beta2) * square * np.sign(old - square)
        self._first.write(name, part, first)
        self._second.write(name, part, second)
        change: Floats = self._rate * first / (np.sqrt(second) + p.tau)
        return change
