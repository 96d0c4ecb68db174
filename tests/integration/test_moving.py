"""docs/moving.md is walked through with real processes; and what the last backup of a state that was left promises."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import time
from pathlib import Path

import pytest

from support.federation import make_data, make_request, schema_of
from support.guides import Walk, environment_for
from support.network import wait_for
from support.processes import Processes, running_processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import StateError
from veilsum_node.identity import Role
from veilsum_node.state_lock import StateLock
from veilsum_node.storage import last_backup
from veilsum_privacy.backup import restore as restoring
from veilsum_privacy.backup.backup import BackupOwner, back_up
from veilsum_privacy.backup.restore import restore

DOCS = Path(__file__).parents[2] / "docs"
WAITS = Waits(enrol=60, seal=60, contribute=60, consent=60, check=60, grace=20)


def run_study(network: Processes) -> None:
    key = network.submit(network.compile(make_request(schema_of(2), epsilon=0.5)))
    assert network.await_end(key).phase == "finished"


@pytest.mark.system  # what leaves and joins is tested below by default
def test_the_page_moves_a_site_and_the_coordinator(tmp_path: Path) -> None:
    with running_processes(tmp_path / "kit", make_data("abc"), waits=WAITS, budget=(10.0, 1e-5)) as network:
        run_study(network)
        old, hub, place = network.directory("a"), network.kit.coordinator.directory, tmp_path / "hosts"
        place.mkdir()
        (place / "north").symlink_to(old)
        (place / "hub").symlink_to(hub)
        for name in ("moved", "hub-moved"):
            (place / name).mkdir()
        shutil.copy(hub / "coordinator.toml", place / "hub-moved")

        def carry() -> None:
            for path in old.iterdir():
                if path.name not in ("identity", "log") and not path.name.startswith("participant.db"):
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, place / "moved" / path.name)

        def stop_coordinator() -> None:
            assert network.coordinator is not None
            network.coordinator.stop()

        def moved() -> None:
            wait_for(lambda: network.connected() == set("abc"), "the moved site's session")
            run_study(network)

        stages = {
            "the participant is stopped": network.participants["a"].stop,
            "the files are carried over": carry,
            "the moved site has its session": moved,
            "the coordinator is stopped": stop_coordinator,
        }
        walk = Walk(place, environment=environment_for(tmp_path, Path(sys.executable).parent), replaced={}, stages=stages)
        try:
            for _ in walk.walk(DOCS / "moving.md"):
                raise AssertionError("the page has no pauses")
        finally:
            walk.close()
        assert len(walk.ran) == 9


@pytest.fixture
def site(tmp_path: Path) -> BackupOwner:
    with running_processes(tmp_path, make_data("abc"), waits=WAITS, budget=(10.0, 1e-5)) as network:
        place = network.directory("a")
    confirmed = place / "participant.directory.json"
    confirmed.write_text("{}")
    return BackupOwner(Role.PARTICIPANT, place / "participant.db", place / "identity", directory=confirmed)


def other_host(site: BackupOwner, place: Path) -> BackupOwner:
    place.mkdir()
    directory = place / "participant.directory.json"
    return BackupOwner(Role.PARTICIPANT, place / "participant.db", place / "identity", directory=directory)


def test_the_last_backup_is_complete_where_nothing_is(
    site: BackupOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, final = tmp_path / "plain", tmp_path / "final"
    back_up(site, plain, software="test", with_identity=True)
    assert restore(plain, other_host(site, tmp_path / "one"), with_identity=True).marked
    with tarfile.open(plain) as archive:
        assert "last" not in json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
    manifest = back_up(site, final, software="test", with_identity=True, last=True)
    there = other_host(site, tmp_path / "two")
    assert not restore(final, there, with_identity=True).marked
    assert there.directory is not None
    assert there.directory.read_text() == "{}"
    assert there.identity.joinpath("key.pem").read_bytes() == site.identity.joinpath("key.pem").read_bytes()
    with pytest.raises(StateError, match="not complete"):  # what was left releases nothing, and has no second last backup
        back_up(site, tmp_path / "again", software="test", last=True)
    assert not (tmp_path / "again").exists()
    assert restore(final, site, with_identity=False).marked is False  # back again, within the week
    later = manifest.made + restoring.MOVE_SECONDS
    monkeypatch.setattr(time, "time", lambda: float(later))
    assert restore(final, other_host(site, tmp_path / "three"), with_identity=True).marked


def test_a_site_whose_last_backup_came_to_nothing_stays(
    site: BackupOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has the file, so the state goes on, and can be left once more."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(StateError, match="No space left"):
            back_up(site, tmp_path / "final", software="test", last=True)
    assert not (tmp_path / "final").exists()
    assert back_up(site, tmp_path / "final", software="test", last=True).last


def test_a_running_site_is_not_left(site: BackupOwner, tmp_path: Path) -> None:
    lock = StateLock(site.state, "participant a")
    assert not lock.take()
    try:
        with pytest.raises(StateError, match="participant a"):
            back_up(site, tmp_path / "final", software="test", last=True)
    finally:
        lock.release()
    assert not (tmp_path / "final").exists()
    back_up(site, tmp_path / "plain", software="test")
    assert restore(tmp_path / "plain", site).marked is False  # it was not marked by what was refused


@pytest.mark.system
def test_who_says_when_the_last_backup_was(site: BackupOwner, tmp_path: Path) -> None:
    assert last_backup(site.state) is None
    before = int(time.time())
    made = back_up(site, tmp_path / "one", software="test").made
    assert before <= made == last_backup(site.state)
    for content in (b"", b"{}", b"[]", b'{"made": true}', b'{"made": -1}', b'{"made": "x"}', b"\xff"):
        site.state.with_name("participant.db.backup.json").write_bytes(content)
        assert last_backup(site.state) is None
    site.state.with_name("participant.db.backup.json").unlink()
    os.mkdir(site.state.with_name("participant.db.backup.json"))  # what cannot be written does not cost the backup
    assert back_up(site, tmp_path / "two", software="test").made >= made
