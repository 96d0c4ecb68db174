"""One-time encryption against SEAL's own decryptor and exact arithmetic: keys, products, errors and their margins, packing."""

from __future__ import annotations

import math
from bisect import bisect_left
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.one_time import Members, make_members, play, seal_decrypts, some_vectors
from support.randomness import RARE, RARE_DEVIATIONS, SeededRandom
from support.securesum import uniform_p_value
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.results.whole_sums import coefficients_from_bytes, share_from_bytes
from veilsum_privacy.securesum import short_keys
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.integer_products import IntegerProducts
from veilsum_privacy.securesum.key_shares import share_to_bytes
from veilsum_privacy.securesum.one_time_keys import coefficients_to_bytes, encrypt_words
from veilsum_privacy.securesum.opening import _rounded, open_keys, open_words
from veilsum_privacy.securesum.packed import pack_numbers, packed_size, unpack_numbers
from veilsum_privacy.securesum.products import BATCH, KeyProducts, common_polynomials
from veilsum_privacy.securesum.ring import (
    KEY_VARIANCE,
    RING_2048,
    RING_2048_FEW,
    RING_2048_LARGE,
    RING_4096,
    RING_4096_FEW,
    RING_4096_LARGE,
    RINGS,
    RingParameters,
)
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.short_products import MOST, first_coefficients, fits
from veilsum_privacy.securesum.sum_plan import choose_ring, plan_sum

RNG = np.random.default_rng()
CONTEXT = bytes(range(32))
PACKED_WIDTHS = [*range(1, 59), 60]  # of 59 and 61 some number would lie in nine bytes
FEW = RING_2048_FEW, RING_4096_FEW
SETS = pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus.bit_length()}")


