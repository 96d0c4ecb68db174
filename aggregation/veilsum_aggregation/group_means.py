"""Means and variances of bounded numbers, by group, from noised sums, with tests of equal means.

All is for x in [-1, 1]; the caller rescales. A group gives the noised count n, s = sum x and t = sum (x^2 - c) with a public
c.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from veilsum_aggregation.figures import (
    ALIKE,
    Z95,
    Answer,
    Figure,
    NotEstimable,
    Test,
    all_alike,
    by_f,
    chi_squared,
    exact_mean,
    hidden_share,
    of_both,
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
    def alike(self) -> bool:
        """Whether the numbers may all be alike: their variance is within its noise, or rounding."""
        value, error = self.plain_variance()
        return value <= max(2.0 * error, ALIKE)

    @property
    def at_bounds(self) -> bool:
        """Whether all numbers may be at a bound, as an event's indicator is: what E(1 - x^2) is lies within its noise, or
        rounding."""
        n = self.count
        short = 1.0 - self.shift - self.square / n
        return short <= max(2.0 * math.hypot(self.square_std, (1.0 - self.shift) * self.count_std) / n, ALIKE)

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
    """The mean, in [-1, 1]: of the noise by Fieller's rule, of sampling by Student's t; of one record anything."""
    if sums.drowned:
        return NotEstimable("the released count is within its noise", "more records, or more epsilon")
    noise = ratio_figure(sums.total, sums.count, (sums.total_std**2, 0.0, sums.count_std**2), (0.0, 0.0, 0.0))
    if isinstance(noise, NotEstimable):
        return noise
    m = min(max(noise.value, -1.0), 1.0)
    found = exact_mean(sums.count, m, sums.careful_variance(), -1.0, 1.0)
    if sums.alike:
        found = found.reaching(all_alike(m, sums.count, -1.0, 1.0))
    return of_both(noise, found).within(-1.0, 1.0)


def variance(sums: NumberSums) -> Answer:
    """The population variance, in [0, 1].

    Noise: of A - v n with A = sum (x - m)^2, a quadratic in v, and of the square of the noise in s. Sampling: by chi-squared,
    as of normal numbers, with the degrees of freedom that the fourth moment leaves, 2 (n - 1) / (k - 1) (:func:`kurtosis`).
    """
    if sums.drowned:
        return NotEstimable("the released count is within its noise", "more records, or more epsilon")
    if sums.single:
        return NotEstimable("there is one record, which has no deviation", "more records")
    n = sums.count
    m = min(max(sums.total / n, -1.0), 1.0)
    value, _ = sums.plain_variance()
    far = min(abs(m) + math.hypot(sums.total_std, m * sums.count_std) / n, 1.0) ** 2  # where noise changes more
    offset, total = sums.shift + far, sums.total_std**2
    of_noise = (
        sums.square_std**2 + 4.0 * far * total + 2.0 * total**2 / n**2 + offset**2 * sums.count_std**2,
        -2.0 * offset * sums.count_std**2,
        sums.count_std**2,
    )
    noise = ratio_figure(value * n, n, of_noise, (0.0, 0.0, 0.0))
    if isinstance(noise, NotEstimable):
        return noise
    careful = sums.careful_variance()
    degrees = 2.0 * (n - 1.0) / (kurtosis(m, careful) - 1.0)
    low, high = (careful * n / (n - 1.0) * degrees / end for end in chi_squared_ends(degrees))
    if sums.alike:  # up to half of the share that may be others, as far away as can be
        hidden = min(hidden_share(n), 0.5)
        high = max(high, careful + hidden * (1.0 - hidden) * (1.0 + abs(m)) ** 2)
    elif sums.at_bounds:
        least, most = _of_two_values((1.0 + m) / 2.0, n)
        low, high = min(low, least), max(high, most)
    found = Figure(careful, 0.0, careful * math.sqrt(2.0 / degrees), min(low, careful), max(high, careful))
    return of_both(noise, found).within(0.0, 1.0)


def _of_two_values(p: float, n: float) -> tuple[float, float]:
    """The variances 4 q (1 - q) of -1 and 1 that a share p of n may come from: q in Clopper and Pearson's (1934) interval."""
    from scipy.special import betaincinv

    events = min(max(p, 0.0), 1.0) * n
    low = float(betaincinv(events, n - events + 1.0, 0.025)) if events > 0.0 else 0.0
    high = float(betaincinv(events + 1.0, n - events, 0.975)) if events < n else 1.0
    ends = [4.0 * q * (1.0 - q) for q in (low, high)]
    return min(ends), 1.0 if low <= 0.5 <= high else max(ends)


