"""Maps that give one site's features the moments of all (FedAlign).

Sums come as the blocks of the task "power-moments", in their own units, with the noise of each block. Where they are noised,
clear moments must not be given instead: a map from clear local moments would break the sensitivity of all that follows. A map
works on one value at a time, so a feature of a record depends on that record alone, to the last bit. This module reads no
record and knows no images: moments of a channel are those of one column, repeated for its features.

Cubics of a normal variable with a given skewness and kurtosis, and their inverses (the power method).

P(w) = -c + b w + c w^2 + d w^3 of a standard normal w has mean 0; its variance is 1, and its skewness and excess kurtosis
what is asked, where (b, c, d) solve three equations (Fleishman, Psychometrika 43, 1978). Only cubics that rise everywhere are
taken, for a map between distributions must keep the order of values. Everything here is elementwise: no result depends on
what stands beside a value in its array, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools, Floats, Integers
from veilsum_aggregation.feature_moments import FeatureMoments, moments_of_sums, read_reference

STAGES = 14
"""Steps of the continuation from the normal distribution to the target; each is solved before the next begins."""

_NEWTON_IN_STAGE = 4
_NEWTON_AT_END = 8
_RESIDUAL = 1e-9
_STRAIGHT = 1e-9
"""A cubic whose d is smaller is w itself, to 1e-7 within 10 standard deviations: its c is below sqrt(3 b d)."""

INVERSE_STEPS = 10
"""Newton steps of the inverse. It starts at most 65% above the solution, from where 7 reach the last bits."""


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

    def take(self, columns: NDArray[np.intp]) -> Cubics:
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
        straight = self.d < _STRAIGHT
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


def fit_cubics(skewness: Floats, excess: Floats) -> Cubics:
    """The cubics with these skewnesses and excess kurtoses, both (m,), where a rising one has them.

    By Newton's method with continuation: the targets are t times those asked, for t from 1/14 to 1, and (b, c, d) begins at
    (1, 0, 0), which solves t = 0 exactly. The pairs that rising cubics have are star-shaped about (0, 0): roughly
    1.53 s^2 + 0.008 s^4 <= excess <= 43 and |s| < 4.3. A pair that is not finite has none.
    """
    known = np.isfinite(skewness) & np.isfinite(excess)
    target = np.stack([np.zeros(skewness.shape), np.where(known, skewness, 0.0), np.where(known, excess, 0.0)], axis=-1)
    # What no rising cubic has is not worth an overflow.
    far = (np.abs(target[:, 1]) > 5.0) | (np.abs(target[:, 2]) > 60.0)
    target[far] = 0.0
    x = np.tile(np.array([1.0, 0.0, 0.0]), (len(target), 1))
    moved = np.flatnonzero(target.any(axis=-1))
    for stage in range(1, STAGES + 1 if len(moved) else 1):
        for _ in range(_NEWTON_AT_END if stage == STAGES else _NEWTON_IN_STAGE):
            x[moved] = _newton(x[moved], target[moved] * (stage / STAGES))
    with np.errstate(over="ignore", invalid="ignore"):
        residual = np.abs(_equations(x) - target).max(axis=-1, initial=0.0)
    b, c, d = x.T
    rises = (b > 0.0) & (d >= -_STRAIGHT) & (c * c <= 3.0 * b * np.maximum(d, 0.0) + 1e-12)
    rising: Bools = known & ~far & (residual <= _RESIDUAL) & rises
    return Cubics(np.where(rising, b, 1.0), np.where(rising, c, 0.0), np.where(rising, np.maximum(d, 0.0), 0.0), rising)


def _equations(x: Floats) -> Floats:
    """Variance less 1, skewness and excess kurtosis (m, 3) of the cubics x (m, 3)."""
    b, c, d = x.T
    variance = b * b + 6.0 * b * d + 2.0 * c * c + 15.0 * d * d - 1.0
    skewness = 2.0 * c * (b * b + 24.0 * b * d + 105.0 * d * d + 2.0)
    inner = 12.0 + 48.0 * b * d + 141.0 * c * c + 225.0 * d * d
    excess = 24.0 * (b * d + c * c * (1.0 + b * b + 28.0 * b * d) + d * d * inner)
    return np.stack([variance, skewness, excess], axis=-1)


def _newton(x: Floats, target: Floats) -> Floats:
    """One step for every row; a row that leaves the neighbourhood of all rising cubics (all are within 2) is started over."""
    b, c, d = x.T
    jacobian = np.empty((len(x), 3, 3))
    jacobian[:, 0] = np.stack([2.0 * b + 6.0 * d, 4.0 * c, 6.0 * b + 30.0 * d], axis=-1)
    second = b * b + 24.0 * b * d + 105.0 * d * d + 2.0
    jacobian[:, 1] = np.stack([2.0 * c * (2.0 * b + 24.0 * d), 2.0 * second, 2.0 * c * (24.0 * b + 210.0 * d)], axis=-1)
    by_b = d + c * c * (2.0 * b + 28.0 * d) + 48.0 * d**3
    by_c = 2.0 * c * (1.0 + b * b + 28.0 * b * d) + 282.0 * c * d * d
    by_d = b + 28.0 * b * c * c + 24.0 * d + 144.0 * b * d * d + 282.0 * c * c * d + 900.0 * d**3
    jacobian[:, 2] = 24.0 * np.stack([by_b, by_c, by_d], axis=-1)
    determinant = np.abs(np.linalg.det(jacobian))
    singular = ~(determinant > 1e-12)
    jacobian[singular] = np.eye(3)
    step = np.linalg.solve(jacobian, (_equations(x) - target)[..., None])[..., 0]
    moved = np.where(singular[:, None], x, x - step)
    lost = ~(np.abs(moved).max(axis=-1, initial=0.0) <= 2.0)
    return cast(Floats, np.where(lost[:, None], np.array([1.0, 0.0, 0.0]), moved))


def _cube_root_above(t: Floats) -> Floats:
    """An upper bound of the cube root of t >= 0, at most 13% above it.

    From the exponent and a tangent, for these are correctly rounded wherever a value stands in an array.
    """
    mantissa, exponent = np.frexp(t)
    thirds = np.floor_divide(exponent, 3)
    rest = np.ldexp(mantissa, exponent - 3 * thirds)  # in [0.5, 4)
    tangent = 1.14471424256 + (rest - 1.5) * 0.25438094278962935  # of the cube root at 1.5, rounded up
    return cast(Floats, np.where(t > 0.0, np.ldexp(tangent, thirds), 0.0))


Adjust = Literal["mean", "variance", "both"]

REACH = 4.0
"""How many standard deviations the normal variable of a cubic is followed. Beyond it a cubic is a guess that grows fast."""

LARGEST_RATIO = 5.0
"""A map multiplies the spread of a feature by at most this, and divides it by at most this."""


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


def moment_map(
    own: FeatureMoments, reference: FeatureMoments, *, order: Literal[2, 4] = 2, adjust: Adjust = "both", tau: float = 1.0
) -> MomentMap:
    """The map that gives features with the moments ``own`` those of ``reference``.

    A column that either cannot tell stays as it is. With ``order`` 4, columns whose pairs of skewness and kurtosis a rising
    cubic has on both sides are mapped by all four moments, the others by mean and variance.

    Args:
        own, reference: of the same m features.
        order: 2 or 4.
        adjust: which of mean and variance to change; four moments take both.
        tau: how far to go, in [0, 1].

    Raises:
        ValueError: ``tau`` is outside [0, 1], four moments are to adjust but one, or the numbers of features differ.
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError("tau must be between 0 and 1")
    if order == 4 and adjust != "both":
        raise ValueError("four moments adjust mean and variance")
    if len(own) != len(reference):
        raise ValueError(f"a reference for {len(reference)} features came for {len(own)}")
    told = np.minimum(own.order, reference.order)
    deviation = np.sqrt(np.where(told >= 2, own.variance, 1.0))
    ratio = np.clip(np.sqrt(np.where(told >= 2, reference.variance, 1.0)) / deviation, 1.0 / LARGEST_RATIO, LARGEST_RATIO)
    if adjust == "mean":
        ratio = np.ones(len(own))
    shaped = (told == 4) & (order == 4)
    # A column without a shape is taken for normal, which is known at once.
    own_cubics, reference_cubics = (
        fit_cubics(np.where(shaped, moments.skewness, 0.0), np.where(shaped, moments.kurtosis - 3.0, 0.0))
        for moments in (own, reference)
    )
    shaped &= own_cubics.monotone & reference_cubics.monotone
    return MomentMap(
        own.mean,
        deviation,
        own.mean if adjust == "variance" else reference.mean,
        ratio * deviation,
        np.where(shaped, 4, np.where(told >= 2, 2, 0)).astype(np.int64),
        own_cubics,
        reference_cubics,
        tau,
    )


def local_map(
    blocks: Mapping[str, Floats],
    noise: Mapping[str, float],
    reference: Mapping[str, Floats],
    *,
    order: Literal[2, 4] = 2,
    adjust: Adjust = "both",
    tau: float = 1.0,
) -> MomentMap:
    """The map of one site, from the power sums that it kept and the broadcast reference.

    Raises:
        ValueError, KeyError: blocks or reference are not what :func:`moments_of_sums` and :func:`read_reference` take.
    """
    own = moments_of_sums(blocks, noise)
    return moment_map(own, read_reference(reference, len(own)), order=order, adjust=adjust, tau=tau)
