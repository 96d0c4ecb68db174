"""Put a backup back: verified again, never over a newer or foreign ledger unasked, and with the file that it replaces kept.

What a restored participant forgot it hears from the coordinator's mirror before it answers anything: every receipt that it
signed since is charged (:mod:`veilsum_participant.protocol.recovery`). That is the coordinator's word alone, so the restored
state bears a mark, and while that stands nothing is released (:mod:`veilsum_privacy.backup.restored`). What nobody else holds
does not come
back: budgets that were set since, and the keys of studies that it has enrolled in since.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import sqlalchemy as sa

from veilsum_node.database_places import open_readonly
from veilsum_node.driver_faults import typed_faults
from veilsum_node.errors import HostileInput, StateError, VeilsumError
from veilsum_node.file_names import is_name
from veilsum_node.identity import Role
from veilsum_node.identity.certificate import common_name, load_certificate
from veilsum_node.identity.files import write_new
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_node.phrases import counted
from veilsum_node.whole_files import whole_file
from veilsum_privacy.backup.backup import (
    DATABASE,
    DIRECTORY,
    IDENTITY,
    IDENTITY_FILES,
    RESULTS,
    TRANSPORT_FILES,
    BackupOwner,
    Manifest,
    describe,
    open_archive,
    sync,
)
from veilsum_privacy.backup.restored import RESTORED, put_mark, read_mark
from veilsum_privacy.ledger import LedgerReader

MOVE_SECONDS = 7 * 86400
"""How long the last backup of a state that was left counts as complete: later somebody may have gone on with a copy of it."""


@dataclass(frozen=True)
class Restored:
    """What was done.

    Attributes:
        kept: where the file that was replaced lies now; None if there was none.
        behind: how many entries of that file's ledger the backup lacks; None where they cannot be counted.
        identity: whether an identity was written.
        results: how many files of results were written; those that were there stay.
        marked: whether a participant may release nothing until its ledger was completed
            (:mod:`veilsum_privacy.backup.restored`).
    """

    manifest: Manifest
    kept: Path | None
    behind: int | None
    identity: bool
    results: int
    marked: bool


def restore(archive: Path, party: BackupOwner, *, with_identity: bool = False, force: bool = False) -> Restored:
    """Put a backup in the place of a party's state. The party must not run.

    Args:
        archive: a file that :func:`veilsum_privacy.backup.backup.back_up` made.
        with_identity: write the identity that is in it, where there is none.
        force: over a ledger that is newer, another one, or unreadable.

    Raises:
        HostileInput: the file is not a whole backup.
        StateError: it is another party's, its ledger does not verify, the party runs, or the state here is not to be replaced.
    """
    with open_archive(archive) as (manifest, places):
        if manifest.role != party.role.value:
            raise StateError(f"The backup is a {manifest.role}'s, not a {party.role}'s.", "Check the file.")
        missing = _missing_identity(manifest, places, party) if with_identity else {}
        certificate, authority = (missing.get(name, party.identity / name) for name in (CERTIFICATE_FILE, AUTHORITY_FILE))
        _require_own(manifest, party, certificate)
        if describe(places[DATABASE], party, {}, authority=authority).head != manifest.head:
            raise HostileInput(f"{archive}: its ledger ends elsewhere than its manifest says.", "Take another backup.")
        behind = _compare(places[DATABASE], party.state, force=force)
        moved = manifest.last and 0 <= int(time.time()) - manifest.made < MOVE_SECONDS
        marked = party.role is Role.PARTICIPANT and not moved and not _proven_last(manifest, party.state)
        if marked:
            write_mark(places[DATABASE], manifest.made, bytes.fromhex(manifest.head))
        _require_stopped(party.state)
        kept = _set_aside(party.state)
        _put(places[DATABASE], party.state)
        for name, source in missing.items():  # the key last, when nothing can refuse any more
            write_new(party.identity / name, source.read_bytes(), mode=0o600 if _is_key(name) else 0o644)
        if party.directory is not None and DIRECTORY in places and not os.path.lexists(party.directory):
            write_new(party.directory, places[DIRECTORY].read_bytes())
        return Restored(manifest, kept, behind, bool(missing), _restore_results(places, party.results), marked)


def _require_own(manifest: Manifest, party: BackupOwner, certificate: Path) -> None:
    if not certificate.exists():
        raise StateError(f"{party.identity} holds no identity.", "Put it there first, or add --with-identity.")
    name = common_name(load_certificate(certificate.read_bytes()).subject, "certificate")
    if name != manifest.party:
        raise StateError(f"The backup is that of {manifest.party}, not of {name}.", "Check file and configuration.")


def _missing_identity(manifest: Manifest, places: Mapping[str, Path], party: BackupOwner) -> dict[str, Path]:
    """The files of the backup's identity that are not there yet, by name, the key last.

    Raises:
        StateError: the backup holds none, or another one is there.
    """
    if not manifest.identity:
        raise StateError("The backup holds no identity: it was made without one.", "Put the identity there yourself.")
    missing = {}
    names = [name for name in (*TRANSPORT_FILES, *IDENTITY_FILES) if f"{IDENTITY}/{name}" in places or name in IDENTITY_FILES]
    for name in sorted(names, key=_is_key):
        source, place = places[f"{IDENTITY}/{name}"], party.identity / name
        if not place.exists():
            missing[name] = source
        elif place.read_bytes() != source.read_bytes():
            raise StateError(f"{place} differs from the backup's.", "Leave out --with-identity, or move it away.")
    return missing


def _is_key(name: str) -> bool:
    return Path(name).name == KEY_FILE


def _proven_last(manifest: Manifest, state: Path) -> bool:
    """Whether the state here ends where the backup does, and was itself whole: then nothing was spent since."""
    if not state.exists():
        return False
    try:
        with open_readonly(state) as database, database.reading() as connection:
            return LedgerReader(database).head().hex() == manifest.head and read_mark(connection) is None
    except VeilsumError:
        return False


def _compare(copy: Path, state: Path, *, force: bool) -> int | None:
    """How many entries of the present ledger the backup lacks.

    Raises:
        StateError: the present one is newer, another one or unreadable, and ``force`` is not set; or its party runs.
    """
    if not state.exists():
        return 0
    with _reader(copy) as backup:
        try:
            with _reader(state) as present:
                obstacle, behind = _relation(backup, present)
        except VeilsumError as error:
            obstacle, behind = f"The state {state} cannot be read: {error.message}", None
    if obstacle and not force:
        _require_stopped(state)  # whoever runs is told so first: stopped, it may be newer still
        raise StateError(obstacle, "Add --force to replace it; it is kept beside the restored one.")
    return behind


def _relation(backup: LedgerReader, present: LedgerReader) -> tuple[str, int | None]:
    """What speaks against putting one in the place of the other, and how many entries that would forget."""
    if backup.position(present.head()) is not None:
        return "", 0
    known = present.position(backup.head())
    if known is not None:
        lacking = len(present.entries(first=known + 1))
        return f"The ledger here is newer: it has {counted(lacking, 'entry', 'entries')} that the backup lacks.", lacking
    if backup.entries()[0].hash == present.entries()[0].hash:
        return "The ledger here has diverged from the backup's.", None
    return "The ledger here is a different one than the backup's.", None


@contextmanager
def _reader(path: Path) -> Iterator[LedgerReader]:
    with open_readonly(path) as database:
        yield LedgerReader(database)


def _require_stopped(state: Path) -> None:
    """Refuse while somebody has the database open: only then can it not leave its write-ahead mode."""
    if not state.exists():
        return
    try:
        with closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=rw", uri=True, timeout=1)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # puts the rest of the log into the file as well
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StateError(f"The party is running: it has {state} open.", "Stop it first.") from error
    except sqlite3.DatabaseError:
        pass  # damaged: that is why it is replaced


def _set_aside(state: Path) -> Path | None:
    """Rename the present files; the new name says when."""
    if not state.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = state.with_name(f"{state.name}.before-restore-{stamp}")
    number = 1
    while kept.exists():
        number += 1
        kept = state.with_name(f"{state.name}.before-restore-{stamp}-{number}")
    for suffix in ("-wal", "-shm", ""):
        place = state.with_name(state.name + suffix)
        if place.exists():
            place.rename(kept.with_name(kept.name + suffix))
    return kept


def _put(copy: Path, state: Path) -> None:
    try:
        state.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with whole_file(state) as out, copy.open("rb") as data:
            shutil.copyfileobj(data, out)
        sync(state.parent)
    except OSError as error:
        raise StateError(f"{state} cannot be written ({error.strerror}).", "Check the directory and its owner.") from error


def _restore_results(places: Mapping[str, Path], results: Path | None) -> int:
    wrote = 0
    for name, source in places.items():
        parts = PurePosixPath(name).parts
        if results is None or parts[0] != RESULTS:
            continue
        if PurePosixPath(name).is_absolute() or len(parts) < 2 or not all(is_name(part) for part in parts):
            raise HostileInput("The backup names a file of results that cannot be written here.", "Take another backup.")
        target = results.joinpath(*parts[1:])
        if any(place.is_symlink() for place in target.parents if place.is_relative_to(results) and place != results):
            raise HostileInput(f"{target.parent} leads out of {results}.", "Remove the link, then restore again.")
        if not os.path.lexists(target):
            write_new(target, source.read_bytes(), mode=0o600)
            wrote += 1
    return wrote


def write_mark(state: Path, made: int, head: bytes) -> None:
    """Mark a copy of a state that nobody has open; an earlier mark, and an operator's word on it, is replaced.

    Raises:
        Unavailable, Damage: it cannot be written.
    """
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(state)), hide_parameters=True)  # its journal stays as it is
    try:
        with typed_faults(), engine.begin() as connection:
            RESTORED.drop(connection, checkfirst=True)
            put_mark(connection, made, head)
    finally:
        engine.dispose()
