"""The objective "iir": FedIIR (Guo et al. 2023), gradients of the head that agree between sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Shapes
from veilsum_privacy.training.objectives.base import (
    Done,
    LocalObjective,
    LocalOutcome,
    Objective,
    OwnBlock,
    Received,
    representation_size,
    scaled_to,
)

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network

GRADIENT, KNOWN = "iir.gradient", "iir.known"
"""Broadcast arrays (Q,), the mean gradient of the head (weights row by row, then biases), and (1,), 0 before there is one.

The block of the first name is the gradient at one site."""


class IirOptions(Frozen):
    """Options of :class:`Iir`.

    Attributes:
        penalty: weight of the squared distance to the mean gradient.
        gradient_norm: L2 norm that a site's gradient is scaled down to in the sum.
        ema: weight of the earlier mean in the next one.
    """

    penalty: Real = Field(default=0.01, ge=0, le=1e6)
    gradient_norm: Real = Field(default=10.0, gt=0, le=1e9)
    ema: Real = Field(default=0.95, ge=0, lt=1)


class Iir(Objective[IirOptions]):
    """Cross-entropy + penalty |g - g_mean|^2 on every batch, for the gradient g of its cross-entropy by the head.

    g_mean is a moving average over rounds of the sites' gradients at the models that they ended with, which go through the
    secure sum. g mixes the records of a batch before it is squared: no record has a gradient of its own here.
    """

    name = "iir"

    def __init__(self, options: IirOptions, architecture: Architecture) -> None:
        super().__init__(options, architecture)
        representation_size(architecture)
        self._names = [name for name in architecture.shapes() if name in ("head.weight", "head.bias")]

    def only_without_noise(self) -> str | None:
        return "compares the gradient of a whole batch (FedIIR), so that no record has a gradient of its own to clip"

    def _head_size(self) -> int:
        shapes = self.architecture.shapes()
        return sum(int(np.prod(shapes[name])) for name in self._names)

    def broadcast(self) -> Shapes:
        return {GRADIENT: (self._head_size(),), KNOWN: (1,)}

    def blocks(self) -> tuple[OwnBlock, ...]:
        return (OwnBlock(GRADIENT, (self._head_size(),), self.options.gradient_norm, weighted=True),)

    def begin(self, received: Received) -> LocalObjective:
        given = self.given(received)
        if not given[KNOWN].any() or self.options.penalty == 0.0:
            return LocalObjective(finish=self._finish)
        import torch

        mean, weight = torch.from_numpy(given[GRADIENT].copy()), self.options.penalty

        def penalty(module: Network, x: Tensor, labels: Tensor) -> Tensor:
            own = _head_gradient(module, x, labels, create_graph=True)
            return weight * ((own - mean.to(own)) ** 2).sum()

        return LocalObjective(penalty=penalty, finish=self._finish)

    def _finish(self, done: Done) -> LocalOutcome:
        import torch

        from veilsum_privacy.training.batches import array, tensor
        from veilsum_privacy.training.objectives.base import frozen_network

        own: Floats = np.zeros(self._head_size())
        if len(done.x):
            module = frozen_network(self.architecture, done.end).requires_grad_(True)
            x, labels = tensor(done.x, module), tensor(done.labels, module, torch.int64)
            own = array(_head_gradient(module, x, labels))
        return LocalOutcome({GRADIENT: scaled_to(own, self.options.gradient_norm)})


def _head_gradient(module: Network, x: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
    """Gradient (Q,) of the mean cross-entropy by the head's parameters."""
    import torch
    from torch.nn import functional

    loss = functional.cross_entropy(module(x), labels)
    parts = torch.autograd.grad(loss, list(module.head.parameters()), create_graph=create_graph)
    return torch.cat([part.reshape(-1) for part in parts])
