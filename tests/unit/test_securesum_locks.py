"""The three locks of a sum under one-time keys, each with the other two given away: what is left is uniform, and the same test
flags what is not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from support.one_time import Members, make_members
from support.securesum import ALPHA, uniform_p_value
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.key_shares import consent_of, self_masks
from veilsum_privacy.securesum.opening import open_words, unmask_values
from veilsum_privacy.securesum.products import KeyProducts, common_polynomials
from veilsum_privacy.securesum.ring import RING_2048, RING_4096, RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

MEMBERS = 4
ROUNDS = 12
RINGS = pytest.mark.parametrize("ring", [RING_2048, RING_4096], ids=["2048", "4096"])


def members_of(ring: RingParameters) -> Members:
    """A vector that fills one polynomial, in one lane a word."""
    return make_members(MEMBERS, size=ring.degree - 1, bound=ring.plain_modulus // 64, ring=ring, seed=11)


def vector(kind: str, members: Members) -> Integers:
    plan = members.plan
    if kind == "records":
        random = np.random.default_rng(3)
        return np.rint(random.normal(0, plan.bound / 5, plan.size)).clip(-plan.bound, plan.bound).astype(np.int64)
    return np.full(plan.size, {"zero": 0, "largest": plan.bound, "smallest": -plan.bound}[kind])


def context(number: int) -> bytes:
    return number.to_bytes(32, "big")


def known_masks(members: Members, name: str, purpose: StreamPurpose, count: int, bound: int, but: str) -> Words:
    """All masks of a contribution that are given away: its self-mask's, and those with everyone but one other member."""
    own = {StreamPurpose.PAIR_KEY: StreamPurpose.SELF_KEY, StreamPurpose.PAIR_DATA: StreamPurpose.SELF_DATA}[purpose]
    total = self_masks(own, members.context, [members.consent(name)], count, bound)
    for other, seed in members.seeds(name).items():
        if other != but:
            mask = WordStream(seed, purpose, members.context, bound=bound).take(count)
            total += mask if other > name else np.uint64(bound) - mask
    return total % np.uint64(bound)


@RINGS
@pytest.mark.parametrize("kind", ["zero", "largest"])
def test_one_time_keys_hold_with_data_masks_and_consents_given_away(ring: RingParameters, kind: str) -> None:
    """Words are known to be these; of the key share all masks are known but those with one other honest member."""
    members, victim = members_of(ring), "site-01"
    bits, coefficients, shares, bare = ring.share_bits(MEMBERS), [], [], []
    words = np.full(ring.degree, 5 if kind == "largest" else 0, dtype=np.uint64)
    for number in range(ROUNDS):
        members.context = context(number)
        sent = members.contribute(victim, vector(kind, members))
        coefficients.append(members.encrypt(words, sent.key))
        masks = known_masks(members, victim, StreamPurpose.PAIR_KEY, ring.degree + 1, 1 << bits, but="site-02")
        shares.append((sent.contribution.share + np.uint64(1 << bits) - masks) % np.uint64(1 << bits))
        every = known_masks(members, victim, StreamPurpose.PAIR_KEY, ring.degree + 1, 1 << bits, but="")
        bare.append((sent.contribution.share + np.uint64(1 << bits) - every) % np.uint64(1 << bits))
    table = np.array(coefficients)
    assert uniform_p_value(table, ring.prime) > ALPHA
    assert uniform_p_value((table[1:] + np.uint64(ring.prime) - table[:-1]) % np.uint64(ring.prime), ring.prime) > ALPHA
    assert uniform_p_value(np.array(shares), 1 << bits) > ALPHA
    assert uniform_p_value(np.array(bare), 1 << bits) < ALPHA, "with all masks taken off the same test must flag the key"
    assert {int(one[-1]) for one in bare} == {1}


