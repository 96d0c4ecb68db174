"""What a ledger holds, read whole, with the receipts that it keeps: for verification, exports and whoever compares.

Who books, and asks what was booked, does without.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, select

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.kept_receipts import receipt_columns
from veilsum_privacy.ledger.reader import rows_of
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt
from veilsum_privacy.ledger.rows import Row, unhex
from veilsum_privacy.ledger.tables import certificate_table, ledger_table, receipt_table

_KEPT = receipt_table.c
_KEPT_QUERY = select(receipt_table).order_by(_KEPT.entry, _KEPT.position)


@dataclass(frozen=True)
class KeptReceipt:
    """A receipt as a ledger keeps it.

    Attributes:
        entry: number of the entry that covers it.
        position: in the cohort, from 0.
        receipt: the exact bytes with their signature.
        certificate: of its signer, DER.
        consent: SHA-256 of what the signer consented with, in a mirror that knows it.
    """

    entry: int
    position: int
    receipt: SignedReceipt
    certificate: bytes
    consent: bytes | None

    @cached_property
    def parsed(self) -> Receipt:
        """What it says; whether it was signed is another matter.

        Raises:
            HostileInput: malformed.
        """
        return self.receipt.read()


@dataclass(frozen=True)
class KeptRow:
    """A kept receipt as it was read, from a database or an export; nothing about it is certain yet.

    Attributes:
        values: by name; a database repeats some of what the body says, and holds the consent itself instead of its hash.
    """

    values: Mapping[str, Any]

    @property
    def entry(self) -> Any:
        """Number of the entry that covers it."""
        return self.values.get("entry")

    @staticmethod
    def hash_consent(consent: str) -> str:
        """What an export holds of a consent: enough to know it again. Both in hexadecimal.

        Raises:
            ValueError: it is not lower-case hexadecimal.
        """
        return hashlib.sha256(unhex(consent)).hexdigest()

    def read(self, certificates: Mapping[str, bytes]) -> KeptReceipt:
        """Turn it into a kept receipt, and compare what is repeated.

        Args:
            certificates: DER by fingerprint.

        Raises:
            HostileInput: it is malformed, its columns contradict it, or its certificate is missing.
        """
        values = self.values
        try:
            entry, position, body = values["entry"], values["position"], values["body"].encode()
            signature, fingerprint = unhex(values["signature"]), values["certificate"]
            consented = values.get("consented")
            if values.get("consent") is not None:
                consented = self.hash_consent(values["consent"])
            consent = None if consented is None else unhex(consented)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("A kept receipt is malformed.") from error
        if type(entry) is not int or type(position) is not int or (consent is not None and len(consent) != 32):
            raise HostileInput("A kept receipt is malformed.")
        if fingerprint not in certificates:
            raise HostileInput("The certificate of a kept receipt is missing.")
        kept = KeptReceipt(entry, position, SignedReceipt(body, signature), certificates[fingerprint], consent)
        repeated = receipt_columns(kept.parsed)
        if "context" in values and any(values.get(name) != value for name, value in repeated.items()):
            raise HostileInput("The columns of a kept receipt contradict it.")
        return kept


class ChainStep(NamedTuple):
    """One entry of a walk: its row, and what is kept with it; an empty row if that belongs to no entry."""

    row: Row
    kept: Sequence[KeptRow]


class ChainWalk(NamedTuple):
    """Everything that a ledger holds, as one state of it.

    Attributes:
        certificates: kept with receipts, DER by fingerprint.
        steps: every entry in order.
    """

    certificates: Mapping[str, bytes]
    steps: Iterator[ChainStep]


class LedgerSource(Protocol):
    """What can be verified: a reader of a database, or an export."""

    def walk(self) -> AbstractContextManager[ChainWalk]:
        """Read everything."""


def kept_receipts(connection: Connection, first: int, wanted: Mapping[str, object]) -> list[KeptReceipt]:
    """Receipts kept with entries from number ``first`` on whose columns are as wanted (None for any), in order.

    Raises:
        HostileInput: what is kept is malformed.
    """
    query = _KEPT_QUERY.where(_KEPT.entry >= first)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(_KEPT[name] == value)
    rows = list(rows_of(connection, query))
    signers = select(certificate_table).where(certificate_table.c.fingerprint.in_({row["certificate"] for row in rows}))
    certificates = _certificates(connection.execute(signers))
    return [KeptRow(row).read(certificates) for row in rows]


def walked(connection: Connection, *, keeps: bool) -> ChainWalk:
    """Everything that a database's ledger holds; ``keeps``: whether it has a table of receipts."""
    certificates = _certificates(connection.execute(select(certificate_table))) if keeps else {}
    return ChainWalk(certificates, _steps(connection, rows_of(connection, _KEPT_QUERY) if keeps else iter(())))


def _steps(connection: Connection, kept: Iterator[dict[str, Any]]) -> Iterator[ChainStep]:
    ahead = next(kept, None)
    for row in rows_of(connection, select(ledger_table).order_by(ledger_table.c.seq)):
        mine: list[KeptRow] = []
        while ahead is not None and type(ahead["entry"]) is type(row["seq"]) is int and ahead["entry"] <= row["seq"]:
            mine.append(KeptRow(ahead))
            ahead = next(kept, None)
        yield ChainStep(row, mine)
    if ahead is not None:
        yield ChainStep({}, [KeptRow(ahead)])


def _certificates(rows: Iterable[Any]) -> dict[str, bytes]:
    """Certificates by fingerprint; what is none is missed where it is needed."""
    certificates: dict[str, bytes] = {}
    for row in rows:
        with suppress(TypeError, ValueError):
            certificates[str(row.fingerprint)] = unhex(row.certificate)
    return certificates
