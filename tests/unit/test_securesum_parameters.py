"""Encoding plans against integer arithmetic written out here, and the two fixed parameter sets against number theory."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.lanes import TAIL_SIGMAS
from veilsum_privacy.securesum.parameters import (
    BFV_4096,
    BFV_8192,
    MAX_SUMMANDS,
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
    ("parameters", "key", "weight", "width"),
    [(BFV_8192, (131125, 131225, 131144), 65800, 8), (BFV_4096, (61400, 62100, 65608), 31250, 7)],
)
def test_every_party_takes_objects_of_the_same_sizes(
    parameters: BfvParameters, key: tuple[int, ...], weight: int, width: int
) -> None:
    """What one release sends another takes, and both choose the same set: contexts of earlier versions hang on that."""
    assert (parameters.key.least, parameters.key.largest, parameters.key.content) == key
    assert (parameters.weight, parameters.coefficient_bytes) == (weight, width)
    assert parameters.fresh_bytes(268) == 268 * width + 64
    assert parameters.sum_bytes(268, 64) == 268 * width + 64 * 64
    assert parameters.sum_bytes(268, 65) == (268 + parameters.degree) * width


@pytest.mark.parametrize("parameters", [BFV_8192, BFV_4096])
def test_the_prime_is_one_of_its_bits_that_splits(parameters: BfvParameters) -> None:
    prime = parameters.prime
    assert prime.bit_length() == parameters.prime_bits[0]
    assert prime % (2 * parameters.degree) == 1
    assert _is_prime(prime)


@pytest.mark.parametrize(("summands", "most"), [(2, 46), (15, 124), (16, 128), (64, 255), (65, 257), (1024, 1020)])
def test_a_sum_may_show_the_noise_of_its_summands(summands: int, most: int) -> None:
    """The smallest whole number above sqrt(96 * 127/12 * summands); decryption fails at q / 2t, far beyond."""
    for parameters in (BFV_8192, BFV_4096):
        assert parameters.most_noise(summands) == most
        assert 2 * (most + 2) * parameters.plain_modulus < parameters.prime


@given(st.integers(1, 10**6), st.integers(1, 2**20), st.integers(2, MAX_SUMMANDS), SETS)
def test_no_word_travels_that_the_plan_does_not_use(size: int, bound: int, cohort: int, parameters: BfvParameters) -> None:
    plan = plan_encoding(size, bound, Fraction(0), cohort, parameters)
    words = [plan.words(index) for index in range(plan.ciphertexts)]
    assert sum(words) == plan.slots + plan.ciphertexts
    assert all(count == parameters.degree - 2 for count in words[:-1])
    assert 2 <= words[-1] <= parameters.degree - 2
    width = parameters.coefficient_bytes
    assert plan.upload_bytes == (plan.slots + 3 * plan.ciphertexts) * width + 64 * plan.ciphertexts
    second = 64 * cohort if cohort <= 64 else parameters.degree * width
    assert plan.sum_bytes == (plan.slots + 3 * plan.ciphertexts) * width + second * plan.ciphertexts


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
    """1316 ciphertexts of weight 31250 and 625 of 65800."""
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
        return sum(plan.ciphertexts * parameters.weight for plan in plans)

    try:
        assert cost(chosen) <= min(cost(BFV_8192), cost(BFV_4096))
    except Misuse:
        assert chosen is BFV_8192
