"""Receipts: a participant's signed word that it uploaded one payload for one context, and the coordinator's word on them all.

A receipt is numbered within the study, names the release that it belongs to and carries the head of the site's ledger. Every
member of the cohort sees all receipts, countersigned by the coordinator with the head of its mirror, before it consents, and
keeps them. Whoever's ledger is later rewound, forked or edited, the others' receipts do not fit it any more.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from veilsum_node.canonical import canonical, digest, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, SigningKey, verify
from veilsum_privacy.ledger.entries import Mechanism, Reservation
from veilsum_privacy.ledger.rows import read_mechanism

MAX_RECEIPT_BYTES = 2048
_LARGEST_NUMBER = 2**53 - 1  # in canonical form
CONSENT_BYTES = 32
_VERSIONS = (1, 6)

_RECEIPT_FIELDS = {
    "v", "study", "participant", "round", "attempt", "context", "payload", "number", "head", "dataset", "event", "colluders",
    "unit", "cohort_size", "consent",
}  # fmt: skip
_COUNTERSIGNATURE_FIELDS = {"v", "study", "coordinator", "round", "attempt", "context", "receipts", "entry", "head"}


@dataclass(frozen=True)
class Receipt:
    """What a participant signs after its upload.

    Attributes:
        study: digest of the study.
        participant: the signer's name.
        round, attempt: which sum, and which try at it.
        context: digest c of the attempt.
        payload: digest of the payload (:func:`~veilsum_privacy.securesum.key_shares.payload_digest`).
        number: the receipt's number within the study at this site, from 1, never used twice.
        head: head of the site's ledger.
        dataset: as the study names it.
        mechanism: how the sum is made private; public, for it follows from the study and the cohort.
        unit: the unit of privacy.
        cohort_size: participants in the sum.
        consent: :func:`consent_commitment` of the consent that the site may give, so that nobody can claim one it never gave.
        version: of the receipt's form: 6, or 1 for sums of version 5 of the protocol and before.
    """

    study: bytes
    participant: str
    round: int
    attempt: int
    context: bytes
    payload: bytes
    number: int
    head: bytes
    dataset: str
    mechanism: Mechanism
    unit: str
    cohort_size: int
    consent: bytes
    version: int = 6

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        mechanism = {"event": self.mechanism.to_json(), "colluders": self.mechanism.noise.colluders}
        said = {**vars(self), **mechanism, "v": self.version}
        return canonical({name: said[name] for name in _RECEIPT_FIELDS})

    def commits_to(self, proof: bytes) -> bool:
        """Whether :func:`consent_proof` of a consent is of the one that its sender may give for this receipt."""
        if self.version == 1:
            return hmac.compare_digest(hashlib.sha256(proof).digest(), self.consent)
        return hmac.compare_digest(consent_commitment(self.context, self.participant, proof), self.consent)

    def hold(self, consent: bytes) -> None:
        """Check a consent against the receipt.

        Raises:
            HostileInput: it is another one.
        """
        if len(consent) != CONSENT_BYTES or not self.commits_to(consent_proof(consent)):
            raise HostileInput(f"The consent of {self.participant} is not the one that its receipt commits it to.")

    def reservation(self, population: str) -> Reservation:
        """The release as the site's own ledger books it.

        Raises:
            Misuse: no ledger would book such a release.
        """
        return Reservation(
            self.study, self.round, self.attempt, self.context, population, self.dataset, self.mechanism, self.unit,
            self.cohort_size,
        )  # fmt: skip


@dataclass(frozen=True)
class Countersignature:
    """What the coordinator signs when it shows an attempt's receipts to the cohort.

    Attributes:
        study, round, attempt, context: of the attempt.
        coordinator: the signer's name.
        receipts: :func:`receipts_digest` of what was shown.
        entry: number of the mirror's entry that records it.
        head: hash of that entry.
    """

    study: bytes
    coordinator: str
    round: int
    attempt: int
    context: bytes
    receipts: bytes
    entry: int
    head: bytes

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical({"v": 1, **vars(self)})


@dataclass(frozen=True)
class SignedReceipt:
    """The exact bytes of a receipt or countersignature with their signature; ``known`` is what a receipt says, of one that
    the reader wrote itself (:func:`whole_receipts`)."""

    body: bytes
    signature: bytes
    known: Receipt | None = field(default=None, kw_only=True, repr=False, compare=False)

    def read(self) -> Receipt:
        """What a receipt says, as :func:`parse_receipt`."""
        return self.known or parse_receipt(self.body)


@dataclass(frozen=True)
class Witness:
    """What a member of a cohort keeps of an attempt that it consents to.

    Attributes:
        receipts: of every member in the cohort's order, its own included.
        countersigned: the coordinator's word that it showed exactly these to all of them.
        certificates: of every member and of the coordinator, by name; DER.
    """

    receipts: tuple[SignedReceipt, ...]
    countersigned: SignedReceipt
    certificates: Mapping[str, bytes]


class ReceiptPart(NamedTuple):
    """What of a member's receipt does not follow from the attempt; fields as of :class:`Receipt`, and the signature under all
    of it."""

    payload: bytes
    number: int
    head: bytes
    consent: bytes
    signature: bytes


class WordPart(NamedTuple):
    """The same of a :class:`Countersignature`."""

    entry: int
    head: bytes
    signature: bytes


@lru_cache(maxsize=8)  # a site writes them when it answers and when it pays
def whole_receipts(parts: tuple[ReceiptPart, ...], own: Receipt, names: tuple[str, ...]) -> tuple[SignedReceipt, ...]:
    """The receipts of a cohort from what is shown of them: the bytes that each member signed, if it signed for the release
    that one's own receipt is for. Nothing says that it did but its signature.

    Args:
        parts: of every member, in the cohort's order.
        own: the reader's receipt.
        names: of the cohort.

    Raises:
        HostileInput: not one of each member, or malformed.
    """
    if len(parts) != len(names):
        raise HostileInput("There is not exactly one receipt for each member of the cohort.")
    for part in parts:
        _check_part(part.number, part.payload, part.head, part.consent)
    whole = []
    for name, (payload, number, head, consent, signature) in zip(names, parts, strict=True):
        receipt = replace(own, participant=name, payload=payload, number=number, head=head, consent=consent)
        whole.append(SignedReceipt(receipt.to_bytes(), signature, known=receipt))
    if any(len(item.body) > MAX_RECEIPT_BYTES for item in whole):
        raise HostileInput("A receipt is larger than allowed.")
    return tuple(whole)


def whole_word(part: WordPart, own: Receipt, coordinator: str, receipts: Sequence[SignedReceipt]) -> SignedReceipt:
    """A coordinator's word on these receipts from what is shown of it, as :func:`whole_receipts`.

    Raises:
        HostileInput: malformed.
    """
    _check_part(part.entry, part.head)
    about = own.study, coordinator, own.round, own.attempt, own.context
    return SignedReceipt(Countersignature(*about, receipts_digest(receipts), part.entry, part.head).to_bytes(), part.signature)


def _check_part(number: int, *digests: bytes) -> None:
    if not 1 <= number <= _LARGEST_NUMBER or {len(item) for item in digests} != {32}:
        raise HostileInput("A number in a receipt is out of range, or a digest does not have 32 bytes.")


def sign_receipt(receipt: Receipt, key: SigningKey) -> SignedReceipt:
    body = receipt.to_bytes()
    return SignedReceipt(body, key.sign(Label.RECEIPT, body))


def receipts_digest(receipts: Sequence[SignedReceipt]) -> bytes:
    """Digest of an attempt's receipts in the cohort's order (32 bytes); over the bodies, for signatures are malleable."""
    return digest("veilsum/1/receipts", *(receipt.body for receipt in receipts))


def consent_proof(consent: bytes) -> bytes:
    """SHA-256 of a consent (32 bytes): proves that it was given, and cannot open anything."""
    return hashlib.sha256(consent).digest()


def consent_commitment(context: bytes, sender: str, proof: bytes) -> bytes:
    """What a receipt holds of a consent (32 bytes). It names its sender, or a member could copy another's commitment and
    contribution, and so count that member twice without knowing what it said."""
    return digest("veilsum/6/consent", context, sender.encode(), proof)


def consents_digest(hashes: Sequence[bytes]) -> bytes:
    """Digest of a cohort's consents in its order (32 bytes), over the SHA-256 of each."""
    return digest("veilsum/1/consents", *hashes)


