"""A database that says nothing: its connections stay open and no byte comes. Nobody who needs no word of it waits for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from support.federation import RealClock, TestBed, make_bed, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, submit, wait_for
from support.postgres import server
from support.relay import Relay
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service import studies
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.transport.channel import open_channel
from veilsum_privacy.ledger import Kind
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

NAMES = "abc"
WAITS = Waits(enrol=60, seal=60, contribute=60, consent=60, check=60, grace=30, database=60)


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    data = {name: (np.full((10, 2), 0.25), np.arange(10) % 2) for name in NAMES}
    return make_bed(tmp_path, data, clock=RealClock(), waits=WAITS)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    postgres = server()
    found = Relay(tmp_path / ".s.PGSQL.5432", postgres._directory / ".s.PGSQL.5432")
    yield found
    found.close()


@pytest.fixture
def url(relay: Relay, tmp_path: Path) -> str:
    return server().new_database().split("?")[0] + f"?host={tmp_path}"


def test_calls_are_answered_while_the_database_is_silent(bed: TestBed, relay: Relay, url: str) -> None:
    """A study stands still in the middle of its rounds; questions and lists are answered all the same."""
    steps = 4
    request = make_request(schema_of(2), "fedsgd", None)
    study = bed.compile(request.model_copy(update={"parameters": {"centre": False, "steps": steps}}))
    with ExitStack() as stack:
        coordinator, address = stack.enter_context(running_server(bed, WAITS, url))
        for name in NAMES:
            stack.enter_context(running_client(bed.sites[name], address))
        stub, hub = StudiesStub(stack.enter_context(open_channel(address, bed.analyst))), coordinator.hub
        key = submit(bed, stub, study)
        machine = hub.studies[key].machine
        wait_for(lambda: len(machine.rounds) >= 2, "the second round")
        relay.silence()
        with (
            pytest.raises(DatabaseAwayError, match=r"answered|temporarily unreachable"),
            hub.changed,
        ):  # as one who holds the lock
            hub.journal.end_study(bytes(32), {}, status=b"")
        assert hub.journal.outage.away
        released = len([item for item in machine.rounds if item.phase == "released"])
        for _ in range(20):
            assert len(stub.List(pb.ListRequest(), timeout=PATIENCE).studies) == 1
            assert stub.Show(pb.ShowRequest(study=key), timeout=PATIENCE).phase == "running"
            assert {item.name for item in stub.Describe(pb.DescribeRequest(), timeout=PATIENCE).participants} == set(NAMES)
        assert hub.journal.outage.away  # the word that nobody waits for has not come yet
        assert len([item for item in machine.rounds if item.phase == "released"]) == released
        relay.speak()
        wait_for(lambda: hub.stored(key), "the end of the study")
        assert stub.Show(pb.ShowRequest(study=key), timeout=PATIENCE).phase == "finished", machine.reason
        for site in bed.sites.values():
            assert len(site.ledger.entries(kind=Kind.CHARGE)) == steps


def test_aborted_is_said_only_when_it_is_durable(
    bed: TestBed, relay: Relay, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(bed, WAITS, url) as (coordinator, address), open_channel(address, bed.analyst) as raw:
        stub, hub = StudiesStub(raw), coordinator.hub
        key = submit(bed, stub, bed.compile(make_request(schema_of(2), "fedcgs", None)))
        hub.connect("a", bytes(16))
        assert [item.kind for item in hub.directives("a")] == [pb.DIRECTIVE_KIND_ENROL]
        relay.silence()
        monkeypatch.setattr(studies, "CALL_SECONDS", 0.2)
        with pytest.raises(grpc.RpcError, match="its end is not stored"):
            stub.Abort(pb.ShowRequest(study=key), timeout=60)
        shown = stub.Show(pb.ShowRequest(study=key), timeout=PATIENCE)
        assert (shown.phase, shown.reason) == ("enrolling", "aborted, not yet stored in the database: aborted by analyst")
        assert [item.phase for item in stub.List(pb.ListRequest(), timeout=PATIENCE).studies] == ["enrolling"]
        assert hub.directives("a") == []  # it stands still, and nobody is told of an end that a crash could take back
        monkeypatch.setattr(studies, "CALL_SECONDS", 60.0)
        answers: list[pb.StudyStatus] = []
        asking = threading.Thread(target=lambda: answers.append(stub.Abort(pb.ShowRequest(study=key), timeout=60)))
        asking.start()
        time.sleep(0.5)
        assert not answers
        changes = hub.changes
        relay.speak()
        asking.join(PATIENCE)
        assert [item.phase for item in answers] == ["aborted"]
        assert [row["phase"] for row in hub.journal.studies()] == ["aborted"]
        wait_for(lambda: hub.changes > changes, "a word to the sessions")
        assert [item.kind for item in hub.directives("a")] == [pb.DIRECTIVE_KIND_END]
