"""A sum as it opened gives the sum to the bit, in fewer bytes; nothing else in its form is taken for one."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from support.one_time import Members, Played, make_members, play, shifted, some_vectors
from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput
from veilsum_privacy.results.sum_evidence import Held, verify_opened
from veilsum_privacy.results.whole_sums import total_from_bytes, total_to_bytes, verify_evidence
from veilsum_privacy.securesum import opened_sums, written_sums
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opened_sums import OpenedSum, nearest, opened_from_bytes
from veilsum_privacy.securesum.opening import open_words, unmask_values
from veilsum_privacy.securesum.ring import (
    RING_2048,
    RING_2048_FEW,
    RING_2048_LARGE,
    RING_4096,
    RING_4096_FEW,
    RING_4096_LARGE,
    RingParameters,
)
from veilsum_privacy.securesum.written_sums import opened_to_bytes

RINGS = [RING_2048_FEW, RING_2048, RING_2048_LARGE, RING_4096_FEW, RING_4096, RING_4096_LARGE]


def written(members: Members, total: Contribution) -> bytes:
    """A sum as it opened; of a copy, for it is used up."""
    copied = replace(total, coefficients=total.coefficients.copy())
    return opened_to_bytes(copied, members.plan, members.context, members.consents)


def opened(members: Members, data: bytes) -> OpenedSum:
    return opened_from_bytes(data, members.plan, members.context, members.consents)


def same(one: Contribution, other: Contribution) -> bool:
    return np.array_equal(one.share, other.share) and np.array_equal(one.coefficients, other.coefficients)


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus.bit_length()}")
@pytest.mark.parametrize(("count", "size", "bound"), [(2, 1, 1), (3, 5000, 1000), (7, 300, 2**20)])
def test_a_sum_is_what_it_was_to_the_bit(ring: RingParameters, count: int, size: int, bound: int) -> None:
    """Against what a verifier does with the sum as it was added up: words, values and the sum itself."""
    members = make_members(count, size, bound, ring)
    played = play(members, some_vectors(members))
    words = open_words(played.total, members.plan, members.context, members.consents)
    values = unmask_values(words, members.plan, members.context, members.consents)
    data = written(members, played.total)
    found = opened(members, data)
    assert same(found.total, played.total)
    np.testing.assert_array_equal(found.words, words)
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.values, played.exact)
    narrow = unmask_values(words, members.plan, members.context, members.consents, members.plan.narrowest)
    assert values.dtype == np.int64
    assert narrow.dtype == np.int32
    np.testing.assert_array_equal(narrow, played.exact)
    if size > 1000:  # bounds are reached here; with noise, lanes are wider than what lies in them
        assert len(data) < 0.9 * len(total_to_bytes(played.total, members.plan))


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus.bit_length()}")
def test_the_nearest_phase_of_a_word_is_exact_to_one(ring: RingParameters) -> None:
    """Against integers without a bound: at both ends and anywhere between."""
    random = SeededRandom(b"phases %d" % ring.plain_modulus)
    t, q = ring.plain_modulus, ring.prime
    some = [0, 1, 2, t // 2, t // 2 + 1, t - 2, t - 1, *(int.from_bytes(random.bytes(8), "big") % t for _ in range(5000))]
    for word, near in zip(some, nearest(np.array(some, dtype=np.uint64), ring).tolist(), strict=True):
        assert abs(near * t - word * q) <= t


def test_a_sum_that_reaches_further_than_32_bits_is_held_in_64() -> None:
    """Its largest and smallest values come out, whichever type holds them."""
    for bound, kind in (((1 << 30) - 1, np.int32), (1 << 30, np.int64)):
        members = make_members(2, 2, bound, RING_4096)
        assert members.plan.narrowest is kind
        words = members.masked_total([np.array([bound, -bound])] * 2)
        values = unmask_values(words, members.plan, members.context, members.consents, members.plan.narrowest)
        assert values.dtype == kind
        assert values.tolist() == [2 * bound, -2 * bound]


def evidence_of(played: Played, data: bytes) -> object:
    members = played.members
    evidence = replace(played.evidence, total=data)
    return verify_opened(Held(evidence, members.identities, members.study, members.context), members.plan, members.coordinator)


def test_evidence_holds_as_that_of_the_whole_sum_does() -> None:
    members = make_members(3, 40)
    played = play(members, some_vectors(members))
    held = Held(played.evidence, members.identities, members.study, members.context)
    whole = verify_evidence(held, members.plan, members.coordinator)
    np.testing.assert_array_equal(evidence_of(played, written(members, played.total)), whole)


def test_another_sum_that_opens_is_not_the_one_that_members_answered_for() -> None:
    """The coordinator shows, as it opened, a sum with one value changed: it is well formed, and of another digest."""
    members = make_members(3, 40)
    played = play(members, some_vectors(members))
    for place, amount in [(0, 0), (1, 1), (7, members.ring.plain_modulus - 1)]:
        other = shifted(played.total, place, amount, members.ring) if place else played.total
        data = written(members, other)
        if same(other, played.total):
            evidence_of(played, data)
            continue
        with pytest.raises(HostileInput, match="another sum"):
            evidence_of(played, data)


def test_a_false_sum_that_was_fixed_before_the_challenge_is_found_by_its_words() -> None:
    """As of a whole sum: it has the digest that all answered for, and the answers say other words."""
    members = make_members(3, 40)
    played = play(members, some_vectors(members))
    false = replace(played, total=shifted(played.total, 3, 1, members.ring))
    with pytest.raises(HostileInput, match="vouched"):
        evidence_of(false, written(members, false.total))


def read_by_hand(data: bytes, count: int) -> list[int]:
    """Bit by bit: the lowest bits of each number, then for each of them zeros that are counted, up to a one."""
    found: list[int] = []
    while len(found) < count:
        size = min(1 << 17, count - len(found))
        centre, low, length = int.from_bytes(data[:8], "little", signed=True), data[8], int.from_bytes(data[9:13], "little")
        packed, data = int.from_bytes(data[13 : (end := 13 + -(-size * low // 8))], "little"), data[end:]
        ones, data = "".join(f"{octet:08b}" for octet in data[:length]), data[length:]
        rests = [len(zeros) for zeros in ones.split("1")[:-1]] if length else [0] * size
        for place, rest in enumerate(rests):
            folded = rest << low | packed >> place * low & (1 << low) - 1
            found.append(centre + (folded // 2 if folded % 2 == 0 else -(folded + 1) // 2))
    assert not data
    return found


@pytest.mark.parametrize(
    "numbers",
    [
        [0], [-7], [1 << 45, -(1 << 45)], [3] * 1000, [0] * 999 + [1 << 50], [-(1 << 30)] * 500 + [(1 << 30)] * 500,
        [5 * (place % 2) for place in range(777)], [place * place for place in range(3000)], [0] * (1 << 17) + [9, -9],
    ],
)  # fmt: skip
def test_numbers_are_what_they_were_however_they_lie(numbers: list[int]) -> None:
    file = io.BytesIO()
    written_sums._write(file, np.array(numbers, dtype=np.int64))
    found, rest = opened_sums._unpacked(file.getvalue(), len(numbers))
    assert found.tolist() == numbers == read_by_hand(file.getvalue(), len(numbers))
    assert not len(rest)


@pytest.mark.parametrize("deviation", [3, 13, 400, 40_000])
def test_gaussian_numbers_take_little_more_than_their_entropy(deviation: int) -> None:
    """log2(deviation sqrt(2 pi e)) bits each; the widest of so many would take 1.1 bits more for each."""
    numbers = np.rint(np.random.default_rng(deviation).normal(17, deviation, 4096)).astype(np.int64)
    file = io.BytesIO()
    written_sums._write(file, numbers)
    assert 8 * len(file.getvalue()) < 4096 * (np.log2(deviation * np.sqrt(2 * np.pi * np.e)) + 0.2)
    assert read_by_hand(file.getvalue(), 4096) == numbers.tolist()


@pytest.mark.parametrize("spoil", ["zeros", "long", "wide", "short"])
def test_numbers_that_would_not_fit_are_refused(spoil: str) -> None:
    """Zero bytes behind the last one; more of them than numbers have; a rest beyond 58 bits; fewer numbers than told."""
    file = io.BytesIO()
    written_sums._write(file, np.rint(np.random.default_rng(1).normal(0, 50, 64)).astype(np.int64))
    data = bytearray(file.getvalue())
    length = int.from_bytes(data[9:13], "little")
    assert length
    if spoil in ("zeros", "long"):
        more = 1 if spoil == "zeros" else 1 << 20
        data[9:13] = (length + more).to_bytes(4, "little")
        data += bytes(more)
    elif spoil == "wide":
        data[8:13] = bytes([58]) + (33).to_bytes(4, "little")
        data[13:] = bytes(58 * 8) + bytes(25) + b"\xff" * 8
        assert len(data) == 13 + 58 * 8 + 33
    else:
        data[-length:] = bytes(length)
    with pytest.raises(HostileInput):
        opened_sums._unpacked(bytes(data), 64)


def test_no_other_bytes_are_taken_for_the_sum() -> None:
    """Any bit changed, cut, or with more behind it, widths and smallest numbers among them: refused, or another sum."""
    members = make_members(2, 30)
    played = play(members, some_vectors(members))
    data = written(members, played.total)
    rng = np.random.default_rng(5)
    heads = [*range(13), len(data) - 1]
    for place in [*heads, *rng.integers(len(data), size=150).tolist()]:
        for bit in range(8) if place in heads else [int(rng.integers(8))]:
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            try:
                found = opened(members, bytes(spoilt))
            except HostileInput:
                continue
            assert not same(found.total, played.total), (place, bit)
    for cut in (b"", data[:5], data[:9], data[:-1], data + b"\0", data[9:]):
        with pytest.raises(HostileInput):
            opened(members, cut)
    with pytest.raises(HostileInput):
        opened_from_bytes(data, members.plan, members.context, members.consents[:1])


def test_with_another_consent_it_is_another_sum() -> None:
    members = make_members(2, 30)
    played = play(members, some_vectors(members))
    data = written(members, played.total)
    found = opened_from_bytes(data, members.plan, members.context, [members.consents[0], bytes(32)])
    assert not same(found.total, played.total)
    whole = total_to_bytes(played.total, members.plan)
    assert same(total_from_bytes(whole, members.plan), played.total)
