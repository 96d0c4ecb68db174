"""The rule ``gaussian``: exact discrete noise, adversaries that choose as they go, other accountants, the ledger."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from support.ledgers import make_reservation, open_ledger
from support.releases import FIFTY, ONE, SAMPLED, event
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse, Refusal
from veilsum_privacy.accounting.accountant import SLACK_SHARE, Course, GaussianEvent, Releases, epsilon_of
from veilsum_privacy.accounting.domination import dominating_ratio
from veilsum_privacy.accounting.figures import estimated_epsilon, gaussian_ratio, rdp_epsilon
from veilsum_privacy.accounting.gaussian import SMOOTHING, analytic_gaussian_epsilon, gaussian_profile
from veilsum_privacy.ledger import verify_ledger
from veilsum_privacy.ledger.entries import Budget, Mechanism
from veilsum_privacy.ledger.sums import total_epsilon

DELTA = 1e-5


def course(sigma: float, rate: float, steps: int, taken: int | None = None, slack: float = 0.02 * DELTA) -> GaussianEvent:
    """So many steps of a course, by default all."""
    return replace(event(sigma, rate, taken or steps), course=Course(steps, slack))


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
def test_exact_discrete_noise_is_within_the_rule(sensitivity: int, variance: int, count: int) -> None:
    release = GaussianEvent(sensitivity, Fraction(variance), steps=count)
    epsilon = epsilon_of([release], DELTA, "gaussian")
    share = (1 - SLACK_SHARE) * DELTA
    assert discrete_profile(sensitivity, variance, count, epsilon) <= share
    smooth = analytic_gaussian_epsilon(count * sensitivity**2 / (variance - SMOOTHING), share)
    assert epsilon == pytest.approx(smooth, rel=1e-9)


def test_reference_values() -> None:
    whole = [course(1.1, 0.01, 1000)]
    found = [epsilon_of(events, DELTA, "gaussian") for events in (ONE, FIFTY, whole, ONE + FIFTY + whole)]
    assert found == pytest.approx([0.9328, 3.8183, 1.5379, 4.3985], abs=1e-4)
    by_rdp = [rdp_epsilon(events, DELTA) for events in (ONE, FIFTY, SAMPLED, ONE + FIFTY + SAMPLED)]
    assert all(ours < other for ours, other in zip(found, by_rdp, strict=True))


def test_a_course_is_paid_with_its_first_step_and_a_step_without_one_as_if_not_sampled() -> None:
    pair = dominating_ratio(0.1, event(2.0).smooth_ratio, 30, 2e-7)
    empty = Releases()
    for taken, begun in ((1, 1), (30, 1), (31, 2), (60, 2), (61, 3)):
        ratio, slack = empty.with_event(course(2.0, 0.1, 30, taken)).pair()
        assert ratio == pytest.approx(begun * pair, rel=1e-12)
        assert slack == pytest.approx(begun * 2e-7, rel=1e-12)
    gate = empty.with_event(course(2.0, 0.1, 30, 7)).with_event(course(2.0, 0.1, 30, 23))
    assert gate == empty.with_event(course(2.0, 0.1, 30))
    assert gate.without_event(course(2.0, 0.1, 30, 30)) == empty
    assert gate != empty.with_event(event(2.0, 0.1, 30))
    with pytest.raises(Misuse, match="does not hold"):
        gate.without_event(course(2.0, 0.1, 31, 30))
    alone = epsilon_of([event(2.0, 0.1, 30)], DELTA, "gaussian")
    assert alone == pytest.approx(epsilon_of([event(2.0, steps=30)], DELTA, "gaussian"), rel=1e-12)
    # By RDP a course makes no difference.
    assert rdp_epsilon([course(2.0, 0.1, 30, 7)], DELTA) == rdp_epsilon([event(2.0, 0.1, 7)], DELTA)


def test_slack_beyond_its_share_of_delta_has_no_bound() -> None:
    five, six = ([course(2.0 + 0.1 * index, 0.1, 30) for index in range(number)] for number in (5, 6))
    assert math.isfinite(epsilon_of(five, DELTA, "gaussian"))
    assert epsilon_of(six, DELTA, "gaussian") == math.inf
    assert math.isfinite(rdp_epsilon(six, DELTA))


@pytest.mark.parametrize("arguments", [(0, 1e-7), (1.5, 1e-7), (3, 0.0), (3, 0.5), (3, math.nan)])
def test_a_course_has_bounds(arguments: tuple[int, float]) -> None:
    with pytest.raises(Misuse):
        Course(*arguments)
    with pytest.raises(Misuse, match="Only sampled"):
        GaussianEvent(1, Fraction(16), course=Course(3, 1e-7))


# -- histories, against another accountant -----------------------------------------------------------------------------------


def pld_epsilon(events: list[GaussianEvent], delta: float, *, pessimistic: bool) -> float:
    total = None
    for item in events:
        one = pld.from_gaussian_mechanism(
            1 / math.sqrt(item.ratio * (item.steps if item.sampling_rate == 1 else 1)),
            sampling_prob=item.sampling_rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
        )
        one = one.self_compose(item.steps) if item.sampling_rate < 1 else one
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.system) for seed in range(8, 40))])
def test_unsampled_histories_cost_within_three_percent_of_another_accountant(seed: int) -> None:
    generator = random.Random(seed)
    delta = generator.choice([1e-4, 1e-5, 1e-6, 1e-7])
    events = [event(generator.uniform(3, 40), steps=generator.randint(1, 30)) for _ in range(generator.randint(1, 5))]
    found = epsilon_of(events, delta, "gaussian")
    assert pld_epsilon(events, delta, pessimistic=False) <= found <= 1.03 * pld_epsilon(events, delta, pessimistic=True)
    assert found < rdp_epsilon(events, delta)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.system) for seed in range(8, 40))])
def test_sampled_histories_cost_within_ten_percent_of_another_accountant(seed: int) -> None:
    """Studies in which a record is drawn ten times or more, beside releases without sampling."""
    generator = random.Random(seed)
    delta = generator.choice([1e-4, 1e-5, 1e-6])
    events = [event(generator.uniform(4, 40), steps=generator.randint(1, 10)) for _ in range(generator.randint(0, 2))]
    for _ in range(generator.randint(1, 3)):
        rate, expected = math.exp(generator.uniform(math.log(0.02), math.log(0.5))), generator.uniform(10, 40)
        events.append(course(generator.uniform(2, 8), rate, math.ceil(expected / rate), slack=0.005 * delta))
    found = epsilon_of(events, delta, "gaussian")
    assert pld_epsilon(events, delta, pessimistic=False) <= found <= 1.10 * pld_epsilon(events, delta, pessimistic=True)
    estimate = estimated_epsilon(events, delta, "gaussian")
    assert estimate is None or estimate <= found


# -- adversaries -----------------------------------------------------------------------------------------------------------

GRID = np.linspace(-14.0, 14.0, 2801)  # of the loss so far; 0.01 apart
WIDE = 1e-3
EPSILON = 1.5
MOST = gaussian_ratio(EPSILON, (1 - SLACK_SHARE) * WIDE)
STOP: Floats = np.maximum(-np.expm1(EPSILON - GRID), 0)


def kernel(rate: float, ratio: float) -> Floats:
    """The losses of one step in which a record is removed, on the grid's spacing, means kept."""
    x, shift, spacing = np.linspace(-9, 9 + math.sqrt(ratio), 20_001), math.sqrt(ratio), GRID[1] - GRID[0]
    loss = np.log1p(rate * np.expm1(shift * x - ratio / 2)) if rate < 1 else shift * x - ratio / 2
    density = (1 - rate) * np.exp(-x * x / 2) + rate * np.exp(-((x - shift) ** 2) / 2)
    masses, low, centre = np.zeros(len(GRID)), np.floor(loss / spacing).astype(int), len(GRID) // 2
    part = loss / spacing - low
    density /= density.sum()
    np.add.at(masses, np.clip(low + centre, 0, len(GRID) - 1), density * (1 - part))
    np.add.at(masses, np.clip(low + 1 + centre, 0, len(GRID) - 1), density * part)
    return masses


