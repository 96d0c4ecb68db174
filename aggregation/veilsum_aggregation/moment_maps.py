"""Maps of columns by their moments: one value at a time, to the last bit, whatever stands beside it in an array.

What gives a map its numbers is in :mod:`veilsum_aggregation.moment_alignment`; here they are applied.

P(w) = -c + b w + c w^2 + d w^3 of a standard normal w has mean 0; its variance is 1, and its skewness and excess kurtosis what
was asked (Fleishman, Psychometrika 43, 1978). Only cubics that rise everywhere are inverted.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools, Floats, Integers

STRAIGHT = 1e-9
"""A cubic whose d is smaller is w itself, to 1e-7 within 10 standard deviations: its c is below sqrt(3 b d)."""

INVERSE_STEPS = 10
"""Newton steps of the inverse. It starts at most 65% above the solution, from where 7 reach the last bits."""


REACH = 4.0
"""How many standard deviations the normal variable of a cubic is followed. Beyond it a cubic is a guess that grows fast."""


@dataclass(frozen=True)
class Cubics:
    """P_i(w) = -c_i + b_i w + c_i w^2 + d_i w^3, one for each column i of an array.

    Attributes:
        b, c, d: (m,).
        monotone: (m,) whether a rising cubic has these moments. Where it is False the others are those of P(w) = w.
    """

    b: Floats
    c: Floats
    d: Floats
    monotone: Bools

    def take(self, columns: NDArray[np.intp]) -> "Cubics":
        """The cubics of these columns."""
        return Cubics(self.b[columns], self.c[columns], self.d[columns], self.monotone[columns])

    def value(self, w: Floats) -> Floats:
        """P_i(w) for w (..., m)."""
        result: Floats = ((self.d * w + self.c) * w + self.b) * w - self.c
        return result

    def inverse(self, z: Floats) -> Floats:
        """The w with P_i(w) = z, for z (..., m); infinite or NaN where z is, or where it overflows.

        With u = w + c / 3d and r = z + c - 2 c^3 / 27 d^2 + b c / 3d the equation is d u^3 + e u = r, e = b - c^2 / 3d >= 0.
        By symmetry let r >= 0. The left side rises and is convex for u >= 0, so the solution is at most
        h = min((r / d)^(1/3), r / e), and at least 0.68 h, for at t h the left side is at most (t^3 + t) r. Newton's steps
        from h fall to it and never pass it; each is kept between 0 and h all the same. A last step on P itself takes back
        what the shift by c / 3d cancelled.
        """
        straight = self.d < STRAIGHT
        b, d = np.where(straight, 1.0, self.b), np.where(straight, 1.0, self.d)
        c = np.where(straight, 0.0, self.c)
        shift = c / (3.0 * d)
        e = np.maximum(b - c * shift, 0.0)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            r = z + c + shift * (b - 2.0 * c * shift / 3.0)
            size = np.abs(r)
            high = _cube_root_above(size / d)
            high = np.where(size < e * high, size / np.where(e > 0.0, e, 1.0), high)
            u = high
            for _ in range(INVERSE_STEPS):
                slope = 3.0 * d * u * u + e
                step = ((d * u * u + e) * u - size) / np.where(slope > 0.0, slope, 1.0)
                u = np.minimum(np.maximum(u - step, 0.0), high)
            w = np.copysign(u, r) - shift
            slope = (3.0 * d * w + 2.0 * c) * w + b
            # Where P is nearly flat, the shifted equation knows the solution better.
            polish = (((d * w + c) * w + b) * w - c - z) / np.where(slope > 0.1, slope, np.inf)
            result: Floats = np.where(straight, z, w - polish)
        return result


@dataclass(frozen=True)
class MomentMap:
    """x' = target + spread P_g(P_k^-1((x - centre) / deviation)) in each of m columns, part ``tau`` of the way.

    Attributes:
        centre, deviation: (m,) of the site.
        target, spread: (m,) of what it is mapped to; spread / deviation is within [1/5, 5].
        order: (m,) by how many moments a column is mapped: 0, where it stays as it is, 2, or 4.
        own, reference: the cubics P_k and P_g; those of columns of order 4 count.
        tau: in [0, 1].
    """

    centre: Floats
    deviation: Floats
    target: Floats
    spread: Floats
    order: Integers
    own: Cubics
    reference: Cubics
    tau: float = 1.0

    def __call__(self, x: Floats) -> Floats:
        """Map x (n, m), or (n, m p) with p features side by side for each column; each value by itself, to the last bit."""
        m = len(self.centre)
        if x.ndim != 2 or m == 0 or x.shape[1] % m:
            raise ValueError(f"the map is for {m} columns")
        values = x.reshape(len(x), m, x.shape[1] // m)
        with np.errstate(over="ignore", invalid="ignore"):
            z = (values - self.centre[:, None]) / self.deviation[:, None]
            four = np.flatnonzero(self.order == 4)
            z[:, four] = np.moveaxis(self._shaped(np.moveaxis(z[:, four], 1, 2), four), 2, 1)
            moved = self.target[:, None] + self.spread[:, None] * z
            if self.tau != 1.0:
                moved = values + self.tau * (moved - values)
        result: Floats = np.where((self.order > 0)[:, None], moved, values).reshape(x.shape)
        return result

    def affine(self) -> tuple[Floats, Floats]:
        """Scale and offset (m,) of a map by mean and variance, for :func:`scaled`; 1 and 0 of a column that stays as it is.

        Raises:
            ValueError: a column is mapped by four moments.
        """
        if (self.order == 4).any():
            raise ValueError("a map by four moments is not affine")
        moved, ratio = self.order > 0, self.spread / self.deviation
        scale = np.where(moved, 1.0 + self.tau * (ratio - 1.0), 1.0)
        return scale, np.where(moved, self.tau * (self.target - ratio * self.centre), 0.0)

    def _shaped(self, z: Floats, columns: NDArray[np.intp]) -> Floats:
        """P_g(P_k^-1(z)) for z (..., columns), continued with slope 1 from where P_k^-1(z) is :data:`REACH` from 0."""
        own, reference = self.own.take(columns), self.reference.take(columns)
        low, high = own.value(np.array([-REACH, REACH])[:, None])
        inner = np.minimum(np.maximum(z, low), high)
        shaped: Floats = reference.value(own.inverse(inner)) + (z - inner)
        return shaped

    def columns(self) -> dict[str, int]:
        """How many columns are mapped by four moments, by mean and variance, and not at all."""
        return {name: int((self.order == order).sum()) for name, order in (("four", 4), ("two", 2), ("none", 0))}


def scaled(x: Floats, scale: Floats, offset: Floats) -> Floats:
    """scale x + offset in each of m columns of x (n, m), or (n, m p) with p features side by side for each."""
    values = x.reshape(len(x), len(scale), -1)
    result: Floats = (values * scale[:, None] + offset[:, None]).reshape(x.shape)
    return result


def _cube_root_above(t: Floats) -> Floats:
    """An upper bound of the cube root of t >= 0, at most 13% above it.

    From the exponent and a tangent, for these are correctly rounded wherever a value stands in an array.
    """
    mantissa, exponent = np.frexp(t)
    thirds = np.floor_divide(exponent, 3)
    rest = np.ldexp(mantissa, exponent - 3 * thirds)  # in [0.5, 4)
    tangent = 1.14471424256 + (rest - 1.5) * 0.25438094278962935  # of the cube root at 1.5, rounded up
    return cast(Floats, np.where(t > 0.0, np.ldexp(tangent, thirds), 0.0))
