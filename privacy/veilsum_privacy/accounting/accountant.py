"""What releases cost: epsilon derived from recorded events, by a rule that guarantees it and an estimate beside it.

The rule (:meth:`Releases.epsilon`) alone decides; the estimate is tighter and decides nothing. Data sets are neighbours if
they differ by one record added or removed. Opacus' RDP and PRV accountants and dp-accounting are the oracles of the tests;
Opacus' GDP accountant is used nowhere, because it underestimates. This module stores nothing and knows no budget.

The rule ``gaussian``. Every charge is a pair (mu^2, slack): what is released can be made, without the records, of "with
probability slack the record, else N(mu b, 1)", b being 1 if the record is there and 0 if not.

- A release without sampling is such a pair with its own (D / sigma)^2 and no slack, integer noise being rounded continuous
  noise (:mod:`~veilsum_privacy.accounting.gaussian`).
- All steps of a :class:`Course` together are one pair (:mod:`~veilsum_privacy.accounting.domination`), charged in full with
  the first of them: what the steps need is drawn then, whatever they will compute, and whatever comes between them. Whose
  steps they are makes no difference, so courses alike are counted together: N steps of them cost one pair, N + 1 two.
- A sampled step outside of a course is charged as if it were not sampled, which it never exceeds.

A filter admits charges, each chosen by everything released before, while the sum of mu^2 stays within a bound M and that of
slack within S, both fixed with the budget. All that it admits is (epsilon, S + G_M(epsilon))-private for every epsilon, G_M
being the profile of a Gaussian mechanism with (D / sigma)^2 = M:

1. Let the coins for the slacks be tossed but never obeyed. The chance that one of them says "reveal" is at most the mean of
   the slacks' sum, at most S. But for that chance the process is the obeying one, for either neighbour: S is lost once.
2. What is left is N(mu_t b, 1) for mu_t chosen by the past, the sum of mu_t^2 at most M. Fill it up to M exactly, which
   loses nothing. The sum of mu_t x_t tells b as well as all of it (it is the log-likelihood ratio but for a constant), and
   the sum of mu_t z_t, z_t the normal parts, is N(0, M): exp(i u mu_t z_t + u^2 mu_t^2 / 2) are factors of a martingale, and
   the second parts come to exp(u^2 M / 2) (Smith and Thakurta 2022; Koskela, Tobaben, Honkela 2023). So it is N(M b, M): the
   Gaussian mechanism of (D / sigma)^2 = M.

S is a tenth of delta and M what the Gaussian mechanism has at epsilon and the other nine tenths. The shares must be fixed: an
adversary who could move delta from the one to the other by what is released would gain.

The other rules, ``standard`` and ``strict``, are by RDP, and price integer noise as continuous noise of the same variance.
That a sum of shares is one too holds but for 1e-60 once a share has a standard deviation of 4 grid units (Kairouz, Liu,
Steinke 2021). Without sampling its Renyi divergence is at most the Gaussian's at every order (Canonne, Kamath, Steinke
2020); with it, the integer orders follow term by term. For orders between them: rounding z to y with probabilities in
proportion to exp(-(z - y)^2 / 32) turns a continuous Gaussian of variance v - 16 into the discrete one of v but for factors
1 +- 1e-136, sampled or not. So these orders are right but for 16 of v, 2e-9 of it or less at the grids of studies, which is
not priced. The estimate is that of the continuous Gaussian: at v = 16 and a sensitivity of 4, far coarser than any grid, it
is 0.013 below the discrete one's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from numbers import Integral, Rational, Real
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.domination import dominating_ratio
from veilsum_privacy.accounting.estimate import PRV_ERROR, composed_epsilon
from veilsum_privacy.accounting.gaussian import SMOOTHING, analytic_gaussian_epsilon, gaussian_ratio
from veilsum_privacy.accounting.losses import LossSteps
from veilsum_privacy.accounting.renyi import (
    ORDERS,
    SCALE_BITS,
    STRICT_ORDERS,
    Curve,
    conversion,
    standard_epsilon,
    step_curve,
    strict_epsilon,
    to_floats,
)

__all__ = [
    "ORDERS",
    "PRV_ERROR",
    "RULES",
    "SLACK_SHARE",
    "STRICT_ORDERS",
    "Adaptive",
    "Course",
    "GaussianEvent",
    "History",
    "Releases",
    "analytic_gaussian_epsilon",
    "at_sites",
    "calibrate_noise_multiplier",
    "epsilon_of",
    "estimated_epsilon",
    "prv_epsilon",
    "rdp_epsilon",
]

_MAX_STEPS = 10**9
_LARGEST_RATIO = 2.0**256
_ROUNDING_UP = 1e-5  # of the estimate without sampling: accountants that round up on a grid are not above it

Adaptive = Literal["gaussian", "standard", "strict"]
"""The rule by which releases compose: see :meth:`Releases.epsilon`."""

RULES: tuple[Adaptive, ...] = get_args(Adaptive)

SLACK_SHARE = 0.1
"""Of a budget's delta, what the rule ``gaussian`` keeps for the slack of all courses; it takes 0.5% of epsilon."""

