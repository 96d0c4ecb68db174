"""The three locks, each with the other two given away: what is left is uniform, and the same test flags what is not.

Masks and vectors are seeded, so a result never changes; only the ciphertexts of the second lock come from the library's own
randomness, where a false alarm has a probability below 1e-6.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from support.securesum import ALPHA, Cohort, add_words, exact_plan, make_cohort, uniform_p_value
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.bfv import SecretKey, _Expander
from veilsum_privacy.securesum.contribution import consent_key, open_sum
from veilsum_privacy.securesum.frames import SEED_BYTES, numbers_from_bytes
from veilsum_privacy.securesum.masks import MaskStream
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters, EncodingPlan

MEMBERS = 4
ROUNDS = 40  # contexts of each test: 40 times 8190 words

Slots = NDArray[np.uint64]
Integers = NDArray[np.int64]


def _context(number: int) -> bytes:
    return hashlib.sha256(b"context %d" % number).digest()


def _plan(parameters: BfvParameters = BFV_8192) -> EncodingPlan:
    """A vector that fills one ciphertext."""
    lanes = exact_plan(1, 100_000, MEMBERS, parameters).lanes
    return exact_plan(parameters.data_slots * lanes, 100_000, MEMBERS, parameters)


def _vector(kind: str, plan: EncodingPlan) -> Integers:
    random = np.random.default_rng(3)
    values = {"zero": 0, "largest": plan.bound, "smallest": -plan.bound}
    if kind == "records":
        return np.rint(random.normal(0, plan.bound / 5, plan.size)).clip(-plan.bound, plan.bound).astype(np.int64)
    return np.full(plan.size, values[kind])


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return make_cohort(MEMBERS, seed=11)


@pytest.mark.parametrize("parameters", [BFV_8192, BFV_4096], ids=["8192", "4096"])
@pytest.mark.parametrize("kind", ["zero", "largest", "smallest", "records"])
def test_pairwise_masks_hold_with_key_and_consents_given_away(cohort: Cohort, kind: str, parameters: BfvParameters) -> None:
    """The opener has decrypted one contribution and has all consents; two other members collude with their seeds."""
    plan, victim = _plan(parameters), cohort.names[1]
    t, values = plan.parameters.plain_modulus, _vector(kind, plan)
    left, bare = [], []
    for number in range(ROUNDS):
        context = _context(number)
        words = cohort.words(victim, values, plan, context)
        left += cohort.unmask(victim, words, context, t, without=[cohort.names[2]])
        bare += cohort.unmask(victim, words, context, t, without=[])
    assert uniform_p_value(np.array(left), t) > ALPHA
    assert uniform_p_value(np.array(bare), t) < ALPHA, "with every mask gone the same test must flag the vector"


def test_no_slot_depends_on_the_value(cohort: Cohort) -> None:
    """The same masks' words for two vectors differ by the vectors, but over contexts each slot is uniform on its own."""
    plan, victim = _plan(), cohort.names[0]
    t = plan.parameters.plain_modulus
    for kind in ("zero", "largest"):
        values = _vector(kind, plan)
        rows = []
        for number in range(600):
            context = _context(number)
            words = cohort.words(victim, values, plan, context)
            rows.append(cohort.unmask(victim, words, context, t, without=[cohort.names[3]])[0][:100])
        table = np.array(rows)
        p_values = [uniform_p_value(table[:, slot], t) for slot in range(table.shape[1])]
        assert min(p_values) > ALPHA / len(p_values)


def test_two_contexts_share_nothing(cohort: Cohort) -> None:
    """The difference of one vector's contributions under two contexts is uniform: nothing cancels between attempts."""
    plan, victim = _plan(), cohort.names[0]
    t, values = plan.parameters.plain_modulus, _vector("records", plan)
    words = [np.concatenate(cohort.words(victim, values, plan, _context(number))) for number in range(ROUNDS)]
    differences = np.array([(a + np.uint64(t) - b) % np.uint64(t) for a, b in pairwise(words)])
    assert uniform_p_value(differences, t) > ALPHA
    other = np.concatenate(cohort.words(victim, _vector("largest", plan), plan, _context(0)))
    reused = (words[0] + np.uint64(t) - other) % np.uint64(t)  # two payloads under one context: what must never happen
    assert uniform_p_value(reused, t) < ALPHA


def _coefficients(ciphertext: bytes, parameters: BfvParameters) -> Slots:
    """The coefficients of both polynomials, below the coefficient prime.

    The second polynomial travels as a seed; what is judged is what everyone expands it to.
    """
    first = numbers_from_bytes(ciphertext[:-SEED_BYTES], parameters.coefficient_bytes)
    expander = _Expander(parameters)
    return np.concatenate([first, expander.second(expander.seeded(first, ciphertext[-SEED_BYTES:]))])


