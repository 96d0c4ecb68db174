"""What a regression's first release tells: moments of terms and outcome, and of which terms nothing finite can be said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilsum_aggregation import newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_aggregation.regression import Fit, UntoldFit
from veilsum_coordinator.parts.federation import Release
from veilsum_privacy.tasks.newton_step import in_units
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.coefficients import TermSums, infinite_terms
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression


@dataclass(frozen=True)
class FirstMoments:
    """Second moments of (1, terms, outcome) as they were released.

    Attributes:
        release: of the first sum.
        question: of terms and outcome.
    """

    release: Release
    question: LinearRegression

    @cached_property
    def part(self) -> ReleasedPart:
        """The question's part of it."""
        return ReleasedPart(self.question.query, self.release.values, self.release.noise_std)

    @cached_property
    def moments(self) -> Floats:
        """(p + 1, p + 1), the outcome last, scaled to [-1, 1]."""
        return self.part.moments

    @property
    def gram(self) -> Floats:
        """Gram matrix of (1, terms), (p, p)."""
        return self.moments[:-1, :-1]

    @property
    def std(self) -> float:
        """Standard deviation of the noise on the diagonal."""
        return self.part.std("diagonal")

    @property
    def events(self) -> Floats:
        """Sum of the outcome in its own units, and of its product with each term, (p,)."""
        return np.asarray(
            self.moments[:-1, -1] * self.question.outcome.half + self.moments[:-1, 0] * self.question.outcome.middle,
            dtype=np.float64,
        )

    @property
    def rate(self) -> float:
        """Mean of the outcome in its own units, at least 0."""
        mean = np.array([float(self.moments[0, -1]) / max(float(self.moments[0, 0]), 1.0)])
        return max(float(in_units(mean, self.question.outcome)[0]), 0.0)

    @property
    def spread(self) -> tuple[float, float]:
        """Mean and mean square of the outcome about the middle of its bounds, in its own units."""
        records, half = max(float(self.moments[0, 0]), 1.0), self.question.outcome.half
        return float(self.moments[0, -1]) / records * half, float(self.moments[-1, -1]) / records * half**2

    @cached_property
    def sums(self) -> TermSums:
        """What the release tells of the outcome of odds, rates and hazards."""
        cross = self.part.std("cross")
        std = math.hypot(cross * self.question.outcome.half, self.std * self.question.outcome.middle)
        return TermSums(self.moments[:-1, 0], self.events, std, self.question.outcome.half * self.part.grain)

    def no_outcome(self, family: str) -> NotEstimable | None:
        """What to say where nobody has the event, or everybody; None where some have it."""
        records, events = float(self.sums.records[0]), float(self.sums.events[0])
        floor = max(0.5 + self.sums.grain * records, NOISE_FLOOR * self.sums.std)
        what = "count above 0" if family == "poisson" else "event"
        if events <= floor:
            return NotEstimable(f"no record has the {what}, or too few against the noise", "more records, or more epsilon")
        if family == "logistic" and records - events <= floor:
            return NotEstimable("every record has the event, or nearly, against the noise", "more records, or more epsilon")
        return None

    def infinite(self, fit: Fit, family: str, most: float) -> dict[str, NotEstimable]:
        """Terms without a finite coefficient, and why; what is expected of a level is so at the mean of its other terms.

        Args:
            fit: of odds, rates or hazards.
            family: of the regression.
            most: the largest mean of counts.
        """
        if isinstance(fit, UntoldFit):
            return {}
        sums = self.sums
        known = self.gram / np.maximum(self.gram[:, :1], 1e-9)
        eta = np.where(sums.records > 0.0, known @ fit.coefficients, 0.0)
        if family == "cox":
            share = float(sums.events[0]) / max(float(sums.records[0]), 1.0)
            fitted = sums.records * share * np.exp(np.minimum(eta - eta[0], 50.0))
        else:
            fitted = sums.records * newton.mean_of("logistic" if family == "logistic" else "poisson", eta, most)[0]
        what = "a count above 0" if family == "poisson" else "the event"
        found = infinite_terms(self.question, sums, fitted, f"nobody has {what}")
        if family == "logistic":
            found |= infinite_terms(self.question, sums.rest, sums.records - fitted, "everybody has the event")
        return found
