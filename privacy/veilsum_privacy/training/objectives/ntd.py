"""The objective "ntd": FedNTD (Lee et al. 2022), distillation of what the broadcast model says of other classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.objectives.base import LocalObjective, Objective, Received, frozen_network

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network


class NtdOptions(Frozen):
    """Options of :class:`Ntd`.

    Attributes:
        beta: weight of the distillation.
        temperature: t, what scores are divided by; the divergence is multiplied by t^2, so that its gradient keeps its size.
    """

    beta: Real = Field(default=1.0, ge=0, le=1e6)
    temperature: Real = Field(default=1.0, gt=0, le=1e6)


class Ntd(Objective[NtdOptions]):
    """Cross-entropy + beta t^2 KL(q_g | q) over the classes without the true one, q the softmax of scores / t among them."""

    name = "ntd"

    def __init__(self, options: NtdOptions, architecture: Architecture) -> None:
        if architecture.classes < 3:
            raise Misuse("The objective ntd needs three classes or more: with two, only one is not the true class.")
        super().__init__(options, architecture)

    def begin(self, received: Received) -> LocalObjective:
        teacher = frozen_network(self.architecture, received.start)
        beta, temperature = self.options.beta, self.options.temperature

        def loss(module: Network, x: Tensor, labels: Tensor) -> Tensor:
            import torch
            from torch.nn import functional

            scores = module(x)
            with torch.no_grad():
                said = teacher(x)
            k = scores.shape[1]
            # The columns of all classes but the record's own, in order.
            places = torch.arange(k - 1, device=labels.device)[None, :].expand(len(labels), k - 1)
            places = places + (places >= labels[:, None])
            own = functional.log_softmax(scores.gather(1, places) / temperature, dim=1)
            theirs = functional.log_softmax(said.gather(1, places) / temperature, dim=1)
            divergence = (theirs.exp() * (theirs - own)).sum(dim=1)
            return functional.cross_entropy(scores, labels, reduction="none") + beta * temperature**2 * divergence

        return LocalObjective(loss=loss)
