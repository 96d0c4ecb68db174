"""Correlations from a noised matrix of second moments."""

import math

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR


def correlation(moments: Floats, i: int, j: int, diagonal_std: float, cross_std: float, grain: float = 0.0) -> Answer:
    """The correlation of numbers i and j from M = sum z z', z = (1, x), (d + 1, d + 1), with an interval on Fisher's z.

    Var r = sigma_o^2 / (n^2 v_i v_j) + (r^2 / 4) (sigma^2 / n^2) (v_i^-2 + v_j^-2) from the noise, and (1 - r^2)^2 / n from
    sampling.

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
    if min(vi, vj) <= NOISE_FLOOR * diagonal_std / n + 2.0 * grain:
        return (
            NotEstimable("a variance is within its noise", advice) if diagonal_std else NotEstimable("a column does not vary")
        )
    r = float(moments[a, b] / n - mi * mj) / math.sqrt(vi * vj)
    inside = min(max(r, -0.999), 0.999)
    noise = cross_std**2 / (n * n * vi * vj) + inside**2 / 4.0 * (diagonal_std / n) ** 2 * (vi**-2 + vj**-2)
    sampling = (1.0 - inside**2) ** 2 / n
    half = Z95 * math.sqrt(noise + sampling) / (1.0 - inside**2)
    centre = math.atanh(inside)
    return Figure(inside, math.sqrt(noise), math.sqrt(sampling), math.tanh(centre - half), math.tanh(centre + half))
