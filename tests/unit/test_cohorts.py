"""When two cohorts are told apart, and when invited sites can form one that stands beside all earlier ones."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilsum_participant.protocol.cohorts import _dump, _load, _possible, _side_by_side, difference, largest_left
from veilsum_participant.settings.config import Policy

A, B, C, D, E = (f"{number:x}" * 64 for number in range(1, 6))
EARLIER = {"a": A, "b": B, "c": C, "d": D}


@pytest.mark.parametrize(
    ("present", "trusted", "apart"),
    [
        (EARLIER, {}, ""),
        ({"a": A, "b": B, "c": C}, {}, "d"),
        ({**EARLIER, "e": E}, {}, "e"),
        ({"a": A, "b": B, "c": C, "e": E}, {}, "de"),
        ({**EARLIER, "d": E}, {}, "d"),  # somebody else may stand behind d's name: the two sums would show the former d
        ({**EARLIER, "d": E}, {"d": E}, ""),  # the operator confirmed the new key
        ({**EARLIER, "d": E}, {"d": D}, "d"),
        ({**EARLIER, "a": E}, {}, ""),  # this site knows that it is itself
        ({"a": A, "b": B, "c": C, "e": D}, {}, ""),  # d under another name, by its key
        ({"a": A, "b": B, "c": D, "d": C}, {}, ""),
    ],
)
def test_who_is_in_one_cohort_only(present: dict[str, str], trusted: dict[str, str], apart: str) -> None:
    assert difference(present, EARLIER, Policy(trusted=trusted), "a") == set(apart)


def test_an_earlier_cohort_that_is_known_by_names_alone() -> None:
    names = dict.fromkeys(EARLIER, "")
    assert difference(EARLIER, names, Policy(), "a") == set()
    assert difference({"a": A, "b": B, "c": C}, names, Policy(), "a") == {"d"}


WEIGHTS = dict.fromkeys(EARLIER, 1.0) | {"d": 0.5}


@pytest.mark.parametrize(
    ("present", "trusted", "found"),
    [
        (EARLIER, {}, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.4, 0.5)]),
        ({"a": A, "b": B, "c": C}, {}, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.0, 0.5)]),
        ({"a": A, "b": B, "c": C, "e": E}, {}, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.5, 0.0), (0.0, 0.5)]),
        ({**EARLIER, "d": E}, {}, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.4, 0.0), (0.0, 0.5)]),
        ({**EARLIER, "d": E}, {"d": E}, [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.4, 0.5)]),
        ({"a": A, "b": B, "c": D, "d": C}, {}, [(0.1, 1.0), (0.2, 1.0), (0.3, 0.5), (0.4, 1.0)]),
    ],
)
def test_whose_weight_was_what(present: dict[str, str], trusted: dict[str, str], found: list[tuple[float, float]]) -> None:
    """Members are found again by their keys, as they are where cohorts are told apart."""
    weights = {name: number / 10 for number, name in enumerate("abcde", 1)}
    one, other = _side_by_side(present, weights, EARLIER, WEIGHTS, Policy(trusted=trusted), "a")
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == found


def test_a_cohort_is_kept_with_its_weights_to_the_bit() -> None:
    weights = {"a": 1.0, "b": 1 / 3, "c": 5e-324, "d": 0.0}
    assert _load(_dump(EARLIER, weights)) == (EARLIER, weights)
    assert _load(_dump(EARLIER)) == (EARLIER, None)
    assert _load(json.dumps(EARLIER)) == (EARLIER, None), "as earlier versions kept it"
    assert _load(json.dumps({"": 1000, **EARLIER})) == (EARLIER, None), "as commits between versions kept it"
    members, unknown = _load(_dump(EARLIER, dict.fromkeys(EARLIER, math.nan)))
    assert members == EARLIER
    assert unknown is not None
    assert [math.isnan(weight) for weight in unknown.values()] == [True] * 4


@pytest.mark.parametrize(
    ("weights", "others", "left"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], 0.0),
        ([0.5, 0.5, 0.5, 0.25], [1.0, 1.0, 1.0, 0.5], 0.0),  # the same equation twice
        ([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], 1.0),  # the last one's vector alone
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0 - 2.0**-40], 1.0),  # however little its weight differs
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0 - 2.0**-53], 0.0),  # but for what rounding takes
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], 1 / 3),
        ([1.0, 1.0, 1.0, 1e-9, 1e-9, 1e-9], [1.0, 1.0, 0.9, 0.0, 0.0, 0.0], 0.1 / (0.1 + 3e-9)),  # others hide nobody
        ([1.0, 1.0, 1.0, 5e-324], [5e-324, 5e-324, 5e-324, 1.0], 1.0),  # ratios beyond all numbers
    ],
)
def test_what_two_sums_leave_of_one_member(weights: list[float], others: list[float], left: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert largest_left(np.array(weights), np.array(others)) == pytest.approx(left, rel=1e-9)


GRID = st.integers(0, 8)


@given(st.lists(st.tuples(GRID, GRID), min_size=2, max_size=6), st.lists(st.fractions(0, 20), max_size=30))
def test_no_multiple_leaves_more_of_one_member(pairs: list[tuple[int, int]], tried: list[Fraction]) -> None:
    """Against exact fractions: at every factor that is tried, and reached at one at which a member drops out."""
    ratios = [Fraction(one, other) for one, other in pairs if other]

    def left(factor: Fraction) -> Fraction:
        parts = [abs(one - factor * other) for one, other in pairs]
        return max(parts) / sum(parts) if any(parts) else Fraction(0)

    found = largest_left(*(np.array(values, dtype=np.float64) / 8.0 for values in zip(*pairs, strict=True)))
    assert found == pytest.approx(float(max(map(left, ratios), default=Fraction(0))))
    alone = max((Fraction(one, max(1, sum(each for each, _ in pairs))) for one, _ in pairs), default=Fraction(0))
    beside = max((Fraction(other, max(1, sum(each for _, each in pairs))) for _, other in pairs), default=Fraction(0))
    for factor in tried if ratios else ():  # what each of both sums shows of one member, weights themselves are held to
        assert float(left(factor)) <= max(found, float(alone), float(beside)) + 1e-12


SITES = "abcdef"


@given(
    invited=st.sets(st.sampled_from(SITES[1:])),
    cohorts=st.sets(st.frozensets(st.sampled_from(SITES[1:]), min_size=1).map(lambda some: some | {"a"}), max_size=5),
    smallest=st.integers(2, 5),
    least=st.integers(2, 5),
)
def test_a_cohort_is_found_where_there_is_one(
    invited: set[str], cohorts: set[frozenset[str]], smallest: int, least: int
) -> None:
    names = sorted({"a", *invited})
    all_cohorts = [
        {"a", *others} for size in range(len(names)) for others in combinations(names[1:], size) if size + 1 >= smallest
    ]
    expected = any(all(len(one ^ set(item)) == 0 or len(one ^ set(item)) >= least for item in cohorts) for one in all_cohorts)
    found = _possible(names, "a", smallest, cohorts, least)
    assert found == (expected or len(names) < smallest)


def test_a_search_that_would_take_long_is_left_to_the_rounds() -> None:
    names = [f"site-{number:03}" for number in range(200)]
    cohorts = {frozenset(names) - {name} for name in names[1:]}
    assert _possible([*names, "z"], "z", 3, cohorts, 200)
