"""Back up a party's ledger and protocol state while it runs, and prove the copy before it is called good.

A backup is one uncompressed tar file, readable by its owner only: ``manifest.json``, ``state.db``, at a coordinator the
results, and the identity only where that is asked for. The database is copied by SQLite's online backup, as of one commit; the
copy is checked by SQLite and its ledger verified. A state in PostgreSQL is that server's to back up. The way back is
:mod:`.restore`.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import inspect

from veilsum_node.database import open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import Damage, HostileInput, StateError
from veilsum_node.identity import Role, load_authority_certificate
from veilsum_node.identity.files import read_file, read_private
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TRANSPORT_FOLDER, transport_folder
from veilsum_node.phrases import unreadable
from veilsum_node.state_lock import StateLock
from veilsum_node.storage import record_backup
from veilsum_privacy.backup.restored import lift_mark, put_mark, read_mark
from veilsum_privacy.ledger import LedgerReader
from veilsum_privacy.results.result import MANIFEST as RESULT_MANIFEST

FORMAT = "veilsum-backup/1"
MANIFEST, DATABASE, IDENTITY, RESULTS = "manifest.json", "state.db", "identity", "results"
DIRECTORY = "directory.json"
IDENTITY_FILES = (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE)
TRANSPORT_FILES = tuple(f"{TRANSPORT_FOLDER}/{name}" for name in IDENTITY_FILES)
YEAR_10000 = 253402300800  # Unix seconds; Python has no later date
MAX_MANIFEST_BYTES = 1 << 24


@dataclass(frozen=True)
class BackupOwner:
    """The owner of the state.

    Attributes:
        role: participant or coordinator.
        state: file of the database.
        identity: directory of key, certificate and authority.
        results: directory of a coordinator's results.
        directory: where a participant's copy of the confirmed directory lies, if it has confirmed one.
    """

    role: Role
    state: Path
    identity: Path
    results: Path | None = None
    directory: Path | None = None


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself.

    Attributes:
        role, party: whose it is.
        made: when, Unix seconds.
        software: name and version that made it.
        entries, head: of the ledger; the head is a hash in hexadecimal.
        federation: SHA-256 of the authority's certificate.
        layout: version of each component's tables.
        files: SHA-256 of every file in it, by name.
        identity: whether the private key is in it, and that of connections if there is one.
        last: whether the state that it was made of may release nothing any more, so that nothing was spent since.
    """

    role: str
    party: str
    made: int
    software: str
    entries: int
    head: str
    federation: str
    layout: dict[str, str]
    files: dict[str, str] = field(repr=False)
    identity: bool
    last: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the file holds them."""
        fields = {"format": FORMAT, **asdict(self)}
        return fields if self.last else {name: value for name, value in fields.items() if name != "last"}


def back_up(
    party: BackupOwner, target: Path, *, software: str, with_identity: bool = False, force: bool = False, last: bool = False
) -> Manifest:
    """Write a backup of a party's state; the party may run meanwhile, unless it is the last.

    Args:
        software: name and version, for the manifest.
        with_identity: put the private keys and the certificates into it as well.
        force: replace an existing file.
        last: the site moves. The participant must not run; its state here is marked and releases nothing from here on, so that
            the backup is complete wherever it is put back.

    Raises:
        StateError: the state does not exist, the copy or its ledger fails its check, or the file cannot be written or exists.
    """
    if target.is_dir():
        raise StateError(f"{target} is a folder, not a file.", "Name the file that is to be made.")
    if os.path.lexists(target) and not force:
        raise StateError(f"{target} exists already.", "Name another file, or add --force to replace it.")
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))  # mode 0700
    except OSError as error:
        raise StateError(f"{target} cannot be written ({error.strerror}).", "Check the directory.") from error
    lock = StateLock(party.state, f"backup of {party.role}")
    try:
        if last:
            _require_leaving(party, lock)
        copy = directory / DATABASE
        copy_database(party.state, copy)
        members = {DATABASE: copy, **_results(party.results)}
        if party.directory is not None and party.directory.exists():
            shutil.copyfile(party.directory, directory / DIRECTORY)
            members[DIRECTORY] = directory / DIRECTORY
        if with_identity:
            for name in identity_files(party.identity):
                read = read_private if Path(name).name == KEY_FILE else read_file
                copied = directory / IDENTITY / name
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_bytes(read(party.identity / name, "file of the identity"))
                members[f"{IDENTITY}/{name}"] = copied
        manifest = describe(copy, party, members, software=software, with_identity=with_identity, last=last)
        archive = directory / "archive"
        _write_archive(archive, manifest, members)
        with open_archive(archive) as (again, _):  # what was written is what will be read
            if again != manifest:
                raise StateError(f"{target} was not written correctly.", "Check the disk, then try again.")
        with _left(party.state, manifest) if last else nullcontext():
            archive.replace(target)
        sync(target.parent)
        with suppress(StateError):  # a folder that cannot be written must not cost the backup
            record_backup(party.state, manifest.made, manifest.head)
    except (OSError, tarfile.TarError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise StateError(f"{target} cannot be written ({reason}).", "Check the disk, then try again.") from error
    finally:
        lock.release()
        shutil.rmtree(directory, ignore_errors=True)
    return manifest


def identity_files(identity: Path) -> tuple[str, ...]:
    """Files of an identity, as paths beneath it: those of the key that signs, and of the key of connections if it has one."""
    own = transport_folder(identity)
    return IDENTITY_FILES if own == identity else (*IDENTITY_FILES, *TRANSPORT_FILES)


def _require_leaving(party: BackupOwner, lock: StateLock) -> None:
    """Hold the state of a stopped participant.

    Raises:
        StateError: it is a coordinator's, or the participant runs.
    """
    if party.role is not Role.PARTICIPANT:
        raise StateError("Only a participant's state is left behind for good.", "Leave out --move.")
    if holder := lock.take():
        raise StateError(f"The participant runs: {holder}.", "Stop it first.")


@contextmanager
def _left(state: Path, manifest: Manifest) -> Iterator[None]:
    """Mark a state that a site moves away from, before anybody has the file that the block puts in its place: two
    states can go on at no moment. Where the block fails, nobody has it, and the mark goes again.

    Raises:
        StateError: it bears a mark already: what it spent is not known here.
    """
    with open_database(state) as database:
        with database.transaction() as connection:
            if read_mark(connection) is not None:
                raise StateError(
                    "This state waits for somebody's word on what it spent: it is not complete.",
                    "Complete it first with `veilsum ledger recover`, or leave out --move.",
                )
            put_mark(connection, manifest.made, bytes.fromhex(manifest.head))
        try:
            yield
        except OSError:
            with database.transaction() as connection:
                lift_mark(connection)
            raise


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as of one commit, beside whoever writes to it, into one private file without a log; then check it.

    Raises:
        StateError: there is none, it cannot be read, or the copy is damaged.
    """
    if not source.is_file():
        raise StateError(f"The database {source} does not exist.", "It is made when the party starts for the first time.")
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as one,
            closing(sqlite3.connect(target)) as two,
        ):
            one.backup(two)
            two.execute("PRAGMA journal_mode=DELETE")
            found = [str(row[0]) for row in two.execute("PRAGMA integrity_check")]
            broken = two.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as error:
        raise StateError(f"The database {source} cannot be copied: {error}.", "Check the file and the disk.") from error
    if found != ["ok"] or broken:
        raise Damage(f"The database {source} is damaged.", "Keep it as it is, and restore an earlier backup.")
    sync(target)


