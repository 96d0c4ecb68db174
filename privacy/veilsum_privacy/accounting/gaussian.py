"""The Gaussian mechanism without sampling, whose epsilon has a closed form.

Integer noise is continuous noise of hardly less variance, rounded: what is proven of the one holds for the other.

Lemma. Let m be an integer, z ~ N(m, s^2), and let y be an integer drawn with probability proportional to exp(-(z - y)^2 / 2
t^2). Then the probability of every y is that of the discrete Gaussian of mean m and variance s^2 + t^2 times a factor
between 1 - c and 1 + c, c = 4.1 exp(-2 pi^2 t^2).

Proof. By Poisson's summation formula the sum over all integers y of exp(-(z - y)^2 / 2 u^2) is sqrt(2 pi) u times 1 + 2 sum
over k >= 1 of exp(-2 pi^2 u^2 k^2) cos(2 pi k z), for every real z: sqrt(2 pi) u times a factor 1 +- b(u) with b(u) = 2.0001
exp(-2 pi^2 u^2) for u >= 1. With u = t, what y is drawn with is the density of N(z, t^2) at y times 1 / (1 +- b(t)).
Integrated over z it is the density of N(m, s^2 + t^2) at y times such a factor; and with u^2 = s^2 + t^2 that density is the
discrete Gaussian's probability times 1 +- b(u), b(u) < b(t).

So a release of integers with discrete Gaussian noise of variance v is a release with continuous noise of variance v - t^2,
worked on without looking at the records again. This holds for vectors value by value, for Poisson samples (the lemma is used
given the sample), and for any sequence of releases, each chosen by those before. It is used with t^2 = 4, where c < 3e-34:
over 10^18 values in all, likelihoods change by a factor within 1 +- 1e-15, which every figure's rounding up exceeds.

A sum of discrete Gaussians of variances v and w is the discrete Gaussian of variance v + w times a factor 1 +- 4.1 exp(-2
pi^2 u^2), u^2 = v w / (v + w), by the same formula: with shares of variance 16 or more u^2 is at least 8 and the factor
within 1 +- 1e-67.
"""

import math
from functools import lru_cache

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse

SCALE_BITS = 60
"""Ratios, and curves of RDP, are added in whole numbers of 2^-60, rounded up: sums of them are exact."""

SMOOTHING = 4
"""t^2: by how much the variance of integer noise exceeds that of the continuous noise it is made of, in grid units squared."""

_FAR = 30.0  # standard deviations, beyond which a normal's mass is computed by its asymptotic series
_LARGEST_RATIO = 1e10  # beyond it epsilon is of no use to anyone, and the formula loses its digits


@lru_cache(maxsize=1024)  # a site asks for the price of one total at every check of a round, and for its studies' again
def analytic_gaussian_epsilon(ratio: float, delta: float) -> float:
    """Exact epsilon of a continuous Gaussian mechanism, rounded up (Balle and Wang 2018, theorem 8).

    Args:
        ratio: (D / sigma)^2, or the sum of the ratios of unsampled releases, which compose to one.
        delta: in (0, 1/2).
    """
    if not 0.0 < delta < 0.5:
        raise Misuse("Delta must lie in (0, 1/2).")
    if not (math.isfinite(ratio) and ratio >= 0):
        raise Misuse("The ratio of sensitivity to noise must be finite and not negative.")
    if ratio == 0:
        return 0.0
    if ratio > _LARGEST_RATIO:
        return ratio / 2 + math.sqrt(2 * ratio * math.log(1 / delta))  # Bun and Steinke 2016, proposition 1.3
    mu = math.sqrt(ratio)
    low, high = 0.0, mu
    if gaussian_delta(mu, low) <= delta:
        return 0.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def gaussian_profile(mu: float, epsilon: Floats) -> Floats:
    """delta at each ``epsilon`` of a Gaussian mechanism with D / sigma = mu."""
    from scipy.special import log_ndtr, ndtr  # a fifth of a second of a process's start, which sampled releases alone need

    deltas: Floats = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return deltas


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The same at one epsilon, of the standard library alone: who samples nothing never loads scipy.

    Args:
        mu: positive.
        epsilon: 0 or more.
    """
    lost = epsilon + _log_normal(-mu / 2 - epsilon / mu)  # below 0 but for rounding, by Mills' ratio
    return math.erfc((epsilon / mu - mu / 2) * math.sqrt(0.5)) / 2 - math.exp(min(lost, 0.0))


def _log_normal(x: float) -> float:
    """Logarithm of a standard normal's mass below ``x``, at most 0."""
    if x > -_FAR:
        return math.log(math.erfc(-x * math.sqrt(0.5)) / 2)
    term = total = 1.0
    for odd in range(1, 15, 2):  # Abramowitz and Stegun 26.2.12; the first term left out is below 1e-17
        term *= -odd / (x * x)
        total += term
    return math.log(total / -x) - math.log(2 * math.pi) / 2 - x * x / 2
