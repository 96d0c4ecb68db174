"""What releases cost: epsilon derived from recorded events, by a rule that guarantees it (:meth:`Releases.epsilon`).

Data sets are neighbours if they differ by one record added or removed. Opacus' RDP accountant and dp-accounting are the
oracles of the tests; Opacus' GDP accountant is used nowhere, because it underestimates. This module stores nothing and knows
no budget. The tighter figure beside the rule's, which decides nothing, is :mod:`~veilsum_privacy.accounting.figures`'.

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
not priced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Rational, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.gaussian import SCALE_BITS, SMOOTHING, analytic_gaussian_epsilon

if TYPE_CHECKING:
    from veilsum_privacy.accounting.renyi import Curve

MAX_STEPS = 10**9
_LARGEST_RATIO = 2.0**256

Adaptive = Literal["gaussian", "standard", "strict"]
"""The rule by which releases compose: see :meth:`Releases.epsilon`."""

RULES: tuple[Adaptive, ...] = get_args(Adaptive)

SLACK_SHARE = 0.1
"""Share of a budget's delta that the rule ``gaussian`` keeps for the slack of all courses; it takes 0.5% of epsilon."""

PRV_ERROR = 0.01
"""Bound on the numerical error of the figure of :mod:`~veilsum_privacy.accounting.estimate`; its upper end is reported.

Inverting the moment generating function needs a twentieth of it. The rest stays: the noise of releases is integer, and its
exact epsilon is larger than the continuous Gaussian's by up to 0.001.
"""

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
        if not (isinstance(self.steps, Integral) and 1 <= self.steps <= MAX_STEPS):
            raise Misuse(f"A course has 1 to {MAX_STEPS} steps.")
        if not (isinstance(self.slack, Real) and 0.0 < self.slack < 0.5):
            raise Misuse("A course's slack must lie in (0, 1/2).")

    @staticmethod
    def of(steps: int, slack: float) -> Course | None:
        """What declared steps belong to; None of those that state no slack: without sampling, or priced by RDP."""
        return Course(steps, slack) if slack else None


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
        if not (isinstance(self.steps, Integral) and 1 <= self.steps <= MAX_STEPS):
            raise Misuse(f"An event has 1 to {MAX_STEPS} steps.")
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

    Beside the releases it keeps the sum of (D / sigma)^2 of those outside of courses, and of all RDP curves once a rule asked
    for that, in whole multiples of 2^-60, every step's rounded up. So adding, removing and merging are exact, take the same
    time however many releases there are (but for copying their index), and epsilon depends on the multiset of events only, to
    the last bit.
    """

    __slots__ = ("_courses", "_curve", "_groups", "_ratio")

    def __init__(self) -> None:
        self._groups: dict[tuple[float, float], int] = {}
        self._curve: Curve | None = None
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
            check_event(event, count)
            if not count:
                continue
            rate, steps = event.sampling_rate, event.steps * count
            added[rate, event.ratio] = added.get((rate, event.ratio), 0) + sign * steps
            if event.course is None:
                changed._ratio += sign * steps * math.ceil(math.ldexp(event.smooth_ratio, SCALE_BITS))
            else:
                _add(changed._courses, (event.course, rate, event.smooth_ratio), sign * steps)
        for key, steps in added.items():
            _add(changed._groups, key, steps)
        changed._curve = None if self._curve is None else _summed(self._curve, added)
        return changed

    @property
    def curve_units(self) -> Curve:
        """RDP of all releases at :data:`.renyi.ORDERS`, in units of 2^-60."""
        if self._curve is None:
            self._curve = _summed((), self._groups)
        return self._curve

    def pair(self, *, sampling: bool = True) -> tuple[float, float]:
        """The sums of mu^2 and of slack by the rule ``gaussian``, rounded up.

        Without ``sampling`` courses are priced as if no step were sampled, which no certificate ever exceeded.
        """
        ratios, slacks = [math.ldexp(self._ratio, -SCALE_BITS)], []
        for (course, rate, ratio), steps in self._courses.items():
            from veilsum_privacy.accounting.domination import dominating_ratio  # which sampled releases alone need

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
        check_delta(delta)
        if adaptive not in RULES:
            raise Misuse(f"Composition is by one of the rules {', '.join(RULES)}.")
        if not self._groups:
            return 0.0
        if adaptive == "gaussian":
            ratio, slack = self.pair(sampling=sampling)
            if slack > SLACK_SHARE * delta * (1 + 1e-9):
                return math.inf
            return analytic_gaussian_epsilon(ratio, (1 - SLACK_SHARE) * delta)
        from veilsum_privacy.accounting.renyi import standard_epsilon, strict_epsilon, to_floats

        curve = to_floats(self.curve_units)
        return standard_epsilon(curve, delta) if adaptive == "standard" else strict_epsilon(curve, delta)


def _summed(curve: Curve, groups: Groups) -> Curve:
    """A curve, all zeros if empty, with these steps'."""
    from veilsum_privacy.accounting.renyi import ORDERS, step_curve  # which the rule ``gaussian`` does without

    curve = curve or (0,) * len(ORDERS)
    for key, steps in groups.items():
        curve = tuple(total + steps * value for total, value in zip(curve, step_curve(*key), strict=True))
    return curve


History = Releases | Mapping[GaussianEvent, int] | Iterable[GaussianEvent]
"""Releases of any kind in any order: a gate that holds them, how often each happened, or one by one."""


def epsilon_of(events: History, delta: float, adaptive: Adaptive) -> float:
    """Epsilon of all events together at ``delta``, the guarantee, by a rule of :meth:`Releases.epsilon`."""
    return gate_of(events).epsilon(delta, adaptive)


def check_delta(delta: float) -> None:
    if not (isinstance(delta, Real) and 0.0 < delta < 0.5):
        raise Misuse("Delta must lie in (0, 1/2).")


def check_event(event: GaussianEvent, count: int) -> None:
    if not isinstance(event, GaussianEvent):
        raise Misuse("Every release must be a GaussianEvent: a release without noise has no epsilon.")
    if not (isinstance(count, Integral) and 0 <= count <= MAX_STEPS):
        raise Misuse(f"A release is counted 0 to {MAX_STEPS} times.")


def _add(steps: dict[Any, int], key: Any, more: int) -> None:
    left = steps.get(key, 0) + more
    if left < 0:
        raise Misuse("A filter cannot remove a release that it does not hold.")
    if left:
        steps[key] = left
    else:
        del steps[key]


def counted_events(events: Mapping[GaussianEvent, int] | Iterable[GaussianEvent]) -> Iterable[tuple[GaussianEvent, int]]:
    return events.items() if isinstance(events, Mapping) else ((event, 1) for event in events)


def gate_of(events: History) -> Releases:
    return events if isinstance(events, Releases) else Releases().with_events(counted_events(events))
