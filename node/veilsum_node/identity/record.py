"""The authority's record of what it signed: one JSON line for each certificate, appended under a lock and made durable.

A name belongs to one key and role at a time, or to one login of an identity provider, which brings a new key every time,
until the authority releases it; a key belongs to one name for good. The record is the authority's own memory; nothing in the
protocol reads it.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from veilsum_node.errors import Damage, Misuse, StateError
from veilsum_node.identity.certificate import Role, moment
from veilsum_node.identity.files import write_new


@dataclass(frozen=True)
class Issued:
    """One certificate as signed.

    Attributes:
        fingerprint: of its key, as in :class:`~veilsum_node.identity.certificate.Identity`.
        serial: the certificate's serial number in hexadecimal.
        issued: when it was signed, Unix seconds.
        expires: last valid second, Unix time.
        certificate: the certificate in PEM.
        subject: who logged in for it, as issuer and subject of the identity provider; empty where an operator signed.
    """

    name: str
    role: Role
    fingerprint: str
    serial: str
    issued: int
    expires: int
    certificate: str
    subject: str = ""

    @property
    def place(self) -> str:
        """Whose it is among certificates: a participant has two, one of which is for its connections."""
        return _transport_of(self.name) if self.role is Role.TRANSPORT else self.name


def _transport_of(name: str) -> str:
    return f"{name}/transport"  # no name holds a slash


def latest_by_place(entries: Iterable[Issued]) -> dict[str, Issued]:
    """The latest certificate of each party, and of each participant's connections beside it."""
    return {entry.place: entry for entry in entries}


@dataclass(frozen=True)
class Released:
    """A name that its owner gave up.

    Attributes:
        released: the name.
        at: when, Unix seconds.
        subject: whose it was, as in :class:`Issued`; empty for an operator's signature.
        to: the login that may take it, likewise; empty for anybody.
    """

    released: str
    at: int
    subject: str = ""
    to: str = ""


@dataclass
class _Index:
    """What the first ``end`` bytes of the record say; a service that runs for long reads only what was added since."""

    file: int = 0
    end: int = 0
    latest: dict[str, Issued] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    released: dict[str, Released] = field(default_factory=dict)

    def take(self, entry: Issued | Released) -> None:
        if isinstance(entry, Released):
            self.released[entry.released] = entry
            self.latest.pop(_transport_of(entry.released), None)  # goes with the name
            return
        # certificates themselves are not needed here, and are most of the record
        self.latest[entry.place] = replace(entry, certificate="")
        self.until[entry.name] = max(entry.expires, self.until.get(entry.name, 0))
        self.owners.setdefault(entry.fingerprint, entry.place)
        if entry.role is not Role.TRANSPORT:
            self.released.pop(entry.name, None)


