"""Renyi differential privacy of Gaussian mechanisms, with and without Poisson sampling, at a fixed set of orders.

A sampled step's curve is computed here instead of order by order, 100 times faster than the usual series: a sum of positive
terms at integer orders, a trapezoidal rule at the others. Both give E[((1 - q) + q w)^a] - 1 without ever subtracting 1, so
small sampling rates lose no digits. This module knows neither events nor budgets.
"""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.gaussian import SCALE_BITS

ORDERS: Floats = np.array(
    [1 + step / 10 for step in range(1, 100)]
    + list(range(11, 64))
    + [64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024],
    dtype=np.float64,
)
"""Renyi orders of every RDP curve; up to 1024 so that epsilon below 0.1 can be told."""

STRICT_ORDERS = (3.8, 5.5, 7.5, 10.0, 16.0, 40.0, 96.0, 192.0)
"""The orders that strict composition fixes beforehand, chosen for epsilon 0.1 to 10 at delta 1e-3 to 1e-9."""

Curve = tuple[int, ...]
"""RDP at all orders in units of 2^-60."""

_WHOLE = np.flatnonzero(np.floor(ORDERS) == ORDERS)
_BETWEEN = np.flatnonzero(np.floor(ORDERS) != ORDERS)
_STRICT = np.searchsorted(ORDERS, STRICT_ORDERS)
_LARGEST_SHIFT = 3.5  # D / sigma up to which the trapezoidal rule stays within floating point
_TAIL = 9.5  # standard deviations; a normal's mass beyond is below 1e-20
_DIGITS = 40.0  # the trapezoidal rule's error is near exp(-40)
_ROUNDING_UP = 2.0**-33  # relative; a hundred times the largest error found against arithmetic of 40 digits


def conversion(delta: float) -> Floats:
    """What converting RDP of each order into (epsilon, delta) adds to epsilon (Balle et al. 2020, theorem 21)."""
    added: Floats = np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return added


def to_floats(curve: Curve) -> Floats:
    """RDP at all orders as floating-point numbers."""
    return np.array(curve, dtype=np.float64) * 2.0**-SCALE_BITS


def standard_epsilon(curve: Floats, delta: float) -> float:
    """The smallest epsilon over all orders."""
    return max(0.0, float(np.min(curve + conversion(delta))))


def strict_epsilon(curve: Floats, delta: float) -> float:
    """The smallest epsilon over the strict orders, each of which may fail with an eighth of delta."""
    return max(0.0, float(np.min((curve + conversion(delta / len(STRICT_ORDERS)))[_STRICT])))


@lru_cache(maxsize=1 << 10)
def step_curve(rate: float, ratio: float) -> Curve:
    """RDP of one step at all orders, rounded up; never 0.

    Args:
        rate: Poisson sampling rate q in (0, 1].
        ratio: (D / sigma)^2 of the step.
    """
    curve = np.nextafter(ORDERS * (ratio / 2), np.inf)
    if rate < 1.0:
        curve = np.minimum(curve, sampled_curve(rate, ratio))  # sampling never costs more
    return tuple(map(int, np.maximum(np.ceil(np.ldexp(curve, SCALE_BITS)), 1.0).tolist()))


@lru_cache(maxsize=1 << 14)
def sampled_curve(rate: float, ratio: float) -> Floats:
    """RDP of one Poisson-sampled Gaussian step at all orders, rounded up by 1.2e-10 (Mironov, Talwar, Zhang 2019, section 3).

    At order a that is log A(a) / (a - 1), A(a) = E[((1 - q) + q w)^a] with w the likelihood ratio of N(D, sigma^2) to
    N(0, sigma^2) under the latter. With very little noise (D / sigma > 3.5) values between integer orders are linear
    interpolations of log A, which is convex: never too small.
    """
    log_a = np.empty_like(ORDERS)
    log_a[_WHOLE] = _whole_orders(rate, ratio)
    if ratio <= _LARGEST_SHIFT**2:
        log_a[_BETWEEN] = _between_orders(rate, ratio)
    else:
        known = np.concatenate([[1.0], ORDERS[_WHOLE]])
        log_a[_BETWEEN] = np.interp(ORDERS[_BETWEEN], known, np.concatenate([[0.0], log_a[_WHOLE]]))
    curve: Floats = log_a / (ORDERS - 1) * (1 + _ROUNDING_UP)
    curve.flags.writeable = False
    return curve


