"""Epsilon against other accountants: Opacus, and dp-accounting's PLD. None of them is part of what is installed.

dp-accounting's PLD rounds privacy losses up on a grid: at its usual width of 1e-4 its epsilon is above the true one by up to
2e-6 without sampling and by some 1e-5 with it. An estimate that is not below it is not below the truth.
"""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import logsumexp

from support.releases import FIFTY, ONE, SAMPLED, event
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.accounting.figures import estimated_epsilon, prv_epsilon, rdp_epsilon
from veilsum_privacy.accounting.renyi import ORDERS, STRICT_ORDERS, sampled_curve

DELTA = 1e-5


def multiplier(item: GaussianEvent) -> float:
    """sigma / D."""
    return math.sqrt(item.variance) / item.sensitivity


def pld_epsilon(events: list[GaussianEvent], delta: float, width: float = 1e-4) -> float:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=width)
    for item in events:
        step = dp.PoissonSampledDpEvent(item.sampling_rate, dp.GaussianDpEvent(multiplier(item)))
        accountant.compose(step if item.sampling_rate < 1 else step.event, item.steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.system
@pytest.mark.parametrize(
    ("events", "reference"),
    [(SAMPLED, 1.5154), (ONE + FIFTY + SAMPLED, 4.3249)],
)
def test_reference_values_of_the_oracle(events: list[GaussianEvent], reference: float) -> None:
    assert pld_epsilon(events, DELTA) == pytest.approx(reference, abs=2e-3)


def random_history(random: random.Random) -> list[GaussianEvent]:
    """A few groups of releases: statistics, training at all rates and lengths, and training that has hardly begun."""
    events = []
    for _ in range(random.randint(1, 5)):
        kind = random.random()
        if kind < 0.4:
            events.append(event(random.uniform(3, 40), 1.0, random.randint(1, 30)))
        elif kind < 0.9:
            sigma, rate = math.exp(random.uniform(-0.5, 2)), math.exp(random.uniform(-7, -0.1))
            events.append(event(sigma, rate, round(math.exp(random.uniform(0, 6)))))
        else:
            events.append(event(random.uniform(0.6, 3), math.exp(random.uniform(-10, -6)), random.randint(1, 50)))
    return events


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.system) for seed in range(4, 50))])
def test_random_histories_against_privacy_loss_distributions(seed: int) -> None:
    generator = random.Random(seed)
    delta = generator.choice([1e-4, 1e-5, 1e-6, 1e-7])
    events = random_history(generator)
    while rdp_epsilon(events, delta) > 5:  # PLD takes long for more
        events = random_history(generator)
    truth, estimate, guarantee = pld_epsilon(events, delta), estimated_epsilon(events, delta), rdp_epsilon(events, delta)
    assert estimate is not None
    assert truth <= estimate <= truth + 0.011
    assert truth <= guarantee <= rdp_epsilon(events, delta, "strict")
    assert estimate <= guarantee


HISTORIES = [
    ONE,
    [event(30.0, steps=3), event(5.0, 0.2, 40)],
    [event(2.0, 0.05, 200), event(1.0, 0.01, 100), event(6.0)],
    [event(3.0, 0.9, 10)],
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("events", "delta"), list(itertools.product(HISTORIES, [1e-5, 1e-6])))
def test_against_privacy_loss_distributions(events: list[GaussianEvent], delta: float) -> None:
    truth = pld_epsilon(events, delta)
    estimate = prv_epsilon(events, delta)
    assert estimate is not None
    assert truth <= estimate <= truth + 0.011
    assert rdp_epsilon(events, delta) >= truth


@pytest.mark.system
def test_steps_that_round_one_way_against_privacy_loss_distributions() -> None:
    """Nearly all of the losses are smaller than the grid's width, and inversion does not get there."""
    events = [event(0.35, 5.3e-5, 479)]
    truth, estimate = pld_epsilon(events, 1e-4), prv_epsilon(events, 1e-4)
    assert estimate is not None
    assert truth <= estimate <= truth + 0.011


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sigma", "delta"),
    [
        pytest.param(sigma, delta, marks=[] if diagonal else pytest.mark.system)
        for delta, near in ((1e-3, 0.5), (1e-5, 30.0), (1e-9, 4.0))
        for sigma in (0.5, 4.0, 30.0, 300.0)
        for diagonal in [sigma == near]
    ],
)
def test_without_sampling_the_estimate_is_exact_and_not_below_a_finer_grid(sigma: float, delta: float) -> None:
    estimate = estimated_epsilon([event(sigma)], delta)
    assert estimate is not None
    assert pld_epsilon([event(sigma)], delta) <= estimate
    assert pld_epsilon([event(sigma)], delta, 1e-4 if sigma < 1 else 2e-5) == pytest.approx(estimate - 1e-5, abs=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Optimal order", "ignore:divide by zero")
@pytest.mark.parametrize("events", [SAMPLED, ONE + FIFTY + SAMPLED, [event(2.0, 0.3, 20), event(9.0, 0.01, 5000)]])
def test_prv_equals_opacus(events: list[GaussianEvent]) -> None:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(multiplier(item), item.sampling_rate, item.steps) for item in events]
    assert prv_epsilon(events, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=5e-4)


