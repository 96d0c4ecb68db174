"""What a study's status counts: releases by who took part in them, their epsilon, and the rounds that are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.federation import make_request, schema_of
from support.studies import agreed
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.status import spent_epsilon
from veilsum_coordinator.service.table import StudyTally
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.study.study import Study


@dataclass
class Ended:
    """A round as far as it is counted."""

    label: str
    cohort: tuple[str, ...]
    phase: RoundPhase = RoundPhase.RELEASED
    number: int = 0
    bytes_received: int = 0
    seconds: int = 0


def _numbered(*rounds: Ended) -> list[Any]:
    for number, item in enumerate(rounds, 1):
        item.number = number
    return list(rounds)


def test_rounds_of_some_count_for_those_alone() -> None:
    """Stations take turns: two rounds of disjoint cohorts are one release for each participant."""
    one, other = ("a", "b"), ("c", "d")
    rounds = _numbered(Ended("local", one), Ended("local", other), Ended("grams", one), Ended("local", one))
    tally = StudyTally()
    assert tally.releases([]) == {}
    assert tally.releases(rounds[:2]) == {"local": 1}
    assert tally.releases(rounds) == {"local": 2, "grams": 1}


def test_only_releases_count_and_a_round_under_way_waits() -> None:
    rounds = _numbered(Ended("x", ("a",), RoundPhase.FAILED), Ended("x", ("a",)), Ended("x", ("a",), RoundPhase.OPENING))
    tally = StudyTally()
    assert tally.releases(rounds) == {"x": 1}
    rounds[2].phase = RoundPhase.RELEASED
    assert tally.releases(rounds) == {"x": 2}
    assert tally.releases(rounds) == {"x": 2}


def _sums(rounds: list[Any]) -> tuple[int, int]:
    return sum(item.bytes_received for item in rounds), sum(item.seconds for item in rounds)


@given(st.lists(st.tuples(st.sampled_from("xy"), st.sets(st.sampled_from("abcd"), min_size=1), st.booleans()), max_size=30))
def test_counting_on_the_way_is_counting_at_the_end(drawn: list[tuple[str, set[str], bool]]) -> None:
    ended = (RoundPhase.FAILED, RoundPhase.RELEASED)
    rounds = _numbered(*(Ended(label, tuple(sorted(cohort)), ended[done]) for label, cohort, done in drawn))
    on_the_way = StudyTally()
    for end in range(len(rounds) + 1):
        if end:  # what a round took grows until it ends
            rounds[end - 1].bytes_received, rounds[end - 1].seconds, phase = 1, 1, rounds[end - 1].phase
            rounds[end - 1].phase = RoundPhase.OPENING
            assert on_the_way.spent(rounds[:end]) == _sums(rounds[:end])
            rounds[end - 1].bytes_received, rounds[end - 1].seconds, rounds[end - 1].phase = 3**end, 5**end, phase
        found = on_the_way.releases(rounds[:end])
        assert on_the_way.spent(rounds[:end]) == _sums(rounds[:end])
    by_hand = {
        label: max(sum(label == item[0] and member in item[1] and item[2] for item in drawn) for member in "abcd")
        for label, _, done in drawn
        if done
    }
    assert found == by_hand
    assert on_the_way.releases(rounds[-1:]) == by_hand  # of a study that is over, the others are let go of
    assert on_the_way.spent(rounds[-1:]) == _sums(rounds)


def _study(epsilon: float | None) -> Study:
    request = make_request(schema_of(3, 2), "fedsgd", epsilon).model_copy(update={"parameters": {"steps": 20}})
    return agreed(request, "abc")


def test_epsilon_so_far_is_that_of_the_ledgers_arithmetic() -> None:
    study = _study(3.0)
    whole = {task.label: task.releases for task in study.tasks}
    assert spent_epsilon(study, whole) == study.privacy.epsilon == spent_epsilon(study)
    assert spent_epsilon(study, {}) == 0.0
    assert spent_epsilon(study, {"gradient": 5}) == pytest.approx(study_epsilon(study, study.privacy.delta, {"gradient": 5}))
    assert 0 < (spent_epsilon(study, {"gradient": 5}) or 0.0) < 3.0
    assert spent_epsilon(_study(None), {"gradient": 5}) is None
