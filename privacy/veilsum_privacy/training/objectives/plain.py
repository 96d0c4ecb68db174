"""The objective "none": cross-entropy alone, as in FedAvg (McMahan et al. 2017)."""

from __future__ import annotations

from veilsum_privacy.training.objectives.base import LocalObjective, Objective, Received


class Plain(Objective):
    """The mean cross-entropy of the site's records."""

    name = "none"

    def begin(self, received: Received) -> LocalObjective:
        return LocalObjective()
