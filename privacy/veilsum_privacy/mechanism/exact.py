"""An affine map of rows whose results do not depend, to the last bit, on the rows that stand beside them."""

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.clipping import row_extremes

_MANTISSA, _CACHED, _ROWS = 53, 2**14, 256
LARGEST = 2.0**1000
"""Beyond it values do not fit the slices, so that products would no longer be exact."""


class ExactAffine:
    """``x @ matrix.T + offset`` where a row depends on its own row of ``x`` alone, whatever rows stand beside it.

    A matrix product may add up in another order when there are more rows. Here both factors are cut into two integers of b
    bits each, with 2 b + log2(p) <= 53, so that every product of slices is exact in any order; slices of slices are left out.
    Relative to the largest |x_i| and the largest entry of the matrix, a result is off by less than p 2^(2 - 2b).
    """

    def __init__(self, matrix: Floats, offset: Floats) -> None:
        """See the class.

        Args:
            matrix: (m, p).
            offset: (m,).

        Raises:
            HostileInput: the map has values that are not finite or above 2^1000.
        """
        largest = largest_of(matrix)
        if not (largest <= LARGEST and largest_of(offset) <= LARGEST):
            raise HostileInput("An affine map holds a value that is not finite, or too large.")
        self._bits = (_MANTISSA - math.ceil(math.log2(max(matrix.shape[1], 2)))) // 2
        scale = float(_power(np.array([largest]))[0])
        self._high, self._low = (part.T for part in _slices(matrix, 1.0 / scale, self._bits))
        self._step, self._offset = 2.0**-self._bits, offset
        self._unit = self._step * self._step * scale

    def __call__(self, x: Floats, out: Floats | None = None) -> Floats:
        """The map of rows (n, p), finite: (n, m); NaN of a row with values above 2^1000, which no power of two could bring
        below 1. It is written into ``out`` where that is given."""
        found: Floats = np.empty((len(x), len(self._offset))) if out is None else out
        together = max(_ROWS, _CACHED // max(x.shape[1], len(self._offset)))
        for start in range(0, len(x), together):
            self._rows(x[start : start + together], found[start : start + together])
        return found

    def _rows(self, x: Floats, out: Floats) -> None:
        peak = row_extremes(np.maximum, np.abs(x)) if x.shape[1] else np.zeros(len(x))
        known = peak <= LARGEST
        if not known.all():
            x, peak = np.where(known[:, None], x, np.nan), np.where(known, peak, 1.0)
        rows = _power(peak)[:, None]
        high, low = _slices(x, 1.0 / rows, self._bits)
        np.matmul(high, self._high, out=out)
        rest = high @ self._low
        rest += low @ self._high
        rest *= self._step
        out += rest
        out *= self._unit
        out *= rows
        out += self._offset


def largest_of(values: Floats) -> float:
    """The largest absolute value; NaN where one is, 0 of none."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _power(values: Floats) -> Floats:
    """The smallest power of two that is larger, within the range of normal numbers; 1 for 0."""
    powers: Floats = np.ldexp(1.0, np.clip(np.frexp(values)[1], -1000, 1000))
    return powers


def _slices(values: Floats, factor: Floats | float, bits: int) -> tuple[Floats, Floats]:
    """Integers (high, low) of at most ``bits`` bits with values = (high + low / 2^bits) / 2^bits / factor, cut off below.

    ``factor`` is a power of two, or (n, 1), one for each row.
    """
    high, low = np.empty(values.shape), np.empty(values.shape)
    factors = np.broadcast_to(factor, (len(values), 1))
    for start in range(0, len(values), step := max(1, 2 * _CACHED // max(1, values.shape[1]))):  # what stays in a cache
        part = slice(start, start + step)
        scaled = np.multiply(values[part], factors[part], out=low[part])
        scaled *= 2.0**bits  # not in one: the product of both factors may overflow
        np.trunc(scaled, out=high[part])
        scaled -= high[part]
        scaled *= 2.0**bits
        np.trunc(scaled, out=scaled)
    return high, low