@lru_cache(maxsize=4096)
def parse_receipt(body: bytes) -> Receipt:
    """Parse a receipt's bytes; says nothing about who signed them. Remembered, for it is read several times in a round.

    Raises:
        HostileInput: malformed.
    """
    value = _parse(body, _RECEIPT_FIELDS, "receipt", _VERSIONS)
    names = ("study", "context", "payload", "head", "consent")
    study, context, payload, head, consent = _digests(value, names, "receipt")
    numbers = [value[name] for name in ("round", "attempt", "number", "colluders", "cohort_size")]
    texts = [value[name] for name in ("participant", "dataset", "unit")]
    if any(type(number) is not int or number < 1 for number in numbers):  # none is above 2^53 in canonical form
        raise HostileInput("A number in a receipt is out of range.")
    if not all(isinstance(text, str) and 0 < len(text) <= 64 for text in texts):
        raise HostileInput("A name in a receipt is malformed.")
    receipt = Receipt(
        study=study,
        participant=value["participant"],
        round=value["round"],
        attempt=value["attempt"],
        context=context,
        payload=payload,
        number=value["number"],
        head=head,
        dataset=value["dataset"],
        mechanism=read_mechanism(canonical(value["event"]).decode(), value["colluders"]),
        unit=value["unit"],
        cohort_size=value["cohort_size"],
        consent=consent,
        version=value["v"],
    )
    if receipt.to_bytes() != body:
        raise HostileInput(f"A receipt encodes a value differently than version {receipt.version} does.")
    return receipt


