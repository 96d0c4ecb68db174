"""Encoding plans against integer arithmetic written out here, and the two fixed parameter sets against number theory."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.parameters import (
    BFV_4096,
    BFV_8192,
    MAX_SUMMANDS,
    TAIL_SIGMAS,
    BfvParameters,
    choose_parameters,
    plan_encoding,
)

SETS = st.sampled_from([BFV_8192, BFV_4096])


def _is_prime(number: int) -> bool:
    """Miller and Rabin with the bases that decide every number below 3.3e24."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


@pytest.mark.parametrize(("parameters", "bits"), [(BFV_8192, 48), (BFV_4096, 42)])
def test_the_plain_modulus_is_the_largest_batching_prime(parameters: BfvParameters, bits: int) -> None:
    step = 2 * parameters.degree
    largest = next(number for number in range((1 << bits) - step + 1, 0, -step) if _is_prime(number))
    assert parameters.plain_modulus == largest
    assert sum(parameters.prime_bits) <= {8192: 218, 4096: 109}[parameters.degree], "128-bit security"


def test_every_context_names_the_same_two_sets() -> None:
    assert BFV_8192.to_context() == {"degree": 8192, "prime_bits": [60, 60], "plain_modulus": 2**48 - 16383}
    assert BFV_4096.to_context() == {"degree": 4096, "prime_bits": [54, 55], "plain_modulus": 2**42 - 24575}


@pytest.mark.parametrize(
    ("parameters", "fresh", "total", "key"),
    [
        (BFV_8192, (65700, 65800, 65714), (131150, 131250, 131169), (131125, 131225, 131144)),
        (BFV_4096, (30700, 31250, 32946), (61400, 62100, 65633), (61400, 62100, 65608)),
    ],
)
def test_every_party_takes_objects_of_the_same_sizes(
    parameters: BfvParameters, fresh: tuple[int, ...], total: tuple[int, ...], key: tuple[int, ...]
) -> None:
    """What one release sends another takes, and both choose the same set: that goes by the largest fresh ciphertext."""
    sizes = (parameters.fresh, parameters.sum, parameters.key)
    assert [(size.least, size.largest, size.content) for size in sizes] == [fresh, total, key]


@pytest.mark.parametrize(
    ("summands", "large", "small"), [(2, 5, 5), (15, 4, 4), (16, 4, 4), (17, 3, 3), (64, 3, 3), (65, 2, 2), (1024, 1, 1)]
)
def test_a_sum_keeps_the_budget_that_its_noise_leaves(summands: int, large: int, small: int) -> None:
    """Bits of q / 2t over the smallest whole number above sqrt(96 * 127/12 * summands)."""
    assert (BFV_8192.least_budget(summands), BFV_4096.least_budget(summands)) == (large, small)


def test_the_range_holds_twelve_standard_deviations_and_the_cohort_1024() -> None:
    assert plan_encoding(1, 5, Fraction(10**4), 3, BFV_8192).reach == 15 + 12 * 101
    assert plan_encoding(1, 5, Fraction(0), 1024, BFV_8192).reach == 5120
    with pytest.raises(Misuse, match="2 to 1024 members"):
        plan_encoding(1, 5, Fraction(0), 1025, BFV_8192)


@given(st.integers(1, 10**6), st.integers(1, 2**46), st.fractions(0, 2**80), st.integers(2, MAX_SUMMANDS), SETS)
def test_every_sum_within_reach_fits_its_lane_and_every_slot_below_the_modulus(
    size: int, bound: int, variance: Fraction, cohort: int, parameters: BfvParameters
) -> None:
    reach = cohort * bound
    if variance:
        # an upper bound of the standard deviation, in integers
        reach += TAIL_SIGMAS * (math.isqrt(math.ceil(variance)) + 1)
    try:
        plan = plan_encoding(size, bound, variance, cohort, parameters)
    except Misuse:
        assert 2 * reach >= parameters.plain_modulus - 2 * cohort, "refused though one lane fits"
        return
    assert plan.reach == reach
    assert plan.reach >= cohort * bound + TAIL_SIGMAS * math.sqrt(variance) * (1 - 1e-12)
    lowest, highest = cohort * plan.offset - plan.reach, cohort * plan.offset + plan.reach
    assert 0 <= lowest <= highest < 1 << plan.width
    lane_sums = [2 * cohort * plan.offset << (plan.width * lane) for lane in range(plan.lanes + 1)]
    assert sum(lane_sums[:-1]) < parameters.plain_modulus <= sum(lane_sums), "as many lanes as fit"
    assert (plan.slots - 1) * plan.lanes < size <= plan.slots * plan.lanes
    assert (plan.ciphertexts - 1) * parameters.data_slots < plan.slots <= plan.ciphertexts * parameters.data_slots


