"""Signed receipts: a participant's word that it uploaded one payload for one context.

Receipts are numbered within the study and carry the head of the site's ledger; every member of the cohort sees all of them
before it consents, and keeps the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from veilsum_privacy.canonical import canonical, parse_canonical
from veilsum_privacy.errors import HostileInput
from veilsum_privacy.identity import Identity, Label, SigningKey, verify

MAX_RECEIPT_BYTES = 2048


@dataclass(frozen=True)
class Receipt:
    """What a participant signs after its upload.

    Attributes:
        study: digest of the study.
        participant: the signer's name.
        context: digest c of the attempt.
        payload: SHA-256 over the payload's ciphertexts.
        number: the receipt's number within the study at this site, from 1, never used twice.
        head: head of the site's ledger.
    """

    study: bytes
    participant: str
    context: bytes
    payload: bytes
    number: int
    head: bytes

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical(
            {
                "v": 1,
                "study": self.study,
                "participant": self.participant,
                "context": self.context,
                "payload": self.payload,
                "number": self.number,
                "head": self.head,
            }
        )


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt's exact bytes with their signature."""

    body: bytes
    signature: bytes


def sign_receipt(receipt: Receipt, key: SigningKey) -> SignedReceipt:
    """Sign a receipt."""
    body = receipt.to_bytes()
    return SignedReceipt(body, key.sign(Label.RECEIPT, body))


def parse_receipt(body: bytes) -> Receipt:
    """Parse a receipt's bytes; says nothing about who signed them.

    Raises:
        HostileInput: malformed.
    """
    if len(body) > MAX_RECEIPT_BYTES:
        raise HostileInput("A receipt is larger than allowed.")
    value = parse_canonical(body, what="receipt")
    if not isinstance(value, dict) or set(value) != {"v", "study", "participant", "context", "payload", "number", "head"}:
        raise HostileInput("A receipt has other fields than version 1 has.")
    try:
        study, context, payload, head = (bytes.fromhex(value[name]) for name in ("study", "context", "payload", "head"))
    except (TypeError, ValueError) as error:
        raise HostileInput("A receipt's digests are not hexadecimal.") from error
    number, participant = value["number"], value["participant"]
    if type(number) is not int or not 0 < number < 2**53 or not isinstance(participant, str) or value["v"] != 1:
        raise HostileInput("A receipt's number, name or version is out of range.")
    if any(len(item) != 32 for item in (study, context, payload, head)):
        raise HostileInput("A receipt's digests have the wrong length.")
    receipt = Receipt(study, participant, context, payload, number, head)
    if receipt.to_bytes() != body:
        raise HostileInput("A receipt writes a value in another way than version 1 does.")
    return receipt


def verify_receipt(signed: SignedReceipt, signer: Identity, study: bytes, context: bytes) -> Receipt:
    """Verify a member's receipt for this study and context.

    Raises:
        HostileInput: another signer, study or context, or a wrong signature.
    """
    verify(signer.public_key, Label.RECEIPT, signed.body, signed.signature)
    receipt = parse_receipt(signed.body)
    if receipt.participant != signer.name or receipt.study != study:
        raise HostileInput("A receipt is for another study or names another participant than its signer.")
    if receipt.context != context:
        raise HostileInput("A receipt is for another context: not everyone was asked for the same sum.")
    return receipt
