"""Discrete Gaussian noise against exact masses, OpenDP's sampler, high-precision arithmetic and its own exact path."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from support.neighbours import SETTINGS
from support.randomness import RARE, RARE_DEVIATIONS, SeededRandom
from veilsum_node.errors import Misuse
from veilsum_node.keystream import Expanded
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.mechanism import noise
from veilsum_privacy.mechanism.noise import discrete_gaussian, exp_bracket
from veilsum_privacy.mechanism.noise_plan import NoisePlan, plan_noise, task_noise
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("std", [1.5, 50.0, 2.0**30])
def test_agrees_with_opendp(std: float) -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, std)([0] * 20_000))
    ours = discrete_gaussian(Fraction(std) ** 2, 100_000, SeededRandom(4))
    edges = np.unique(np.quantile(ours, np.linspace(0, 1, 25)[1:-1]))
    table = [np.bincount(np.searchsorted(edges, part), minlength=len(edges) + 1) for part in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > RARE  # OpenDP takes no seed
    assert stats.ks_2samp(ours, theirs).pvalue > RARE
    assert abs(theirs.var() / std**2 - 1) < RARE_DEVIATIONS * math.sqrt(2 / len(theirs)) < 0.07
    assert abs(ours.var() / std**2 - 1) < 4 * math.sqrt(2 / len(ours)) < 0.02


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
    law = noise._law(variance)
    monkeypatch.setattr(noise, "_law", lambda _: replace(law, sure=0))
    fast = discrete_gaussian(variance, 1000, SeededRandom(6))
    monkeypatch.setattr(noise, "_law", lambda _: replace(law, sure=0, width=2**32))
    accept, asked = noise.Sampler._exact_accept, []
    monkeypatch.setattr(noise.Sampler, "_exact_accept", lambda self, bits, x: asked.append(bits) or accept(self, bits, x))
    np.testing.assert_array_equal(discrete_gaussian(variance, 1000, SeededRandom(6)), fast)
    assert len(asked) >= 1000 * (variance > 1) or len(asked) > 500, "what is certainly rejected need not ask"


VARIANCES = [
    Fraction(1, 4),
    Fraction(1),
    Fraction(40),
    Fraction(4095),
    Fraction(2**14 - 1),
    Fraction(2**14),
    Fraction(2**60, 3),
]


@pytest.mark.parametrize("variance", VARIANCES)
def test_what_sixteen_bits_settle_is_what_thirty_one_would(variance: Fraction) -> None:
    """Every cell of the table from its first to its last word; and the bound against the worst of the blocks in it."""
    law = noise._law(variance)
    first = np.arange(2**16) << 15
    blocks = [len(law.edges) - np.searchsorted(law.edges, words, side="right") for words in (first, first + 2**15 - 1)]
    settled = law.table != 2**16 - 1
    for found in blocks:
        np.testing.assert_array_equal(law.table[settled], found[settled])
    open_words = {int(edge) >> 15 for edge in law.edges}
    assert set(np.flatnonzero(~settled).tolist()) == open_words, "an edge's own word is never settled"
    mpmath.mp.prec = 120
    worst = mpmath.exp(-mpmath.mpf(law.kappa.numerator) / law.kappa.denominator * (2 * int(law.table[settled].max()) + 1))
    assert law.sure <= worst * 2**16 < law.sure + 3


@settings(max_examples=20, deadline=None)
@given(st.fractions(Fraction(1, 2**15), 2, max_denominator=2**70), st.sampled_from([31, 95, 159]))
@example(Fraction(1, 2**15), 31)
@example(Fraction(2), 31)
def test_edges_are_the_floors_of_the_chances_of_blocks(kappa: Fraction, bits: int) -> None:
    mpmath.mp.prec = 400
    exact = mpmath.mpf(kappa.numerator) / kappa.denominator
    weights = [mpmath.exp(-exact * i * i) for i in range(int(mpmath.sqrt(260 / exact)) + 2)]
    left, whole = mpmath.fsum(weights), mpmath.fsum(weights)
    edges = noise._edges(kappa, bits)
    for weight, edge in zip(weights, edges, strict=False):
        left -= weight
        assert edge == int(mpmath.floor(left / whole * 2**bits))
    assert edges[-1] == 0 < edges[-2]


@settings(max_examples=150, deadline=None)
@given(
    variance=st.fractions(Fraction(1, 4), Fraction(2**96), max_denominator=1024),
    share=st.fractions(0, 1, max_denominator=2**60),
    block=st.fractions(0, 1),
)
@example(Fraction(2**60, 3), Fraction(0), Fraction(0))
@example(Fraction(2**60, 3), Fraction(1), Fraction(1))  # the most that is lost
@example(Fraction(1, 4), Fraction(1), Fraction(1))
def test_the_enclosure_holds_the_acceptance_probability(variance: Fraction, share: Fraction, block: Fraction) -> None:
    sampler = noise.Sampler(variance, SeededRandom(0))
    law, t = sampler._law, 1 << sampler._law.r
    at, j = math.floor(share * t), math.floor(block * (len(law.edges) - 1))
    floor = int(sampler._enclose(np.array([at]), np.array([j]))[0])
    mpmath.mp.prec = 200
    w = mpmath.mpf(at) / t
    x = mpmath.mpf(t * t) * variance.denominator / (2 * variance.numerator) * (2 * j * w + w * w)
    truth = mpmath.exp(-x) * 2**31
    assert floor - law.width <= truth + mpmath.mpf(2) ** -100
    assert truth <= floor + 7


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
@example(Fraction(2**14))
@example(Fraction(2**14 - 1))
def test_blocks_are_a_small_part_of_the_noise(variance: Fraction) -> None:
    """What bounds V in 64 bits, and that few are rejected."""
    law = noise._law(variance)
    assert law.kappa == Fraction(4**law.r) / (2 * variance)
    assert Fraction(1, 2**15) < law.kappa <= (2 if law.r == 0 else Fraction(1, 2**13))
    assert law.kappa <= Fraction(1, 2**13) or law.r == 0
    assert len(law.edges) < 2**10
    assert law.kappa_fixed == math.floor(law.kappa * 2**law.kappa_places)
    assert 2**22 <= law.kappa_fixed < 2**23


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


class Script:
    """A stream of the given pieces, one a call."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def bytes(self, count: int) -> bytes:
        piece = self._pieces.pop(0)
        assert len(piece) == count
        return piece

    def all_used(self) -> bool:
        return not self._pieces


