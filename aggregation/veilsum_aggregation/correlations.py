"""Correlations from a noised matrix of second moments."""

import math

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import ALIKE, Z95, Answer, Figure, NotEstimable
from veilsum_aggregation.group_means import kurtosis
from veilsum_aggregation.moments import NOISE_FLOOR

NORMAL = 3.3
"""The largest fourth moment that :func:`~veilsum_aggregation.group_means.kurtosis` gives numbers without a heavy tail."""


def correlation(moments: Floats, i: int, j: int, diagonal_std: float, cross_std: float, grain: float = 0.0) -> Answer:
    """The correlation of numbers i and j from M = sum z z', z = (1, x), (d + 1, d + 1), with its interval.

    The noise's variance is by the delta rule in the six entries that r is made of: of columns whose means are far from 0, the
    entries of the first row have most of it. That of sampling is (1 - r^2)^2 f / n, whose interval is Fisher's, of the error
    sqrt(f / (n - 3)) on his scale: f is 1 of normal numbers. It is 1 + r^2 (a + b) / 4 where one is a line of the other plus
    what does not depend on it, a and b their excess kurtosis, that of :func:`~veilsum_aggregation.group_means.kurtosis`; of
    two events' indicators it is known (:func:`_of_events`). The noise's error is no smaller near 1, so that both are combined
    by their ends' distances (Zou and Donner 2008).

    Args:
        i, j: from 0, without the constant.
        diagonal_std, cross_std: of the noise of an entry of the diagonal, and of one above it.
        grain: what rounding changes an entry by at most, for each record; 0 where noise hides it.
    """
    advice = "more records, or more epsilon"
    n = float(moments[0, 0])
    if not n > max(NOISE_FLOOR * diagonal_std, 0.0):
        return NotEstimable("the released count is within its noise", advice)
    a, b = i + 1, j + 1
    mi, mj = moments[0, a] / n, moments[0, b] / n
    vi, vj = float(moments[a, a] / n - mi * mi), float(moments[b, b] / n - mj * mj)
    errors = (math.hypot(diagonal_std * (1.0 + m**4) ** 0.5, 2.0 * m * cross_std) / n for m in (mi, mj))
    if any(v <= NOISE_FLOOR * error + 2.0 * grain for v, error in zip((vi, vj), errors, strict=True)):
        return (
            NotEstimable("a variance is within its noise", advice) if diagonal_std else NotEstimable("a column does not vary")
        )
    r = float(moments[a, b] / n - mi * mj) / math.sqrt(vi * vj)
    value = min(max(r, -1.0), 1.0)
    u = 1.0 / math.sqrt(vi * vj)
    of_cross = u, value * mi / vi - u * mj, value * mj / vj - u * mi
    of_diagonal = value / (2.0 * vi), value / (2.0 * vj), u * mi * mj - value / 2.0 * (mi * mi / vi + mj * mj / vj)
    noise = ((cross_std * math.hypot(*of_cross)) ** 2 + (diagonal_std * math.hypot(*of_diagonal)) ** 2) / n**2
    least = 2.0 * (math.sqrt(2.0) * diagonal_std / n + grain) + ALIKE
    if max(1.0 - float(moments[place, place]) / n for place in (a, b)) <= least:
        tails = _of_events(value, mi, mj, n)
    else:
        tails = 1.0 + value**2 * sum(max(kurtosis(m, v) - NORMAL, 0.0) for m, v in ((mi, vi), (mj, vj))) / 4.0
    centre, half = math.atanh(value * (1.0 - 1e-12)), Z95 * math.sqrt(tails / (n - 3.0)) if n > 3.0 else math.inf
    below, above = value - math.tanh(centre - half), math.tanh(centre + half) - value
    low, high = value - math.hypot(below, Z95 * math.sqrt(noise)), value + math.hypot(above, Z95 * math.sqrt(noise))
    return Figure(value, math.sqrt(noise), (1.0 - value**2) * math.sqrt(tails / n), low, high).within(-1.0, 1.0)


def _of_events(r: float, mi: float, mj: float, n: float) -> float:
    """f of two columns of -1 and 1 with these means: standardised, such a number has x^2 = 1 + s x, s its skewness, by which
    all fourth moments follow. It is at least 1, and where more than n - 4 of n agree that of n - 4."""
    short = max(1.0 - r * r, min(4.0 / n, 1.0))
    r = math.copysign(math.sqrt(1.0 - short), r)
    one, other = (-2.0 * m / math.sqrt(max(1.0 - m * m, ALIKE)) for m in (mi, mj))
    of_r = (1.0 + r * r / 2.0) * (1.0 + one * other * r) - 0.75 * r * r * (2.0 + one * one + other * other)
    return max(of_r / short**2, 1.0)
