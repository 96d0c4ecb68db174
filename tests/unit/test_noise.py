"""Discrete Gaussian noise against exact masses, OpenDP's sampler, high-precision arithmetic and its own exact path."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from support.neighbours import SETTINGS
from support.randomness import SeededRandom
from veilsum_node.errors import Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.mechanism import noise
from veilsum_privacy.mechanism.noise import NoisePlan, discrete_gaussian, exp_bracket, plan_noise, task_noise
from veilsum_privacy.study.study import NoiseKind

ALPHA = 1e-6  # per test; seeds are fixed, so a passing test stays passing


def exact_masses(variance: float, reach: int) -> np.ndarray:
    values = np.arange(-reach, reach + 1, dtype=float)
    masses = np.exp(-(values**2) / (2 * variance))
    return masses / np.exp(-(np.arange(-40 * reach, 40 * reach + 1, dtype=float) ** 2) / (2 * variance)).sum()


def pmf_p_value(draws: np.ndarray, variance: float) -> float:
    reach = max(1, math.floor(3.5 * math.sqrt(variance)))
    masses = exact_masses(variance, reach)
    counts = np.array([(draws == value).sum() for value in range(-reach, reach + 1)])
    masses = np.append(masses, 1 - masses.sum())
    counts = np.append(counts, len(draws) - counts.sum())
    return float(stats.chisquare(counts, masses * len(draws)).pvalue)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(7, 3), Fraction(16), Fraction(100, 3)])
def test_small_variances_have_the_exact_masses(variance: Fraction) -> None:
    draws = discrete_gaussian(variance, 400_000, SeededRandom(1))
    assert pmf_p_value(draws, float(variance)) > ALPHA
    assert pmf_p_value(draws, float(variance) * 1.03) < ALPHA, "the test must be able to see 3% too much variance"


@pytest.mark.parametrize(
    "variance", [Fraction(10**6, 7), Fraction(2**40), Fraction(2**62, 1024), Fraction(2**62), Fraction(2**90)]
)
def test_large_variances_are_normal_to_the_tails(variance: Fraction) -> None:
    draws = discrete_gaussian(variance, 300_000, SeededRandom(2)).astype(float) / math.sqrt(variance)
    # A step of the grid is at most 1/377 here: spread it evenly to compare with the continuous normal.
    jitter = np.random.default_rng(3).uniform(-0.5, 0.5, len(draws)) / math.sqrt(variance)
    assert stats.kstest(draws + jitter, "norm").pvalue > ALPHA
    squares = float((draws**2).sum())
    assert ALPHA < stats.chi2.cdf(squares, len(draws)) < 1 - ALPHA
    for threshold in (3.0, 4.0):
        expected = 2 * stats.norm.sf(threshold)
        assert stats.binomtest(int((np.abs(draws) > threshold).sum()), len(draws), expected).pvalue > ALPHA


@pytest.mark.parametrize("std", [1.5, 50.0, 2.0**30])
def test_agrees_with_opendp(std: float) -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, std)([0] * 20_000))
    ours = discrete_gaussian(Fraction(std) ** 2, 100_000, SeededRandom(4))
    edges = np.unique(np.quantile(ours, np.linspace(0, 1, 25)[1:-1]))
    table = [np.bincount(np.searchsorted(edges, part), minlength=len(edges) + 1) for part in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > ALPHA
    assert stats.ks_2samp(ours, theirs).pvalue > ALPHA


def test_draws_are_independent_and_symmetric() -> None:
    draws = discrete_gaussian(Fraction(2**20), 200_000, SeededRandom(5)).astype(float)
    for lag in (1, 2, 3, 16):
        assert stats.pearsonr(draws[:-lag], draws[lag:]).pvalue > ALPHA
    assert stats.binomtest(int((draws > 0).sum()), int((draws != 0).sum())).pvalue > ALPHA


def test_the_sum_of_honest_shares_reaches_the_planned_variance() -> None:
    plan = plan_noise("distributed", 10_000, cohort_size=7, colluders=2)
    assert (plan.honest, plan.share_variance) == (5, 2000)
    shares = np.array([plan.draw(100_000, SeededRandom(site)) for site in range(7)], dtype=float)
    honest = float((shares[2:].sum(axis=0) ** 2).sum()) / 10_000
    everyone = float((shares.sum(axis=0) ** 2).sum()) / float(plan.total_variance(7))
    assert plan.total_variance(7) == 14_000
    for squares in (honest, everyone):
        assert ALPHA < stats.chi2.cdf(squares, 100_000) < 1 - ALPHA


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(50, 3), Fraction(2**62, 3), Fraction(2**96)])
def test_the_exact_path_decides_as_the_vectorised_one(variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = discrete_gaussian(variance, 1000, SeededRandom(6))
    enclose = noise._Sampler._enclose
    asked = 0

    def know_nothing(self: noise._Sampler, low: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal asked
        asked += len(low)
        floor, width = enclose(self, low, block)
        return np.full_like(floor, 2**31), np.full_like(width, 2**32)

    monkeypatch.setattr(noise._Sampler, "_enclose", know_nothing)
    exact = discrete_gaussian(variance, 1000, SeededRandom(6))
    assert asked >= 1000
    np.testing.assert_array_equal(fast, exact)


@settings(max_examples=150, deadline=None)
@given(
    variance=st.fractions(Fraction(1, 4), Fraction(2**96), max_denominator=1024),
    share=st.fractions(0, 1, max_denominator=2**60),
    block=st.integers(0, 22),
)
@example(variance=Fraction(845_091, 406), share=Fraction(0), block=0)  # m rounded up would be too much here
@example(Fraction(2**52), Fraction(3, 4), 1)  # t = 2^26, whose low bits are all kept, and 2^27
@example(Fraction(2**54), Fraction(3, 4), 1)
@example(Fraction(442_546_851_853_993_095_642_725_771_902_976, 730_491), Fraction(1), 0)  # much is lost in these
@example(Fraction(1_647_830_326_417_653_624_785_499_570), Fraction(463_311_198_199, 2**45), 2)
def test_the_enclosure_holds_the_acceptance_probability(variance: Fraction, share: Fraction, block: int) -> None:
    sampler = noise._Sampler(variance, SeededRandom(0))
    t = 1 << sampler._r
    low = min(math.floor(share * t), t - 1)
    floor, width = sampler._enclose(np.array([low]), np.array([block]))
    mpmath.mp.prec = 200
    kappa = mpmath.mpf(t * t) * variance.denominator / (2 * variance.numerator)
    peak = max(j - kappa * j * j for j in range(6))
    x = kappa * (mpmath.mpf(low + block * t) / t) ** 2 - block + peak
    assert x > -(mpmath.mpf(2) ** -150), "a probability above 1"
    truth = mpmath.exp(-x) * 2**31
    assert int(floor[0]) - int(width[0]) <= truth + mpmath.mpf(2) ** -100
    assert truth <= int(floor[0]) + 7


@settings(max_examples=150, deadline=None)
@given(x=st.fractions(0, 80, max_denominator=2**64), bits=st.integers(1, 160))
def test_the_bracket_encloses_the_exponential_tightly(x: Fraction, bits: int) -> None:
    low, high = exp_bracket(x, bits)
    mpmath.mp.prec = bits + 100
    truth = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
    assert low <= truth <= high
    assert high - low <= 2


@settings(max_examples=100, deadline=None)
@given(variance=st.fractions(Fraction(1, 4), Fraction(2**96), max_denominator=1024))
@example(Fraction(1, 4))
@example(Fraction(2**96))
@example(Fraction(4**9, 3))
@example(Fraction(4**9 - Fraction(1, 2), 3))
@example(Fraction(4**9 - 2, 3))
def test_blocks_are_about_as_long_as_the_noise_is_wide(variance: Fraction) -> None:
    """What bounds V at the peak, and with it the numbers among which m is looked for."""
    r, kappa, m = noise._constants(variance)
    assert kappa == Fraction(4**r) / (2 * variance)
    assert Fraction(3, 8) < kappa <= Fraction(3, 2) or (r == 0 and kappa <= 2)
    assert m == max(j - kappa * j * j for j in range(9))


@settings(max_examples=100, deadline=None)
@given(x=st.fractions(0, 1, max_denominator=2**200), places=st.integers(1, 200))
@example(x=Fraction(1, 2**300), places=64)
def test_the_series_encloses_the_exponential(x: Fraction, places: int) -> None:
    low, high = noise._exp_of_fraction(x, places)
    mpmath.mp.prec = places + 400
    truth = mpmath.exp(mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** places
    assert low <= truth <= high


def test_tables_are_the_floors_of_the_exponential() -> None:
    mpmath.mp.prec = 120
    coarse, fine = noise._exp_tables()
    assert (len(coarse), len(fine)) == (24 * 2**8 + 1, 2**8)
    for table, places in ((coarse, 8), (fine, 16)):
        for index in [*range(0, len(table), 7), len(table) - 1]:
            assert table[index] == int(mpmath.floor(mpmath.exp(-mpmath.mpf(index) / 2**places) * 2**31))
    assert list(noise._block_edges()) == [int(mpmath.floor(mpmath.exp(-j) * 2**32)) for j in range(22, 0, -1)]


class ForcedBits:
    """A source whose first proposal has the given 32-bit block word; what follows is seeded."""

    def __init__(self, block_word: int, tail: bytes) -> None:
        self._block_word, self._tail, self._rest = block_word, tail, SeededRandom(7)
        self._first = True

    def bytes(self, count: int) -> bytes:
        data = bytearray(self._rest.bytes(count))
        if self._first:
            data[:4] = self._block_word.to_bytes(4, "little")
            data[count // 4 : count // 4 + 4] = bytes(4)
        elif self._tail:
            data[: len(self._tail)] = self._tail
            self._tail = b""
        self._first = False
        return bytes(data)


@pytest.mark.parametrize(("word", "tail", "expected"), [
    (0, (2**64 - 1).to_bytes(8, "little"), 22),
    (0, (1).to_bytes(8, "little"), 66),
    (math.floor(2**32 / math.e), bytes(8), 1),
    (math.floor(2**32 / math.e), b"\xff" * 8, 0),
    (math.floor(2**32 / math.e) + 1, b"", 0),
])  # fmt: skip
def test_undecided_blocks_are_drawn_on(word: int, tail: bytes, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = noise._Sampler(Fraction(2**40), ForcedBits(word, tail))
    monkeypatch.setattr(noise._Sampler, "_exact_accept", lambda *_: True)
    enclose = noise._Sampler._enclose
    monkeypatch.setattr(noise._Sampler, "_enclose", lambda self, low, block: (enclose(self, low, block)[0] * 0 + 2**31, 0))
    first = abs(int(sampler.propose(16)[0]))
    assert first >> sampler._r == expected


@pytest.mark.parametrize(("tail", "accepted"), [(bytes(8), True), (b"\xff" * 8, False)])
def test_undecided_acceptances_are_drawn_on(tail: bytes, accepted: bool) -> None:
    class Tail:
        def bytes(self, count: int) -> bytes:
            return tail[:count]

    sampler = noise._Sampler(Fraction(100), Tail())
    edge = math.floor(2**31 / math.e)
    assert sampler._exact_accept(edge, Fraction(1)) is accepted
    assert sampler._exact_accept(edge - 1, Fraction(1))
    assert not sampler._exact_accept(edge + 1, Fraction(1))
    assert sampler._exact_accept(2**31 - 1, Fraction(0))


class Proposals:
    """A source of each proposal's four words: for its block, its acceptance, its low bits, and more of them with its sign."""

    def __init__(self, *proposals: tuple[int, int, int, int]) -> None:
        self._words = np.array(proposals, dtype="<u4").T.tobytes()

    def bytes(self, count: int) -> bytes:
        assert count == len(self._words), "these decide without more bits"
        return self._words


