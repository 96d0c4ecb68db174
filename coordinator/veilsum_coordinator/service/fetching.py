"""What participants fetch of a coordinator's studies: looked up under the hub's lock, serialised by :mod:`.objects`."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.results.proof import release_object
from veilsum_coordinator.service.objects import ENCLOSED, FROM_DATABASE, Released, chunk_messages, mirrored_object
from veilsum_coordinator.service.table import StudyEntry, StudyTable
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.messages import (
    answer_parts,
    answers_object,
    box_message,
    but_own,
    fixed_object,
    fixed_parts,
    roster_object,
)
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.computation.following import followed
from veilsum_privacy.securesum.context import Pieces
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

Made = TypeVar("Made")


class Fetching:
    """What participants of a table's studies may fetch, and what comes along with a directive. Thread-safe.

    What is the same for all members of a study is serialised once.

    Args:
        journal: holds releases and the mirror.
    """

    def __init__(self, table: StudyTable, journal: SqlJournal) -> None:
        self._table, self._journal = table, journal
        self._released: dict[bytes, Released] = {}  # the last release, of studies whose members take the steps
        self._shown: dict[tuple[bytes, int], tuple[object, Any]] = {}  # as last sent
        self._cut: dict[bytes, tuple[object, list[bytes]]] = {}  # rosters in messages, by study

    def fetch(self, name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> bytes:
        """The serialised object that a participant of the study asks for.

        Raises:
            HostileInput: there is none for this caller.
        """
        return b"".join(self.pieces(name, kind, key, number, attempt))

    def pieces(self, name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> Pieces:
        """The same in pieces, of which the large ones are not copied.

        Raises:
            HostileInput: there is none for this caller.
        """
        if kind == pb.OBJECT_KIND_MIRRORED:
            return [mirrored_object(self._journal.mirror, name, number)]
        if kind == pb.OBJECT_KIND_RELEASE:
            return [self._release(name, key, number)]
        with self._table.lock:
            return self._open(self._table.asked(key, name), name, kind, number, attempt)

    def messages(self, name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> Iterable[bytes]:
        """The same as serialised messages of a stream; a roster, which is the same for all, is cut once.

        Raises:
            HostileInput: there is none for this caller.
        """
        if kind in FROM_DATABASE:
            return chunk_messages(self.pieces(name, kind, key, number, attempt))
        with self._table.lock:
            pieces = self._open(self._table.asked(key, name), name, kind, number, attempt)
            if kind != pb.OBJECT_KIND_ROSTER:
                return chunk_messages(pieces)
            known = self._cut.get(key)
            if known is None or known[0] is not pieces[0]:
                known = self._cut[key] = pieces[0], list(chunk_messages(pieces))
            return known[1]

    def _open(self, entry: StudyEntry, name: str, kind: pb.ObjectKind.ValueType, number: int, attempt: int) -> Pieces:
        """What a study that is not over holds for a participant. Under the lock."""
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

    def once(self, key: bytes, kind: int, source: object, make: Callable[[], Made]) -> Made:
        """What all members fetch of a study, put together for the first of them; ``source`` is what it is made of."""
        known = self._shown.get((key, kind))
        if known is None or known[0] is not source:
            known = self._shown[key, kind] = source, make()
        made: Made = known[1]
        return made

    def _release(self, name: str, key: bytes, number: int) -> bytes:
        """A released round, for a member of a study that declares its steps; no other study shows its sums to members."""
        with self._table.lock:
            machine = self._table.entry(key).machine
            if machine.roster is None or name not in machine.roster.names or followed(machine.agreed.study) is None:
                raise HostileInput("The caller has no part in a study whose members take its steps.")
            last = self._released.get(key)
            agreed, members = machine.agreed, len(machine.roster.names)
        if last is not None and last.number == number:
            return last.whole
        return release_object(self._journal.database, agreed, members, number)

    def keep_release(self, key: bytes, number: int, shown: bytes) -> None:
        """A round was released: what all members fetch of it next is put together once, of its opened sum as they are shown
        it. Reads the database."""
        with self._table.lock:
            machine = self._table.entry(key).machine
            if followed(machine.agreed.study) is None:
                return
            agreed, members = machine.agreed, len(machine.members.fixed_roster().names)
        data = release_object(self._journal.database, agreed, members, number, shown)
        with self._table.lock:
            if key in self._table.studies:  # else it ended meanwhile, and nobody would let go of this any more
                self._released[key] = Released(number, data)

    def enclose(self, name: str, directive: pb.Directive) -> pb.Directive:
        """A directive with what its answer needs, if that is small enough to come along: it saves the participant a call."""
        kind = ENCLOSED.get(directive.kind)
        if kind is None:
            return directive
        with self._table.lock:
            try:
                agreed = self._table.entry(directive.study).machine.agreed
                if kind == pb.OBJECT_KIND_BROADCAST and directive.round > 1 and followed(agreed.study) is not None:
                    last = self._released.get(bytes(directive.study))
                    if last is not None and last.number == directive.round - 1 and len(last.whole) <= CHUNK_BYTES:
                        directive.object = last.unseen(name)  # members make the broadcast of it
                    return directive
                found = self.pieces(name, kind, directive.study, directive.round, directive.attempt)
            except HostileInput:  # it is not open any more
                return directive
            if sum(map(len, found)) <= CHUNK_BYTES:
                directive.object = b"".join(found)
        return directive

    def forget(self, key: bytes) -> None:
        """Let go of what was serialised of a study."""
        self._released.pop(key, None)
        for kind in (pb.OBJECT_KIND_ROSTER, pb.OBJECT_KIND_FIXED, pb.OBJECT_KIND_ANSWERS):
            self._shown.pop((key, kind), None)
        self._cut.pop(key, None)

    def renew(self) -> None:
        """Let go of what may have been signed anew."""
        self._shown.clear()
        self._cut.clear()


def _fixed_object(current: Round) -> pb.FixedObject:
    if current.countersigned is None or current.fixed is None:
        raise StateError("A sum is shown once the coordinator signed for it.")
    return fixed_object(current.receipts(), current.countersigned, current.total.digest, current.fixed.signature)
