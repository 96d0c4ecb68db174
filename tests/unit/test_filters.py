"""Filters proven for adaptive choice: the smoothing lemma, exact discrete noise, and adversaries that choose as they go."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from support.releases import FIFTY, ONE, SAMPLED, event
from veilsum_privacy.accounting.accountant import RULES, GaussianEvent, RdpFilter, analytic_gaussian_epsilon, rdp_epsilon
from veilsum_privacy.accounting.smoothing import SMOOTHING

DELTA = 1e-5
Floats = np.typing.NDArray[np.float64]


@pytest.mark.parametrize(("t", "s"), [(1.0, 0.5), (1.0, 3.0), (1.1, 1.7), (2.0, 3.5)])
def test_rounded_continuous_noise_is_discrete_noise(t: float, s: float) -> None:
    """The lemma by integration: factors stay within 1 +- 4.1 exp(-2 pi^2 t^2), which is 2e-8 at t = 1 and 2e-34 at t = 2."""
    near, variance = np.arange(-60, 61), s * s + t * t
    mass = np.exp(-(near**2) / (2 * variance))
    bound = 4.1 * math.exp(-2 * math.pi**2 * t * t) + 1e-12  # and the quadrature's own error
    for y in range(4):

        def joint(z: float, y: int = y) -> float:
            weights = np.exp(-((z - near) ** 2) / (2 * t * t))
            density = math.exp(-z * z / (2 * s * s)) / (s * math.sqrt(2 * math.pi))
            return float(density * weights[60 + y] / weights.sum())

        found = integrate.quad(joint, -12 * s, 12 * s, epsabs=1e-14, epsrel=1e-13, limit=400)[0]
        assert abs(found / (mass[60 + y] / mass.sum()) - 1) <= bound
    assert 4.1 * math.exp(-2 * math.pi**2 * SMOOTHING) < 3e-34


def discrete_profile(sensitivity: int, variance: int, count: int, epsilon: float) -> float:
    """delta(epsilon) of so many discrete Gaussians but for tails of 12 standard deviations, by convolution."""
    reach = math.ceil(12 * math.sqrt(variance)) + sensitivity
    y = np.arange(-reach, reach + 1)
    mass = np.exp(-(y**2) / (2 * variance))
    mass /= mass.sum()
    # The loss of y is D (2 y + D) / 2 v: linear in y, so the sum of y tells the loss of the composition.
    total, length = mass, len(mass)
    for _ in range(count - 1):
        total = np.convolve(total, mass)
    places = np.arange(len(total)) - count * (length // 2)
    loss = sensitivity * (2 * places + count * sensitivity) / (2 * variance)
    return float(np.sum(total * np.maximum(-np.expm1(epsilon - loss), 0)))


@pytest.mark.parametrize(
    ("sensitivity", "variance", "count"), [(4, 16, 1), (1, 16, 1), (3, 25, 4), (20, 1600, 3), (7, 100, 10)]
)
def test_exact_discrete_noise_is_within_the_gaussian_filter(sensitivity: int, variance: int, count: int) -> None:
    release = GaussianEvent(sensitivity, Fraction(variance), steps=count)
    epsilon = rdp_epsilon([release], DELTA, "gaussian")
    assert discrete_profile(sensitivity, variance, count, epsilon) <= DELTA
    inflated = analytic_gaussian_epsilon(count * sensitivity**2 / (variance - SMOOTHING), DELTA)
    assert epsilon == pytest.approx(inflated, rel=1e-9)


def test_the_figures_of_every_rule() -> None:
    rows = {
        "gaussian": (0.9263, 3.7965, 1.7118),
        "strict-unsampled": (0.9328, 3.8183, 2.3641),
        "strict-sampled": (1.0607, 4.2486, 2.0961),
        "standard": (1.0126, 4.1057, 1.7118),
        "strict": (1.1568, 4.5677, 1.9566),
    }
    assert set(rows) == set(RULES)
    for rule in RULES:
        found = [rdp_epsilon(events, DELTA, rule) for events in (ONE, FIFTY, SAMPLED)]
        assert found == pytest.approx(rows[rule], abs=2e-4)  # grids of 1000 units: smoothing takes up to 4e-6


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    releases=st.lists(st.tuples(st.floats(3, 40), st.integers(1, 30)), min_size=1, max_size=5),
    delta=st.sampled_from([1e-4, 1e-5, 1e-6, 1e-7]),
)
def test_unsampled_histories_lie_within_three_percent_of_privacy_loss_distributions(
    releases: list[tuple[float, int]], delta: float
) -> None:
    ratio = sum(steps / sigma**2 for sigma, steps in releases)
    low, high = (
        pld.from_gaussian_mechanism(1 / math.sqrt(ratio), value_discretization_interval=1e-3, pessimistic_estimate=pessimistic)
        for pessimistic in (False, True)
    )
    found = rdp_epsilon([event(sigma, steps=steps) for sigma, steps in releases], delta, "gaussian")
    assert low.get_epsilon_for_delta(delta) <= found <= 1.03 * high.get_epsilon_for_delta(delta)
    assert found <= rdp_epsilon([event(sigma, steps=steps) for sigma, steps in releases], delta, "standard")


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(1, 60), st.sampled_from([1.0, 0.2, 0.01]), st.integers(1, 40)), min_size=1, max_size=6),
    rule=st.sampled_from(["gaussian", "strict-unsampled", "strict-sampled"]),
)
def test_more_releases_never_cost_less_and_order_does_not_matter(steps: list[tuple[float, float, int]], rule: str) -> None:
    gate, last = RdpFilter(), 0.0
    for sigma, rate, number in steps:
        gate = gate.with_event(event(sigma, rate, number))
        found = gate.epsilon(DELTA, rule)  # type: ignore[arg-type]
        assert found >= last * (1 - 1e-9)
        last = found
    again = RdpFilter().with_events((event(*step), 1) for step in reversed(steps))
    assert again.epsilon(DELTA, rule) == last  # type: ignore[arg-type]
    assert again.without_events((event(*step), 1) for step in steps).epsilon(DELTA, rule) == 0  # type: ignore[arg-type]


# -- adversaries -----------------------------------------------------------------------------------------------------------

GRID = np.linspace(-14.0, 14.0, 2801)  # of the loss so far; 0.01 apart


def loss_masses(rate: float, ratio: float) -> Floats:
    """The losses of one step in which a record is removed, rounded up on the grid's spacing: (places, masses) as a vector."""
    x = np.linspace(-9, 9 + math.sqrt(ratio), 20_001)
    shift = math.sqrt(ratio)
    loss = np.log1p(rate * np.expm1(shift * x - ratio / 2)) if rate < 1 else shift * x - ratio / 2
    density = (1 - rate) * np.exp(-x * x / 2) + rate * np.exp(-((x - shift) ** 2) / 2)
    masses = np.zeros(len(GRID))
    spacing = GRID[1] - GRID[0]
    low = np.floor(loss / spacing).astype(int)
    part = loss / spacing - low  # split between neighbours, so that the mean is kept
    density /= density.sum()
    centre = len(GRID) // 2
    np.add.at(masses, np.clip(low + centre, 0, len(GRID) - 1), density * (1 - part))
    np.add.at(masses, np.clip(low + 1 + centre, 0, len(GRID) - 1), density * part)
    return masses


