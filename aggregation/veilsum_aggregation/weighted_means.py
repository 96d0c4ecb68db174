"""Means by treatment under inverse-probability weights, and their difference, from noised weighted sums.

A mean is sum w y / sum w (Hajek 1971). Its sampling variance is sum w^2 (y - mean)^2 / (sum w)^2, with the weights taken as
known; that they were estimated makes the true one smaller (Lunceford and Davidian 2004), that they were estimated with noise
makes it larger.
"""

import math
from dataclasses import dataclass

from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable, all_alike, of_both, ratio_figure
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

        Where the outcomes vary by no more than twice what the noise does, they may all be alike: of shares the interval is
        Wilson's, of as many records of equal weight as :meth:`effective` says; of as many numbers some may be others
        (:func:`all_alike`), of a single one any value is in it.
        """
        one, linear, square = self.squares
        noise, advice = (self.std**2, 0.0, self.std**2), "more records, tighter bounds, or more epsilon"
        found = ratio_figure(self.outcomes, self.weights, noise, (max(square, 0.0), -2.0 * linear, max(one, 0.0)), advice)
        if isinstance(found, NotEstimable):
            return found
        value, number = found.value, self.effective()
        varies = square - 2.0 * value * linear + value * value * one
        if number is not None and varies > max(2.0 * self.squares_std * (1.0 + value * value), ALIKE * one):
            return found
        if share:
            inside, most = min(max(self.outcomes, 0.0), self.weights), min(max(one, 0.0) + self.squares_std, self.weights)
            return ratio_figure(inside, self.weights, noise, (0.0, most, -most), advice).within(0.0, 1.0)
        if number is None:
            return found
        if number < 1.5:
            return Figure(value, found.noise_error, 1.0, -math.inf, math.inf)
        alone = ratio_figure(self.outcomes, self.weights, noise, (0.0, 0.0, 0.0), advice)
        others = all_alike(min(max(value, -1.0), 1.0), number, -1.0, 1.0)
        return alone if isinstance(alone, NotEstimable) else of_both(alone, others)

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


def both_certain(*figures: Figure) -> bool:
    """Whether no record differs from either of two."""
    return all(figure.noise_error == 0.0 and figure.sampling_error <= math.sqrt(ALIKE) for figure in figures)


def difference(treated: Answer, untreated: Answer) -> Answer:
    """Difference of two independent figures, by their ends' distances (Zou and Donner 2008)."""
    if isinstance(treated, NotEstimable):
        return treated
    if isinstance(untreated, NotEstimable):
        return untreated
    if both_certain(treated, untreated):
        return ALL_ALIKE
    value = treated.value - untreated.value
    below = math.hypot(treated.value - treated.low, untreated.high - untreated.value)
    above = math.hypot(treated.high - treated.value, untreated.value - untreated.low)
    error = (below if value > 0.0 else above) / Z95
    p_value = math.erfc(abs(value) / error / math.sqrt(2.0)) if error > 0.0 else float(value == 0.0)
    return Figure(value, *_errors(treated, untreated), value - below, value + above, p_value)


def _errors(one: Figure, other: Figure) -> tuple[float, float]:
    """Errors of the difference of two independent figures, of noise and of sampling."""
    return math.hypot(one.noise_error, other.noise_error), math.hypot(one.sampling_error, other.sampling_error)


def ratio(treated: Answer, untreated: Answer) -> Answer:
    """Ratio of two independent shares, by the distances of their ends on the scale of logarithms."""
    if isinstance(treated, NotEstimable):
        return treated
    if isinstance(untreated, NotEstimable):
        return untreated
    if min(treated.value, untreated.value) <= 0.0:
        return NotEstimable("a share is within its noise", "more records, tighter bounds, or more epsilon")
    if both_certain(treated, untreated):
        return ALL_ALIKE
    value = treated.value / untreated.value
    one, other = (figure.scaled(1.0 / figure.value) for figure in (treated, untreated))
    below, above = math.hypot(_log(one.low), _log(other.high)), math.hypot(_log(one.high), _log(other.low))
    noise, sampling = _errors(one, other)
    return Figure(
        value,
        value * noise,
        value * sampling,
        value * math.exp(-below),
        value * math.exp(above) if above < 700.0 else math.inf,
    )


def _log(ratio: float) -> float:
    """The logarithm; infinite of what is 0 or less."""
    return math.log(ratio) if ratio > 0.0 else -math.inf