@pytest.mark.filterwarnings("ignore:Optimal order")
@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.9, 2.0, 17.5, 900.0]), st.sampled_from([1.0, 0.3, 0.004])), min_size=1, max_size=6
    ),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_rdp_equals_opacus(steps: list[tuple[float, float]], delta: float) -> None:
    events = [event(sigma, rate) for sigma, rate in steps]
    assert rdp_epsilon(events, delta) == pytest.approx(opacus_epsilon(steps, delta, ORDERS), rel=1e-9)
    strict = opacus_epsilon(steps, delta / 8, STRICT_ORDERS)
    assert rdp_epsilon(events, delta, "strict") == pytest.approx(strict, rel=1e-9)
    assert rdp_epsilon(events, delta, "strict") >= rdp_epsilon(events, delta)


def opacus_epsilon(steps: list[tuple[float, float]], delta: float, orders: Sequence[float]) -> float:
    """As Opacus's RDPAccountant has it, whose curves of single steps are computed once."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    rdp = sum(opacus_curve(rate, sigma, tuple(orders)) for sigma, rate in steps)
    return max(float(get_privacy_spent(orders=list(orders), rdp=rdp, delta=delta)[0]), 0.0)


@cache
def opacus_curve(rate: float, sigma: float, orders: tuple[float, ...]) -> np.ndarray:
    from opacus.accountants.analysis.rdp import compute_rdp

    return np.asarray(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(orders)))


WHOLE = [index for index, order in enumerate(ORDERS) if order == int(order)]
LARGE = [index for index in WHOLE if ORDERS[index] > 64]
"""Opacus adds up as many terms as the order has, one by one."""


@settings(max_examples=25, deadline=None)
@given(rate=st.floats(-12, -1e-6).map(math.exp), sigma=st.floats(0.1, 1000), large=st.sampled_from(LARGE))
def test_integer_orders_equal_opacus(rate: float, sigma: float, large: int) -> None:
    """All orders to 64, and one of the larger ones with every example."""
    whole = [*(index for index in WHOLE if index not in LARGE), large]
    theirs = opacus_curve(rate, sigma, tuple(ORDERS[whole]))
    ours = sampled_curve(rate, sigma**-2)[whole]
    # Opacus subtracts from 1: its digits end near 1e-16 times the number of terms.
    np.testing.assert_allclose(ours, theirs, rtol=5e-10, atol=1e-12)
    assert np.all(ours >= theirs - 1e-12)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.1), (0.3, 0.8), (0.9, 3.0), (1e-3, 0.5), (0.05, 20.0)])
def test_fractional_orders_equal_opacus(rate: float, sigma: float) -> None:
    from opacus.accountants.analysis.rdp import compute_rdp

    ours = sampled_curve(rate, sigma**-2)
    for index in range(0, 99, 7):
        theirs = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=float(ORDERS[index]))
        assert ours[index] == pytest.approx(theirs, rel=1e-7, abs=1e-11)


def test_accounting_loads_no_torch() -> None:
    code = (
        "import sys; from fractions import Fraction; from veilsum_privacy.accounting.figures import *; "
        "events = [GaussianEvent(1, Fraction(16)), GaussianEvent(1, Fraction(4), 0.1, 50)]; "
        "rdp_epsilon(events, 1e-5); estimated_epsilon(events, 1e-5); "
        "sys.exit('torch' in sys.modules or 'opacus' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def discrete(variance: float, sensitivity: int, reach: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the probabilities of a discrete Gaussian about 0 and about the sensitivity."""
    y = np.arange(-reach, reach + 1)
    logs = (-((y - place) ** 2) / (2 * variance) for place in (0, sensitivity))
    first, second = (own - logsumexp(own) for own in logs)
    return first, second


@pytest.mark.parametrize(("variance", "sensitivity", "rate"), [(100.0, 10, 0.1), (400.0, 10, 0.02), (64.0, 8, 0.5)])
def test_between_whole_orders_a_sampled_discrete_gaussian_costs_no_more_than_16_of_its_variance_less(
    variance: float, sensitivity: int, rate: float
) -> None:
    """Summed over the integers; at whole orders no variance has to be taken off."""
    p, q = discrete(variance, sensitivity)
    ratio = np.log1p(rate * np.expm1(np.minimum(q - p, 700.0)))
    whole, less = (sampled_curve(rate, sensitivity**2 / own) for own in (variance, variance - 16.0))
    for index, order in enumerate(ORDERS[:120]):
        found = float(logsumexp(p + order * ratio)) / (order - 1)
        assert found <= (whole if order == int(order) else less)[index] * (1 + 1e-9)


def test_the_estimate_is_below_a_discrete_gaussians_only_where_the_grid_is_coarse() -> None:
    def gap(variance: int, sensitivity: int) -> float:
        p, q = discrete(variance, sensitivity)
        exact = brentq(lambda epsilon: float(np.maximum(np.exp(p) - np.exp(epsilon + q), 0.0).sum()) - DELTA, 0.0, 20.0)
        estimate = estimated_epsilon([GaussianEvent(sensitivity, Fraction(variance))], DELTA)
        assert estimate is not None
        return exact - estimate

    assert gap(16, 4) == pytest.approx(0.013, abs=0.0005)
    assert gap(16 * 2500, 200) < 1e-4
