"""Who takes part in a study and how far each has come: seats, enrolments, roster, sealed boxes.

Pure state; deadlines and phases are :mod:`.machine`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from cryptography import x509

from veilsum_coordinator.storage.records import KeptStudy
from veilsum_node.errors import HostileInput, RefusalCode, StateError
from veilsum_node.telemetry.logs import about
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.graph import MaskGraph, mask_graph
from veilsum_privacy.securesum.roster import Enrolment, Roster, verify_enrolment, verify_roster
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

_MOST_NAMED = 20  # of a study's silent sites; it may invite a thousand

LOG = logging.getLogger("veilsum.coordinator")


class StudyPhase(StrEnum):
    """Where a study is."""

    ENROLLING = "enrolling"
    SEALING = "sealing"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def over(self) -> bool:
        """Whether nothing more happens."""
        return self in (StudyPhase.FINISHED, StudyPhase.FAILED, StudyPhase.ABORTED)


@dataclass(slots=True)
class MemberState:
    """What the coordinator knows of one invited participant in this study.

    Attributes:
        enrolled: whether its enrolment was taken; that itself is kept for as long as the study needs it.
        give_up: rounds and attempts that it must still hear were given up.
        released: those that it must still hear were released.
        ended: whether it heard of the study's end.
    """

    name: str
    enrolled: bool = False
    enrolment: Enrolment | None = None
    refusal: str = ""
    boxes: dict[str, Box] | None = None
    ready: bool = False
    gone: bool = False
    nonce: bytes = b""
    connected: bool = False
    left_at: int = 0
    excuses: int = 0
    give_up: set[tuple[int, int]] = field(default_factory=set)
    released: set[tuple[int, int]] = field(default_factory=set)
    ended: bool = False

    @property
    def done(self) -> bool:
        """Whether it heard all that an ended study had to tell it."""
        return self.ended and not self.released and not self.give_up

    def confirm(self, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """It gave an attempt up, saw a release, or erased the study's keys.

        Raises:
            HostileInput: nothing else can be confirmed.
        """
        if kind == pb.DIRECTIVE_KIND_GIVE_UP:
            self.give_up.discard((number, attempt))
        elif kind == pb.DIRECTIVE_KIND_RELEASED:
            self.released.discard((number, attempt))
        elif kind == pb.DIRECTIVE_KIND_END:
            self.ended = True
        else:
            raise HostileInput("Only an end, a release or an abandoned attempt can be confirmed.")

    def forget(self) -> None:
        """Let go of certificate, key and boxes once the study's end is stored."""
        self.enrolment = self.boxes = None

    @property
    def active(self) -> bool:
        """Enrolled, and neither refused nor given up on."""
        return self.enrolled and not self.refusal and not self.gone