def scripted(variance: Fraction, *pieces: bytes, places: int = 0) -> noise.Sampler:
    sampler = noise.Sampler(variance, SeededRandom(0), places)
    sampler._random = Script(*pieces)  # type: ignore[assignment]
    return sampler


@pytest.mark.parametrize("j", [1, 2, 50, 300])
def test_undecided_blocks_are_drawn_on(j: int) -> None:
    """The next 64 bits of the same number decide; those of the edge itself ask for 64 more."""
    variance = Fraction(2**40)
    kappa = noise._law(variance).kappa
    edge, longer = noise._edges(kappa, 31)[j - 1], noise._edges(kappa, 95)[j - 1]
    middle = longer - (edge << 64)
    assert 0 < middle < 2**64 - 1
    for rest, block in ((0, j), (middle - 1, j), (middle + 1, j - 1), (2**64 - 1, j - 1)):
        sampler = scripted(variance, rest.to_bytes(8, "little"))
        assert sampler._exact_block(edge) == block
        assert sampler._random.all_used()
    for rest, block in ((bytes(8), j), (b"\xff" * 8, j - 1)):
        assert scripted(variance, middle.to_bytes(8, "little"), rest)._exact_block(edge) == block
    assert scripted(variance)._exact_block(edge - 1) == j
    assert scripted(variance)._exact_block(edge + 1) == j - 1


def test_blocks_beyond_the_table_exist() -> None:
    variance = Fraction(2**40)
    law = noise._law(variance)
    longer, far = noise._edges(law.kappa, 95), len(law.edges) + 20
    assert scripted(variance, (longer[far] + 1).to_bytes(8, "little"))._exact_block(0) == far


@pytest.mark.parametrize(("tail", "accepted"), [(bytes(8), True), (b"\xff" * 8, False)])
def test_undecided_acceptances_are_drawn_on(tail: bytes, accepted: bool) -> None:
    sampler = scripted(Fraction(100), tail)
    edge = math.floor(2**31 / math.e)
    assert sampler._exact_accept(edge, Fraction(1)) is accepted
    assert sampler._exact_accept(edge - 1, Fraction(1))
    assert not sampler._exact_accept(edge + 1, Fraction(1))
    assert sampler._exact_accept(2**31 - 1, Fraction(0))


