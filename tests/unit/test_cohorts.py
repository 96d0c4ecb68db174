"""When two cohorts are told apart, and when invited sites can form one that stands beside all earlier ones."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilsum_participant.protocol.cohorts import _possible, difference
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