def proposed(variance: int, *proposals: tuple[int, int, int, int]) -> list[int]:
    return noise._Sampler(Fraction(variance), Proposals(*proposals)).propose(len(proposals)).tolist()


FIRST = 2**32 - 1  # the word of the block V = 0
NEGATIVE = 1 << 31


@pytest.mark.parametrize(("block", "low"), [(0, 0), (0, 8), (0, 15), (1, 0), (1, 9), (2, 0), (2, 14), (3, 3)])
def test_a_proposal_is_accepted_with_its_probability_to_the_last_bit(block: int, low: int) -> None:
    mpmath.mp.prec = 120
    x = mpmath.mpf(128) / 100 * (mpmath.mpf(low + 16 * block) / 16) ** 2 - block  # t = 16, kappa = 1.28, m = 0
    word, threshold = int(mpmath.exp(-block) * 2**32) - 1, int(mpmath.exp(-x) * 2**31)
    bits = [0, threshold - 1, threshold + 1, 2**31 - 1] if threshold < 2**31 else [0, threshold - 1]
    for last in (0, 1):
        found = proposed(100, *((word, accept << 1 | last, low, 0) for accept in bits))
        assert found == [low + 16 * block] * sum(accept < threshold for accept in bits)


def test_a_block_ends_at_its_edge_to_the_last_bit() -> None:
    mpmath.mp.prec = 120
    edges = [int(mpmath.exp(-j) * 2**32) for j in range(23)]
    words = [word for j in range(1, 22) for word in (edges[j] - 1, edges[j] + 1)]
    wanted = [16 * block for j in range(1, 22) for block in (j, j - 1)]
    likely = [index for index, value in enumerate(wanted) if value <= 64]  # beyond, no 31 bits are low enough to be sure
    assert proposed(100, *((words[index], 0, 0, 0) for index in likely)) == [wanted[index] for index in likely]


