"""The file of an audit's report: signed by the site, read and verified before a dossier takes it in. Nothing here audits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput, Misuse, raising
from veilsum_node.identity import Label, SigningKey, key_fingerprint, verify
from veilsum_node.identity.certificate import load_certificate, p256_key

FORMAT = "veilsum-audit/2"
MOST_BYTES = 1 << 22


def sign_report(body: Mapping[str, Any], key: SigningKey, certificate: bytes) -> dict[str, Any]:
    """The report's file: plain values, the digest and the site's signature of their canonical form, its certificate in PEM."""
    data = canonical(body)
    return {
        "audit": dict(body),
        "digest": digest("veilsum/1/audit", data).hex(),
        "signature": key.sign(Label.AUDIT, data).hex(),
        "certificate": certificate.decode("ascii"),
    }


@dataclass(frozen=True)
class SignedAudit:
    """A report's plain values as they were signed.

    Attributes:
        body: of :meth:`veilsum_privacy.audit.report.AuditReport.to_json`.
        digest: of its canonical form, hexadecimal.
        fingerprint: of the key that signed.
    """

    body: Mapping[str, Any]
    digest: str
    fingerprint: str


def read_report(data: bytes) -> SignedAudit:
    """Read a report's file and verify its signature. Whose key it is, its certificate says; whether that counts, the ledger.

    Raises:
        HostileInput: it is another kind of file, or it was changed.
    """
    wrong = "Give the file that `veilsum participant audit --out` wrote."
    try:
        if len(data) > MOST_BYTES:
            raise ValueError
        value = json.loads(data)
        body, signature = value["audit"], bytes.fromhex(value["signature"])
        certificate, stated = value["certificate"].encode("ascii"), str(value["digest"])
        said = canonical(body)
        rows_stand = all(isinstance(row, dict) and row.keys() >= _ROW for row in body["rows"])
        if body["format"] != FORMAT or not (rows_stand and body.keys() >= _BODY):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Misuse) as error:
        raise HostileInput("The file is not a report of an audit of this version.", wrong) from error
    key = p256_key(load_certificate(certificate).public_key(), "auditing site's certificate")
    with raising(HostileInput("The report of the audit was changed after it was signed.", wrong), on=HostileInput):
        verify(key, Label.AUDIT, said, signature)
    if stated != digest("veilsum/1/audit", said).hex():
        raise HostileInput("The report of the audit states another digest than its own.", wrong)
    return SignedAudit(body, stated, key_fingerprint(key))


_BODY = {"site", "made", "software", "study", "name", "level", "confidence", "flagged", "rows", "unaudited"}
_ROW = {
    "label", "task", "noise", "unit", "disclosure", "sampling_rate", "unrounded", "encrypted", "finding", "why", "failed",
    "flagged",
}  # fmt: skip
