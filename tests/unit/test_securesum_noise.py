"""How much noise a sum carries once it is opened: the variance that was planned, after dropouts too, by chi-square."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from support.one_time import make_members
from support.randomness import SeededRandom
from support.securesum import ALPHA
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.noise_plan import NoisePlan, plan_noise
from veilsum_privacy.securesum.opening import unmask_values
from veilsum_privacy.securesum.ring import RING_4096
from veilsum_privacy.study.study import NoiseKind

SIZE = 60_000
STD = 1000


def _shares(plan: NoisePlan, members: int, seed: int) -> list[NDArray[np.int64]]:
    return [plan.draw(SIZE, SeededRandom(b"noise %d %d" % (seed, member))) for member in range(members)]


def _p_value(noise: NDArray[np.int64], variance: float) -> float:
    """Two-sided p-value of the sum of squares if the noise has this variance (a discrete Gaussian's is S^2 to 1e-60 here)."""
    squares = float((noise.astype(np.float64) ** 2).sum()) / variance
    return 2 * min(float(stats.chi2.cdf(squares, noise.size)), float(stats.chi2.sf(squares, noise.size)))


def _opened_noise(plan: NoisePlan, members: int, seed: int) -> NDArray[np.int64]:
    """Noise of an opened sum of random vectors: packed, masked, added, unmasked, less the exact sum."""
    cohort = make_members(members, SIZE, 5000, RING_4096, seed, plan.total_variance(members))
    random = np.random.default_rng(seed)
    vectors = [random.integers(-5000, 5001, SIZE) for _ in range(members)]
    noised = [vector + share for vector, share in zip(vectors, _shares(plan, members, seed), strict=True)]
    words = cohort.masked_total(noised)
    return unmask_values(words, cohort.plan, cohort.context, cohort.consents) - np.sum(vectors, axis=0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 16, 32])
@pytest.mark.parametrize("colluders", [1, 2])
def test_an_opened_sum_carries_the_planned_variance(members: int, colluders: int) -> None:
    noise = _opened_noise(plan_noise("distributed", STD**2, members, colluders), members, seed=members)
    honest = max(1, members - colluders)
    assert _p_value(noise, STD**2 * members / honest) > ALPHA
    assert _p_value(noise, STD**2 * members / honest * 1.05**2) < ALPHA, "5% too much must be seen"
    assert _p_value(noise, STD**2 * members / honest * 0.95**2) < ALPHA, "5% too little must be seen"


@pytest.mark.parametrize(("roster", "left"), [(8, 6), (8, 3), (5, 4), (4, 2), (3, 2)])
def test_after_dropouts_the_rest_adds_more(roster: int, left: int) -> None:
    noise = _opened_noise(plan_noise("distributed", STD**2, left, 1), left, seed=100 + left)
    assert _p_value(noise, STD**2 * left / (left - 1)) > ALPHA
    stale = _opened_noise(plan_noise("distributed", STD**2, roster, 1), left, seed=100 + left)  # shares of the full cohort
    assert _p_value(stale, STD**2 * left / (left - 1)) < ALPHA, "noise planned before the dropouts is too little"


@pytest.mark.parametrize(("members", "colluders"), [(4, 1), (5, 2), (6, 3)])
def test_any_h_shares_alone_reach_the_variance(members: int, colluders: int) -> None:
    plan = plan_noise("distributed", STD**2, members, colluders)
    shares = _shares(plan, members, seed=7)
    for some in combinations(shares, plan.honest):
        assert _p_value(np.sum(some, axis=0), STD**2) > ALPHA
    for fewer in combinations(shares, plan.honest - 1):
        assert _p_value(np.sum(fewer, axis=0), STD**2) < ALPHA, "one share fewer is not enough"


@pytest.mark.parametrize("colluders", [3, 4, 9])
def test_with_too_many_colluders_every_share_is_enough_alone(colluders: int) -> None:
    plan = plan_noise("distributed", STD**2, 4, colluders)
    assert plan.honest == 1
    for share in _shares(plan, 4, seed=8):
        assert _p_value(share, STD**2) > ALPHA


def test_local_noise_is_whole_at_every_site_and_none_is_none() -> None:
    noise = _opened_noise(plan_noise("local", STD**2, 4, 1), 4, seed=9)
    assert _p_value(noise, 4 * STD**2) > ALPHA
    assert not _opened_noise(plan_noise("none", 0, 4, 1), 4, seed=9).any()


def test_shares_are_unrelated_between_sites_and_values() -> None:
    shares = np.array(_shares(plan_noise("distributed", STD**2, 4, 1), 4, seed=10), dtype=np.float64)
    for one, other in combinations(shares, 2):
        assert stats.pearsonr(one, other).pvalue > ALPHA
    for share in shares:
        assert stats.pearsonr(share[1:], share[:-1]).pvalue > ALPHA


@pytest.mark.parametrize(("kind", "members"), [("distributed", 30), ("local", 2)])
def test_shares_below_four_grid_units_are_refused(kind: NoiseKind, members: int) -> None:
    honest = members - 1 if kind == "distributed" else 1
    plan_noise(kind, 16 * honest, members, 1)
    with pytest.raises(Misuse, match="at least 4"):
        plan_noise(kind, 16 * honest - 1, members, 1)
