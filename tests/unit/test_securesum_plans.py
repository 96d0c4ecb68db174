"""Plans of sums against integer arithmetic written out here."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.lanes import TAIL_SIGMAS
from veilsum_privacy.securesum.ring import RING_2048, RING_4096, RINGS, RingParameters
from veilsum_privacy.securesum.sum_plan import PIECE, choose_ring, plan_sum

SETS = st.sampled_from(RINGS)
COHORTS = st.integers(2, 1024)


@given(st.integers(1, 10**6), st.integers(1, 2**20), COHORTS, SETS)
def test_no_word_travels_that_the_plan_does_not_use(size: int, bound: int, cohort: int, ring: RingParameters) -> None:
    cohort = min(cohort, ring.most_members)
    plan = plan_sum(size, bound, Fraction(0), cohort, ring)
    share = ((ring.degree + 1) * ring.share_bits(cohort) + 7) // 8
    assert plan.words == 1 + -(-size // plan.lanes)
    assert plan.payload_bytes == share + (plan.words * ring.prime.bit_length() + 7) // 8
    sizes = [plan.piece_bytes(index) for index in range(plan.pieces)]
    assert (sizes[0], sum(sizes)) == (share, plan.payload_bytes)
    parts = [plan.piece_words(index) for index in range(1, plan.pieces)]
    assert [place for part in parts for place in (part.start, part.stop)][::2] == [
        index * PIECE * ring.degree for index in range(len(parts))
    ]
    assert parts[-1].stop == plan.words
    assert all(0 < part.stop - part.start <= PIECE * ring.degree for part in parts)
    assert max(sizes) <= 240 << 10, "a piece must fit a message"


def test_the_range_holds_twelve_standard_deviations_and_the_cohort() -> None:
    assert plan_sum(1, 5, Fraction(10**4), 3, RING_4096).reach == 15 + 12 * 101
    for ring in RINGS:
        assert plan_sum(1, 5, Fraction(0), ring.most_members, ring).reach == 5 * ring.most_members
        with pytest.raises(Misuse, match=f"2 to {ring.most_members} members"):
            plan_sum(1, 5, Fraction(0), ring.most_members + 1, ring)


@given(st.integers(1, 10**6), st.integers(1, 2**46), st.fractions(0, 2**80), COHORTS, SETS)
def test_every_sum_within_reach_fits_its_lane_and_every_word_below_the_modulus(
    size: int, bound: int, variance: Fraction, cohort: int, ring: RingParameters
) -> None:
    cohort = min(cohort, ring.most_members)
    reach = cohort * bound
    if variance:
        # an upper bound of the standard deviation, in integers
        reach += TAIL_SIGMAS * (math.isqrt(math.ceil(variance)) + 1)
    try:
        plan = plan_sum(size, bound, variance, cohort, ring)
    except Misuse:
        assert 2 * reach >= ring.plain_modulus - 2 * cohort, "refused though one lane fits"
        return
    assert plan.reach == reach
    assert plan.reach >= cohort * bound + TAIL_SIGMAS * math.sqrt(variance) * (1 - 1e-12)
    lowest, highest = cohort * plan.offset - plan.reach, cohort * plan.offset + plan.reach
    assert 0 <= lowest <= highest < 1 << plan.width
    lane_sums = [2 * cohort * plan.offset << (plan.width * lane) for lane in range(plan.lanes + 1)]
    assert sum(lane_sums[:-1]) < ring.plain_modulus <= sum(lane_sums), "as many lanes as fit"
    assert (plan.slots - 1) * plan.lanes < size <= plan.slots * plan.lanes


@given(st.integers(1, 2**40), COHORTS, SETS)
def test_lanes_are_no_wider_than_needed(bound: int, cohort: int, ring: RingParameters) -> None:
    cohort = min(cohort, ring.most_members)
    assume(4 * bound * cohort < ring.plain_modulus)
    plan = plan_sum(10, bound, Fraction(0), cohort, ring)
    assert plan.width == (2 * bound * cohort).bit_length()
    assert plan.lanes >= (ring.plain_modulus.bit_length() - 1) // plan.width


@pytest.mark.parametrize("ring", RINGS)
def test_a_word_is_filled_to_the_last_sum_and_no_further(ring: RingParameters) -> None:
    largest = (ring.plain_modulus - 1) // 4  # 2 members: 4 * bound is the largest shifted sum
    assert plan_sum(1, largest, Fraction(0), 2, ring).lanes == 1
    with pytest.raises(Misuse, match="does not fit"):
        plan_sum(1, largest + 1, Fraction(0), 2, ring)


@pytest.mark.parametrize(
    ("size", "bound", "variance", "cohort"), [(0, 1, 0, 2), (1, 0, 0, 2), (1, 1, -1, 2), (1, 1, 0, 1), (1, 1, 0, 1025)]
)
def test_what_is_out_of_range_is_refused(size: int, bound: int, variance: int, cohort: int) -> None:
    with pytest.raises(Misuse):
        plan_sum(size, bound, Fraction(variance), cohort, RING_4096)


def test_the_set_of_fewer_bytes_is_chosen() -> None:
    assert choose_ring([(100, 10, Fraction(0))], 20) is RING_2048
    assert choose_ring([(100, 2**42, Fraction(0))], 20) is RING_4096  # does not fit the smaller modulus
    assert choose_ring([(100, 10, Fraction(0)), (100, 2**42, Fraction(0))], 20) is RING_4096
    with pytest.raises(Misuse):
        choose_ring([(100, 2**50, Fraction(0))], 4)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 2**30), st.fractions(0, 2**50)), min_size=1, max_size=4),
    st.sampled_from([8, 16, 17, 2000]),
)
def test_the_choice_has_no_more_bytes_than_the_other_set(sums: list[tuple[int, int, Fraction]], members: int) -> None:
    most = min(ring.most_members for ring in RINGS if ring.most_members >= members)
    sets = [ring for ring in RINGS if ring.most_members == most]
    costs = {}
    for ring in sets:
        try:
            costs[ring] = sum(plan_sum(*item, members, ring).payload_bytes for item in sums)
        except Misuse:
            continue
    try:
        assert costs[choose_ring(sums, members)] == min(costs.values())
    except Misuse:
        assert not costs
