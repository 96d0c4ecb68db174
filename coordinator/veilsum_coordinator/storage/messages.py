"""Enrolments, receipts and sealed boxes as protobuf messages: as they are sent, and as the journal keeps them."""

from collections.abc import Iterable, Sequence

from veilsum_privacy.ledger.countersigning import part_of_receipt, part_of_word
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.roster import Enrolment, Roster
from veilsum_proto import federation_pb2 as pb


def enrolment_message(enrolment: Enrolment) -> pb.SignedEnrolment:
    return pb.SignedEnrolment(certificate=enrolment.certificate, body=enrolment.body, signature=enrolment.signature)


def roster_object(roster: Roster) -> bytes:
    """A roster as it is sent, and as the journal keeps that of a finished study."""
    enrolments = [enrolment_message(member.enrolment) for member in roster.members]
    return pb.RosterObject(enrolments=enrolments).SerializeToString()


def assignment_message(assignment: Assignment) -> pb.Assignment:
    """An assignment on the wire: round and attempt are the directive's."""
    return pb.Assignment(
        label=assignment.label,
        cohort=assignment.names,
        nonces=b"".join(nonce for _, nonce in assignment.cohort),
        broadcast=assignment.broadcast,
        deadline=assignment.deadline,
    )


def fixed_object(
    receipts: Sequence[SignedReceipt], countersigned: SignedReceipt, total: bytes, signature: bytes
) -> pb.FixedObject:
    """What the cohort checks a sum by; ``signature`` is the coordinator's, under the statement of the digest ``total``."""
    return pb.FixedObject(
        receipts=[pb.MemberReceipt(**part_of_receipt(item)._asdict()) for item in receipts],
        countersigned=pb.ReceiptsWord(**part_of_word(countersigned)._asdict()),
        fixed=pb.SumWord(sum=total, signature=signature),
    )


def answers_object(answers: Iterable[tuple[tuple[int, ...], bytes]]) -> pb.AnswersObject:
    """All members' answers, words and signature, in the cohort's order."""
    return pb.AnswersObject(answers=[pb.MemberAnswer(words=words, signature=signature) for words, signature in answers])


def fixed_parts(fixed: pb.FixedObject) -> list[bytes]:
    """What a sum is checked by, serialised: each receipt by itself, and behind the last what the coordinator signed."""
    word = pb.FixedObject(countersigned=fixed.countersigned, fixed=fixed.fixed)
    return [*(pb.FixedObject(receipts=[item]).SerializeToString() for item in fixed.receipts), word.SerializeToString()]


def answer_parts(answers: pb.AnswersObject) -> list[bytes]:
    """Each answer serialised by itself."""
    return [pb.AnswersObject(answers=[item]).SerializeToString() for item in answers.answers]


def but_own(parts: Sequence[bytes], place: int) -> bytes:
    """All parts joined, with an empty message in the place of the reader's own: it has that one."""
    return b"".join([*parts[:place], pb.AnswersObject(answers=[pb.MemberAnswer()]).SerializeToString(), *parts[place + 1 :]])


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
    return pb.SealedBox(sender=box.sender, recipient=box.recipient, ciphertext=box.ciphertext, signature=box.signature)


def parse_boxes(data: bytes) -> list[Box]:
    """Sealed boxes that the journal kept, as a ``BoxesObject``."""
    boxes = pb.BoxesObject.FromString(data).boxes
    return [Box(item.sender, item.recipient, item.ciphertext, item.signature) for item in boxes]
