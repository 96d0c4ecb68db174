"""All studies of a coordinator behind one lock: what servicers, in-process participants and method threads call.

Callers give certified names; the hub finds the study, calls its machine, and wakes whoever waits for a change. It performs
no network I/O.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import MemberState, StudyPhase
from veilsum_coordinator.protocol.observer import StudyObserver
from veilsum_coordinator.protocol.restoration import load_seats
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.ended import EndedStudy
from veilsum_coordinator.service.endings import Endings
from veilsum_coordinator.service.fetching import Fetching
from veilsum_coordinator.service.listing import Listing
from veilsum_coordinator.service.table import StudyEntry, StudyTable
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.errors import HostileInput, RefusalCode, Unavailable, VeilsumError
from veilsum_node.identity import Credentials, Label, Role, verify, verify_certificate
from veilsum_node.telemetry.log_floods import caused_by
from veilsum_node.telemetry.logs import about
from veilsum_privacy.ledger.countersigning import countersign_again
from veilsum_privacy.ledger.receipts import ReceiptPart
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_proto import federation_pb2 as pb

LOG = logging.getLogger("veilsum.coordinator")

Listener = Callable[[str | None], object]
"""Told of a change: the only participant of whom something else may be wanted since, or None for any."""


@dataclass
class Session:
    """A participant's presence, over all studies.

    Attributes:
        nonce: of the process that has the session, or had it last; 16 bytes.
        connected: whether the session is open.
        last_seen: when it opened or ended last, Unix seconds.
        received: bytes of contributions.
        serial: how many sessions there were.
        address: where it comes from.
    """

    name: str
    nonce: bytes = b""
    connected: bool = False
    last_seen: int = 0
    received: int = 0
    serial: int = 0
    address: str = ""


class Hub:
    """The coordinator's state. Every public method takes the lock; ``changed`` is notified after a change for more than one.

    Attributes:
        changed: the lock.
        changes: how many of these there were, so that who waits does not miss one between looking and waiting.
        stopping: whether the process is about to end; the error that a method then meets does not fail its study.
        studies: those that are not over, or whose end is not stored; by digest.
        ended: the others.
        shown: what analysts and operators are shown of both.
        objects: what participants fetch of them.
    """

    def __init__(
        self,
        credentials: Credentials,
        journal: SqlJournal,
        *,
        waits: Waits,
        clock: Callable[[], int],
        observer: StudyObserver | None = None,
        steady: Callable[[], int] | None = None,
    ) -> None:
        self._steady = steady or clock  # what waits are measured by
        self.credentials, self.journal = credentials, journal
        self._table = StudyTable()
        self.changed = threading.Condition(self._table.lock)
        self.changes, self.stopping = 0, False
        self.studies, self.ended = self._table.studies, self._table.ended
        self.sessions: dict[str, Session] = {}
        self._listeners: list[Listener] = []
        self.shown, self.objects = Listing(self._table), Fetching(self._table, journal)
        self._endings = Endings(self._table, journal, self.objects, self._steady, lambda: self.stopping)
        self._waits, self._clock, self._observer = waits, clock, observer
        self._restore()

    # -- sessions ----------------------------------------------------------------------------------------------------------

    def held_elsewhere(self, name: str, nonce: bytes) -> bool:
        """Whether another process with a participant's identity has the session: its nonce is another one."""
        with self.changed:
            session = self.sessions.get(name)
            return session is not None and session.connected and session.nonce != nonce

    def connect(self, name: str, nonce: bytes, address: str = "") -> int:
        """A participant opened its session; returns the session's serial number (a newer one replaces an older)."""
        if len(nonce) != 16:
            raise HostileInput("A session nonce must have 16 bytes.")
        with self._change(name=name):
            session = self.sessions.setdefault(name, Session(name))
            session.nonce, session.connected, session.last_seen, session.address = nonce, True, self._clock(), address
            session.serial += 1
            for machine in self._table.machines_of(name):
                machine.connected(name, nonce)
            extra = about("session", participant=name) | caused_by("sessions opened", name)
            LOG.info("%s opened its session", name, extra=extra)
            return session.serial

    def disconnect(self, name: str, serial: int) -> None:
        """A session's stream ended; ignored when a newer session has taken its place."""
        with self._change(name=name):
            session = self.sessions[name]
            if session.serial != serial:
                return
            session.connected, session.last_seen = False, self._clock()
            for machine in self._table.machines_of(name):
                machine.disconnected(name)
            extra = about("session", participant=name) | caused_by("sessions ended", name)
            LOG.info("the session of %s ended", name, extra=extra)

    def renew(self, credentials: Credentials) -> None:
        """Prove and sign with renewed credentials from here on.

        What was signed before stays signed; the words on an open attempt's receipts and sum are given again under a new key,
        because its members may not have asked for them yet and are shown the new certificate when they greet.

        Raises:
            StateError: a new key could not be named in the mirror; the former credentials stay in use.
        """
        with self.changed:
            self.journal.renew(credentials)
            former, self.credentials = self.credentials, credentials
            if former.signing_key.fingerprint != credentials.signing_key.fingerprint:
                self.objects.renew()
                for entry in self.studies.values():
                    current = entry.machine.round
                    if current is not None and current.countersigned is not None:
                        current.countersigned = countersign_again(current.countersigned, credentials.signing_key)
                        current.sign(credentials)

    def directives(self, name: str) -> list[pb.Directive]:
        """All directives open for a participant."""
        with self.changed:
            return self._table.directives(name)

    def tick(self) -> None:
        """Act on deadlines in every study; wakes others only if something came of it."""
        if self.stopping:  # the sessions end because the process does
            return
        with self.changed:
            running = list(self.studies.values())
            before = [entry.machine.marks() for entry in running]
            for entry in running:
                try:
                    entry.machine.tick()
                except VeilsumError as error:  # one study's fault must not stop the clock of the others
                    entry.machine.fail(error.message)
                except Exception as error:
                    about_it = about("failed", study=entry.machine.study.name, digest=entry.machine.digest)
                    LOG.error("study %s: internal error", entry.machine.study.name, exc_info=error, extra=about_it)
                    entry.machine.fail("internal error at a deadline; see the coordinator's log")
            if before != [entry.machine.marks() for entry in running]:
                with self._change():
                    pass
            else:
                waiting = len(self.studies)
                self._endings.keep_all()  # again, where the database was away
                if len(self.studies) < waiting:  # who waits for an end hears of it now
                    with self._change():
                        pass
            self._endings.keep_heard()

    # -- participants' messages --------------------------------------------------------------------------------------------

    def enrol(self, name: str, key: bytes, enrolment: Enrolment) -> None:
        """See :meth:`StudyMachine.enrol`."""
        with self._change(key, name):
            self._table.entry(key).machine.enrol(name, enrolment)

    def refuse(
        self,
        name: str,
        key: bytes,
        code: str,
        number: int,
        attempt: int,
        more: Sequence[str] = (),
        answers: pb.DirectiveKind.ValueType = pb.DIRECTIVE_KIND_UNSPECIFIED,
    ) -> None:
        """Take a refusal; ``more``: codes of further rules that are broken; ``answers``: kind of the directive.

        Raises:
            HostileInput: a code outside the fixed list, more codes than there are, or no such kind.
        """
        if len(more) > len(RefusalCode):
            raise HostileInput("A refusal names more codes than there are.")
        if answers not in pb.DirectiveKind.values():
            raise HostileInput("A refusal answers an unknown kind of directive.")
        try:
            first, *others = (RefusalCode(item) for item in (code, *more))
        except ValueError as error:
            raise HostileInput("A refusal's code is not in the fixed list.") from error
        with self._change(key, name):
            self._table.entry(key).machine.refuse(name, first, number, attempt, others, answers)

    def seal(self, name: str, key: bytes, boxes: Sequence[Box]) -> None:
        """See :meth:`StudyMachine.seal`."""
        with self._change(key, name):
            self._table.entry(key).machine.seal(name, boxes)

    def ready(self, name: str, key: bytes) -> None:
        """See :meth:`StudyMachine.ready`."""
        with self._change(key, name):
            self._table.entry(key).machine.ready(name)

    def upload_status(self, name: str, key: bytes, attempt: int) -> tuple[int, bool]:
        """Index of the next piece that is wanted, and whether the upload is complete.

        Raises:
            HostileInput: the caller has no upload in the present attempt.
        """
        with self.changed:
            current = self._attempt(name, key, attempt)
            upload = current.accumulator.uploads[name]
            return upload.next, upload.complete

    def upload(self, name: str, key: bytes, attempt: int, index: int, data: bytes) -> None:
        """See :meth:`StudyMachine.upload`. Wakes nobody: nothing that others wait for has changed."""
        with self.changed:
            entry = self._table.entry(key)
            entry.machine.upload(name, attempt, index, data)
            entry.changes += 1
            self.sessions[name].received += len(data)

    def receipt(self, name: str, key: bytes, attempt: int, told: ReceiptPart) -> None:
        """See :meth:`StudyMachine.receipt`."""
        with self._change(key, name):
            self._table.entry(key).machine.receipt(name, attempt, told)

    def answer(self, name: str, key: bytes, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        """See :meth:`StudyMachine.answer`."""
        with self._change(key, name):
            self._table.entry(key).machine.answer(name, attempt, CheckAnswer(words, signature))

    def consent(self, name: str, key: bytes, attempt: int, consent: bytes, signature: bytes) -> None:
        """See :meth:`StudyMachine.consent`."""
        with self._change(key, name):
            self._table.entry(key).machine.consent(name, attempt, consent, signature)

    def boxes_owed(self, name: str, key: bytes) -> int:
        """How many sealed boxes the caller may send at most.

        Raises:
            HostileInput: it is not in the study's roster, or boxes are not being exchanged.
        """
        with self.changed:
            machine = self._table.entry(key).machine
            if machine.roster is None or name not in machine.roster.names:
                raise HostileInput("The caller is not in the study's roster.")
            if machine.phase is not StudyPhase.SEALING:
                raise HostileInput("Sealed boxes came outside the sealing phase.")
            return len(machine.members.owed(name))

    def confirm(self, name: str, key: bytes, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """See :meth:`StudyMachine.confirm`."""
        with self._change(key, name):
            if (ended := self.ended.get(bytes(key))) is None:
                self._table.entry(key).machine.confirm(name, kind, number, attempt)
                return
            self._endings.confirm(ended, name, kind, number, attempt)

    # -- analysts ----------------------------------------------------------------------------------------------------------

    def submit(self, caller: str, submitted: pb.StudyObject) -> bytes:
        """Take a signed study from the analyst that signed it; returns its digest. Waits while the database is away.

        Raises:
            HostileInput: signature, certificate, role, federation, expiry or content is wrong, or it was submitted before.
        """
        now = self._clock()
        analyst = verify_certificate(submitted.certificate, self.credentials.authority, now, Role.ANALYST)
        verify(analyst.public_key, Label.STUDY, submitted.study, submitted.signature)
        study = parse_study(submitted.study)
        if analyst.name != caller:
            raise HostileInput("The study is signed by a different analyst than the caller.")
        if study.federation != self.credentials.federation_id or study.coordinator != self.credentials.identity.name:
            raise HostileInput("The study names another federation or coordinator.", "Submit it to this coordinator again.")
        if now >= study.expires:
            raise HostileInput("The study has expired.")
        key = study_digest(submitted.study)
        self.journal.add_study(key, submitted.SerializeToString(), analyst.name, now)
        with self._change():
            entry = StudyEntry(self._machine(study, key), submitted, analyst.name, now)
            self._table.admit(entry)
            fields = about("submitted", study=study.name, digest=key)
            LOG.info("study %s (%s) submitted by %s", study.name, key.hex()[:12], analyst.name, extra=fields)
            for session in self.sessions.values():
                if session.connected:
                    entry.machine.connected(session.name, session.nonce)
        return key

    def abort(self, key: bytes, reason: str) -> None:
        """Stop a study; it is stopped for good once that is :meth:`stored`."""
        with self.changing(key) as entry:
            if entry is not None:
                entry.machine.abort(reason)

    def fail(self, key: bytes, reason: str) -> None:
        """End a study that cannot go on, unless it is over."""
        with self.changing(key) as entry:
            if entry is not None:
                entry.machine.fail(reason)

    def finish(self, key: bytes, results: Sequence[str]) -> None:
        """End a study whose method has returned, unless it is over; ``results``: names of its files."""
        with self.changing(key) as entry:
            if entry is not None:
                entry.results = [*results]
                entry.machine.finish()

    def complete(self, key: bytes, results: Sequence[str]) -> None:
        """A study that had failed in its own formulas has a result now.

        Raises:
            StateError: it is not over.
        """
        with self._change(key):
            self._endings.complete(key, results)

    def forget_deleted(self) -> None:
        """Let go of studies that are over and that another process deleted. Reads the database."""
        self._endings.forget_deleted()

    def released(self, key: bytes, machine: StudyMachine, current: Round) -> None:
        """A round's release is stored, and its members hear of it."""
        with self._change(key):
            if current.phase is not RoundPhase.RELEASED:  # else the study was stopped meanwhile, and its end told of it
                machine.released(current)

    def stored(self, key: bytes) -> bool:
        """Whether a study's outcome is durable."""
        with self.changed:
            return bytes(key) in self.ended or not self._table.entry(key)

    # -- the runner --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self, key: bytes | None = None, name: str | None = None) -> Iterator[None]:
        """Under the lock, with a notification after.

        Args:
            key: of the only study that may change, None for any.
            name: of the participant that sent something, None for any other cause.
        """
        with self.changed:
            try:
                yield
            finally:
                entries = [*self.studies.values()] if key is None else [*filter(None, [self.studies.get(bytes(key))])]
                looks = [entry.looks_the_same() for entry in entries]  # each of them notes how it looks
                same = all(looks)
                for entry in entries:
                    entry.changes += 1
                    entry.log.look(name if same else None)
                running = len(self.studies)
                self._endings.keep_all()
                concerned = name if same and len(self.studies) == running else None
                if concerned is None:  # a study's method waits for nothing that one of many members changes for itself
                    self.changes += 1
                    self.changed.notify_all()
                for listener in self._listeners:
                    listener(concerned)

    @contextmanager
    def changing(self, key: bytes) -> Iterator[StudyEntry | None]:
        """A study's entry, under the lock, with a notification after; None of one that is over."""
        with self._change(key):
            yield None if bytes(key) in self.ended else self._table.entry(key)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` after every change, from the thread that made it, under the lock."""
        self._listeners.append(listener)

    def _machine(self, study: Study, key: bytes) -> StudyMachine:
        return StudyMachine(
            study,
            key,
            authority=self.credentials.authority,
            waits=self._waits,
            clock=self._clock,
            journal=self.journal,
            observer=self._observer,
            steady=self._steady,
        )

    def _attempt(self, name: str, key: bytes, attempt: int) -> Round:
        current = self._table.entry(key).machine.round
        if current is None or current.assignment.attempt != attempt or name not in current.cohort:
            raise HostileInput("The attempt is over.", "Wait for the next directive.")
        return current

    def _restore(self) -> None:
        """Load earlier studies; what was running when the process ended goes on where the journal has it."""
        for row in self.journal.studies():
            key = bytes(row["digest"])
            if row["status"] is not None:
                outcome = pb.StudyStatus.FromString(row["status"])
                seats = {name: MemberState(name) for name in outcome.participants}
                load_seats(seats, self.journal.kept_state(key).get("seats", {}))
                self._table.admit_ended(EndedStudy(outcome, seats))
                continue
            submitted = self.journal.submitted(key)
            machine = self._machine(parse_study(submitted.study), key)
            entry = StudyEntry(machine, submitted, row["analyst"], row["submitted"])
            self._table.admit(entry)
            try:
                machine.restore(self.journal.kept(key), row["submitted"])
            except Unavailable:
                raise
            except Exception as error:  # one study's fault must not keep the others from going on
                LOG.error("study %s cannot continue", machine.study.name, exc_info=error, extra=about("failed", digest=key))
                unread = "the journal's records of the study cannot be used; see the coordinator's log"
                machine.fail(error.message if isinstance(error, VeilsumError) else unread)
                self._endings.keep(entry)
            else:
                entry.log.catch_up()
                where = about("restored", study=machine.study.name, digest=key)
                LOG.info("study %s goes on (%s)", machine.study.name, machine.phase.value, extra=where)
