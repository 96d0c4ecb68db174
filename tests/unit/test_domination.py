"""Sampled steps as one Gaussian mechanism: each part of the certificate against arithmetic that rounds nothing, or the other
way."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import integrate

from veilsum_privacy.accounting import domination
from veilsum_privacy.accounting.domination import (
    DIRECTIONS,
    composed_profile,
    convolved,
    dominating_ratio,
    grid_spacing,
    step_masses,
)
from veilsum_privacy.accounting.gaussian import analytic_gaussian_epsilon, gaussian_profile, gaussian_ratio
from veilsum_privacy.accounting.losses import Direction
from veilsum_privacy.accounting.smoothing import SMOOTHING

STEPS = [(0.02, 1.3, 100, 2e-7), (0.1, 4.3, 100, 2e-7), (0.3, 1.6, 50, 1e-6), (0.02, 0.7, 10, 1e-7), (0.5, 30.0, 7, 1e-8)]
"""Rate, sigma / D, steps and slack."""


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


def exact_profile(rate: float, ratio: float, direction: Direction, epsilon: float) -> mpmath.mpf:
    """H of one step by its closed form, with 50 digits."""
    with mpmath.workdps(50):
        q, shift, e = mpmath.mpf(rate), mpmath.sqrt(mpmath.mpf(ratio)), mpmath.mpf(epsilon)
        inner = (mpmath.exp(direction * e) - 1 + q) / q
        if inner <= 0:
            return 1 - mpmath.exp(e) if direction > 0 else mpmath.mpf(0)
        x = (mpmath.log(inner) + shift**2 / 2) / shift
        below, moved = mpmath.ncdf(x), mpmath.ncdf(x - shift)
        if direction > 0:
            return (1 - q) * (1 - below) + q * (1 - moved) - mpmath.exp(e) * (1 - below)
        return below - mpmath.exp(e) * ((1 - q) * below + q * moved)


@pytest.mark.parametrize(
    ("rate", "sigma", "direction", "spacing"),
    list(product([0.001, 0.1, 0.9], [0.4, 1.3, 40.0], DIRECTIONS, [1e-1, 1e-3])),
)
def test_one_step_on_the_grid_is_rounded_up_by_little(rate: float, sigma: float, direction: Direction, spacing: float) -> None:
    first, masses = step_masses(rate, sigma**-2, direction, spacing)
    losses = spacing * np.arange(first, first + len(masses))
    assert masses.min() >= 0
    assert masses.sum() == pytest.approx(1, abs=4e-15)
    for epsilon in [-0.05, 0.0, *(spacing * np.array([1, 1.5, 7, 30])), 0.5, 3.0]:
        found = math.fsum(masses * np.maximum(-np.expm1(epsilon - losses), 0))
        exact = float(exact_profile(rate, sigma**-2, direction, epsilon))
        assert exact - 4e-15 <= found <= exact + spacing * float(masses.max()) + 1e-9  # between two places it is their chord


@pytest.mark.parametrize(("rate", "sigma", "steps", "slack"), STEPS)
def test_the_error_of_the_transform_is_bounded(rate: float, sigma: float, steps: int, slack: float) -> None:
    """Against the power of a polynomial in integers: masses are whole multiples of 2^-1074."""
    steps, size = min(steps, 20), 128
    _, masses = step_masses(rate, sigma**-2, 1, 0.1)
    sums, error = convolved(masses, steps, size)
    scale = 2**200
    whole = [0] * size
    for place, mass in enumerate(masses.tolist()):
        whole[place % size] += int(Fraction(mass) * scale)
    digits = 200 * steps + 64  # one integer holds the polynomial, a coefficient every so many bits
    power = sum(value << (digits * place) for place, value in enumerate(whole)) ** steps
    exact = [0] * size
    for place in range(size * steps):
        exact[place % size] += (power >> (digits * place)) & ((1 << digits) - 1)
    off = sum(abs(Fraction(found) - Fraction(value, scale**steps)) for found, value in zip(sums.tolist(), exact, strict=True))
    assert 0 < off <= error < 1e-11


@pytest.mark.parametrize(("rate", "sigma", "steps", "slack"), STEPS)
def test_against_another_accountant(rate: float, sigma: float, steps: int, slack: float) -> None:
    """Profiles lie between dp-accounting's bounds; the pair dominates what a hundredth less does not."""
    spacing, ratio = grid_spacing(rate, sigma**-2, steps), dominating_ratio(rate, sigma**-2, steps, slack)
    epsilons = np.linspace(0, ratio / 2 + 7 * math.sqrt(ratio), 300)
    low, high = (
        np.array(
            pld.from_gaussian_mechanism(
                sigma,
                sampling_prob=rate,
                value_discretization_interval=max(spacing / 2, 5e-4),
                pessimistic_estimate=pessimistic,
            )
            .self_compose(steps)
            .get_delta_for_epsilon(epsilons)
        )
        for pessimistic in (False, True)
    )
    ours = np.zeros(len(epsilons))
    for direction in DIRECTIONS:
        profile = composed_profile(rate, sigma**-2, steps, direction, spacing, slack / 1000)
        assert profile is not None
        ours = np.maximum(ours, np.interp(epsilons, spacing * np.arange(len(profile)), profile, right=0.0))
    assert np.all(low <= ours + slack / 100)
    assert np.all(ours <= 1.002 * high + slack / 100)
    assert 0 < ratio < steps * sigma**-2
    assert np.all(low <= slack + (1 - slack) * gaussian_profile(math.sqrt(ratio), epsilons))
    assert np.any(high > slack + (1 - slack) * gaussian_profile(math.sqrt(0.99 * ratio), epsilons))


