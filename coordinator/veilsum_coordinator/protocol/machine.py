"""One study at the coordinator, as a state machine without I/O: seats, roster, sealed boxes, rounds.

Allowed order: enrolling -> sealing -> running (rounds) -> finished, or failed or aborted from anywhere. Input: verified names
and parsed messages, and the clock's ticks. Output: for each participant the directives that are open now (level-triggered, so
a reconnect loses nothing). Nothing here waits, sends or stores, except through the journal it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hmac import compare_digest
from typing import Any, NamedTuple

from cryptography import x509

from veilsum_coordinator.protocol.accumulator import Accumulator
from veilsum_coordinator.protocol.cohorts import CohortError, Cohorts
from veilsum_coordinator.protocol.directives import open_directives, round_directive
from veilsum_coordinator.protocol.members import Members, MemberState, StudyPhase
from veilsum_coordinator.protocol.observer import AttemptReason, StudyObserver
from veilsum_coordinator.protocol.restoration import Replay, dump_seats, load_seats, released_rounds, summed_round
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_coordinator.storage.records import PROTOCOL, KeptRelease, KeptStudy, KeptSum, RoundStart
from veilsum_node.errors import HostileInput, RefusalCode, StateError, Unavailable, VeilsumError
from veilsum_node.process.steady_clock import RETURN_SECONDS
from veilsum_privacy.ledger.receipts import ReceiptPart
from veilsum_privacy.results.whole_sums import total_blocks
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.context import Assignment, Pieces, broadcast_digest, context_digest
from veilsum_privacy.securesum.roster import Enrolment, Roster
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_proto import federation_pb2 as pb

TRANSIENT = {RefusalCode.CONTEXT, RefusalCode.ROUND}
MAX_EXCUSES = 3
MOST_REFUSALS = 1000

RESTART_SECONDS = 3 * int(RETURN_SECONDS)
"""How long participants have to dial again after the coordinator was restarted: three times their longest pause."""


class Decided(NamedTuple):
    """What the journal must hold before anyone is asked to act on it.

    Attributes:
        seats: of each participant, its refusal and whether it was given up on.
        rounds, attempts: how many were begun.
    """

    phase: StudyPhase
    seats: tuple[tuple[str, bool], ...]
    rounds: int
    attempts: int


class StudyMachine:
    """State of one study. Not thread-safe: the hub serialises calls.

    What it decides is in the journal before anyone is asked to act on it: while it cannot be stored, no directive is open.
    """

    def __init__(
        self,
        study: Study,
        digest: bytes,
        *,
        authority: x509.Certificate,
        waits: Waits,
        clock: Callable[[], int],
        journal: SqlJournal,
        observer: StudyObserver | None = None,
        steady: Callable[[], int] | None = None,
    ) -> None:
        self._steady = steady or clock  # what waits are measured by
        self.agreed, self.study, self.digest = AgreedStudy(study), study, digest
        self.phase = self.former = StudyPhase.ENROLLING  # and in which it ended
        self.reason = ""
        self.members = Members(study, digest, authority, clock)
        self.rounds: list[Round] = []
        self.refusals: list[tuple[str, str, int]] = []
        self._observer = observer or StudyObserver()
        self._cohorts = Cohorts(study, self.members, waits, clock, self._steady)
        self._numbers: dict[str, int] = {}  # of each member's last receipt that was shown
        self._waits, self._clock, self._journal = waits, clock, journal
        self._away: int | None = None  # since when a complete sum or a decision cannot be stored
        self._deadline = self._steady() + min(waits.enrol, study.expires - clock())
        self.told = 0  # the last round of whose release its members are told
        self._saved = self._decided()
        self._unsaved = False  # whether a decision is not stored yet
        self.replay = Replay()

    @property
    def seats(self) -> dict[str, MemberState]:
        """One seat for each invited participant, by name."""
        return self.members.seats

    @property
    def enrolment_seconds(self) -> int:
        """How long participants are still waited for; 0 once enrolment has closed."""
        return max(0, int(self._deadline - self._steady())) if self.phase is StudyPhase.ENROLLING else 0

    @property
    def roster(self) -> Roster | None:
        """The verified roster, once enrolment has closed."""
        return self.members.roster

    # -- what is open ------------------------------------------------------------------------------------------------------

    def directives(self, name: str) -> list[pb.Directive]:
        """Directives that are open for this participant, in the order in which it should answer."""
        if self._unsaved and not self.phase.over:
            return []
        return open_directives(self.digest, self.phase, self.members, self.round, name)

    @property
    def round(self) -> Round | None:
        """The present round, if one runs."""
        if self.rounds and self.rounds[-1].phase not in (RoundPhase.RELEASED, RoundPhase.FAILED):
            return self.rounds[-1]
        return None

    # -- connections and time ----------------------------------------------------------------------------------------------

    def connected(self, name: str, nonce: bytes) -> None:
        """A participant opened its session."""
        seat = self.seats.get(name)
        if seat is None:
            return
        seat.connected, seat.nonce = True, nonce

    def disconnected(self, name: str) -> None:
        """The session ended; after the grace period a running attempt goes on without it."""
        seat = self.seats.get(name)
        if seat is not None:
            seat.connected, seat.left_at = False, self._steady()

    def tick(self) -> None:
        """Act on deadlines. Called often; idempotent."""
        now = self._steady()
        if self.phase.over:
            return
        if self._clock() >= self.study.expires:
            self.fail("the study expired")
        elif self.phase is StudyPhase.ENROLLING:
            if self.members.hopeless:  # software answers in seconds, and its refusals tell the analyst what else to mend
                self._deadline = min(self._deadline, now + self._waits.grace)
            if self.members.answered or now >= self._deadline:
                self._close_enrolment()
        elif self.phase is StudyPhase.SEALING:
            self._tick_sealing(now)
        elif (current := self.round) is not None:
            self._tick_round(current, now)
        self._save()

    def outlook(self) -> tuple[object, ...]:
        """All that one participant's open directives depend on and another's message can change."""
        return *self.marks(), self.phase is StudyPhase.SEALING and self.members.all_sealed()

    def marks(self) -> tuple[object, ...]:
        """What a tick can change, to see whether it did."""
        gone = sum(seat.gone for seat in self.seats.values())
        of_round = [(last.phase, last.attempts, last.deadline) for last in self.rounds[-1:]]
        return (self.phase, gone, self._deadline, self._unsaved, len(self.rounds), of_round)

    def _absent(self, name: str, now: int) -> bool:
        return self.members.absent(name, now, self._waits.grace)

    # -- enrolment and keys ------------------------------------------------------------------------------------------------

    def enrol(self, name: str, enrolment: Enrolment) -> None:
        """Take an enrolment.

        Raises:
            HostileInput: not invited, not the sender's own, invalid, or too late.
        """
        seat = self.members.seat(name)
        if seat.enrolled:
            return
        if self.phase is not StudyPhase.ENROLLING or seat.refusal:
            raise HostileInput("Enrolment is over.")
        self.members.enrol(name, enrolment, lambda: self._journal.keep_enrolment(self.digest, name, enrolment))
        if self.members.answered:
            self.tick()

    def refuse(
        self,
        name: str,
        code: RefusalCode,
        number: int,
        attempt: int,
        more: Sequence[RefusalCode] = (),
        answers: pb.DirectiveKind.ValueType = pb.DIRECTIVE_KIND_UNSPECIFIED,
    ) -> None:
        """Take a refusal: of the study, of an attempt, of an answer or of a consent.

        Args:
            code: why; decides what becomes of the attempt.
            more: further rules that are broken, to show.
            answers: kind of the directive that is refused; unspecified stands for the one that is open.

        Raises:
            HostileInput: of an attempt that is not the present one or that the caller has no part in.
        """
        seat, current = self.members.seat(name), self.round
        if number and (current is None or (number, attempt) != current.present or name not in current.cohort):
            raise HostileInput("The refusal is for a different attempt than the current one.", "Wait for the next directive.")
        self._observer.refused({code, *more})
        for every in (code, *more):
            if (entry := (name, every.value, number)) not in self.refusals:
                self.refusals.append(entry)
        if number and current is not None:
            if answers in (pb.DIRECTIVE_KIND_UNSPECIFIED, round_directive(current.phase)):
                self._refuse_attempt(current, name, code)
            # else it is the echo of a directive that was answered, or given up on, before
        elif not (self.phase is StudyPhase.RUNNING and seat.ready and code in TRANSIENT):
            seat.refusal = code.value
            self.tick()

    def _refuse_attempt(self, current: Round, name: str, code: RefusalCode) -> None:
        """Take a member's refusal of what the present attempt asks of it."""
        seat = self.seats[name]
        if current.phase in (RoundPhase.CONTRIBUTING, RoundPhase.CHECKING) and not current.asked:
            seat.excuses += 1
            if code not in TRANSIENT or seat.excuses > MAX_EXCUSES:
                seat.refusal = code.value
            self._retry(current, AttemptReason.REFUSED)
            self._save()
        elif current.phase is RoundPhase.CONSENTING and current.owes(name):  # else an echo from before its consent
            seat.refusal = code.value
            self._lose(current, f"{name} refused its consent ({code.value})")

    def _close_enrolment(self) -> None:
        count, needed = self.members.close(), self.study.privacy.min_cohort
        if self.members.roster is None:
            self.fail(f"{count} of {len(self.seats)} enrolled, {needed} are needed ({self.members.missing})")
            return
        self.phase = StudyPhase.SEALING
        self._deadline = self._steady() + self._waits.seal

    def seal(self, name: str, boxes: Sequence[Box]) -> None:
        """Take a member's boxes, complete or not at all.

        Raises:
            HostileInput: not exactly the boxes that it owes, or not in the sealing phase.
        """
        self.members.seat(name)
        if self.phase is not StudyPhase.SEALING:
            raise HostileInput("Sealed boxes came outside the sealing phase.")
        self.members.seal(name, boxes, lambda: self._journal.keep_boxes(self.digest, name, boxes))
        if self.members.all_sealed():
            self._deadline = self._steady() + self._waits.seal

    def ready(self, name: str) -> None:
        """A member opened all its boxes."""
        seat = self.members.seat(name)
        if self.phase is StudyPhase.ENROLLING or (self.phase is StudyPhase.SEALING and not self.members.all_sealed()):
            raise HostileInput("A member cannot be ready before everyone has sealed.")
        seat.ready = True
        if self.roster is not None and self.members.all_ready():  # a tick looks at every member
            self.tick()

    def _tick_sealing(self, now: int) -> None:
        members, late = self.members, now >= self._deadline
        before = members.live()
        members.drop([name for name in before if late or self._absent(name, now)])
        left = members.live()
        if left != before:  # the rest get the whole time; a member that did its part may be absent for ever
            self._deadline = now + self._waits.seal
        if len(left) < self.study.privacy.min_cohort:
            self.fail("too few members exchanged their keys")
            return
        if members.all_sealed() and members.all_ready():
            self.phase = StudyPhase.RUNNING
            members.forget_boxes()

    # -- rounds ------------------------------------------------------------------------------------------------------------

    def start_round(self, label: str, broadcast: Pieces, members: Collection[str] | None = None) -> Round | None:
        """Begin a round; None when no cohort can be formed (the study has then failed).

        Args:
            broadcast: encoded, in pieces.
            members: who may be in the cohort; None for all participants.

        Raises:
            StateError: the study is not running, or a round runs already.
        """
        if self.phase is not StudyPhase.RUNNING or self.round is not None:
            raise StateError("A round can start only in a running study, one at a time.")
        allowed = self._cohorts.allowed(members)
        kept = self.replay.begun(label, broadcast_digest(broadcast), allowed)
        if kept is not None and kept.sum is not None:
            return self._go_on(kept.start, kept.sum, broadcast)
        assignment = self._assign(len(self.rounds) + 1, label, broadcast, allowed)
        if assignment is None:
            return None
        now, deadline = self._clock(), self._steady() + self._waits.contribute
        plan, context = self._plan(assignment)
        current = Round(
            assignment.round,
            label,
            broadcast,
            assignment,
            plan,
            context,
            Accumulator(plan.encoding, assignment.names),
            now,
            deadline,
            allowed,
        )
        if kept is not None:  # another attempt of a round that an earlier process began
            current.started, current.attempts = kept.start.started, kept.start.attempts + 1
            current.received = kept.start.received
        self.rounds.append(current)
        self._observer.attempted(AttemptReason.FIRST if kept is None else AttemptReason.ABSENT)
        self._observer.moved(self.study, current)
        self._save()
        return current

    def _move(self, current: Round, phase: RoundPhase) -> None:
        current.phase = phase
        self._observer.moved(self.study, current)

    def _plan(self, assignment: Assignment) -> tuple[RoundPlan, bytes]:
        """The plan of an attempt's sum, and its context."""
        roster = self.members.fixed_roster()
        plan = self.agreed.task(assignment.label).plan(len(roster.members), len(assignment.cohort))
        return plan, context_digest(plan, roster, assignment)

    def _assign(self, number: int, label: str, broadcast: Pieces, allowed: frozenset[str]) -> Assignment | None:
        try:
            return self._cohorts.assign(number, label, broadcast, allowed)
        except CohortError as error:
            self.fail(error.message)
            return None

    def _retry(self, current: Round, reason: AttemptReason) -> None:
        for name in current.cohort:
            self.seats[name].give_up.add((current.number, current.assignment.attempt))
        assignment = self._assign(current.number, current.label, current.broadcast, current.allowed)
        if assignment is None:  # the study has failed, and the round with it
            return
        self._observer.attempted(reason)
        current.retry(assignment, *self._plan(assignment), self._steady() + self._waits.contribute)
        if current.phase is not RoundPhase.CONTRIBUTING:
            self._move(current, RoundPhase.CONTRIBUTING)

    def _tick_round(self, current: Round, now: int) -> None:
        late, owing = now >= current.deadline, current.owing
        if current.phase in (RoundPhase.CONTRIBUTING, RoundPhase.CHECKING):
            if not owing and (not late or current.asked):  # everything came while the database was away
                self._store(current)
            elif late or any(self._absent(name, now) for name in current.cohort):
                for name in owing if late else ():
                    self.seats[name].gone = True
                self._retry(current, AttemptReason.LATE if late else AttemptReason.ABSENT)
        elif current.phase is RoundPhase.CONSENTING and late:
            self._lose(current, f"no consent from {', '.join(owing)} in time")

    def _lose(self, current: Round, reason: str) -> None:
        self._move(current, RoundPhase.FAILED)
        self.fail(f"round {current.number} was lost after consent was asked for: {reason}")

    def upload(self, name: str, attempt: int, index: int, data: bytes) -> None:
        """Add one piece of a contribution to the running sum.

        Raises:
            HostileInput: not of the present attempt, malformed, or out of order.
        """
        current = self._round_of(name, attempt, RoundPhase.CONTRIBUTING)
        current.accumulator.add(name, index, data)
        self._observer.received(name, len(data))

    def receipt(self, name: str, attempt: int, told: ReceiptPart) -> None:
        """Take the receipt that ends an upload; with the last one the sum is made durable and stands fixed."""
        current = self._round_of(name, attempt, RoundPhase.CONTRIBUTING)
        last, again = self._numbers.get(name, 0), current.accumulator.uploads[name].complete
        current.receipt(name, told, self.members.fixed_roster(), last)
        if not again:
            self._observer.contributed(name)
        if current.accumulator.complete:
            self._store(current)

    def _store(self, current: Round) -> None:
        """Make a complete sum durable before anyone is shown its digest, and all answers before anyone is asked for consent;
        while the database is away, with a later tick."""
        try:
            if current.phase is RoundPhase.CONTRIBUTING:
                self._store_sum(current)
            if not current.owing:
                self._store_answers(current)
        except VeilsumError as error:  # no consent was asked for, so it costs nobody a charge
            if self._lost(error, self._steady()):
                self.fail(f"the sum of round {current.number} could not be stored: {error.message}")

    def _store_sum(self, current: Round) -> None:
        certificates = {member.name: member.enrolment.certificate for member in self.members.fixed_roster().members}
        total = current.sum or current.fix(current.accumulator.take())
        current.countersigned = self._journal.keep_sum(
            self.digest,
            current.assignment,
            current.plan.encoding.payload_bytes,
            partial(total_blocks, total.total, current.plan.encoding),
            current.receipts(),
            {name: certificates[name] for name in current.cohort},
        )
        current.sign(self._journal.mirror.credentials)
        self._away = None
        shown = (item.read() for item in current.receipts())
        self._numbers |= {receipt.participant: receipt.number for receipt in shown}
        self._move(current, RoundPhase.CHECKING)
        current.deadline = self._steady() + self._waits.check

    def answer(self, name: str, attempt: int, answer: CheckAnswer) -> None:
        """Take an answer to the challenge of the sum; with the last one all are made durable and consent is asked for.

        Raises:
            HostileInput: not of the present attempt, malformed, not signed, or another one than before.
        """
        current = self.round
        if current is None or current.assignment.attempt != attempt or name not in current.answers:  # else the same again
            current = self._round_of(name, attempt, RoundPhase.CHECKING)
        current.answer(name, answer, self.members.fixed_roster())
        if current.phase is RoundPhase.CHECKING and not current.owing:
            self._store(current)

    def _store_answers(self, current: Round) -> None:
        if not current.asked:  # else they come from the journal
            answers = [current.answers[name] for name in current.cohort]
            self._journal.keep_answers(self.digest, current.assignment, answers)
        current.agree()
        self._away, current.broadcast = None, ()  # no other attempt begins from here on
        self._move(current, RoundPhase.CONSENTING)
        current.deadline = self._steady() + self._waits.consent
        self._count_consents(current)  # those that an earlier process kept

    def consent(self, name: str, attempt: int, consent: bytes, signature: bytes) -> None:
        """Take a consent, signed for the answers of all; with the last one the sum opens.

        Raises:
            HostileInput: not of the present attempt, not the one that its sender's receipt commits it to, or signed for other
                answers.
        """
        current = self.round
        if current is not None and current.assignment.attempt == attempt:
            known = current.consents.get(name)
            if known is not None and compare_digest(known, consent):
                return
        current = self._round_of(name, attempt, RoundPhase.CONSENTING)
        current.check_consent(name, consent, signature, self.members.fixed_roster())
        self._journal.keep_consent(self.digest, current.number, current.context, name, consent, signature)
        current.consents[name], current.agreed[name] = consent, signature
        self._count_consents(current)

    def _count_consents(self, current: Round) -> None:
        if not current.owing:
            self._cohorts.consented(current.allowed, current.cohort)
            self._move(current, RoundPhase.OPENING)

    def released(self, current: Round) -> None:
        """The sum was opened and journalled: members may forget their payloads."""
        self._move(current, RoundPhase.RELEASED)
        current.finished = self._clock()
        current.forget()
        self._tell_released(*current.present, current.cohort)

    def released_before(self, releases: Mapping[int, KeptRelease]) -> None:
        """Releases, by round, that were stored before the study's end is: their members have paid, and must hear of them."""
        for number, release in releases.items():
            last = self.rounds[-1] if self.rounds else None
            if last is not None and last.number == number and last.phase is not RoundPhase.RELEASED:
                self.released(last)
            self._tell_released(number, release.attempt, release.cohort)

    def _tell_released(self, number: int, attempt: int, cohort: Sequence[str]) -> None:
        for name in cohort:
            self.seats[name].released.add((number, attempt))
        self.told = max(self.told, number)

    # -- after a restart ---------------------------------------------------------------------------------------------------

    def _decided(self) -> Decided:
        seats = tuple((seat.refusal, seat.gone) for seat in self.seats.values())
        return Decided(self.phase, seats, len(self.rounds), self._cohorts.attempts)

    def _save(self) -> None:
        """Make what was decided durable; while the database is away, with a later tick. An outcome is the hub's to store."""
        decided = self._decided()
        if self.phase.over or decided == self._saved:
            return
        now, current, begun = self._steady(), self.round, None
        if current is not None and (decided.rounds, decided.attempts) != (self._saved.rounds, self._saved.attempts):
            begun = RoundStart(current.assignment, current.allowed, current.attempts, current.started, current.received)
        try:
            sealed = self.phase is StudyPhase.RUNNING
            self._journal.keep_progress(self.digest, self.progress(), begun, sealed=sealed)
        except VeilsumError as error:  # nobody was asked for anything that depends on it
            self._unsaved = True
            if self._lost(error, now):
                self.fail(f"the study's state could not be stored: {error.message}")
            return
        self._saved, self._unsaved, self._away = decided, False, None

    def _lost(self, error: VeilsumError, now: int) -> bool:
        """Whether what could not be stored will not be any more, rather than with a later tick."""
        self._away = now if self._away is None else self._away
        return not isinstance(error, Unavailable) or now - self._away >= self._waits.database

    def progress(self) -> dict[str, Any]:
        """What the journal keeps of the study's decisions, as JSON values; :meth:`restore` reads it."""
        return {
            "protocol": PROTOCOL,
            "phase": self.phase.value,
            "closed": self.members.closed,
            "roster": list(self.members.names),
            "round": self.rounds[-1].number if self.rounds else 0,
            "seats": dump_seats(self.seats),
            "refusals": self.refusals[-MOST_REFUSALS:],
        }

    def restore(self, kept: KeptStudy, submitted: int) -> None:
        """Go on with what an earlier process kept; rounds that it began wait until the method has asked for them again.

        Args:
            kept: from the journal.
            submitted: when the study was, unix seconds.

        Raises:
            VeilsumError: what was kept does not verify.
        """
        now, state = self._steady(), kept.state
        self.refusals = [(name, code, number) for name, code, number in state.get("refusals", ())]
        load_seats(self.seats, state.get("seats", {}))
        self.told = max(0, state.get("round", 0) - 1)  # of that round seats may not know yet
        self.members.restore(kept)
        self.phase = StudyPhase(state.get("phase", StudyPhase.ENROLLING.value))
        for seat in self.seats.values():
            seat.left_at = now + max(0, RESTART_SECONDS - self._waits.grace)
            seat.ready = self.phase is StudyPhase.RUNNING and seat.active
        if self.phase is StudyPhase.ENROLLING:
            left = max(submitted + self._waits.enrol - self._clock(), RESTART_SECONDS)
            self._deadline = now + min(left, self.study.expires - self._clock())
        else:
            self._deadline = now + max(self._waits.seal, RESTART_SECONDS)
        self._numbers = dict(kept.numbers)
        self._cohorts.attempts = max((item.start.assignment.attempt for item in kept.rounds), default=0)
        if self.roster is not None:
            self.rounds = released_rounds(self.agreed, kept.rounds, len(self.roster.members))
        if kept.former:
            raise StateError(
                "it began under an earlier version of the protocol, which this software does not speak", "Submit it again."
            )
        self.replay = Replay(kept.rounds)
        for item in kept.rounds:
            if item.release is not None:
                self._cohorts.consented(item.start.allowed, item.release.cohort)
                if item.start.assignment.round >= state.get("round", 0):
                    self._tell_released(item.start.assignment.round, item.release.attempt, item.release.cohort)
            elif item.sum is None:
                for name in item.start.assignment.names:
                    self.seats[name].give_up.add((item.start.assignment.round, item.start.assignment.attempt))
        self._saved = self._decided()

    @property
    def returning(self) -> bool:
        """Whether a round should wait for members that have not dialled again since the coordinator was restarted."""
        now = self._steady()
        return not self.phase.over and any(
            seat.active and not seat.nonce and not self._absent(name, now) for name, seat in self.seats.items()
        )

    def replayed(self, label: str, broadcast: bytes, members: Collection[str] | None) -> tuple[int, KeptRelease] | None:
        """The round of an earlier process that the method asks for again, if that was released: its number and release.

        Args:
            broadcast: digest of what would be broadcast.
            members: who may be in the cohort; None for all participants.

        Raises:
            ReplayError: it is another one than the journal holds.
        """
        return self.replay.release(label, broadcast, self._cohorts.allowed(members))

    def _go_on(self, start: RoundStart, total: KeptSum, broadcast: Pieces) -> Round:
        """Go on with a sum that an earlier process made durable, with the answers and consents that were kept."""
        deadline = self._steady() + self._waits.contribute
        plan, context = self._plan(start.assignment)
        if total.receipts[0].read().context != context:
            raise StateError(f"the sum of round {start.assignment.round} is of another context than its members' now")
        current = summed_round(plan, context, start, total, broadcast, deadline)
        self.rounds.append(current)
        self._observer.moved(self.study, current)
        # The round stands in the journal; the rest may not yet.
        self._saved = self._saved._replace(rounds=len(self.rounds), attempts=self._cohorts.attempts)
        self._store(current)
        return current

    def unusable(self, current: Round, reason: str) -> None:
        """The opened vector failed its checks: no value of it is used."""
        self._observer.unopened()
        self._lose(current, reason)

    def confirm(self, name: str, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """A participant confirms that it gave an attempt up, saw a release, or erased the study's keys."""
        self.members.seat(name).confirm(kind, number, attempt)

    # -- the end -----------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The method returned; a study that was stopped meanwhile stays stopped."""
        if not self.phase.over:
            self.former, self.phase = self.phase, StudyPhase.FINISHED

    def abort(self, reason: str) -> None:
        """An analyst or operator stops the study."""
        self._end(StudyPhase.ABORTED, reason)

    def fail(self, reason: str) -> None:
        """The study cannot go on."""
        self._end(StudyPhase.FAILED, reason)

    def _end(self, phase: StudyPhase, reason: str) -> None:
        if self.phase.over:
            return
        self.former, self.phase, self.reason = self.phase, phase, reason
        if (current := self.round) is not None:
            self._move(current, RoundPhase.FAILED)
        if self.rounds:
            self.rounds[-1].drop()

    def _round_of(self, name: str, attempt: int, phase: RoundPhase) -> Round:
        self.members.seat(name)
        current = self.round
        if current is None or self.phase.over:
            raise HostileInput("No round is running.", "Wait for the next directive.")
        current.expect(name, attempt, phase)
        return current
