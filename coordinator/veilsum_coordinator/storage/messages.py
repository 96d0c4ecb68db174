"""Enrolments, receipts and sealed boxes as protobuf messages: as they are sent, and as the journal keeps them."""

from __future__ import annotations

from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.boxes import Box, Purpose
from veilsum_privacy.securesum.context import Pieces
from veilsum_privacy.securesum.roster import Enrolment, Roster
from veilsum_proto import federation_pb2 as pb


def enrolment_message(enrolment: Enrolment) -> pb.SignedEnrolment:
    """An enrolment on the wire."""
    return pb.SignedEnrolment(certificate=enrolment.certificate, body=enrolment.body, signature=enrolment.signature)


def roster_object(roster: Roster) -> bytes:
    """A roster as it is sent, and as the journal keeps that of a finished study."""
    enrolments = [enrolment_message(member.enrolment) for member in roster.members]
    return pb.RosterObject(enrolments=enrolments).SerializeToString()


def sum_pieces(ciphertexts: Pieces) -> Pieces:
    """The pieces of a ``SumObject``'s bytes, around the ciphertexts themselves: a large sum is not copied to be sent."""
    pieces: list[bytes | memoryview] = []
    for ciphertext in ciphertexts:
        length, header = len(ciphertext), bytearray(b"\x0a")  # field 1 of bytes, then their number in base 128
        while length >= 0x80:
            header.append(length & 0x7F | 0x80)
            length >>= 7
        header.append(length)
        pieces += [bytes(header), ciphertext]
    return pieces


def parse_roster(data: bytes) -> list[Enrolment]:
    """The enrolments of a roster that the journal kept; nothing of them is verified."""
    return [Enrolment(item.certificate, item.body, item.signature) for item in pb.RosterObject.FromString(data).enrolments]


def parse_enrolment(data: bytes) -> Enrolment:
    """An enrolment that the journal kept."""
    message = pb.SignedEnrolment.FromString(data)
    return Enrolment(message.certificate, message.body, message.signature)


def receipt_message(receipt: SignedReceipt) -> pb.SignedReceipt:
    """A receipt or countersignature on the wire."""
    return pb.SignedReceipt(body=receipt.body, signature=receipt.signature)


def box_message(box: Box) -> pb.SealedBox:
    """A sealed box on the wire."""
    return pb.SealedBox(
        sender=box.sender,
        recipient=box.recipient,
        purpose=box.purpose.value,
        ciphertext=box.ciphertext,
        signature=box.signature,
    )


def parse_boxes(data: bytes) -> list[Box]:
    """Sealed boxes that the journal kept, as a ``BoxesObject``."""
    return [
        Box(item.sender, item.recipient, Purpose(item.purpose), item.ciphertext, item.signature)
        for item in pb.BoxesObject.FromString(data).boxes
    ]
