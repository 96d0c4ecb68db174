"""The Gaussian mechanism without sampling, whose epsilon has a closed form."""

from __future__ import annotations

import math

import numpy as np

from veilsum_node.errors import Misuse


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
    mu = math.sqrt(ratio)
    from scipy.special import log_ndtr, ndtr  # a seventh of a participant's start

    def profile(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))

    low, high = 0.0, mu
    if profile(low) <= delta:
        return 0.0
    while profile(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high
