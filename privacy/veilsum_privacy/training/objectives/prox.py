"""The objective "prox": FedProx (Li et al. 2020), which holds a site near the broadcast model.

The objective "none": cross-entropy alone, as in FedAvg (McMahan et al. 2017).
"""

from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.objectives.base import LocalObjective, NoOptions, Objective, Received


class ProxOptions(Frozen):
    """Options of :class:`Prox`.

    Attributes:
        mu: weight of the proximal term.
    """

    mu: Real = Field(default=0.01, ge=0, le=1e6)


class Prox(Objective[ProxOptions]):
    """Cross-entropy + mu / 2 |theta - theta_0|^2, where theta_0 is the broadcast model. The term reads no record."""

    name = "prox"

    def begin(self, received: Received) -> LocalObjective:
        mu, start = self.options.mu, received.start

        def pull(theta: Floats) -> Floats:
            return mu * (theta - start)

        return LocalObjective(pull=pull)


class Plain(Objective[NoOptions]):
    """The mean cross-entropy of the site's records."""

    name = "none"

    def begin(self, received: Received) -> LocalObjective:
        return LocalObjective()
