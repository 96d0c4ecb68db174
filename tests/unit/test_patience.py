"""A site whose disk takes nothing for the moment: it says nothing, waits, and answers when it can."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from support.federation import TestBed, make_bed, make_request, schema_of
from veilsum.local.federation import as_directive
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service import runner
from veilsum_coordinator.service.runner import run_study
from veilsum_node.database import Database, open_database
from veilsum_node.driver_faults import DatabaseAwayError, DatabaseDamagedError
from veilsum_node.errors import Unavailable
from veilsum_participant.boundary.front import Directive, DirectiveKind
from veilsum_participant.front.answering import in_process
from veilsum_participant.protocol import patience, payloads
from veilsum_participant.protocol.patience import StoreWatch, patiently
from veilsum_participant.session.client import Client
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def database(tmp_path: Path) -> Database:
    opened = open_database(tmp_path / "state.db")
    with opened.transaction() as connection:
        connection.execute(text("CREATE TABLE t (x BLOB)"))
    return opened


def _shrink(database: Database) -> None:
    """Let the database have no more pages than it has: what a full disk is, for this connection and those after it."""
    database.close()
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def _grow(database: Database) -> None:
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")


def _write(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(text("INSERT INTO t VALUES (zeroblob(100000))"))


def test_a_write_that_failed_is_remembered_until_one_succeeds(database: Database) -> None:
    assert database.write_fault == ""
    _shrink(database)
    with pytest.raises(DatabaseAwayError, match="is out of space"):
        _write(database)
    assert "Free space on the disk" in database.write_fault
    with database.transaction() as connection:  # it changes nothing, so it tells nothing
        connection.execute(text("SELECT 1"))
    assert database.write_fault
    _grow(database)
    _write(database)
    assert database.write_fault == ""


def test_a_probe_writes(database: Database) -> None:
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(Unavailable):
        _write(database)
    assert "is read-only" in database.write_fault
    with pytest.raises(Unavailable):
        database.probe()
    with pytest.raises(Unavailable):
        database.answers()  # what a coordinator's readiness asks
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = OFF")
    assert database.answers()
    assert database.write_fault == ""


def test_the_log_says_it_once_and_when_it_is_over(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "veilsum")
    watch = StoreWatch(database)
    watch.look()
    assert not caplog.messages
    _shrink(database)
    with pytest.raises(DatabaseAwayError):
        _write(database)
    for _ in range(3):
        watch.look()
    (line,) = caplog.messages
    assert "cannot be written" in line
    assert "Free space" in line
    _grow(database)
    _write(database)
    for _ in range(3):
        watch.look()
    assert len(caplog.messages) == 2
    assert "can be written again" in caplog.messages[1]


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    calls: list[int] = []

    def work(failures: int) -> str:
        calls.append(1)
        if len(calls) <= failures:
            raise DatabaseAwayError("The database is out of space.")
        return "done"

    assert patiently(lambda: work(4), 60, threading.Event()) == "done"
    assert len(calls) == 5
    over = threading.Event()
    over.set()
    for seconds, event in ((0.0, threading.Event()), (60.0, over)):
        calls.clear()
        with pytest.raises(DatabaseAwayError):
            patiently(lambda: work(1000), seconds, event)
        assert len(calls) == 1


def test_only_what_costs_nobody_anything_is_refused_in_the_end() -> None:
    refused = [kind for kind in pb.DirectiveKind.values() if patience.patience(kind) < 3600]
    assert set(refused) == {
        pb.DIRECTIVE_KIND_ENROL,
        pb.DIRECTIVE_KIND_SEAL,
        pb.DIRECTIVE_KIND_UNSEAL,
        pb.DIRECTIVE_KIND_CONTRIBUTE,
        pb.DIRECTIVE_KIND_CHECK,
    }


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    data = {name: (np.full((5, 1), 0.5), np.arange(5) % 2) for name in "abc"}
    return make_bed(tmp_path, data)


def test_a_payload_that_is_drawn_waits_for_its_disk(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn twice: the payload that is kept in the end is that of the first try."""
    drawn: list[int] = []
    real, failures = Database.transaction, [0]
    encrypt = payloads.encrypt_words

    def counting(*arguments: object) -> object:
        drawn.append(1)
        failures[0] = 2
        return encrypt(*arguments)  # type: ignore[arg-type]

    def failing(database: Database) -> object:
        if failures[0]:
            failures[0] -= 1
            raise DatabaseAwayError("The database is out of space.")
        return real(database)

    monkeypatch.setattr(Database, "transaction", failing)
    monkeypatch.setattr(payloads, "encrypt_words", counting)
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    for site in bed.sites.values():
        site.patience = 60.0
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(1), epsilon=None)), bed.analyst)
    run_study(bed.hub, key, local.prepare(key), bed.kit.directory / "results")
    status = bed.hub.shown.status(key)
    assert (status.phase, status.reason) == (StudyPhase.FINISHED, "")
    assert len(drawn) == 3
    assert bed.hub.shown.status(key).rounds[0].attempts == 1


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_result_waits_for_its_folder(bed: TestBed, monkeypatch: pytest.MonkeyPatch, comes_back: bool) -> None:
    """Its releases are paid for."""
    tries: list[int] = []
    real = runner.save_result

    def full(*arguments: Any, **named: Any) -> Path:
        tries.append(1)
        if len(tries) < 3 or not comes_back:
            raise Unavailable("the result cannot be written (No space left on device).", "Check path and space.")
        return real(*arguments, **named)

    monkeypatch.setattr(runner, "save_result", full)
    monkeypatch.setattr(runner, "RESULT_PAUSE", 0.001)
    bed.hub.journal.outage.seconds = 60.0 if comes_back else 0.05
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(1), epsilon=None)), bed.analyst)
    run_study(bed.hub, key, local.prepare(key), bed.kit.directory / "results")
    status = bed.hub.shown.status(key)
    if comes_back:
        assert (status.phase, status.reason, len(tries)) == (StudyPhase.FINISHED, "", 3)
    else:
        assert (status.phase, len(tries) > 1) == (StudyPhase.FAILED, True)
        assert "No space left" in status.reason
        assert len(bed.hub.journal.releases(key)) == 1


