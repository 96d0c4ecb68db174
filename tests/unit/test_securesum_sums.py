"""Packing, masks and whole sums: exact against numpy's integers, with encryption and by masks alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.one_time import Members, make_members
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.securesum.lanes import pack_lanes
from veilsum_privacy.securesum.opening import open_words, unmask_values
from veilsum_privacy.securesum.ring import RING_2048, RING_4096, RINGS, RingParameters
from veilsum_privacy.securesum.sum_plan import OneTimePlan, plan_sum

Integers = NDArray[np.int64]
SETS = st.sampled_from(RINGS)


def vectors_of(members: Members, seed: int) -> list[Integers]:
    """Random vectors within the bound, with both extremes in every one."""
    random, plan = np.random.default_rng(seed), members.plan
    vectors = [random.integers(-plan.bound, plan.bound + 1, plan.size) for _ in members.names]
    for vector in vectors:
        vector[0], vector[-1] = plan.bound, -plan.bound
    return vectors


def encrypted(members: Members, vectors: list[Integers]) -> Integers:
    """One whole sum with encryption."""
    total = members.add([members.contribute(*item) for item in zip(members.names, vectors, strict=True)])
    words = open_words(total, members.plan, members.context, members.consents)
    return unmask_values(words, members.plan, members.context, members.consents)


def masked(members: Members, vectors: list[Integers], plan: OneTimePlan | None = None) -> Integers:
    """One sum by masks alone; opened by another plan, if one is given."""
    return unmask_values(members.masked_total(vectors), plan or members.plan, members.context, members.consents)


@pytest.mark.parametrize(
    ("count", "size", "bound", "ring"),
    [
        (2, 1, 1, RING_4096),
        (2, 1, 2**45, RING_4096),
        (3, 40_000, 1000, RING_2048),
        (17, 5000, 2**17, RING_4096),
        (4, 200_000, 2**20, RING_4096),
        (40, 1000, 2**16, RING_2048),
        (64, 1, 2**31, RING_2048),
    ],
)
def test_encrypted_sums_are_exact(count: int, size: int, bound: int, ring: RingParameters) -> None:
    members = make_members(count, size, bound, ring)
    vectors = vectors_of(members, size)
    np.testing.assert_array_equal(encrypted(members, vectors), np.sum(vectors, axis=0))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 6), st.integers(1, 3000), st.integers(0, 40), st.integers(0, 2**32), SETS)
def test_encrypted_sums_of_any_small_shape_are_exact(
    count: int, size: int, bits: int, seed: int, ring: RingParameters
) -> None:
    bound = int(np.random.default_rng(seed).integers(1 << bits, 2 << bits))
    try:
        members = make_members(count, size, bound, ring, seed)
    except Misuse:
        return  # the sum does not fit a word of this parameter set
    vectors = vectors_of(members, seed)
    np.testing.assert_array_equal(encrypted(members, vectors), np.sum(vectors, axis=0))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 16), st.integers(1, 20_000), st.integers(0, 40), st.integers(0, 2**32), SETS)
def test_masked_sums_of_any_shape_are_exact(count: int, size: int, bits: int, seed: int, ring: RingParameters) -> None:
    try:
        members = make_members(count, size, 1 << bits, ring, seed)
    except Misuse:
        return
    vectors = vectors_of(members, seed)
    np.testing.assert_array_equal(masked(members, vectors), np.sum(vectors, axis=0))


@pytest.mark.parametrize(("count", "size"), [(2, 300_000), (3, 300_000), (8, 150_000), (33, 11_000), (64, 20_000), (64, 1)])
def test_masked_sums_of_large_cohorts_and_vectors_are_exact(count: int, size: int) -> None:
    members = make_members(count, size, 2**16, RING_4096)
    vectors = vectors_of(members, count)
    np.testing.assert_array_equal(masked(members, vectors), np.sum(vectors, axis=0))


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(1, 50), st.integers(1, 2**30), st.integers(0, 2**62), st.integers(0, 2**32))
def test_sums_at_both_ends_of_the_reach_open(count: int, size: int, bound: int, variance: int, seed: int) -> None:
    """Noise takes single values past any bound; whatever adds up within the reach opens exactly, and nothing past it."""
    try:
        members = make_members(count, size, bound, RING_4096, seed, Fraction(variance))
    except Misuse:
        return
    random, reach = np.random.default_rng(seed), members.plan.reach
    target = random.integers(-reach, reach + 1, size)
    target[0] = reach * (1 if seed % 2 else -1)
    vectors = [random.integers(-4 * reach, 4 * reach + 1, size) for _ in range(count - 1)]
    vectors.append(target - np.sum(vectors, axis=0))
    np.testing.assert_array_equal(masked(members, vectors), target)
    vectors[-1][0] += np.sign(target[0])  # one past the end
    with pytest.raises(HostileInput, match=r"range|overflows"):
        masked(members, vectors)


def packed(values: Integers, plan: OneTimePlan) -> list[int]:
    found: list[int] = pack_lanes(values, plan, plan.offset, plan.ring.plain_modulus).tolist()
    return found


@given(st.integers(1, 200), st.integers(1, 2**20), st.integers(2, 40), st.integers(0, 2**32), SETS)
def test_packing_is_a_sum_of_shifted_lanes(size: int, bound: int, count: int, seed: int, ring: RingParameters) -> None:
    count = min(count, ring.most_members)
    plan = plan_sum(size, bound, Fraction(0), count, ring)
    values = np.random.default_rng(seed).integers(-8 * bound, 8 * bound + 1, size)
    padded = [*values.tolist(), *[0] * (plan.slots * plan.lanes - size)]
    expected = [
        sum((padded[slot * plan.lanes + lane] + plan.offset) << (plan.width * lane) for lane in range(plan.lanes))
        % ring.plain_modulus
        for slot in range(plan.slots)
    ]
    assert packed(values, plan) == expected


def test_packing_refuses_another_shape_and_overflow() -> None:
    plan = plan_sum(10, 100, Fraction(0), 4, RING_4096)
    for shape in ((9,), (11,), (10, 1), ()):
        with pytest.raises(Misuse, match="shape"):
            packed(np.zeros(shape, dtype=np.int64), plan)
    for value in (2**62, -(2**62)):
        with pytest.raises(Misuse, match="too large"):
            packed(np.full(10, value), plan)


@pytest.mark.parametrize(("bound", "lanes"), [(2**40, 1), (2**20, 2), (100, 4)])
def test_a_lane_takes_what_leaves_the_highest_one_below_2_to_the_62(bound: int, lanes: int) -> None:
    plan = plan_sum(lanes, bound, Fraction(0), 4, RING_4096)
    assert plan.lanes == lanes
    largest = 2 ** (62 - plan.width * (lanes - 1)) - 1
    for sign in (1, -1):
        values = np.full(lanes, sign * largest - plan.offset)
        expected = sum(sign * largest << (plan.width * lane) for lane in range(lanes))
        assert packed(values, plan) == [expected % plan.ring.plain_modulus]
        values[-1] += sign
        with pytest.raises(Misuse, match="too large"):
            packed(values, plan)


def test_opening_refuses_what_is_missing_or_damaged() -> None:
    members = make_members(3, 9000, 2**20, RING_4096)
    plan, context, consents = members.plan, members.context, members.consents
    words, t = members.masked_total(vectors_of(members, 0)), np.uint64(plan.ring.plain_modulus)
    assert unmask_values(words, plan, context, consents).dtype == np.int64
    shifted, gross = words.copy(), words.copy()
    shifted[0] = (shifted[0] + np.uint64(1)) % t
    gross[7] = (gross[7] + np.uint64(2**47)) % t
    cases = [
        (words, consents[:2], "consent of every member"),
        (words, [*consents, consents[0]], "consent of every member"),
        (words, [consents[0], consents[1], bytes(32)], "masks did not cancel"),
        (words[:-1], consents, "all of its words"),
        (np.append(words, np.uint64(0)), consents, "all of its words"),
        (words.reshape(1, -1), consents, "all of its words"),
        (shifted, consents, "masks did not cancel"),
        (gross, consents, "range|overflows"),
    ]
    for case, given_, why in cases:
        with pytest.raises(HostileInput, match=why):
            unmask_values(case, plan, context, given_)


def test_a_vector_outside_the_plan_is_found() -> None:
    members = make_members(3, 100, 1000)
    vectors = vectors_of(members, 1)
    vectors[1][3] = 20 * members.plan.bound
    with pytest.raises(HostileInput, match=r"range|overflows"):
        masked(members, vectors)


def test_a_lane_behind_the_vector_must_stay_empty() -> None:
    members = make_members(2, 6, 2**20, RING_4096)
    plan, vectors = plan_sum(5, 2**20, Fraction(0), 2, RING_4096), [np.ones(6, dtype=np.int64)] * 2
    assert plan.lanes * plan.slots == 6
    np.testing.assert_array_equal(masked(members, vectors), [2] * 6)
    with pytest.raises(HostileInput, match="lane beyond"):
        masked(members, vectors, plan)


def test_a_missing_member_leaves_nothing_to_open() -> None:
    members = make_members(3, 50, 100)
    vectors = vectors_of(members, 2)
    total = np.zeros(members.plan.words, dtype=np.uint64)
    for name, values in zip(members.names[:2], vectors, strict=False):
        total = (total + members.mask(name, values)) % np.uint64(members.ring.plain_modulus)
    with pytest.raises(HostileInput, match="masks did not cancel"):
        unmask_values(total, members.plan, members.context, members.consents)