def parse_countersignature(body: bytes) -> Countersignature:
    """Parse a countersignature's bytes; says nothing about who signed them.

    Raises:
        HostileInput: malformed.
    """
    value = _parse(body, _COUNTERSIGNATURE_FIELDS, "countersignature")
    study, context, receipts, head = _digests(value, ("study", "context", "receipts", "head"), "countersignature")
    numbers = [value[name] for name in ("round", "attempt", "entry")]
    name = value["coordinator"]
    if any(type(number) is not int or number < 1 for number in numbers):  # none is above 2^53 in canonical form
        raise HostileInput("A number in a countersignature is out of range.")
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        raise HostileInput("The name in a countersignature is malformed.")
    parsed = Countersignature(study, name, value["round"], value["attempt"], context, receipts, value["entry"], head)
    if parsed.to_bytes() != body:
        raise HostileInput("A countersignature encodes a value differently than version 1 does.")
    return parsed


def verify_receipt(
    signed: SignedReceipt, signer: Identity, study: bytes, context: bytes, version: int | None = None
) -> Receipt:
    """Verify a member's receipt for this study and context.

    Args:
        version: the form that it must have; None for any.

    Raises:
        HostileInput: another signer, study, context or version, or a wrong signature.
    """
    verify(signer.public_key, Label.RECEIPT, signed.body, signed.signature)
    receipt = signed.read()
    if receipt.participant != signer.name or receipt.study != study:
        raise HostileInput("A receipt is for another study or names a participant other than its signer.")
    if version not in (None, receipt.version):
        raise HostileInput("A receipt has the form of another version of the protocol.")
    if receipt.context != context:
        raise HostileInput("A receipt is for another context: not everyone was asked for the same sum.")
    return receipt


def verify_countersignature(
    signed: SignedReceipt, signer: Identity, study: bytes, context: bytes, receipts: Sequence[SignedReceipt]
) -> Countersignature:
    """Verify the coordinator's word that it showed exactly these receipts.

    Raises:
        HostileInput: another signer, study, context or other receipts, or a wrong signature.
    """
    verify(signer.public_key, Label.COUNTERSIGN, signed.body, signed.signature)
    parsed = parse_countersignature(signed.body)
    if parsed.coordinator != signer.name or parsed.study != study or parsed.context != context:
        raise HostileInput("A countersignature is for another study or context, or names a coordinator other than its signer.")
    if parsed.receipts != receipts_digest(receipts):
        raise HostileInput("The coordinator countersigned different receipts than it sent.")
    return parsed


def _parse(body: bytes, fields: set[str], what: str, versions: Sequence[int] = (1,)) -> Mapping[str, Any]:
    if len(body) > MAX_RECEIPT_BYTES:
        raise HostileInput(f"A {what} is larger than allowed.")
    value = parse_canonical(body, what=what)
    if not isinstance(value, dict) or set(value) != fields or type(value["v"]) is not int or value["v"] not in versions:
        raise HostileInput(f"A {what} does not have exactly the fields of version {versions[-1]}.")
    return value


def _digests(value: Mapping[str, Any], names: Sequence[str], what: str) -> list[bytes]:
    try:
        digests = [bytes.fromhex(value[name]) for name in names]
    except (TypeError, ValueError) as error:
        raise HostileInput(f"A {what}'s digests are not hexadecimal.") from error
    if any(len(item) != 32 for item in digests):
        raise HostileInput(f"A {what}'s digests have the wrong length.")
    return digests