def is_prime(number: int) -> bool:
    """Miller and Rabin with the first twelve primes as bases: exact below 3.3e24 (Sorenson, Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1

    def witness(base: int) -> bool:
        x = pow(base, odd, number)
        if x in (1, number - 1):
            return False
        return all((x := x * x % number) != number - 1 for _ in range(twos - 1))

    return number > 40 and number % 2 == 1 and not any(witness(base) for base in bases)


def times(a: list[int], s: list[int], q: int) -> list[int]:
    """a s in Z_q[X] / (X^N + 1), by one product of large integers (Kronecker)."""
    degree, step = len(a), 96
    packed = sum(x << (step * i) for i, x in enumerate(a)) * sum(x << (step * i) for i, x in enumerate(s))
    offset = sum(1 << (step * i + step - 1) for i in range(2 * degree))  # makes every digit positive
    packed += offset
    digits = [((packed >> (step * i)) & ((1 << step) - 1)) - (1 << (step - 1)) for i in range(2 * degree)]
    return [(digits[i] - digits[i + degree]) % q for i in range(degree)]


@SETS
def test_the_parameters_are_what_the_protocol_needs(ring: RingParameters) -> None:
    q, t = ring.prime, ring.plain_modulus
    assert is_prime(q)
    assert is_prime(t), "a difference must have an inverse, or check words miss it"
    assert q % (2 * ring.degree) == 1
    assert q.bit_length() == {2048: 51, 4096: 60}[ring.degree]
    # the tables' limits at 128 bits against a quantum computer, ternary keys (Homomorphic Encryption Standard, 2018)
    assert q.bit_length() <= {2048: 51, 4096: 101}[ring.degree]
    half = Fraction(q, 2 * t)
    assert Fraction(ring.most_error(ring.most_members), t) + 1 < half, "a sum's largest error must round away"
    assert Fraction(ring.most_error(4 * ring.most_members), t) > half, "for larger cohorts t must be smaller"
    assert (q % t).bit_length() + t.bit_length() // 2 + 1 <= 63, "the scaling's products must fit 64 bits"
    for members in (2, 3, 4, 16, 64, 1000, ring.most_members):
        bits, largest = ring.share_bits(members), ring.most_key(members)
        assert largest**2 <= 144 * KEY_VARIANCE * members < (largest + 1) ** 2
        assert 2 ** (bits - 2) <= largest < 2 ** (bits - 1)
        assert members < 2**bits


def test_key_shares_have_the_stated_sizes() -> None:
    assert [RING_2048.share_bits(n) for n in (4, 16, 1024)] == [9, 10, 13]
    assert [RING_2048.share_size(n) for n in (4, 16, 1024)] == [2306, 2562, 3330]
    assert [RING_4096.share_size(n) for n in (4, 16, 1024)] == [4610, 5122, 6658]
    for members, small, large in ((2, *FEW), (16, *FEW), (17, RING_2048, RING_4096), (1024, RING_2048, RING_4096)):
        assert choose_ring([(62, 10**5, Fraction(10**6))], members) is small
        assert choose_ring([(10**6, 2**21 // members, Fraction(10**6))], members) is large
    assert choose_ring([(62, 10**6, Fraction(10**6))], 1025) is RING_2048_LARGE
    assert choose_ring([(62, 1 << 29, Fraction(10**6))], 1025) is RING_4096_LARGE
    for count in (1, 1025):
        with pytest.raises(Misuse, match="1024 members"):
            plan_sum(1, 1, Fraction(0), count, RING_2048)
        with pytest.raises(Misuse, match="2 to 1024 members"):
            RING_2048.check_members(count)
    for count in (2, 1024):
        RING_2048.check_members(count)
    assert RING_4096_LARGE.to_context() == {
        "degree": 4096, "prime": "1152921504606830593", "plain_modulus": "140737488355213",
    }  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ring", [RING_2048, RING_4096], ids=["2048", "4096"])
@pytest.mark.parametrize("rows", [1, 2, 3, BATCH])
def test_products_are_those_of_the_ring(ring: RingParameters, rows: int) -> None:
    random = np.random.default_rng(rows)
    polynomials = random.integers(0, ring.prime, (rows, ring.degree), dtype=np.uint64)
    polynomials[0, :4] = 0, 1, ring.prime - 1, ring.prime // 2
    key = draw_key(ring, SeededRandom(rows))
    key[:3] = 78, -78, 0
    found = KeyProducts(key, ring).times(polynomials)
    for row in {0, rows - 1}:
        assert found[row].tolist() == times(polynomials[row].tolist(), key.tolist(), ring.prime)
    assert not KeyProducts(np.zeros_like(key), ring).times(polynomials).any()
    large = np.full(ring.degree, (1 << 19) - 1)
    assert KeyProducts(large, ring).times(polynomials)[0].tolist() == times(
        polynomials[0].tolist(), large.tolist(), ring.prime
    )
    for bad in (large + 1, -large - 1, key[:-1]):
        with pytest.raises(Misuse, match="short coefficient"):
            KeyProducts(bad, ring)


@pytest.mark.parametrize("ring", [RING_2048_FEW, RING_4096_LARGE], ids=["2048", "4096"])
@pytest.mark.parametrize("words", [1, 2, 31, 255, 256, 257, MOST])
def test_few_coefficients_are_those_of_the_product(ring: RingParameters, words: int) -> None:
    """By integers, of hostile polynomials and keys: all at their largest, signs that add up and signs that change."""
    random = np.random.default_rng(words)
    most = (1 << 53) // (ring.degree << -(-ring.coefficient_bits // 2)) - 1
    signs = random.choice([-1, 1], ring.degree)
    keys = [draw_key(ring, SeededRandom(words)), np.full(ring.degree, most), np.full(ring.degree, -most), most * signs]
    rows = [
        random.integers(0, ring.prime, ring.degree, dtype=np.uint64),
        np.full(ring.degree, ring.prime - 1, dtype=np.uint64),
    ]
    for key in keys:
        assert fits(words, key, ring)
        for row in rows:
            found = first_coefficients(row, key, words, ring)
            assert found.tolist() == IntegerProducts(key, ring).times(row[None])[0, :words].tolist()
    assert not first_coefficients(rows[1], np.zeros_like(keys[0]), words, ring).any()
    for key in keys[1:]:
        assert not fits(words, key + 2 * np.sign(key), ring)
    assert not fits(MOST + 1, keys[0], ring)


@pytest.mark.parametrize("bits", [64, 128])
def test_probabilities_of_keys_are_exact(bits: int) -> None:
    """P(y <= j) by decimals of 150 digits; weights beyond 400 are below 10^-800."""
    with localcontext(prec=150):
        weights = [(Decimal(-j * j) / (2 * KEY_VARIANCE)).exp() for j in range(401)]
        total, reach = weights[0] + 2 * sum(weights[1:]), short_keys._reach(bits)
        below = sum(weights[reach + 1 :])
        for j, edge in zip(range(-reach, reach), short_keys._edges(bits), strict=True):
            below += weights[abs(j)]
            assert edge == int(below / total * 2**bits)


def test_a_key_is_what_its_bits_say() -> None:
    """Every number of 16 bits, by the probabilities; one that falls on a probability is extended until it does not."""
    edges, reach = short_keys._edges(64), short_keys._reach(64)
    table = short_keys._table()
    for head in range(1 << 16):
        values = {bisect_left(edges, bits) - reach for bits in (head << 48, (head << 48) + (1 << 48) - 1)}
        open_ = len(values) > 1 or any(edge >> 48 == head for edge in edges[bisect_left(edges, head << 48) :][:1])
        assert table[head] == (short_keys._OPEN if open_ else values.pop())
    longer = short_keys._edges(128)
    for place in (40, reach, 100):
        on = edges[place]
        assert short_keys._settled(on - 1, 64) == place - reach
        assert short_keys._settled(on, 64) is None
        assert short_keys._settled(on + 1, 64) == place + 1 - reach
        known = longer[place + short_keys._reach(128) - reach]
        assert known >> 64 == on
        assert (short_keys._settled(known - 1, 128), short_keys._settled(known + 1, 128)) == (place - reach, place + 1 - reach)

    class Bits:
        """A keystream that falls on a probability, is extended by what lies above it, and is 0 elsewhere."""

        def __init__(self) -> None:
            self.left = [(on >> 48).to_bytes(2, "little") + (1 << 15).to_bytes(2, "little") * (RING_2048.degree - 1)]
            self.left += [(on % (1 << 48)).to_bytes(6, "little"), bytes([255]) * 8]

        def bytes(self, count: int) -> bytes:
            found = self.left.pop(0)
            assert len(found) == count
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_keys, "Expanded", lambda source: source)
        source = Bits()
        key = draw_key(RING_2048, source)
    assert not source.left
    assert (key[0], set(key[1:])) == (place + 1 - reach, {0})


def test_keys_are_distributed_as_stated() -> None:
    """A million draws, in cells of at least five: a chi-squared test that fails with a chance of 1e-10."""
    source = SeededRandom(b"keys")
    drawn = np.concatenate([draw_key(RING_2048, source) for _ in range(512)])
    weights = np.exp(-(np.arange(-84, 85) ** 2) / (2.0 * KEY_VARIANCE))
    expected = drawn.size * weights / weights.sum()
    cut = np.abs(np.arange(-84, 85)) <= 28
    counts = np.bincount(drawn + 84, minlength=169)
    observed = np.append(counts[cut], counts[~cut].sum())
    wanted = np.append(expected[cut], expected[~cut].sum())
    assert wanted.min() > 5
    assert stats.chisquare(observed, wanted).pvalue > RARE


@pytest.mark.parametrize("ring", [RING_2048, RING_4096, RING_2048_LARGE], ids=["2048", "4096", "2048-large"])
@pytest.mark.parametrize("words", [2, 700, None])
def test_seals_decryptor_opens_one_contribution_and_the_sum(ring: RingParameters, words: int | None) -> None:
    """The independent oracle: under s_i, and under the sum of the keys."""
    random = np.random.default_rng(5)
    count, source = words or ring.degree, SeededRandom(9)
    common = common_polynomials(CONTEXT, ring, 0, 1)[0]
    total, keys, exact = np.zeros(count, dtype=np.uint64), np.zeros(ring.degree, dtype=np.int64), np.zeros(count, dtype=object)
    for _ in range(4):
        y = random.integers(0, ring.plain_modulus, count, dtype=np.uint64)
        y[:2] = 0, ring.plain_modulus - 1
        key = draw_key(ring, source)
        (c,) = encrypt_words(y, key, CONTEXT, ring, source)
        assert seal_decrypts(c, common, key, ring) == y.tolist()
        total, keys, exact = (total + c) % np.uint64(ring.prime), keys + key, exact + y.astype(object)
    assert seal_decrypts(total, common, keys, ring) == (exact % ring.plain_modulus).tolist()


@pytest.mark.parametrize(
    ("ring", "members"),
    [(RING_2048, 4), (RING_4096, 16), (RING_2048, 1024), pytest.param(RING_2048_LARGE, 2000, marks=pytest.mark.system)],
)
def test_errors_keep_their_margin(ring: RingParameters, members: int) -> None:
    """The sum of so many errors has variance 42 n about q M / t, and what remains to q / 2t is what the design states."""
    source, random = SeededRandom(members), np.random.default_rng(members)
    count, prime, t = ring.degree, ring.prime, ring.plain_modulus
    total, keys, exact = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.uint64)
    for _ in range(members):
        y = random.integers(0, t, count, dtype=np.uint64)
        key = draw_key(ring, source)
        (c,) = encrypt_words(y, key, CONTEXT, ring, source)
        total, keys, exact = (total + c) % np.uint64(prime), keys + key, (exact + y) % np.uint64(t)
    phase = total + np.uint64(prime) - KeyProducts(keys, ring).times(common_polynomials(CONTEXT, ring, 0, 1))[0]
    error = [
        float(Fraction((int(p) * t - int(m) * prime + prime * t // 2) % (prime * t) - prime * t // 2, t))
        for p, m in zip(phase % np.uint64(prime), exact, strict=True)
    ]
    assert abs(np.mean(error)) < RARE_DEVIATIONS * math.sqrt(KEY_VARIANCE * members / count)
    low, high = stats.chi2.ppf([RARE, 1 - RARE], count) / count
    assert low < np.mean(np.square(error)) / (KEY_VARIANCE * members) < high
    assert low < np.mean(np.square(keys)) / (KEY_VARIANCE * members) < high
    assert np.abs(keys).max() <= ring.most_key(members)
    assert np.abs(error).max() * t <= ring.most_error(members)
    margin = prime / (2 * t) / math.sqrt(KEY_VARIANCE * members)
    assert margin == pytest.approx({4: 158.0, 16: 79.0, 1024: 9.88, 2000: 14.13}[members], rel=1e-3)


@pytest.mark.parametrize("ring", [RING_2048, RING_4096], ids=["2048", "4096"])
def test_errors_do_not_tell_how_words_were_rounded(ring: RingParameters) -> None:
    """The opened error says nothing of the fraction of q y / t, so the error of a sum depends on the sum alone.

    Were the fraction dropped or rounded first, the mean error of those above and below 1/2 would differ by a half or one.
    """
    random, t, prime = np.random.default_rng(7), ring.plain_modulus, ring.prime
    y = random.integers(0, t, 40 * ring.degree, dtype=np.uint64)
    key = np.zeros(ring.degree, dtype=np.int64)
    key[0] = 0
    c = np.concatenate(list(encrypt_words(y, key, CONTEXT, ring, SeededRandom(11))))
    fraction = np.array([prime * int(w) % t / t for w in y])
    error = np.array([(int(x) - prime * int(w) // t + prime // 2) % prime - prime // 2 for x, w in zip(c, y, strict=True)])
    real = error - fraction
    deviation = math.sqrt(KEY_VARIANCE / (len(y) / 4))
    for quarter in range(4):
        inside = (fraction >= quarter / 4) & (fraction < (quarter + 1) / 4)
        assert abs(real[inside].mean()) < 1.1 * RARE_DEVIATIONS * deviation
        # what a rounding to the nearest, or down, would leave is seen by the same test
    assert abs((error - 0.5)[fraction < 0.25].mean()) > 1.1 * RARE_DEVIATIONS * deviation


@given(st.sampled_from(PACKED_WIDTHS), st.integers(0, 70), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_packed_numbers_come_back(width: int, count: int, random: object) -> None:
    numbers = [random.getrandbits(width) for _ in range(count)]  # type: ignore[attr-defined]
    data = pack_numbers(np.array(numbers, dtype=np.uint64), width)
    assert int.from_bytes(data, "little") == sum(number << (width * place) for place, number in enumerate(numbers))
    assert len(data) == packed_size(count, width)
    assert unpack_numbers(data, count, width, "vector").tolist() == numbers
    for bad in (data + b"\0", data[:-1]):
        if len(bad) != len(data):
            with pytest.raises(HostileInput, match="bytes instead of"):
                unpack_numbers(bad, count, width, "vector")
    if count * width % 8:
        with pytest.raises(HostileInput, match="behind its last"):
            unpack_numbers(data[:-1] + bytes([data[-1] | 0x80]), count, width, "vector")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", PACKED_WIDTHS)
def test_vectors_of_all_lengths_are_packed_alike(width: int) -> None:
    """Few bits, many, several blocks: every way of packing, held to one long integer; also what is not a row in memory."""
    for count in (300, 700, 3001, 8191, 8192, 8255, 70_001):
        numbers = RNG.integers(0, 1 << width, 2 * count, dtype=np.uint64)[::2]
        numbers[:2] = 0, (1 << width) - 1
        data = pack_numbers(numbers, width)
        octets = numbers.astype("<u8").reshape(-1, 1).view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little")[:, :width]
        assert int.from_bytes(data, "little") == int((bits.ravel()[::-1] + ord("0")).tobytes(), 2)
        assert unpack_numbers(data, count, width, "vector").tolist() == numbers.tolist()


@pytest.mark.parametrize("width", [0, 59, 61, 62, 64])
def test_widths_that_do_not_fit_words_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        pack_numbers(np.zeros(3, dtype=np.uint64), width)


@pytest.mark.parametrize("ring", [RING_2048, RING_4096], ids=["2048", "4096"])
def test_coefficients_out_of_range_are_refused(ring: RingParameters) -> None:
    honest = np.array([0, 1, ring.prime - 1], dtype=np.uint64)
    data = coefficients_to_bytes(honest, ring)
    assert coefficients_from_bytes(data, 3, ring).tolist() == honest.tolist()
    for wrong in (ring.prime, ring.prime + 1, (1 << ring.coefficient_bits) - 1):
        with pytest.raises(HostileInput, match="not below the prime"):
            coefficients_from_bytes(pack_numbers(np.array([0, wrong], dtype=np.uint64), ring.coefficient_bits), 2, ring)
    for count in (2, 4):
        with pytest.raises(HostileInput, match="bytes instead of"):
            coefficients_from_bytes(data, count, ring)
    share = RNG.integers(0, 1 << 9, ring.degree + 1, dtype=np.uint64)
    assert share_from_bytes(share_to_bytes(share, ring, 4), ring, 4).tolist() == share.tolist()
    with pytest.raises(HostileInput, match="bytes instead of"):
        share_from_bytes(share_to_bytes(share, ring, 4), ring, 16)  # as of another cohort


def test_words_beyond_the_modulus_are_not_encrypted() -> None:
    key = draw_key(RING_2048, SeededRandom(1))
    for words in ([], [RING_2048.plain_modulus], [0, RING_4096.plain_modulus - 1]):
        with pytest.raises(Misuse, match="below the plain modulus"):
            list(encrypt_words(np.array(words, dtype=np.uint64), key, CONTEXT, RING_2048, SeededRandom(1)))


@pytest.fixture(scope="module")
def four() -> Members:
    return make_members(4)


def test_sums_that_are_none_are_not_opened(four: Members) -> None:
    """Another number of members, a consent of another context, a coefficient too large, error beyond the bound."""
    played = play(four, some_vectors(four))
    plan, context, total = four.plan, four.context, played.total
    opened = open_words(total, plan, context, four.consents)
    assert opened.tolist() == (np.sum([one.words for one in played.sent], axis=0) % plan.ring.plain_modulus).tolist()
    three = four.add(played.sent[:3])
    other = [*four.consents[:3], bytes(32)]
    for bad, consents, match in [
        (three, four.consents, "do not count"),
        (total, four.consents[:3], "every member"),
        (total, other, "do not count|larger than keys"),
        (total, [four.consents[0]] * 4, "do not count|larger than keys"),
        (Contribution(total.share[:-1], total.coefficients), four.consents, "different number"),
        (Contribution(total.share, total.coefficients[:-1]), four.consents, "different number"),
        (Contribution(total.share + np.uint64(1 << 9), total.coefficients), four.consents, "out of range"),
        (Contribution(total.share, total.coefficients + np.uint64(plan.ring.prime)), four.consents, "out of range"),
    ]:
        with pytest.raises(HostileInput, match=match):
            open_words(bad, plan, context, consents)
    with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
        open_words(total, plan, bytes(32), four.consents)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus.bit_length()}")
@pytest.mark.parametrize("members", [2, 4, 16])
def test_the_bound_on_error_is_exact(ring: RingParameters, members: int) -> None:
    """Error right up to the bound opens, one more does not; a key's coefficient alike."""
    cohort = make_members(members, size=1, ring=ring)
    q, t, consents = ring.prime, ring.plain_modulus, cohort.consents
    none = np.zeros(ring.degree, dtype=np.int64)

    def total_of(key: NDArrayInt, error: int, word: int) -> Contribution:
        keys = [key, *[none] * (members - 1)]
        shares = [cohort.share(name, one) for name, one in zip(cohort.names, keys, strict=True)]
        share = np.sum(shares, axis=0, dtype=np.uint64) % np.uint64(1 << ring.share_bits(members))
        pads = KeyProducts(key, ring).times(common_polynomials(cohort.context, ring, 0, 1))[0]
        phase = -(-q * word // t) + error  # ceil(q M / t) + error, so t times its error is that much less 0 .. t - 1 more
        return Contribution(share, np.array([(int(pads[0]) + phase) % q, int(pads[1])], dtype=np.uint64))

    for word in (0, 1, t // 2, t - 1):
        excess = -(-q * word // t) * t - q * word
        least, most = (-ring.most_error(members) - excess) // t + 1, (ring.most_error(members) - excess) // t
        for error in (least, 0, most):
            assert open_words(total_of(none, error, word), cohort.plan, cohort.context, consents).tolist() == [word, 0]
        for error in (least - 1, most + 1):
            with pytest.raises(HostileInput, match="more error"):
                open_words(total_of(none, error, word), cohort.plan, cohort.context, consents)
    largest = none.copy()
    largest[3] = ring.most_key(members)
    for key, right in ((largest, True), (-largest, True), (largest + (none + 1), False), (-largest - 1, False)):
        total = total_of(key, 0, 5)
        if right:
            assert open_words(total, cohort.plan, cohort.context, consents).tolist() == [5, 0]
            assert open_keys(total.share, ring, cohort.context, consents).tolist() == key.tolist()
        else:
            with pytest.raises(HostileInput, match="larger than keys"):
                open_words(total, cohort.plan, cohort.context, consents)


@SETS
def test_words_are_rounded_exactly_at_the_bound_of_the_largest_cohort(ring: RingParameters) -> None:
    """There the bound is nearly q / 2t, and a word's size takes the last bits of a float64: it may round to the wrong side."""
    q, t, members = ring.prime, ring.plain_modulus, ring.most_members
    random = np.random.default_rng(3)
    words = [0, 1, t // 2, t - 2, t - 1, *random.integers(0, t, 400).tolist()]
    for side in (1, -1):
        phases = []
        for word in words:
            error = side * ring.most_error(members)  # t times the error; the nearest integer phase within it
            phases.append((-(-(q * word + error) // t) if side < 0 else (q * word + error) // t) % q)
        assert _rounded(np.array(phases, dtype=np.uint64), ring, members).tolist() == words
        for phase in phases[:9]:
            with pytest.raises(HostileInput, match="more error"):
                _rounded(np.array([(phase + side) % q], dtype=np.uint64), ring, members)


def test_common_polynomials_are_uniform_and_of_one_context() -> None:
    for ring in (RING_2048, RING_4096):
        found = common_polynomials(CONTEXT, ring, 0, 20)
        assert int(found.max()) < ring.prime
        assert uniform_p_value(found, ring.prime) > RARE
        np.testing.assert_array_equal(found[7:9], common_polynomials(CONTEXT, ring, 7, 2))
        other = common_polynomials(CONTEXT[:-1] + b"\0", ring, 0, 20)
        difference = (found + np.uint64(ring.prime) - other) % np.uint64(ring.prime)
        assert uniform_p_value(difference, ring.prime) > RARE


NDArrayInt = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
