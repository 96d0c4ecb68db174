"""Receipts as a ledger keeps them, beside the entry that covers them by their digest.

A site keeps a whole cohort's receipts with its charge, the coordinator's mirror with the entry that it countersigns. What is
kept is other parties' word: it is for whoever verifies a ledger later (:mod:`veilsum_privacy.ledger.walking` reads it).
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.checks import CheckedReceipt
from veilsum_privacy.ledger.receipts import Receipt
from veilsum_privacy.ledger.tables import certificate_table, receipt_table

_COLUMNS = receipt_table.c


def check_numbers(connection: Connection, receipts: Sequence[Receipt]) -> None:
    """Check that the number of each receipt of a sum lies above all that are kept of its signer's in the study.

    Raises:
        HostileInput: a number was seen before: the receipt is replayed, or its signer's ledger was rewound.
    """
    seen = last_numbers(connection, receipts[0].study)
    for item in receipts:
        name, number = item.participant, item.number
        if number <= seen.get(name, 0):
            raise HostileInput(
                f"The receipt of {name} has number {number}, but number {seen[name]} is kept already.",
                f"It is an old receipt, or the ledger of {name} was restored from a backup.",
            )


def last_numbers(connection: Connection, study: bytes) -> dict[str, int]:
    """The highest receipt number that is kept of each signer in a study; they rise from attempt to attempt."""
    return {str(name): int(number) for name, number in connection.execute(_NUMBERS, {"study": study.hex()})}


# From signer to signer along the index: to group the rows reads every receipt of every step that was taken.
_HERE = _COLUMNS.study == bindparam("study")
_FIRST = select(func.min(_COLUMNS.participant).label("name")).where(_HERE).cte("signers", recursive=True)
_NEXT = select(func.min(_COLUMNS.participant)).where(_HERE, _COLUMNS.participant > _FIRST.c.name).scalar_subquery()
_SIGNERS = _FIRST.union_all(select(_NEXT).where(_FIRST.c.name.is_not(None)))
_LAST = select(func.max(_COLUMNS.number)).where(_HERE, _COLUMNS.participant == _SIGNERS.c.name).scalar_subquery()
_NUMBERS = select(_SIGNERS.c.name, _LAST).where(_SIGNERS.c.name.is_not(None))
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