def chi_squared_ends(degrees: float) -> tuple[float, float]:
    """What chi-squared exceeds in a fortieth, and in all but a fortieth; of 40 degrees or more to 1e-4 (Wilson and Hilferty
    1931)."""
    if degrees < 40.0:
        from scipy.special import chdtri

        more, less = float(chdtri(degrees, 0.025)), float(chdtri(degrees, 0.975))
        return max(more, 1e-300), max(less, 1e-300)
    part = 2.0 / (9.0 * degrees)
    more, less = (degrees * (1.0 - part + sign * Z95 * math.sqrt(part)) ** 3 for sign in (1.0, -1.0))
    return more, less


LEAST_VARIANCE = 1e-3
"""The variance to assume of a number in [-1, 1] where noise leaves none; without noise the estimate stands."""

HEAVY = 5.0
"""How much heavier than a beta distribution's the tail of a skewed number is taken to be: log-normal lengths of stay are."""


def kurtosis(m: float, v: float) -> float:
    """A fourth standardised moment for a number in [-1, 1] of mean m and variance v, which no released sum tells.

    That of the beta distribution on [-1, 1], which is 1.8 for evenly spread numbers; what it has above the normal
    distribution's 3, which skewed numbers have, is taken :data:`HEAVY` times, but no more than (1 + |m|)^2 / v, which no such
    number exceeds: of an event's indicator that is all but what it has.
    """
    p = (m + 1.0) / 2.0
    pq, small = p * (1.0 - p), v / 4.0
    if pq <= 0.0 or small <= 0.0:
        return 3.0
    nu = max(pq / small - 1.0, 0.0)
    excess = 6.0 * ((1.0 - 2.0 * p) ** 2 * (nu + 1.0) - pq * (nu + 2.0)) / (pq * (nu + 2.0) * (nu + 3.0))
    found = 3.0 + (HEAVY * excess if excess > 0.0 else max(excess + 0.3, -1.2))
    return max(min(found, (1.0 + abs(m)) ** 2 / v), 1.8)


KNOWN_MEAN = "the values of a group are all alike, and its mean is taken as known: of few records, or of an event, it is not"
"""What is to be known of a test of a group that does not vary."""


def equal_means(groups: list[NumberSums]) -> Test | NotEstimable:
    """Welch's (1951) test that all groups have one mean, without assuming equal variances, with the noise in them.

    A group's mean has the variance v_g / (n_g - 1) + (sigma_s^2 + m^2 sigma_n^2) / n_g^2, m the mean of all, so that the test
    is by scores s_g - m n_g; of that as many degrees of freedom as its part by sampling leaves (Satterthwaite 1946). Groups
    within noise are left out by their counts alone, so that no result chooses them. Of two groups without noise it is his t.
    """
    kept = [place for place, group in enumerate(groups) if not (group.drowned or group.single)]  # one tells of no difference
    left_out = tuple(place for place in range(len(groups)) if place not in kept)
    if len(kept) < 2:
        exact = all(group.exact for group in groups)
        why = "fewer than two groups have two records" if exact else "fewer than two groups are above the noise"
        return NotEstimable(why, "fewer groups, more records, or more epsilon")
    n = np.array([groups[place].count for place in kept])
    s = np.array([groups[place].total for place in kept])
    m, count = float(s.sum() / n.sum()), len(kept)
    # Not the careful variance: a test that rejects too rarely is as wrong as one that rejects too often.
    least = [0.0 if groups[place].exact else LEAST_VARIANCE for place in kept]
    spread = np.array([groups[place].plain_variance()[0] for place in kept])
    spread = np.clip(spread, least, 1.0)
    flat = spread <= ALIKE
    if np.count_nonzero(flat) > 1:
        return NotEstimable("two groups or more do not vary")
    sampling = np.where(flat, 0.0, spread / (n - 1.0))
    noise = np.array([groups[place].total_std ** 2 + (m * groups[place].count_std) ** 2 for place in kept]) / n**2
    of_means = sampling + noise
    weights = flat.astype(np.float64) if flat.any() else 1.0 / of_means  # a mean that is known has all the weight
    part = np.divide(sampling, of_means, out=np.ones(count), where=of_means > 0.0)
    lost = float((((1.0 - weights / weights.sum()) * part) ** 2 / (n - 1.0)).sum())
    apart = s / n - s[-1] / n[-1]
    contrasts = np.eye(count)[:-1] - np.eye(count)[-1]
    found = chi_squared(apart[:-1], contrasts * noise @ contrasts.T, contrasts * sampling @ contrasts.T, count - 1, left_out)
    squared = count * count - 1.0
    tested = by_f(found, squared / (3.0 * lost), 1.0 + 2.0 * (count - 2.0) / squared * lost)
    return replace(tested, note=KNOWN_MEAN) if flat.any() and isinstance(tested, Test) else tested
