"""The coordinator's part of the objectives of local training: what it broadcasts, and what it makes of the sites' blocks.

All of it is computed from released sums. The sites' part stands in :mod:`veilsum_privacy.training.objectives`.
"""

from __future__ import annotations

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import Release
from veilsum_privacy.training.objectives import Objective, iir, proto, scaffold
from veilsum_privacy.training.objectives.dyn import Dyn

CLEAR = 3.0
"""Standard deviations of its noise that a class count must exceed for its prototype to be used."""


class ServerPart:
    """The part of an objective that keeps nothing. Subclasses are those of the objectives that need more."""

    def broadcast(self) -> dict[str, Floats]:
        """Arrays for the next round, beside the model."""
        return {}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        """Take in a round and return the update to make.

        Args:
            release: of the round.
            update: mean update (P,) of the sites that took part.
            weight: sum of their weights, by which weighted blocks are divided; positive.
            share: of the study's participants that took part.
        """
        return update


class ControlPart(ServerPart):
    """SCAFFOLD: c <- c + share mean(change of c_i)."""

    def __init__(self, size: int) -> None:
        self.control = np.zeros(size)

    def broadcast(self) -> dict[str, Floats]:
        return {scaffold.CONTROL: self.control}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        self.control = self.control + share * release.values[scaffold.CHANGE] / weight
        return update


class DynPart(ServerPart):
    """FedDyn: h <- h - alpha share mean(update), and the next model lies at mean(models) - h / alpha."""

    def __init__(self, size: int, alpha: float) -> None:
        self.h, self._alpha = np.zeros(size), alpha

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        self.h = self.h - self._alpha * share * update
        step: Floats = update - self.h / self._alpha
        return step


class ProtoPart(ServerPart):
    """FedProto: prototypes are released class sums over released class counts, of classes whose count is beyond its noise.

    Args:
        classes, size: K and H.
        radius: what the sums are in units of.
        count_std: standard deviation of one site's noise in a count.
    """

    def __init__(self, classes: int, size: int, radius: float, count_std: float) -> None:
        self.prototypes, self.known = np.zeros((classes, size)), np.zeros(classes)
        self._radius, self._std = radius, count_std

    def broadcast(self) -> dict[str, Floats]:
        return {proto.PROTOTYPES: self.prototypes, proto.KNOWN: self.known}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        counts, sums = release.values[proto.COUNTS], release.values[proto.SUMS]
        clear = counts > max(CLEAR * self._std * len(release.cohort) ** 0.5, 1e-3)
        self.prototypes = self.prototypes.copy()
        self.prototypes[clear] = self._radius * sums[clear] / counts[clear, None]
        self.known = np.where(clear, 1.0, self.known)
        return update


class IirPart(ServerPart):
    """FedIIR: a moving average of the sites' mean head gradient."""

    def __init__(self, size: int, ema: float) -> None:
        self.gradient, self.known, self._ema = np.zeros(size), np.zeros(1), ema

    def broadcast(self) -> dict[str, Floats]:
        return {iir.GRADIENT: self.gradient, iir.KNOWN: self.known}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        mean = release.values[iir.GRADIENT] / weight
        self.gradient = self._ema * self.gradient + (1.0 - self._ema) * mean if self.known.any() else mean
        self.known = np.ones(1)
        return update


def server_part(objective: Objective, step_std: float) -> ServerPart:
    """The part of this objective.

    Args:
        objective: as the study names it.
        step_std: standard deviation of one site's noise in a step's sum, over the bound on a record's part; 0 without noise.
    """
    if isinstance(objective, scaffold.Scaffold):
        return ControlPart(objective.size)
    if isinstance(objective, Dyn):
        return DynPart(objective.size, float(objective.options.alpha))
    if isinstance(objective, proto.Proto):
        (classes, size), radius = objective.broadcast()[proto.PROTOTYPES], float(objective.options.radius)
        return ProtoPart(classes, size, radius, step_std / proto.COUNT_SHARE**0.5)
    if isinstance(objective, iir.Iir):
        return IirPart(objective.broadcast()[iir.GRADIENT][0], float(objective.options.ema))
    return ServerPart()
