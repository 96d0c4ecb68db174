"""Rounding by a discrete Gaussian: every decision against exact arithmetic, the law against its closed form."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from support.randomness import RARE, SeededRandom
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.noise import Sampler, exp_bracket
from veilsum_privacy.securesum import rounding
from veilsum_privacy.securesum.rounding import gaussian_rounding

VARIANCE = Fraction(42)
MODULI = (549755813869, 281474976710597, 274877906899, 140737488355213)
PLACES = 200


class Scripted:
    """A keystream that begins with given bytes; the rest is a seed's."""

    def __init__(self, script: bytes, seed: int) -> None:
        self._script, self._rest = script, SeededRandom(seed)

    def bytes(self, count: int) -> bytes:
        data, self._script = self._script[:count], self._script[count:]
        return data + self._rest.bytes(count - len(data))


def block_of(bits: int, known: int) -> int | None:
    """The V of a uniform number that begins with these bits, or None where they leave it open; by sums of the weights."""
    kappa = 1 / (2 * VARIANCE)
    weights = [exp_bracket(kappa * j * j, PLACES)[0] for j in range(120)]
    total, left = sum(weights), sum(weights)
    for j, weight in enumerate(weights):
        left -= weight  # P(V > j) = left / total
        edge = Fraction(left, total)
        if Fraction(bits, 1 << known) >= edge + Fraction(1, 1 << 150):
            return j
        if Fraction(bits + 1, 1 << known) > edge - Fraction(1, 1 << 150):
            return None
    return None


def decided(head: int, tail: int, accept: int, further: int, numerator: int, modulus: int) -> tuple[int, bool] | None:
    """What a proposal comes to, by fractions; None where 31 bits leave it open."""
    above = tail & 1 == 0
    block = block_of(head << 15 | tail >> 1, 31)
    if block is None:
        return None
    w = Fraction(modulus - numerator if above else numerator, modulus)
    x = (2 * block + w) * w / (2 * VARIANCE)
    low, high = exp_bracket(x, PLACES)
    first = accept << 15 | further >> 1
    if (first + 1) << (PLACES - 31) <= low:
        accepted = True
    elif first << (PLACES - 31) >= high:
        accepted = False
    else:
        return None
    return (block + 1 if above else -block), accepted


words = st.integers(0, 2**16 - 1)


@given(words, words, words, words, st.floats(0, 1), st.sampled_from(MODULI), st.sampled_from(["any", "first", "last"]))
@example(0, 0, 0, 0, 0.0, MODULI[0], "any")
@example(65535, 1, 65535, 0, 0.0, MODULI[1], "any")
@example(65535, 0, 65535, 65535, 1.0, MODULI[1], "any")
@settings(max_examples=200)
def test_every_proposal_is_decided_as_exact_arithmetic_decides_it(
    head: int, tail: int, accept: int, further: int, place: float, modulus: int, edge: str
) -> None:
    numerator = min(int(place * modulus), modulus - 1)
    if edge != "any":  # where the table is left: the numbers next to what it accepts and to what it rejects
        table, above = rounding._decisions(VARIANCE), tail & 1 == 0
        block = min(int(Sampler.law(VARIANCE).table[head]), table.blocks)
        cell = block << 8 | (numerator >> (modulus.bit_length() - 8)) ^ (255 * above)
        near = int(table.accepted[cell]) if edge == "first" else int(table.refused[cell])
        accept = min(max(near + accept % 5 - 2, 0), 65535)
    expected = decided(head, tail, accept, further, numerator, modulus)
    if expected is None:
        return
    sampler = rounding._Rounding(VARIANCE, modulus, SeededRandom(0))
    script = b"".join(number.to_bytes(2, "little") for number in (head, tail, accept, further))
    sampler._random = Scripted(script, 1)  # type: ignore[assignment]
    found, rejected = sampler._propose(1, np.array([numerator], dtype=np.int64))
    assert (int(found[0]), not rejected.size) == expected or (not expected[1] and rejected.size)


@pytest.mark.parametrize("modulus", MODULI)
def test_the_table_is_right_at_its_edges(modulus: int) -> None:
    """Of every block and part: the largest number that it accepts and the smallest that it rejects, at its ends."""
    table = rounding._decisions(VARIANCE)
    accepted, refused = (one.reshape(-1, 256) for one in (table.accepted, table.refused))
    first = modulus.bit_length() - 8
    assert (accepted[:-1] <= refused[:-1]).all()
    assert (refused[:-1] - accepted[:-1].astype(np.int64)).max() < 200, "a gap that is wide costs time"
    assert not accepted[-1].any()
    assert (refused[-1] == 1 << 16).all()
    for block in range(0, len(accepted) - 1, 5):
        for part in (0, 1, 100, 254, 255):
            ends = [part << first, min((part + 1 << first) - 1, modulus - 1)]
            for w in [*(Fraction(n, modulus) for n in ends), *(Fraction(modulus - n, modulus) for n in ends)]:
                row = part if w in {Fraction(n, modulus) for n in ends} else 255 - part
                low, high = exp_bracket((2 * block + w) * w / (2 * VARIANCE), PLACES)
                assert int(accepted[block, row]) << (PLACES - 16) <= low
                assert int(refused[block, row]) << (PLACES - 16) >= high


