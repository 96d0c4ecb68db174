"""The ledger: what is reserved, charged, freed, refused, and that budgets hold, also between processes."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import time
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import Connection, create_mock_engine, text

from support.ledgers import OTHER_STUDY, STUDY, check_signature, make_reservation, open_ledger
from veilsum_privacy.accounting import prv_epsilon, rdp_epsilon
from veilsum_privacy.database import open_database, transaction
from veilsum_privacy.errors import Misuse, Refusal, RefusalCode, StateError
from veilsum_privacy.ledger import Budget, Kind, Ledger, LedgerReader, Reservation
from veilsum_privacy.noise import plan_noise

DELTA = 1e-5


def give_budget(ledger: Ledger, epsilon: float | None = 3.0, population: str = "heart") -> None:
    with transaction(ledger._engine) as connection:
        ledger.set_budget(connection, population, epsilon, DELTA, reason="ethics 12/24", operator="dr. privacy")


def reserve(ledger: Ledger, reservation: Reservation) -> int:
    with transaction(ledger._engine) as connection:
        return ledger.reserve(connection, reservation)


def charge(ledger: Ledger, reservation: Reservation) -> int:
    with transaction(ledger._engine) as connection:
        return ledger.charge(connection, reservation.context)


def free(ledger: Ledger, reservation: Reservation) -> int:
    with transaction(ledger._engine) as connection:
        return ledger.free(connection, reservation.context)


def see(ledger: Ledger, reservation: Reservation) -> int:
    with transaction(ledger._engine) as connection:
        return ledger.release_seen(connection, reservation.context, b"\1" * 32)


@pytest.fixture
def ledger() -> Ledger:
    ledger = open_ledger(":memory:")
    give_budget(ledger)
    return ledger


def test_a_round_from_reservation_to_release(ledger: Ledger) -> None:
    item = make_reservation()
    assert reserve(ledger, item) == 3
    assert charge(ledger, item) == 4
    assert see(ledger, item) == 5
    kinds = [entry.kind for entry in ledger.entries()]
    assert kinds == [Kind.GENESIS, Kind.BUDGET, Kind.RESERVE, Kind.CHARGE, Kind.RELEASE_SEEN]
    charged = ledger.entries(kind=Kind.CHARGE)[0]
    assert charged.reservation == item
    assert charged.mechanism == item.mechanism
    assert (charged.delta, charged.unit, charged.cohort_size, charged.colluders) == (DELTA, "record", 4, 1)
    assert ledger.entries(kind=Kind.BUDGET)[0].budget == Budget(3.0, DELTA)
    assert ledger.entries(kind=Kind.RELEASE_SEEN)[0].detail == {"digest": "01" * 32}
    assert ledger.head() == ledger.entries()[-1].hash
    assert ledger.verify(check_signature, head=ledger.head()) == 5


def test_the_recorded_event_says_all_that_epsilon_needs(ledger: Ledger) -> None:
    reserve(ledger, make_reservation(multiplier=8.0, rate=0.01, steps=50))
    with ledger._engine.connect() as connection:
        event = connection.execute(text("SELECT event FROM ledger WHERE kind = 'reserve'")).scalar_one()
    assert json.loads(event) == {
        "mechanism": "discrete-gaussian",
        "noise": "distributed",
        "sensitivity": 1000,
        "variance": [64_000_000, 1],
        "share_variance": [64_000_000, 3],
        "honest": 3,
        "sampling_rate": (0.01).hex(),
        "steps": 50,
    }


def test_spending_is_derived_from_events(ledger: Ledger) -> None:
    items = [
        make_reservation(1),
        make_reservation(2, multiplier=9.0),
        make_reservation(3, multiplier=1.5, rate=0.02, steps=20),
    ]
    give_budget(ledger, 50.0)
    for item in items:
        reserve(ledger, item)
    charge(ledger, items[0])
    charge(ledger, items[2])
    events = [item.mechanism.event for item in items]
    spending = ledger.spending("heart")
    assert spending.budget == Budget(50.0, DELTA)
    assert spending.spent == rdp_epsilon([events[0], events[2]], DELTA)
    assert spending.estimate == prv_epsilon([events[0], events[2]], DELTA)
    assert spending.reserved == rdp_epsilon(events, DELTA)
    assert spending.left == 50.0 - spending.reserved
    assert spending.releases == 2
    free(ledger, items[1])
    assert ledger.spending("heart").reserved == spending.spent


def test_every_call_can_be_repeated(ledger: Ledger) -> None:
    item, other = make_reservation(1), make_reservation(2)
    assert reserve(ledger, item) == reserve(ledger, item)
    assert charge(ledger, item) == charge(ledger, item)
    assert reserve(ledger, item) < charge(ledger, item)
    assert see(ledger, item) == see(ledger, item)
    reserve(ledger, other)
    assert free(ledger, other) == free(ledger, other)
    assert len(ledger.entries()) == 7
    assert ledger.spending("heart").releases == 1


def test_illegal_transitions(ledger: Ledger) -> None:
    charged, freed, new = make_reservation(1), make_reservation(2), make_reservation(3)
    reserve(ledger, charged)
    reserve(ledger, freed)
    charge(ledger, charged)
    free(ledger, freed)
    before = ledger.head()
    for call, item in [
        (charge, new),
        (free, new),
        (see, new),
        (free, charged),
        (charge, freed),
        (see, freed),
        (reserve, freed),
    ]:
        with pytest.raises(StateError):
            call(ledger, item)
    assert ledger.head() == before


def test_a_round_is_charged_once_whatever_the_attempt(ledger: Ledger) -> None:
    first, second, third = (make_reservation(1, attempt) for attempt in (1, 2, 3))
    reserve(ledger, first)
    reserve(ledger, second)
    charge(ledger, first)
    with pytest.raises(StateError, match="charged under another context"):
        charge(ledger, second)
    with pytest.raises(StateError, match="charged before"):
        reserve(ledger, third)
    reserve(ledger, make_reservation(1, study=OTHER_STUDY))
    free(ledger, second)
    assert ledger.spending("heart").releases == 1


def test_one_context_one_release_and_one_attempt_one_context(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    with pytest.raises(StateError, match="for another release"):
        reserve(ledger, Reservation(**{**vars(item), "dataset": "other"}))
    with pytest.raises(StateError, match="under another context"):
        reserve(ledger, make_reservation(salt=b"a second cohort"))


def test_the_budget_holds_and_open_reservations_count(ledger: Ledger) -> None:
    item = make_reservation(1, multiplier=2.0)
    single = rdp_epsilon([item.mechanism.event], DELTA)
    double = rdp_epsilon([item.mechanism.event] * 2, DELTA)
    give_budget(ledger, (single + double) / 2)
    reserve(ledger, item)
    second = make_reservation(2, multiplier=2.0)
    with pytest.raises(Refusal) as caught:
        reserve(ledger, second)
    assert caught.value.code is RefusalCode.BUDGET
    free(ledger, item)
    reserve(ledger, second)
    charge(ledger, second)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(3, multiplier=2.0, study=OTHER_STUDY))
    assert ledger.verify(check_signature) == 7


def test_a_budget_met_exactly_is_enough(ledger: Ledger) -> None:
    items = [make_reservation(number, multiplier=3.0 + number) for number in range(1, 6)]
    give_budget(ledger, rdp_epsilon([item.mechanism.event for item in items], DELTA))
    for item in reversed(items):
        reserve(ledger, item)
        charge(ledger, item)
    assert ledger.spending("heart").left == 0


def test_populations_have_their_own_budgets(ledger: Ledger) -> None:
    with pytest.raises(Refusal, match="no budget"):
        reserve(ledger, make_reservation(population="lung"))
    give_budget(ledger, 100.0, "lung")
    reserve(ledger, make_reservation(population="lung"))
    assert ledger.spending("heart").reserved == 0
    assert ledger.populations() == ["heart", "lung"]
    assert ledger.budget("brain") is None
    with pytest.raises(StateError, match="no budget"):
        ledger.spending("brain")


def test_a_lowered_budget_stops_what_is_open(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    give_budget(ledger, 0.5)
    with pytest.raises(Refusal):
        charge(ledger, item)
    free(ledger, item)
    give_budget(ledger, 3.0)
    reserve(ledger, make_reservation(1, 2))
    charge(ledger, make_reservation(1, 2))
    assert ledger.verify() == len(ledger.entries())


def test_a_release_without_noise_needs_a_budget_without_bound(ledger: Ledger) -> None:
    exact = make_reservation(kind="none")
    assert exact.mechanism.event is None
    with pytest.raises(Refusal):
        reserve(ledger, exact)
    give_budget(ledger, None)
    reserve(ledger, exact)
    charge(ledger, exact)
    spending = ledger.spending("heart")
    assert (spending.spent, spending.reserved, spending.left, spending.estimate) == (math.inf, math.inf, math.inf, None)
    give_budget(ledger, 1000.0)
    with pytest.raises(Refusal):
        reserve(ledger, make_reservation(2))
    assert ledger.verify() == len(ledger.entries())


def test_a_refusal_is_recorded_with_its_figures(ledger: Ledger) -> None:
    give_budget(ledger, 0.5)
    item = make_reservation()
    with pytest.raises(Refusal) as caught:
        reserve(ledger, item)
    assert not ledger.entries(kind=Kind.RESERVE)
    with transaction(ledger._engine) as connection:
        ledger.refuse(connection, item, caught.value)
    entry = ledger.entries(kind=Kind.REFUSAL)[0]
    assert entry.reservation == item
    assert entry.detail["code"] == "budget-exceeded"
    figures = {name: float.fromhex(value) for name, value in entry.detail["figures"].items()}
    assert figures == {"budget": 0.5, "reserved": 0.0, "after": rdp_epsilon([item.mechanism.event], DELTA)}
    assert ledger.spending("heart").reserved == 0
    with transaction(ledger._engine) as connection:
        ledger.refuse(connection, make_reservation(2, population="nowhere"), caught.value)
    assert "figures" not in ledger.entries(kind=Kind.REFUSAL)[1].detail
    assert ledger.verify(check_signature) == 5


def test_a_failed_transaction_leaves_nothing(ledger: Ledger) -> None:
    item = make_reservation()
    reserve(ledger, item)
    before = ledger.head()

    def fail() -> None:
        with transaction(ledger._engine) as connection:
            ledger.charge(connection, item.context)
            assert ledger.head(connection) != before
            assert ledger.spending("heart", connection).releases == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert ledger.head() == before
    assert ledger.spending("heart").releases == 0


def test_lost_charges(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        reserve(ledger, make_reservation(number, multiplier=20))
        charge(ledger, make_reservation(number, multiplier=20))
    assert ledger.lost_charges(STUDY) == 3
    see(ledger, make_reservation(2, multiplier=20))
    assert ledger.lost_charges(STUDY) == 2
    assert ledger.lost_charges(OTHER_STUDY) == 0


def test_filters(ledger: Ledger) -> None:
    one, other = make_reservation(1, multiplier=9), make_reservation(1, multiplier=9, study=OTHER_STUDY)
    for item in (one, other):
        reserve(ledger, item)
        charge(ledger, item)
    assert [entry.seq for entry in ledger.entries(study=OTHER_STUDY)] == [5, 6]
    assert [entry.seq for entry in ledger.entries(context=one.context, kind=Kind.CHARGE)] == [4]
    assert [entry.seq for entry in ledger.entries(population="heart", first=4)] == [4, 5, 6]


def test_export_is_canonical_and_complete(ledger: Ledger) -> None:
    reserve(ledger, make_reservation())
    stream = StringIO()
    assert ledger.export_jsonl(stream) == 3
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3]
    assert len(lines[0]["detail"]["random"]) == 64
    assert lines[2]["event"]["honest"] == 3
    assert bytes.fromhex(lines[2]["hash"]) == ledger.head()


@pytest.mark.parametrize("statement", [
    "UPDATE ledger SET delta = 0.4 WHERE seq = 2",
    "DELETE FROM ledger WHERE seq = 3",
    "INSERT OR REPLACE INTO ledger SELECT * FROM ledger WHERE seq = 3",
    "INSERT INTO ledger (seq, time, kind, detail, previous, hash, signature) VALUES (9, 0, 'charge', '{}', 'a', 'b', 'c')",
    "INSERT OR REPLACE INTO ledger SELECT 5, time, kind, study, round, attempt, population, dataset, event, delta, unit, "
    "cohort_size, colluders, context, detail, 'p', 'h', signature FROM ledger WHERE seq = 4",
])  # fmt: skip
def test_the_table_is_append_only(ledger: Ledger, statement: str) -> None:
    reserve(ledger, make_reservation())
    charge(ledger, make_reservation())
    before = [entry.hash for entry in ledger.entries()]
    with pytest.raises(StateError, match=r"append-only|UNIQUE"), transaction(ledger._engine) as connection:
        connection.execute(text(statement))
    assert [entry.hash for entry in ledger.entries()] == before


def test_the_database_itself_charges_a_round_once(ledger: Ledger) -> None:
    for attempt in (1, 2):
        reserve(ledger, make_reservation(1, attempt))
    charge(ledger, make_reservation(1, 1))
    copy = (
        "INSERT INTO ledger SELECT 6, time, 'charge', study, round, attempt, population, dataset, event, delta, unit, "
        "cohort_size, colluders, context, detail, 'p', 'h', signature FROM ledger WHERE seq = 4"
    )
    with pytest.raises(StateError, match="UNIQUE"), transaction(ledger._engine) as connection:
        connection.execute(text(copy))


def test_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    ledger = open_ledger(path)
    give_budget(ledger)
    head = ledger.head()
    assert open_ledger(path).head() == head
    assert LedgerReader(open_database(path)).verify(check_signature) == 2
    assert open_ledger(tmp_path / "other.db", "south").entries()[0].hash != ledger.entries()[0].hash
    with pytest.raises(StateError, match="that of north, not of south"):
        open_ledger(path, "south")
    with transaction(ledger._engine) as connection:
        connection.execute(text("DROP TRIGGER ledger_no_update"))
        connection.execute(text("UPDATE ledger SET time = 0 WHERE seq = 1"))
    with pytest.raises(StateError, match="first entry is damaged"):
        open_ledger(path)


def test_only_sqlite() -> None:
    with pytest.raises(Misuse, match="SQLite"):
        LedgerReader(create_mock_engine("postgresql://", lambda *_: None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"study": b"short"},
        {"context": b""},
        {"round": -1},
        {"sensitivity": 0},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"steps": 0},
        {"cohort_size": 3},  # three honest shares of a cohort of three, with one colluder
        {"noise": plan_noise("none", 0, 4, 1), "sensitivity": -1},
    ],
)
def test_reservations_that_cannot_be_priced_cannot_be_made(change: dict) -> None:
    with pytest.raises(Misuse):
        Reservation(**{**vars(make_reservation()), **change})


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, DELTA), (-1.0, DELTA), (math.nan, DELTA), (math.inf, DELTA), (1.0, 0.0), (1.0, 0.5)],
)
def test_budgets_out_of_range(ledger: Ledger, epsilon: float, delta: float) -> None:
    with pytest.raises(Misuse), transaction(ledger._engine) as connection:
        ledger.set_budget(connection, "heart", epsilon, delta, reason="r", operator="o")


def test_a_budget_needs_a_reason(ledger: Ledger) -> None:
    with pytest.raises(Misuse), transaction(ledger._engine) as connection:
        ledger.set_budget(connection, "heart", 1.0, DELTA, reason="", operator="o")


class Lifecycle(RuleBasedStateMachine):
    """Random calls against a model that holds sets: the ledger agrees, and its own verification passes at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = open_ledger(":memory:")
        self.budget: float = 3.0
        give_budget(self.ledger, self.budget)
        self.state: dict[tuple[int, int], str] = {}

    def _epsilon(self, *extra: Reservation) -> float:
        paid = [make_reservation(*key) for key, state in self.state.items() if state != "free"]
        return rdp_epsilon([item.mechanism.event for item in (*paid, *extra)], DELTA)

    def _outcome(self, call: object, item: Reservation) -> str:
        try:
            call(self.ledger, item)  # type: ignore[operator]
        except (Refusal, StateError) as error:
            return type(error).__name__
        return "done"

    keys = st.tuples(st.integers(1, 4), st.integers(1, 2))

    @rule(key=keys)
    def reserve(self, key: tuple[int, int]) -> None:
        item = make_reservation(*key)
        state = self.state.get(key)
        if state in ("reserve", "charge"):
            expected = "done"
        elif state == "free" or any(k[0] == key[0] and s == "charge" for k, s in self.state.items()):
            expected = "StateError"
        else:
            expected = "done" if self._epsilon(item) <= self.budget else "Refusal"
        assert self._outcome(reserve, item) == expected
        if expected == "done" and state is None:
            self.state[key] = "reserve"

    @rule(key=keys)
    def charge(self, key: tuple[int, int]) -> None:
        state = self.state.get(key)
        if state == "reserve":
            if any(k[0] == key[0] and s == "charge" for k, s in self.state.items()):
                expected = "StateError"
            else:
                expected = "done" if self._epsilon() <= self.budget else "Refusal"
        else:
            expected = "done" if state == "charge" else "StateError"
        assert self._outcome(charge, make_reservation(*key)) == expected
        if expected == "done":
            self.state[key] = "charge"

    @rule(key=keys)
    def free(self, key: tuple[int, int]) -> None:
        expected = "done" if self.state.get(key) in ("reserve", "free") else "StateError"
        assert self._outcome(free, make_reservation(*key)) == expected
        if expected == "done":
            self.state[key] = "free"

    @rule(epsilon=st.sampled_from([0.9, 1.6, 3.0]))
    def change_budget(self, epsilon: float) -> None:
        self.budget = epsilon
        give_budget(self.ledger, epsilon)

    @invariant()
    def the_books_agree(self) -> None:
        spending = self.ledger.spending("heart")
        assert spending.releases == sum(state == "charge" for state in self.state.values())
        assert spending.reserved == self._epsilon()
        assert self.ledger.verify(check_signature) == len(self.ledger.entries())

    def teardown(self) -> None:
        self.ledger._engine.dispose()


