"""What the participants of a study fetch, serialised. Nothing here locks: who asks does (:mod:`.fetching`)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.service.table import StudyEntry
from veilsum_coordinator.storage.messages import (
    answer_parts,
    answers_object,
    box_message,
    but_own,
    fixed_object,
    fixed_parts,
    receipt_message,
    roster_object,
)
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.securesum.context import Pieces, parse_assignment
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

ENCLOSED = {
    pb.DIRECTIVE_KIND_CONTRIBUTE: pb.OBJECT_KIND_BROADCAST,
    pb.DIRECTIVE_KIND_CHECK: pb.OBJECT_KIND_FIXED,
    pb.DIRECTIVE_KIND_CONSENT: pb.OBJECT_KIND_ANSWERS,
}
"""The object that comes along with a directive, if it is small enough."""


FROM_DATABASE = (pb.OBJECT_KIND_MIRRORED, pb.OBJECT_KIND_RELEASE)
"""What is read from the database when it is asked for, which may be slow or away; the rest is in memory."""


Made = TypeVar("Made")


class Released(NamedTuple):
    """A released round, as members of a study that declares its steps fetch it.

    Attributes:
        number: of the round.
        whole: the object.
    """

    number: int
    whole: bytes

    def unseen(self, name: str) -> bytes:
        """What of it a member has not seen: who consented to the attempt keeps what it was shown of it, and what it gave."""
        shown = pb.ReleaseObject.FromString(self.whole)
        names = parse_assignment(shown.assignment).names
        if name not in names:
            return self.whole
        for member in shown.members:
            member.ClearField("words")
        shown.members[names.index(name)].Clear()
        return pb.ReleaseObject(members=shown.members, total=shown.total).SerializeToString()


class Objects:
    """Serialises what participants fetch; what is the same for all members of a study, once.

    Attributes:
        released: the last release, of studies whose members take the steps.
    """

    def __init__(self) -> None:
        self.released: dict[bytes, Released] = {}
        self._shown: dict[tuple[bytes, int], tuple[object, Any]] = {}  # as last sent
        self._cut: dict[bytes, tuple[object, list[bytes]]] = {}  # rosters in messages, by study

    def pieces(self, entry: StudyEntry, name: str, kind: pb.ObjectKind.ValueType, number: int, attempt: int) -> Pieces:
        """An object of a study in pieces, of which the large ones are not copied.

        Raises:
            HostileInput: there is none for this caller.
        """
        machine, key = entry.machine, entry.machine.digest
        if name not in machine.seats:
            raise HostileInput("The caller is not invited to that study.")
        if kind == pb.OBJECT_KIND_STUDY:
            study = pb.StudyObject()
            study.CopyFrom(entry.signed)
            study.seconds_left = machine.enrolment_seconds
            return [study.SerializeToString()]
        if kind == pb.OBJECT_KIND_ROSTER and machine.roster is not None:
            roster = machine.roster
            return [self.once(key, kind, roster, lambda: roster_object(roster))]
        if kind == pb.OBJECT_KIND_BOXES and machine.phase is StudyPhase.SEALING:  # afterwards they are let go of
            boxes = [box_message(box) for box in machine.members.boxes_for(name)]
            return [pb.BoxesObject(boxes=boxes).SerializeToString()]
        current = machine.round
        if current is not None and name in current.cohort and (number, attempt) == current.present:
            if kind == pb.OBJECT_KIND_BROADCAST and current.phase is RoundPhase.CONTRIBUTING:
                return current.broadcast
            # who is asked to consent may have to see it once more, by another certificate than it keeps
            if kind == pb.OBJECT_KIND_FIXED and current.phase in (RoundPhase.CHECKING, RoundPhase.CONSENTING):
                shown = self.once(key, kind, current.fixed, lambda: fixed_parts(_fixed_object(current)))
                return [but_own(shown, current.cohort.index(name))]
            if kind == pb.OBJECT_KIND_ANSWERS and current.phase is RoundPhase.CONSENTING:
                answers = (current.answers[name] for name in current.cohort)
                given = self.once(key, kind, current.checks, lambda: answer_parts(answers_object(answers)))
                return [but_own(given, current.cohort.index(name))]
        raise HostileInput("The caller has no such object at present.", "Wait for the next directive.")

    def messages(
        self, entry: StudyEntry, name: str, kind: pb.ObjectKind.ValueType, number: int, attempt: int
    ) -> Iterable[bytes]:
        """An object of a study as the serialised messages of a stream; a roster, which is the same for all, is cut once.

        Raises:
            HostileInput: there is none for this caller.
        """
        pieces, key = self.pieces(entry, name, kind, number, attempt), entry.machine.digest
        if kind != pb.OBJECT_KIND_ROSTER:
            return chunk_messages(pieces)
        known = self._cut.get(key)
        if known is None or known[0] is not pieces[0]:
            known = self._cut[key] = pieces[0], list(chunk_messages(pieces))
        return known[1]

    def once(self, key: bytes, kind: int, source: object, make: Callable[[], Made]) -> Made:
        """What all members fetch of a study, put together for the first of them; ``source`` is what it is made of."""
        known = self._shown.get((key, kind))
        if known is None or known[0] is not source:
            known = self._shown[key, kind] = source, make()
        made: Made = known[1]
        return made

    def forget(self, key: bytes) -> None:
        """Let go of a study's objects."""
        self.released.pop(key, None)
        for kind in (pb.OBJECT_KIND_ROSTER, pb.OBJECT_KIND_FIXED, pb.OBJECT_KIND_ANSWERS):
            self._shown.pop((key, kind), None)
        self._cut.pop(key, None)

    def clear(self) -> None:
        """Let go of all, as what was signed may have been signed anew."""
        self._shown.clear()
        self._cut.clear()


def chunk_messages(pieces: Pieces) -> Iterator[bytes]:
    """An object's pieces as the serialised messages of a stream."""
    total = sum(map(len, pieces))
    return (pb.Chunk(data=data, total=total).SerializeToString() for data in chunks(pieces))


def chunks(pieces: Pieces) -> Iterator[bytes]:
    """The pieces as one object, cut into chunks; an empty object is one empty chunk."""
    chunk = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            chunk += memoryview(piece)[start : start + CHUNK_BYTES]
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk[:CHUNK_BYTES])
                del chunk[:CHUNK_BYTES]
    if chunk or not any(pieces):
        yield bytes(chunk)


def mirrored_object(mirror: Mirror, name: str, after: int) -> bytes:
    """A participant's own receipts in the mirror after an entry, for one that may have been restored from a backup."""
    found = mirror.mirrored(name, after)
    receipts = [
        pb.MirroredReceipt(receipt=receipt_message(item.receipt), number=item.entry, consent=item.consent or b"")
        for item in found
    ]
    last = max((item.entry for item in found), default=after)
    return pb.MirroredObject(receipts=receipts, last=last).SerializeToString()


def _fixed_object(current: Round) -> pb.FixedObject:
    if current.countersigned is None or current.fixed is None:
        raise StateError("A sum is shown once the coordinator signed for it.")
    return fixed_object(current.receipts(), current.countersigned, current.total.digest, current.fixed.signature)
