"""Epsilon of a whole history as exactly as it can be computed; a figure to report, which decides nothing.

Both directions are computed, a record removed and a record added, and the larger counts. This module knows neither events nor
budgets.
"""

from __future__ import annotations

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting.grid import GRID_ERROR, epsilon_by_grid
from veilsum_privacy.accounting.inversion import Line, choose_line, epsilon_by_inversion, surely_within
from veilsum_privacy.accounting.losses import Direction, LossSteps
from veilsum_privacy.accounting.renyi import standard_epsilon

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
