"""One ledger, several processes and threads: the budget holds between them, and what was committed survives a kill."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from support.backends import BACKENDS, new_place
from support.fresh import LEDGER
from support.ledgers import credentials_of, make_reservation, open_ledger, set_budget
from support.racing import racers
from veilsum_node.database import open_database
from veilsum_node.errors import Damage, Refusal
from veilsum_privacy.accounting.figures import rdp_epsilon
from veilsum_privacy.ledger import Kind, LedgerReader

DELTA = 1e-5
ROUNDS = 20


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_place(request.param, tmp_path, LEDGER)


def test_two_studies_racing_for_the_last_of_a_budget(place: str) -> None:
    """Twenty times: two processes, a budget for one release and a half, exactly one gets it."""
    ledger = open_ledger(place)
    single = rdp_epsilon([make_reservation(multiplier=2.0).mechanism.event], DELTA)
    double = rdp_epsilon([make_reservation(multiplier=2.0).mechanism.event] * 2, DELTA)
    with ledger.database.transaction() as connection:
        for number in range(ROUNDS):
            ledger.set_budget(connection, f"p{number}", (single + double) / 2, DELTA, reason="r", operator="o")
    with racers(place, credentials_of()) as pair:
        outcomes = [sorted(pair.race(f"p{number}", 2.0)) for number in range(ROUNDS)]
    assert outcomes == [["paid", "refused"]] * ROUNDS
    assert {ledger.spending(f"p{number}").releases for number in range(ROUNDS)} == {1}
    assert ledger.spending("p0").spent == single
    assert ledger.verify().entries == 1 + 3 * ROUNDS


def test_threads_share_one_ledger(place: str) -> None:
    """Eight threads of one process, one ledger object, readers in between: the budget bears five of forty releases."""
    ledger = open_ledger(place)
    event = make_reservation(multiplier=6.0).mechanism.event
    set_budget(ledger, rdp_epsilon([event] * 5, DELTA))
    outcomes: list[str] = []

    def work(lane: int) -> None:
        for number in range(1, 6):
            release = make_reservation(number, study=bytes([lane]) * 32, multiplier=6.0)
            try:
                with ledger.database.transaction() as connection:
                    ledger.reserve(connection, release)
                assert ledger.headroom("heart", {}).admits
                with ledger.database.transaction() as connection:
                    ledger.charge(connection, release.context)
                outcomes.append("paid")
            except Refusal:
                outcomes.append("refused")

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count("paid"), outcomes.count("refused")) == (5, 35)
    assert ledger.spending("heart").reserved == LedgerReader(ledger.database).spending("heart").spent
    assert ledger.verify().entries == 2 + 10


def test_what_other_processes_write_is_seen(place: str) -> None:
    """Two ledgers on one database, as two processes have them: each gate counts what the other wrote, to the last bit."""
    one, other = open_ledger(place), open_ledger(place)
    set_budget(one, 3.0)
    event = make_reservation(multiplier=9.0).mechanism.event
    for number in range(1, 7):
        writer, reader = (one, other) if number % 2 else (other, one)
        with writer.database.transaction() as connection:
            writer.reserve(connection, make_reservation(number, multiplier=9.0))
        assert reader.headroom("heart", {}).reserved == rdp_epsilon([event] * number, DELTA)
    with one.database.transaction() as connection:
        one.free(connection, make_reservation(1, multiplier=9.0).context)
    assert other.headroom("heart", {}).reserved == rdp_epsilon([event] * 5, DELTA)


def test_what_was_rolled_back_and_written_by_others_instead_is_seen(place: str) -> None:
    """The same numbers, other entries: the gate is not fooled by how long the chain is."""
    one, other = open_ledger(place), open_ledger(place)
    set_budget(one, 30.0)
    cheap, dear = make_reservation(1, multiplier=9.0), make_reservation(1, multiplier=3.0)
    with contextlib.suppress(KeyboardInterrupt), one.database.transaction() as connection:
        one.reserve(connection, cheap)
        one.headroom("heart", {}, connection)
        raise KeyboardInterrupt
    with other.database.transaction() as connection:
        other.reserve(connection, dear)
    assert one.headroom("heart", {}).reserved == rdp_epsilon([dear.mechanism.event], DELTA)


def _spend_forever(place: str, pipe: object) -> None:
    ledger = open_ledger(place)
    for number in range(1, 100_000):
        item = make_reservation(number, multiplier=300.0)
        with ledger.database.transaction() as connection:
            ledger.reserve(connection, item)
        pipe.send(("reserve", number))  # type: ignore[attr-defined]
        with ledger.database.transaction() as connection:
            ledger.charge(connection, item.context)
        pipe.send(("charge", number))  # type: ignore[attr-defined]


def test_what_was_committed_survives_a_kill(place: str) -> None:
    ledger = open_ledger(place)
    set_budget(ledger)
    ledger.database.close()
    context = multiprocessing.get_context("fork")
    pauses = random.Random(3)
    for _ in range(3):
        ledger = open_ledger(place)
        seen = len(ledger.entries(kind=Kind.CHARGE))
        ledger.database.close()  # SQLite forbids that a connection is carried across a fork
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_spend_forever, args=(place, theirs))
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
        again = open_ledger(place)
        for name in ("reserve", "charge"):
            kept = {entry.round for entry in again.entries(kind=Kind(name))}
            assert {number for kind, number in said if kind == name} <= kept
        assert again.spending("heart").releases == len(again.entries(kind=Kind.CHARGE)) > seen
        assert again.verify().entries == len(again.entries())
        again.database.close()


def test_charge_and_the_sites_own_tables_are_one_transaction(place: str) -> None:
    ledger = open_ledger(place)
    set_budget(ledger)
    release = make_reservation()
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, release)
        connection.execute(text("CREATE TABLE consent (context TEXT UNIQUE)"))

    def consent(connection: Connection) -> None:
        ledger.charge(connection, release.context)
        connection.execute(text("INSERT INTO consent VALUES ('c')"))

    def consent_twice() -> None:
        with ledger.database.transaction() as connection:
            consent(connection)
            connection.execute(text("INSERT INTO consent VALUES ('c')"))

    with pytest.raises(Damage):
        consent_twice()
    assert ledger.spending("heart").releases == 0
    with ledger.database.transaction() as connection:
        consent(connection)
    assert ledger.spending("heart").releases == 1


def test_processes_open_a_new_database_together(place: str) -> None:
    """Eight threads, each with an engine of its own as a process has: one chain begins, once."""
    faults: list[BaseException] = []

    def begin() -> None:
        try:
            open_ledger(open_database(place))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            faults.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [entry.kind for entry in open_ledger(place).entries()] == [Kind.GENESIS]