class IssuedRecord:
    """The file ``issued/index.jsonl`` of an authority's directory; reading it needs no key."""

    def __init__(self, authority: Path) -> None:
        self._path = authority / "issued" / "index.jsonl"
        self._index = _Index()

    def create(self) -> None:
        """Make an empty record.

        Raises:
            StateError: there is one already, or it cannot be written.
        """
        write_new(self._path, b"", mode=0o600)  # who logged in, and when, is personal

    def entries(self) -> list[Issued]:
        """Every certificate on record, oldest first.

        Raises:
            StateError: the file is missing.
            Damage: it cannot be read.
        """
        return [entry for entry in self.history() if isinstance(entry, Issued)]

    def history(self) -> list[Issued | Released]:
        """Every certificate on record, and every name that was released, oldest first.

        Raises:
            StateError, Damage: as :meth:`entries`.
        """
        with self._locked() as file:
            return self._parse(file, 0)

    def look(self) -> list[Issued]:
        """The same as :meth:`entries` for who may only read the file: no lock is taken, and nothing is cut off.

        Raises:
            StateError: it cannot be read.
            Damage: a whole line of it is malformed.
        """
        try:
            data = self._path.read_bytes()
        except OSError as error:
            raise StateError(f"The record {self._path} cannot be read ({error.strerror}).", "Check path and mode.") from error
        try:
            lines = data[: data.rfind(b"\n") + 1].splitlines()
            return [entry for entry in map(_entry, map(json.loads, lines)) if isinstance(entry, Issued)]
        except (ValueError, TypeError, KeyError) as error:
            raise Damage(f"The record {self._path} is damaged.", "Restore it from a backup.") from error

    def add(self, entry: Issued, *, replace: bool) -> None:
        """Append ``entry``; when this returns it is durable.

        Args:
            replace: let its name go to another key or role than before.

        Raises:
            StateError: the name or the key is taken, or the file is missing or cannot be written.
            Damage: it cannot be read.
        """
        with self._locked() as file:
            _check_free(self._caught_up(file), entry, replace=replace)
            fields = asdict(entry)
            if not entry.subject:
                del fields["subject"]  # a line of an operator's stays what it always was
            self._append(file, fields)

    def release(self, name: str, at: int, to: str = "") -> Released:
        """Let a name go to another login, or another key or role; once this returns that is on record.

        Args:
            at: now, Unix seconds.
            to: the only login that may take it, as issuer and subject; anybody without it.

        Raises:
            Misuse: the name was never signed for.
            StateError: a certificate of its owner is still valid; or as :meth:`add`.
            Damage: as :meth:`add`.
        """
        with self._locked() as file:
            index = self._caught_up(file)
            if name not in index.latest:
                raise Misuse(f"{name!r} was never signed for.", "`veilsum federation list` shows who was.")
            if at <= index.until[name]:
                raise StateError(
                    f"A certificate of {name!r} is valid until {moment(index.until[name])}: two would bear one name.",
                    "Release the name after that.",
                )
            made = Released(name, at, index.latest[name].subject, to)
            self._append(file, asdict(made))
        return made

    def _append(self, file: BinaryIO, fields: dict[str, object]) -> None:
        file.write(json.dumps(fields).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Open the file and hold its lock, so that two operators cannot give one name away twice."""
        try:
            with self._path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
        except OSError as error:
            if not self._path.parent.is_dir():
                told = f"{self._path.parents[1]} holds no authority: it has no folder {self._path.parent.name}."
                raise StateError(told, "Name the authority's directory, which `veilsum federation init` made.") from error
            raise StateError(
                f"The record {self._path} cannot be used ({error.strerror}).",
                "Check its permissions, or restore it from a backup.",
            ) from error

    def _caught_up(self, file: BinaryIO) -> _Index:
        """What the whole record says; leaves the position after its last line."""
        found = os.fstat(file.fileno())
        if found.st_ino != self._index.file or found.st_size < self._index.end:  # another file, or one that was put back
            self._index = _Index(file=found.st_ino)
        for entry in self._parse(file, self._index.end):
            self._index.take(entry)
        self._index.end = file.tell()
        return self._index

    def _parse(self, file: BinaryIO, start: int) -> list[Issued | Released]:
        """Read all entries from a byte on, and leave the position after the last; a line that a crash cut off is dropped."""
        file.seek(start)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            file.truncate(start + len(whole))
            file.seek(start + len(whole))
        try:
            return [_entry(json.loads(line)) for line in whole.splitlines()]
        except (ValueError, TypeError, KeyError) as error:
            raise Damage(f"The record {self._path} is damaged.", "Restore it from a backup.") from error


def _entry(fields: dict[str, Any]) -> Issued | Released:
    return Released(**fields) if "released" in fields else Issued(**{**fields, "role": Role(fields["role"])})


def _check_free(index: _Index, new: Issued, *, replace: bool) -> None:
    if new.subject:
        _check_login(index, new)
        return
    owner = index.owners.get(new.fingerprint, new.place)
    if owner != new.place:
        raise StateError(f"The key is certified for {owner!r} already.", "Make a new key: no two parties share one.")
    latest, free = index.latest.get(new.place), index.released.get(new.name)
    if new.role is Role.TRANSPORT:
        party = index.latest.get(new.name)
        if free is not None or party is None or party.role is not Role.PARTICIPANT:
            raise StateError(
                f"No participant {new.name!r} was signed for.",
                "Sign the request of its own key first: that one names the party.",
            )
    elif free is not None and not free.to:
        return
    if latest is not None and (latest.fingerprint, latest.role) != (new.fingerprint, new.role) and not replace:
        raise StateError(
            f"The name {new.name!r} was signed for another key or role.",
            "Make sure that the party asked for it, then sign with --replace.",
        )


def _check_login(index: _Index, new: Issued) -> None:
    """One token, one key, one certificate: what was certified once is not certified again, whoever repeats the token."""
    if new.fingerprint in index.owners:
        raise StateError("The key is certified already: every login brings a new one.", "Log in again.")
    latest, free = index.latest.get(new.name), index.released.get(new.name)
    if free is not None and free.to in ("", new.subject):
        return
    if latest is not None and (free is not None or latest.subject != new.subject):
        raise StateError(
            f"The name {new.name!r} belongs to somebody else in this federation.",
            "Ask the authority's operator: the identity provider may have given a name a second time.",
        )