class Members:
    """The members of one study.

    Attributes:
        seats: one for each invited participant, by name.
        roster: the verified roster, once enrolment has closed.
        names: of the roster; they stay when the study is over.
        closed: when enrolment closed, unix seconds.
    """

    def __init__(self, study: Study, digest: bytes, authority: x509.Certificate, clock: Callable[[], int]) -> None:
        self.seats = {name: MemberState(name) for name in study.participants}
        self.roster: Roster | None = None
        self.closed = 0
        self.names: tuple[str, ...] = ()
        self._study, self._digest, self._authority, self._clock = study, digest, authority, clock
        self._keys: set[bytes | str] = set()
        self._unsealed = self._unready = 0  # where in the roster somebody was last found to owe boxes, or to open them

    def seat(self, name: str) -> MemberState:
        """The caller's seat.

        Raises:
            HostileInput: it is not invited.
        """
        seat = self.seats.get(name)
        if seat is None:
            raise HostileInput("The caller is not invited to that study.")
        return seat

    @property
    def answered(self) -> bool:
        """Whether everyone enrolled or refused."""
        return all(seat.enrolled or seat.refusal for seat in self.seats.values())

    @property
    def hopeless(self) -> bool:
        """Whether so many refused that all others together are too few. A refusal is final; silence and absence are not."""
        return sum(not seat.refusal for seat in self.seats.values()) < self._study.privacy.min_cohort

    @property
    def missing(self) -> str:
        """Who did not enrol and why, for people: by code of refusal; unless that is enough, in silence or not connected."""
        silent = not self.hopeless
        return _told([seat for seat in self.seats.values() if seat.refusal or (silent and not seat.enrolled)], "no answer")

    def left_out(self, names: Collection[str]) -> str:
        """Which members of the roster are not among ``names`` and why, for people."""
        return _told([seat for name, seat in self.seats.items() if name in self.names and name not in names], "not ready")

    def enrol(self, name: str, enrolment: Enrolment, keep: Callable[[], None]) -> None:
        """Take an enrolment; ``keep`` makes it durable before it counts.

        Raises:
            HostileInput: not the sender's own, invalid, or with a key that another enrolled.
        """
        member = verify_enrolment(enrolment, self._digest, self._authority, self._clock())
        if member.name != name:
            raise HostileInput("An enrolment names a different participant than the caller's certificate.")
        if {member.public, member.identity.fingerprint} & self._keys:
            raise HostileInput("An enrolment holds a key that another participant enrolled.")
        keep()
        self._keys |= {member.public, member.identity.fingerprint}
        self._take(name, enrolment)

    def _take(self, name: str, enrolment: Enrolment) -> None:
        self.seats[name].enrolled, self.seats[name].enrolment = True, enrolment

    def _keys_of(self, enrolment: Enrolment) -> set[bytes | str]:
        try:
            member = verify_enrolment(enrolment, self._digest, self._authority, self._clock())
        except HostileInput:  # its certificate has expired since; the roster is made without it
            return set()
        return {member.public, member.identity.fingerprint}

    def close(self) -> int:
        """Close enrolment: fix the roster if there are enough members; returns how many enrolled."""
        for seat in self.seats.values():
            if seat.enrolment is not None:
                try:
                    verify_enrolment(seat.enrolment, self._digest, self._authority, self._clock())
                except HostileInput as error:  # the certificate has expired since
                    fields = about("refused", study=self._study.name, digest=self._digest, participant=seat.name)
                    LOG.warning("study %s goes on without %s: %s", self._study.name, seat.name, error, extra=fields)
                    seat.refusal = seat.refusal or RefusalCode.ROSTER.value
        enrolments = [seat.enrolment for seat in self.seats.values() if seat.enrolment is not None and not seat.refusal]
        if len(enrolments) >= self._study.privacy.min_cohort:
            self.closed = self._clock()
            self.roster = verify_roster(enrolments, self._study, self._digest, self._authority, self.closed)
            self.names = self.roster.names
        return len(enrolments)

    def fixed_roster(self) -> Roster:
        """The roster.

        Raises:
            StateError: enrolment has not closed.
        """
        if self.roster is None:
            raise StateError("The study has no roster yet.")
        return self.roster

    def live(self) -> list[str]:
        """Members that have neither refused nor been given up on, in roster order."""
        return [name for name in self.fixed_roster().names if self.seats[name].active]

    def all_sealed(self) -> bool:
        """Whether every live member delivered its boxes."""
        found = self._find_owing(self._unsealed, lambda seat: seat.boxes is None)
        self._unsealed = found or 0
        return found is None

    def all_ready(self) -> bool:
        """Whether every live member opened its boxes."""
        found = self._find_owing(self._unready, lambda seat: not seat.ready)
        self._unready = found or 0
        return found is None

    def _find_owing(self, start: int, owes: Callable[[MemberState], bool]) -> int | None:
        """Place in the roster of a live member that owes something.

        Asked for each member at each change, it begins where one was found last, and stops at the first.
        """
        names = self.fixed_roster().names
        for place in chain(range(start, len(names)), range(start)):
            seat = self.seats[names[place]]
            if owes(seat) and seat.active:
                return place
        return None

    def seal(self, name: str, boxes: Sequence[Box], keep: Callable[[], None]) -> None:
        """Take a member's boxes, complete or not at all; ``keep`` makes them durable before they count.

        Raises:
            HostileInput: not exactly the boxes that it owes.
        """
        seat, names = self.seat(name), self.fixed_roster().names
        if name not in names:
            raise HostileInput("Sealed boxes came from a participant outside the roster.")
        if seat.boxes is not None:
            return
        given = {box.recipient: box for box in boxes}
        if set(given) != self.owed(name) or len(given) != len(boxes) or any(box.sender != name for box in boxes):
            raise HostileInput("A member must send exactly the boxes that it owes, each once.")
        keep()
        seat.boxes = given

    @property
    def graph(self) -> MaskGraph:
        """Who shares masks with whom."""
        return mask_graph(self.fixed_roster(), self._study.privacy)

    def owed(self, name: str) -> frozenset[str]:
        """For whom a member owes a box."""
        return self.graph.neighbours(name)

    def restore(self, kept: KeptStudy) -> None:
        """Take what the journal kept of enrolments, roster and boxes.

        Raises:
            HostileInput: an enrolment does not verify any more.
        """
        names = kept.state.get("roster")
        for name, enrolment in kept.enrolments.items():
            if not names or name in names:  # one that was stored after enrolment had closed does not count
                self._take(name, enrolment)
        if not names:
            self._keys = set().union(*map(self._keys_of, kept.enrolments.values()))
            return
        self.closed = kept.state["closed"]
        enrolments = [kept.enrolments[name] for name in names]
        self.roster = verify_roster(enrolments, self._study, self._digest, self._authority, self.closed)
        self.names = self.roster.names
        for name, boxes in kept.boxes.items():
            self.seats[name].boxes = {box.recipient: box for box in boxes}

    def boxes_for(self, name: str) -> list[Box]:
        """All boxes for one member, in their senders' order."""
        senders = map(self.seats.__getitem__, sorted(self.graph.neighbours(name), key=str.encode))
        return [seat.boxes[name] for seat in senders if seat.boxes and name in seat.boxes]

    def forget_boxes(self) -> None:
        """Let go of what nobody will ask for any more: with many members it is megabytes a study."""
        for seat in self.seats.values():
            seat.boxes = None if seat.boxes is None else {}

    def connected(self) -> list[str]:
        """Names with an open session."""
        return [name for name, seat in self.seats.items() if seat.connected]

    def absent(self, name: str, now: int, grace: int) -> bool:
        """Whether a member's connection has been gone for the grace period."""
        seat = self.seats[name]
        return not seat.connected and now - seat.left_at >= grace

    def drop(self, names: Sequence[str]) -> None:
        """Give up on members that owe something in the present step of the exchange of keys."""
        sealed = self.all_sealed()
        for name in names:
            seat = self.seats[name]
            seat.gone = seat.gone or not (seat.ready if sealed else seat.boxes is not None)


def _told(seats: Sequence[MemberState], present: str) -> str:
    """Why members are not there: by code of refusal, given up on, not connected, or ``present``."""
    refused = [f"{seat.name}: {seat.refusal}" for seat in seats if seat.refusal]
    parts = [", ".join(refused)] if refused else []
    quiet = [seat for seat in seats if not seat.refusal]
    for what, found in (
        ("given up on", [seat.name for seat in quiet if seat.gone]),
        (present, [seat.name for seat in quiet if seat.connected and not seat.gone]),
        ("not connected", [seat.name for seat in quiet if not seat.connected and not seat.gone]),
    ):
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            parts.append(f"{what}: {', '.join(found[:_MOST_NAMED])}{more}")
    return "; ".join(parts)