def proposed(variance: int, word: int, accept: int, low: int, *, below: bool) -> int | None:
    """What one proposal comes to; None if it is rejected. ``word`` and ``accept`` have 31 bits."""
    law = noise._law(Fraction(variance))
    halves = [word >> 15, (word & 0x7FFF) << 1 | below, accept >> 15]
    pieces = [b"".join(half.to_bytes(2, "little") for half in halves)]
    pieces += [(low & 0xFFFF).to_bytes(2, "little")] * (law.r > 0) + [(low >> 16).to_bytes(4, "little")] * (law.r > 16)
    again = law.table[word >> 15] == 0xFFFF or accept >> 15 >= law.sure
    further = ((accept & 0x7FFF) << 1).to_bytes(2, "little") if again else b""
    sampler = scripted(Fraction(variance), *pieces, further)
    step, rejected = sampler._propose(1, None)
    assert sampler._random.all_used()
    return None if rejected.size else int(step[0])


@pytest.mark.parametrize(("block", "low"), [(0, 0), (0, 1), (0, 15), (1, 0), (3, 9), (70, 0), (200, 14), (300, 3)])
@pytest.mark.parametrize("below", [False, True])
def test_a_proposal_is_accepted_with_its_probability_to_the_last_bit(block: int, low: int, below: bool) -> None:
    """t = 16; y is -a, at distance a, or a + 1."""
    mpmath.mp.prec = 120
    variance = 2**21 + 1
    law = noise._law(Fraction(variance))
    assert law.r == 4
    a = 16 * block + low
    word, x = noise._edges(law.kappa, 31)[block] + 1, mpmath.mpf((a + 1 - below) ** 2 - (16 * block) ** 2) / (2 * variance)
    threshold = int(mpmath.exp(-x) * 2**31)
    for accept in {0, threshold - 1, min(threshold + 1, 2**31 - 1), 2**31 - 1}:
        assert proposed(variance, word, accept, low, below=below) == ((-a if below else a + 1) if accept < threshold else None)


def test_a_block_ends_at_its_edge_to_the_last_bit() -> None:
    variance = 2**21 + 1
    edges = noise._edges(noise._law(Fraction(variance)).kappa, 31)
    for j in (1, 2, 17, 150, 380):
        for word, block in ((edges[j - 1] - 1, j), (edges[j - 1] + 1, j - 1)):
            assert proposed(variance, word, 0, 0, below=True) == -16 * block


@pytest.mark.parametrize("low", [0, 1, 2**15, 2**16 - 1, 2**16, 2**38 + 12345, 2**39 - 1])
@pytest.mark.parametrize("beyond", [0, 2**39, 2**47])
def test_low_bits_and_sign_come_from_words_of_their_own(low: int, beyond: int) -> None:
    """t = 2^39: what is beyond is cut off."""
    assert noise._law(Fraction(2**90)).r == 39
    found = [proposed(2**90, 2**31 - 1, 0, low + beyond, below=below) for below in (False, True)]
    assert found == [low + 1, -low]


def test_bits_are_the_keystream_of_a_fresh_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key of 32 bytes a call, asked of the source for that call; the words are ChaCha20's under it (RFC 8439, nonce 0)."""
    keys = []

    class Source:
        def bytes(self, count: int) -> bytes:
            keys.append((count, bytes(count) if not keys else SYSTEM_RANDOM.bytes(count)))
            return keys[-1][1]

    expanded = Expanded(Source())
    assert (expanded.bytes(20) + expanded.bytes(44)).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    around = np.zeros(200_000, dtype=np.int64)
    for _ in range(3):
        discrete_gaussian(Fraction(100), 200_000, Source())
        noise.gaussian_around(around, Fraction(100), Source())
    assert [count for count, _ in keys] == [32] * 7
    assert len({key for _, key in keys}) == 7
    asked = []
    monkeypatch.setattr("os.urandom", lambda count: asked.append(count) or keys[1][1])
    discrete_gaussian(Fraction(100), 200_000, SYSTEM_RANDOM)
    assert asked == [32], "the operating system's generator gives the key"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_processes_after_a_fork_draw_noise_of_their_own() -> None:
    discrete_gaussian(Fraction(2**40), 10, SYSTEM_RANDOM)  # what is remembered of it is copied
    drawn = []
    for _ in range(3):
        read, write = os.pipe()
        if not (child := os.fork()):
            os.write(write, discrete_gaussian(Fraction(2**40), 10, SYSTEM_RANDOM).tobytes())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            drawn.append(pipe.read())
        os.waitpid(child, 0)
    drawn.append(discrete_gaussian(Fraction(2**40), 10, SYSTEM_RANDOM).tobytes())
    assert len({part[:80] for part in drawn}) == 4
    assert all(len(part) == 80 for part in drawn)


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
    assert (system[0] == system[1]).mean() < 0.02  # a value is repeated with 3e-4: 20 of 1,000 with less than 1e-29


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