class _Binomials(NamedTuple):
    """Terms k = 2..a of every integer order a: log C(a, k), k, a - k and (k^2 - k) / 2; each order's first term and number."""

    log: Floats
    k: Floats
    rest: Floats
    pairs: Floats
    starts: NDArray[np.intp]
    lengths: NDArray[np.intp]


@cache
def _binomials() -> _Binomials:
    from scipy.special import gammaln  # a seventh of a participant's start, which sampled releases alone need

    orders = ORDERS[_WHOLE].astype(np.int64)
    a = np.repeat(orders, orders - 1).astype(np.float64)
    k = np.concatenate([np.arange(2, order + 1) for order in orders]).astype(np.float64)
    log_binomials = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
    return _Binomials(log_binomials, k, a - k, (k * k - k) / 2, np.cumsum(orders - 1) - (orders - 1), orders - 1)


def _whole_orders(rate: float, ratio: float) -> Floats:
    """log A at integer orders: A - 1 = sum over k >= 2 of C(a, k) (1 - q)^(a - k) q^k (exp((k^2 - k) ratio / 2) - 1)."""
    binomials = _binomials()
    exponent = binomials.pairs * ratio
    terms = np.log(-np.expm1(-exponent))
    terms += exponent + binomials.log + binomials.k * math.log(rate) + binomials.rest * math.log1p(-rate)
    largest = np.maximum.reduceat(terms, binomials.starts)
    sums = np.add.reduceat(np.exp(terms - np.repeat(largest, binomials.lengths)), binomials.starts)
    log_a: Floats = np.logaddexp(0.0, largest + np.log(sums))
    return log_a


def _between_orders(rate: float, ratio: float) -> Floats:
    """log A at fractional orders: A - 1 is the mean of (1 + u)^a - 1 - a u, u = q (w - 1), whose mean is 0.

    The integrand is analytic in a strip up to the zeros of 1 + u, pi sigma / D away, and falls off like a Gaussian: the
    trapezoidal rule converges exponentially (Trefethen and Weideman 2014).
    """
    orders, shift = ORDERS[_BETWEEN][:, np.newaxis], math.sqrt(ratio)
    strip = min(math.pi / shift, math.sqrt(2 * _DIGITS))
    spacing = 2 * math.pi / (_DIGITS / strip + strip / 2)
    x = np.arange(-_TAIL, float(orders[-1, 0]) * shift + _TAIL, spacing)
    v = np.log1p(rate * np.expm1(shift * x - ratio / 2))
    log_weight = math.log(spacing / math.sqrt(2 * math.pi)) - x * x / 2
    # (1 + u)^a - 1 - a u = (e^y - 1 - y) - a (e^v - 1 - v) with v = log(1 + u), y = a v: no digits lost for small u.
    small = np.abs(v) < 0.5 / float(orders[-1, 0])
    near, far = v[small], v[~small]
    near_weight, far_log_weight = np.exp(log_weight[small]), log_weight[~small]
    far_weight = np.exp(far_log_weight)
    excess = _small_excess(orders * near) @ near_weight
    excess += np.exp(orders * far + far_log_weight).sum(axis=1) - (1 + orders * far) @ far_weight
    once = _small_excess(near) @ near_weight + (np.exp(far + far_log_weight) - (1 + far) * far_weight).sum()
    log_a: Floats = np.log1p(excess - orders[:, 0] * once)
    return log_a


def _small_excess(y: Floats) -> Floats:
    """exp(y) - 1 - y for |y| < 0.5, by its series."""
    series = np.zeros_like(y)
    for factor in range(16, 2, -1):
        series = (1 + series) * (y / factor)
    return (1 + series) * (y * y / 2)
