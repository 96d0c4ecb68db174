"""Epsilon of a whole history as exactly as it can be computed; a figure to report, which decides nothing.

Both directions are computed, a record removed and a record added, and the larger counts. This module knows neither events nor
budgets. Where many steps or noise without sampling make the summed loss smooth, its moment generating function is inverted:
M(s) = E[exp(s Y)] of a composition is the product over its steps, and

    delta(epsilon) = E[(1 - exp(epsilon - Y))+]
                   = 1/2pi times the integral over v of M(z) exp(-z epsilon) / (z (z + 1)),  z = c + i v,  any c > 0

(Alghamdi et al. 2023). The trapezoidal rule adds to it delta(epsilon + k P) exp(c k P) for all k but 0, P = 2 pi / spacing:
nothing negative, and as little as the spacing is small. M then falls off quickly and few points decide, whatever the number of
different steps. A loss that is not smooth, of few steps, sampled at small rates, that nearly always lose next to nothing, is
computed by rounding privacy losses onto a grid and convolving them (Gopi, Lee, Wutschitz 2021); masses are computed and
convolved under the tilt exp(c Y), so that small deltas lose no digits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.accountant import PRV_ERROR
from veilsum_privacy.accounting.domination import Direction, normal_mass, power
from veilsum_privacy.accounting.losses import LossSteps, Quadrature, plan_quadrature, window
from veilsum_privacy.accounting.renyi import ORDERS, standard_epsilon

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


GRID_ERROR = 0.005
"""Bound on what the rounding of all losses together does to epsilon."""

_LARGEST_GRID = 2e7  # points of the grid times different steps: about 1 s

_LARGEST_EPSILON = 500.0  # exp of it must stay far from overflow


def composed_epsilon(steps: LossSteps, delta: float, curve: Floats) -> float | None:
    """Upper end of epsilon at ``delta``: not below the true one, above it by at most 0.011, never above the guarantee.

    A thousandth of delta is left to numerical errors. Where delta(epsilon) is so flat that this alone moves epsilon by more
    than 0.0005, because delta is near the chance of being sampled at all, what is returned is above by that much more.

    Args:
        delta: in (0, 1/2).
        curve: RDP of all of it at the orders of :mod:`veilsum_privacy.accounting.renyi`.

    Returns:
        None where neither inversion nor a grid gets there.
    """
    guarantee = standard_epsilon(curve, delta)
    if guarantee == 0:
        return 0.0
    if guarantee > _LARGEST_EPSILON:
        return None
    line = choose_line(curve, delta)
    delta_error = delta / 1000 * min(1.0, line.c / 2)  # moves epsilon by less than 0.001
    removed = _one_direction(steps, 1, line, delta - delta_error, delta_error, guarantee)
    if removed is None:
        return None
    if surely_within(steps, -1, line, removed, delta):
        return min(guarantee, removed)
    added = _one_direction(steps, -1, line, delta - delta_error, delta_error, guarantee)
    return None if added is None else min(guarantee, max(removed, added))


def _one_direction(
    steps: LossSteps, direction: Direction, line: Line, delta: float, delta_error: float, guarantee: float
) -> float | None:
    epsilon = epsilon_by_inversion(steps, direction, line, delta, guarantee)
    if epsilon is not None:
        return epsilon + PRV_ERROR
    epsilon = epsilon_by_grid(steps, direction, line, delta, delta_error, guarantee)
    return None if epsilon is None else epsilon + GRID_ERROR


def epsilon_by_grid(
    steps: LossSteps, direction: Direction, line: Line, delta: float, delta_error: float, guarantee: float
) -> float | None:
    """Epsilon within GRID_ERROR, but for a chance of ``delta_error``; None if the grid would be too large."""
    if steps.unsampled:
        steps = steps.with_unsampled()
    untilted = _untilted(steps, direction)
    if untilted is None:
        return None
    loss, weights = untilted
    width = _grid_width(loss, weights * steps.count[:, np.newaxis], math.log(12 / delta_error))
    size = 1 << math.ceil(math.log2((line.period + guarantee) / width))
    lowest, highest = _reach(steps, direction, line.c, width)
    highest = np.minimum(highest, size)  # what lies beyond a period is less than is allowed to wrap around
    if len(steps.rate) * size + float((highest - lowest).sum()) > _LARGEST_GRID:
        return None
    means = (weights * loss).sum(axis=1)
    spectrum, log_mass, offset = np.ones(size // 2 + 1, dtype=np.complex128), 0.0, 0.0
    for index, count in enumerate(steps.count.astype(np.int64).tolist()):
        places = np.arange(int(lowest[index]), int(highest[index]) + 1)
        masses = _masses(float(steps.rate[index]), float(steps.shift[index]), direction, width, places)
        tilted = np.bincount(places % size, weights=masses * np.exp(line.c * width * places), minlength=size)
        total = float(tilted.sum())
        spectrum *= power(np.fft.rfft(tilted / total), count)
        log_mass += count * math.log(total)
        offset += count * float(means[index] - width * (masses @ places))
    first = math.ceil(-offset / width)
    places = np.arange(first, first + size)
    rounded: Floats = places.astype(np.float64) * width  # with the offset from 0 up to a period above the guarantee
    composed = np.fft.irfft(spectrum, size)[places % size] * np.exp(log_mass - line.c * rounded)
    return _solve(composed, rounded + offset, delta, guarantee)


def _untilted(steps: LossSteps, direction: Direction) -> tuple[Floats, Floats] | None:
    """Losses at the points of a quadrature, (g, n), and their weights, which sum to 1, (g, n); None if too many."""
    quadrature = plan_quadrature(steps, direction, 0.0, 0.0)
    nodes = int(quadrature.nodes.max())
    if nodes * len(steps.rate) > _LARGEST_GRID:
        return None
    x = quadrature.start[:, np.newaxis] + quadrature.spacing[:, np.newaxis] * np.arange(nodes)
    loss = direction * steps.loss(x)
    weights = np.exp((loss if direction > 0 else 0.0) - x * x / 2)
    return loss, weights / weights.sum(axis=1, keepdims=True)


def _grid_width(loss: Floats, weights: Floats, log_chance: float) -> float:
    """The widest grid whose summed rounding errors stay within GRID_ERROR but for a chance of exp(-log_chance).

    The errors have mean 0 once the mean is restored. Hoeffding's inequality gives theorem 5.5 of Gopi et al.; Bernstein's is
    wider where most losses are much smaller than the grid, because then their errors are as small as they are.
    """
    width = GRID_ERROR / math.sqrt(float(weights.sum()) * log_chance / 2)
    while True:
        wider = width * math.sqrt(2)
        variance = float(np.sum(weights * np.minimum(loss * loss, wider * wider / 4)))
        if math.hypot(wider * log_chance / 3, math.sqrt(2 * variance * log_chance)) + wider * log_chance / 3 > GRID_ERROR:
            return width
        width = wider


def _reach(steps: LossSteps, direction: Direction, c: float, width: float) -> tuple[Floats, Floats]:
    """The first and last place of the grid that each step needs, with the tilt and without."""
    windows = [*window(steps, direction, 0.0), *window(steps, direction, c)]
    ends = direction * steps.loss(np.stack(windows, axis=1)) / width
    return np.floor(ends.min(axis=1)), np.ceil(ends.max(axis=1))


def _masses(rate: float, shift: float, direction: Direction, width: float, places: NDArray[np.int64]) -> Floats:
    """The chances that one step's loss rounds to each of the places."""
    edges = direction * (np.append(places, places[-1] + 1) - 0.5) * width  # the loss of a removed record, which rises with x
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = edges if rate == 1.0 else np.log1p(np.expm1(edges) / rate)
        x = np.where(edges > np.log1p(-rate), (log_ratio + shift**2 / 2) / shift, -np.inf)
    if direction < 0:
        return normal_mass(x[1:], x[:-1])
    return (1 - rate) * normal_mass(x[:-1], x[1:]) + rate * normal_mass(x[:-1] - shift, x[1:] - shift)


def _solve(masses: Floats, losses: Floats, delta: float, guarantee: float) -> float | None:
    """Where delta is met: between two places of the grid, delta = above - exp(epsilon) other; None if not below the guarantee.

    Sums run from the largest loss down, and the last place that exceeds delta counts: far below epsilon the tilt that was
    taken back leaves nothing but rounding errors.
    """
    above = np.cumsum(masses[::-1])[::-1]
    other = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    with np.errstate(over="ignore", invalid="ignore"):
        exceeding = np.flatnonzero(above - np.exp(losses) * other > delta)
    if not len(exceeding):
        return 0.0
    index = int(exceeding[-1]) + 1
    if index == len(losses) or losses[index] > guarantee + GRID_ERROR:
        return None
    return max(0.0, math.log((above[index] - delta) / other[index]))
