"""The numbers behind accounting: curves against their definition and the discrete Gaussian, losses in closed form."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.accounting import estimate
from veilsum_privacy.accounting.domination import Direction
from veilsum_privacy.accounting.estimate import (
    GRID_ERROR,
    Line,
    choose_line,
    composed_epsilon,
    epsilon_by_grid,
    epsilon_by_inversion,
    surely_within,
)
from veilsum_privacy.accounting.gaussian import SCALE_BITS, analytic_gaussian_epsilon
from veilsum_privacy.accounting.losses import LossSteps
from veilsum_privacy.accounting.renyi import (
    ORDERS,
    STRICT_ORDERS,
    conversion,
    sampled_curve,
    standard_epsilon,
    step_curve,
    to_floats,
)

RATES = st.floats(-12, -1e-6).map(math.exp)
DIRECTIONS: tuple[Direction, ...] = (1, -1)


def make_steps(groups: list[tuple[float, float, int]], unsampled: float = 0.0) -> tuple[LossSteps, Floats]:
    """Steps of (rate, sigma / D, number), and the RDP curve of all."""
    rate, sigma, count = np.array(groups, dtype=np.float64).reshape(-1, 3).T
    curve = ORDERS * (unsampled / 2)
    for q, z, n in groups:
        curve = curve + n * to_floats(step_curve(q, z**-2))
    return LossSteps(rate, 1 / sigma, count, unsampled), curve


@settings(max_examples=40, deadline=None)
@given(rate=RATES, sigma=st.floats(0.15, 50), order=st.sampled_from(ORDERS[:99].tolist()))
def test_curves_equal_their_definition(rate: float, sigma: float, order: float) -> None:
    """By adaptive integration of what is left of ((1 - q) + q w)^a after its tangent, wherever the integrand is."""
    shift, index = 1 / sigma, int(np.searchsorted(ORDERS, order))
    scale = max(0.0, order * (order - 1) * shift**2 / 2 - 600)  # keeps the integrand within floating point

    def integrand(x: float) -> float:
        u = rate * math.expm1(shift * x - shift * shift / 2)
        if order * math.log1p(u) > 40:
            return math.exp(order * math.log1p(u) - x * x / 2 - scale)
        excess = math.expm1(order * math.log1p(u)) - order * u
        if abs(u) < 1e-4:  # what the tangent takes away leaves too few digits
            excess = order * (order - 1) / 2 * u * u * (1 + (order - 2) / 3 * u * (1 + (order - 3) / 4 * u))
        return excess * math.exp(-x * x / 2 - scale)

    starts = range(-12, math.ceil(order * shift) + 12)
    total = sum(quad(integrand, start, start + 1, epsabs=0, epsrel=1e-10)[0] for start in starts) / math.sqrt(2 * math.pi)
    log_a = scale + math.log(math.exp(-scale) + total) if scale else math.log1p(total)
    curve, exact = sampled_curve(rate, shift * shift)[index], log_a / (order - 1)
    assert curve >= exact * (1 - 1e-9)
    if shift <= 3.5:  # beyond, values between integer orders are interpolated
        assert curve == pytest.approx(exact, rel=1e-7)


def whole_order(rate: float, ratio: float, order: int) -> float:
    """RDP at an integer order, summed with 40 digits."""
    with mpmath.workdps(40):
        q, r = mpmath.mpf(rate), mpmath.mpf(ratio)
        terms = (
            mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.expm1((k * k - k) * r / 2)
            for k in range(2, order + 1)
        )
        return float(mpmath.log1p(mpmath.fsum(terms)) / (order - 1))


BETWEEN = [
    (0.01, 0.8, (0.0000664175755495334641, 0.000359010607803033066, 0.000961353840493865891)),
    (0.001, 4.0, (0.0000238584559842027937, 2.55720885922733305, 14.1944916625348265)),
    (0.9, 0.1, (0.0446123369169947254, 0.231183906222865275, 0.47447616100460514)),
    (1e-06, 0.0001, (5.50027500867183026e-17, 2.75013750554607505e-16, 5.45027251393470203e-16)),
    (0.5, 12.25, (3.30563920010571391, 32.8403201126489557, 65.9993379527168301)),
]
"""RDP at orders 1.1, 5.5 and 10.9, integrated with 40 digits."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rate", "ratio", "between"), BETWEEN)
def test_curves_are_rounded_up_by_a_hair(rate: float, ratio: float, between: tuple[float, ...]) -> None:
    orders = [1.1, 5.5, 10.9, 2, 3, 10, 11, 63, 64, 256, 1024]
    exact = np.array([*between, *(whole_order(rate, ratio, order) for order in orders[3:])])
    found = sampled_curve(rate, ratio)[np.searchsorted(ORDERS, np.array(orders) - 1e-9)]
    np.testing.assert_allclose((found / exact - 1) * 2**33, 1.0, atol=0.05)


