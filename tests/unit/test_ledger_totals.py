"""Running totals: told apart from single releases, taken back exactly, and in step with a table that others write to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ledgers import GRID, make_reservation
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.accounting.figures import estimated_epsilon, rdp_epsilon
from veilsum_privacy.ledger import Budget, Kind, Mechanism, totals
from veilsum_privacy.ledger.statements import estimate_of
from veilsum_privacy.ledger.sums import Sum, total_epsilon
from veilsum_privacy.ledger.totals import BudgetStep, Follower, ReleaseStep, Standing, Step, Totals
from veilsum_privacy.mechanism.noise_plan import NoisePlan

BUDGETS = [Budget(3.0, 1e-5), Budget(None, 1e-6), Budget(1.0, 1e-5, "strict")]
BUDGET = BUDGETS[0]
SPREAD, LOCAL, EXACT = (make_reservation(kind=kind).mechanism for kind in ("distributed", "local", "none"))
KEPT = Mechanism(GRID, NoisePlan("kept", 0, 1, 1))
MECHANISMS = (SPREAD, LOCAL, KEPT, EXACT)


def epsilon(mechanisms: Iterable[Mechanism], budget: Budget = BUDGET) -> float:
    """As it follows from single releases: what is kept costs nothing, and what has no noise has no bound."""
    left = [item for item in mechanisms if item != KEPT]
    return math.inf if EXACT in left else rdp_epsilon([item.event for item in left], budget.delta, budget.adaptive)


# -- sums


@given(st.lists(st.tuples(st.sampled_from(MECHANISMS), st.integers(-2, 3))), st.sampled_from(BUDGETS))
def test_a_sum_depends_on_what_is_left_alone(changes: list[tuple[Mechanism, int]], budget: Budget) -> None:
    total, left = Sum(), Counter[Mechanism]()
    for mechanism, count in changes:
        if count and left[mechanism] + count >= 0:
            total.add(mechanism, count)
            left[mechanism] += count
    assert total.counts == +left
    assert set(total.counts) == set(+left), "what was taken back altogether is not named"
    copy = total.copy()
    assert total.epsilon(budget) == epsilon(left.elements(), budget)
    for more in ({SPREAD: 2}, {KEPT: 5}, {EXACT: 1}, {EXACT: 0}, {LOCAL: 1, KEPT: 1}, {}):
        assert total.epsilon(budget, more) == epsilon([*left.elements(), *Counter(more).elements()], budget)
    copy.add(SPREAD)
    assert copy.counts[SPREAD] == left[SPREAD] + 1
    assert (total.counts, total.epsilon(budget)) == (+left, epsilon(left.elements(), budget)), "a copy stands apart"
    assert copy.epsilon(budget) == epsilon([*left.elements(), SPREAD], budget)


def test_other_figures_of_a_sum() -> None:
    total = Sum()
    for mechanism in (SPREAD, SPREAD, LOCAL, KEPT):
        total.add(mechanism)
    assert estimate_of(total, BUDGET) == estimated_epsilon([SPREAD.event, SPREAD.event, LOCAL.event], BUDGET.delta)
    alone = [SPREAD.event_alone, SPREAD.event_alone, LOCAL.event]
    for budget in BUDGETS:
        assert total.alone(budget) == rdp_epsilon(alone, budget.delta, budget.adaptive) > total.epsilon(budget)
        assert total_epsilon(total.counts, budget.delta, budget.adaptive) == total.epsilon(budget)
    total.add(EXACT)
    assert (estimate_of(total, BUDGET), total.alone(BUDGET)) == (None, math.inf)


# -- histories


def histories() -> st.SearchStrategy[list[Step]]:
    """Of four releases, one of each mechanism and two of one population, each entry allowed after those before it."""
    moves = st.lists(st.tuples(st.sampled_from(totals.COUNTED), st.integers(0, 3)), max_size=25)
    return moves.map(_allowed)


ALLOWED = {
    Kind.RESERVE: ("",),
    Kind.CHARGE: ("open",),
    Kind.FREE: ("open",),
    Kind.RECOVERY: ("", "open", "freed"),
}


def _allowed(moves: list[tuple[Kind, int]]) -> list[Step]:
    state, steps = [""] * 4, list[Step]()
    for kind, index in moves:
        population = "heart" if index < 2 else "lung"
        if kind is Kind.BUDGET:
            steps.append(BudgetStep(population, BUDGETS[index % 3]))
        elif state[index] in ALLOWED[kind]:
            state[index] = {Kind.RESERVE: "open", Kind.FREE: "freed"}.get(kind, "paid")
            steps.append(ReleaseStep(kind, population, f"context {index}", MECHANISMS[index]))
    return steps


def expected(steps: Iterable[Step], population: str) -> tuple[Budget | None, list[Mechanism], list[Mechanism]]:
    """Budget, what is charged, and what is charged or open, told from each release's last entry."""
    budget, last = None, dict[str, ReleaseStep]()
    for step in steps:
        if step.population == population and isinstance(step, BudgetStep):
            budget = step.budget
        elif step.population == population and isinstance(step, ReleaseStep):
            last[step.context] = step
    charged = [step.mechanism for step in last.values() if step.kind in (Kind.CHARGE, Kind.RECOVERY)]
    held = [step.mechanism for step in last.values() if step.kind is not Kind.FREE]
    return budget, charged, held


def check(standing: Standing, steps: Iterable[Step], population: str) -> None:
    budget, charged, held = expected(steps, population)
    assert standing.budget == budget
    for total, mechanisms in ((standing.charged, charged), (standing.held, held)):
        assert total.counts == Counter(mechanisms)
        assert total.epsilon(BUDGET) == epsilon(mechanisms)


