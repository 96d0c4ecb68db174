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

from collections.abc import Mapping
from typing import Literal, cast

import numpy as np

from veilsum_aggregation.arrays import Bools, Floats
from veilsum_aggregation.feature_moments import FeatureMoments, moments_of_sums, read_reference
from veilsum_aggregation.moment_maps import STRAIGHT, Cubics, MomentMap

STAGES = 14
"""Steps of the continuation from the normal distribution to the target; each is solved before the next begins."""

_NEWTON_IN_STAGE = 4
_NEWTON_AT_END = 8
_RESIDUAL = 1e-9


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
    rises = (b > 0.0) & (d >= -STRAIGHT) & (c * c <= 3.0 * b * np.maximum(d, 0.0) + 1e-12)
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


Adjust = Literal["mean", "variance", "both"]

LARGEST_RATIO = 5.0
"""A map multiplies the spread of a feature by at most this, and divides it by at most this."""


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