@given(st.integers(1, 2**40), st.integers(2, MAX_SUMMANDS), SETS)
def test_lanes_are_no_wider_than_needed(bound: int, cohort: int, parameters: BfvParameters) -> None:
    assume(4 * bound * cohort < parameters.plain_modulus)
    plan = plan_encoding(10, bound, Fraction(0), cohort, parameters)
    assert plan.width == (2 * bound * cohort).bit_length()
    assert plan.lanes >= (parameters.plain_modulus.bit_length() - 1) // plan.width


def test_a_slot_is_filled_to_the_last_sum_and_no_further() -> None:
    t = BFV_8192.plain_modulus
    largest = (t - 1) // 4  # 2 members: 4 * bound is the largest shifted sum
    assert plan_encoding(1, largest, Fraction(0), 2, BFV_8192).lanes == 1
    with pytest.raises(Misuse, match="does not fit"):
        plan_encoding(1, largest + 1, Fraction(0), 2, BFV_8192)


@pytest.mark.parametrize(
    ("size", "bound", "variance", "cohort"),
    [(0, 1, 0, 2), (1, 0, 0, 2), (1, 1, -1, 2), (1, 1, 0, 1), (1, 1, 0, MAX_SUMMANDS + 1)],
)
def test_what_is_out_of_range_is_refused(size: int, bound: int, variance: int, cohort: int) -> None:
    with pytest.raises(Misuse):
        plan_encoding(size, bound, Fraction(variance), cohort, BFV_8192)


def test_the_cheaper_parameter_set_is_chosen() -> None:
    assert choose_parameters([(100, 10, Fraction(0))], 4) is BFV_4096  # one small ciphertext is half of a large one
    assert choose_parameters([(10**6, 2**20, Fraction(0))], 4) is BFV_8192  # two lanes of 24 bits against one of 42
    assert choose_parameters([(100, 2**42, Fraction(0))], 4) is BFV_8192  # does not fit the smaller modulus
    assert choose_parameters([(100, 10, Fraction(0)), (100, 2**42, Fraction(0))], 4) is BFV_8192
    with pytest.raises(Misuse):
        choose_parameters([(100, 2**50, Fraction(0))], 4)


def test_of_two_sets_that_cost_the_same_the_larger_is_chosen() -> None:
    """1316 ciphertexts of at most 31250 bytes and 625 of at most 65800."""
    sums = [(8000, 2**36, Fraction(0))] * 559 + [(10_000, 2**19, Fraction(0))] * 66
    for parameters, count in ((BFV_4096, 1316), (BFV_8192, 625)):
        assert sum(plan_encoding(*item, 4, parameters).ciphertexts for item in sums) == count
    assert choose_parameters(sums, 4) is BFV_8192
    assert choose_parameters([*sums, (1, 2**36, Fraction(0))], 4) is BFV_4096


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 2**30), st.fractions(0, 2**50)), min_size=1, max_size=4))
def test_the_choice_costs_no_more_than_the_other_set(sums: list[tuple[int, int, Fraction]]) -> None:
    chosen = choose_parameters(sums, 8)

    def cost(parameters: BfvParameters) -> int:
        plans = (plan_encoding(size, bound, variance, 8, parameters) for size, bound, variance in sums)
        return sum(plan.ciphertexts * parameters.fresh.largest for plan in plans)

    try:
        assert cost(chosen) <= min(cost(BFV_8192), cost(BFV_4096))
    except Misuse:
        assert chosen is BFV_8192
