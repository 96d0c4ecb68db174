"""The Gaussian mechanism without sampling, whose epsilon has a closed form."""

from __future__ import annotations

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse

_LARGEST_RATIO = 1e10  # beyond it epsilon is of no use to anyone, and the formula loses its digits


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
    if _profile(mu, low) <= delta:
        return 0.0
    while _profile(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _profile(mu, middle) > delta else (low, middle)
    return high


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest (D / sigma)^2, rounded down, of which :func:`analytic_gaussian_epsilon` is at most ``epsilon``.

    Args:
        epsilon: positive.
        delta: in (0, 1/2).
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0.0 < delta < 0.5):
        raise Misuse("A positive epsilon and a delta in (0, 1/2) are needed.")
    low, high = 0.0, 1.0
    while _profile(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _profile(middle, epsilon) > delta else (middle, high)
    return low * low * (1 - 1e-11)


def gaussian_profile(mu: float, epsilon: Floats) -> Floats:
    """delta at each ``epsilon`` of a Gaussian mechanism with D / sigma = mu."""
    from scipy.special import log_ndtr, ndtr  # a seventh of a participant's start

    deltas: Floats = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return deltas


def _profile(mu: float, epsilon: float) -> float:
    return float(gaussian_profile(mu, np.float64(epsilon)))  # type: ignore[arg-type]