def chances(centre: float) -> tuple[np.ndarray, np.ndarray]:
    """Integers and their probabilities, by the closed form."""
    y = np.arange(-60, 62)
    weights = np.exp(-((y - centre) ** 2) / 84)
    return y, weights / weights.sum()


@pytest.mark.parametrize("place", [0.0, 1e-9, 0.25, 0.5, 0.75, 1 - 1e-9])
def test_draws_follow_the_closed_form(place: float) -> None:
    modulus, size = MODULI[1], 400_000
    numerator = int(place * modulus)
    found = gaussian_rounding(np.full(size, numerator, dtype=np.uint64), modulus, VARIANCE, SeededRandom(int(place * 1e9)))
    y, expected = chances(numerator / modulus)
    inside = expected * size > 20
    observed = np.array([(found == value).sum() for value in y[inside]])
    rest = size - observed.sum()
    p = stats.chisquare([*observed, rest], [*(expected[inside] * size), (1 - expected[inside].sum()) * size]).pvalue
    assert p > RARE
    wrong = expected[inside] * size * (1 + 0.02 * np.sign(y[inside]))  # the same test sees a fiftieth moved across
    assert stats.chisquare(observed, wrong / wrong.sum() * observed.sum()).pvalue < RARE


def test_how_many_are_rejected_does_not_depend_on_the_centre() -> None:
    """A proposal's chance is the sum of exp(-(y - z)^2 / 84) over y, the same for every z: by the closed form, and seen."""
    sums = [math.fsum(math.exp(-((y - z) ** 2) / 84) for y in range(-200, 202)) for z in np.linspace(0, 1, 9)]
    assert max(sums) - min(sums) < 1e-12
    size, rates = 200_000, []
    for place in (0.0, 0.3, 0.5, 0.99):
        sampler = rounding._Rounding(VARIANCE, MODULI[1], SeededRandom(int(place * 100)))
        _, rejected = sampler._propose(size, np.full(size, int(place * MODULI[1]), dtype=np.int64))
        rates.append(len(rejected) / size)
    # of proposals with weight exp(-V^2 / 84) on either side, sums[0] / 2 in all, which are at most 1 each
    whole = 2 * math.fsum(math.exp(-(j * j) / 84) for j in range(200))
    expected = 1 - sums[0] / whole
    assert max(abs(rate - expected) for rate in rates) < 7 * math.sqrt(expected / size)


def test_tails_and_moments() -> None:
    modulus, size = MODULI[0], 1 << 20
    numerators = np.random.default_rng(3).integers(0, modulus, size, dtype=np.uint64)
    found = gaussian_rounding(numerators, modulus, VARIANCE, SeededRandom(3)) - numerators / modulus
    assert abs(found.mean()) < 6.5 * math.sqrt(42 / size)
    low, high = stats.chi2.ppf([RARE, 1 - RARE], size) / size
    assert low < np.mean(found**2) / 42 < high
    # Chernoff's bound 2 exp(-d^2 / 2) for each of 2^20 draws: beyond 8.4 deviations with a chance below 1e-9
    assert np.abs(found).max() < 8.4 * math.sqrt(42)
    assert np.abs(found).max() > 4 * math.sqrt(42)
    assert stats.kstest(found[:50_000] / math.sqrt(42), "norm").pvalue > RARE  # about uniform centres it is nearly normal


def test_the_same_seed_draws_the_same_whatever_the_chunks() -> None:
    """Golden: what a seed gives, once and for all; a change of the algorithm is seen here."""
    numerators = np.arange(5, dtype=np.uint64) * np.uint64(MODULI[0] // 5)
    found = gaussian_rounding(numerators, MODULI[0], VARIANCE, SeededRandom(b"golden"))
    assert found.tolist() == GOLDEN
    assert gaussian_rounding(numerators[:0], MODULI[0], VARIANCE, SeededRandom(1)).tolist() == []


GOLDEN = [3, 4, 18, -5, 5]


@pytest.mark.parametrize("variance", [Fraction(16), Fraction(42), Fraction(2**11), Fraction(10**4, 7)])
def test_other_variances_have_their_own_table(variance: Fraction) -> None:
    size, modulus = 100_000, MODULI[2]
    numerators = np.random.default_rng(4).integers(0, modulus, size, dtype=np.uint64)
    found = gaussian_rounding(numerators, modulus, variance, SeededRandom(5)) - numerators / modulus
    low, high = stats.chi2.ppf([RARE, 1 - RARE], size) / size
    assert low < np.mean(found**2) / float(variance) < high


@pytest.mark.parametrize(
    ("modulus", "variance"),
    [(1 << 16, 42), (1 << 53, 42), ((1 << 40) + 15, 42), (3 << 40, 42), (MODULI[0], 15), (MODULI[0], 2**11 + 1)],
)
def test_what_the_table_does_not_cover_is_refused(modulus: int, variance: int) -> None:
    with pytest.raises(Misuse, match="must lie"):
        gaussian_rounding(np.zeros(1, dtype=np.uint64), modulus, Fraction(variance), SeededRandom(1))


def test_a_rounding_needs_centres() -> None:
    with pytest.raises(Misuse, match="centres"):
        rounding._Rounding(VARIANCE, MODULI[0], SeededRandom(1)).draw(3)
    assert Sampler.law(VARIANCE).r == 0, "the table is made for blocks of one"
