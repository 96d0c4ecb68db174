"""The objective "proto": FedProto (Tan et al. 2022), representations drawn towards the common prototypes of their classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.training.models.base import Shapes
from veilsum_privacy.training.objectives.base import (
    Done,
    Labels,
    LocalObjective,
    LocalOutcome,
    Objective,
    OwnBlock,
    Received,
    RecordLoss,
    RecordRows,
    representation_size,
)

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network

PROTOTYPES, KNOWN = "proto.prototypes", "proto.known"
"""Broadcast arrays (K, H), the prototypes, and (K,), 0 for a class that has none yet."""

SUMS, COUNTS = "proto.sums", "proto.counts"
"""Blocks (K, H), sums of representations by class over ``radius``, and (K,), numbers of records."""

COUNT_SHARE = 0.2
"""Part of a record's squared norm that its count takes."""

LARGEST_SUM = 2.0**20
"""Largest sum of the values of a block, in records."""


class ProtoOptions(Frozen):
    """Options of :class:`Proto`.

    Attributes:
        mu: weight of the distance.
        radius: L2 norm that a representation is scaled down to in the sums.
    """

    mu: Real = Field(default=1.0, ge=0, le=1e6)
    radius: Real = Field(default=10.0, gt=0, le=1e6)


class Proto(Objective[ProtoOptions]):
    """Cross-entropy + mu |z - p_y|^2 / H, for the representation z of a record and the prototype p_y of its class.

    Prototypes are class means of the representations that sites have after training, over all sites: class sums and counts go
    through the secure sum. With noise these are one more noised step a round, over a sample of its own: a record has one row
    of norm 1 at most, z cut to ``radius`` in the place of its class, and its count. The text exchanges prototypes in place of
    models; here the models are averaged as well, so that there is one to release.
    """

    name = "proto"

    def broadcast(self) -> Shapes:
        k = self.architecture.classes
        return {PROTOTYPES: (k, representation_size(self.architecture)), KNOWN: (k,)}

    def blocks(self) -> tuple[OwnBlock, ...]:
        k = self.architecture.classes
        return (OwnBlock(SUMS, (k, representation_size(self.architecture)), LARGEST_SUM), OwnBlock(COUNTS, (k,), LARGEST_SUM))

    def row_size(self) -> int:
        return self.architecture.classes * (representation_size(self.architecture) + 1)

    def begin(self, received: Received) -> LocalObjective:
        given = self.given(received)
        loss = self._loss(given) if given[KNOWN].any() else None
        return LocalObjective(loss=loss, rows=self._rows, finish=self._finish)

    def _loss(self, given: dict[str, Floats]) -> RecordLoss:
        import torch

        prototypes, known = torch.from_numpy(given[PROTOTYPES].copy()), torch.from_numpy(given[KNOWN] != 0.0)
        mu = self.options.mu

        def loss(module: Network, x: Tensor, labels: Tensor) -> Tensor:
            from torch.nn import functional

            z = module.features(x)
            own, told = prototypes.to(z)[labels], known.to(z.device)[labels]
            distance = ((z - own) ** 2).mean(dim=1) * told
            total: Tensor = functional.cross_entropy(module.head(z), labels, reduction="none") + mu * distance
            return total

        return loss

    def _rows(self, end: Floats) -> RecordRows:
        from veilsum_privacy.training.arrays import unflatten
        from veilsum_privacy.training.predict import representer

        k, h = self.architecture.classes, representation_size(self.architecture)
        represent = representer(self.architecture, unflatten(end, self.architecture.shapes()))

        def rows(x: Floats, labels: Labels) -> Floats:
            z = represent(x)
            z = np.where(np.isfinite(z).all(axis=1, keepdims=True), z, 0.0)
            z = z / np.maximum(row_norms(z), self.options.radius)[:, None]
            found, each = np.zeros((len(x), k, h + 1)), np.arange(len(x))
            found[each, labels, :h], found[each, labels, h] = _LONG * z, _ONE
            return found.reshape(len(x), k * (h + 1))

        return rows

    def _finish(self, done: Done) -> LocalOutcome:
        total = done.total.reshape(self.architecture.classes, representation_size(self.architecture) + 1)
        return LocalOutcome({SUMS: total[:, :-1] / _LONG, COUNTS: total[:, -1] / _ONE})


_LONG, _ONE = math.sqrt(1.0 - COUNT_SHARE), math.sqrt(COUNT_SHARE)
