"""An affine map of rows whose results do not depend, to the last bit, on the rows that stand beside them."""

from __future__ import annotations

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput

_MANTISSA = 53
LARGEST = 2.0**1000
"""Beyond it values do not fit the slices, so that products would no longer be exact."""


def exact_affine(x: Floats, matrix: Floats, offset: Floats) -> Floats:
    """``x @ matrix.T + offset`` where a row depends on its own row of ``x`` alone, whatever rows stand beside it.

    A matrix product may add up in another order when there are more rows. Here both factors are cut into two integers of b
    bits each, with 2 b + log2(p) <= 53, so that every product of slices is exact in any order; slices of slices are left out.
    Relative to the largest |x_i| and the largest entry of the matrix, a result is off by less than p 2^(2 - 2b).

    Args:
        x: (n, p), finite.
        matrix: (m, p).
        offset: (m,).

    Returns:
        (n, m); NaN in a row of ``x`` with values above 2^1000, which no power of two could bring below 1.

    Raises:
        HostileInput: the map has values that are not finite or above 2^1000.
    """
    p = matrix.shape[1]
    if not (np.abs(matrix).max(initial=0.0) <= LARGEST and np.abs(offset).max(initial=0.0) <= LARGEST):
        raise HostileInput("An affine map holds a value that is not finite, or too large.")
    x = np.where(np.abs(x).max(axis=1, initial=0.0)[:, None] <= LARGEST, x, np.nan)
    bits = (_MANTISSA - math.ceil(math.log2(max(p, 2)))) // 2
    rows = _power(np.abs(x).max(axis=1, initial=0.0))[:, None]
    scale = float(_power(np.array([np.abs(matrix).max(initial=0.0)]))[0])
    x_high, x_low = _slices(x / rows, bits)
    m_high, m_low = _slices(matrix / scale, bits)
    step = 2.0**-bits
    product = (x_high @ m_high.T) + ((x_high @ m_low.T) + (x_low @ m_high.T)) * step
    result: Floats = product * (step * step * scale) * rows + offset
    return result


def _power(values: Floats) -> Floats:
    """The smallest power of two that is larger, within the range of normal numbers; 1 for 0."""
    powers: Floats = np.ldexp(1.0, np.clip(np.frexp(values)[1], -1000, 1000))
    return powers


def _slices(values: Floats, bits: int) -> tuple[Floats, Floats]:
    """Integers (high, low) of at most ``bits`` bits with values = (high + low / 2^bits) / 2^bits, cut off below."""
    scaled = np.ldexp(values, bits)
    high = np.trunc(scaled)
    return high, np.trunc(np.ldexp(scaled - high, bits))