def after(value: Floats, masses: Floats) -> Floats:
    """What is expected after a step, by the loss before it."""
    return np.correlate(np.pad(value, 1400, mode="edge"), masses, "valid")


def worst(parts: int, slacks: int, admits: Callable[[int, int], bool]) -> float:
    """The largest delta at EPSILON of who knows the loss so far and stops, spends a part of MOST as a Gaussian release, or a
    part of the slack as a coin that reveals the record."""
    masses, coin = kernel(1.0, MOST / parts), SLACK_SHARE * WIDE / slacks
    known: dict[tuple[int, int], Floats] = {}

    def value(spent: int, tossed: int) -> Floats:
        if (spent, tossed) not in known:
            best = STOP
            if admits(spent + 1, tossed):
                best = np.maximum(best, after(value(spent + 1, tossed), masses))
            if admits(spent, tossed + 1):
                best = np.maximum(best, coin + (1 - coin) * value(spent, tossed + 1))
            known[spent, tossed] = best
        return known[spent, tossed]

    return float(value(0, 0)[len(GRID) // 2])


def test_no_adversary_gets_past_fixed_shares() -> None:
    """The bound is nearly reached: a looser filter would be seen."""
    found = worst(6, 3, lambda spent, tossed: spent <= 6 and tossed <= 3)
    assert 0.98 * WIDE <= found <= 1.01 * WIDE  # of the grid


def test_shares_that_move_with_what_was_released_would_let_one_past() -> None:
    """Why the shares are fixed: any pair whose own delta is within the budget's."""

    def admits(spent: int, tossed: int) -> bool:
        mu = math.sqrt(MOST * 1.02 * spent / 6) or 1e-9
        return SLACK_SHARE * WIDE * tossed / 3 + float(gaussian_profile(mu, np.array([EPSILON]))[0]) <= WIDE * (1 + 1e-9)

    assert worst(6, 3, admits) > 1.1 * WIDE


def test_no_adversary_gains_by_what_comes_between_the_steps_of_a_course() -> None:
    """Four sampled steps and whole releases in any order, chosen by the loss so far, against the price of both."""
    steps, ratio, slack = 4, 0.5, SLACK_SHARE * WIDE
    pair = dominating_ratio(0.2, ratio, steps, slack)
    whole, sampled = kernel(1.0, (MOST - pair) / 3), kernel(0.2, ratio)
    known: dict[tuple[int, int], Floats] = {}

    def value(taken: int, spent: int) -> Floats:
        if (taken, spent) not in known:
            best = STOP
            if taken < steps:
                best = np.maximum(best, after(value(taken + 1, spent), sampled))
            if spent < 3:
                best = np.maximum(best, after(value(taken, spent + 1), whole))
            known[taken, spent] = best
        return known[taken, spent]

    assert 0 < pair < MOST
    assert 0.6 * WIDE <= float(value(0, 0)[len(GRID) // 2]) <= WIDE


# -- the ledger ------------------------------------------------------------------------------------------------------------


def in_course(mechanism: Mechanism, steps: int, slack: float = 2e-7) -> Mechanism:
    return replace(mechanism, course=Course(steps, slack))


def test_a_mechanism_of_a_course_survives_its_entry_and_nothing_else_does() -> None:
    plain = make_reservation(rate=0.1).mechanism
    value = in_course(plain, 30).to_json()
    assert value == plain.to_json() | {"course": [30, 2e-7]}
    stated = value | {"sampling_rate": (0.1).hex(), "course": [30, (2e-7).hex()]}
    assert Mechanism.from_json(stated, 1) == in_course(plain, 30)
    for wrong in ([30], [], [30, ""], [0, (2e-7).hex()], [30, (0.7).hex()], ["30", (2e-7).hex()], 30, None):
        with pytest.raises(HostileInput):
            Mechanism.from_json(stated | {"course": wrong}, 1)
    with pytest.raises(HostileInput):
        Mechanism.from_json(stated | {"sampling_rate": (1.0).hex()}, 1)


def test_a_ledger_holds_a_study_to_the_price_of_its_course(tmp_path: Path) -> None:
    """Reserved in full with the first step, given back if that is freed, and no dearer until the last."""
    ledger = open_ledger(tmp_path / "ledger.db")
    releases = [make_reservation(number, rate=0.1, multiplier=2.0) for number in range(1, 33)]
    releases = [replace(item, mechanism=in_course(item.mechanism, 30)) for item in releases]
    price = total_epsilon({releases[0].mechanism: 1}, DELTA, "gaussian")
    with ledger.database.transaction() as connection:
        words = {"reason": "r", "operator": "o"}
        ledger.set_budget(connection, "heart", price * (1 + 1e-9), DELTA, **words, adaptive="gaussian")
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, releases[0])
        assert ledger.spending("heart", connection).reserved == price
        ledger.free(connection, releases[0].context)
        assert ledger.spending("heart", connection).reserved == 0
    for item in releases[1:31]:
        with ledger.database.transaction() as connection:
            ledger.reserve(connection, item)
            ledger.charge(connection, item.context)
            assert ledger.spending("heart", connection).spent == price
    with pytest.raises(Refusal), ledger.database.transaction() as connection:
        ledger.reserve(connection, releases[31])
    assert verify_ledger(ledger).spending["heart"][0] == price


def test_a_budget_without_slack_left_says_so(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.db")
    with ledger.database.transaction() as connection:
        ledger.set_budget(connection, "heart", 50.0, DELTA, reason="r", operator="o", adaptive="gaussian")
    item = make_reservation(1, rate=0.1)
    with pytest.raises(Refusal, match="more slack than 0\\.1 of delta"), ledger.database.transaction() as connection:
        ledger.reserve(connection, replace(item, mechanism=in_course(item.mechanism, 30, 2e-6)))


def test_a_budget_states_its_rule() -> None:
    assert Budget.from_detail({"epsilon": (1.0).hex()}, DELTA).adaptive == "standard"
    assert Budget.from_detail({"epsilon": (1.0).hex(), "adaptive": "gaussian"}, DELTA).adaptive == "gaussian"


def test_beyond_all_use_a_bound_takes_over_where_the_formula_loses_its_digits() -> None:
    """Bun and Steinke 2016, proposition 1.3; just above the last exact figure and by hardly more."""
    exact, bound = analytic_gaussian_epsilon(1e10, 1e-5), analytic_gaussian_epsilon(1e10 * (1 + 1e-12), 1e-5)
    assert bound == pytest.approx(5e9 + math.sqrt(2e10 * math.log(1e5)), rel=1e-11)
    assert exact < bound < exact * (1 + 1e-4)
