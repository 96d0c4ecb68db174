"""The objective "dyn": FedDyn (Acar et al. 2021), a dynamic regulariser that moves each site's optimum to the common one."""

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.objectives.base import Done, LocalObjective, LocalOutcome, Objective, Received


class DynOptions(Frozen):
    """Options of :class:`Dyn`.

    Attributes:
        alpha: weight of the regulariser.
    """

    alpha: Real = Field(default=0.01, gt=0, le=1e6)


class Dyn(Objective[DynOptions]):
    """Cross-entropy - <h_i, theta> + alpha / 2 |theta - theta_0|^2, then h_i <- h_i - alpha (theta_i - theta_0).

    h_i stays at the site. The server needs the mean update alone: h <- h - alpha share mean(theta_i - theta_0), with the share
    of the sites that took part, and the next model is the mean of the models less h / alpha. At a fixed point h_i is the
    gradient of the site's loss at its model, and h_i at all sites sum to zero.
    """

    name = "dyn"
    whole_cohort = True

    def begin(self, received: Received) -> LocalObjective:
        alpha, start = self.options.alpha, received.start
        kept = self.kept(received, "gradient")
        own = np.zeros(self.size) if kept is None else kept

        def pull(theta: Floats) -> Floats:
            return alpha * (theta - start) - own

        def finish(done: Done) -> LocalOutcome:
            return LocalOutcome(state={"gradient": own - alpha * (done.end - start)})

        return LocalObjective(pull=pull, finish=finish)
