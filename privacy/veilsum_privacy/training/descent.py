"""Local training: stochastic gradient descent at one site. A model is one flat vector here.

Noised steps are asked for and sent: nothing here holds a record. What trains in epochs on records, without noise, is
:mod:`.epochs`.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.exact import LARGEST
from veilsum_privacy.training.mlp import Descent
from veilsum_privacy.training.objectives.base import LocalObjective

R = TypeVar("R")


class Descended(NamedTuple):
    """What training came to.

    Attributes:
        end: the model (P,); not always finite.
        gradient: mean over the steps of the records' mean gradient (P,), without pull and decay; zeros where there was none.
    """

    end: Floats
    gradient: Floats
    steps: int


class Walk:
    """A model on its way: momentum, decay and the objective's pull."""

    def __init__(self, start: Floats, descent: Descent, objective: LocalObjective) -> None:
        self.theta = start.copy()
        self._descent, self._objective = descent, objective
        self._speed, self._sum, self.steps = np.zeros_like(start), np.zeros_like(start), 0

    def step(self, gradient: Floats) -> None:
        """v <- momentum v + gradient + pull + decay theta; theta <- theta - learning_rate v."""
        self._sum += gradient
        self.steps += 1
        whole = gradient
        if self._objective.pull is not None:
            whole = whole + self._objective.pull(self.theta)
        if self._descent.decay:
            whole = whole + self._descent.decay * self.theta
        self._speed = self._descent.momentum * self._speed + whole
        self.theta = self.theta - self._descent.learning_rate * self._speed

    def done(self) -> Descended:
        """What it came to."""
        return Descended(self.theta, self._sum / max(self.steps, 1), self.steps)


def descend_noised(
    start: Floats, ask: Callable[[Floats], R], objective: LocalObjective, descent: Descent, number: int, expected: float
) -> Generator[R, Floats, Descended]:
    """Exactly ``number`` steps of DP-SGD, each of which asks for a sum and is sent it, noised.

    A step divides the sum by the number of records that a sample is expected to have, which is public, in place of the true
    one.

    Args:
        start: the model (P,).
        ask: a model (P,) to the request for the sum (P,) of a sample's clipped gradients there.
        objective: of the round; of it the pull is used here.
        descent: learning rate, momentum and decay.
        number: of steps.
        expected: public number of records that a step is expected to draw.
    """
    walk = Walk(start, descent, objective)
    for _ in range(number):
        # A model that left all numbers did so by noised steps; the declared steps are taken all the same.
        total = yield ask(walk.theta if np.abs(walk.theta).max(initial=0.0) <= LARGEST else start)
        with np.errstate(over="ignore", invalid="ignore"):  # never around a yield: it is of the thread that ends it
            walk.step(total / expected)
    return walk.done()
