"""Receipts as a ledger keeps them, beside the entry that covers them by their digest.

A site keeps a whole cohort's receipts with its charge, the coordinator's mirror with the entry that it countersigns. What is
kept is other parties' word: it is for whoever verifies a ledger later (:mod:`veilsum_privacy.ledger.verification`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.checks import CheckedReceipt
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, parse_receipt
from veilsum_privacy.ledger.rows import unhex
from veilsum_privacy.ledger.tables import certificate_table, receipt_table

_COLUMNS = receipt_table.c


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
        return parse_receipt(self.receipt.body)


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


def check_numbers(connection: Connection, checked: Sequence[CheckedReceipt]) -> None:
    """Check that each receipt's number lies above all that are kept of its signer's in the study.

    Raises:
        HostileInput: a number was seen before: the receipt is replayed, or its signer's ledger was rewound.
    """
    rows = connection.execute(_NUMBERS, {"study": checked[0].receipt.study.hex()})
    seen = {str(name): int(number) for name, number in rows}
    for item in checked:
        name, number = item.receipt.participant, item.receipt.number
        if number <= seen.get(name, 0):
            raise HostileInput(
                f"The receipt of {name} has number {number}, but number {seen[name]} is kept already.",
                f"It is an old receipt, or the ledger of {name} was restored from a backup.",
            )


_NUMBERS = (
    select(_COLUMNS.participant, func.max(_COLUMNS.number))
    .where(_COLUMNS.study == bindparam("study"))
    .group_by(_COLUMNS.participant)
)
_KEEP = insert(receipt_table)
_KEEP_CERTIFICATE = insert(certificate_table)
_KNOWN = select(certificate_table.c.fingerprint).where(
    certificate_table.c.fingerprint.in_(bindparam("fingerprints", expanding=True))
)


def keep_receipts(connection: Connection, entry: int, checked: Sequence[CheckedReceipt]) -> None:
    """Keep verified receipts as those that an entry covers, and their signers' certificates."""
    fingerprints = [certificate_fingerprint(item.signer.certificate) for item in checked]
    certificates = {name: item.signer.certificate.hex() for name, item in zip(fingerprints, checked, strict=True)}
    for name in connection.scalars(_KNOWN, {"fingerprints": fingerprints}):
        del certificates[name]
    if certificates:
        new = [{"fingerprint": name, "certificate": certificate} for name, certificate in certificates.items()]
        connection.execute(_KEEP_CERTIFICATE, new)
    connection.execute(
        _KEEP,
        [
            {
                "entry": entry,
                "position": position,
                **receipt_columns(item.receipt),
                "body": item.signed.body.decode(),
                "signature": item.signed.signature.hex(),
                "certificate": fingerprint,
            }
            for position, (item, fingerprint) in enumerate(zip(checked, fingerprints, strict=True))
        ],
    )


def receipt_columns(receipt: Receipt) -> dict[str, Any]:
    """The columns by which kept receipts are found; they repeat what the body says."""
    return {
        "context": receipt.context.hex(),
        "participant": receipt.participant,
        "study": receipt.study.hex(),
        "round": receipt.round,
        "attempt": receipt.attempt,
        "number": receipt.number,
        "head": receipt.head.hex(),
    }


def keep_certificate(connection: Connection, certificate: bytes) -> str:
    """Keep a certificate, once. Returns its fingerprint."""
    fingerprint = certificate_fingerprint(certificate)
    if connection.scalar(_KNOWN, {"fingerprints": [fingerprint]}) is None:
        connection.execute(_KEEP_CERTIFICATE, {"fingerprint": fingerprint, "certificate": certificate.hex()})
    return fingerprint


def certificate_fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()