@given(histories())
def test_totals_follow_every_entry_and_take_it_back(steps: list[Step]) -> None:
    running, before = Totals(), []
    opened: list[set[str]] = []
    for number, step in enumerate(steps, 1):
        opened.append(set(running.open))
        before.append(running.apply(step))
        for population in ("heart", "lung"):
            check(running.of(population), steps[:number], population)
    for number in range(len(steps), 0, -1):
        running.undo(steps[number - 1], before.pop())
        assert running.open == opened.pop()
        for population in ("heart", "lung"):
            check(running.of(population), steps[: number - 1], population)
    check(running.of("brain"), steps, "brain")


class Table:
    """A table of entries that a follower asks, and a connection to it."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.steps: list[Step] = []
        self.written = 0
        self.asked: list[int] = []

    def write(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.written += 1
            detail = None
            if isinstance(step, BudgetStep):
                detail = canonical({"epsilon": step.budget.epsilon, "adaptive": step.budget.adaptive}).decode()
                columns = {"kind": "budget", "delta": step.budget.delta, "context": None, "event": None, "colluders": None}
            else:
                event = canonical(step.mechanism.to_json()).decode()
                columns = {"kind": step.kind.value, "delta": 1e-5, "context": step.context, "event": event, "colluders": 1}
            known = {"seq": len(self.rows) + 1, "hash": f"hash {self.written}", "population": step.population}
            self.rows.append(SimpleNamespace(**known, **columns, detail=detail))
            self.steps.append(step)

    def roll_back(self, length: int) -> None:
        del self.rows[length:], self.steps[length:]

    def execute(self, _: Any, parameters: dict[str, int]) -> Any:
        self.asked.append(parameters["first"])
        assert len(self.asked) < 1000, "the follower asks without end"
        found = [row for row in self.rows if row.seq >= parameters["first"]]
        return SimpleNamespace(all=lambda: found)


@pytest.mark.parametrize("trail", [2, 256])
@given(st.lists(st.tuples(histories(), st.integers(0, 12)), max_size=5))
def test_a_follower_stays_in_step_with_its_table(trail: int, writings: list[tuple[list[Step], int]]) -> None:
    """Whatever is written, rolled back and written otherwise between two questions, and however little it remembers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "_TRAIL", trail)
        follower, table = Follower(), Table()
        for steps, length in writings:
            table.roll_back(min(length, len(table.rows)))
            seen = {step.context for step in table.steps if isinstance(step, ReleaseStep)}
            table.write(step for step in steps if isinstance(step, BudgetStep) or step.context not in seen)
            for population in ("heart", "lung"):
                standing = follower.standing(table, population)  # type: ignore[arg-type]
                check(standing, table.steps, population)
                budget, figures = follower.epsilon_held(table, population, {}, {SPREAD: 1})  # type: ignore[arg-type]
                assert budget == standing.budget
                held = expected(table.steps, population)[2]
                assert figures == ([] if budget is None else [epsilon(held, budget), epsilon([*held, SPREAD], budget)])
            assert len(follower._trail) <= trail


def test_a_follower_reads_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last entry that it knows; all of it only where more was rolled back than it remembers."""
    monkeypatch.setattr(totals, "_TRAIL", 4)
    follower, table = Follower(), Table()
    table.write([BudgetStep("heart", budget) for budget in BUDGETS * 4])
    for length, asked in ((12, [0]), (12, [12]), (10, [12, 11, 10]), (4, [10, 9, 8, 0]), (0, [4, 3, 2, 1, 0])):
        table.roll_back(length)
        table.asked.clear()
        check(follower.standing(table, "heart"), table.steps, "heart")  # type: ignore[arg-type]
        assert table.asked == asked


def test_a_follower_that_was_interrupted_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of an entry may have been taken in: nothing is told from that."""
    follower, table = Follower(), Table()
    steps = [BudgetStep("heart", BUDGET), ReleaseStep(Kind.RECOVERY, "heart", "context", SPREAD)]
    table.write(steps)
    add, calls = Sum.add, list[int]()

    def interrupted(self: Sum, mechanism: Mechanism, count: int = 1) -> None:
        calls.append(count)
        if len(calls) == 2:
            raise KeyboardInterrupt
        add(self, mechanism, count)

    monkeypatch.setattr(Sum, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        follower.standing(table, "heart")  # type: ignore[arg-type]
    check(follower.standing(table, "heart"), steps, "heart")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "damage"),
    [
        (1, {"population": None}),
        (1, {"population": b"heart"}),
        (1, {"delta": None}),
        (1, {"detail": None}),
        (1, {"detail": "[]"}),
        (2, {"kind": "gift"}),
        (2, {"population": None}),
        (2, {"context": None}),
        (2, {"context": 5}),
        (2, {"event": None}),
        (2, {"event": "{}"}),
        (2, {"colluders": None}),
    ],
)
def test_what_a_follower_cannot_read_it_does_not_count(number: int, damage: dict[str, Any]) -> None:
    follower, table = Follower(), Table()
    table.write([BudgetStep("heart", BUDGET), ReleaseStep(Kind.RESERVE, "heart", "context", SPREAD)])
    vars(table.rows[number - 1]).update(damage)
    for _ in range(2):
        with pytest.raises(HostileInput):
            follower.standing(table, "heart")  # type: ignore[arg-type]
        with pytest.raises(HostileInput):
            follower.epsilon_held(table, "heart", {})  # type: ignore[arg-type]
