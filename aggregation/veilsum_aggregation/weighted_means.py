"""Means by treatment under inverse-probability weights, and their difference, from noised weighted sums.

A mean is sum w y / sum w (Hajek 1971). Its sampling variance is sum w^2 (y - mean)^2 / (sum w)^2, with the weights taken as
known; that they were estimated makes the true one smaller (Lunceford and Davidian 2004), that they were estimated with noise
makes it larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veilsum_aggregation.figures import Z95, Answer, Drowned, Figure, normal_figure, ratio_figure


@dataclass(frozen=True)
class WeightedSums:
    """Of one treatment, in units in which the largest weight is 1.

    Attributes:
        weights, outcomes: sum w and sum w y.
        squares: sum w^2 (1, y, y^2).
        std: of the noise in each of the first two.
    """

    weights: float
    outcomes: float
    squares: tuple[float, float, float]
    std: float

    def mean(self) -> Answer:
        """With its interval by Fieller's rule."""
        one, linear, square = self.squares
        sampling = (max(square, 0.0), -2.0 * linear, max(one, 0.0))
        noise = (self.std**2, 0.0, self.std**2)
        return ratio_figure(self.outcomes, self.weights, noise, sampling, "more records, tighter bounds, or more epsilon")

    def effective(self) -> float | None:
        """(sum w)^2 / sum w^2: of how many records of equal weight the mean has the error; None where noise hides it."""
        return None if self.squares[0] <= 0.0 else max(self.weights, 0.0) ** 2 / self.squares[0]


def difference(treated: Answer, untreated: Answer) -> Answer:
    """Of two independent figures."""
    if isinstance(treated, Drowned):
        return treated
    if isinstance(untreated, Drowned):
        return untreated
    variances = (
        treated.noise_error**2 + untreated.noise_error**2,
        treated.sampling_error**2 + untreated.sampling_error**2,
    )
    return normal_figure(treated.value - untreated.value, *variances)


def ratio(treated: Answer, untreated: Answer) -> Answer:
    """Of two independent shares, with an interval on the scale of logarithms."""
    if isinstance(treated, Drowned):
        return treated
    if isinstance(untreated, Drowned):
        return untreated
    if min(treated.value, untreated.value) <= 0.0:
        return Drowned("a share is within its noise", "more records, tighter bounds, or more epsilon")
    value = treated.value / untreated.value
    noise, sampling = (
        math.hypot(getattr(treated, part) / treated.value, getattr(untreated, part) / untreated.value)
        for part in ("noise_error", "sampling_error")
    )
    reach = math.exp(min(Z95 * math.hypot(noise, sampling), 700.0))
    return Figure(value, value * noise, value * sampling, value / reach, value * reach)
