"""What a coordinator shows with a fixed sum, from what its parties signed, however wrong that is."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, insert

from veilsum_node.errors import HostileInput
from veilsum_participant.protocol.openings import Shown
from veilsum_privacy.ledger.countersigning import part_of_receipt, part_of_word
from veilsum_privacy.ledger.receipts import ReceiptPart, SignedReceipt, WordPart
from veilsum_privacy.ledger.tables import receipt_table
from veilsum_privacy.securesum.check_words import Signed
from veilsum_proto import federation_pb2 as pb


def keep_receipt_of(connection: Connection, study: bytes, name: str, number: int) -> None:
    """Have a site's ledger keep a receipt of this number, as if that member's sum had been paid for."""
    empty = dict.fromkeys(("context", "head", "body", "signature", "certificate"), "")
    about = {"study": study.hex(), "participant": name, "number": number}
    connection.execute(insert(receipt_table), {"entry": 10**6, "position": 0, "round": 1, "attempt": 1, **empty, **about})


def shown_of(receipts: Sequence[SignedReceipt], word: SignedReceipt, fixed: Signed, certificate: bytes = b"") -> Shown:
    """The parts that travel; empty ones of what was never written by the rules."""
    parts = []
    for item in receipts:
        try:
            parts.append(part_of_receipt(item))
        except HostileInput:
            parts.append(ReceiptPart(b"", 0, b"", b"", item.signature))
    try:
        countersigned = part_of_word(word)
    except HostileInput:
        countersigned = WordPart(0, b"", word.signature)
    return Shown(parts, countersigned, bytes.fromhex(json.loads(fixed.body)["sum"]), fixed.signature, certificate)


def shown_message(shown: Shown) -> pb.FixedObject:
    """As it travels."""
    return pb.FixedObject(
        receipts=[pb.MemberReceipt(**item._asdict()) for item in shown.receipts],
        countersigned=pb.ReceiptsWord(**shown.countersigned._asdict()),
        fixed=pb.SumWord(sum=shown.fixed, signature=shown.signature),
    )