def test_orders_are_what_all_agree_on() -> None:
    """A site and its coordinator come to the same epsilon, to the last bit, by the same orders alone."""
    assert ORDERS.dtype == np.float64
    np.testing.assert_array_equal(ORDERS[:99], 1 + np.arange(1, 100) / 10)
    above = [*range(11, 64), *range(64, 81, 8), *range(96, 129, 16), *range(160, 257, 32), *range(320, 513, 64)]
    assert ORDERS[99:].tolist() == [*above, *range(640, 1025, 128)]
    assert STRICT_ORDERS == (3.8, 5.5, 7.5, 10.0, 16.0, 40.0, 96.0, 192.0)
    assert SCALE_BITS == 60


def test_a_curve_that_is_remembered_cannot_be_changed() -> None:
    curve = sampled_curve(0.3, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        curve[0] = 0.0


def test_with_very_little_noise_the_curve_between_is_a_chord() -> None:
    curve = dict(zip(ORDERS.tolist(), (sampled_curve(0.05, 3.6**2) * (ORDERS - 1)).tolist(), strict=True))
    for low in range(1, 11):
        ends = curve.get(low, 0.0), curve[low + 1]
        for tenth in range(1, 10):
            between = curve[1 + (10 * (low - 1) + tenth) / 10]
            assert between == pytest.approx(((10 - tenth) * ends[0] + tenth * ends[1]) / 10, rel=1e-12)
    assert curve[2] == pytest.approx(whole_order(0.05, 3.6**2, 2), rel=2e-10)


@settings(max_examples=60, deadline=None)
@given(rate=RATES | st.just(1 - 2**-53) | st.just(5e-324), sigma=st.floats(1e-6, 1e6))
def test_sampling_never_costs_more_and_no_step_is_free(rate: float, sigma: float) -> None:
    sampled, unsampled = step_curve(rate, sigma**-2), step_curve(1.0, sigma**-2)
    assert all(0 < mine <= whole for mine, whole in zip(sampled, unsampled, strict=True))
    exact = ORDERS * (sigma**-2 / 2)
    assert np.all(to_floats(unsampled) >= exact)
    np.testing.assert_allclose(to_floats(unsampled), exact, rtol=1e-15, atol=2.0**-SCALE_BITS)


@pytest.mark.parametrize("sigma", [4, 7])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
def test_the_discrete_gaussian_costs_no_more_than_its_price(sigma: int, rate: float) -> None:
    """Its Renyi divergences by summation over the integers, with D = 3 grid units."""
    y = np.arange(-60 * sigma, 60 * sigma + 1)
    log_q = -(y**2) / (2 * sigma**2) - math.log(np.exp(-(y**2) / (2 * sigma**2)).sum())
    log_shifted = -((y - 3) ** 2) / (2 * sigma**2) - math.log(np.exp(-(y**2) / (2 * sigma**2)).sum())
    log_p = log_shifted if rate == 1 else np.logaddexp(math.log1p(-rate) + log_q, math.log(rate) + log_shifted)
    price = to_floats(step_curve(rate, 9 / sigma**2))
    for index in range(0, 130, 5):
        order = ORDERS[index]
        for above, below in ((log_p, log_q), (log_q, log_p)):
            divergence = math.log(np.exp(order * above - (order - 1) * below).sum()) / (order - 1)
            assert divergence <= price[index] * (1 + 1e-9) + 1e-13


def one_step_delta(rate: float, sigma: float, direction: Direction, epsilon: float) -> float:
    """delta(epsilon) of one step: the most likely set is where the loss exceeds epsilon, a half-line."""
    shift = 1 / sigma
    inside = (math.exp(epsilon * direction) - 1 + rate) / rate
    if inside <= 0:
        return 0.0  # an added record's loss is never larger
    end = (math.log(inside) + shift**2 / 2) / shift
    if direction > 0:
        mixture = (1 - rate) * norm.sf(end) + rate * norm.sf(end - shift)
        return float(mixture - math.exp(epsilon) * norm.sf(end))
    mixture = (1 - rate) * norm.cdf(end) + rate * norm.cdf(end - shift)
    return float(norm.cdf(end) - math.exp(epsilon) * mixture)


def one_step_epsilon(rate: float, sigma: float, direction: Direction, delta: float) -> float:
    if one_step_delta(rate, sigma, direction, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: one_step_delta(rate, sigma, direction, epsilon) - delta, 0.0, 500.0, xtol=1e-12))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(("rate", "sigma"), [(0.9, 3.0), (0.5, 0.7), (0.2, 1.0), (0.05, 0.8), (0.01, 1.1), (0.3, 0.3)])
