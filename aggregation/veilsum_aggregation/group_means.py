"""Means and variances of bounded numbers, by group, from noised sums, with tests of equal means.

All is for x in [-1, 1]; the caller rescales. A group gives the noised count n, s = sum x and t = sum (x^2 - c) with a public
c.
"""

import math
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import (
    ALIKE,
    Answer,
    Figure,
    NotEstimable,
    Test,
    by_f,
    chi_squared,
    exact_mean,
    hidden_share,
    ratio_figure,
)
from veilsum_aggregation.moments import NOISE_FLOOR


@dataclass(frozen=True)
class NumberSums:
    """Noised sums of one number in one group, and the standard deviations of their noise, independent of one another.

    Attributes:
        count, total, square: n, s = sum x, t = sum (x^2 - shift).
        shift: c.
        count_std, total_std, square_std: of the noise.
    """

    count: float
    total: float
    square: float
    shift: float
    count_std: float
    total_std: float
    square_std: float

    @property
    def drowned(self) -> bool:
        """Whether the count is within its noise."""
        return not self.count > max(NOISE_FLOOR * self.count_std, 0.0)

    @property
    def exact(self) -> bool:
        """Whether there is no noise in them."""
        return not (self.count_std or self.total_std or self.square_std)

    @property
    def single(self) -> bool:
        """Whether there is one record at most."""
        return self.count < 1.5

    def plain_variance(self) -> tuple[float, float]:
        """The population variance, with what noise on s adds to its square taken off, and its standard error from noise."""
        n, m = self.count, self.total / self.count
        value = self.square / n + self.shift - m * m + (self.total_std**2 - m * m * self.count_std**2) / n**2
        slope = self.shift + m * m - value
        error = math.sqrt(
            self.square_std**2
            + 4.0 * m * m * self.total_std**2
            + (slope * self.count_std) ** 2
            + 2.0 * self.total_std**4 / n**2
        )
        return value, error / n

    def careful_variance(self) -> float:
        """A variance for other figures' errors: one standard error above the estimate, within what values in [-1, 1] can have.

        The estimate itself, which noise can leave near 0, would make intervals too short where noise is large.
        """
        value, error = self.plain_variance()
        m = min(max(self.total / self.count, -1.0), 1.0)
        most = max(1.0 - m * m, 1e-6)
        return min(max(value, 0.0) + error, most)


def mean(sums: NumberSums) -> Answer:
    """The mean, in [-1, 1], by Fieller's rule; without noise by Student's t, of one record anything."""
    if sums.drowned:
        return NotEstimable("the released count is within its noise", "more records, or more epsilon")
    if sums.exact:
        return exact_mean(sums.count, sums.total / sums.count, sums.plain_variance()[0], -1.0, 1.0)
    spread = sums.count * sums.careful_variance()
    return ratio_figure(sums.total, sums.count, (sums.total_std**2, 0.0, sums.count_std**2), (spread, 0.0, 0.0)).within(
        -1.0, 1.0
    )


def variance(sums: NumberSums) -> Answer:
    """The population variance, in [0, 1].

    Noise: of A - v n with A = sum (x - m)^2, a quadratic in v, and of the square of the noise in s. Sampling: n (mu4 - v^2),
    where the fourth moment is that of the beta distribution on [-1, 1] with this mean and variance, or of the normal one if
    that is larger.
    """
    if sums.drowned:
        return NotEstimable("the released count is within its noise", "more records, or more epsilon")
    if sums.exact and sums.single:
        return NotEstimable("there is one record, which has no deviation", "more records")
    n = sums.count
    m = min(max(sums.total / n, -1.0), 1.0)
    value, _ = sums.plain_variance()
    careful = sums.careful_variance()
    if sums.exact and value <= ALIKE:  # up to half of the share that may be others, as far away as can be
        hidden = min(hidden_share(n), 0.5)
        return Figure(max(value, 0.0), 0.0, 0.0, 0.0, hidden * (1.0 - hidden) * (1.0 + abs(m)) ** 2)
    if sums.exact and n < MANY:
        return _exact_variance(n, value, max(kurtosis(m, careful), 1.0 + 1e-9))
    offset = sums.shift + m * m
    noise = (
        sums.square_std**2 + 4.0 * m * m * sums.total_std**2 + 2.0 * sums.total_std**4 / n**2 + offset**2 * sums.count_std**2,
        -2.0 * offset * sums.count_std**2,
        sums.count_std**2,
    )
    spread = n * careful**2 * (kurtosis(m, careful) - 1.0)
    return ratio_figure(value * n, n, noise, (spread, 0.0, 0.0)).within(0.0, 1.0)


