"""Backups of a party's state: made beside a running writer, verified, refused when anything is wrong, put back with care."""

from __future__ import annotations

import io
import json
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from support.federation import Clock
from veilsum_node.database import open_database
from veilsum_node.errors import HostileInput, StateError
from veilsum_node.identity import Role, load_credentials
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.tls import load_transport
from veilsum_participant.session.client import open_ledger
from veilsum_privacy.backup.backup import BackupOwner, Manifest, back_up, copy_database, open_archive
from veilsum_privacy.backup.restore import restore
from veilsum_privacy.ledger import Ledger, LedgerReader

CLOCK = Clock()


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return make_kit(tmp_path_factory.mktemp("kit"), ["a", "b"], clock=CLOCK)


def site_of(kit: Kit, name: str, directory: Path) -> tuple[BackupOwner, Ledger]:
    """A participant's state in a directory of its own, with a budget."""
    identity = next(party.identity for party in kit.participants if party.name == name)
    directory.mkdir(exist_ok=True)
    party = BackupOwner(Role.PARTICIPANT, directory / "participant.db", identity)
    database = open_database(party.state)
    ledger = open_ledger(database, load_credentials(identity, CLOCK()), CLOCK)
    budget(ledger, 1.0)
    return party, ledger


def budget(ledger: Ledger, epsilon: float) -> None:
    with ledger.database.transaction() as connection:
        ledger.set_budget(connection, "records", epsilon, 1e-5, reason="test", operator="test")


def stop(ledger: Ledger) -> None:
    ledger.database.close()


def heads(path: Path) -> list[bytes]:
    with open_database(path) as database:
        return [entry.hash for entry in LedgerReader(database).entries()]


def make(party: BackupOwner, tmp_path: Path, name: str = "backup.tar", **options: bool) -> tuple[Path, Manifest]:
    path = tmp_path / name
    return path, back_up(party, path, software="veilsum test", **options)


