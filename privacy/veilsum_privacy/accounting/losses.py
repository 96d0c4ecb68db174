"""Privacy losses of Poisson-sampled Gaussian steps, and how to integrate over them.

The privacy loss of neighbours P and Q is the random variable Y = log P / Q under P. Where a record is removed, P is the
mixture (1 - q) N(0, 1) + q N(D / sigma, 1) and Q is N(0, 1); where one is added, they change places. Positions x are in
standard deviations of the noise.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.domination import Direction

_TAIL = 9.0  # standard deviations beyond which a normal has a mass of 2e-19
_DIGITS = 36.0  # quadrature errors are near exp(-36)
_SCAN = 96
_DEPTH = 45.0  # what is below exp(-45) of an integrand's peak is left out


@dataclass(frozen=True)
class LossSteps:
    """Poisson-sampled Gaussian steps, equal ones merged; g different ones.

    Attributes:
        rate: (g,) q in (0, 1).
        shift: (g,) D / sigma.
        count: (g,) how many of each, as floating-point numbers.
        unsampled: sum of (D / sigma)^2 over all releases without sampling, which are one Gaussian mechanism.
    """

    rate: Floats
    shift: Floats
    count: Floats
    unsampled: float

    def take(self, chosen: NDArray[np.intp]) -> "LossSteps":
        """Some of the sampled steps, without the unsampled."""
        return LossSteps(self.rate[chosen], self.shift[chosen], self.count[chosen], 0.0)

    def with_unsampled(self) -> "LossSteps":
        """The same with all unsampled releases as one more step, of rate 1."""
        rate, shift, count = (
            np.append(self.rate, 1.0),
            np.append(self.shift, math.sqrt(self.unsampled)),
            np.append(self.count, 1.0),
        )
        return LossSteps(rate, shift, count, 0.0)

    def loss(self, x: Floats) -> Floats:
        """log((1 - q) + q w) at x standard deviations; x (g, n), the result too."""
        log_ratio = self.shift[:, np.newaxis] * x - (self.shift**2 / 2)[:, np.newaxis]
        with np.errstate(divide="ignore"):
            loss: Floats = np.logaddexp(np.log1p(-self.rate)[:, np.newaxis], np.log(self.rate)[:, np.newaxis] + log_ratio)
        return loss


@dataclass(frozen=True)
class Quadrature:
    """A trapezoidal rule for every step: ``nodes`` points from ``start``, ``spacing`` apart; all (g,)."""

    start: Floats
    spacing: Floats
    nodes: NDArray[np.intp]


def plan_quadrature(steps: LossSteps, direction: Direction, c: float, largest: float) -> Quadrature:
    """Points that integrate exp((c + i v) Y) under P for every |v| <= ``largest`` with an error near exp(-36).

    The integrand is analytic in a strip, in which it grows no faster than exp(y^2 / 2 + |v| shift y) times, for an added
    record, |1 + u|^-c with the zeros of 1 + u at its edge; the distance y is chosen where that leaves the widest spacing.
    """
    shift = steps.shift
    growth = 0.5 if direction > 0 else 0.5 + c * shift**2 / 8
    strip = np.minimum(np.sqrt(_DIGITS / growth), (math.pi if direction > 0 else 2.0) / shift)
    spacing = 2 * math.pi / (largest * shift + _DIGITS / strip + growth * strip)
    start, stop = window(steps, direction, c)
    nodes = np.ceil((stop - start) / spacing).astype(np.intp) + 1
    return Quadrature(start, spacing, nodes)


def window(steps: LossSteps, direction: Direction, c: float) -> tuple[Floats, Floats]:
    """Between which x the integrand is not negligible, for every step: (g,) and (g,)."""
    if direction > 0:
        start, stop = np.full_like(steps.shift, -_TAIL), (1 + c) * steps.shift + _TAIL
    else:
        start, stop = -c * steps.shift - _TAIL, np.full_like(steps.shift, _TAIL)
    gap = (stop - start) / (_SCAN - 1)
    x = start[:, np.newaxis] + gap[:, np.newaxis] * np.arange(_SCAN)
    exponent = ((1 + c) if direction > 0 else -c) * steps.loss(x) - x * x / 2
    kept = exponent > exponent.max(axis=1, keepdims=True) - _DEPTH
    kept |= (gap > 0.5)[:, np.newaxis]  # too coarse a scan to judge by
    first, last = np.argmax(kept, axis=1), _SCAN - 1 - np.argmax(kept[:, ::-1], axis=1)
    return start + gap * np.maximum(first - 1, 0), start + gap * np.minimum(last + 1, _SCAN - 1)
