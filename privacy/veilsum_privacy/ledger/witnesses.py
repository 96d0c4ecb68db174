"""The receipts and countersignatures that entries cover: all there, signed, about the entry's release, never seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_node.identity import Label, Role, verify
from veilsum_privacy.ledger.comparison import Summary
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.faults import require
from veilsum_privacy.ledger.kept_receipts import KeptReceipt, KeptRow
from veilsum_privacy.ledger.keys import KeyRing
from veilsum_privacy.ledger.receipts import (
    Receipt,
    SignedReceipt,
    consent_commitment,
    consents_digest,
    parse_receipt,
    receipts_digest,
    verify_countersignature,
)
from veilsum_privacy.ledger.rows import unhex
from veilsum_privacy.ledger.rules import described, described_by


class Witnesses:
    """Follows what other parties signed, as a ledger keeps it.

    Args:
        keys: of the ledger.
        summary: takes what others' ledgers are compared with.

    Attributes:
        count: receipts verified so far.
    """

    def __init__(self, keys: KeyRing, summary: Summary) -> None:
        self._keys, self._summary = keys, summary
        self._last: dict[tuple[bytes, str], int] = {}
        self._consents: dict[bytes, list[bytes | None]] = {}
        self.count = 0

    def check(self, entry: Entry, kept: Sequence[KeptRow], certificates: Mapping[str, bytes]) -> None:
        """Check what an entry covers.

        Raises:
            HostileInput: something is missing, forged, replayed or too much.
        """
        covers = entry.kind in (Kind.CHARGE, Kind.RECEIPTS) and "receipts" in entry.detail
        require(covers or not kept, "receipts are kept with it, but it covers none")
        if covers:
            items = self._check_receipts(entry, [row.read(certificates) for row in kept])
            if entry.kind is Kind.CHARGE:
                self._check_charge(entry, items, certificates)
            else:
                self._check_shown(entry, items)
        else:
            require(entry.kind is not Kind.RECEIPTS, "it names no receipts")
        if entry.kind is Kind.CONSENT:
            self._check_consent(entry)
        if entry.kind is Kind.RECOVERY:
            self._check_recovery(entry, certificates)

    def _check_receipts(self, entry: Entry, items: Sequence[KeptReceipt]) -> Sequence[KeptReceipt]:
        order = [item.position for item in items]
        require(order == list(range(len(items))) and all(item.entry == entry.seq for item in items), "a receipt is missing")
        digest = receipts_digest([item.receipt for item in items]).hex()
        require(
            digest == entry.detail["receipts"], "its receipts are not those that it covers: one was changed, lost or swapped"
        )
        names = [item.parsed.participant for item in items]
        require(len(set(names)) == len(names) == entry.cohort_size, "there is not one receipt for each member of the cohort")
        for item in items:
            receipt = item.parsed
            signer = self._keys.identity(item.certificate, Role.PARTICIPANT, entry.time)
            require(signer.name == receipt.participant, f"the receipt of {receipt.participant} is signed by {signer.name}")
            _verify(item.receipt, signer.public_key, receipt.participant)
            same = described_by(receipt) == described(entry)
            require(same, f"the receipt of {receipt.participant} is for another release")
            self._check_number(receipt)
            self._summary.add_receipt(item)
        self.count += len(items)
        return items

    def _check_number(self, receipt: Receipt) -> None:
        key = (receipt.study, receipt.participant)
        new = receipt.number > self._last.get(key, 0)
        require(new, f"the receipt of {receipt.participant} is replayed: its number {receipt.number} was seen before")
        self._last[key] = receipt.number

    def _check_charge(self, entry: Entry, items: Sequence[KeptReceipt], certificates: Mapping[str, bytes]) -> None:
        own = [item.parsed for item in items if item.parsed.participant == self._keys.name]
        require(len(own) == 1, "the site's own receipt is not among its receipts")
        require(all(item.consent is None for item in items), "a consent is kept with it, which only a mirror does")
        head = self._summary.heads.get(own[0].head)
        require(head is not None, "the site's own receipt names an entry that this ledger does not hold")
        signed = _signed(entry.detail.get("countersigned"), "countersignature")
        certificate = certificates.get(str(entry.detail.get("coordinator")))
        if certificate is None:
            raise HostileInput("the certificate of its coordinator is missing.")
        signer = self._keys.identity(certificate, Role.COORDINATOR, entry.time)
        receipt = items[0].parsed
        word = verify_countersignature(signed, signer, receipt.study, receipt.context, [item.receipt for item in items])
        same = (word.round, word.attempt) == (receipt.round, receipt.attempt)
        require(same, "the countersignature is for another round or attempt")
        self._summary.add_countersignature(entry.seq, word)

    def _check_shown(self, entry: Entry, items: Sequence[KeptReceipt]) -> None:
        names = [item.parsed.participant for item in items]
        require(entry.detail.get("cohort") == names, "its receipts are not those of the cohort that it names")
        self._consents[items[0].parsed.context] = [item.consent for item in items]
        for item in items:
            given = item.consent is None or compare_digest(consent_commitment(item.consent), item.parsed.consent)
            require(given, f"the consent kept of {item.parsed.participant} is not the one that its receipt commits it to")

    def _check_consent(self, entry: Entry) -> None:
        consents = self._consents.pop(bytes(entry.context or b""), [])
        known = [consent for consent in consents if consent is not None]
        complete = bool(known) and len(known) == len(consents)
        fault = "the consents kept for it are not those that it covers: one was changed, lost or swapped"
        require(complete and consents_digest(known).hex() == entry.detail.get("consents"), fault)

    def _check_recovery(self, entry: Entry, certificates: Mapping[str, bytes]) -> None:
        signed = _signed(entry.detail.get("receipt"), "receipt")
        certificate = certificates.get(str(entry.detail.get("certificate")))
        if certificate is None:
            raise HostileInput("the certificate of its receipt is missing.")
        signer = self._keys.identity(certificate, Role.PARTICIPANT, None)
        receipt = parse_receipt(signed.body)
        require(signer.name == receipt.participant == self._keys.name, "its receipt is not the site's own")
        _verify(signed, signer.public_key, receipt.participant)
        require(described_by(receipt) == described(entry), "its receipt is for another release")
        self.count += 1


def _verify(signed: SignedReceipt, key: Any, name: str) -> None:
    try:
        verify(key, Label.RECEIPT, signed.body, signed.signature)
    except HostileInput as error:
        raise HostileInput(f"the receipt of {name} is not signed by that member.") from error


def _signed(value: Any, what: str) -> SignedReceipt:
    try:
        body, signature = value
        return SignedReceipt(unhex(body), unhex(signature))
    except (TypeError, ValueError) as error:
        raise HostileInput(f"its {what} is missing or malformed.") from error