def test_nothing_is_said_while_the_disk_takes_nothing(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the site refused the study for good."""
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(1), epsilon=None)), bed.analyst)
    core = local.cores["a"]
    (directive,) = bed.hub.directives("a")

    def full(*_: object, **__: object) -> None:
        raise DatabaseAwayError("The database is out of space.")

    with monkeypatch.context() as patched:
        patched.setattr(core.membership, "on_study", full)
        with pytest.raises(DatabaseAwayError):
            core.handle(as_directive(directive), _Silent(bed, "a"))  # type: ignore[arg-type]
    assert bed.hub.studies[key].machine.seats["a"].refusal == ""


class _Silent:
    """A channel that can only fetch: whatever else is said fails the test."""

    def __init__(self, bed: TestBed, name: str) -> None:
        self._bed, self._name = bed, name
        self.coordinator = "coordinator"

    def fetch(self, kind: Any, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        return self._bed.hub.objects.fetch(self._name, kind, study, number, attempt)


def test_damage_is_not_over_because_another_page_takes_a_write(tmp_path: Path) -> None:
    """A probe writes the first page only: readiness would turn good and bad again every few seconds."""
    database = open_database(tmp_path / "state.db")
    with database.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE kept (value BLOB)")
    with pytest.raises(DatabaseDamagedError), database.transaction():
        raise DatabaseDamagedError("The database is damaged.", "Restore a backup.")
    with pytest.raises(DatabaseDamagedError):
        database.probe()
    with database.transaction() as connection:
        connection.exec_driver_sql("INSERT INTO kept VALUES (x'00')")
    assert "damaged" in database.write_fault


def test_nothing_is_fetched_for_a_disk_that_takes_nothing(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broadcasts are megabytes, and computing is minutes: both would be done again every two seconds."""
    client, asked = Client(bed.sites["a"], in_process), list[Directive]()
    monkeypatch.setattr(client.core, "handle", lambda directive, _: asked.append(directive))
    faults = ["full", "full", ""]
    monkeypatch.setattr(Database, "write_fault", property(lambda _: faults[0]))

    def probed(_: Database) -> None:
        if faults.pop(0):
            raise DatabaseAwayError("The disk is full.", "Make room.")

    monkeypatch.setattr(Database, "probe", probed)
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    client._answer(Directive(kind=DirectiveKind.CONSENT), None, threading.Event())  # type: ignore[arg-type]
    assert len(asked) == 1
