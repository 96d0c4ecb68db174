"""Epsilon by inverting the moment generating function of the summed privacy losses.

M(s) = E[exp(s Y)] of a composition is the product over its steps, and

    delta(epsilon) = E[(1 - exp(epsilon - Y))+]
                   = 1/2pi times the integral over v of M(z) exp(-z epsilon) / (z (z + 1)),  z = c + i v,  any c > 0

(Alghamdi et al. 2023). The trapezoidal rule adds to it delta(epsilon + k P) exp(c k P) for all k but 0, P = 2 pi / spacing:
nothing negative, and as little as the spacing is small. Where many steps or noise without sampling make the summed loss
smooth, M falls off quickly and few points decide, whatever the number of different steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.domination import Direction
from veilsum_privacy.accounting.losses import LossSteps, Quadrature, plan_quadrature
from veilsum_privacy.accounting.renyi import ORDERS

Complexes = NDArray[np.complex128]

_ACCEPTED = 2e-4  # in epsilon, that truncating the integral may cost
_WRAPPED = 1e-4  # relative to delta, that the trapezoidal rule may add
_LARGEST_WORK = 3e8  # points of quadrature times points of the integral: about 0.5 s
_ROUNDING = 2.0**-44  # relative to the sum of all moduli; some twenty times the largest error found
_FIRST_POINTS = 32
_BATCH = 1 << 14  # complex numbers worked on at once: they stay in the cache


@dataclass(frozen=True)
class Line:
    """Where M is inverted: at real part ``c``, with a period of P in epsilon."""

    c: float
    period: float


def choose_line(curve: Floats, delta: float) -> Line:
    """The line with the shortest period that keeps wrapping around below 1e-4 of delta.

    What is added from the left, where delta(.) <= 1, is at most exp(-c P); from the right, by Chernoff's bound at any s > c,
    M(s) exp(-(s - c) P) for epsilon >= 0. log M(s) is s times the RDP of order s + 1.
    """
    s = ORDERS - 1
    log_m = s * curve
    lines = []
    for index in range(len(s) - 1):
        c = float(s[index])
        needed = math.log(1 / delta) - math.log(_WRAPPED * min(1.0, c))
        period = max(needed / c, float(np.min((log_m[index + 1 :] + needed) / (s[index + 1 :] - c))))
        lines.append(Line(c, period))
    return min(lines, key=lambda line: line.period)


def surely_within(steps: LossSteps, direction: Direction, line: Line, epsilon: float, delta: float) -> bool:
    """Whether Chernoff's bound alone shows that delta(epsilon) <= ``delta``."""
    c, v = line.c, np.zeros(1)
    log_m = float(_log_moments(steps, direction, c, plan_quadrature(steps, direction, c, 0.0), v)[0].real)
    log_m += steps.unsampled / 2 * c * (c + 1)
    return log_m - c * epsilon + c * math.log(c / (1 + c)) - math.log1p(c) <= math.log(delta)


def epsilon_by_inversion(steps: LossSteps, direction: Direction, line: Line, delta: float, guarantee: float) -> float | None:
    """Epsilon, rounded up by what truncation may hide; None if M falls off too slowly."""
    spacing, chunks, points, work = 2 * math.pi / line.period, [], 0, 0.0
    while True:
        count = max(_FIRST_POINTS, points)
        quadrature = plan_quadrature(steps, direction, line.c, spacing * (points + count))
        work += float(quadrature.nodes.sum()) * count
        if work > _LARGEST_WORK:
            return None
        v: Floats = spacing * np.arange(points, points + count, dtype=np.float64)
        z = line.c + 1j * v
        chunks.append(_log_moments(steps, direction, line.c, quadrature, v) + steps.unsampled / 2 * z * (z + 1))
        points += count
        end = _solve_inversion(np.concatenate(chunks), chunks[-1], line.c, spacing, delta, guarantee)
        if end is not None:
            return end


def _solve_inversion(
    log_m: Complexes, last: Complexes, c: float, spacing: float, delta: float, guarantee: float
) -> float | None:
    """The epsilon where the trapezoidal sum, with a bound on the rest of it, meets delta; None while that bound matters."""
    v = spacing * np.arange(len(log_m))
    log_scale = float(log_m[0].real)
    terms = np.exp(log_m - log_scale) / ((c + 1j * v) * (c + 1 + 1j * v))
    terms[0] /= 2
    # |M| on what is left out is taken to stay below its largest value in the last chunk; 1 / v^2 is integrated.
    rest = float(np.exp(np.max(last.real) - log_scale)) / (math.pi * (v[-1] + spacing))
    # Far below epsilon the sum is smaller than its rounding errors, and must not look as if delta were met.
    rounding = _ROUNDING * spacing / math.pi * float(np.sum(np.abs(terms)))
    log_target = math.log(delta) - log_scale

    def missing(epsilon: float, added: float) -> bool:
        total = spacing / math.pi * float(np.sum((terms * np.exp(-1j * v * epsilon)).real)) + rounding + added
        return total <= 0 or math.log(total) <= log_target + c * epsilon

    upper = _smallest(lambda epsilon: missing(epsilon, rest), guarantee)
    if upper is None:
        return None
    lower = _smallest(lambda epsilon: missing(epsilon, 0.0), guarantee)
    return upper if lower is not None and upper - lower <= _ACCEPTED else None


def _smallest(reached: Callable[[float], bool], limit: float) -> float | None:
    """Where a condition begins to hold between 0 and a limit, rounded up by 1e-7; None if it does not hold at the limit."""
    low, high = 0.0, limit * (1 + 1e-9) + 1e-9
    if not reached(high):
        return None
    if reached(low):
        return 0.0
    while high - low > 1e-7 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _log_moments(steps: LossSteps, direction: Direction, c: float, quadrature: Quadrature, v: Floats) -> Complexes:
    """log M(c + i v) of all sampled steps, (len(v),); imaginary parts are right up to multiples of 2 pi."""
    total = np.zeros(len(v), dtype=np.complex128)
    order = np.argsort(quadrature.nodes)
    turn = float(v[1] - v[0]) if len(v) > 1 else 0.0
    while len(order):
        chosen = order[: max(1, _BATCH // int(quadrature.nodes[order[0]]))]
        order = order[len(chosen) :]
        part, x = steps.take(chosen), np.arange(quadrature.nodes[chosen[-1]])
        points = quadrature.start[chosen][:, np.newaxis] + quadrature.spacing[chosen][:, np.newaxis] * x
        loss = direction * part.loss(points)
        exponent = (1 + c if direction > 0 else c) * loss - points * points / 2
        peak = exponent.max(axis=1)
        state = np.exp(exponent - peak[:, np.newaxis] + 1j * v[0] * loss)
        turns = np.exp(1j * turn * loss)
        sums = np.empty((len(v), len(chosen)), dtype=np.complex128)
        for index in range(len(v)):
            np.sum(state, axis=1, out=sums[index])
            state *= turns
        scale = peak + np.log(quadrature.spacing[chosen] / math.sqrt(2 * math.pi))
        with np.errstate(divide="ignore"):
            total += (np.log(sums) + scale) @ part.count
    return total
