"""What releases cost: epsilon derived from recorded events, by two accountants.

RDP is the guarantee and alone decides (:class:`RdpGate`); the estimate beside it is tighter and decides nothing. Neighbouring
data sets differ by one record added or removed. Sampled events and PRV come from Opacus' analysis functions, imported at first
use because the import takes seconds; without sampling both curves have a closed form. Opacus' GDP accountant is not used: it
underestimates. This module stores nothing and knows no budget.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from veilsum_privacy.errors import Misuse

ORDERS: NDArray[np.float64] = np.array(
    [1 + step / 10 for step in range(1, 100)]
    + list(range(11, 64))
    + [64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024],
    dtype=np.float64,
)
"""Renyi orders of every RDP curve; up to 1024 so that epsilon below 0.1 can be told."""

PRV_ERROR = 0.01
"""Bound on PRV's numerical error; its epsilon is the upper end."""

_MAX_STEPS = 10**9
_PRV_MAX_POINTS = 1 << 22
_PRV_MAX_LOSS = 500.0  # exp of the privacy loss must stay far from overflow

Groups = Mapping[tuple[float, float], int]
"""(sampling rate, (D / sigma)^2) -> steps."""


@dataclass(frozen=True)
class GaussianEvent:
    """One release, or ``steps`` equal ones: a Gaussian mechanism on a Poisson sample of the records.

    Attributes:
        sensitivity: D, L2 bound on what one record changes, in grid units.
        variance: variance of the noise that is counted, in grid units squared.
        sampling_rate: public q in (0, 1]; 1 means every record takes part.
        steps: how many such releases, each with fresh noise and a fresh sample.
    """

    sensitivity: int
    variance: Fraction
    sampling_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.sensitivity <= 2**62:
            raise Misuse("An event's sensitivity must lie between 1 and 2^62 grid units.")
        if not 0 < self.variance <= 2**128:
            raise Misuse("An event's noise variance must be positive and at most 2^128.")
        if not 0.0 < self.sampling_rate <= 1.0:
            raise Misuse("A sampling rate must lie in (0, 1].")
        if not 1 <= self.steps <= _MAX_STEPS:
            raise Misuse(f"An event has 1 to {_MAX_STEPS} steps.")

    @property
    def noise_multiplier(self) -> float:
        """sigma / D."""
        return math.sqrt(self.variance) / self.sensitivity

    @cached_property
    def ratio(self) -> float:
        """(D / sigma)^2, from exact arithmetic: equal events have equal ratios whatever their grid."""
        return float(Fraction(self.sensitivity**2) / self.variance)


