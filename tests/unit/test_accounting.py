"""Epsilon from events: reference values, Opacus, dp-accounting's PLD and the exact Gaussian as oracles."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veilsum_privacy import accounting
from veilsum_privacy.accounting import (
    GaussianEvent,
    RdpGate,
    analytic_gaussian_epsilon,
    calibrate_noise_multiplier,
    estimated_epsilon,
    prv_epsilon,
    rdp_epsilon,
)
from veilsum_privacy.errors import Misuse

DELTA = 1e-5


def event(sigma: float, rate: float = 1.0, steps: int = 1) -> GaussianEvent:
    return GaussianEvent(1000, Fraction(round((1000 * sigma) ** 2)), rate, steps)


ONE = [event(4.0)]
FIFTY = [event(8.0, steps=50)]
SAMPLED = [event(1.1, 0.01, 1000)]


def pld_epsilon(events: list[GaussianEvent], delta: float) -> float:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for item in events:
        step = dp.PoissonSampledDpEvent(item.sampling_rate, dp.GaussianDpEvent(item.noise_multiplier))
        accountant.compose(step if item.sampling_rate < 1 else step.event, item.steps)
    return float(accountant.get_epsilon(delta))


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


@pytest.mark.parametrize(
    ("events", "reference"),
    [(SAMPLED, 1.5154), (ONE + FIFTY + SAMPLED, 4.3249)],
)
def test_reference_values_of_the_oracle(events: list[GaussianEvent], reference: float) -> None:
    assert pld_epsilon(events, DELTA) == pytest.approx(reference, abs=2e-3)


HISTORIES = [
    ONE,
    [event(30.0, steps=3), event(5.0, 0.2, 40)],
    [event(2.0, 0.05, 200), event(1.0, 0.01, 100), event(6.0)],
    [event(3.0, 0.9, 10)],
]


@pytest.mark.parametrize(("events", "delta"), list(itertools.product(HISTORIES, [1e-5, 1e-6])))
def test_against_privacy_loss_distributions(events: list[GaussianEvent], delta: float) -> None:
    truth = pld_epsilon(events, delta)
    estimate = prv_epsilon(events, delta)
    assert estimate is not None
    assert truth <= estimate <= truth + 0.011
    assert rdp_epsilon(events, delta) >= truth


@pytest.mark.filterwarnings("ignore:Optimal order")
@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.9, 2.0, 17.5, 900.0]), st.sampled_from([1.0, 0.3, 0.004])), min_size=1, max_size=6
    ),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_rdp_equals_opacus(steps: list[tuple[float, float]], delta: float) -> None:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, 1) for sigma, rate in steps]
    theirs = accountant.get_epsilon(delta, alphas=list(accounting.ORDERS))
    assert rdp_epsilon([event(sigma, rate) for sigma, rate in steps], delta) == pytest.approx(max(theirs, 0.0), rel=1e-9)


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
    # The same mechanism on another grid is the same event.
    assert rdp_epsilon([GaussianEvent(3, Fraction(9 * 16))], DELTA) == rdp_epsilon(
        [GaussianEvent(7, Fraction(49 * 16))], DELTA
    )


def test_the_gate_is_immutable_and_grows() -> None:
    empty = RdpGate()
    one = empty.with_event(event(4.0))
    more = one.with_event(event(4.0), count=2)
    assert empty.epsilon(DELTA) == 0.0
    assert 0 < one.epsilon(DELTA) < more.epsilon(DELTA)
    assert more.epsilon(DELTA) == rdp_epsilon([event(4.0, steps=3)], DELTA)
    assert prv_epsilon([], DELTA) == 0.0
    assert estimated_epsilon([], DELTA) == 0.0


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(1e-12, 1.0, exclude_max=True), sigma=st.floats(0.05, 1000))
def test_sampling_helps_and_never_turns_negative(rate: float, sigma: float) -> None:
    item = event(sigma, rate, 5)
    unsampled = event(sigma, 1.0, 5)
    assert 0 <= rdp_epsilon([item], DELTA) <= rdp_epsilon([unsampled], DELTA)


def test_a_failing_series_costs_the_unsampled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from opacus.accountants.analysis import rdp

    def fail(**_: object) -> float:
        raise ValueError("The result of subtraction must be non-negative.")

    monkeypatch.setattr(rdp, "compute_rdp", fail)
    accounting._sampled_curve.cache_clear()
    try:
        assert rdp_epsilon([event(4.0, 0.5)], DELTA) == rdp_epsilon([event(4.0)], DELTA)
    finally:
        accounting._sampled_curve.cache_clear()


@pytest.mark.parametrize("events", [[event(0.02, 0.5, 10)], [event(50.0, 0.001, 10**9)]])
def test_out_of_reach_leaves_rdp_alone(events: list[GaussianEvent]) -> None:
    assert prv_epsilon(events, DELTA) is None
    assert rdp_epsilon(events, DELTA) > 0


@pytest.mark.parametrize("fault", [RuntimeError("mean"), ValueError("delta"), OverflowError()])
def test_a_failing_prv_leaves_rdp_alone(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    from opacus.accountants import PRVAccountant

    def fail(*_: object, **__: object) -> float:
        raise fault

    monkeypatch.setattr(PRVAccountant, "get_epsilon", fail)
    accounting._prv.cache_clear()
    try:
        assert prv_epsilon(SAMPLED, DELTA) is None
        assert estimated_epsilon(SAMPLED, DELTA) is None
    finally:
        accounting._prv.cache_clear()


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
    ],
)
def test_events_that_would_lower_epsilon_cannot_be_made(arguments: tuple) -> None:
    with pytest.raises(Misuse):
        GaussianEvent(*arguments)


@pytest.mark.parametrize("delta", [0.0, -1e-5, 0.5, 1.0, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    for function in (rdp_epsilon, prv_epsilon, estimated_epsilon):
        with pytest.raises(Misuse):
            function(ONE, delta)


def test_importing_and_gating_unsampled_releases_loads_no_torch() -> None:
    code = (
        "import sys; from fractions import Fraction; from veilsum_privacy.accounting import *; "
        "events = [GaussianEvent(1, Fraction(16))]; rdp_epsilon(events, 1e-5); estimated_epsilon(events, 1e-5); "
        "sys.exit('torch' in sys.modules or 'opacus' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
