"""Epsilon from events: reference values, the exact Gaussian, and what must hold whatever the numbers are."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.releases import FIFTY, ONE, SAMPLED, event
from veilsum_node.errors import Misuse
from veilsum_privacy.accounting.accountant import GaussianEvent, Releases
from veilsum_privacy.accounting.figures import (
    at_sites,
    calibrate_noise_multiplier,
    estimated_epsilon,
    prv_epsilon,
    rdp_epsilon,
)
from veilsum_privacy.accounting.gaussian import analytic_gaussian_epsilon, gaussian_delta
from veilsum_privacy.accounting.renyi import ORDERS, STRICT_ORDERS

DELTA = 1e-5


@pytest.mark.parametrize(
    ("events", "rdp", "prv", "exact"),
    [
        (ONE, 1.0126, 0.9364, 0.9263),
        (FIFTY, 4.1057, 3.8067, 3.7965),
        (SAMPLED, 1.7118, 1.5255, None),
        (ONE + FIFTY + SAMPLED, 4.6771, 4.3351, None),
    ],
)
def test_reference_values(events: list[GaussianEvent], rdp: float, prv: float, exact: float | None) -> None:
    assert rdp_epsilon(events, DELTA) == pytest.approx(rdp, abs=6e-5)
    assert prv_epsilon(events, DELTA) == pytest.approx(prv, abs=6e-5)
    assert estimated_epsilon(events, DELTA) == pytest.approx(prv if exact is None else exact, abs=6e-5)


def test_the_surcharge_of_strict_composition() -> None:
    assert len(STRICT_ORDERS) == 8
    assert set(STRICT_ORDERS) <= set(ORDERS.tolist())
    surcharge = []
    for delta in (1e-5, 1e-6, 1e-7, 1e-9):
        for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0):
            z = calibrate_noise_multiplier(epsilon, delta, 1)
            surcharge.append(rdp_epsilon([event(z)], delta, "strict") / rdp_epsilon([event(z)], delta) - 1)
    assert min(surcharge) > 0
    assert max(surcharge) < 0.3
    assert sum(surcharge) / len(surcharge) < 0.15


def gaussian_profile(mu: float, epsilon: float) -> float:
    """The largest P(A) - e^epsilon Q(A) of two normals, by integrating over a fine grid: an oracle without the formula."""
    grid = np.linspace(-12, 12 + mu, 400_001)
    gain = np.maximum(stats.norm.pdf(grid, mu) - math.exp(epsilon) * stats.norm.pdf(grid), 0)
    return float(np.trapezoid(gain, grid))


@settings(max_examples=25, deadline=None)
@given(mu=st.floats(0.05, 5), delta=st.sampled_from([1e-2, 1e-4, 1e-6]))
def test_the_analytic_gaussian_meets_delta_exactly(mu: float, delta: float) -> None:
    epsilon = analytic_gaussian_epsilon(mu**2, delta)
    reached = gaussian_profile(mu, epsilon)
    assert reached == pytest.approx(delta, rel=1e-3) if epsilon > 0 else reached <= delta * (1 + 1e-3)


def test_the_analytic_gaussian_at_known_points() -> None:
    assert analytic_gaussian_epsilon(1 / 3.7306**2, DELTA) == pytest.approx(1.0, abs=2e-5)
    assert analytic_gaussian_epsilon(0.0, DELTA) == 0
    assert analytic_gaussian_epsilon(1e-14, DELTA) == 0
    assert analytic_gaussian_epsilon(1e8, DELTA) > 5e7


@pytest.mark.parametrize("mu", [0.01, 0.1, 1.0, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_the_analytic_gaussian_is_rounded_up_by_a_hair(mu: float, delta: float) -> None:
    found = analytic_gaussian_epsilon(mu * mu, delta)
    with mpmath.workdps(40):
        m = mpmath.sqrt(mpmath.mpf(mu * mu))
        exact = mpmath.findroot(
            lambda e: mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m) - mpmath.mpf(delta), found
        )
        assert -1e-13 <= found / exact - 1 <= 1.1e-12


@pytest.mark.parametrize(("ratio", "delta"), [
    (-1e-300, DELTA), (math.inf, DELTA), (math.nan, DELTA), (1.0, 0.0), (1.0, 0.5), (1.0, math.nan), (0.0, 0.0),
])  # fmt: skip
def test_the_analytic_gaussian_is_of_numbers_in_range(ratio: float, delta: float) -> None:
    with pytest.raises(Misuse):
        analytic_gaussian_epsilon(ratio, delta)


@settings(max_examples=100, deadline=None)
@given(epsilon=st.floats(0.02, 50), delta=st.sampled_from([1e-3, 1e-5, 1e-8]), releases=st.integers(1, 5000))
def test_calibration_is_safe_and_tight(epsilon: float, delta: float, releases: int) -> None:
    z = calibrate_noise_multiplier(epsilon, delta, releases)
    grid = 2**20
    variance = Fraction(math.ceil((z * grid) ** 2))
    assert rdp_epsilon([GaussianEvent(grid, variance)] * min(releases, 3), delta) <= epsilon
    assert rdp_epsilon([GaussianEvent(grid, variance, steps=releases)], delta) <= epsilon
    less = Fraction(math.floor((z * 0.99999 * grid) ** 2))
    assert rdp_epsilon([GaussianEvent(grid, less, steps=releases)], delta) > epsilon


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_calibration_is_rounded_up_by_a_hair(epsilon: float) -> None:
    for releases in (1, 10**9):
        z = calibrate_noise_multiplier(epsilon, DELTA, releases)
        enough, less = (GaussianEvent(1, Fraction(z * factor) ** 2, steps=releases) for factor in (1.0, 1 - 1.5e-9))
        assert rdp_epsilon([enough], DELTA) <= epsilon
        assert rdp_epsilon([less], DELTA) > epsilon or releases > 1


def test_calibration_says_when_nothing_is_enough() -> None:
    with pytest.raises(Misuse, match="No noise reaches"):
        calibrate_noise_multiplier(1e-4, DELTA, 1)
    for arguments in [(0.0, DELTA, 1), (math.nan, DELTA, 1), (math.inf, DELTA, 1), (1.0, 0.0, 1), (1.0, DELTA, 0)]:
        with pytest.raises(Misuse):
            calibrate_noise_multiplier(*arguments)


def test_epsilon_depends_on_the_multiset_only() -> None:
    events = [event(sigma, rate) for sigma in (3.0, 3.3, 41.0) for rate in (1.0, 0.1, 0.01)] * 7
    merged = [event(sigma, rate, 7) for sigma in (3.0, 3.3, 41.0) for rate in (1.0, 0.1, 0.01)]
    expected = rdp_epsilon(events, DELTA)
    random.Random(1).shuffle(events)
    assert rdp_epsilon(events, DELTA) == expected == rdp_epsilon(merged, DELTA)
    assert prv_epsilon(events, DELTA) == prv_epsilon(merged, DELTA)
    # The same mechanism on another grid is the same event.
    assert rdp_epsilon([GaussianEvent(3, Fraction(9 * 16))], DELTA) == rdp_epsilon(
        [GaussianEvent(7, Fraction(49 * 16))], DELTA
    )


MECHANISMS = st.builds(
    event,
    sigma=st.sampled_from([0.7, 3.0, 3.3, 41.0, 2000.0]),
    rate=st.sampled_from([1.0, 0.7, 0.1, 1e-3, 1e-9]),
    steps=st.sampled_from([1, 2, 1000, 10**9]),
)


@settings(max_examples=60, deadline=None)
@given(
    kept=st.lists(st.tuples(MECHANISMS, st.integers(1, 5)), max_size=8),
    passing=st.lists(st.tuples(MECHANISMS, st.integers(1, 5)), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_adding_removing_and_merging_are_exact(
    kept: list[tuple[GaussianEvent, int]], passing: list[tuple[GaussianEvent, int]], order: random.Random
) -> None:
    gate = Releases().with_events(kept)
    changes = [(item, count, True) for item, count in kept + passing]
    order.shuffle(changes)
    other = Releases()
    for item, count, _ in changes:
        other = other.with_event(item, count)
    leaving = [item for item, count in passing for _ in range(count)]
    order.shuffle(leaving)
    for item in leaving:
        other = other.without_event(item)
    assert other == gate
    assert other.curve_units == gate.curve_units
    assert [other.epsilon(delta) for delta in (1e-3, 1e-9)] == [gate.epsilon(delta) for delta in (1e-3, 1e-9)]
    assert gate.without_events(kept) == Releases()
    assert set(gate.without_events(kept).curve_units) == {0}
    assert gate.without_events(kept).epsilon(DELTA) == 0.0


def test_the_gate_is_immutable_and_grows() -> None:
    empty = Releases()
    one = empty.with_event(event(4.0))
    more = one.with_event(event(4.0), count=2)
    assert empty.epsilon(DELTA) == 0.0
    assert 0 < one.epsilon(DELTA) < more.epsilon(DELTA)
    assert more.epsilon(DELTA) == rdp_epsilon([event(4.0, steps=3)], DELTA) == rdp_epsilon({event(4.0): 3}, DELTA)
    assert more.epsilon(DELTA) == rdp_epsilon(more, DELTA)
    assert dict(more.groups) == {(1.0, 1 / 16): 3}
    with pytest.raises(TypeError):
        more.groups[(1.0, 1 / 16)] = 0  # type: ignore[index]
    assert more != one != empty != {}
    assert prv_epsilon([], DELTA) == 0.0
    assert estimated_epsilon([], DELTA) == 0.0
    assert rdp_epsilon([], DELTA, "strict") == 0.0


def test_every_step_costs_something() -> None:
    least = event(1e6, 1e-300)
    assert Releases().with_event(least).curve_units[0] == 1


def test_what_was_never_added_cannot_be_removed() -> None:
    gate = Releases().with_event(event(4.0), 2)
    for item, count in [(event(4.0), 3), (event(4.0, 0.5), 1), (event(5.0), 1)]:
        with pytest.raises(Misuse, match="cannot remove"):
            gate.without_event(item, count)
    with pytest.raises(Misuse):
        gate.with_event(event(4.0), -1)


@pytest.mark.parametrize("what", [None, "event", (4.0, 1.0, 1), 1.0])
def test_what_is_no_event_has_no_epsilon(what: object) -> None:
    for function in (rdp_epsilon, prv_epsilon, estimated_epsilon):
        with pytest.raises(Misuse, match="must be a GaussianEvent"):
            function([event(4.0), what], DELTA)  # type: ignore[list-item]


@pytest.mark.parametrize("sites", [1, 2, 5])
def test_a_person_at_several_sites_pays_the_square(sites: int) -> None:
    person = at_sites([*FIFTY, event(4.0), event(4.0)], sites)
    expected = (50 / 64 + 2 / 16) * sites**2
    estimate = estimated_epsilon(person, DELTA)
    assert estimate == pytest.approx(analytic_gaussian_epsilon(expected, DELTA), abs=2e-5)
    assert rdp_epsilon(person, DELTA) == pytest.approx(
        min(expected * ORDERS / 2 + np.log1p(-1 / ORDERS) - np.log(DELTA * ORDERS) / (ORDERS - 1)), rel=1e-12
    )


def test_a_person_at_several_sites_of_sampled_releases_is_not_covered() -> None:
    assert at_sites(SAMPLED, 1) == {SAMPLED[0]: 1}
    for arguments in [
        (SAMPLED, 2),
        (["event"], 1),
        ({ONE[0]: -1}, 1),
        ([GaussianEvent(2**61, Fraction(1))], 3),
        (Releases(), 2),
    ]:
        with pytest.raises(Misuse):
            at_sites(*arguments)
    for sites in (0, -2, 1.5, None):
        for events in (ONE, []):
            with pytest.raises(Misuse, match="one or more sites"):
                at_sites(events, sites)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(1e-12, 1.0, exclude_max=True), sigma=st.floats(0.05, 1000))
def test_sampling_helps_and_never_turns_negative(rate: float, sigma: float) -> None:
    item = event(sigma, rate, 5)
    unsampled = event(sigma, 1.0, 5)
    assert 0 <= rdp_epsilon([item], DELTA) <= rdp_epsilon([unsampled], DELTA)


def test_very_long_histories_have_an_estimate() -> None:
    events = [event(50.0, 0.001, 10**9)]  # nearly Gaussian: mu^2 = steps q^2 (exp(1 / sigma^2) - 1)
    estimate = prv_epsilon(events, DELTA)
    limit = analytic_gaussian_epsilon(10**9 * 1e-6 * math.expm1(1 / 2500), DELTA)
    assert estimate == pytest.approx(limit + 0.01, abs=1e-3)


@pytest.mark.parametrize("item", [event(1000.0, 0.5), event(1.0, 1e-9), event(1000.0)])
def test_what_hardly_happens_costs_nothing_at_a_large_delta(item: GaussianEvent) -> None:
    for epsilon in (rdp_epsilon, prv_epsilon, estimated_epsilon):
        assert epsilon([item], 0.01) == 0.0


@pytest.mark.system
def test_out_of_reach_leaves_rdp_alone() -> None:
    little_noise = [event(0.02, 0.5, 10)]
    rarely_sampled = [event(1 + index / 1000, 1e-6 * (1 + index)) for index in range(1200)]
    for events in (little_noise, rarely_sampled):
        assert prv_epsilon(events, DELTA) is None
        assert estimated_epsilon(events, DELTA) is None
        assert rdp_epsilon(events, DELTA) > 0
    # One release without sampling makes the summed loss smooth.
    assert prv_epsilon([*rarely_sampled, event(8.0)], DELTA) == pytest.approx(
        analytic_gaussian_epsilon(1 / 64, DELTA), abs=0.02
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (0, Fraction(1)),
        (-1, Fraction(1)),
        (1, Fraction(0)),
        (1, Fraction(-4)),
        (1, Fraction(1), 0.0),
        (1, Fraction(1), -0.1),
        (1, Fraction(1), 1.1),
        (1, Fraction(1), math.nan),
        (1, Fraction(1), 1.0, 0),
        (1, Fraction(1), 1.0, -3),
        (2**63, Fraction(1)),
        (math.nan, Fraction(1)),
        (2.5, Fraction(1)),
        ("1", Fraction(1)),
        (None, Fraction(1)),
        (1, math.nan),
        (1, math.inf),
        (1, -1.0),
        (1, 16.0),
        (1, Fraction(1, 10**400)),
        (1, Fraction(1), "0.5"),
        (1, Fraction(1), None),
        (1, Fraction(1), 1.0, 1.5),
        (1, Fraction(1), 1.0, math.nan),
        (1, Fraction(1), 1.0, 10**10),
    ],
)
def test_events_that_would_lower_epsilon_cannot_be_made(arguments: tuple) -> None:
    with pytest.raises(Misuse):
        GaussianEvent(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (2**62 + 1, Fraction(1)),
        (1, Fraction(2**128) + Fraction(1, 2)),
        (1, Fraction(1, 2**256 + 2**220)),
        (2**62, Fraction(2**124, 2**256 + 2**220)),
        (1, Fraction(1), 1.0 + 2.0**-52),
        (1, Fraction(1), 1.0, 10**9 + 1),
    ],
)
def test_events_just_out_of_range_cannot_be_made(arguments: tuple) -> None:
    with pytest.raises(Misuse):
        GaussianEvent(*arguments)


@pytest.mark.parametrize(
    ("arguments", "ratio"),
    [
        ((2**62, Fraction(2**124)), 1.0),
        ((1, Fraction(2**128)), 2.0**-128),
        ((1, Fraction(1, 2**256)), 2.0**256),
        ((2**62, Fraction(2**124, 2**256)), 2.0**256),
        ((3, Fraction(1, 3), 5e-324, 10**9), 27.0),
    ],
)
def test_events_at_the_ends_of_the_range_have_an_epsilon(arguments: tuple, ratio: float) -> None:
    item = GaussianEvent(*arguments)
    assert item.ratio == ratio
    assert 0 <= rdp_epsilon([item], DELTA) < math.inf


def test_counts_have_a_range() -> None:
    gate = Releases().with_event(event(4.0), 10**9)
    assert dict(gate.groups) == {(1.0, 1 / 16): 10**9}
    assert Releases().with_event(event(4.0), 0) == Releases()
    for count in (-1, 10**9 + 1, 1.5, None):
        with pytest.raises(Misuse, match="counted"):
            Releases().with_event(event(4.0), count)  # type: ignore[arg-type]


def test_calibration_has_a_range() -> None:
    assert calibrate_noise_multiplier(1.0, DELTA, 10**9) == pytest.approx(
        calibrate_noise_multiplier(1.0, DELTA, 1) * math.sqrt(10**9), rel=1e-6
    )
    for arguments in [(1.0, DELTA, 10**9 + 1), (1.0, DELTA, 0), (-1.0, DELTA, 1), (0.0, 0.49, 1)]:
        with pytest.raises(Misuse, match="positive epsilon"):
            calibrate_noise_multiplier(*arguments)
    for delta in (0.5, math.nan):
        with pytest.raises(Misuse, match="Delta"):
            calibrate_noise_multiplier(1.0, delta, 1)


@pytest.mark.parametrize("delta", [0.0, -1e-5, 0.5, 1.0, math.nan, math.inf, None, "1e-5"])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    for function in (rdp_epsilon, prv_epsilon, estimated_epsilon):
        for events in (ONE, []):
            with pytest.raises(Misuse):
                function(events, delta)
    with pytest.raises(Misuse):
        Releases().epsilon(delta)


def test_an_unknown_way_of_composing_is_refused() -> None:
    with pytest.raises(Misuse, match="gaussian, standard, strict"):
        rdp_epsilon(ONE, DELTA, "loose")  # type: ignore[arg-type]


def test_the_profile_at_one_epsilon_is_that_of_exact_arithmetic() -> None:
    """Also where a normal's mass is too small for a float, on both sides of where its series is summed instead."""
    rng = np.random.default_rng(1)
    cases = [(10.0**power, share) for power, share in rng.uniform((-4, 0), (2.5, 1), (300, 2))]
    cases += [(mu, share) for mu in (1e-4, 0.01, 1.0, 59.9, 60.1, 300.0) for share in (0.0, 0.5, 1.0)]
    with mpmath.workdps(60):
        for mu, share in cases:
            epsilon = share * (mu * mu / 2 + 35 * mu)
            m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
            kept = mpmath.ncdf(m / 2 - e / m)
            exact = kept - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            assert abs(gaussian_delta(mu, epsilon) - exact) <= 1e-12 * kept


@pytest.mark.parametrize(
    ("mu", "epsilon", "delta"), [(1e-300, 1.0, 0.0), (1e200, 1.0, 1.0), (1.0, 1e300, 0.0), (1e5, 0.0, 1.0)]
)
def test_the_profile_of_what_is_far_out(mu: float, epsilon: float, delta: float) -> None:
    assert gaussian_delta(mu, epsilon) == delta
