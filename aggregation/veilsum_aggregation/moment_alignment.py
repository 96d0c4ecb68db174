"""Maps that give one site's features the moments of all (FedAlign).

Sums come as the blocks of the task "power-moments", in their own units, with the noise of each block. Where they are noised,
clear moments must not be given instead: a map from clear local moments would break the sensitivity of all that follows. A map
works on one value at a time, so a feature of a record depends on that record alone, to the last bit. This module reads no
record and knows no images: moments of a channel are those of one column, repeated for its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.feature_moments import FeatureMoments, moments_of_sums, read_reference
from veilsum_aggregation.power_polynomials import Cubics, fit_cubics

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
