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
from scipy.special import ndtr

from veilsum_privacy.accounting import domination
from veilsum_privacy.accounting.domination import (
    DIRECTIONS,
    Direction,
    _end,
    bounded_profile,
    composed_profile,
    convolved,
    dominating_ratio,
    grid_spacing,
    step_masses,
)
from veilsum_privacy.accounting.figures import gaussian_ratio
from veilsum_privacy.accounting.gaussian import SMOOTHING, analytic_gaussian_epsilon, gaussian_profile

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


@pytest.mark.sampled(5)
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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(2)
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
    monkeypatch.setattr(domination, "bounded_profile", lambda _rate, _ratio, _steps, which, _: (spacing, profiles[which]))
    ratio = dominating_ratio.__wrapped__
    assert ratio(0.5, most / 10, 10, slack) == pytest.approx(1.5**2, rel=1e-8)
    profiles[direction][-1] = 2 * slack  # it goes on beyond the grid
    assert ratio(0.5, most / 10, 10, slack) == most


RARE = [(1e-4, 1.0, 10, 5e-8), (1e-4, 1.0, 1, 5e-8), (1e-3, 1.0, 1, 5e-8), (1e-5, 0.5, 50, 5e-8), (1e-3, 0.5, 1, 2e-7)]
"""Few steps that draw a record rarely: no grid that is fine enough reaches to the end of their losses."""


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "slack"), [RARE[0], *(pytest.param(*each, marks=pytest.mark.system) for each in RARE[1:])]
)
def test_rare_steps_are_certified_within_another_accountants_bounds(
    rate: float, sigma: float, steps: int, slack: float
) -> None:
    ratio = dominating_ratio(rate, sigma**-2, steps, slack)
    assert 0 < ratio < 0.05 * steps * sigma**-2
    low, high = (
        pld.from_gaussian_mechanism(
            sigma, sampling_prob=rate, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
        ).self_compose(steps)
        for pessimistic in (False, True)
    )
    epsilons = np.concatenate([[0.0], np.geomspace(1e-6, 3, 300)])
    pair = slack + (1 - slack) * gaussian_profile(math.sqrt(ratio), epsilons)
    assert np.all(np.array(low.get_delta_for_epsilon(epsilons)) <= pair)
    # As tight as of any steps: a tenth less noise of the pair would be too little for the steps that it stands for.
    smaller = slack + (1 - slack) * gaussian_profile(math.sqrt(0.8 * ratio), epsilons)
    assert np.any(np.array(high.get_delta_for_epsilon(epsilons)) > smaller)


