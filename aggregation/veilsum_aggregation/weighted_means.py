"""Means by treatment under inverse-probability weights, and their difference, from noised weighted sums.

A mean is sum w y / sum w (Hajek 1971). Its sampling variance is sum w^2 (y - mean)^2 / (sum w)^2, with the weights taken as
known; that they were estimated makes the true one smaller (Lunceford and Davidian 2004), that they were estimated with noise
makes it larger.
"""

import math
from dataclasses import dataclass

from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable, normal_figure, ratio_figure
from veilsum_aggregation.moments import NOISE_FLOOR


@dataclass(frozen=True)
class WeightedSums:
    """Weighted sums of one treatment, in units in which the largest weight is 1.

    Attributes:
        weights, outcomes: sum w and sum w y.
        squares: sum w^2 (1, y, y^2).
        std: of the noise in each of the first two.
        squares_std: of that in each of ``squares``.
        largest: the largest weight itself; weights of records sum up to about as many as there are in all treatments.
    """

    weights: float
    outcomes: float
    squares: tuple[float, float, float]
    std: float
    squares_std: float = 0.0
    largest: float = math.inf

    def mean(self) -> Answer:
        """With its interval by Fieller's rule."""
        one, linear, square = self.squares
        sampling = (max(square, 0.0), -2.0 * linear, max(one, 0.0))
        noise = (self.std**2, 0.0, self.std**2)
        return ratio_figure(self.outcomes, self.weights, noise, sampling, "more records, tighter bounds, or more epsilon")

    def effective(self) -> float | None:
        """(sum w)^2 / sum w^2: of how many records of equal weight the mean has the error (Kish 1965), at most of all records.

        None where noise hides it.
        """
        if not self.squares[0] > NOISE_FLOOR * self.squares_std or not self.weights > NOISE_FLOOR * self.std:
            return None
        return min(self.weights**2 / self.squares[0], self.weights * self.largest)


def difference(treated: Answer, untreated: Answer) -> Answer:
    """Difference of two independent figures."""
    if isinstance(treated, NotEstimable):
        return treated
    if isinstance(untreated, NotEstimable):
        return untreated
    variances = (treated.noise_error**2 + untreated.noise_error**2, treated.sampling_error**2 + untreated.sampling_error**2)
    return normal_figure(treated.value - untreated.value, *variances)


def ratio(treated: Answer, untreated: Answer) -> Answer:
    """Ratio of two independent shares, with an interval on the scale of logarithms."""
    if isinstance(treated, NotEstimable):
        return treated
    if isinstance(untreated, NotEstimable):
        return untreated
    if min(treated.value, untreated.value) <= 0.0:
        return NotEstimable("a share is within its noise", "more records, tighter bounds, or more epsilon")
    value = treated.value / untreated.value
    noise, sampling = (
        math.hypot(getattr(treated, part) / treated.value, getattr(untreated, part) / untreated.value)
        for part in ("noise_error", "sampling_error")
    )
    reach = math.exp(min(Z95 * math.hypot(noise, sampling), 700.0))
    return Figure(value, value * noise, value * sampling, value / reach, value * reach)