def test_one_step_meets_its_closed_form_both_ways(rate: float, sigma: float, delta: float, direction: Direction) -> None:
    steps, curve = make_steps([(rate, sigma, 1)])
    exact, line, guarantee = (
        one_step_epsilon(rate, sigma, direction, delta),
        choose_line(curve, delta),
        standard_epsilon(curve, delta),
    )
    inverted = epsilon_by_inversion(steps, direction, line, delta, guarantee)
    if inverted is not None:
        assert exact - 1e-9 <= inverted <= exact + 4e-4
    rounded = epsilon_by_grid(steps, direction, line, delta, delta / 1000, guarantee)
    assert rounded == pytest.approx(exact, abs=GRID_ERROR)
    if inverted is None:  # a loss so far from smooth is one that hardly ever is anything but a constant
        assert direction < 0 or rate * sigma < 0.2
    if surely_within(steps, direction, line, exact * 0.9 - 0.01, delta):
        pytest.fail("Chernoff's bound is below the exact curve")
    assert surely_within(steps, direction, line, guarantee + 2 * line.period, delta)


MIXED = [
    ([(0.01, 1.1, 1000)], 0.0),
    ([(0.01, 1.1, 1000), (0.2, 5.0, 40)], 1 / 16),
    ([(1e-4, 1.0, 100)], 0.0),
    ([(1e-3, 0.7, 300), (0.5, 30.0, 3)], 1e-5),
    ([(1e-5, 0.6, 1), (0.9, 3.0, 10)], 0.0),
    ([(1e-5, 0.4, 10_000)], 0.0),  # hardly any loss is a multiple of the grid's width: roundings have a mean
]


@pytest.mark.sampled(11)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
@pytest.mark.parametrize(("groups", "unsampled"), MIXED)
def test_inversion_and_grid_agree(
    groups: list[tuple[float, float, int]], unsampled: float, delta: float, direction: Direction
) -> None:
    steps, curve = make_steps(groups, unsampled)
    line, guarantee = choose_line(curve, delta), standard_epsilon(curve, delta)
    inverted = epsilon_by_inversion(steps, direction, line, delta, guarantee)
    rounded = epsilon_by_grid(steps, direction, line, delta, delta / 1000, guarantee)
    assert rounded is not None
    assert inverted == pytest.approx(rounded, abs=GRID_ERROR)
    whole = composed_epsilon(steps, delta, curve)
    assert whole is not None
    assert rounded <= whole <= guarantee