@pytest.mark.parametrize(("rate", "sigma"), [(1e-4, 1.0), (1e-3, 0.5), (0.1, 1.3), (0.9, 0.4)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("spacing", [3e-2, 1e-3])
def test_a_profile_without_the_upper_tail_is_never_too_small(
    rate: float, sigma: float, direction: Direction, spacing: float
) -> None:
    """Of one step, against its closed form: cut off where the chance beyond is as large as what is added for it."""
    chance = 1e-4
    end = _end(rate, sigma**-2, chance)
    x = mpmath.mpf(end)
    with mpmath.workdps(50):
        beyond = (1 - mpmath.mpf(rate)) * mpmath.ncdf(-x) + mpmath.mpf(rate) * mpmath.ncdf(1 / mpmath.mpf(sigma) - x)
    assert chance / 2.02 < beyond <= chance / 2
    profile = composed_profile(rate, sigma**-2, 1, direction, spacing, chance, end)
    assert profile is not None
    for place, found in enumerate(profile[:: max(1, len(profile) // 40)].tolist()):
        exact = exact_profile(rate, sigma**-2, direction, spacing * place * max(1, len(profile) // 40))
        assert float(exact) <= found + chance
    assert float(exact_profile(rate, sigma**-2, direction, 0.0)) >= profile[0] - 3 * chance - spacing


def test_a_certificate_asks_for_a_cut_profile_only_where_the_whole_one_is_out_of_reach() -> None:
    for rate, ratio, steps, slack in [(0.1, 1.0, 20, 1e-7), (1e-4, 1.0, 10, 5e-8)]:
        for direction in DIRECTIONS:
            spacing = grid_spacing(rate, ratio, steps)
            whole = composed_profile(rate, ratio, steps, direction, spacing, slack / 1000)
            found = bounded_profile(rate, ratio, steps, direction, slack / 1000)
            assert found is not None
            if rate == 0.1:
                assert whole is not None
                assert found[0] == spacing
                assert np.array_equal(found[1], whole)
            else:
                assert whole is None
                assert found[0] >= spacing


WIDE = list(product([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1], [0.3, 0.5, 1.0, 4.0], [5e-8]))
LADDERS = [(1e-4, 1.0, 2e-7), (0.02, 1.0, 2e-7), *(pytest.param(*item, marks=pytest.mark.system) for item in WIDE)]


@pytest.mark.system
@pytest.mark.parametrize(("rate", "sigma", "slack"), LADDERS)
def test_prices_rise_with_steps_rate_and_less_noise_and_fall_with_slack(rate: float, sigma: float, slack: float) -> None:
    """Fewer steps are more without some; a lower rate is a higher one without some records of the sample; less noise is more
    of it that was not added; a smaller slack is within a larger one."""
    ratio = sigma**-2
    prices = [dominating_ratio(rate, ratio, steps, slack) for steps in (1, 2, 3, 10, 11, 100, 101)]
    assert prices == sorted(prices)
    assert prices[-1] <= 101 * ratio
    assert prices[1] <= dominating_ratio(1.05 * rate, ratio, 2, slack)
    assert prices[1] <= dominating_ratio(rate, 1.05 * ratio, 2, slack)
    assert prices[1] >= dominating_ratio(rate, ratio, 2, 1.05 * slack)


def test_losses_beyond_the_largest_number_are_not_lost() -> None:
    """Two draws of five lose 900 and more with a chance of 1e-5: no pair that holds them less is a bound."""
    rate, ratio, slack = 1e-3, 580.0, 5e-8
    found = dominating_ratio(rate, ratio, 5, slack)
    both = 10 * rate**2 * (1 - rate) ** 3
    # Two draws alone have a loss of log(q^2) + 2 shift x - ratio with x the mean of two normals around the shift.
    shift = math.sqrt(ratio)
    for epsilon in (800.0, 900.0, 1000.0, 1100.0):
        x = (epsilon + ratio - 2 * math.log(rate) + 1.0) / (2 * shift)  # a loss that exceeds epsilon by 1
        chance = both * float(ndtr(math.sqrt(2) * (shift - x))) * (1 - math.exp(-1))
        assert chance <= slack + float(gaussian_profile(math.sqrt(found), np.array([epsilon]))[0])
    with np.errstate(over="raise", invalid="raise"):
        profile = bounded_profile(rate, ratio, 5, 1, slack / 1000)
    assert profile is not None
    assert np.isfinite(profile[1]).all()


def test_more_steps_stand_for_steps_that_no_grid_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has twenty has ten."""
    whole, asked = domination._certified, list[int]()

    def only_from_twenty(rate: float, ratio: float, steps: int, slack: float, most: float) -> float | None:
        asked.append(steps)
        return whole(rate, ratio, steps, slack, most) if steps >= 20 else None

    monkeypatch.setattr(domination, "_certified", only_from_twenty)
    twenty, five = (dominating_ratio.__wrapped__(0.1, 1.0, steps, 1e-7) for steps in (20, 5))
    assert asked == [20, 5, 10, 20]
    assert five == pytest.approx(twenty, rel=1e-8)
    # Even so never more than what dominates without a certificate.
    assert dominating_ratio.__wrapped__(0.999, 1.0, 2, 1e-7) == 2.0


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_the_ratio_of_an_epsilon_is_its_inverse(epsilon: float, delta: float) -> None:
    found = analytic_gaussian_epsilon(gaussian_ratio(epsilon, delta), delta)
    assert epsilon * (1 - 2e-11) <= found <= epsilon