@dataclass(frozen=True)
class RdpGate:
    """The releases so far, merged, and the epsilon they cost by Renyi differential privacy.

    Epsilon depends on the multiset of events only, to the last bit: not on their order or on how steps were split.
    """

    groups: Groups = field(default_factory=lambda: MappingProxyType({}))

    def with_event(self, event: GaussianEvent, count: int = 1) -> RdpGate:
        """Return the gate after ``count`` more such events."""
        return self.with_events([(event, count)])

    def with_events(self, counted: Iterable[tuple[GaussianEvent, int]]) -> RdpGate:
        """Return the gate after more events, each as often as counted."""
        groups = dict(self.groups)
        for event, count in counted:
            key = (event.sampling_rate, event.ratio)
            groups[key] = groups.get(key, 0) + event.steps * count
        return RdpGate(MappingProxyType(groups))

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` (Mironov 2017; conversion of Balle et al. 2020, theorem 21); 0 without events."""
        _check_delta(delta)
        if not self.groups:
            return 0.0
        curve = math.fsum(steps * ratio / 2 for (rate, ratio), steps in self.groups.items() if rate == 1.0) * ORDERS
        for (rate, ratio), steps in sorted(self.groups.items()):
            if rate < 1.0:
                curve = curve + steps * _sampled_curve(rate, ratio)
        return max(0.0, float(np.min(curve + _conversion(delta))))


def rdp_epsilon(events: Iterable[GaussianEvent], delta: float) -> float:
    """Epsilon of all events together at ``delta``: the guarantee."""
    return _gate(events).epsilon(delta)


def prv_epsilon(events: Iterable[GaussianEvent], delta: float) -> float | None:
    """Upper end of Opacus' PRV epsilon, within 0.01 of the Gaussian mechanism's true one; 0 without events.

    Returns:
        None where the numbers are out of PRV's reach (very little noise, very many steps); RDP then stands alone.
    """
    _check_delta(delta)
    return _prv(_collapse(_gate(events).groups), delta)


def estimated_epsilon(events: Iterable[GaussianEvent], delta: float) -> float | None:
    """The figure reported beside RDP's: the analytic Gaussian where nothing was sampled, PRV otherwise."""
    _check_delta(delta)
    groups = _collapse(_gate(events).groups)
    if all(rate == 1.0 for rate, _, _ in groups):
        return analytic_gaussian_epsilon(sum(ratio * steps for _, ratio, steps in groups), delta)
    return _prv(groups, delta)


def analytic_gaussian_epsilon(ratio: float, delta: float) -> float:
    """Exact epsilon of a continuous Gaussian mechanism, rounded up (Balle and Wang 2018, theorem 8).

    Args:
        ratio: (D / sigma)^2, or the sum of the ratios of unsampled releases, which compose to one.
        delta: in (0, 1/2).
    """
    _check_delta(delta)
    if not (math.isfinite(ratio) and ratio >= 0):
        raise Misuse("The ratio of sensitivity to noise must be finite and not negative.")
    if ratio == 0:
        return 0.0
    mu = math.sqrt(ratio)

    def profile(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))

    low, high = 0.0, mu
    if profile(low) <= delta:
        return 0.0
    while profile(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high


def calibrate_noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Smallest sigma / D at which ``releases`` equal unsampled releases cost at most ``epsilon`` by RDP, rounded up by 1e-9.

    Raises:
        Misuse: no noise reaches so small an epsilon at this delta, or an argument is out of range.
    """
    _check_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0 and 1 <= releases <= _MAX_STEPS):
        raise Misuse("Calibration needs a positive epsilon and at least one release.")
    # At order a, epsilon = a n / (2 z^2) + c(a): solved for z, the best order needs the least noise.
    left = epsilon - _conversion(delta)
    reachable = left > 0
    if not reachable.any():
        raise Misuse(f"No noise reaches epsilon {epsilon:g} at delta {delta:g} by RDP.", "Ask for a larger epsilon or delta.")
    return float(np.sqrt(np.min(ORDERS[reachable] / left[reachable]) * releases / 2)) * (1 + 1e-9)


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 0.5:
        raise Misuse("Delta must lie in (0, 1/2).")


def _gate(events: Iterable[GaussianEvent]) -> RdpGate:
    return RdpGate().with_events((event, 1) for event in events)


def _conversion(delta: float) -> NDArray[np.float64]:
    """What converting RDP of each order into (epsilon, delta) adds to epsilon."""
    added: NDArray[np.float64] = np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return added


@lru_cache(maxsize=4096)
def _sampled_curve(rate: float, ratio: float) -> NDArray[np.float64]:
    """RDP of one Poisson-sampled step at all orders (Mironov, Talwar, Zhang 2019), never above the unsampled step's."""
    from opacus.accountants.analysis.rdp import compute_rdp

    unsampled = ORDERS * ratio / 2
    curve = np.empty_like(ORDERS)
    for index, order in enumerate(ORDERS):
        try:
            curve[index] = compute_rdp(q=rate, noise_multiplier=ratio**-0.5, steps=1, orders=float(order))
        except (ValueError, OverflowError):
            curve[index] = math.nan
    # Sampling never costs more; where the series failed, the unsampled value is the bound that is left.
    curve = np.where(np.isfinite(curve), np.clip(curve, 0.0, unsampled), unsampled)
    curve.flags.writeable = False
    return curve


def _collapse(groups: Groups) -> tuple[tuple[float, float, int], ...]:
    """(rate, ratio, steps), sorted; all unsampled releases are one Gaussian mechanism whose ratio is their sum."""
    sampled = sorted((rate, ratio, steps) for (rate, ratio), steps in groups.items() if rate < 1.0)
    unsampled = math.fsum(ratio * steps for (rate, ratio), steps in groups.items() if rate == 1.0)
    return (*sampled, (1.0, unsampled, 1)) if unsampled else tuple(sampled)


@lru_cache(maxsize=256)
def _prv(groups: tuple[tuple[float, float, int], ...], delta: float) -> float | None:
    if not groups:
        return 0.0
    delta_error = delta / 1000
    # What Opacus will allocate: losses up to L on both sides, in steps of its mesh.
    loss = RdpGate({(rate, ratio): steps for rate, ratio, steps in groups}).epsilon(delta_error / 4) + 3
    mesh = PRV_ERROR / math.sqrt(sum(steps for _, _, steps in groups) * math.log(12 / delta_error) / 2)
    if loss > _PRV_MAX_LOSS or 2 * loss / mesh > _PRV_MAX_POINTS:
        return None
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(ratio**-0.5, rate, steps) for rate, ratio, steps in groups]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            epsilon = float(accountant.get_epsilon(delta, eps_error=PRV_ERROR, delta_error=delta_error))
    except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    return epsilon if math.isfinite(epsilon) and epsilon >= 0 else None