@RINGS
@pytest.mark.parametrize("kind", ["zero", "largest", "smallest", "records"])
def test_data_masks_hold_with_one_time_keys_and_consents_given_away(ring: RingParameters, kind: str) -> None:
    """Who has the key opens the words; of their masks all are known but those with one other honest member."""
    members, victim, t = members_of(ring), "site-01", ring.plain_modulus
    left, bare = [], []
    for number in range(ROUNDS):
        members.context = context(number)
        sent = members.contribute(victim, vector(kind, members))
        pads = KeyProducts(sent.key, ring).times(common_polynomials(members.context, ring, 0, 1))[0]
        phase = (sent.contribution.coefficients + np.uint64(ring.prime) - pads) % np.uint64(ring.prime)
        opened = np.rint(phase.astype(np.float64) * (t / ring.prime)).astype(np.uint64) % np.uint64(t)
        assert opened.tolist() == sent.words.tolist(), "the key opens the words"
        for found, but in ((left, "site-02"), (bare, "")):
            masks = known_masks(members, victim, StreamPurpose.PAIR_DATA, members.plan.words, t, but=but)
            found.append((opened + np.uint64(t) - masks) % np.uint64(t))
    assert uniform_p_value(np.array(left), t) > ALPHA
    assert uniform_p_value(np.array(bare), t) < ALPHA, "with all masks taken off the same test must flag the vector"


@RINGS
@pytest.mark.parametrize("missing", range(MEMBERS))
def test_nothing_opens_without_one_consent_with_all_seeds_given_away(ring: RingParameters, missing: int) -> None:
    """Every pair's seed is known, and the one-time keys, and the sum is complete: one consent is missing."""
    members, t = members_of(ring), ring.plain_modulus
    bits, keys, words, opened = ring.share_bits(MEMBERS), [], [], []
    kinds = ("zero", "largest", "smallest", "records")
    for number in range(ROUNDS):
        members.context = context(number)
        sent = [members.contribute(name, vector(kind, members)) for name, kind in zip(members.names, kinds, strict=True)]
        total, given = members.add(sent), [one for place, one in enumerate(members.consents) if place != missing]
        masks = self_masks(StreamPurpose.SELF_KEY, members.context, given, ring.degree + 1, 1 << bits)
        keys.append((total.share + np.uint64(1 << bits) - masks) % np.uint64(1 << bits))
        summed = np.sum([one.words for one in sent], axis=0, dtype=np.uint64) % np.uint64(t)
        for found, consents in ((words, given), (opened, members.consents)):
            masks = self_masks(StreamPurpose.SELF_DATA, members.context, consents, members.plan.words, t)
            found.append((summed + np.uint64(t) - masks) % np.uint64(t))
        with pytest.raises(HostileInput, match="every member"):
            open_words(total, members.plan, members.context, given)
        stale = list(members.consents)
        stale[missing] = consent_of(members.selves[members.names[missing]], context(number + 1000))
        with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
            open_words(total, members.plan, members.context, stale)
        whole = open_words(total, members.plan, members.context, members.consents)
        exact = np.sum([one.values for one in sent], axis=0)
        np.testing.assert_array_equal(unmask_values(whole, members.plan, members.context, members.consents), exact)
    assert uniform_p_value(np.array(keys), 1 << bits) > ALPHA
    assert uniform_p_value(np.array(words), t) > ALPHA
    assert uniform_p_value(np.array(opened), t) < ALPHA, "with all consents the same test must flag the sum"


@RINGS
@pytest.mark.parametrize("deceived", [1, 2])
def test_members_with_different_contexts_do_not_cancel(ring: RingParameters, deceived: int) -> None:
    """A coordinator that shows some members another cohort, model or plan gets noise, with all one-time keys and consents."""
    members, t, left = members_of(ring), ring.plain_modulus, []
    for number in range(ROUNDS):
        total, masks = np.zeros(members.plan.words, dtype=np.uint64), np.zeros(members.plan.words, dtype=np.uint64)
        for place, name in enumerate(members.names):
            members.context = context(number if place >= deceived else 1000 + number)
            total += members.mask(name, vector("records", members))
            masks += self_masks(StreamPurpose.SELF_DATA, members.context, [members.consent(name)], members.plan.words, t)
        left.append((total + np.uint64(MEMBERS * t) - masks) % np.uint64(t))
    assert uniform_p_value(np.array(left), t) > ALPHA
    members.context = context(0)
    same = members.masked_total([vector("records", members)] * MEMBERS)
    masks = self_masks(StreamPurpose.SELF_DATA, members.context, members.consents, members.plan.words, t)
    assert uniform_p_value((same + np.uint64(t) - masks) % np.uint64(t), t) < ALPHA, "where all have one context, it opens"
