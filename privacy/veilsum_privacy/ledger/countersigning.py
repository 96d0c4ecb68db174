"""The coordinator's hand on receipts: it shows them to a cohort, and signs for what it showed."""

from veilsum_node.identity import Label, SigningKey
from veilsum_privacy.ledger.receipts import (
    Countersignature,
    ReceiptPart,
    SignedReceipt,
    WordPart,
    parse_countersignature,
)


def part_of_receipt(signed: SignedReceipt) -> ReceiptPart:
    """What of a receipt is shown to a cohort.

    Raises:
        HostileInput: malformed.
    """
    receipt = signed.read()
    return ReceiptPart(receipt.payload, receipt.number, receipt.head, receipt.consent, signed.signature)


def part_of_word(signed: SignedReceipt) -> WordPart:
    """What of a countersignature is shown to a cohort.

    Raises:
        HostileInput: malformed.
    """
    word = parse_countersignature(signed.body)
    return WordPart(word.entry, word.head, signed.signature)


def countersign(countersignature: Countersignature, key: SigningKey) -> SignedReceipt:
    """Sign for the receipts that were shown to a cohort."""
    body = countersignature.to_bytes()
    return SignedReceipt(body, key.sign(Label.COUNTERSIGN, body))


def countersign_again(signed: SignedReceipt, key: SigningKey) -> SignedReceipt:
    """The same words under another key, for who has not heard them yet when a coordinator's key is replaced."""
    return SignedReceipt(signed.body, key.sign(Label.COUNTERSIGN, signed.body))
