"""The one way entries come into being, at a site and at a coordinator: numbered, chained by hashes, signed.

An entry names the hash of the one before it. The first, ``genesis``, holds 32 random bytes and names the owner, the
federation's authority and the owner's certificate; whoever signs with another key begins with a ``key`` entry that names its
certificate. So a ledger proves itself to somebody who has nothing else but, to be sure whose it is, the authority's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import Connection, Engine, insert, select

from veilsum_privacy.canonical import canonical, parse_canonical
from veilsum_privacy.database import migrate, transaction
from veilsum_privacy.errors import HostileInput, StateError
from veilsum_privacy.identity import Credentials, Label, key_fingerprint, verify_certificate
from veilsum_privacy.identity.certificate import load_certificate, p256_key
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.ledger.migrations import COMPONENT, PACKAGE
from veilsum_privacy.ledger.rows import NO_HASH, facts, hash_row, unhex
from veilsum_privacy.ledger.tables import ledger_table
from veilsum_privacy.randomness import RandomSource

_COLUMNS = ledger_table.c
_NO_COLUMNS = dict.fromkeys(column.name for column in ledger_table.columns)
_INSERT = insert(ledger_table)
_LAST = select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)


@dataclass(frozen=True)
class Appended:
    """An entry just written: its number, and its hash (32 bytes)."""

    seq: int
    hash: bytes


class Chain:
    """The owner's end of a ledger: writes entries, signed with its key.

    Args:
        engine: from :func:`veilsum_privacy.database.open_database`.
        credentials: of the owner; their role is that of the ledger.
        clock: unix seconds.
        random: for the 32 bytes that the chain begins with.

    Raises:
        HostileInput: the credentials' certificate is not valid now.
        StateError: the ledger in the database is another party's, or its first entry is damaged.
    """

    def __init__(self, engine: Engine, *, credentials: Credentials, clock: Callable[[], int], random: RandomSource) -> None:
        self.credentials, self._clock = credentials, clock
        identity = credentials.identity
        migrate(engine, PACKAGE, COMPONENT)
        with transaction(engine) as connection:
            now = clock()
            verify_certificate(identity.certificate, credentials.authority, now, identity.role)
            row = connection.execute(select(ledger_table).where(_COLUMNS.seq == 1)).mappings().first()
            if row is None:
                genesis = {"random": random.bytes(32), "site": identity.name, "role": identity.role.value}
                self.append(connection, Kind.GENESIS, detail=genesis | self._own(authority=True), now=now)
            else:
                self._check_owner(dict(row))
                self._name_key(connection, parse_canonical(row["detail"].encode(), what="ledger entry"), now)

    @property
    def name(self) -> str:
        """The owner's certified name."""
        return self.credentials.identity.name

    def now(self) -> int:
        """The time, for an entry that depends on it."""
        return self._clock()

    def append(
        self,
        connection: Connection,
        kind: Kind,
        columns: Mapping[str, Any] | None = None,
        detail: Mapping[str, Any] | None = None,
        *,
        now: int | None = None,
    ) -> Appended:
        """Write the next entry; the caller's transaction makes it durable.

        Args:
            connection: of a write transaction.
            kind: of the entry.
            columns: what its columns hold, if more than nothing.
            detail: what else it says.
            now: its time, if it was read already.
        """
        last = connection.execute(_LAST).first()
        row: dict[str, Any] = {
            **_NO_COLUMNS,
            **(columns or {}),
            "seq": 1 if last is None else last.seq + 1,
            "time": self._clock() if now is None else now,
            "kind": kind.value,
            "detail": canonical(detail or {}).decode(),
            "previous": NO_HASH if last is None else last.hash,
        }
        row["hash"] = hash_row(row)
        hashed = bytes.fromhex(row["hash"])
        row["signature"] = self.credentials.signing_key.sign(Label.LEDGER, hashed).hex()
        connection.execute(_INSERT, row)
        return Appended(int(row["seq"]), hashed)

    def _own(self, *, authority: bool) -> dict[str, Any]:
        """What an entry says about the key that signs from here on."""
        named: dict[str, Any] = {"certificate": self.credentials.identity.certificate}
        if authority:
            named["authority"] = self.credentials.authority.public_bytes(Encoding.DER)
        return named

    def _check_owner(self, row: Mapping[str, Any]) -> None:
        try:
            detail = facts(row)["detail"]
            damaged = row["kind"] != Kind.GENESIS or row["hash"] != hash_row(row) or not isinstance(detail, dict)
        except HostileInput:
            damaged = True
        if damaged:
            raise StateError("The ledger's first entry is damaged.", "Restore the file and charge what the receipts show.")
        owner, role = detail.get("site"), detail.get("role", "participant")
        if owner != self.name:
            raise StateError(f"The ledger is that of {owner}, not of {self.name}.", "Check the name and the file.")
        if role != self.credentials.identity.role:
            raise StateError(f"The ledger is a {role}'s, not a {self.credentials.identity.role}'s.", "Check the file.")

    def _name_key(self, connection: Connection, genesis: Mapping[str, Any], now: int) -> None:
        """Append a ``key`` entry if the last entry that names a key names another one."""
        query = select(_COLUMNS.detail).where(_COLUMNS.kind == Kind.KEY.value).order_by(_COLUMNS.seq)
        named = [genesis, *(parse_canonical(str(text).encode(), what="ledger entry") for text in connection.scalars(query))]
        try:
            authorities = [unhex(detail["authority"]) for detail in named if "authority" in detail]
            certificates = [unhex(detail["certificate"]) for detail in named if "certificate" in detail]
        except (AttributeError, TypeError, ValueError) as error:
            raise HostileInput("A certificate that the ledger names is malformed.", "Run veilsum ledger verify.") from error
        if authorities and authorities[0] != self.credentials.authority.public_bytes(Encoding.DER):
            raise StateError("The ledger belongs to another federation.", "Use one state file for each federation.")
        if not certificates or _fingerprint(certificates[-1]) != self.credentials.signing_key.fingerprint:
            self.append(connection, Kind.KEY, detail=self._own(authority=not authorities), now=now)


def _fingerprint(certificate: bytes) -> str:
    key = p256_key(load_certificate(certificate).public_key(), "ledger's certificate")
    return key_fingerprint(key)