def test_a_backup_holds_what_was_committed_and_says_so(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, manifest = make(party, tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (manifest.party, manifest.role, manifest.entries) == ("a", "participant", 2)
    assert manifest.head == ledger.head().hex()
    assert set(manifest.layout) == {"ledger"}
    assert (manifest.identity, set(manifest.files)) == (False, {"state.db"})
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["manifest.json", "state.db"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "backup.tar"]  # nothing private is left beside it
    budget(ledger, 2.0)
    with open_archive(path) as (again, places):
        assert again == manifest
        assert heads(places["state.db"]) == [entry.hash for entry in ledger.entries()][:2]
        assert places["state.db"].stat().st_mode & 0o077 == 0
        private = places["state.db"].parent
    assert not private.exists()


def test_an_existing_file_is_kept_unless_told(kit: Kit, tmp_path: Path) -> None:
    party, _ = site_of(kit, "a", tmp_path / "a")
    (tmp_path / "backup.tar").write_text("mine")
    with pytest.raises(StateError, match="exists already"):
        make(party, tmp_path)
    assert (tmp_path / "backup.tar").read_text() == "mine"
    path, _ = make(party, tmp_path, force=True)
    with open_archive(path):
        pass


def test_it_is_made_beside_a_writer_and_is_whole(kit: Kit, tmp_path: Path) -> None:
    """Every backup taken while entries are appended verifies, and later ones continue earlier ones."""
    party, ledger = site_of(kit, "a", tmp_path / "a")
    going, wrote = threading.Event(), []

    def write() -> None:
        while not going.is_set():
            budget(ledger, 1.0 + len(wrote))
            wrote.append(None)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        made = [make(party, tmp_path, f"{number}.tar") for number in range(4)]
    finally:
        going.set()
        thread.join()
    assert len(wrote) > 2
    final = [entry.hash for entry in ledger.entries()]
    sizes = []
    for path, manifest in made:
        with open_archive(path) as (_, places):
            found = heads(places["state.db"])
        assert found == final[: manifest.entries]
        sizes.append(manifest.entries)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_a_ledger_that_was_edited_gives_no_backup(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    stop(ledger)
    with closing(sqlite3.connect(party.state)) as raw:
        for trigger in [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]:
            raw.execute(f"DROP TRIGGER {trigger}")
        raw.execute("UPDATE ledger SET time = time + 1 WHERE seq = 2")
        raw.commit()
    with pytest.raises(StateError, match="does not verify"):
        make(party, tmp_path)
    assert not (tmp_path / "backup.tar").exists()


def test_a_damaged_database_gives_no_backup(tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    with closing(sqlite3.connect(source)) as raw:
        raw.execute("CREATE TABLE x (a INTEGER PRIMARY KEY, b TEXT)")
        raw.execute("CREATE INDEX i ON x (b)")
        raw.executemany("INSERT INTO x (b) VALUES (?)", [(f"{number:06d}",) for number in range(5000)])
        raw.commit()
    data = bytearray(source.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 2048] = b"\xff" * 2048
    source.write_bytes(data)
    with pytest.raises(StateError, match=r"damaged|cannot be copied"):
        copy_database(source, tmp_path / "copy.db")
    with pytest.raises(StateError, match=r"database .* does not exist"):
        copy_database(tmp_path / "none.db", tmp_path / "other.db")


# -- the way back ----------------------------------------------------------------------------------------------------------


def test_a_lost_state_comes_back(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, manifest = make(party, tmp_path)
    stop(ledger)
    for file in (tmp_path / "a").iterdir():
        file.unlink()
    done = restore(path, party)
    assert (done.kept, done.behind, done.identity) == (None, 0, False)
    assert stat.S_IMODE(party.state.stat().st_mode) == 0o600
    assert heads(party.state)[-1].hex() == manifest.head


def test_a_newer_ledger_is_replaced_only_when_told_and_kept(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, manifest = make(party, tmp_path)
    budget(ledger, 2.0)
    budget(ledger, 3.0)
    newer = ledger.head()
    stop(ledger)
    with pytest.raises(StateError, match="newer: it has 2 entries that the backup lacks") as caught:
        restore(path, party)
    assert "--force" in caught.value.advice
    assert heads(party.state)[-1] == newer
    done = restore(path, party, force=True)
    assert done.behind == 2
    assert heads(party.state)[-1].hex() == manifest.head
    assert done.kept is not None
    assert heads(done.kept)[-1] == newer
    restore(path, party)  # the same again needs no word


def test_an_older_ledger_is_replaced(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    stop(ledger)
    copy_database(party.state, tmp_path / "old.db")
    budget(ledger, 2.0)
    stop(ledger)
    path, manifest = make(party, tmp_path)
    party.state.write_bytes((tmp_path / "old.db").read_bytes())
    assert restore(path, party).behind == 0
    assert heads(party.state)[-1].hex() == manifest.head


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("newer", [False, True])
def test_a_running_party_is_not_touched(kit: Kit, tmp_path: Path, *, newer: bool, force: bool) -> None:
    """And is told so first, whatever else speaks against the backup."""
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, _ = make(party, tmp_path)
    before = ledger.head()
    if newer:
        budget(ledger, 4.0)
    with pytest.raises(StateError, match="is running"):
        restore(path, party, force=force)
    budget(ledger, 5.0)  # the running party goes on as if nothing had been
    assert ledger.verify().entries == 3 + newer
    assert ledger.entries()[1].hash == before
    stop(ledger)


def test_other_ledgers(kit: Kit, tmp_path: Path) -> None:
    """Another site's, one that was begun anew, one that forked, and a file that is none."""
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, _ = make(party, tmp_path)
    stop(ledger)
    other, foreign = site_of(kit, "b", tmp_path / "b")
    stop(foreign)
    with pytest.raises(StateError, match="that of a, not of b"):
        restore(path, other, force=True)
    fresh, anew = site_of(kit, "a", tmp_path / "fresh")
    stop(anew)
    with pytest.raises(StateError, match="different one than the backup's"):
        restore(path, fresh)
    fork, ledger = site_of(kit, "a", tmp_path / "fork")
    stop(ledger)
    fork_path, _ = make(fork, tmp_path, "fork.tar")
    budget(ledger, 7.0)
    stop(ledger)
    ahead, _ = make(fork, tmp_path, "ahead.tar")
    restore(fork_path, fork, force=True)
    again = open_ledger(open_database(fork.state), load_credentials(fork.identity, CLOCK()), CLOCK)
    budget(again, 8.0)
    stop(again)
    with pytest.raises(StateError, match="diverged"):
        restore(ahead, fork)
    broken = BackupOwner(Role.PARTICIPANT, tmp_path / "broken.db", party.identity)
    broken.state.write_bytes(b"SQLite format 3\0" + bytes(4000))
    with pytest.raises(StateError, match="cannot be read"):
        restore(path, broken)
    done = restore(path, broken, force=True)
    assert done.behind is None
    assert done.kept is not None
    assert done.kept.read_bytes().startswith(b"SQLite format 3\0\0")
    with pytest.raises(StateError, match="participant's, not a coordinator's"):
        restore(path, BackupOwner(Role.COORDINATOR, tmp_path / "c.db", party.identity))


def test_an_identity_only_when_asked_for(kit: Kit, tmp_path: Path) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    bare, _ = make(party, tmp_path)
    full, manifest = make(party, tmp_path, "full.tar", with_identity=True)
    stop(ledger)
    key = (party.identity / "key.pem").read_bytes()
    assert key not in bare.read_bytes()
    assert key in full.read_bytes()
    assert manifest.identity
    new = BackupOwner(Role.PARTICIPANT, tmp_path / "new" / "participant.db", tmp_path / "new" / "identity")
    with pytest.raises(StateError, match="no identity"):
        restore(full, new)
    with pytest.raises(StateError, match="holds no identity"):
        restore(bare, new, with_identity=True)
    assert restore(full, new, with_identity=True).identity
    assert load_credentials(new.identity, CLOCK(), Role.PARTICIPANT).identity.name == "a"
    assert stat.S_IMODE((new.identity / "key.pem").stat().st_mode) == 0o600
    assert not restore(full, new, with_identity=True).identity
    (new.identity / "key.pem").write_bytes(b"another")
    with pytest.raises(StateError, match="differs from the backup's"):
        restore(full, new, with_identity=True)


def test_the_key_of_connections_goes_with_the_identity(kit: Kit, tmp_path: Path) -> None:
    """Where a site has one; a backup of a site without it is put back as ever."""
    party, ledger = site_of(kit, "a", tmp_path / "a")
    folder = party.identity / "transport"
    with_key, _ = make(party, tmp_path, "with.tar", with_identity=True)
    names = ("key.pem", "certificate.pem", "authority.pem")
    former = {name: (folder / name).read_bytes() for name in names}
    assert former["key.pem"] in with_key.read_bytes()
    assert former["key.pem"] not in make(party, tmp_path)[0].read_bytes()
    aside = folder.rename(tmp_path / "aside")
    without, _ = make(party, tmp_path, "without.tar", with_identity=True)
    aside.rename(folder)
    stop(ledger)
    for place, archive, held in (("one", with_key, True), ("two", without, False)):
        new = BackupOwner(Role.PARTICIPANT, tmp_path / place / "participant.db", tmp_path / place / "identity")
        assert restore(archive, new, with_identity=True).identity
        there = {path.name: path.read_bytes() for path in (new.identity / "transport").glob("*")}
        assert there == (former if held else {})
        owner = load_credentials(new.identity, CLOCK(), Role.PARTICIPANT)
        shown = load_transport(new.identity, CLOCK(), owner)
        assert shown.identity.role is (Role.TRANSPORT if held else Role.PARTICIPANT)
    key = tmp_path / "one" / "identity" / "transport" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.write_bytes(b"another")
    with pytest.raises(StateError, match="differs from the backup's"):
        restore(
            with_key, BackupOwner(Role.PARTICIPANT, tmp_path / "one" / "participant.db", key.parents[1]), with_identity=True
        )


def test_a_refused_restore_writes_no_identity(kit: Kit, tmp_path: Path) -> None:
    """The key comes last: a backup whose ledger is refused, or a running party, leaves nothing of it behind."""
    party, ledger = site_of(kit, "a", tmp_path / "a")
    full, _ = make(party, tmp_path, with_identity=True)
    fresh, anew = site_of(kit, "a", tmp_path / "new")
    stop(anew)
    moved = BackupOwner(Role.PARTICIPANT, fresh.state, tmp_path / "new" / "identity")
    with pytest.raises(StateError, match="different one than the backup's"):
        restore(full, moved, with_identity=True)
    assert not moved.identity.exists()
    running = BackupOwner(Role.PARTICIPANT, party.state, moved.identity)
    with pytest.raises(StateError, match="is running"):
        restore(full, running, with_identity=True)
    assert not moved.identity.exists()
    stop(ledger)
    assert restore(full, running, with_identity=True).identity


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with tarfile.open(path) as archive:
        members = {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]
    change(members)
    with tarfile.open(path, "w:") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def edit_manifest(members: dict[str, bytes], **values: object) -> None:
    members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | values).encode()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop("manifest.json"), "is not a backup"),
        (lambda members: members.pop("state.db"), "was cut off"),
        (lambda members: members.update({"state.db": members["state.db"] + b"x"}), "not what the manifest says"),
        (lambda members: members.update({"../evil": b"x"}), "is not a backup"),
        (lambda members: members.update({"manifest.json": b"{}"}), "is not a backup"),
        (lambda members: members.update({"manifest.json": b"\xff"}), "is not a backup"),
        (lambda members: edit_manifest(members, format="veilsum-backup/9"), "another format"),
        (lambda members: edit_manifest(members, more=1), "is not a backup"),
        (lambda members: edit_manifest(members, files={}), "is not a backup"),
        (lambda members: edit_manifest(members, made="today"), "is not a backup"),
        (lambda members: edit_manifest(members, last=1), "is not a backup"),
        (lambda members: edit_manifest(members, last="yes"), "is not a backup"),
        (lambda members: edit_manifest(members, made=10**30), "is not a backup"),
        (lambda members: edit_manifest(members, head="00" * 32), "ends elsewhere"),
    ],
)
def test_an_archive_that_was_changed_restores_nothing(
    kit: Kit, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, _ = make(party, tmp_path)
    stop(ledger)
    party.state.unlink()
    rewrite(path, change)
    with pytest.raises(HostileInput, match=message):
        restore(path, party)
    assert not party.state.exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "backup.tar"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cut", [0, 1, 511, 512, 3000, -1024, -20000])
def test_an_archive_that_was_cut_off(kit: Kit, tmp_path: Path, cut: int) -> None:
    party, ledger = site_of(kit, "a", tmp_path / "a")
    path, _ = make(party, tmp_path)
    stop(ledger)
    party.state.unlink()
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    if cut == -1024:  # only the padding after the last file is missing
        restore(path, party)
        return
    with pytest.raises(HostileInput):
        restore(path, party)
    assert not party.state.exists()
