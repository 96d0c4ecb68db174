"""Designs: inclusion probabilities by their definition, exact by enumeration of all coins on a grid, weights that sum to 1."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_aggregation.participation import design_weights, draw_design, inclusion_probabilities


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    parts = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any))
    members = draw(st.integers(1, sum(part > 0 for part in parts)))
    return np.array(parts, float) / sum(parts), members


class Coins:
    """A source with a given order and given coins."""

    def __init__(self, order: list[int], coins: list[float]) -> None:
        self.order, self.coins = order, coins

    def shuffle(self, values: np.ndarray) -> None:
        values[:] = values[self.order]

    def random(self, size: int) -> np.ndarray:
        return np.array(self.coins[:size])


def one_at_a_time(p: np.ndarray, members: int) -> list[Fraction]:
    """The definition in exact arithmetic, adding one site at a time."""
    exact = [Fraction(round(float(value) * 10**12)) for value in p]
    always: set[int] = set()
    while True:
        rest = sum(value for site, value in enumerate(exact) if site not in always)
        if len(always) == members:
            return [Fraction(site in always) for site in range(len(p))]
        pi = [Fraction(1) if i in always else (members - len(always)) * v / rest for i, v in enumerate(exact)]
        large = [site for site, value in enumerate(pi) if site not in always and value >= 1]
        if not large:
            return pi
        always.add(max(large, key=lambda site: exact[site]))


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 2**32))
def test_designs_are_of_fixed_size_and_weights_sum_to_one(problem: tuple[np.ndarray, int], seed: int) -> None:
    p, members = problem
    pi = inclusion_probabilities(p, members)
    np.testing.assert_allclose(pi, [float(value) for value in one_at_a_time(p, members)], rtol=0, atol=1e-8)
    assert pi.sum() == pytest.approx(members)
    weights = design_weights(p, pi)
    np.testing.assert_allclose(weights * pi, p, rtol=0, atol=1e-15)  # each site's mean weight is its importance
    random = np.random.default_rng(seed)
    for _ in range(5):
        drawn = draw_design(pi, members, random)
        assert len(set(drawn.tolist())) == members
        assert (np.diff(drawn) > 0).all()
        assert (pi[drawn] > 0).all()
        assert set(np.flatnonzero(pi == 1.0)) <= set(drawn.tolist())
        assert weights[drawn].sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("pi", "order", "grid"),
    [
        ([0.5, 0.75, 0.75], [0, 1, 2], (1, 3, 4)),  # 0 wins with 1/3, the loser goes on with 1/4
        ([0.5, 0.75, 0.75], [1, 0, 2], (1, 3, 4)),
        ([0.5, 0.75, 0.75], [1, 2, 0], (1, 2, 2)),
        ([0.5, 0.75, 0.75], [2, 1, 0], (1, 2, 2)),
        ([0.125, 0.25, 0.25, 0.375], [0, 1, 2, 3], (1, 3, 5, 8)),  # 2/3, then 2/5, then 3/8 for the newcomer
        ([0.125, 0.25, 0.25, 0.375], [3, 2, 1, 0], (1, 5, 7, 8)),
        ([1.0, 0.5, 0.5], [1, 0], (1, 2)),
    ],
)
def test_duels_keep_every_probability_exactly(pi: list[float], order: list[int], grid: tuple[int, ...]) -> None:
    """Coin k runs over the midpoints of ``grid[k]`` equal parts, of which its chance is a multiple, so counts are exact."""
    counts, members = np.zeros(len(pi)), round(sum(pi))
    for coins in itertools.product(*((np.arange(parts) + 0.5) / parts for parts in grid)):
        counts[draw_design(np.array(pi), members, Coins(order, list(coins)))] += 1  # type: ignore[arg-type]
    np.testing.assert_allclose(counts * members / counts.sum(), pi, rtol=0, atol=1e-12)


def test_drawn_frequencies() -> None:
    p, rounds = np.array([0.45, 0.2, 0.15, 0.1, 0.06, 0.04, 0.0]), 10_000
    pi, random, counts = inclusion_probabilities(p, 3), np.random.default_rng(3), np.zeros(7)
    together = np.zeros((7, 7))
    for _ in range(rounds):
        drawn = draw_design(pi, 3, random)
        counts[drawn] += 1
        together[np.ix_(drawn, drawn)] += 1
    error = np.sqrt(pi * (1 - pi) / rounds)
    assert (np.abs(counts / rounds - pi) <= 4.5 * error).all()
    assert (together[np.ix_(pi > 0, pi > 0)] > 0).all()  # in random order every two sites can meet


def test_the_papers_importance_needs_a_site_in_every_round_only_if_it_outweighs_the_rest() -> None:
    p = np.exp(-np.arange(1, 101) / 10)
    p /= p.sum()
    assert inclusion_probabilities(p, 2).max() == pytest.approx(2 * p[0])
    assert inclusion_probabilities(np.array([0.6, 0.3, 0.1]), 2).tolist() == pytest.approx([1.0, 0.75, 0.25])
    assert inclusion_probabilities(np.full(4, 0.25), 4).tolist() == [1.0] * 4


def test_arguments_that_do_not_fit() -> None:
    for members in (0, 3):
        with pytest.raises(ValueError, match="members cannot be drawn"):
            inclusion_probabilities(np.array([0.5, 0.5, 0.0]), members)
    with pytest.raises(ValueError, match="importance"):
        inclusion_probabilities(np.array([0.5, 0.4]), 1)
    random = np.random.default_rng(0)
    for pi in (np.array([0.5, 0.4]), np.array([1.5, -0.5]), np.array([np.nan, 1.0])):
        with pytest.raises(ValueError, match="inclusion"):
            draw_design(pi, 1, random)