def describe(
    copy: Path,
    party: BackupOwner,
    members: dict[str, Path],
    *,
    software: str = "",
    with_identity: bool = False,
    authority: Path | None = None,
    last: bool = False,
) -> Manifest:
    """What a copied database holds, after its ledger was verified by the authority of the party's identity, or another file's.

    Raises:
        StateError: its ledger does not verify, or is not one of the party's role.
    """
    trusted = load_authority_certificate(read_file(authority or party.identity / AUTHORITY_FILE, "authority's certificate"))
    with open_readonly(copy) as database:
        ledger = LedgerReader(database)
        try:
            proven = ledger.verify(authority=trusted)
        except HostileInput as error:
            raise StateError(f"The ledger does not verify: {error.message}", "Run veilsum ledger verify.") from error
        with database.reading() as connection:
            tables = [name for name in inspect(connection).get_table_names() if name.endswith("_version")]
            queries = {name.removesuffix("_version"): f"SELECT version_num FROM {name}" for name in tables}  # noqa: S608
            layout = {name: str(connection.exec_driver_sql(query).scalar()) for name, query in sorted(queries.items())}
    if proven.role is not party.role:
        raise StateError(f"The ledger is a {proven.role}'s, not a {party.role}'s.", "Check the configuration.")
    return Manifest(
        role=proven.role.value,
        party=proven.site,
        made=int(time.time()),
        software=software,
        entries=proven.entries,
        head=proven.head.hex(),
        federation=proven.federation,
        layout=layout,
        files={name: _digest(path) for name, path in sorted(members.items())},
        identity=with_identity,
        last=last,
    )


