"""The objective "sr": FedSR (Nguyen, Torr and Lim 2022), representations that are simple and tell of the class alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats, Words
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes
from veilsum_privacy.training.objectives.base import LocalObjective, Objective, Received, representation_size

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network


SMALLEST_STD = 1e-3
"""Least standard deviation of a representation, so that divergences stay finite."""


class SrOptions(Frozen):
    """Options of :class:`Sr`.

    Attributes:
        l2: weight of the squared length of a representation.
        cmi: weight of the conditional mutual information between records and representations, given the class.
    """

    l2: Real = Field(default=0.01, ge=0, le=1e6)
    cmi: Real = Field(default=0.001, ge=0, le=1e6)


class Probabilistic(Architecture):
    """A model with what makes its representations random, and with what they are compared to.

    ``spread`` (H, H) turns features f(x) into standard deviations; ``centres`` (H, K) and ``widths`` (H, K) hold the normal
    reference of each class. They are trained and averaged with the model, and no prediction needs them.
    """

    def __init__(self, inner: Architecture) -> None:
        super().__init__(inner.options, inner.inputs, inner.width, inner.classes)
        self.name = f"probabilistic-{inner.name}"  # type: ignore[misc]  # one for each kind of model
        self.inner = inner
        self.precision = inner.precision  # type: ignore[misc]
        self.weights = inner.weights
        self._h = representation_size(inner)

    def shapes(self) -> Shapes:
        h, k = self._h, self.classes
        own: Shapes = {"spread.weight": (h, h), "spread.bias": (h,), "centres.weight": (h, k), "widths.weight": (h, k)}
        return {**self.inner.shapes(), **own}

    def initial(self, seed: int) -> dict[str, Floats]:
        own = {name: np.zeros(shape) for name, shape in self.shapes().items()}
        own["widths.weight"] += 1.0
        return {**own, **self.inner.initial(seed)}

    def network(self) -> Network:
        from torch import nn

        module = self.inner.network()
        module.add_module("spread", nn.Linear(self._h, self._h))
        module.add_module("centres", nn.Linear(self.classes, self._h, bias=False))
        module.add_module("widths", nn.Linear(self.classes, self._h, bias=False))
        return module

    def channels(self) -> tuple[ChannelGroup, ...]:
        """The model's; what makes representations random follows the channels that the head reads."""
        own = [("spread.weight", 0), ("spread.weight", 1), ("spread.bias", 0), ("centres.weight", 0), ("widths.weight", 0)]
        found = []
        for group in self.inner.channels():
            read = [member for member in group.consumed if member[:2] == ("head.weight", 1)]
            more = tuple(GroupMember(array, axis, member.repeat) for member in read for array, axis in own)
            found.append(group._replace(consumed=(*group.consumed, *more)))
        return tuple(found)

    def linear_layers(self) -> tuple[str, ...]:
        return self.inner.linear_layers()


class Sr(Objective[SrOptions]):
    """Cross-entropy of head(z) + l2 |z|^2 + cmi KL(p(z | x) | r(z | y)), for one draw z of p(z | x) = N(f(x), s(x)^2).

    s is the softplus of a linear map of f(x); r(z | y) is normal with a mean and standard deviations of the class, trained. A
    prediction takes f(x) for z. A record's draw is made from its own features, the model and a public seed, by a hash: it is
    another one in every step, and does not depend on which other records there are, so clipping bounds its gradient as any.
    """

    name = "sr"

    def __init__(self, options: SrOptions, architecture: Architecture) -> None:
        super().__init__(options, architecture)
        self._trained = Probabilistic(architecture)

    def trained(self) -> Architecture:
        return self._trained

    def begin(self, received: Received) -> LocalObjective:
        import torch

        k, weights, seed = self.architecture.classes, self.options, received.seed

        def loss(module: Network, x: Tensor, labels: Tensor) -> Tensor:
            from torch.nn import functional

            layers, mean = cast(Any, module), module.features(x)
            std = functional.softplus(layers.spread(mean)) + SMALLEST_STD
            drawn = own_normals(x.detach().cpu().numpy(), layers.head.weight.detach().cpu().numpy(), mean.shape[1], seed)
            z = mean + std * torch.from_numpy(drawn).to(mean)
            # Tied to the features, at no value, for per-record gradients follow the way from the input.
            true = functional.one_hot(labels, k) + 0.0 * mean[:, :1]
            centre, width = layers.centres(true), functional.softplus(layers.widths(true)) + SMALLEST_STD
            divergence = (torch.log(width / std) + (std**2 + (mean - centre) ** 2) / (2.0 * width**2) - 0.5).sum(dim=1)
            entropy = functional.cross_entropy(module.head(z), labels, reduction="none")
            total: Tensor = entropy + weights.l2 * (z**2).sum(dim=1) + weights.cmi * divergence
            return total

        return LocalObjective(loss=loss)


def own_normals(rows: NDArray[np.floating], model: NDArray[np.floating], size: int, seed: int) -> Floats:
    """Standard normal numbers (b, size) that are a function of each row of (b, ...), the model's values and the seed alone."""
    with np.errstate(over="ignore"):
        key = _mixed(_folded(np.ascontiguousarray(model, dtype=np.float64).reshape(1, -1)) + np.uint64(seed % 2**64))
        own = _folded(np.ascontiguousarray(rows, dtype=np.float64).reshape(len(rows), -1)) ^ key
        words = _mixed(_mixed(own)[:, None] + np.arange(1, 2 * size + 1, dtype=np.uint64)[None, :] * _STEP)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    normals: Floats = np.sqrt(-2.0 * np.log(uniform[:, :size])) * np.cos(2.0 * np.pi * uniform[:, size:])
    return normals


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mixed(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), which spreads every bit over all others."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _folded(rows: Floats) -> Words:
    """One word for each row (b, n); integers, so that no order of adding matters."""
    places = np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _STEP
    words: Words = np.add.reduce(_mixed(rows.view(np.uint64) + places), axis=1)
    return words