@pytest.mark.parametrize("low", [0, 1, 2**31, 2**32 - 1, 2**32, 2**44 + 12345, 2**45 - 1])
@pytest.mark.parametrize("beyond", [0, 2**45, 2**62])
def test_low_bits_and_sign_come_from_words_of_their_own(low: int, beyond: int) -> None:
    """t = 2^45: what is beyond is cut off."""
    words = (low + beyond) & 0xFFFFFFFF, (low + beyond) >> 32
    both = [(FIRST, 0, words[0], words[1]), (FIRST, 0, words[0], words[1] | NEGATIVE)]
    assert proposed(2**90, *both) == ([low, -low] if low else [0]), "a negative zero is rejected"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_short_vectors(size: int) -> None:
    draws = discrete_gaussian(Fraction(100), size, SYSTEM_RANDOM)
    assert draws.shape == (size,)
    assert draws.dtype == np.int64


def test_one_seed_repeats_and_others_differ() -> None:
    first, again, other = (discrete_gaussian(Fraction(10**6), 1000, SeededRandom(seed)) for seed in (8, 8, 9))
    np.testing.assert_array_equal(first, again)
    assert (first == other).mean() < 0.01
    system = [discrete_gaussian(Fraction(10**6), 1000, SYSTEM_RANDOM) for _ in range(2)]
    assert (system[0] == system[1]).mean() < 0.01


