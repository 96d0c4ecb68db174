"""Packing and opening: exact against numpy's integers, for the real path with encryption and for masks alone."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.securesum import Cohort, add_words, exact_plan, make_cohort
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.securesum.bfv import Adder, SecretKey
from veilsum_privacy.securesum.contribution import (
    decrypt_sum,
    encrypt_contribution,
    keys_digest,
    masked_words,
    open_sum,
    pack,
    payload_digest,
)
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters, EncodingPlan, plan_encoding
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = hashlib.sha256(b"a context").digest()
TAG_KEY = TagKey(hashlib.sha256(b"tag key").digest())
KEYS = {parameters.degree: SecretKey.generate(parameters) for parameters in (BFV_8192, BFV_4096)}
SETS = st.sampled_from([BFV_8192, BFV_4096])

Integers = NDArray[np.int64]


def _vectors(plan: EncodingPlan, members: int, seed: int) -> list[Integers]:
    """Random vectors within the bound, with both extremes in every one."""
    random = np.random.default_rng(seed)
    vectors = [random.integers(-plan.bound, plan.bound + 1, plan.size) for _ in range(members)]
    for vector in vectors:
        vector[0], vector[-1] = plan.bound, -plan.bound
    return vectors


def _encrypted_sum(cohort: Cohort, vectors: list[Integers], plan: EncodingPlan) -> list[bytes]:
    """Ciphertexts of the sum, added as the coordinator does."""
    key = KEYS[plan.parameters.degree]
    totals = [Adder(plan.parameters, plan.words(index) + 2, len(cohort.names)) for index in range(plan.ciphertexts)]
    for name, values in zip(cohort.names, vectors, strict=True):
        words = masked_words(values, plan, CONTEXT, name, cohort.names, cohort.seeds(name), cohort.selves[name])
        ciphertexts = list(encrypt_contribution(words, plan, CONTEXT, name, key, TAG_KEY))
        assert sum(map(len, ciphertexts)) == plan.upload_bytes
        for total, ciphertext in zip(totals, ciphertexts, strict=True):
            total.add(ciphertext)
    found = [total.to_bytes() for total in totals]
    assert sum(map(len, found)) == plan.sum_bytes
    return found


def _round(cohort: Cohort, vectors: list[Integers], plan: EncodingPlan) -> Integers:
    """One whole round with real encryption."""
    ciphertexts = _encrypted_sum(cohort, vectors, plan)
    words = decrypt_sum(ciphertexts, plan, CONTEXT, cohort.names, KEYS[plan.parameters.degree], TAG_KEY)
    return open_sum(words, plan, cohort.consents(CONTEXT))


@pytest.mark.parametrize(
    ("members", "size", "bound", "parameters"),
    [
        (2, 1, 1, BFV_8192),
        (2, 1, 2**45, BFV_8192),
        (3, 40_000, 1000, BFV_4096),
        (17, 5000, 2**17, BFV_8192),
        (4, 300_000, 2**20, BFV_8192),
        (2, 300_000, 3, BFV_4096),
        (64, 1000, 2**16, BFV_8192),
        (64, 1, 2**34, BFV_4096),
    ],
)
def test_encrypted_sums_are_exact(members: int, size: int, bound: int, parameters: BfvParameters) -> None:
    plan = exact_plan(size, bound, members, parameters)
    vectors = _vectors(plan, members, size)
    np.testing.assert_array_equal(_round(make_cohort(members), vectors, plan), np.sum(vectors, axis=0))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 6), st.integers(1, 3000), st.integers(0, 40), st.integers(0, 2**32), SETS)
def test_encrypted_sums_of_any_small_shape_are_exact(
    members: int, size: int, bits: int, seed: int, parameters: BfvParameters
) -> None:
    bound = int(np.random.default_rng(seed).integers(1 << bits, 2 << bits))
    try:
        plan = exact_plan(size, bound, members, parameters)
    except Misuse:
        return  # the sum does not fit a slot of this parameter set
    vectors = _vectors(plan, members, seed)
    np.testing.assert_array_equal(_round(make_cohort(members, seed), vectors, plan), np.sum(vectors, axis=0))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 16), st.integers(1, 20_000), st.integers(0, 40), st.integers(0, 2**32), SETS)
def test_masked_sums_of_any_shape_are_exact(members: int, size: int, bits: int, seed: int, parameters: BfvParameters) -> None:
    try:
        plan = exact_plan(size, 1 << bits, members, parameters)
    except Misuse:
        return
    cohort, vectors = make_cohort(members, seed), _vectors(plan, members, seed)
    opened = open_sum(cohort.sum_words(vectors, plan, CONTEXT), plan, cohort.consents(CONTEXT))
    np.testing.assert_array_equal(opened, np.sum(vectors, axis=0))


@pytest.mark.parametrize("members", [2, 3, 5, 8, 13, 21, 33, 48, 64])
def test_masked_sums_of_large_cohorts_and_vectors_are_exact(members: int) -> None:
    size = min(300_000, 12_000_000 // members**2)
    plan = exact_plan(size, 2**15, members)
    cohort, vectors = make_cohort(members), _vectors(plan, members, members)
    opened = open_sum(cohort.sum_words(vectors, plan, CONTEXT), plan, cohort.consents(CONTEXT))
    np.testing.assert_array_equal(opened, np.sum(vectors, axis=0))


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 50), st.integers(1, 2**30), st.integers(0, 2**62), st.integers(0, 2**32))
def test_sums_at_both_ends_of_the_reach_open(members: int, size: int, bound: int, variance: int, seed: int) -> None:
    """Noise takes single values past any bound; whatever adds up within the reach opens exactly, and nothing past it."""
    try:
        plan = plan_encoding(size, bound, Fraction(variance), members, BFV_8192)
    except Misuse:
        return
    random, cohort = np.random.default_rng(seed), make_cohort(members)
    target = random.integers(-plan.reach, plan.reach + 1, size)
    target[0] = plan.reach * (1 if seed % 2 else -1)
    vectors = [random.integers(-4 * plan.reach, 4 * plan.reach + 1, size) for _ in range(members - 1)]
    vectors.append(target - np.sum(vectors, axis=0))
    consents = cohort.consents(CONTEXT)
    np.testing.assert_array_equal(open_sum(cohort.sum_words(vectors, plan, CONTEXT), plan, consents), target)
    vectors[-1][0] += np.sign(target[0])  # one past the end
    with pytest.raises(HostileInput, match=r"range|overflows"):
        open_sum(cohort.sum_words(vectors, plan, CONTEXT), plan, consents)


@given(st.integers(1, 200), st.integers(1, 2**20), st.integers(2, 40), st.integers(0, 2**32), SETS)
def test_packing_is_a_sum_of_shifted_lanes(size: int, bound: int, members: int, seed: int, parameters: BfvParameters) -> None:
    plan = exact_plan(size, bound, members, parameters)
    values = np.random.default_rng(seed).integers(-8 * bound, 8 * bound + 1, size)
    padded = [*values.tolist(), *[0] * (plan.slots * plan.lanes - size)]
    expected = [
        sum((padded[slot * plan.lanes + lane] + plan.offset) << (plan.width * lane) for lane in range(plan.lanes))
        % parameters.plain_modulus
        for slot in range(plan.slots)
    ]
    assert pack(values, plan).tolist() == expected


def test_packing_refuses_another_shape_and_overflow() -> None:
    plan = exact_plan(10, 100, 4)
    for shape in ((9,), (11,), (10, 1), ()):
        with pytest.raises(Misuse, match="shape"):
            pack(np.zeros(shape, dtype=np.int64), plan)
    for value in (2**62, -(2**62)):
        with pytest.raises(Misuse, match="too large"):
            pack(np.full(10, value), plan)


@pytest.mark.parametrize(("bound", "lanes"), [(2**40, 1), (2**20, 2), (100, 4)])
def test_a_lane_takes_what_leaves_the_highest_one_below_2_to_the_62(bound: int, lanes: int) -> None:
    plan = exact_plan(lanes, bound, 4)
    assert plan.lanes == lanes
    largest = 2 ** (62 - plan.width * (lanes - 1)) - 1
    for sign in (1, -1):
        values = np.full(lanes, sign * largest - plan.offset)
        expected = sum(sign * largest << (plan.width * lane) for lane in range(lanes))
        assert pack(values, plan).tolist() == [expected % plan.parameters.plain_modulus]
        values[-1] += sign
        with pytest.raises(Misuse, match="too large"):
            pack(values, plan)


@pytest.fixture(scope="module")
def opened() -> tuple[Cohort, EncodingPlan, list[Integers], list[bytes]]:
    """A sum of three members over two ciphertexts."""
    plan = exact_plan(9000 * 2, 2**20, 3)
    assert (plan.lanes, plan.ciphertexts) == (2, 2)
    cohort, vectors = make_cohort(3), _vectors(plan, 3, 0)
    return cohort, plan, vectors, _encrypted_sum(cohort, vectors, plan)


Opened = tuple[Cohort, EncodingPlan, list[Integers], list[bytes]]


def test_decryption_refuses_all_but_the_sum_of_the_cohort(opened: Opened) -> None:
    cohort, plan, _, ciphertexts = opened
    key = KEYS[8192]
    decrypt_sum(ciphertexts, plan, CONTEXT, cohort.names, key, TAG_KEY)
    for wrong in (ciphertexts[:1], ciphertexts[::-1], [*ciphertexts, ciphertexts[0]], [ciphertexts[0]] * 2, []):
        with pytest.raises(HostileInput):
            decrypt_sum(wrong, plan, CONTEXT, cohort.names, key, TAG_KEY)
    for context, names, tag_key in (
        (bytes(32), cohort.names, TAG_KEY),
        (CONTEXT, (*cohort.names[:2], "another"), TAG_KEY),
        (CONTEXT, cohort.names, TagKey(bytes(32))),
    ):
        with pytest.raises(HostileInput, match="tags"):
            decrypt_sum(ciphertexts, plan, context, names, key, tag_key)
    with pytest.raises(HostileInput, match="bytes"):  # other seeds than the cohort has members
        decrypt_sum(ciphertexts, plan, CONTEXT, cohort.names[:2], key, TAG_KEY)


def test_a_single_contribution_is_not_decrypted_as_a_sum(opened: Opened) -> None:
    cohort, plan, vectors, _ = opened
    name = cohort.names[0]
    words = cohort.words(name, vectors[0], plan, CONTEXT)
    own = list(encrypt_contribution(words, plan, CONTEXT, name, KEYS[8192], TAG_KEY))
    with pytest.raises(HostileInput, match="sum of"):  # by its size already
        decrypt_sum(own, plan, CONTEXT, cohort.names, KEYS[8192], TAG_KEY)
    padded = [ciphertext + bytes(64 * (len(cohort.names) - 1)) for ciphertext in own]
    with pytest.raises(HostileInput, match="noise"):
        decrypt_sum(padded, plan, CONTEXT, cohort.names, KEYS[8192], TAG_KEY)
    with pytest.raises(HostileInput, match="tags"):
        decrypt_sum(own, plan, CONTEXT, cohort.names[1:2], KEYS[8192], TAG_KEY)


def test_opening_refuses_what_is_missing_or_damaged(opened: Opened) -> None:
    cohort, plan, vectors, _ = opened
    words, consents = cohort.sum_words(vectors, plan, CONTEXT), cohort.consents(CONTEXT)
    total = open_sum(words, plan, consents)
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, np.sum(vectors, axis=0))
    t = np.uint64(plan.parameters.plain_modulus)
    shifted = [part.copy() for part in words]
    shifted[1][0] = (shifted[1][0] + np.uint64(1)) % t
    beyond = [words[0], words[1].copy()]
    beyond[1][5] = t
    again = [words[0], words[1].copy()]
    again[1][5] += t  # the same word mod t
    longer = [words[0], np.append(words[1], np.uint64(0))]
    gross = [words[0].copy(), words[1]]
    gross[0][7] = (gross[0][7] + np.uint64(2**47)) % t
    cases = [
        (words, consents[:2], "consent of every member"),
        (words, [*consents, consents[0]], "consent of every member"),
        (words, [consents[0], consents[1], bytes(32)], "count lane"),
        (words[:1], consents, "all of its ciphertexts"),
        (words[::-1], consents, "shape"),
        ([part[:-1] for part in words], consents, "shape"),
        ([words[0], words[1][:-1]], consents, "shape"),
        ([words[0], words[1].reshape(1, -1)], consents, "shape"),
        (shifted, consents, "count lane"),
        (beyond, consents, "beyond the modulus"),
        (again, consents, "beyond the modulus"),
        (longer, consents, "shape"),
        (gross, consents, "range|overflows"),
    ]
    for case, keys, why in cases:
        with pytest.raises(HostileInput, match=why):
            open_sum(case, plan, keys)


def test_a_vector_outside_the_plan_is_found() -> None:
    plan, cohort = exact_plan(100, 1000, 3), make_cohort(3)
    vectors = _vectors(plan, 3, 1)
    vectors[1][3] = 20 * plan.bound
    with pytest.raises(HostileInput, match=r"range|overflows"):
        open_sum(cohort.sum_words(vectors, plan, CONTEXT), plan, cohort.consents(CONTEXT))


def test_a_lane_behind_the_vector_must_stay_empty() -> None:
    plan, cohort = exact_plan(5, 2**20, 2), make_cohort(2)
    assert plan.lanes * plan.slots == 6
    longer = exact_plan(6, 2**20, 2)
    vectors = [np.ones(6, dtype=np.int64)] * 2
    words = cohort.sum_words(vectors, longer, CONTEXT)
    np.testing.assert_array_equal(open_sum(words, longer, cohort.consents(CONTEXT)), [2] * 6)
    with pytest.raises(HostileInput, match="lane beyond"):
        open_sum(words, plan, cohort.consents(CONTEXT))


def test_a_missing_member_leaves_nothing_to_open() -> None:
    plan, cohort = exact_plan(50, 100, 3), make_cohort(3)
    vectors = _vectors(plan, 3, 2)
    parts = [cohort.words(name, values, plan, CONTEXT) for name, values in zip(cohort.names, vectors, strict=True)]
    with pytest.raises(HostileInput, match="count lane"):
        open_sum(add_words(parts[:2], plan.parameters.plain_modulus), plan, cohort.consents(CONTEXT))


def test_digests_tell_keys_and_payloads_apart() -> None:
    assert len({keys_digest(b"a", b"b"), keys_digest(b"ab", b""), keys_digest(b"b", b"a"), keys_digest(b"a", b"c")}) == 4
    payloads = [[b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"c", b"ab"], [b"ab", b"c", b""], []]
    assert len({payload_digest(payload) for payload in payloads}) == len(payloads)
    state = hashlib.sha256(b"veilsum/1/payload" + b"\0\0\0\2ab" + b"\0\0\0\1c")
    assert payload_digest([b"ab", b"c"]) == state.digest()
