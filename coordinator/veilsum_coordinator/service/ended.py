"""A study that is over, with its end stored: what is shown of it, and what its members must still hear.

All else is read from the database when it is asked for, so a coordinator holds a kilobyte of a study that it ran years ago.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from veilsum_coordinator.protocol.directives import closing_directives
from veilsum_coordinator.protocol.members import MemberState, StudyPhase
from veilsum_node.errors import HostileInput
from veilsum_proto import federation_pb2 as pb


class EndedStudy:
    """What a hub keeps of a study once its end is stored.

    Args:
        status: what is shown of it from here on.
        seats: of all whom it invited.

    Attributes:
        phase: in which it ended.
        analyst, submitted: whose it is, and since when.
        seats: of those that have not heard everything, by name.
    """

    __slots__ = ("_status", "analyst", "digest", "phase", "seats", "submitted")

    def __init__(self, status: pb.StudyStatus, seats: Mapping[str, MemberState]) -> None:
        self.seats = {name: seat for name, seat in seats.items() if not seat.done}
        for seat in self.seats.values():
            seat.forget()
        self.show(status)

    def show(self, status: pb.StudyStatus) -> None:
        """Show another status from here on."""
        self.digest, self.phase = status.study, StudyPhase(status.phase)
        self.analyst, self.submitted = status.analyst, status.submitted
        self._status = zlib.compress(status.SerializeToString(), 1)  # it names each round's cohort

    @property
    def mark(self) -> bytes:
        """Another one after each :meth:`show` of something else."""
        return self._status

    @property
    def status(self) -> pb.StudyStatus:
        """What is shown of it."""
        return pb.StudyStatus.FromString(zlib.decompress(self._status))

    def directives(self, name: str) -> list[pb.Directive]:
        """What a participant must still hear."""
        seat = self.seats.get(name)
        return [] if seat is None else closing_directives(self.digest, seat, self.phase.value)

    def confirm(self, name: str, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """As :meth:`.StudyMachine.confirm`.

        Raises:
            HostileInput: the caller was not invited, or nothing of the kind can be confirmed.
        """
        self.check_invited(name)
        seat = self.seats.get(name, MemberState(name))
        seat.confirm(kind, number, attempt)
        if seat.done:
            self.seats.pop(name, None)

    def check_invited(self, name: str) -> None:
        """Insist that the study had invited a participant.

        Raises:
            HostileInput: it had not.
        """
        if name not in self.seats and name not in self.status.participants:
            raise HostileInput("The caller is not invited to that study.")