Groups = Mapping[tuple[float, float], int]
"""(sampling rate, (D / sigma)^2) -> steps."""


@dataclass(frozen=True)
class Course:
    """How many equal sampled steps belong together, as a signed study states it; the rule ``gaussian`` prices them as one.

    Attributes:
        steps: N, at most.
        slack: the probability with which all steps together may be taken to reveal a record; part of delta.

    Raises:
        Misuse: a number is out of range.
    """

    steps: int
    slack: float

    def __post_init__(self) -> None:
        if not (isinstance(self.steps, Integral) and 1 <= self.steps <= _MAX_STEPS):
            raise Misuse(f"A course has 1 to {_MAX_STEPS} steps.")
        if not (isinstance(self.slack, Real) and 0.0 < self.slack < 0.5):
            raise Misuse("A course's slack must lie in (0, 1/2).")


@dataclass(frozen=True)
class GaussianEvent:
    """One release, or ``steps`` equal ones: a Gaussian mechanism on a Poisson sample of the records.

    Attributes:
        sensitivity: D, L2 bound on what one record changes, in grid units.
        variance: variance of the noise that is counted, in grid units squared.
        sampling_rate: public q in (0, 1]; 1 means every record takes part.
        steps: how many such releases, each with fresh noise and a fresh sample.
        course: what its steps belong to; None for releases without sampling, and for sampled ones priced by RDP.

    Raises:
        Misuse: a value is out of range, not a number or of another type.
    """

    sensitivity: int
    variance: Fraction
    sampling_rate: float = 1.0
    steps: int = 1
    course: Course | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.sensitivity, Integral) and 1 <= self.sensitivity <= 2**62):
            raise Misuse("An event's sensitivity must be a whole number of grid units between 1 and 2^62.")
        if not (isinstance(self.variance, Rational) and 0 < self.variance <= 2**128):
            raise Misuse("An event's noise variance must be a positive fraction and at most 2^128.")
        if not (isinstance(self.sampling_rate, Real) and 0.0 < self.sampling_rate <= 1.0):
            raise Misuse("A sampling rate must lie in (0, 1].")
        if not (isinstance(self.steps, Integral) and 1 <= self.steps <= _MAX_STEPS):
            raise Misuse(f"An event has 1 to {_MAX_STEPS} steps.")
        if self.sensitivity**2 > _LARGEST_RATIO * self.variance:
            raise Misuse("An event's noise is too small beside its sensitivity.")
        if self.course is not None and self.sampling_rate == 1.0:
            raise Misuse("Only sampled steps belong to a course.")

    @cached_property
    def ratio(self) -> float:
        """(D / sigma)^2, from exact arithmetic: equal events have equal ratios whatever their grid."""
        return float(Fraction(self.sensitivity**2) / self.variance)

    @cached_property
    def smooth_ratio(self) -> float:
        """(D / sigma)^2 of the continuous noise that this integer noise is made of, rounded up.

        2^256, as good as no noise, where the variance is at most what the lemma takes off: a site's share is never below 16.
        """
        left = Fraction(self.variance) - SMOOTHING
        if left * _LARGEST_RATIO <= self.sensitivity**2:
            return _LARGEST_RATIO
        return math.nextafter(float(Fraction(self.sensitivity**2) / left), math.inf)