def test_plans() -> None:
    assert plan_noise("distributed", 1600, 4, 1).honest == 3
    assert plan_noise("distributed", 1600, 2, 1).honest == 1
    assert plan_noise("distributed", 1600, 2, 5).honest == 1
    assert plan_noise("local", 1600, 9, 1).share_variance == 1600
    silent = plan_noise("none", 0, 4, 1)
    assert silent.share_std == 0
    nothing = silent.draw(5, SYSTEM_RANDOM)
    assert nothing.tolist() == [0] * 5
    assert nothing.dtype == np.int64
    assert plan_noise("local", 1600, 1, 1).honest == 1
    assert plan_noise("distributed", 1600, 4, 1).to_context() == {
        "kind": "distributed", "variance": 1600, "honest": 3, "colluders": 1,
    }  # fmt: skip
    assert plan_noise("distributed", 48, 4, 1).share_std == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("distributed", 47, 4, 1),  # a share below 4 grid units
        ("local", 15, 4, 1),
        ("local", 0, 4, 1),
        ("none", 1, 4, 1),
        ("local", -100, 4, 1),
        ("distributed", 1600, 0, 1),
        ("distributed", 1600, 4, 0),  # everyone knows its own share
        ("gaussian", 1600, 4, 1),
    ],
)
def test_plans_that_are_refused(arguments: tuple) -> None:
    with pytest.raises(Misuse):
        plan_noise(*arguments)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (("local", 10_000, 3, 1), "more than one share"),
        (("gaussian", 0, 1, 1), "Unknown kind"),
        (("distributed", 10_000, 0, 1), "at least 1"),
        (("distributed", 10_000, -1, 1), "at least 1"),
    ],
)
def test_a_plan_of_its_own_cannot_contradict_itself(plan: tuple, reason: str) -> None:
    with pytest.raises(Misuse, match=reason):
        NoisePlan(*plan)


@pytest.mark.parametrize(
    ("noise", "declared", "planned"),
    [
        ("distributed", {}, ("distributed", 1600, 3)),
        ("local", {}, ("local", 1600, 1)),
        ("none", {}, ("none", 0, 1)),
        ("distributed", {"keep": True}, ("local", 1600, 1)),
        ("local", {"keep": True}, ("local", 1600, 1)),
        ("none", {"keep": True}, ("none", 0, 1)),
        ("distributed", {"source": "kept", "variance": 0}, ("kept", 0, 1)),
        ("local", {"source": "kept", "variance": 0}, ("kept", 0, 1)),
        ("none", {"source": "kept"}, ("none", 0, 1)),
        ("distributed", {"local_steps": 7}, ("training", 1600, 1)),
        ("local", {"local_steps": 7}, ("training", 1600, 1)),
    ],
)
def test_the_noise_of_a_task(noise: NoiseKind, declared: dict[str, Any], planned: tuple) -> None:
    variance = 0 if noise == "none" else 1600
    study = SETTINGS[0].study("record", grid=1024, variance=variance, noise=noise, participants=5, colluders=2)
    task = study.tasks[0].model_copy(update=declared)
    assert task_noise(study, task, 5) == NoisePlan(*planned, colluders=2)
    assert task_noise(study, task, 1) == NoisePlan(*planned[:2], 1, colluders=2)
    with pytest.raises(Misuse, match="at least one participant"):
        task_noise(study, task, 0)


@pytest.mark.parametrize(
    ("variance", "size"), [(Fraction(0), 1), (Fraction(1, 5), 1), (Fraction(2**97), 1), (Fraction(9), -1)]
)
def test_impossible_draws_are_refused(variance: int, size: int) -> None:
    with pytest.raises(Misuse):
        discrete_gaussian(Fraction(variance), size, SYSTEM_RANDOM)