@contextmanager
def open_archive(path: Path) -> Iterator[tuple[Manifest, dict[str, Path]]]:
    """Unpack a backup into a private directory beside it for the length of the block, every file checked by its digest.

    Raises:
        StateError: it cannot be read or unpacked.
        HostileInput: it is not a backup, was cut off, or does not hold what its manifest says.
    """
    directory: Path | None = None
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield _unpack(path, directory)
    except OSError as error:
        raise StateError(f"{path} {unreadable(error)}.", "Check path, permissions and disk.") from error
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _unpack(path: Path, directory: Path) -> tuple[Manifest, dict[str, Path]]:
    places: dict[str, Path] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            manifest = _read_manifest(archive, path)
            for number, member in enumerate(archive):
                if member.name == MANIFEST and not number:
                    continue
                if member.name not in manifest.files or member.name in places or not _whole(member, path):
                    raise _no_backup(path)
                place = directory / str(number)  # never a name out of the archive
                with place.open("xb") as out, archive.extractfile(member) as data:  # type: ignore[union-attr]
                    place.chmod(0o600)
                    shutil.copyfileobj(data, out)
                if _digest(place) != manifest.files[member.name]:
                    raise HostileInput(f"{path}: {member.name} is not what the manifest says.", "Take another backup.")
                places[member.name] = place
    except (tarfile.TarError, ValueError, EOFError, OverflowError) as error:  # of damaged heads too
        raise _no_backup(path) from error
    if set(places) != set(manifest.files):
        raise HostileInput(f"{path} was cut off.", "Take another backup.")
    return manifest, places


def _whole(member: tarfile.TarInfo, path: Path) -> bool:
    """Whether it is a plain file that lies in the archive: a sparse one could unpack to more than any disk holds."""
    return member.isreg() and not member.issparse() and 0 <= member.size <= path.stat().st_size


def _read_manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    first = archive.next()
    if first is None or first.name != MANIFEST or not _whole(first, path) or first.size > MAX_MANIFEST_BYTES:
        raise _no_backup(path)
    data = archive.extractfile(first)
    try:
        fields = json.loads(data.read() if data is not None else b"")
        if fields.pop("format") != FORMAT:
            raise HostileInput(f"{path} is a backup of another format.", "Install the version that made it.")
        manifest = Manifest(**fields)
        texts = (manifest.role, manifest.party, manifest.head, manifest.federation, *manifest.files, *manifest.files.values())
        dated = type(manifest.made) is int and 0 <= manifest.made < YEAR_10000
        if (
            type(manifest.last) is not bool
            or not all(isinstance(text, str) for text in texts)
            or DATABASE not in manifest.files
            or not dated
        ):
            raise _no_backup(path)
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _no_backup(path) from error


def _write_archive(path: Path, manifest: Manifest, members: dict[str, Path]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
            about = path.with_name(MANIFEST)
            about.write_text(json.dumps(manifest.to_json(), indent=2) + "\n")
            for name, place in {MANIFEST: about, **members}.items():
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = place.stat().st_size, manifest.made, 0o600
                with place.open("rb") as data:
                    archive.addfile(info, data)
        out.flush()
        os.fsync(out.fileno())


def _results(directory: Path | None) -> dict[str, Path]:
    """Files of every whole result and checkpoint; one without a manifest is being written."""
    if directory is None or not directory.is_dir():
        return {}
    whole = [path.parent for path in sorted(directory.rglob(RESULT_MANIFEST))]
    files = [path for folder in whole for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {f"{RESULTS}/{path.relative_to(directory).as_posix()}": path for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _no_backup(path: Path) -> HostileInput:
    return HostileInput(
        f"{path} is not a backup.", "Name a file that `veilsum participant backup` or `coordinator backup` made."
    )