@pytest.mark.parametrize("parameters", [BFV_8192, BFV_4096], ids=["8192", "4096"])
@pytest.mark.parametrize("kind", ["zero", "largest"])
def test_encryption_holds_with_masks_given_away(kind: str, parameters: BfvParameters) -> None:
    """The vector is not masked at all: its ciphertext is uniform below q, and two of them share nothing."""
    plan = _plan(parameters)
    key, bits = SecretKey.generate(parameters), parameters.prime_bits[0]
    slots = np.full(parameters.degree, plan.bound if kind == "largest" else 0, dtype=np.uint64)
    ciphertexts = [key.encrypt(slots) for _ in range(12)]
    assert len(set(ciphertexts)) == len(ciphertexts)
    table = np.array([_coefficients(ciphertext, parameters) for ciphertext in ciphertexts])
    # q is the largest prime of its bits that is 1 mod 2N, so it is 2^bits to 1e-9 for these bins
    assert (table < 1 << bits).all()
    assert uniform_p_value(table, 1 << bits) > ALPHA
    assert uniform_p_value((table[1:] - table[:-1]) % np.uint64(1 << bits), 1 << bits) > ALPHA
    for polynomial in np.split(table, 2, axis=1):
        assert uniform_p_value(polynomial, 1 << bits) > ALPHA
    assert uniform_p_value(np.tile(slots, 12), 1 << bits) < ALPHA, "the plain slots must be flagged"
    np.testing.assert_array_equal(key.decrypt(ciphertexts[0], parameters.degree, 1), slots)


def test_the_self_mask_holds_with_key_and_pairwise_masks_given_away(cohort: Cohort) -> None:
    """Every seed and the key are known and the cohort is complete; one consent is missing."""
    plan = _plan()
    t = plan.parameters.plain_modulus
    vectors = [_vector(kind, plan) for kind in ("zero", "largest", "smallest", "records")]
    for missing in range(MEMBERS):
        left, opened = [], []
        for number in range(12):
            context = _context(number)
            consents = cohort.consents(context)
            words = cohort.sum_words(vectors, plan, context)
            left += _take_off(words, [key for place, key in enumerate(consents) if place != missing], t)
            opened += _take_off(words, consents, t)
        assert uniform_p_value(np.array(left), t) > ALPHA
        assert uniform_p_value(np.array(opened), t) < ALPHA, "with all consents the same test must flag the sum"


def _take_off(words: list[Slots], consents: list[bytes], modulus: int) -> list[Slots]:
    streams = [MaskStream(consent, modulus) for consent in consents]
    left = []
    for part in words:
        total = part
        for stream in streams:
            total = (total + np.uint64(modulus) - stream.take(len(part))) % np.uint64(modulus)
        left.append(total)
    return left


@pytest.mark.parametrize("deceived", [1, 2])
def test_members_with_different_contexts_do_not_cancel(cohort: Cohort, deceived: int) -> None:
    """A coordinator that shows some members another cohort, model or plan gets noise, all consents included."""
    plan = _plan()
    t, values = plan.parameters.plain_modulus, _vector("records", plan)
    left = []
    for number in range(ROUNDS):
        contexts = [_context(number if place >= deceived else 1000 + number) for place in range(MEMBERS)]
        words = add_words(
            (cohort.words(name, values, plan, context) for name, context in zip(cohort.names, contexts, strict=True)), t
        )
        consents = [consent_key(cohort.selves[name], context) for name, context in zip(cohort.names, contexts, strict=True)]
        left += _take_off(words, consents, t)
        with pytest.raises(HostileInput, match="count lane"):
            open_sum(words, plan, consents)
    assert uniform_p_value(np.array(left), t) > ALPHA


def test_a_pair_with_one_context_cancels() -> None:
    """Control of the test above: where everyone has one context, the same steps open the sum."""
    pair = make_cohort(2, seed=12)
    plan = exact_plan(100, 100, 2)
    vectors = [np.arange(100), -2 * np.arange(100) % 50]
    opened = open_sum(pair.sum_words(vectors, plan, _context(0)), plan, pair.consents(_context(0)))
    np.testing.assert_array_equal(opened, vectors[0] + vectors[1])


def test_consents_serve_one_context_only(cohort: Cohort) -> None:
    """A consent is derived from the seed and the context: another attempt's consent opens nothing."""
    plan = _plan()
    vectors = [_vector("records", plan)] * MEMBERS
    words = cohort.sum_words(vectors, plan, _context(0))
    stale = cohort.consents(_context(0))[:-1] + cohort.consents(_context(1))[-1:]
    with pytest.raises(HostileInput, match="count lane"):
        open_sum(words, plan, stale)
    np.testing.assert_array_equal(open_sum(words, plan, cohort.consents(_context(0))), np.sum(vectors, axis=0))


def test_a_seed_shared_by_two_cohorts_yields_unrelated_masks() -> None:
    """The same members in another order or cohort have another context, hence other masks, though the seeds are the same."""
    plan, cohort = _plan(), make_cohort(3, seed=13)
    t, values = plan.parameters.plain_modulus, np.zeros(_plan().size, dtype=np.int64)
    smaller = Cohort(cohort.names[:2], cohort.pairs, cohort.selves)
    first = cohort.unmask(cohort.names[0], cohort.words(cohort.names[0], values, plan, _context(0)), _context(0), t,
                          without=[cohort.names[1]])  # fmt: skip
    second = smaller.unmask(cohort.names[0], smaller.words(cohort.names[0], values, plan, _context(1)), _context(1), t,
                            without=[cohort.names[1]])  # fmt: skip
    difference = (np.array(first) + np.uint64(t) - np.array(second)) % np.uint64(t)
    assert uniform_p_value(difference, t) > ALPHA