def test_more_steps_and_less_slack_cost_more() -> None:
    assert dominating_ratio(0.1, 1.0, 20, 1e-7) < dominating_ratio(0.1, 1.0, 21, 1e-7) < dominating_ratio(0.1, 1.0, 21, 1e-8)
    assert dominating_ratio(0.1, 1.0, 20, 1e-7) < dominating_ratio(0.11, 1.0, 20, 1e-7) < dominating_ratio(0.11, 1.1, 20, 1e-7)
    # A record that is hardly ever drawn; nearly always; too much slack, too little, and what no grid bears.
    assert dominating_ratio(1e-9, 1.0, 5, 1e-8) == dominating_ratio(0.1, 1e-30, 5, 1e-8) == 0
    assert dominating_ratio(1 - 1e-9, 1.0, 5, 1e-8) == pytest.approx(5, rel=2e-3)
    for rate, ratio, steps, slack in [
        (0.1, 1.0, 5, 1e-15),
        (0.1, 1e6, 5, 1e-8),
        (0.01, 1.0, 10**9, 1e-8),
    ]:
        assert dominating_ratio(rate, ratio, steps, slack) == ratio * steps


def profile_of(mu: float, epsilon: float) -> float:
    """H of a Gaussian mechanism with D / sigma = mu (Balle and Wang 2018, theorem 5)."""
    with mpmath.workdps(40):
        below, moved = mpmath.ncdf(mu / 2 - epsilon / mu), mpmath.ncdf(-mu / 2 - epsilon / mu)
        return float(below - mpmath.exp(epsilon) * moved)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("place", range(4))
def test_each_place_of_the_grid_counts_in_both_directions(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, place: int
) -> None:
    """Profiles that mu = 1 dominates, but for one place of one direction, which takes 1.5: there H at the lower end of an
    interval is held against G at its upper end."""
    spacing, slack, most = 0.25, 1e-4, 100.0
    heights = [slack + (1 - slack) * profile_of(1.0, spacing * (index + 1)) for index in range(4)]
    profiles = {name: np.array([*heights, 0.0]) for name in DIRECTIONS}
    profiles[direction][place] = slack + (1 - slack) * profile_of(1.5, spacing * (place + 1))
    monkeypatch.setattr(domination, "grid_spacing", lambda *_: spacing)
    monkeypatch.setattr(domination, "composed_profile", lambda _rate, _ratio, _steps, which, *_: profiles[which])
    ratio = dominating_ratio.__wrapped__
    assert ratio(0.5, most / 10, 10, slack) == pytest.approx(1.5**2, rel=1e-8)
    profiles[direction][-1] = 2 * slack  # it goes on beyond the grid
    assert ratio(0.5, most / 10, 10, slack) == most


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_the_ratio_of_an_epsilon_is_its_inverse(epsilon: float, delta: float) -> None:
    found = analytic_gaussian_epsilon(gaussian_ratio(epsilon, delta), delta)
    assert epsilon * (1 - 2e-11) <= found <= epsilon
