"""Epsilon of a whole history as exactly as it can be computed; a figure to report, which decides nothing.

Both directions are computed, a record removed and a record added, and the larger counts. This module knows neither events nor
budgets. A summed loss that is smooth is inverted (:mod:`~veilsum_privacy.accounting.inversion`). One that is not, of few
steps, sampled at small rates, that nearly always lose next to nothing, is computed by rounding privacy losses onto a grid and
convolving them (Gopi, Lee, Wutschitz 2021); masses are computed and convolved under the tilt exp(c Y), so that small deltas
lose no digits.
"""

import math

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.domination import Direction, normal_mass, power
from veilsum_privacy.accounting.inversion import Line, choose_line, epsilon_by_inversion, surely_within
from veilsum_privacy.accounting.losses import LossSteps, plan_quadrature, window
from veilsum_privacy.accounting.renyi import standard_epsilon

GRID_ERROR = 0.005
"""Bound on what the rounding of all losses together does to epsilon."""

_LARGEST_GRID = 2e7  # points of the grid times different steps: about 1 s

PRV_ERROR = 0.01
"""Bound on the numerical error of epsilon; what is reported is the upper end.

Inverting the moment generating function needs a twentieth of it. The rest stays: the noise of releases is integer, and its
exact epsilon is larger than the continuous Gaussian's by up to 0.001.
"""

_LARGEST_EPSILON = 500.0  # exp of it must stay far from overflow


def composed_epsilon(steps: LossSteps, delta: float, curve: Floats) -> float | None:
    """Upper end of epsilon at ``delta``: not below the true one, above it by at most 0.011, never above the guarantee.

    A thousandth of delta is left to numerical errors. Where delta(epsilon) is so flat that this alone moves epsilon by more
    than 0.0005, because delta is near the chance of being sampled at all, what is returned is above by that much more.

    Args:
        steps: what is composed.
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
