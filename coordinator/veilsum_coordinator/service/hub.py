"""All studies of a coordinator behind one lock: what servicers, in-process participants and method threads call.

Callers give certified names; the hub finds the study, calls its machine, and wakes whoever waits for a change. It performs
no network I/O.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from veilsum_coordinator.protocol.events import StudyLog
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import MemberState, StudyPhase
from veilsum_coordinator.protocol.observer import StudyObserver
from veilsum_coordinator.protocol.restoration import load_seats, with_heard
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.results.proof import release_object
from veilsum_coordinator.service.ended import EndedStudy
from veilsum_coordinator.service.objects import ENCLOSED, FROM_DATABASE, Objects, chunk_messages, mirrored_object
from veilsum_coordinator.service.status import StudyEntry, listed_status, shown_status, study_status
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.messages import roster_object
from veilsum_node.errors import HostileInput, RefusalCode, StateError, Unavailable, VeilsumError
from veilsum_node.identity import Credentials, Label, Role, verify, verify_certificate
from veilsum_node.telemetry.log_floods import caused_by
from veilsum_node.telemetry.logs import about
from veilsum_privacy.computation.following import followed
from veilsum_privacy.ledger.countersigning import countersign_again
from veilsum_privacy.ledger.receipts import ReceiptPart
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.context import Pieces
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

LOG = logging.getLogger("veilsum.coordinator")

HEARD_SECONDS = 10
"""How long it may stay unstored who has heard of a study's end."""

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
        studies: those that are not over, or whose end is not stored.
        ended: the others.
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
        self.changed = threading.Condition(threading.RLock())
        self.changes, self.stopping = 0, False
        self.studies: dict[bytes, StudyEntry] = {}
        self.ended: dict[bytes, EndedStudy] = {}
        self.sessions: dict[str, Session] = {}
        self._listeners: list[Listener] = []
        self._logs: dict[bytes, StudyLog] = {}
        self._outlooks: dict[bytes, tuple[object, ...]] = {}  # of studies that run, after the last change
        self._open: dict[str, dict[bytes, StudyMachine | EndedStudy]] = {}  # by participant: what may want something of it
        self._heard: dict[bytes, int] = {}  # studies over, since when it is not stored who has heard of their end
        self._objects = Objects()
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
            for machine in self._machines_of(name):
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
            for machine in self._machines_of(name):
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
                self._objects.clear()
                for entry in self.studies.values():
                    current = entry.machine.round
                    if current is not None and current.countersigned is not None:
                        current.countersigned = countersign_again(current.countersigned, credentials.signing_key)
                        current.sign(credentials)

    def directives(self, name: str) -> list[pb.Directive]:
        """All directives open for a participant."""
        with self.changed:
            told = [study for key, study in self._open.get(name, {}).items() if key in self.ended or not study.phase.over]
            return [directive for study in told for directive in study.directives(name)]  # no end that is not stored

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
                self._keep_outcomes()  # again, where the database was away
                if len(self.studies) < waiting:  # who waits for an end hears of it now
                    with self._change():
                        pass
            self._keep_heard()

    # -- participants' messages --------------------------------------------------------------------------------------------

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
            return [mirrored_object(self.journal.mirror, name, number)]
        if kind == pb.OBJECT_KIND_RELEASE:
            return [self._release(name, key, number)]
        with self.changed:
            return self._objects.pieces(self._asked(key, name), name, kind, number, attempt)

    def messages(self, name: str, kind: pb.ObjectKind.ValueType, key: bytes, number: int, attempt: int) -> Iterable[bytes]:
        """The same as serialised messages of a stream.

        Raises:
            HostileInput: there is none for this caller.
        """
        if kind in FROM_DATABASE:
            return chunk_messages(self.pieces(name, kind, key, number, attempt))
        with self.changed:
            return self._objects.messages(self._asked(key, name), name, kind, number, attempt)

    def _release(self, name: str, key: bytes, number: int) -> bytes:
        """A released round, for a member of a study that declares its steps; no other study shows its sums to members."""
        with self.changed:
            machine = self._entry(key).machine
            if machine.roster is None or name not in machine.roster.names or followed(machine.agreed.study) is None:
                raise HostileInput("The caller has no part in a study whose members take its steps.")
            found, data = self._objects.released.get(key, (0, b""))
            agreed, members = machine.agreed, len(machine.roster.names)
        return data if found == number else release_object(self.journal.database, agreed, members, number)

    def keep_release(self, key: bytes, number: int, shown: bytes) -> None:
        """A round was released: what all members fetch of it next is put together once, of its opened sum as they are shown
        it. Reads the database."""
        with self.changed:
            machine = self._entry(key).machine
            if followed(machine.agreed.study) is None:
                return
            agreed, members = machine.agreed, len(machine.members.fixed_roster().names)
        data = release_object(self.journal.database, agreed, members, number, shown)
        with self.changed:
            self._objects.released[key] = number, data

    def enclose(self, name: str, directive: pb.Directive) -> pb.Directive:
        """A directive with what its answer needs, if that is small enough to come along: it saves the participant a call."""
        kind = ENCLOSED.get(directive.kind)
        if kind is None:
            return directive
        with self.changed:
            try:
                agreed = self._entry(directive.study).machine.agreed
                if kind == pb.OBJECT_KIND_BROADCAST and directive.round > 1 and followed(agreed.study) is not None:
                    number, data = self._objects.released.get(bytes(directive.study), (0, b""))
                    if number == directive.round - 1 and len(data) <= CHUNK_BYTES:  # members make the broadcast of it
                        directive.object = data
                    return directive
                found = self.pieces(name, kind, directive.study, directive.round, directive.attempt)
            except HostileInput:  # it is not open any more
                return directive
            if sum(map(len, found)) <= CHUNK_BYTES:
                directive.object = b"".join(found)
        return directive

    def enrol(self, name: str, key: bytes, enrolment: Enrolment) -> None:
        """See :meth:`StudyMachine.enrol`."""
        with self._change(key, name):
            self._entry(key).machine.enrol(name, enrolment)

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
            self._entry(key).machine.refuse(name, first, number, attempt, others, answers)

    def seal(self, name: str, key: bytes, boxes: Sequence[Box]) -> None:
        """See :meth:`StudyMachine.seal`."""
        with self._change(key, name):
            self._entry(key).machine.seal(name, boxes)

    def ready(self, name: str, key: bytes) -> None:
        """See :meth:`StudyMachine.ready`."""
        with self._change(key, name):
            self._entry(key).machine.ready(name)

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
            self._entry(key).machine.upload(name, attempt, index, data)
            self.sessions[name].received += len(data)

    def receipt(self, name: str, key: bytes, attempt: int, told: ReceiptPart) -> None:
        """See :meth:`StudyMachine.receipt`."""
        with self._change(key, name):
            self._entry(key).machine.receipt(name, attempt, told)

    def answer(self, name: str, key: bytes, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        """See :meth:`StudyMachine.answer`."""
        with self._change(key, name):
            self._entry(key).machine.answer(name, attempt, CheckAnswer(words, signature))

    def consent(self, name: str, key: bytes, attempt: int, consent: bytes, signature: bytes) -> None:
        """See :meth:`StudyMachine.consent`."""
        with self._change(key, name):
            self._entry(key).machine.consent(name, attempt, consent, signature)

    def boxes_owed(self, name: str, key: bytes) -> int:
        """How many sealed boxes the caller may send at most.

        Raises:
            HostileInput: it is not in the study's roster, or boxes are not being exchanged.
        """
        with self.changed:
            machine = self._entry(key).machine
            if machine.roster is None or name not in machine.roster.names:
                raise HostileInput("The caller is not in the study's roster.")
            if machine.phase is not StudyPhase.SEALING:
                raise HostileInput("Sealed boxes came outside the sealing phase.")
            return len(machine.members.owed(name))

    def confirm(self, name: str, key: bytes, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """See :meth:`StudyMachine.confirm`."""
        with self._change(key, name):
            if (ended := self.ended.get(bytes(key))) is None:
                self._entry(key).machine.confirm(name, kind, number, attempt)
                return
            ended.confirm(name, kind, number, attempt)
            if name not in ended.seats:
                self._open.get(name, {}).pop(ended.digest, None)
            self._heard.setdefault(ended.digest, self._steady())

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
            self._admit(key, StudyEntry(self._machine(study, key), submitted, analyst.name, now))
            self._logs[key] = StudyLog(self.studies[key].machine)
            fields = about("submitted", study=study.name, digest=key)
            LOG.info("study %s (%s) submitted by %s", study.name, key.hex()[:12], analyst.name, extra=fields)
            for session in self.sessions.values():
                if session.connected:
                    self.studies[key].machine.connected(session.name, session.nonce)
        return key

    def status(self, key: bytes) -> pb.StudyStatus:
        """What is shown of a study."""
        with self.changed:
            ended = self.ended.get(bytes(key))
            return shown_status(self._entry(key)) if ended is None else ended.status

    def list(self) -> list[pb.StudyStatus]:
        """What is shown of all studies beside one another, oldest first."""
        return [*self.listed()[0]]

    def listed(
        self, analyst: str | None = None, *, begins: str = "", before: bytes = b"", most: float = math.inf
    ) -> tuple[Sequence[pb.StudyStatus], bool]:
        """What is shown of studies beside one another, oldest first.

        Args:
            analyst: whose; None for everybody's.
            begins: hexadecimal digits that their digests begin with.
            before: a study's digest: only those before it.
            most: bytes of what is shown; the newest that fit, and at least one.

        Returns:
            these, and whether there are older ones.

        Raises:
            HostileInput: no such study is listed, as when it was deleted meanwhile.
        """
        with self.changed:
            known: dict[bytes, StudyEntry | EndedStudy] = {**self.ended, **self.studies}
            keys = sorted((each.submitted, key) for key, each in known.items() if analyst in (None, each.analyst))
            if before:
                if (limit := next((at for at, (_, key) in enumerate(keys) if key == before), None)) is None:
                    raise HostileInput("No study of that digest is listed any more.", "List the studies from the start.")
                del keys[limit:]
            found, size = deque[pb.StudyStatus](), 0
            for place in (place for place in reversed(keys) if place[1].hex().startswith(begins)):
                each = known[place[1]]
                shown = listed_status(each.status if isinstance(each, EndedStudy) else shown_status(each))
                size += shown.ByteSize() + 8  # its tag and length
                if found and size > most:
                    return found, True
                found.appendleft(shown)
        return found, False

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

    def released(self, key: bytes, machine: StudyMachine, current: Round) -> None:
        """A round's release is stored; its members hear of it, also where the study was stopped meanwhile."""
        with self._change(key):
            machine.released(current)
            if (ended := self.ended.get(key)) is not None:
                ended.released(*current.present, current.cohort)
                self._tell_end(ended)
                self._heard.setdefault(key, self._steady())

    def stored(self, key: bytes) -> bool:
        """Whether a study's outcome is durable."""
        with self.changed:
            return bytes(key) in self.ended or not self._entry(key)

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
                same = self._looks_the_same(self.studies if key is None else [bytes(key)])
                for log in list(self._logs.values()) if key is None else filter(None, [self._logs.get(bytes(key))]):
                    log.look(name if same else None)
                running = len(self.studies)
                self._keep_outcomes()
                concerned = name if same and len(self.studies) == running else None
                if concerned is None:  # a study's method waits for nothing that one of many members changes for itself
                    self.changes += 1
                    self.changed.notify_all()
                for listener in self._listeners:
                    listener(concerned)

    def _looks_the_same(self, keys: Iterable[bytes]) -> bool:
        """Whether studies look to everyone but who caused a change as they did after the change before."""
        new = {key: self.studies[key].machine.outlook() for key in keys if key in self.studies}
        same = all(self._outlooks.get(key) == outlook for key, outlook in new.items())
        self._outlooks |= new
        return same

    @contextmanager
    def change(self, key: bytes) -> Iterator[StudyMachine]:
        """For the runner: the machine of a study that is not over, under the lock, with a notification after.

        Raises:
            HostileInput: it is over.
        """
        with self._change(key):
            yield self._entry(key).machine

    @contextmanager
    def changing(self, key: bytes) -> Iterator[StudyEntry | None]:
        """The same of any study, with its entry; None of one that is over."""
        with self._change(key):
            yield None if bytes(key) in self.ended else self._entry(key)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` after every change, from the thread that made it, under the lock."""
        self._listeners.append(listener)

    def _keep_outcomes(self) -> None:
        for key, entry in list(self.studies.items()):
            if entry.machine.phase.over:
                try:
                    self._keep_outcome(key, entry)
                except Unavailable:  # whoever waits must hear of the change; a later tick tries again
                    continue
                except VeilsumError as error:
                    if not self.stopping:
                        LOG.error("the outcome of study %s is not stored: %s", entry.machine.study.name, error)

    def _keep_outcome(self, key: bytes, entry: StudyEntry) -> None:
        outcome, roster = study_status(entry), entry.machine.roster
        released = any(item.phase is RoundPhase.RELEASED for item in entry.machine.rounds)
        self.journal.end_study(
            key,
            entry.machine.progress(),
            roster=None if roster is None or not released else roster_object(roster),
            phase=entry.machine.phase.value,
            reason=entry.machine.reason,
            status=outcome.SerializeToString(),
        )
        self._admit_ended(EndedStudy(outcome, entry.machine.seats))
        self._logs.pop(key, None)
        self.studies.pop(key, None)
        self._outlooks.pop(key, None)
        self._objects.forget(key)

    def complete(self, key: bytes, results: Sequence[str]) -> None:
        """A study that had failed in its own formulas has a result now; its sites heard of its end before."""
        with self.changed:
            if (ended := self.ended.get(key)) is None:
                raise StateError("The study is not over.")
            outcome = ended.status
            outcome.phase, outcome.reason, outcome.progress = StudyPhase.FINISHED.value, "", 1.0
            outcome.results[:] = results
            values = {"phase": outcome.phase, "reason": "", "status": outcome.SerializeToString()}
            self.journal.complete_study(key, **values)
            ended.show(outcome)
            self.changes += 1
            self.changed.notify_all()

    def forget_deleted(self) -> None:
        """Let go of studies that are over and no longer in the journal: another process deleted them. Reads the database."""
        with self.changed:
            ended = set(self.ended)
        if not ended:
            return
        gone = ended - self.journal.digests()
        with self.changed:
            for key in gone:
                del self.ended[key]
                self._heard.pop(key, None)
                for entries in self._open.values():
                    entries.pop(key, None)

    def _admit(self, key: bytes, entry: StudyEntry) -> None:
        self.studies[key] = entry
        for name in entry.machine.seats:
            self._open.setdefault(name, {})[key] = entry.machine

    def _admit_ended(self, ended: EndedStudy) -> None:
        self.ended[ended.digest] = ended
        for studies in self._open.values():
            studies.pop(ended.digest, None)
        self._tell_end(ended)

    def _tell_end(self, ended: EndedStudy) -> None:
        for name in ended.seats:
            self._open.setdefault(name, {})[ended.digest] = ended

    def _machines_of(self, name: str) -> Iterator[StudyMachine]:
        """Of the studies that a participant is invited to and that are not over."""
        return (study for study in self._open.get(name, {}).values() if isinstance(study, StudyMachine))

    def _keep_heard(self) -> None:
        """Store who has heard of a study's end, many at once: after a restart they are not told of it again."""
        now = self._steady()
        for key, since in list(self._heard.items()):
            ended = self.ended[key]
            if now - since < HEARD_SECONDS and ended.seats:
                continue
            names = ended.status.participants
            try:
                self.journal.revise_state(key, partial(with_heard, names=names, waiting=ended.seats))
            except VeilsumError:  # a later tick tries again; nothing depends on it
                return
            del self._heard[key]

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

    def _entry(self, key: bytes) -> StudyEntry:
        entry = self.studies.get(bytes(key))
        if bytes(key) in self.ended:
            raise HostileInput("The study is over.", "Wait for the next directive.")
        if entry is None:
            raise HostileInput("There is no such study.", "`veilsum study list` shows those that there are.")
        return entry

    def _asked(self, key: bytes, name: str) -> StudyEntry:
        """As :meth:`_entry`, for a participant; of a study that is over nobody else hears even that."""
        if (ended := self.ended.get(bytes(key))) is not None:
            ended.check_invited(name)
        return self._entry(key)

    def _attempt(self, name: str, key: bytes, attempt: int) -> Round:
        current = self._entry(key).machine.round
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
                self._admit_ended(EndedStudy(outcome, seats))
                continue
            submitted = self.journal.submitted(key)
            machine = self._machine(parse_study(submitted.study), key)
            entry = StudyEntry(machine, submitted, row["analyst"], row["submitted"])
            self._admit(key, entry)
            self._logs[key] = StudyLog(machine)
            try:
                machine.restore(self.journal.kept(key), row["submitted"])
            except Unavailable:
                raise
            except Exception as error:  # one study's fault must not keep the others from going on
                LOG.error("study %s cannot continue", machine.study.name, exc_info=error, extra=about("failed", digest=key))
                unread = "the journal's records of the study cannot be used; see the coordinator's log"
                machine.fail(error.message if isinstance(error, VeilsumError) else unread)
                self._keep_outcome(key, entry)
            else:
                self._logs[key].catch_up()
                where = about("restored", study=machine.study.name, digest=key)
                LOG.info("study %s goes on (%s)", machine.study.name, machine.phase.value, extra=where)
