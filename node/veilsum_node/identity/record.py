"""The authority's record of what it signed: one JSON line for each certificate, appended under a lock and made durable.

A name belongs to one key and role at a time, or to one login of an identity provider, which brings a new key every time; a key
belongs to one name for good. The record is the authority's own memory; nothing in the protocol reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from veilsum_node.errors import Damage, StateError
from veilsum_node.identity.certificate import Role
from veilsum_node.identity.files import write_new


@dataclass(frozen=True)
class Issued:
    """One certificate as signed.

    Attributes:
        name: the party.
        role: its role.
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


class IssuedRecord:
    """The file ``issued/index.jsonl`` of an authority's directory; reading it needs no key."""

    def __init__(self, authority: Path) -> None:
        self._path = authority / "issued" / "index.jsonl"

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
        with self._locked() as file:
            return self._parse(file)

    def add(self, entry: Issued, *, replace: bool) -> None:
        """Append ``entry``; when this returns it is durable.

        Args:
            entry: the certificate just signed.
            replace: let its name go to another key or role than before.

        Raises:
            StateError: the name or the key is taken, or the file is missing or cannot be written.
            Damage: it cannot be read.
        """
        with self._locked() as file:
            _check_free(self._parse(file), entry, replace=replace)
            fields = asdict(entry)
            if not entry.subject:
                del fields["subject"]  # a line of an operator's stays what it always was
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
            raise StateError(
                f"The record {self._path} cannot be used ({error.strerror}).",
                "Check its permissions, or restore it from a backup.",
            ) from error

    def _parse(self, file: BinaryIO) -> list[Issued]:
        """Read all entries and leave the position after the last; a line that a crash cut off was never handed out."""
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            file.truncate(len(whole))
            file.seek(len(whole))
        try:
            parsed = [json.loads(line) for line in whole.splitlines()]
            return [Issued(**{**fields, "role": Role(fields["role"])}) for fields in parsed]
        except (ValueError, TypeError, KeyError) as error:
            raise Damage(f"The record {self._path} is damaged.", "Restore it from a backup.") from error


def _check_free(entries: Sequence[Issued], new: Issued, *, replace: bool) -> None:
    if new.subject:
        _check_login(entries, new)
        return
    for entry in entries:
        if entry.fingerprint == new.fingerprint and entry.name != new.name:
            raise StateError(f"The key is certified for {entry.name!r} already.", "Make a new key: no two parties share one.")
    latest = next((entry for entry in reversed(entries) if entry.name == new.name), None)
    if latest is not None and (latest.fingerprint, latest.role) != (new.fingerprint, new.role) and not replace:
        raise StateError(
            f"The name {new.name!r} was signed for another key or role.",
            "Make sure that the party asked for it, then sign with --replace.",
        )


def _check_login(entries: Sequence[Issued], new: Issued) -> None:
    """One token, one key, one certificate: what was certified once is not certified again, whoever repeats the token."""
    if any(entry.fingerprint == new.fingerprint for entry in entries):
        raise StateError("The key is certified already: every login brings a new one.", "Log in again.")
    latest = next((entry for entry in reversed(entries) if entry.name == new.name), None)
    if latest is not None and latest.subject != new.subject:
        raise StateError(
            f"The name {new.name!r} belongs to somebody else in this federation.",
            "Ask the authority's operator: the identity provider may have given a name a second time.",
        )
