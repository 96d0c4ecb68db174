"""Figures about releases that no gate decides by: a tighter epsilon, a person's at several sites, the noise of a budget.

The estimate is that of the continuous Gaussian: at v = 16 and a sensitivity of 4, far coarser than any grid, it is 0.013 below
the discrete one's. Opacus' PRV accountant is its oracle.
"""

import math
from functools import lru_cache
from numbers import Integral
from typing import Literal

import numpy as np

from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.accountant import (
    MAX_STEPS,
    SLACK_SHARE,
    Adaptive,
    GaussianEvent,
    History,
    Releases,
    check_delta,
    check_event,
    counted_events,
    epsilon_of,
    gate_of,
)
from veilsum_privacy.accounting.estimate import composed_epsilon
from veilsum_privacy.accounting.gaussian import SCALE_BITS, analytic_gaussian_epsilon, gaussian_delta
from veilsum_privacy.accounting.losses import LossSteps
from veilsum_privacy.accounting.renyi import ORDERS, Curve, conversion, to_floats

_ROUNDING_UP = 1e-5  # of the estimate without sampling: accountants that round up on a grid are not above it


def rdp_epsilon(events: History, delta: float, adaptive: Literal["standard", "strict"] = "standard") -> float:
    """The same by RDP."""
    return epsilon_of(events, delta, adaptive)


def at_sites(events: History, sites: int) -> dict[GaussianEvent, int]:
    """The same joint sums as seen by a person who has one record at each of several sites.

    The sum changes by up to ``sites`` times D if the person is added or removed: (D / sigma)^2 and rho grow by ``sites``^2.

    Args:
        events: joint sums without sampling, one site's entries of them.
        sites: m, at how many of the sites that took part the person has a record.

    Raises:
        Misuse: an event is sampled (each site draws its own sample, and m^2 does not hold), or a number is out of range.
    """
    if not (isinstance(sites, Integral) and sites >= 1):
        raise Misuse("A person's records lie at one or more sites.")
    if isinstance(events, Releases):
        raise Misuse("A filter does not keep its releases' sensitivities.", "Give the events themselves.")
    scaled: dict[GaussianEvent, int] = {}
    for event, count in counted_events(events):
        check_event(event, count)
        if sites > 1 and event.sampling_rate < 1:
            raise Misuse("For sampled releases nothing can be said about a person at several sites.")
        person = GaussianEvent(event.sensitivity * sites, event.variance, event.sampling_rate, event.steps)
        scaled[person] = scaled.get(person, 0) + count
    return scaled


def prv_epsilon(events: History, delta: float) -> float | None:
    """Upper end of the epsilon of composed privacy losses (PRV), within 0.011 of the Gaussian mechanism's true one.

    Returns:
        0 without events. None where it is out of reach, and RDP stands alone: RDP's epsilon above 500, or more than about a
        hundred different sampled steps that have hardly ever seen a record (their losses' standard deviation together is below
        0.01 for 300 different steps, 0.03 for 1000, 0.1 for 10,000) and no release without sampling beside them.
    """
    check_delta(delta)
    return _composed(gate_of(events), delta)


def estimated_epsilon(events: History, delta: float, adaptive: Adaptive = "standard") -> float | None:
    """The figure reported beside the rule's, never above it; None as for :func:`prv_epsilon`.

    Where nothing was sampled it is the analytic Gaussian's epsilon rounded up by 1e-5, otherwise that of :func:`prv_epsilon`.
    """
    check_delta(delta)
    gate = gate_of(events)
    if all(rate == 1.0 for rate, _ in gate.groups):
        found: float | None = analytic_gaussian_epsilon(_unsampled_ratio(gate), delta) + _ROUNDING_UP
    else:
        found = _composed(gate, delta)
    return None if found is None else min(found, gate.epsilon(delta, adaptive))


def calibrate_noise_multiplier(epsilon: float, delta: float, releases: int, adaptive: Adaptive = "standard") -> float:
    """Smallest sigma / D at which ``releases`` equal unsampled releases cost at most ``epsilon``, rounded up by 1e-9; by
    RDP, or by the rule ``gaussian`` of continuous noise (integer noise needs :data:`~.gaussian.SMOOTHING` more variance).

    Raises:
        Misuse: no noise reaches so small an epsilon at this delta, or an argument is out of range.
    """
    check_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0 and 1 <= releases <= MAX_STEPS):
        raise Misuse("Calibration needs a positive epsilon and at least one release.")
    if adaptive == "gaussian":
        return math.sqrt(releases / gaussian_ratio(epsilon, (1 - SLACK_SHARE) * delta)) * (1 + 1e-9)
    # At order a, epsilon = a n / (2 z^2) + c(a): solved for z, the best order needs the least noise. Curves are rounded up.
    left = epsilon - conversion(delta) - releases * 2.0**-SCALE_BITS
    reachable = left > 0
    if not reachable.any():
        raise Misuse(f"No noise reaches epsilon {epsilon:g} at delta {delta:g} by RDP.", "Ask for a larger epsilon or delta.")
    return float(np.sqrt(np.min(ORDERS[reachable] / left[reachable]) * releases / 2)) * (1 + 1e-9)


def _unsampled_ratio(gate: Releases) -> float:
    """All unsampled releases are one Gaussian mechanism whose (D / sigma)^2 is their sum."""
    return math.fsum(ratio * steps for (rate, ratio), steps in gate.groups.items() if rate == 1.0)


def _composed(gate: Releases, delta: float) -> float | None:
    if not gate.groups:
        return 0.0
    sampled = sorted((rate, ratio, steps) for (rate, ratio), steps in gate.groups.items() if rate < 1.0)
    return _prv(tuple(sampled), _unsampled_ratio(gate), gate.curve_units, delta)


@lru_cache(maxsize=64)
def _prv(sampled: tuple[tuple[float, float, int], ...], unsampled: float, curve: Curve, delta: float) -> float | None:
    rate, ratio, steps = np.array(sampled, dtype=np.float64).reshape(-1, 3).T
    return composed_epsilon(LossSteps(rate, np.sqrt(ratio), steps, unsampled), delta, to_floats(curve))


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest (D / sigma)^2, rounded down, of which :func:`analytic_gaussian_epsilon` is at most ``epsilon``.

    Args:
        epsilon: positive.
        delta: in (0, 1/2).
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0.0 < delta < 0.5):
        raise Misuse("A positive epsilon and a delta in (0, 1/2) are needed.")
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, epsilon) > delta else (middle, high)
    return low * low * (1 - 1e-11)
