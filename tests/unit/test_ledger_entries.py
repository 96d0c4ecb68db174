"""What entries state: one way to write it, and nothing that has no price."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from support.ledgers import GRID, make_reservation
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.ledger import Budget, Headroom, Kind, Mechanism, Reservation
from veilsum_privacy.ledger.entries import Entry, events_of, read_kind
from veilsum_privacy.mechanism.noise_plan import NoisePlan

SPREAD = Mechanism(GRID, NoisePlan("distributed", 16_000_000, 3, 1))
LOCAL = Mechanism(GRID, NoisePlan("local", 9_000_000, 1, 2), 0.25, 7)
TRAINING = Mechanism(GRID, NoisePlan("training", 4_000_000, 1, 1), 0.5, 100)
NONE = Mechanism(GRID, NoisePlan("none", 0, 1, 1))
KEPT = Mechanism(GRID, NoisePlan("kept", 0, 1, 1))
LARGE = Mechanism(2**60, NoisePlan("distributed", 2**90, 3, 1))


@pytest.mark.parametrize(
    ("mechanism", "name", "variance", "share"),
    [
        (SPREAD, "discrete-gaussian", 16_000_000, [16_000_000, 3]),
        (LOCAL, "discrete-gaussian", 9_000_000, [9_000_000, 1]),
        (TRAINING, "discrete-gaussian", 4_000_000, [4_000_000, 1]),
        (NONE, "none", 0, [0, 1]),
        (KEPT, "post-processing", 0, [0, 1]),
        (LARGE, "discrete-gaussian", 2**90, [2**90, 3]),
    ],
)
def test_a_mechanism_survives_its_entry(mechanism: Mechanism, name: str, variance: int, share: list[int]) -> None:
    stated = mechanism.to_json()
    assert stated == {
        "mechanism": name,
        "noise": mechanism.noise.kind,
        "sensitivity": mechanism.sensitivity,
        "variance": [variance, 1],
        "share_variance": share,
        "honest": mechanism.noise.honest,
        "sampling_rate": mechanism.sampling_rate,
        "steps": mechanism.steps,
    }
    read = json.loads(canonical(stated))
    assert Mechanism.from_json(read, mechanism.noise.colluders) == mechanism


def test_a_mechanism_is_that_of_its_task() -> None:
    declared = SimpleNamespace(grid=GRID, sampling_rate=0.25, steps=7, releases=1, slack=0.0)
    assert Mechanism.of(declared, LOCAL.noise) == LOCAL  # type: ignore[arg-type]


def test_what_a_mechanism_costs() -> None:
    assert SPREAD.event == GaussianEvent(GRID, Fraction(16_000_000), 1.0, 1)
    assert SPREAD.event_alone == GaussianEvent(GRID, Fraction(16_000_000, 3), 1.0, 1)
    assert TRAINING.event == TRAINING.event_alone == GaussianEvent(GRID, Fraction(4_000_000), 0.5, 100)
    for mechanism, free in ((NONE, False), (KEPT, True), (LOCAL, False)):
        assert mechanism.free == free
        assert (mechanism.event is None) == (mechanism.event_alone is None) == (mechanism is not LOCAL)
    counted = {SPREAD: 2, KEPT: 3, LOCAL: 0}
    assert events_of(counted) == ([(SPREAD.event, 2)], False)
    assert events_of(counted, alone=True) == ([(SPREAD.event_alone, 2)], False)
    assert events_of({**counted, NONE: 0}) == ([(SPREAD.event, 2)], False)
    assert events_of({**counted, NONE: 1}) == ([(SPREAD.event, 2)], True)
    assert events_of({}) == ([], False)


@pytest.mark.parametrize("mechanism", [LOCAL, NONE])
@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "laplace"}, {"noise": "loud"}, {"sensitivity": 0}, {"sensitivity": -1}, {"sensitivity": str(GRID)},
        {"sensitivity": 2**62 + 1}, {"variance": [15, 1]}, {"variance": [9_000_000, 2]}, {"variance": []}, {"variance": None},
        {"share_variance": [1, 1]}, {"honest": 0}, {"honest": 2}, {"honest": True}, {"honest": "1"}, {"steps": 0},
        {"steps": True}, {"steps": "7"}, {"steps": 10**9 + 1}, {"sampling_rate": (0.0).hex()}, {"sampling_rate": (1.5).hex()},
        {"sampling_rate": "0.25"}, {"sampling_rate": "nan"}, {"sampling_rate": None}, {"sampling_rate": "0x1p99999"},
        {"more": 1},
    ],
)  # fmt: skip
def test_other_words_for_a_mechanism_are_refused(mechanism: Mechanism, change: dict[str, Any]) -> None:
    right = json.loads(canonical(replace(mechanism, steps=1).to_json()))
    with pytest.raises(HostileInput, match=r"malformed|written by a newer version"):
        Mechanism.from_json(json.loads(canonical(right | change)), mechanism.noise.colluders)
    for name in right:
        with pytest.raises(HostileInput, match="malformed"):
            Mechanism.from_json({other: value for other, value in right.items() if other != name}, 1)
    with pytest.raises(HostileInput, match="malformed"):
        Mechanism.from_json(right, 0)


def release(mechanism: Mechanism, **changes: Any) -> Reservation:
    return replace(make_reservation(), mechanism=mechanism, **changes)


def plan(honest: int, colluders: int) -> Mechanism:
    return Mechanism(GRID, NoisePlan("distributed", 16_000_000, honest, colluders))


@pytest.mark.parametrize(
    ("honest", "cohort_size", "colluders", "fits"),
    [(1, 1, 1, True), (1, 2, 1, True), (2, 2, 1, False), (2, 3, 1, True), (1, 3, 5, True), (2, 3, 5, False), (3, 3, 1, False)],
)
def test_noise_counts_no_more_shares_than_are_honest(honest: int, cohort_size: int, colluders: int, fits: bool) -> None:
    if fits:
        assert release(plan(honest, colluders), cohort_size=cohort_size).cohort_size == cohort_size
        return
    with pytest.raises(Misuse, match="more honest shares"):
        release(plan(honest, colluders), cohort_size=cohort_size)


def test_a_release_is_named_by_digests_and_numbers_from_nought() -> None:
    assert release(LOCAL, round=0, attempt=0).round == 0
    for change in ({"study": bytes(31)}, {"study": bytes(33)}, {"context": bytes(31)}, {"context": bytes(33)}):
        with pytest.raises(Misuse, match="32 bytes"):
            release(LOCAL, **change)
    for change in ({"round": -1}, {"attempt": -1}):
        with pytest.raises(Misuse, match="not negative"):
            release(LOCAL, **change)
    for mechanism in (replace(NONE, sensitivity=0), replace(KEPT, steps=0), replace(LOCAL, sampling_rate=1.25)):
        with pytest.raises(Misuse):
            release(mechanism)


def test_a_release_stands_in_these_columns() -> None:
    made = make_reservation(7, 2)
    assert made.columns() == {
        "study": made.study.hex(),
        "round": 7,
        "attempt": 2,
        "context": made.context.hex(),
        "population": "heart",
        "dataset": "heart-2024",
        "event": canonical(made.mechanism.to_json()).decode(),
        "unit": "record",
        "cohort_size": 4,
        "colluders": 1,
    }


def test_a_budget_has_bounds() -> None:
    for epsilon in (None, 5e-324, 0.5, 1e308):
        for delta in (5e-324, 0.4999):
            assert Budget(epsilon, delta).epsilon == epsilon
    for epsilon in (0.0, -0.5, float("inf"), float("nan")):
        with pytest.raises(Misuse, match="positive and finite"):
            Budget(epsilon, 0.1)
    for delta in (0.0, -0.1, 0.5, 0.75, float("nan")):
        with pytest.raises(Misuse, match="delta"):
            Budget(1.0, delta)
    with pytest.raises(Misuse, match="gaussian, standard, strict"):
        Budget(1.0, 0.1, "loose")  # type: ignore[arg-type]


def test_a_budget_is_stated_in_one_way() -> None:
    half = (0.5).hex()
    assert Budget.from_detail({"epsilon": half}, 0.1) == Budget(0.5, 0.1)
    assert Budget.from_detail({"epsilon": None, "adaptive": "strict"}, 0.1) == Budget(None, 0.1, "strict")
    for detail in ({}, {"epsilon": 1}, {"epsilon": "0.5"}, {"epsilon": half.upper()}, {"epsilon": "inf"}, {"epsilon": "x"}):
        with pytest.raises(HostileInput, match="malformed"):
            Budget.from_detail(detail, 0.1)
    for detail, delta in (({"epsilon": half, "adaptive": "loose"}, 0.1), ({"epsilon": half}, 0.5), ({"epsilon": half}, None)):
        with pytest.raises(HostileInput, match=r"malformed|written by a newer version"):
            Budget.from_detail(detail, delta)  # type: ignore[arg-type]


def test_what_a_budget_admits() -> None:
    budget = Budget(1.0, 0.1)
    assert budget.admits(1.0)
    assert not budget.admits(1.0000001)
    assert Budget(None, 0.1).admits(float("inf"))
    assert Headroom(budget, 0.0, 1.0).admits
    assert not Headroom(budget, 0.0, 2.0).admits


def entry(**changes: Any) -> Entry:
    made = make_reservation()
    known = {each.name: getattr(made, each.name) for each in fields(Reservation)}
    nothing = dict.fromkeys(each.name for each in fields(Entry))
    return Entry(**{**nothing, **known, "kind": Kind.RESERVE, "detail": {}, "delta": 0.1, **changes})


def test_an_entry_describes_a_whole_release_or_none() -> None:
    assert entry().reservation == make_reservation()
    for each in fields(Reservation):
        with pytest.raises(HostileInput, match="describes no complete release"):
            _ = entry(**{each.name: None}).reservation
    with pytest.raises(HostileInput, match="more honest shares"):
        _ = entry(cohort_size=3).reservation


def test_only_a_budgets_entry_sets_one() -> None:
    right = {"kind": Kind.BUDGET, "detail": {"epsilon": (1.0).hex()}}
    assert entry(**right).budget == Budget(1.0, 0.1)
    for change in ({"kind": Kind.RESERVE}, {"delta": None}):
        with pytest.raises(HostileInput, match="sets no budget"):
            _ = entry(**(right | change)).budget


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda: Budget.from_detail({"epsilon": (1.0).hex(), "adaptive": "loose"}, 1e-5), "the budget's rule 'loose'"),
        (lambda: Mechanism.from_json({**_mechanism(), "noise": "laplace"}, 1), "noise of kind 'laplace'"),
        (lambda: Mechanism.from_json({**_mechanism(), "curve": [1, 2]}, 1), "the key 'curve'"),
        (lambda: read_kind("approved"), "entries of kind 'approved'"),
    ],
    ids=["rule", "noise", "key", "kind"],
)
def test_what_a_later_version_writes_is_said_to_be_that(read: Callable[[], object], named: str) -> None:
    """An operator who went back a version reads what to do, and not that the ledger is damaged."""
    with pytest.raises(HostileInput, match="written by a newer version") as caught:
        read()
    assert named in caught.value.message
    assert "Install the newer version" in caught.value.advice


def _mechanism() -> dict[str, Any]:
    return Mechanism(3, NoisePlan("distributed", 100, 2, 1), 1.0, 1).to_json()