def worst_delta(rule: str, epsilon: float, moves: list[GaussianEvent], depth: int) -> float:
    """The largest delta at ``epsilon`` of an adversary who knows the loss so far, and stops or makes a move admitted."""
    kernels = [loss_masses(move.sampling_rate, move.ratio * move.steps) for move in moves]
    stop: Floats = np.maximum(-np.expm1(epsilon - GRID), 0)
    known: dict[RdpFilter, Floats] = {}

    def value(gate: RdpFilter, left: int) -> Floats:
        if gate not in known:
            best = stop
            for move, kernel in zip(moves, kernels, strict=True):
                after = gate.with_event(move)
                if left and after.epsilon(DELTA_WIDE, rule) <= epsilon:  # type: ignore[arg-type]
                    best = np.maximum(best, np.correlate(np.pad(value(after, left - 1), 1400, mode="edge"), kernel, "valid"))
            known[gate] = best
        return known[gate]

    return float(value(RdpFilter(), depth)[len(GRID) // 2])


DELTA_WIDE = 1e-3


@pytest.mark.parametrize(
    ("rule", "sampled"),
    [("gaussian", False), ("strict-unsampled", False), ("strict-unsampled", True), ("strict-sampled", True)],
)
def test_no_adversary_gets_past_a_filter(rule: str, sampled: bool) -> None:
    """Dynamic programming over the loss so far. Without sampling the bound is reached: a looser filter would be seen."""
    moves = [event(3.0), event(6.0)] + ([event(1.2, 0.1)] if sampled else [])
    epsilon = RdpFilter().with_event(moves[0], 4).epsilon(DELTA_WIDE, rule) * (1 + 1e-6)  # type: ignore[arg-type]
    found = worst_delta(rule, epsilon, moves, 8)
    assert found <= DELTA_WIDE * 1.01  # of the grid
    assert rule != "gaussian" or found > 0.97 * DELTA_WIDE
