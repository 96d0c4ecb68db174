"""The studies that a coordinator has, and who may ask for which: those that run, and those that are over.

Whoever looks into it, or changes it, holds its lock, which is the hub's (:mod:`.hub`).
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from veilsum_coordinator.protocol.events import StudyLog
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.service.ended import EndedStudy
from veilsum_node.errors import HostileInput
from veilsum_proto import federation_pb2 as pb


class StudyTally:
    """Counts a study's releases, and what its rounds took, each ended round once.

    A release counts for the members of its cohort. As many of a label are done as the participant with the most of them took
    part in, which is what its declaration bounds and what the study has cost nobody more than.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._by_member: dict[str, Counter[str]] = {}
        self._bytes = self._seconds = 0

    def releases(self, rounds: Sequence[Round]) -> dict[str, int]:
        """Releases so far by label; ``rounds`` are the study's, ended ones before the present one.

        Of a study that is over the first ones may be missing; they were counted.
        """
        for ended in self._left(rounds):
            if ended.phase is RoundPhase.RELEASED:
                self._by_member.setdefault(ended.label, Counter()).update(ended.cohort)
            elif ended.phase is not RoundPhase.FAILED or ended is rounds[-1]:
                break  # it is under way; or the last one failed, of which a release may be stored for all that
            self._seen = ended.number
            self._bytes, self._seconds = self._bytes + ended.bytes_received, self._seconds + ended.seconds
        return {label: max(counts.values()) for label, counts in self._by_member.items()}

    def spent(self, rounds: Sequence[Round]) -> tuple[int, int]:
        """Bytes of contributions so far, and seconds from beginnings of rounds to their ends; arguments as above."""
        self.releases(rounds)
        left = self._left(rounds)
        return self._bytes + sum(item.bytes_received for item in left), self._seconds + sum(item.seconds for item in left)

    def _left(self, rounds: Sequence[Round]) -> Sequence[Round]:
        return rounds[self._seen + 1 - rounds[0].number :] if rounds else ()


@dataclass
class StudyEntry:
    """A study that is not over, or whose end is not stored.

    Attributes:
        signed: as its analyst signed it.
        analyst, submitted: whose it is, and since when.
        results: names of its files, once its method has returned.
        log: tells an operator what happens in it.
        changes: how often anything of it may have changed that is shown, bytes received among it.
    """

    machine: StudyMachine
    signed: pb.StudyObject
    analyst: str
    submitted: int
    results: list[str] = field(default_factory=list)
    tally: StudyTally = field(default_factory=StudyTally, repr=False)
    log: StudyLog = field(init=False, repr=False)
    changes: int = field(default=0, init=False)
    _outlook: tuple[object, ...] | None = field(default=None, init=False, repr=False)  # after the last change

    def __post_init__(self) -> None:
        self.log = StudyLog(self.machine)

    def looks_the_same(self) -> bool:
        """After a change: whether the study looks to everyone but who caused it as it did after the change before."""
        before, self._outlook = self._outlook, self.machine.outlook()
        return before == self._outlook


class StudyTable:
    """All studies of a coordinator.

    Attributes:
        lock: of the table and of all that is in it.
        studies: those that are not over, or whose end is not stored; by digest.
        ended: the others.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.studies: dict[bytes, StudyEntry] = {}
        self.ended: dict[bytes, EndedStudy] = {}
        self._open: dict[str, dict[bytes, StudyMachine | EndedStudy]] = {}  # by participant: what may want something of it

    def entry(self, key: bytes) -> StudyEntry:
        """A study that is not over.

        Raises:
            HostileInput: it is over, or there is none of that digest.
        """
        entry = self.studies.get(bytes(key))
        if bytes(key) in self.ended:
            raise HostileInput("The study is over.", "Wait for the next directive.")
        if entry is None:
            raise HostileInput("There is no such study.", "`veilsum study list` shows those that there are.")
        return entry

    def asked(self, key: bytes, name: str) -> StudyEntry:
        """As :meth:`entry`, for a participant; of a study that is over nobody else hears even that."""
        if (ended := self.ended.get(bytes(key))) is not None:
            ended.check_invited(name)
        return self.entry(key)

    def machines_of(self, name: str) -> Iterator[StudyMachine]:
        """Of the studies that a participant is invited to and that are not over."""
        return (study for study in self._open.get(name, {}).values() if isinstance(study, StudyMachine))

    def directives(self, name: str) -> list[pb.Directive]:
        """All directives that are open for a participant: no end that is not stored."""
        told = [study for key, study in self._open.get(name, {}).items() if key in self.ended or not study.phase.over]
        return [directive for study in told for directive in study.directives(name)]

    def admit(self, entry: StudyEntry) -> None:
        """Take in a study that runs."""
        key = entry.machine.digest
        self.studies[key] = entry
        for name in entry.machine.seats:
            self._open.setdefault(name, {})[key] = entry.machine

    def admit_ended(self, ended: EndedStudy) -> None:
        """Take in a study whose end is stored, in the place of the one that ran; its members are told."""
        self.ended[ended.digest] = ended
        self.studies.pop(ended.digest, None)
        self._close(ended.digest)
        for name in ended.seats:
            self._open.setdefault(name, {})[ended.digest] = ended

    def heard(self, ended: EndedStudy, name: str) -> None:
        """A participant has nothing more to hear of a study that is over."""
        self._open.get(name, {}).pop(ended.digest, None)

    def forget(self, key: bytes) -> None:
        """Let go of a study that is over."""
        del self.ended[key]
        self._close(key)

    def _close(self, key: bytes) -> None:
        for studies in self._open.values():
            studies.pop(key, None)
