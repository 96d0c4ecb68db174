"""Who watches a study is shown every last change of it, and nothing is made for who watches one that stands still."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_server, submit, wait_for
from veilsum_coordinator.service import studies
from veilsum_coordinator.service.listing import Listing
from veilsum_node.transport.channel import open_channel
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

NAMES = "abcd"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data(NAMES, 12, 2))


def test_a_change_while_what_is_shown_is_made_is_shown_after_it(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later look helps: the study changes once more and never again, and looks by the clock are switched off."""
    monkeypatch.setattr(studies, "LOOK_SECONDS", 1e6)
    made, whole = list[str](), Listing.status
    with running_server(bed) as (server, address), open_channel(address, bed.analyst) as channel:
        stub = StudiesStub(channel)
        key = submit(bed, stub, bed.compile(make_request(schema_of(2))))

        def status(self: Listing, of: bytes) -> pb.StudyStatus:
            shown = whole(self, of)
            made.append(shown.phase)
            if len(made) == 1:
                server.hub.abort(of, "enough")
            return shown

        monkeypatch.setattr(Listing, "status", status)
        shown = list(stub.Watch(pb.ShowRequest(study=key), timeout=PATIENCE))
    assert [item.phase for item in shown] == ["enrolling", "aborted"]
    assert shown[-1].reason == "enough"
    assert made == ["enrolling", "aborted"]


def test_nothing_is_made_while_nothing_changes(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(studies, name, 0.001)
    made, looks, shown = list[bytes](), list[object](), list[str]()
    status, mark = Listing.status, Listing.mark
    monkeypatch.setattr(Listing, "status", lambda self, key: made.append(key) or status(self, key))
    monkeypatch.setattr(Listing, "mark", lambda self, key: looks.append(key) or mark(self, key))
    with running_server(bed) as (server, address), open_channel(address, bed.analyst) as channel:
        stub = StudiesStub(channel)
        key = submit(bed, stub, bed.compile(make_request(schema_of(2))))

        def watch() -> None:
            shown.extend(item.phase for item in stub.Watch(pb.ShowRequest(study=key), timeout=PATIENCE))

        watcher = threading.Thread(target=watch)
        watcher.start()
        wait_for(lambda: len(looks) > 20, "looks")
        assert made == [key]
        server.hub.abort(key, "enough")
        watcher.join(PATIENCE)
    assert made == [key, key]
    assert shown == ["enrolling", "aborted"]


def test_under_one_mark_one_status_is_shown(bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every turn of a whole study, also between two pieces of an upload, which wake nobody."""
    hub, local, known = bed.hub, bed.local, dict[object, bytes]()
    upload, step = hub.upload, local.step
    study = bed.compile(make_request(schema_of(2)))
    key = local.submit(study, bed.analyst)

    def look() -> None:
        now = hub.shown.status(key).SerializeToString(deterministic=True)
        assert known.setdefault(hub.shown.mark(key), now) == now

    def piece(name: str, of: bytes, attempt: int, index: int, data: bytes) -> None:
        upload(name, of, attempt, index, data)
        look()

    def turn() -> bool:
        look()
        return step()

    monkeypatch.setattr(hub, "upload", piece)
    monkeypatch.setattr(local, "step", turn)
    hub.listen(lambda _: look())
    local.prepare(key).sum("statistics")
    hub.finish(key, ["manifest.json"])
    local.settle()
    found = [pb.StudyStatus.FromString(data) for data in known.values()]
    assert {item.phase for item in found} == {"enrolling", "sealing", "running", "finished"}
    assert len({item.bytes_received for item in found}) > len(NAMES)
    assert hub.shown.status(key).SerializeToString(deterministic=True) in known.values()
