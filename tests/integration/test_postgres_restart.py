"""The database's server goes away in the middle of a study: the study finishes, and every charge has its release.

Over real gRPC: with a real PostgreSQL that is stopped and started again, and with the answers of commits lost in turn.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from support.federation import DATASET, RealClock, TestBed, make_bed, make_data, make_request, schema_of
from support.network import running_client, running_server, submit, wait_for
from support.postgres import Server
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_coordinator.storage import outage
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.database import open_database
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.transport.channel import open_channel
from veilsum_participant.front import channel
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_proto.services import StudiesStub

NAMES = "abc"
WAITS = Waits(enrol=60, seal=60, contribute=60, consent=60, check=60, grace=30, database=60)


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    data = make_data(NAMES)
    return make_bed(tmp_path, data, budget=(100.0, 1e-5), clock=RealClock())


@contextmanager
def running(bed: TestBed, database: str | None = None) -> Iterator[tuple[CoordinatorServer, StudiesStub]]:
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, WAITS, database))
        for name in NAMES:
            stack.enter_context(running_client(bed.sites[name], address))
        yield server, StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))


def ask(bed: TestBed, stub: StudiesStub, steps: int) -> bytes:
    request = make_request(schema_of(2), "fedsgd", 5.0)
    study = bed.compile(request.model_copy(update={"parameters": {"centre": False, "steps": steps}}))
    return submit(bed, stub, study)


def audit(bed: TestBed, hub: Hub, key: bytes, mirror: LedgerReader, steps: int) -> None:
    """Every round was released and charged once at everyone; all ledgers verify, alone and against each other."""
    status = hub.shown.status(key)
    assert status.phase == "finished", status.reason
    wait_for(lambda: not hub.ended[key].seats, "the end everywhere")
    sites = [site.ledger for site in bed.sites.values()]
    for site in bed.sites.values():
        verify_ledger(site.ledger, authority=site.credentials.authority, against=[mirror, *sites])
        kinds = Counter(entry.kind for entry in site.ledger.entries(study=key))
        assert kinds[Kind.CHARGE] == kinds[Kind.RELEASE_SEEN] == steps
        assert kinds[Kind.RESERVE] == steps + kinds[Kind.FREE]
        assert kinds[Kind.RECOVERY] == 0
        spending = site.ledger.spending(DATASET)
        assert (spending.releases, spending.spent) == (steps, spending.reserved)
    assert verify_ledger(mirror, against=sites).role == "coordinator"
    shown = Counter(entry.kind for entry in mirror.entries())
    assert shown[Kind.CONSENT] == shown[Kind.RELEASE_SEEN] == steps
    assert len(hub.journal.releases(key)) == steps
    assert {name: events.total() for name, events in hub.journal.mirror.spending(DATASET).items()} == dict.fromkeys(
        NAMES, steps
    )
    assert [row["phase"] for row in hub.journal.studies()] == ["finished"]


@pytest.mark.system
@pytest.mark.parametrize(
    "immediate", [pytest.param(False, id="fast", marks=pytest.mark.system), pytest.param(True, id="immediate")]
)
def test_a_server_that_is_restarted_in_the_middle_of_rounds(
    bed: TestBed, immediate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "veilsum")
    postgres = Server()
    try:
        url = postgres.new_database()
        with running(bed, url) as (server, stub):
            key = ask(bed, stub, 5)
            machine = server.hub.studies[key].machine
            for number in (2, 4):
                wait_for(lambda: len(machine.rounds) >= number or machine.phase.over, "the round")  # noqa: B023
                postgres.halt(immediate=immediate)
                wait_for(lambda: server.hub.journal.outage.away, "a try that fails")  # what was on its way is through
                assert not machine.phase.over
                before = len(machine.rounds)
                time.sleep(0.5)
                assert len(machine.rounds) == before  # nothing goes on without a durable word
                postgres.resume()
            wait_for(lambda: machine.phase.over and server.hub.stored(key), "the end of the study")
            audit(bed, server.hub, key, LedgerReader(open_database(url)), 5)
            assert [item.attempts for item in server.hub.shown.status(key).rounds] == [1] * 5
        said = [record.getMessage() for record in caplog.records]
        assert sum("database unreachable" in text for text in said) == 2
        assert sum("the database is reachable again" in text for text in said) == 2
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
    finally:
        postgres.stop()


def test_every_commit_may_lose_its_answer(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction of the coordinator is done and then reported as failed, or not done, in turn; nothing stands twice."""
    transact, lock, calls = SqlJournal._transact, threading.Lock(), Counter[str]()

    def faulty(self: SqlJournal, work: Callable[[Connection], Any]) -> Any:
        with lock:
            number = calls["all"]
            calls["all"] += 1
        if number % 3 == 0:
            calls["not done"] += 1
            raise DatabaseAwayError("The connection was lost before the commit.")
        result = transact(self, work)
        if number % 3 == 1:
            calls["lost"] += 1
            raise DatabaseAwayError("The connection was lost after the commit.")
        return result

    monkeypatch.setattr(SqlJournal, "_transact", faulty)
    monkeypatch.setattr(outage, "REST_SECONDS", 0.01)
    monkeypatch.setattr(channel, "OWED_PAUSES", (0.05,) * 100)
    with running(bed) as (server, stub):
        key = ask(bed, stub, 3)
        machine = server.hub.studies[key].machine
        wait_for(lambda: machine.phase.over and server.hub.stored(key), "the end of the study")
        monkeypatch.undo()
        mirror = LedgerReader(open_database(bed.kit.coordinator.directory / "state" / "coordinator.db"))
        audit(bed, server.hub, key, mirror, 3)
        assert [item.attempts for item in server.hub.shown.status(key).rounds] == [1] * 3
    assert calls["lost"] > 3 * 3
    assert calls["not done"] > 3 * 3
