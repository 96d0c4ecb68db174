"""Enrolments, receipts and sealed boxes as protobuf messages: as they are sent, and as the journal keeps them."""

from collections.abc import Iterable, Sequence

from veilsum_privacy.ledger.countersigning import part_of_receipt, part_of_word
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.roster import Enrolment, Roster
from veilsum_proto import federation_pb2 as pb


def enrolment_message(enrolment: Enrolment) -> pb.SignedEnrolment:
    """An enrolment on the wire."""
    return pb.SignedEnrolment(certificate=enrolment.certificate, body=enrolment.body, signature=enrolment.signature)


def roster_object(roster: Roster) -> bytes:
    """A roster as it is sent, and as the journal keeps that of a finished study."""
    enrolments = [enrolment_message(member.enrolment) for member in roster.members]
    return pb.RosterObject(enrolments=enrolments).SerializeToString()


def fixed_object(receipts: Sequence[SignedReceipt], countersigned: SignedReceipt, total: bytes, signature: bytes) -> bytes:
    """What the cohort checks a sum by; ``signature`` is the coordinator's, under the statement of the digest ``total``."""
    return pb.FixedObject(
        receipts=[pb.MemberReceipt(**part_of_receipt(item)._asdict()) for item in receipts],
        countersigned=pb.ReceiptsWord(**part_of_word(countersigned)._asdict()),
        fixed=pb.SumWord(sum=total, signature=signature),
    ).SerializeToString()


def answers_object(answers: Iterable[tuple[tuple[int, ...], bytes]]) -> bytes:
    """All members' answers, words and signature, in the cohort's order."""
    found = [pb.MemberAnswer(words=words, signature=signature) for words, signature in answers]
    return pb.AnswersObject(answers=found).SerializeToString()


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
    return pb.SealedBox(sender=box.sender, recipient=box.recipient, ciphertext=box.ciphertext, signature=box.signature)


def parse_boxes(data: bytes) -> list[Box]:
    """Sealed boxes that the journal kept, as a ``BoxesObject``."""
    boxes = pb.BoxesObject.FromString(data).boxes
    return [Box(item.sender, item.recipient, item.ciphertext, item.signature) for item in boxes]
