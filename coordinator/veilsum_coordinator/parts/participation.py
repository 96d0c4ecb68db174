"""Who takes part in a round, and with which weight, such that sites count as their importance says (FedAVOT).

``available``: subsets of sites turn up with known probabilities; weights within each subset come from masked optimal
transport between importances and subsets. Who turns up is drawn here, which simulates it. ``natural``: the same weights, and
whoever comes takes part. ``coordinated``: the coordinator chooses so many sites a round with such probabilities that
importance is met exactly (:mod:`veilsum_aggregation.participation`). Weights are public and reach sites in the broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.masked_transport import Subsets, pair_probabilities, solve
from veilsum_aggregation.participation import design_weights, draw_design, inclusion_probabilities
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.weights import SCORES, WEIGHTS

SHOWN = 20
"""Most sites that a summary lists."""


class Available(Frozen):
    """One subset of sites that may turn up.

    Attributes:
        sites: their names.
        probability: of this subset, in proportion to the others'.
    """

    sites: tuple[Name, ...] = Field(min_length=1)
    probability: Real = Field(gt=0, le=1e9)


class ParticipationParameters(Frozen):
    """Who takes part, all public. One of ``rates``, ``subsets`` and, for ``coordinated``, ``size`` says how.

    Attributes:
        mode: see the module.
        importance: of each site, in proportion; None where all count alike.
        rates: of each site; two of them turn up, drawn in turn at these rates.
        subsets: that turn up.
        size: K, sites in a coordinated round.
    """

    mode: Literal["available", "coordinated", "natural"] = "available"
    importance: dict[Name, Real] | None = None
    rates: dict[Name, Real] | None = None
    subsets: tuple[Available, ...] = ()
    size: int | None = Field(default=None, ge=1, le=1024)

    @property
    def smallest(self) -> int | None:
        """Members of the smallest cohort that is asked for; None where whoever comes takes part."""
        if self.mode == "natural":
            return None
        if self.size is not None:
            return self.size
        return 2 if self.rates is not None else min((len(own.sites) for own in self.subsets), default=None)

    @model_validator(mode="after")
    def _complete(self) -> ParticipationParameters:
        if self.mode == "coordinated":
            if self.size is None or self.rates is not None or self.subsets:
                raise ValueError("coordinated participation takes a size, and neither rates nor subsets")
        elif (self.rates is None) == (not self.subsets) or self.size is not None:
            raise ValueError("participation by availability takes either rates, of pairs, or subsets, and no size")
        return self


class Participation:
    """Members and weights of each round of a study.

    Raises:
        ConfigurationError: the parameters name other sites than the study's, or not all of them.
    """

    def __init__(self, parameters: ParticipationParameters, participants: Sequence[str]) -> None:
        self._parameters, self._names = parameters, tuple(participants)
        given = parameters.importance or dict.fromkeys(self._names, 1.0)
        importance = self._by_site(given, "importance")
        self.importance = importance / importance.sum()
        if parameters.mode == "coordinated":
            self._coordinate()
        else:
            self._transport()

    def draw(self, rng: np.random.Generator) -> tuple[tuple[str, ...] | None, dict[str, Floats]]:
        """The next round's members, None for whoever comes, and the arrays that weigh them."""
        mode = self._parameters.mode
        if mode == "natural":
            return None, {SCORES: self._scores}
        if mode == "available":
            members = self._subsets[int(rng.choice(len(self._probabilities), p=self._probabilities))]
            return tuple(self._names[index] for index in members), {SCORES: self._scores}
        members = draw_design(self._inclusion, self._parameters.size or 1, rng)
        return tuple(self._names[index] for index in members), {WEIGHTS: self._weights}

    def summary(self) -> dict[str, Any]:
        """What was reached: for weights by transport the residual, whether importance can be met, and who is in the way."""
        if self._parameters.mode == "coordinated":
            always = [name for name, share in zip(self._names, self._inclusion, strict=True) if share >= 1.0 - 1e-12]
            return {"mode": "coordinated", "size": self._parameters.size, "residual": 0.0, "always": always[:SHOWN]}
        plan = self._plan
        return {
            "mode": self._parameters.mode,
            "subsets": len(self._probabilities),
            "residual": float(plan.residual),
            "feasible": plan.feasible,
            "blocking": [self._names[index] for index in plan.blocking][:SHOWN],
            "blocking_sites": len(plan.blocking),
            "excess": float(plan.excess),
        }

    def _coordinate(self) -> None:
        size = self._parameters.size or 1
        if size > len(self._names):
            raise ConfigurationError(f"parameters.participation: size {size} exceeds the study's {len(self._names)} sites.")
        if size > np.count_nonzero(self.importance):
            raise ConfigurationError(f"parameters.participation: fewer than {size} sites have importance.")
        self._inclusion: Floats = inclusion_probabilities(self.importance, size)
        self._weights: Floats = design_weights(self.importance, self._inclusion)

    def _transport(self) -> None:
        rates = self._parameters.rates
        if rates is not None:
            self._subsets = Subsets.all_pairs(len(self._names))
            self._probabilities: Floats = pair_probabilities(self._by_site(rates, "rates"))
        else:
            listed = self._parameters.subsets
            self._subsets = Subsets.from_lists([self._places(subset.sites) for subset in listed])
            self._probabilities = np.array([float(subset.probability) for subset in listed])
        self._probabilities = self._probabilities / self._probabilities.sum()
        self._plan = solve(self.importance, self._subsets, self._probabilities)
        # A site that no weight can raise has a score far below; exp of it must stay a number.
        self._scores: Floats = np.asarray(self._plan.scores, dtype=np.float64)

    def _places(self, names: Sequence[str]) -> list[int]:
        if len(set(names)) != len(names):
            raise ConfigurationError("parameters.participation: a subset names a site twice.")
        return [self._place(name) for name in names]

    def _place(self, name: str) -> int:
        if name not in self._names:
            raise ConfigurationError(
                f"parameters.participation: {name!r} is no participant of the study.", did_you_mean(name, self._names)
            )
        return self._names.index(name)

    def _by_site(self, given: Mapping[str, float], what: str) -> Floats:
        """One number a site (N,), from a table that names them all."""
        found = np.full(len(self._names), np.nan)
        for name, value in given.items():
            found[self._place(name)] = float(value)
        if np.isnan(found).any():
            missing = [name for name, value in zip(self._names, found, strict=True) if np.isnan(value)]
            raise ConfigurationError(f"parameters.participation.{what}: nothing is said of {', '.join(missing[:5])}.")
        if (found < 0.0).any() or found.sum() <= 0.0:
            raise ConfigurationError(f"parameters.participation.{what}: numbers must not be negative, nor all zero.")
        return found
