"""The objective "moon": MOON (Li, He and Song 2021), a contrast between representations of three models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.objectives.base import Done, LocalObjective, LocalOutcome, Objective, Received, frozen_network

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network


class MoonOptions(Frozen):
    """Options of :class:`Moon`.

    Attributes:
        mu: weight of the contrast.
        temperature: what cosines are divided by.
    """

    mu: Real = Field(default=1.0, ge=0, le=1e6)
    temperature: Real = Field(default=0.5, gt=0, le=1e6)


class Moon(Objective[MoonOptions]):
    """Cross-entropy + mu times -log(e^(s(z, z_g) / t) / (e^(s(z, z_g) / t) + e^(s(z, z_p) / t))), s the cosine.

    z, z_g and z_p are a record's representations by the model in training, the broadcast one, and the one that the site
    trained in its last round, which it keeps; at first that is the broadcast one. Representations are what the head takes: no
    projection stands between, as the models here have none.
    """

    name = "moon"

    def begin(self, received: Received) -> LocalObjective:
        kept = self.kept(received, "previous")

        def finish(done: Done) -> LocalOutcome:
            return LocalOutcome(state={"previous": done.end})

        if kept is None:  # the contrast of equal models is constant, and so is its gradient zero
            return LocalObjective(finish=finish)
        given = frozen_network(self.architecture, received.start)
        previous = frozen_network(self.architecture, kept)
        mu, temperature = self.options.mu, self.options.temperature

        def loss(module: Network, x: Tensor, labels: Tensor) -> Tensor:
            from torch import no_grad
            from torch.nn import functional

            z = module.features(x)
            with no_grad():
                near, far = given.features(x), previous.features(x)
            # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a))
            difference = functional.cosine_similarity(z, far) - functional.cosine_similarity(z, near)
            contrast = functional.softplus(difference / temperature)
            return functional.cross_entropy(module.head(z), labels, reduction="none") + mu * contrast

        return LocalObjective(loss=loss, finish=finish)
