"""A database that is away: who waits, for how long, who is answered at once, and what a round does meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection

from support.federation import TestBed, make_bed, make_request, schema_of
from support.network import PATIENCE, wait_for
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.storage import outage as module
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.outage import Outage
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import StateError, VeilsumError
from veilsum_privacy.ledger import Kind


class Server:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, error: type[VeilsumError] = DatabaseAwayError) -> None:
        self.failures, self.calls, self._error = failures, 0, error

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self._error("away")
        return "here"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.002)


def test_who_waits_gets_the_answer_and_the_log_tells_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "veilsum")
    outage, server = Outage(60), Server(5)
    assert outage.wait(server) == "here"
    assert server.calls == 6
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    server = Server(3)
    assert asyncio.run(outage.call(server)) == "here"
    assert server.calls == 4


def test_other_errors_are_not_waited_out() -> None:
    for work in (Outage(60).wait, Outage(60).attempt, lambda server: asyncio.run(Outage(60).call(server))):
        server = Server(1, StateError)
        with pytest.raises(StateError, match="away"):
            work(server)
        assert server.calls == 1


def test_the_wait_ends() -> None:
    server = Server(10**9)
    with pytest.raises(DatabaseAwayError):
        Outage(0.02).wait(server)
    with pytest.raises(DatabaseAwayError):
        asyncio.run(Outage(0.02).call(server))
    with pytest.raises(DatabaseAwayError):
        Outage(3600).wait(server, 0.02)
    assert server.calls >= 3  # how many more there is time for is the machine's


def test_who_cannot_wait_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed try the next ones do not reach the server, whose silence would hold up a lock."""
    monkeypatch.setattr(module, "REST_SECONDS", 600.0)
    outage, server = Outage(60), Server(1)
    for _ in range(20):
        with pytest.raises(DatabaseAwayError):
            outage.attempt(server)
    assert server.calls == 1
    assert outage.attempt(server, waiting=True) == "here"
    assert outage.attempt(server) == "here"  # once it has answered, nobody is held off


def test_a_process_that_stops_waits_no_more() -> None:
    outage, server = Outage(3600), Server(10**9)
    threading.Timer(0.02, outage.stop).start()
    with pytest.raises(DatabaseAwayError):
        outage.wait(server)
    with pytest.raises(DatabaseAwayError):
        asyncio.run(outage.call(server))


# -- a round meanwhile -----------------------------------------------------------------------------------------------------

NAMES = "abc"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    data = {name: (np.full((10, 2), 0.25), np.arange(10) % 2) for name in NAMES}
    return make_bed(tmp_path, data, waits=Waits(contribute=100, consent=100, database=150))


class Away:
    """Lets every write fail while it is switched on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        transact = SqlJournal._transact

        def faulty(journal: SqlJournal, work: Callable[[Connection], Any]) -> Any:
            if self.on:
                raise DatabaseAwayError("The connection to the database was lost.")
            return transact(journal, work)

        monkeypatch.setattr(SqlJournal, "_transact", faulty)
        monkeypatch.setattr(module, "REST_SECONDS", 0.0)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


def begun(bed: TestBed, away: Away) -> bytes:
    """A round whose uploads all came while the database was away."""
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    local.prepare(key)
    with bed.hub.changing(key):
        bed.hub.studies[key].machine.start_round("statistics", ())
    away.on = True
    local.step()
    local.step()
    return key


def ticks_until(bed: TestBed, condition: Callable[[], bool]) -> None:
    """Ticks come again: the first may fall into the rest after a failed try, which is twice as long as that took."""

    def ticked() -> bool:
        bed.hub.tick()
        return condition()

    wait_for(ticked)


def charges(bed: TestBed) -> list[int]:
    return [len(site.ledger.entries(kind=Kind.CHARGE)) for site in bed.sites.values()]


def test_a_complete_sum_waits_for_the_database(bed: TestBed, away: Away) -> None:
    key = begun(bed, away)
    machine, local = bed.hub.studies[key].machine, bed.local
    current = machine.rounds[-1]
    assert current.accumulator.complete
    assert current.phase is RoundPhase.CONTRIBUTING
    assert not any(bed.hub.directives(name) for name in NAMES)
    bed.hub.tick()
    assert charges(bed) == [0, 0, 0]
    away.on = False
    ticks_until(bed, lambda: current.phase is RoundPhase.CHECKING)
    while current.phase is not RoundPhase.OPENING:
        assert local.step()
    assert (charges(bed), current.attempts) == ([1, 1, 1], 1)


def test_a_sum_that_came_too_late_is_asked_for_anew(bed: TestBed, away: Away) -> None:
    """Sites' own deadlines would pass before the consent: a new attempt costs nothing, an old one could."""
    key = begun(bed, away)
    machine, local = bed.hub.studies[key].machine, bed.local
    bed.clock.now += 100
    bed.hub.tick()
    current = machine.rounds[-1]
    assert (current.attempts, current.sum, machine.phase.over) == (2, None, False)
    assert not any(bed.hub.directives(name) for name in NAMES)  # nobody hears of an attempt that the journal does not have
    away.on = False
    ticks_until(bed, lambda: any(bed.hub.directives(name) for name in NAMES))
    while current.phase is not RoundPhase.OPENING:
        assert local.step()
    assert charges(bed) == [1, 1, 1]


def test_a_database_that_stays_away_ends_the_study_and_costs_nobody(bed: TestBed, away: Away) -> None:
    key = begun(bed, away)
    entry, local = bed.hub.studies[key], bed.local
    bed.clock.now += 60
    bed.hub.tick()
    assert not entry.machine.phase.over
    bed.clock.now += 60
    bed.hub.tick()  # another attempt
    local.step()
    bed.clock.now += 60
    bed.hub.tick()
    assert entry.machine.phase.value == "failed"
    assert "could not be stored" in entry.machine.reason
    assert not bed.hub.stored(key)
    away.on = False
    ticks_until(bed, lambda: bed.hub.stored(key))  # as soon as the database is back, though nothing else happens
    local.settle()
    assert charges(bed) == [0, 0, 0]
    assert [row["phase"] for row in bed.hub.journal.studies()] == ["failed"]


def test_a_journal_that_is_closed_takes_no_more(bed: TestBed) -> None:
    journal = bed.hub.journal
    entered, go = threading.Event(), threading.Event()

    def slow(_connection: Connection) -> None:
        entered.set()
        go.wait(PATIENCE)

    thread = threading.Thread(target=lambda: journal._transact(slow))
    thread.start()
    entered.wait(PATIENCE)
    assert not journal.close(0.01)  # it says that something still ran
    go.set()
    assert journal.close(10)
    thread.join()
    with pytest.raises(StateError, match="stopping"):
        journal.end_study(bytes(32), {}, status=b"")
