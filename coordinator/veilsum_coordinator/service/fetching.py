"""What participants fetch of a coordinator's studies: looked up under the hub's lock, serialised by :mod:`.objects`."""

from collections.abc import Iterable

from veilsum_coordinator.results.proof import release_object
from veilsum_coordinator.service.objects import ENCLOSED, FROM_DATABASE, Objects, Released, chunk_messages, mirrored_object
from veilsum_coordinator.service.table import StudyTable
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.following import followed
from veilsum_privacy.securesum.context import Pieces
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb


class Fetching:
    """What participants of a table's studies may fetch, and what comes along with a directive. Thread-safe.

    Args:
        journal: holds releases and the mirror.
    """

    def __init__(self, table: StudyTable, journal: SqlJournal) -> None:
        self._table, self._journal, self._made = table, journal, Objects()

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
            return self._made.pieces(self._table.asked(key, name), name, kind, number, attempt)

    def messages(self, name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> Iterable[bytes]:
        """The same as serialised messages of a stream.

        Raises:
            HostileInput: there is none for this caller.
        """
        if kind in FROM_DATABASE:
            return chunk_messages(self.pieces(name, kind, key, number, attempt))
        with self._table.lock:
            return self._made.messages(self._table.asked(key, name), name, kind, number, attempt)

    def _release(self, name: str, key: bytes, number: int) -> bytes:
        """A released round, for a member of a study that declares its steps; no other study shows its sums to members."""
        with self._table.lock:
            machine = self._table.entry(key).machine
            if machine.roster is None or name not in machine.roster.names or followed(machine.agreed.study) is None:
                raise HostileInput("The caller has no part in a study whose members take its steps.")
            last = self._made.released.get(key)
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
                self._made.released[key] = Released(number, data)

    def enclose(self, name: str, directive: pb.Directive) -> pb.Directive:
        """A directive with what its answer needs, if that is small enough to come along: it saves the participant a call."""
        kind = ENCLOSED.get(directive.kind)
        if kind is None:
            return directive
        with self._table.lock:
            try:
                agreed = self._table.entry(directive.study).machine.agreed
                if kind == pb.OBJECT_KIND_BROADCAST and directive.round > 1 and followed(agreed.study) is not None:
                    last = self._made.released.get(bytes(directive.study))
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
        self._made.forget(key)

    def renew(self) -> None:
        """Let go of what may have been signed anew."""
        self._made.clear()
