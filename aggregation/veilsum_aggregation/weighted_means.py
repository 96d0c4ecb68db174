"""Means by treatment under inverse-probability weights, and their difference, from noised weighted sums.

A mean is sum w y / sum w (Hajek 1971). Its sampling variance is sum w^2 (y - mean)^2 / (sum w)^2, with the weights taken as
known; that they were estimated makes the true one smaller (Lunceford and Davidian 2004), that they were estimated with noise
makes it larger.
"""

import math
from dataclasses import dataclass

from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable, all_alike, normal_figure, ratio_figure
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

    def mean(self, *, share: bool = False) -> Answer:
        """With its interval by Fieller's rule.

        Without noise, outcomes that are all alike show no variance: of shares the interval is Wilson's, of as many records
        of equal weight as :meth:`effective` says; of as many numbers some may be others (:func:`all_alike`), of a single one
        any value is in it.
        """
        one, linear, square = self.squares
        sampling = (max(square, 0.0), -2.0 * linear, max(one, 0.0))
        noise = (self.std**2, 0.0, self.std**2)
        if self.std == 0.0 and self.weights > 0.0:
            value = self.outcomes / self.weights
            alike = square - 2.0 * value * linear + value * value * one <= ALIKE * one
            if alike and share:
                value, sampling = float(round(value)), (0.0, one, -one)
                return ratio_figure(value * self.weights, self.weights, noise, sampling).within(0.0, 1.0)
            if alike:
                number = self.effective() or 0.0
                return Figure(value, 0.0, 1.0, -math.inf, math.inf) if number < 1.5 else all_alike(value, number, -1.0, 1.0)
        return ratio_figure(self.outcomes, self.weights, noise, sampling, "more records, tighter bounds, or more epsilon")

    def effective(self) -> float | None:
        """(sum w)^2 / sum w^2: of how many records of equal weight the mean has the error (Kish 1965), at most of all records.

        None where noise hides it.
        """
        if not self.squares[0] > NOISE_FLOOR * self.squares_std or not self.weights > NOISE_FLOOR * self.std:
            return None
        return min(self.weights**2 / self.squares[0], self.weights * self.largest)


ALIKE = 1e-12
"""A variance of outcomes in [-1, 1] that rounding may be."""

ALL_ALIKE = NotEstimable("the outcomes of each treatment are all alike", "more records")


def certain(figure: Figure) -> bool:
    """Whether no record differs from it."""
    return figure.noise_error == 0.0 and figure.sampling_error <= math.sqrt(ALIKE)


def both_certain(one: Figure, other: Figure) -> bool:
    """Whether no record differs from either of two."""
    return certain(one) and certain(other)


def difference(treated: Answer, untreated: Answer) -> Answer:
    """Difference of two independent figures; where one has no variance, by their ends' distances (Zou and Donner 2008)."""
    if isinstance(treated, NotEstimable):
        return treated
    if isinstance(untreated, NotEstimable):
        return untreated
    if both_certain(treated, untreated):
        return ALL_ALIKE
    if certain(treated) or certain(untreated):
        value = treated.value - untreated.value
        below = math.hypot(treated.value - treated.low, untreated.high - untreated.value)
        above = math.hypot(treated.high - treated.value, untreated.value - untreated.low)
        error = max(below, above) / Z95
        return Figure(value, 0.0, error, value - below, value + above)
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
    if both_certain(treated, untreated):
        return ALL_ALIKE
    if certain(treated) or certain(untreated):
        below = math.hypot(math.log(treated.value / treated.low), math.log(untreated.high / untreated.value))
        above = math.hypot(math.log(treated.high / treated.value), math.log(untreated.value / untreated.low))
        return Figure(value, 0.0, value * max(below, above) / Z95, value * math.exp(-below), value * math.exp(above))
    noise, sampling = (
        math.hypot(getattr(treated, part) / treated.value, getattr(untreated, part) / untreated.value)
        for part in ("noise_error", "sampling_error")
    )
    reach = math.exp(min(Z95 * math.hypot(noise, sampling), 700.0))
    return Figure(value, value * noise, value * sampling, value / reach, value * reach)
