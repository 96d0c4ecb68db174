"""The objective "scaffold": SCAFFOLD (Karimireddy et al. 2020), control variates against drift."""

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Shapes
from veilsum_privacy.training.objectives.base import (
    Done,
    LocalObjective,
    LocalOutcome,
    Objective,
    OwnBlock,
    Received,
    scaled_to,
)

CONTROL = "scaffold.control"
"""Broadcast array (P,): the server's control variate c, the mean of the sites'."""

CHANGE = "scaffold.change"
"""Block (P,): what changed in the site's own control variate."""


class ScaffoldOptions(Frozen):
    """Options of :class:`Scaffold`.

    Attributes:
        control_norm: L2 norm that a control variate, which is a mean gradient, is scaled down to.
    """

    control_norm: Real = Field(default=100.0, gt=0, le=1e9)


class Scaffold(Objective[ScaffoldOptions]):
    """Every step's gradient is corrected by c - c_i; c_i becomes the mean of the gradients that the site took.

    That mean is option II of SCAFFOLD, c_i - c + (theta_0 - theta) / (K eta), for plain steps that no bound cut; with momentum
    it still is the mean of the gradients. With noise it is a mean of noised gradients, and so costs nothing more. The server
    adds the mean of the changes, times the share of the sites that took part, to c.
    """

    name = "scaffold"
    whole_cohort = True

    def broadcast(self) -> Shapes:
        return {CONTROL: (self.size,)}

    def blocks(self) -> tuple[OwnBlock, ...]:
        return (OwnBlock(CHANGE, (self.size,), 2.0 * self.options.control_norm, weighted=True),)

    def begin(self, received: Received) -> LocalObjective:
        common = self.given(received)[CONTROL]
        kept = self.kept(received, "control")
        own = np.zeros(self.size) if kept is None else kept

        def pull(theta: Floats) -> Floats:
            return common - own

        def finish(done: Done) -> LocalOutcome:
            new = scaled_to(done.gradient, self.options.control_norm)
            return LocalOutcome({CHANGE: new - own}, {"control": new})

        return LocalObjective(pull=pull, finish=finish)
