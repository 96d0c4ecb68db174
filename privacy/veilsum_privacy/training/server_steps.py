"""What is made of a sum of gradients: one step of an optimiser, elementwise, from the model as everyone received it.

A coordinator takes these steps, and in a study that declares them every member does, of the sums that it verified. So
nothing here may depend on the machine: there are +, -, *, / and sqrt of float64, which IEEE 754 rounds in one way, and sums
in one order.

Gradient descent with momentum, and the adaptive optimisers of Reddi et al. 2021 (Adaptive Federated Optimization). A gradient
g makes a step against g; FedOPT takes a mean update for -g. All of it is post-processing of released sums.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.training.long_arrays import LongArrays, cut

Arrays = Mapping[str, Floats]
Shapes = Mapping[str, tuple[int, ...]]


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

    Attributes:
        memory: what it remembers, by name; arrays of the same shapes, or none.
    """

    def __init__(self, parameters: OptimiserParameters, shapes: Shapes) -> None:
        if parameters.learning_rate is None:
            raise ValueError("an optimiser needs a learning rate")
        self._parameters, self._rate = parameters, float(parameters.learning_rate)
        # Plain descent remembers nothing, and momentum no squares.
        self._first = LongArrays(shapes if parameters.name != "sgd" or parameters.momentum else {})
        # Adaptive rates begin at tau^2, as in the experiments of Reddi et al. (2021); nothing corrects their beginning.
        self._second = LongArrays(shapes if parameters.name != "sgd" else {}, float(parameters.tau) ** 2)
        self.memory = {"first": self._first, "second": self._second}

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


class ServerSteps(Frozen):
    """How a method makes steps of sums of gradients; all public.

    Attributes:
        optimiser: with a learning rate, unless the travel sets it.
        travel: D, how far the noise of all steps together would carry the model by itself: it sets the learning rate.
        records: that sums are divided by at a sampling rate of 1, where a learning rate is stated.
        decay: L2 penalty on all values, decay / 2 |theta|^2.
        seed: of the first values.
        class_weights: what a record's gradient is multiplied by, by class: ``none``, by released frequencies, or a table.
    """

    optimiser: OptimiserParameters
    travel: Real | None = Field(default=None, gt=0, le=1e6)
    records: int = Field(ge=1, le=2**40)
    decay: Real = Field(default=0.0, ge=0, le=1e6)
    steps: int = Field(ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    class_weights: Literal["none", "sqrt", "balanced"] | dict[Name, Annotated[Real, Field(gt=0, le=1e6)]] = "none"

    def rate(self, values: int) -> float | None:
        """The learning rate for sums divided by their unit, of a model of so many values; None if nothing states one."""
        if self.travel is None:
            return self.optimiser.learning_rate
        return self.travel / math.sqrt(self.steps * values) * (1.0 - self.optimiser.momentum)

    def unit(self, noise: float, sampling_rate: float) -> float:
        """What a step's sum is divided by where all sites take part, for noise of this standard deviation in each value."""
        return noise if self.travel is not None else sampling_rate * float(self.records)

    def divisor(self, unit: float, cohort: int, sites: int) -> float:
        """What a step's sum of these sites is divided by: a step without some participants is of fewer records, of noise
        there is as much."""
        return unit if self.travel is not None else unit * (cohort / sites)

    def with_rate(self, rate: float | None) -> OptimiserParameters:
        """The optimiser, with this learning rate."""
        return self.optimiser.model_copy(update={"learning_rate": rate})


class Stepped(NamedTuple):
    """Some values of a model after a step.

    Attributes:
        name: of the array.
        part: which of its values, as they lie flat.
        gradient, after: their gradient, and they themselves before they are rounded; both (part,).
    """

    name: str
    part: slice
    gradient: Floats
    after: Floats


class SteppedModel:
    """The model from step to step, as everyone receives it.

    Models are large: everything goes part by part, and nothing here is as long as one.

    Args:
        optimiser: with a learning rate.
        decay: L2 penalty.
        first: values to begin with, by name.
        dtype: in which everyone receives the model.
    """

    def __init__(self, optimiser: OptimiserParameters, decay: float, first: Arrays, dtype: DTypeLike) -> None:
        self._decay = decay
        self._shapes = {name: array.shape for name, array in first.items()}
        self._shown = LongArrays.of(first, dtype)
        self._optimiser = ServerOptimiser(optimiser, self._shapes)

    def shown(self) -> dict[str, NDArray[Any]]:
        """The model as everyone receives it, by name."""
        return self._shown.arrays()

    def memory(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What the optimiser remembers, by what it is and name."""
        return {kind: kept.arrays() for kind, kept in self._optimiser.memory.items()}

    def recall(self, memory: Mapping[str, Arrays]) -> None:
        """Go on with what :meth:`memory` gave."""
        for kind, arrays in memory.items():
            for name, array in arrays.items():
                for part in cut(array.size):
                    self._optimiser.memory[kind].write(name, part, array.reshape(-1)[part])

    def step(self, read: Callable[[str, slice], Floats], divisor: float) -> Iterator[Stepped]:
        """Take one step, from where the gradients are: from the model as it was shown. It is taken once all was gone through.

        Args:
            read: gives some values of an array of the sum of gradients, as they lie flat.
        """
        for name, shape in self._shapes.items():
            for part in cut(math.prod(shape)):
                before = self._shown.read(name, part)
                gradient = read(name, part) / divisor
                if self._decay:
                    gradient += self._decay * before
                after = before - self._optimiser.change(name, part, gradient)
                self._shown.write(name, part, after)
                yield Stepped(name, part, gradient, after)


RARITY = {"sqrt": 0.5, "balanced": 1.0}
"""Powers of :func:`rarity_weights`, by what a study asks for."""


def rarity_weights(counts: Floats, noise: float, power: float) -> Floats:
    """Weights (K,) of classes by their noised counts: (smallest count / count)^power, the rarest class's being 1.

    The smallest count is taken two standard deviations of its noise larger, so that where classes may well be alike they count
    alike.

    Args:
        counts: (K,) released.
        noise: standard deviation of each.
        power: 1 makes all classes weigh alike, 1/2 goes half of the way.
    """
    counts = np.maximum(counts, max(noise, 1.0))
    shares = np.minimum(1.0, (float(counts.min()) + 2.0 * noise) / counts)
    weights: Floats = np.sqrt(shares) if power == 0.5 else shares**power
    return weights


def stated_weights(asked: Mapping[str, float] | None, classes: Sequence[str], method: str) -> tuple[float, ...]:
    """A table of class weights in the order of the classes, its largest 1; empty without one.

    Raises:
        ConfigurationError: it is of other classes.
    """
    if asked is None:
        return ()
    if set(asked) != set(classes):
        raise ConfigurationError(
            f"The table class_weights of {method} must give each class of the label a weight.",
            f"Give one to each of {', '.join(classes)}." if classes else "Add a [label] table with classes.",
        )
    return tuple(float(asked[name]) / max(map(float, asked.values())) for name in classes)