Lifecycle.TestCase.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestLifecycle = Lifecycle.TestCase


def _race(path: Path, number: int, barrier: object, results: object) -> None:
    ledger = open_ledger(path)
    barrier.wait()  # type: ignore[attr-defined]
    try:
        reserve(ledger, make_reservation(number, multiplier=2.0))
        charge(ledger, make_reservation(number, multiplier=2.0))
        results.put("paid")  # type: ignore[attr-defined]
    except Refusal:
        results.put("refused")  # type: ignore[attr-defined]


def test_processes_racing_for_the_last_of_a_budget(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    ledger = open_ledger(path)
    give_budget(ledger, rdp_epsilon([make_reservation(multiplier=2.0).mechanism.event], DELTA) * 1.1)
    ledger._engine.dispose()
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_race, args=(path, number, barrier, results)) for number in range(4)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert sorted(outcomes) == ["paid", "refused", "refused", "refused"]
    again = open_ledger(path)
    assert again.spending("heart").releases == 1
    assert again.verify(check_signature) == 4


def _spend_forever(path: Path, pipe: object) -> None:
    ledger = open_ledger(path)
    for number in range(1, 100_000):
        item = make_reservation(number, multiplier=300.0)
        reserve(ledger, item)
        pipe.send(("reserve", number))  # type: ignore[attr-defined]
        charge(ledger, item)
        pipe.send(("charge", number))  # type: ignore[attr-defined]


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    ledger = open_ledger(path)
    give_budget(ledger)
    ledger._engine.dispose()
    context = multiprocessing.get_context("fork")
    pauses = random.Random(3)
    for _ in range(3):
        seen = len(open_ledger(path).entries(kind=Kind.CHARGE))
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_spend_forever, args=(path, theirs))
        process.start()
        theirs.close()
        said = [ours.recv() for _ in range(2 * seen + 10)]
        time.sleep(pauses.random() * 0.02)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        while ours.poll():
            try:
                said.append(ours.recv())
            except EOFError:
                break
        again = open_ledger(path)
        for name in ("reserve", "charge"):
            kept = {entry.round for entry in again.entries(kind=Kind(name))}
            assert {number for kind, number in said if kind == name} <= kept
        assert again.spending("heart").releases == len(again.entries(kind=Kind.CHARGE)) > seen
        assert again.verify(check_signature) == len(again.entries())


def test_charge_and_the_sites_own_tables_are_one_transaction(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "site.db")
    give_budget(ledger)
    reserve(ledger, make_reservation())

    def consent(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE IF NOT EXISTS consent (context TEXT UNIQUE)"))
        ledger.charge(connection, make_reservation().context)
        connection.execute(text("INSERT INTO consent VALUES ('c')"))

    def fail() -> None:
        with transaction(ledger._engine) as connection:
            consent(connection)
            connection.execute(text("INSERT INTO consent VALUES ('c')"))

    with pytest.raises(StateError):
        fail()
    assert ledger.spending("heart").releases == 0
    with transaction(ledger._engine) as connection:
        consent(connection)
    assert ledger.spending("heart").releases == 1