class Releases:
    """The releases so far, merged, and the epsilon that they cost by a rule. Immutable.

    Beside the releases it keeps the sum of their RDP curves, and of (D / sigma)^2 of those outside of courses, in whole
    multiples of 2^-60, every step's rounded up. So adding, removing and merging are exact, take the same time however many
    releases there are (but for copying their index), and epsilon depends on the multiset of events only, to the last bit.
    """

    __slots__ = ("_courses", "_curve", "_groups", "_ratio")

    def __init__(self) -> None:
        self._groups: dict[tuple[float, float], int] = {}
        self._curve: Curve = (0,) * len(ORDERS)
        self._ratio = 0  # of releases outside of courses, as smooth noise
        self._courses: dict[tuple[Course, float, float], int] = {}  # (course, rate, smooth ratio) -> steps

    @property
    def groups(self) -> Groups:
        """How many steps were taken at each sampling rate and (D / sigma)^2."""
        return MappingProxyType(self._groups)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Releases):
            return NotImplemented
        return (self._groups, self._ratio, self._courses) == (other._groups, other._ratio, other._courses)

    def __hash__(self) -> int:
        return hash((frozenset(self._groups.items()), self._ratio, frozenset(self._courses.items())))

    def __repr__(self) -> str:
        return f"Releases({self._groups!r}, {self._courses!r})"

    def with_event(self, event: GaussianEvent, count: int = 1) -> Releases:
        """The gate after ``count`` more such events."""
        return self.with_events([(event, count)])

    def with_events(self, counted: Iterable[tuple[GaussianEvent, int]]) -> Releases:
        """The gate after more events, each as often as counted.

        Raises:
            Misuse: something in it is not an event, or a count is negative.
        """
        return self._changed(counted, 1)

    def without_event(self, event: GaussianEvent, count: int = 1) -> Releases:
        """The gate as if ``count`` such events had never been added."""
        return self.without_events([(event, count)])

    def without_events(self, counted: Iterable[tuple[GaussianEvent, int]]) -> Releases:
        """The gate as if these events, each as often as counted, had never been added.

        Raises:
            Misuse: the gate does not hold them all, or as for :meth:`with_events`.
        """
        return self._changed(counted, -1)

    def _changed(self, counted: Iterable[tuple[GaussianEvent, int]], sign: int) -> Releases:
        changed = Releases()
        changed._groups, changed._ratio, changed._courses = self._groups.copy(), self._ratio, self._courses.copy()
        added: dict[tuple[float, float], int] = {}
        for event, count in counted:
            _check_event(event, count)
            if not count:
                continue
            rate, steps = event.sampling_rate, event.steps * count
            added[rate, event.ratio] = added.get((rate, event.ratio), 0) + steps
            if event.course is None:
                changed._ratio += sign * steps * math.ceil(math.ldexp(event.smooth_ratio, SCALE_BITS))
            else:
                _add(changed._courses, (event.course, rate, event.smooth_ratio), sign * steps)
        curve: Sequence[int] = self._curve
        for key, steps in added.items():
            _add(changed._groups, key, sign * steps)
            curve = [total + sign * steps * value for total, value in zip(curve, step_curve(*key), strict=True)]
        changed._curve = tuple(curve)
        return changed

    @property
    def curve_units(self) -> Curve:
        """RDP of all releases at ``ORDERS``, in units of 2^-60."""
        return self._curve

    def pair(self, *, sampling: bool = True) -> tuple[float, float]:
        """The sums of mu^2 and of slack by the rule ``gaussian``, rounded up.

        Without ``sampling`` courses are priced as if no step were sampled, which no certificate ever exceeded.
        """
        ratios, slacks = [math.ldexp(self._ratio, -SCALE_BITS)], []
        for (course, rate, ratio), steps in self._courses.items():
            begun = -(-steps // course.steps)
            one = dominating_ratio(rate, ratio, course.steps, course.slack) if sampling else ratio * course.steps
            ratios.append(begun * one)
            slacks.append(begun * course.slack)
        return math.fsum(ratios) * (1 + 1e-14), math.fsum(slacks)

    def epsilon(self, delta: float, adaptive: Adaptive = "standard", *, sampling: bool = True) -> float:
        """Epsilon at ``delta`` by a rule; 0 without events. Of ``sampling`` see :meth:`pair`; the other rules always see it.

        ``gaussian`` is the Gaussian mechanism's epsilon at nine tenths of delta and the sum of mu^2; infinite where the
        slack of courses exceeds the last tenth. It is proven for any adaptive choice (the module's docstring) and the
        tightest.

        The others are by RDP (Mironov 2017; conversion of Balle et al. 2020, theorem 21). At one order fixed beforehand RDP
        adds up even if each mechanism is chosen by what earlier ones released, and a bound on the sum is a filter: releases
        that stay within it are private together (Rogers et al. 2016; Feldman and Zrnic 2021).

        ``standard`` takes the smallest epsilon over all orders. It is proven for mechanisms whose parameters were fixed in
        advance, and, whatever was chosen later, where nothing is sampled: then every order's bound is a bound on the same
        sum of (D / sigma)^2, and the loosest of them is one order's, fixed with epsilon and delta.

        ``strict`` takes the smallest over eight fixed orders, each at an eighth of delta. Whichever of them a history ends
        within, that order's filter was never exceeded; the eight chances of failure add up to delta. It is proven for any
        adaptive choice of mechanisms and costs more: for delta 1e-5 and epsilon 1 to 8, 9 to 15 % of epsilon without sampling,
        and up to 7.5 times as much where few steps are rarely sampled (docs/performance.md).
        """
        _check_delta(delta)
        if adaptive not in RULES:
            raise Misuse(f"Composition is by one of the rules {', '.join(RULES)}.")
        if not self._groups:
            return 0.0
        if adaptive == "gaussian":
            ratio, slack = self.pair(sampling=sampling)
            if slack > SLACK_SHARE * delta * (1 + 1e-9):
                return math.inf
            return analytic_gaussian_epsilon(ratio, (1 - SLACK_SHARE) * delta)
        curve = to_floats(self._curve)
        return standard_epsilon(curve, delta) if adaptive == "standard" else strict_epsilon(curve, delta)


History = Releases | Mapping[GaussianEvent, int] | Iterable[GaussianEvent]
"""Releases of any kind in any order: a gate that holds them, how often each happened, or one by one."""


def epsilon_of(events: History, delta: float, adaptive: Adaptive) -> float:
    """Epsilon of all events together at ``delta``, the guarantee, by a rule of :meth:`Releases.epsilon`."""
    return _gate(events).epsilon(delta, adaptive)


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
    for event, count in _counted(events):
        _check_event(event, count)
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
    _check_delta(delta)
    return _composed(_gate(events), delta)


def estimated_epsilon(events: History, delta: float, adaptive: Adaptive = "standard") -> float | None:
    """The figure reported beside the rule's, never above it; None as for :func:`prv_epsilon`.

    Where nothing was sampled it is the analytic Gaussian's epsilon rounded up by 1e-5, otherwise that of :func:`prv_epsilon`.
    """
    _check_delta(delta)
    gate = _gate(events)
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
    _check_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0 and 1 <= releases <= _MAX_STEPS):
        raise Misuse("Calibration needs a positive epsilon and at least one release.")
    if adaptive == "gaussian":
        return math.sqrt(releases / gaussian_ratio(epsilon, (1 - SLACK_SHARE) * delta)) * (1 + 1e-9)
    # At order a, epsilon = a n / (2 z^2) + c(a): solved for z, the best order needs the least noise. Curves are rounded up.
    left = epsilon - conversion(delta) - releases * 2.0**-SCALE_BITS
    reachable = left > 0
    if not reachable.any():
        raise Misuse(f"No noise reaches epsilon {epsilon:g} at delta {delta:g} by RDP.", "Ask for a larger epsilon or delta.")
    return float(np.sqrt(np.min(ORDERS[reachable] / left[reachable]) * releases / 2)) * (1 + 1e-9)


def _check_delta(delta: float) -> None:
    if not (isinstance(delta, Real) and 0.0 < delta < 0.5):
        raise Misuse("Delta must lie in (0, 1/2).")


def _check_event(event: GaussianEvent, count: int) -> None:
    if not isinstance(event, GaussianEvent):
        raise Misuse("Every release must be a GaussianEvent: a release without noise has no epsilon.")
    if not (isinstance(count, Integral) and 0 <= count <= _MAX_STEPS):
        raise Misuse(f"A release is counted 0 to {_MAX_STEPS} times.")


def _add(steps: dict[Any, int], key: Any, more: int) -> None:
    left = steps.get(key, 0) + more
    if left < 0:
        raise Misuse("A filter cannot remove a release that it does not hold.")
    if left:
        steps[key] = left
    else:
        del steps[key]


def _counted(events: Mapping[GaussianEvent, int] | Iterable[GaussianEvent]) -> Iterable[tuple[GaussianEvent, int]]:
    return events.items() if isinstance(events, Mapping) else ((event, 1) for event in events)


def _gate(events: History) -> Releases:
    return events if isinstance(events, Releases) else Releases().with_events(_counted(events))


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
