"""Poisson samples, noised steps, and what a study may declare of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.computation.weights import SCORES, WEIGHTS, cohort_factors, largest_share
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.mechanism.steps import Steps, poisson_sample


def make_steps(number: int = 2, variance: int = 10_000, grid: int = 4096, clip: float = 0.5) -> Steps:
    plan = NoisePlan("training", variance, 1, 1)
    return Steps(number, 0.25, plan, grid, clip, grid * 100, SeededRandom(7))


def test_a_sample_takes_each_record_with_its_rate() -> None:
    taken = poisson_sample(0.3, 20_000, SeededRandom(1))
    assert stats.binomtest(int(taken.sum()), 20_000, 0.3).pvalue > 1e-6
    # By itself: neighbours are as often taken together as chance has it.
    both = int((taken[:-1] & taken[1:])[::2].sum())
    assert stats.binomtest(both, 10_000, 0.09).pvalue > 1e-6


@given(rate=st.floats(1e-6, 1.0, exclude_min=True), count=st.integers(0, 60), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_sample_is_of_whole_subjects(rate: float, count: int, seed: int) -> None:
    subjects = np.sort(np.random.default_rng(seed).integers(0, 10, count))
    taken = poisson_sample(rate, count, SeededRandom(seed), subjects)
    assert taken.shape == (count,)
    for subject in np.unique(subjects):
        assert len(set(taken[subjects == subject])) == 1


def test_a_sample_is_fresh_and_whole_at_rate_one() -> None:
    first, second = (poisson_sample(0.5, 200, SYSTEM_RANDOM) for _ in range(2))
    assert (first != second).any()
    assert poisson_sample(1.0, 5, SYSTEM_RANDOM).all()
    assert poisson_sample(0.5, 0, SYSTEM_RANDOM).shape == (0,)


class Words:
    """A source of 64-bit words that are told beforehand, and of no others."""

    def __init__(self, *words: int) -> None:
        self._left = b"".join(word.to_bytes(8, "little") for word in words)

    def bytes(self, count: int) -> bytes:
        assert count <= len(self._left)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


@pytest.mark.parametrize("rate", [0.75, 0.3, 2.0**-40, 3 * 2.0**-62, 1.5 * 2.0**-62, 2.0**-63, 5e-324])
def test_never_more_than_the_rate_to_the_last_of_62_bits(rate: float) -> None:
    below = math.floor(Fraction(rate) * 2**62)  # as many of the 2^62 draws take a record
    draws = [draw for draw in (0, below - 1, below, below + 1, 2**62 - 1) if draw >= 0]
    for low in range(4):
        taken = poisson_sample(rate, len(draws), Words(*(draw << 2 | low for draw in draws)))
        assert taken.tolist() == [draw < below for draw in draws]


def test_a_draw_decides_for_a_whole_subject() -> None:
    no, yes = 2**64 - 1, 0
    for subjects in ([3, 3, 5, 7, 7, 7], [-9, -9, 0, 2**40, 2**40, 2**40]):
        for draws in ((no, no, no), (yes, no, no), (no, yes, no), (no, no, yes), (yes, yes, yes)):
            taken = poisson_sample(0.5, 6, Words(*draws), np.array(subjects))
            assert taken.tolist() == [draws[subject] == yes for subject in (0, 0, 1, 2, 2, 2)]
    assert poisson_sample(0.5, 0, Words(), np.zeros(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.0 + 2.0**-52, math.nan])
def test_rates_out_of_range_are_refused(rate: float) -> None:
    with pytest.raises(Misuse, match="rate"):
        poisson_sample(rate, 5, SYSTEM_RANDOM)


@pytest.mark.parametrize("subjects", [[1, 0, 1], [0, 2, 1], [0, 1], [0, 1, 1, 2], [[0, 0, 0]], []])
def test_subjects_that_do_not_fit_are_refused(subjects: list[int]) -> None:
    with pytest.raises(Misuse, match="stand together"):
        poisson_sample(0.5, 3, SYSTEM_RANDOM, np.array(subjects, dtype=np.int64))


def test_noise_of_a_step_has_the_declared_size() -> None:
    steps = make_steps(number=1, variance=10_000, grid=40_000, clip=2.0)
    noised = steps.noised(np.zeros(20_000, dtype=np.int64))
    unit = 2.0 / (40_000 - math.sqrt(20_000))
    assert stats.kstest(noised / unit / 100.0, "norm").pvalue > 1e-6
    assert np.abs(noised / unit - np.rint(noised / unit)).max() < 1e-6
    with pytest.raises(Misuse, match="more noised steps"):
        steps.noised(np.zeros(20_000, dtype=np.int64))


def test_noise_of_every_step_is_its_own() -> None:
    steps = make_steps(number=4, variance=10_000, grid=40_000, clip=2.0)
    drawn = np.array([steps.noised(np.zeros(500, dtype=np.int64)) for _ in range(4)])
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 7 / math.sqrt(500)


def test_a_grid_that_is_too_coarse_is_refused() -> None:
    with pytest.raises(Misuse, match="too coarse"):
        make_steps(grid=16, variance=400).noised(np.zeros(400, dtype=np.int64))
    with pytest.raises(Misuse, match="too coarse"):
        make_steps(grid=16, variance=400).units(400)


def test_a_step_is_clamped_before_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    size, grid, clip, bound = 4, 18, 2.0, 3
    monkeypatch.setattr("veilsum_privacy.mechanism.steps.discrete_gaussian", lambda *_: np.array([0, 1, -1, 2]))
    steps = Steps(2, 0.25, NoisePlan("training", 100, 1, 1), grid, clip, bound, SYSTEM_RANDOM)
    unit = clip / (grid - math.sqrt(size))
    assert steps.noised(np.array([1, 1, -100, 100])).tolist() == [unit, 2 * unit, -4 * unit, 5 * unit]
    assert steps.taken == 1


def test_a_grid_may_spend_half_of_itself_on_rounding_and_no_more() -> None:
    assert make_steps(grid=16, variance=400).noised(np.zeros(64, dtype=np.int64)).shape == (64,)
    with pytest.raises(Misuse, match="too coarse"):
        make_steps(grid=16, variance=400).noised(np.zeros(65, dtype=np.int64))


def test_without_noise_there_are_no_noised_steps() -> None:
    steps = Steps(3, 0.25, NoisePlan("none", 0, 1, 1), 4096, 0.5, 4096, SYSTEM_RANDOM)
    with pytest.raises(Misuse, match="more noised steps"):
        steps.noised(np.zeros(3, dtype=np.int64))
    assert make_steps(variance=10_000, grid=4000, clip=0.5).course.std_of(0) == pytest.approx(0.5 * 100 / 4000)


@pytest.mark.parametrize("values", [9, 400, 3600])
def test_the_stated_noise_of_a_step_is_that_of_its_values(values: int) -> None:
    """To a chi-square test; without sqrt(P) it would be stated as 1.5% too small for 3600 values on a grid of 4000."""
    rounds = 60_000 // values
    steps = make_steps(number=rounds, variance=10_000, grid=4000, clip=0.5)
    assert steps.course.std_of(values) == pytest.approx(0.5 * 100 / (4000 - values**0.5))
    drawn = np.concatenate([steps.noised(np.zeros(values, dtype=np.int64)) for _ in range(rounds)])
    statistic = float(np.sum(drawn**2)) / steps.course.std_of(values) ** 2
    assert 1e-6 < stats.chi2.cdf(statistic, drawn.size) < 1 - 1e-6


def test_the_samples_of_steps_have_their_rate_and_subjects() -> None:
    steps, subjects = make_steps(), np.repeat(np.arange(4000), 2)
    taken = steps.sample(8000, subjects)
    assert (taken[::2] == taken[1::2]).all()
    assert stats.binomtest(int(taken[::2].sum()), 4000, 0.25).pvalue > 1e-6
    assert stats.binomtest(int(steps.sample(8000).sum()), 8000, 0.25).pvalue > 1e-6
    assert (steps.sample(8000) != steps.sample(8000)).any()


def test_training_noise_is_priced_and_not_drawn() -> None:
    plan = NoisePlan("training", 10_000, 1, 1)
    assert plan.protects
    assert not plan.drawn
    assert plan.total_variance(5) == 0
    assert plan.share_variance == Fraction(10_000)
    assert not plan.draw(3, SYSTEM_RANDOM).any()
    with pytest.raises(Misuse):
        NoisePlan("training", 0, 1, 1)
    with pytest.raises(Misuse):
        NoisePlan("training", 100, 2, 1)


def test_factors_are_at_most_one_and_follow_the_cohort() -> None:
    scores = {SCORES: np.log(np.array([1.0, 2.0, 3.0, 4.0]))}
    np.testing.assert_allclose(cohort_factors(scores, (0, 3), 4), [0.25, 1.0])
    np.testing.assert_allclose(cohort_factors({WEIGHTS: np.array([1.0, 0.0, 2.0])}, (0, 1, 2), 3), [0.5, 0.0, 1.0])
    assert largest_share(np.array([0.5, 0.5, 1.0])) == 0.5


@pytest.mark.parametrize(
    "broadcast",
    [
        {},
        {SCORES: np.zeros(3), WEIGHTS: np.ones(3)},
        {SCORES: np.zeros(2)},
        {SCORES: np.array([0.0, np.nan, 0.0])},
        {WEIGHTS: np.array([1.0, -1.0, 1.0])},
        {WEIGHTS: np.zeros(3)},
    ],
)
def test_weights_that_are_none_are_refused(broadcast: Mapping[str, np.ndarray]) -> None:
    with pytest.raises(HostileInput):
        cohort_factors(broadcast, (0, 1, 2), 3)