@pytest.mark.parametrize("ratio", [1e-4, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_both_ways_meet_the_analytic_gaussian(ratio: float, delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real, chunks = estimate._log_moments, iter(range(8))  # few points decide

    def moments(*arguments: Any) -> Any:
        next(chunks)
        return real(*arguments)

    monkeypatch.setattr(estimate, "_log_moments", moments)
    steps, curve = make_steps([], ratio)
    exact, line, guarantee = analytic_gaussian_epsilon(ratio, delta), choose_line(curve, delta), standard_epsilon(curve, delta)
    for direction in DIRECTIONS:
        inverted = epsilon_by_inversion(steps, direction, line, delta, guarantee)
        assert inverted is not None
        assert exact - 1e-9 <= inverted <= exact + 4e-4
        assert epsilon_by_grid(steps, direction, line, delta, delta / 1000, guarantee) == pytest.approx(exact, abs=GRID_ERROR)


@pytest.mark.parametrize("ratio", [600.0, 611.4, 700.0, 735.96, 750.0])
def test_rounding_errors_do_not_look_like_a_met_delta(ratio: float) -> None:
    """M(c) is above 1e16 here: at small epsilon the trapezoidal sum is smaller than its rounding errors."""
    steps, curve = make_steps([], ratio)
    found, exact = composed_epsilon(steps, 1e-3, curve), analytic_gaussian_epsilon(ratio, 1e-3)
    assert found is not None
    assert exact <= found <= exact + 0.011


def test_splitting_a_group_changes_nothing() -> None:
    steps, curve = make_steps([(0.02, 1.3, 500), (0.02, 1.3, 300), (0.3, 9.0, 7)], 0.01)
    merged, same = make_steps([(0.02, 1.3, 800), (0.3, 9.0, 7)], 0.01)
    assert composed_epsilon(steps, 1e-6, curve) == pytest.approx(composed_epsilon(merged, 1e-6, same), abs=1e-6)


def test_the_line_keeps_wrapping_around_small() -> None:
    for groups, unsampled in MIXED:
        _, curve = make_steps(groups, unsampled)
        for delta in (1e-3, 1e-9):
            line, s = choose_line(curve, delta), ORDERS - 1
            allowed = math.log(delta) + math.log(1.01e-4 * min(1.0, line.c))
            assert -line.c * line.period <= allowed
            right = s > line.c
            assert np.min((s * curve - (s - line.c) * line.period)[right]) <= allowed
    assert np.all(np.isfinite(conversion(1e-300)))


@pytest.mark.parametrize(
    ("inverted", "rounded", "surely", "expected"),
    [
        ((1.0, 2.0), (None, None), False, 2.01),
        ((2.0, 1.0), (None, None), False, 2.01),
        ((1.0, None), (None, None), True, 1.01),  # the other way is not computed
        ((None, None), (1.0, 2.0), False, 2.005),
        ((None, 1.0), (1.0, None), False, 1.01),
        ((None, None), (1.0, None), True, 1.005),
        ((None, 1.0), (None, None), True, None),
        ((1.0, None), (None, None), False, None),
        ((5.0, None), (None, None), True, "guarantee"),
        ((1.0, 5.0), (None, None), False, "guarantee"),
    ],
)
def test_the_larger_of_both_ways_counts(
    inverted: tuple[float | None, ...],
    rounded: tuple[float | None, ...],
    surely: bool,
    expected: float | str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, curve = make_steps([(0.5, 1.0, 1)])
    guarantee, line = standard_epsilon(curve, 1e-5), choose_line(curve, 1e-5)
    error = 1e-8 * min(1.0, line.c / 2)

    def way(found: tuple[float | None, ...], *arguments: Any) -> float | None:
        given, direction, *rest = arguments
        assert given is steps
        assert rest == [line, 1e-5 - error, *([error] if len(rest) == 4 else []), guarantee]
        return found[DIRECTIONS.index(direction)]

    def within(given: LossSteps, direction: Direction, along: Line, epsilon: float, delta: float) -> bool:
        assert (given, direction, along, delta) == (steps, -1, line, 1e-5)
        return surely

    monkeypatch.setattr(estimate, "epsilon_by_inversion", partial(way, inverted))
    monkeypatch.setattr(estimate, "epsilon_by_grid", partial(way, rounded))
    monkeypatch.setattr(estimate, "surely_within", within)
    found = composed_epsilon(steps, 1e-5, curve)
    assert found == (guarantee if expected == "guarantee" else expected and pytest.approx(expected, rel=1e-12))


def test_a_thousandth_of_delta_is_left_where_lines_are_steep(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, curve = make_steps([(0.5, 1.0, 1)])
    for c, error in ((0.4, 2e-9), (1.9, 0.95e-8), (2.0, 1e-8), (30.0, 1e-8)):
        deltas: list[float] = []
        monkeypatch.setattr(estimate, "choose_line", lambda curve, delta, c=c: Line(c, 9.0))
        monkeypatch.setattr(estimate, "epsilon_by_inversion", lambda steps, direction, line, delta, limit: None)
        monkeypatch.setattr(estimate, "epsilon_by_grid", lambda *arguments, to=deltas: to.extend(arguments[3:5]))
        assert composed_epsilon(steps, 1e-5, curve) is None
        assert deltas == [pytest.approx(1e-5 - error, rel=1e-12), pytest.approx(error, rel=1e-12)]


def test_estimates_are_only_made_where_there_is_something_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, curve = make_steps([(0.5, 1.0, 1)])
    none, nothing = make_steps([(1e-9, 30.0, 1)])
    guarantee, exact = standard_epsilon(curve, 1e-5), composed_epsilon(steps, 1e-5, curve)
    little, much = make_steps([], 600.0), make_steps([], 1100.0)  # RDP's epsilon is about 420 and 720
    assert composed_epsilon(little[0], 1e-5, little[1]) is not None
    assert composed_epsilon(much[0], 1e-5, much[1]) is None
    monkeypatch.setattr(estimate, "_LARGEST_EPSILON", guarantee)
    assert composed_epsilon(steps, 1e-5, curve) == exact
    monkeypatch.setattr(estimate, "choose_line", lambda *arguments: pytest.fail("a line is looked for"))
    assert composed_epsilon(none, 0.4, nothing) == 0.0
    monkeypatch.setattr(estimate, "_LARGEST_EPSILON", math.nextafter(guarantee, 0))
    assert composed_epsilon(steps, 1e-5, curve) is None
