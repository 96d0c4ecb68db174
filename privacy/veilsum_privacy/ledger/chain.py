"""The one way entries come into being, at a site and at a coordinator: numbered, chained by hashes, signed.

An entry names the hash of the one before it, and holds 32 random bytes: heads are shown to others, and without these bytes
whoever knows two of them could try what was written in between. The first entry, ``genesis``, names the owner, the
federation's authority and the owner's certificate; whoever signs with another key begins with a ``key`` entry that names its
certificate. So a ledger proves itself to somebody who has nothing else but, to be sure whose it is, the authority's own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import Connection, bindparam, insert, select

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.database import Database
from veilsum_node.errors import Damage, HostileInput, Misuse, StateError
from veilsum_node.identity import Credentials, Label, SigningKey, key_fingerprint, verify_certificate
from veilsum_node.identity.certificate import load_certificate, p256_key
from veilsum_node.randomness import RandomSource
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.ledger.migrations import COMPONENT, PACKAGE
from veilsum_privacy.ledger.rows import HIDING, NO_HASH, RANDOM, RANDOM_BYTES, facts, hash_row, unhex
from veilsum_privacy.ledger.tables import ledger_table

_COLUMNS = ledger_table.c
_NO_COLUMNS = dict.fromkeys(column.name for column in ledger_table.columns)
_INSERT = insert(ledger_table)
_LAST = select(_COLUMNS.seq, _COLUMNS.hash).order_by(_COLUMNS.seq.desc()).limit(1)
_FIRST = select(ledger_table).where(_COLUMNS.seq == 1)
_NAMING_KEYS = select(_COLUMNS.detail).where((_COLUMNS.seq == 1) | (_COLUMNS.kind == Kind.KEY.value)).order_by(_COLUMNS.seq)
_NEW_KEYS = (
    select(_COLUMNS.detail).where(_COLUMNS.seq > bindparam("after"), _COLUMNS.kind == Kind.KEY.value).order_by(_COLUMNS.seq)
)


@dataclass(frozen=True)
class Appended:
    """An entry just written: its number, and its hash (32 bytes)."""

    seq: int
    hash: bytes


class Chain:
    """The owner's end of a ledger: writes entries, signed with its key.

    Args:
        database: from :func:`veilsum_node.database.open_database`.
        credentials: of the owner; their role is that of the ledger.
        clock: unix seconds.
        random: for the 32 bytes of each entry.

    Raises:
        HostileInput: the credentials' certificate is not valid now.
        StateError: the ledger in the database is another party's.
        Damage: its first entry is damaged.
    """

    def __init__(
        self, database: Database, *, credentials: Credentials, clock: Callable[[], int], random: RandomSource
    ) -> None:
        self.credentials, self._clock, self._random = credentials, clock, random
        self._next: SigningKey | None = None  # during a renewal
        self._in_force = credentials.signing_key.fingerprint  # of the key that the ledger names, as far as it was read
        self._read, self._last = 0, (0, "")  # committed entries looked through for keys; the last entry seen or written
        identity = credentials.identity
        database.migrate(PACKAGE, COMPONENT)
        with database.transaction() as connection:
            now = clock()
            verify_certificate(identity.certificate, credentials.authority, now, identity.role)
            row = connection.execute(_FIRST).mappings().first()
            if row is None:
                genesis = {"site": identity.name, "role": identity.role.value, HIDING: True}
                self.append(connection, Kind.GENESIS, detail=genesis | self._own(credentials, authority=True), now=now)
            else:
                self._check_owner(dict(row))
                self._name_key(connection, credentials, now)
            self._read = self._tip(connection)[0]

    def renew(self, credentials: Credentials, run: Callable[[Callable[[Connection], object]], object]) -> None:
        """Sign with renewed credentials from here on; a new key is named by a ``key`` entry first, signed with it.

        A renewal that fails leaves the former in use; try again until it succeeds. Where it is not known whether the entry
        was written, entries are signed with the key that the ledger names.

        Args:
            credentials: the same owner's, checked.
            run: calls its argument in one durable write transaction, perhaps more than once.

        Raises:
            Misuse: they are another party's, or of another federation.
            Unavailable, Damage: the database refuses.
        """
        old, new = self.credentials, credentials
        same = (old.identity.name, old.identity.role, old.federation_id)
        if (new.identity.name, new.identity.role, new.federation_id) != same:
            raise Misuse("A ledger cannot be taken over by another party.", "Renew the owner's own certificate.")
        if not old.signing_key.fingerprint == self._in_force == new.signing_key.fingerprint:
            self._next = new.signing_key
            run(lambda connection: self._name_key(connection, new, self._clock()))
        self.credentials, self._next, self._in_force = new, None, new.signing_key.fingerprint

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
        key: SigningKey | None = None,
    ) -> Appended:
        """Write the next entry; the caller's transaction makes it durable.

        Args:
            connection: of a write transaction.
            kind: of the entry.
            columns: what its columns hold, if more than nothing.
            detail: what else it says.
            now: its time, if it was read already.
            key: that signs it; the owner's present one by default.
        """
        last, last_hash = self._tip(connection)
        signer = key or self._key(connection, (last, last_hash))
        row: dict[str, Any] = {
            **_NO_COLUMNS,
            **(columns or {}),
            "seq": last + 1,
            "time": self._clock() if now is None else now,
            "kind": kind.value,
            "detail": canonical({**(detail or {}), RANDOM: self._random.bytes(RANDOM_BYTES)}).decode(),
            "previous": last_hash,
        }
        row["hash"] = hash_row(row)
        hashed = bytes.fromhex(row["hash"])
        row["signature"] = signer.sign(Label.LEDGER, hashed).hex()
        connection.execute(_INSERT, row)
        self._last = (0, "") if key else (row["seq"], row["hash"])
        return Appended(int(row["seq"]), hashed)

    def own_certificates(self, connection: Connection) -> list[bytes]:
        """Certificates of the owner that the entries name, the latest first; DER.

        Raises:
            HostileInput: one is malformed.
        """
        return self._certificates([str(text) for text in connection.scalars(_NAMING_KEYS)])[::-1]

    @staticmethod
    def _tip(connection: Connection) -> tuple[int, str]:
        """Number and hash of the last entry."""
        last = connection.execute(_LAST).first()
        return (0, NO_HASH) if last is None else (int(last.seq), str(last.hash))

    def _key(self, connection: Connection, tip: tuple[int, str]) -> SigningKey:
        """The key that signs now: the one that the ledger names, which another process may have changed meanwhile.

        Raises:
            StateError: it names a key that this process does not have.
        """
        if tip != self._last:  # others wrote, or what was written was undone
            found = self._certificates([str(text) for text in connection.scalars(_NEW_KEYS, {"after": self._read})])
            if found:
                self._in_force = _fingerprint(found[-1])
            self._read = tip[0]
        for key in (self.credentials.signing_key, self._next):
            if key is not None and key.fingerprint == self._in_force:
                return key
        raise StateError(
            "The ledger names a different key than the one in use here.", "Put that key and its certificate into the identity."
        )

    @staticmethod
    def _own(credentials: Credentials, *, authority: bool) -> dict[str, Any]:
        """What an entry says about the key that signs from here on."""
        named: dict[str, Any] = {"certificate": credentials.identity.certificate}
        if authority:
            named["authority"] = credentials.authority.public_bytes(Encoding.DER)
        return named

    def _check_owner(self, row: Mapping[str, Any]) -> None:
        try:
            detail = facts(row)["detail"]
            damaged = row["kind"] != Kind.GENESIS or row["hash"] != hash_row(row) or not isinstance(detail, dict)
        except HostileInput:
            damaged = True
        if damaged:
            raise Damage("The ledger's first entry is damaged.", "Restore the file and charge what the receipts show.")
        owner, role = detail.get("site"), detail.get("role", "participant")
        if owner != self.name:
            raise StateError(f"The ledger belongs to {owner}, not to {self.name}.", "Check the name and the file.")
        if role != self.credentials.identity.role:
            raise StateError(f"The ledger is a {role}'s, not a {self.credentials.identity.role}'s.", "Check the file.")

    @staticmethod
    def _certificates(details: Iterable[str], name: str = "certificate") -> list[bytes]:
        """Certificates that entries name under ``name``, in order, DER."""
        try:
            parsed = [parse_canonical(text.encode(), what="ledger entry") for text in details]
            return [unhex(detail[name]) for detail in parsed if name in detail]
        except (AttributeError, TypeError, ValueError) as error:
            raise HostileInput("A certificate that the ledger names is malformed.", "Run veilsum ledger verify.") from error

    def _name_key(self, connection: Connection, credentials: Credentials, now: int) -> None:
        """Append a ``key`` entry if the last entry that names a key names another one."""
        details = [str(text) for text in connection.scalars(_NAMING_KEYS)]
        authorities, certificates = self._certificates(details, "authority"), self._certificates(details)
        if authorities and authorities[0] != credentials.authority.public_bytes(Encoding.DER):
            raise StateError("The ledger belongs to another federation.", "Use one state file for each federation.")
        if not certificates or _fingerprint(certificates[-1]) != credentials.signing_key.fingerprint:
            detail = self._own(credentials, authority=not authorities)
            self.append(connection, Kind.KEY, detail=detail, now=now, key=credentials.signing_key)


def _fingerprint(certificate: bytes) -> str:
    key = p256_key(load_certificate(certificate).public_key(), "ledger's certificate")
    return key_fingerprint(key)