def _exact_variance(n: float, value: float, of_fourth: float) -> Figure:
    """By chi-squared, as of normal numbers, with the degrees of freedom that the fourth moment leaves: 2 (n - 1) / (k - 1)."""
    from scipy.special import chdtri

    degrees = 2.0 * (n - 1.0) / (of_fourth - 1.0)
    low, high = (value * n / (n - 1.0) * degrees / max(float(chdtri(degrees, tail)), 1e-300) for tail in (0.025, 0.975))
    error = value * math.sqrt(2.0 / degrees)
    return Figure(value, 0.0, error, min(low, value), max(high, value)).within(0.0, 1.0)


MANY = 200
"""Records from which on what is exact has the interval that noised sums have: a chi-squared one is the same by then."""

LEAST_VARIANCE = 1e-3
"""The variance to assume of a number in [-1, 1] where noise leaves none; without noise the estimate stands."""

HEAVY = 5.0
"""How much heavier than a beta distribution's the tail of a skewed number is taken to be: log-normal lengths of stay are."""


def kurtosis(m: float, v: float) -> float:
    """A fourth standardised moment for a number in [-1, 1] of mean m and variance v, which no released sum tells.

    That of the beta distribution on [-1, 1], which is 1.8 for evenly spread numbers; what it has above the normal
    distribution's 3, which skewed numbers have, is taken :data:`HEAVY` times.
    """
    low, small = (m + 1.0) / 2.0, v / 4.0
    if not 0.0 < low < 1.0 or not 0.0 < small < low * (1.0 - low):
        return 3.0
    nu = low * (1.0 - low) / small - 1.0
    a, b = low * nu, (1.0 - low) * nu
    excess = 6.0 * ((a - b) ** 2 * (nu + 1.0) - a * b * (nu + 2.0)) / (a * b * (nu + 2.0) * (nu + 3.0))
    return 3.0 + (HEAVY * excess if excess > 0.0 else max(excess + 0.3, -1.2))


def equal_means(groups: list[NumberSums]) -> Test | NotEstimable:
    """The score test that all groups have one mean, without assuming equal variances.

    With m = sum s / sum n: U_g = s_g - m n_g, V_g = n_g v_g + sigma_s^2 + m^2 sigma_n^2, v_g the second moment about m; U is
    centred by M = I - n 1' / N and U' (M V M')^+ U is chi-squared with G - 1 degrees of freedom. Groups within noise are left
    out by their counts alone, so that no result chooses them. Without noise it is Welch's (1951): of two groups his t.
    """
    kept = [place for place, group in enumerate(groups) if not group.drowned]
    if exact := all(group.exact for group in groups):
        kept = [place for place in kept if not groups[place].single]  # which say nothing of how numbers differ
    left_out = tuple(place for place in range(len(groups)) if place not in kept)
    if len(kept) < 2:
        why = "fewer than two groups have two records" if exact else "fewer than two groups are above the noise"
        return NotEstimable(why, "fewer groups, more records, or more epsilon")
    n = np.array([groups[place].count for place in kept])
    s = np.array([groups[place].total for place in kept])
    if exact:
        return _welch(n, s / n, np.array([max(groups[place].plain_variance()[0], 0.0) for place in kept]), left_out)
    m = float(s.sum() / n.sum())
    noise = np.array([groups[place].total_std ** 2 + (m * groups[place].count_std) ** 2 for place in kept])
    # Not the careful variance: a test that rejects too rarely is as wrong as one that rejects too often.
    spread = [min(max(groups[place].plain_variance()[0], LEAST_VARIANCE), 1.0 - min(m * m, 0.999)) for place in kept]
    sampling = n * np.array(spread)
    matrix = np.eye(len(kept)) - np.outer(n, np.ones(len(kept))) / n.sum()
    u = s - m * n
    return chi_squared(matrix @ u, matrix * noise @ matrix.T, matrix * sampling @ matrix.T, len(kept) - 1, left_out)


def _welch(n: Floats, means: Floats, variances: Floats, left_out: tuple[int, ...]) -> Test | NotEstimable:
    """Welch's test of groups of n records, n at least 2, by F; ``variances`` have the divisor n."""
    flat = variances <= ALIKE
    of_means = np.where(flat, 0.0, variances / (n - 1.0))
    if np.count_nonzero(flat) > 1:
        return NotEstimable("two groups or more do not vary")
    weights = flat.astype(np.float64) if flat.any() else 1.0 / of_means  # a mean that is known has all the weight
    share = weights / weights.sum()
    groups, lost = len(n), float(((1.0 - share) ** 2 / (n - 1.0)).sum())
    apart = means - means[-1]
    contrasts = np.eye(groups)[:-1] - np.eye(groups)[-1]
    covariance = contrasts * of_means @ contrasts.T
    found = chi_squared(apart[:-1], np.zeros_like(covariance), covariance, groups - 1, left_out)
    squared = groups * groups - 1.0
    return by_f(found, squared / (3.0 * lost), 1.0 + 2.0 * (groups - 2.0) / squared * lost)
