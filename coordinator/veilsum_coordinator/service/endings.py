"""How studies end: outcomes made durable, told to their members, completed later, and let go of once they are deleted.

A study is shown as ended, and its members hear of it, only once no crash can take the end back.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.restoration import with_heard
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.ended import EndedStudy
from veilsum_coordinator.service.fetching import Fetching
from veilsum_coordinator.service.status import study_status
from veilsum_coordinator.service.table import StudyEntry, StudyTable
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.messages import roster_object
from veilsum_node.errors import StateError, Unavailable, VeilsumError
from veilsum_node.telemetry.logs import about
from veilsum_proto import federation_pb2 as pb

LOG = logging.getLogger("veilsum.coordinator")

HEARD_SECONDS = 10
"""How long it may stay unstored who has heard of a study's end."""


class Endings:
    """Ends of a table's studies. What it changes is notified by the hub.

    Args:
        journal: makes outcomes durable.
        objects: what is let go of with a study.
        steady: seconds by which waits are measured.
        stopping: whether the process is about to end, so that what is not stored is nothing to report.
    """

    def __init__(
        self,
        table: StudyTable,
        journal: SqlJournal,
        objects: Fetching,
        steady: Callable[[], int],
        stopping: Callable[[], bool],
    ) -> None:
        self._table, self._journal, self._objects = table, journal, objects
        self._steady, self._stopping = steady, stopping
        self._heard: dict[bytes, int] = {}  # studies over, since when it is not stored who has heard of their end

    def keep_all(self) -> None:
        """Store the outcome of every study that is over, as far as the database takes it. Under the lock."""
        for entry in list(self._table.studies.values()):
            if entry.machine.phase.over:
                try:
                    self.keep(entry)
                except Unavailable:  # whoever waits must hear of the change; a later tick tries again
                    continue
                except VeilsumError as error:
                    if not self._stopping():
                        LOG.error("the outcome of study %s is not stored: %s", entry.machine.study.name, error)

    def keep(self, entry: StudyEntry) -> None:
        """Store a study's outcome; from then on it is over. Under the lock.

        Raises:
            VeilsumError: it is not stored.
        """
        machine, roster = entry.machine, entry.machine.roster
        while True:
            outcome = study_status(entry)
            released = any(item.phase is RoundPhase.RELEASED for item in machine.rounds)
            later = self._journal.end_study(
                machine.digest,
                machine.progress(),
                told=machine.told,
                roster=None if roster is None or not released else roster_object(roster),
                phase=machine.phase.value,
                reason=machine.reason,
                status=outcome.SerializeToString(),
            )
            if not later:
                break
            machine.released_before(later)  # and the outcome is made again with them
            for number, release in later.items():
                where = about("released", digest=machine.digest, round=number, attempt=release.attempt)
                LOG.info("study %s: round %d was released as it ended", machine.study.name, number, extra=where)
        self._table.admit_ended(EndedStudy(outcome, machine.seats))
        self._objects.forget(machine.digest)

    def confirm(self, ended: EndedStudy, name: str, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """A participant has heard something of a study that is over. Under the lock.

        Raises:
            HostileInput: as :meth:`.EndedStudy.confirm`.
        """
        ended.confirm(name, kind, number, attempt)
        if name not in ended.seats:
            self._table.heard(ended, name)
        self._heard.setdefault(ended.digest, self._steady())

    def keep_heard(self) -> None:
        """Store who has heard of studies' ends, many at once: after a restart they are not told again. Under the lock."""
        now = self._steady()
        for key, since in list(self._heard.items()):
            ended = self._table.ended[key]
            if now - since < HEARD_SECONDS and ended.seats:
                continue
            names = ended.status.participants
            try:
                self._journal.revise_state(key, partial(with_heard, names=names, waiting=ended.seats))
            except VeilsumError:  # a later tick tries again; nothing depends on it
                return
            del self._heard[key]

    def complete(self, key: bytes, results: Sequence[str]) -> None:
        """A study that had failed in its own formulas has a result now; its sites heard of its end before. Under the lock.

        Raises:
            StateError: it is not over.
        """
        if (ended := self._table.ended.get(key)) is None:
            raise StateError("The study is not over.")
        outcome = ended.status
        outcome.phase, outcome.reason, outcome.progress = StudyPhase.FINISHED.value, "", 1.0
        outcome.results[:] = results
        values = {"phase": outcome.phase, "reason": "", "status": outcome.SerializeToString()}
        self._journal.complete_study(key, **values)
        ended.show(outcome)

    def forget_deleted(self) -> None:
        """Let go of studies that are over and no longer in the journal: another process deleted them. Reads the database."""
        with self._table.lock:
            ended = set(self._table.ended)
        if not ended:
            return
        gone = ended - self._journal.digests()
        with self._table.lock:
            for key in gone:
                self._table.forget(key)
                self._heard.pop(key, None)
