"""One round at the coordinator, as a state machine without I/O: attempts, uploads, answers, consents.

Allowed order: contributing -> checking (any number of attempts, each from the start) -> consenting -> opening -> released.
Until consent is asked for a round can fail for want of a cohort, from then on it can only be released or lost. The coordinator
sees masked, encrypted contributions and, at the end, a sum that all members consented to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.protocol.accumulator import Accumulator
from veilsum_coordinator.storage.records import KeptProof
from veilsum_node.errors import HostileInput, StateError
from veilsum_node.identity import Credentials, Label, verify
from veilsum_privacy.computation.following import followed
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.ledger.receipts import Receipt, ReceiptPart, SignedReceipt, whole_receipts
from veilsum_privacy.securesum.check_words import (
    CheckAnswer,
    CheckStatement,
    Signed,
    SumStatement,
    challenge,
    checks_digest,
    consent_statement,
    verify_answer,
    verify_check_words,
)
from veilsum_privacy.securesum.context import Assignment, Pieces
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opening import open_words, unmask_values
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.securesum.sum_plan import OneTimePlan
from veilsum_privacy.securesum.written_sums import open_total
from veilsum_privacy.tasks.agreed import RoundPlan


class RoundPhase(StrEnum):
    """Where a round is."""

    CONTRIBUTING = "contributing"
    CHECKING = "checking"
    CONSENTING = "consenting"
    OPENING = "opening"
    RELEASED = "released"
    FAILED = "failed"


class FixedSum:
    """A complete sum that stands fixed: what every member's answer and consent is about.

    Args:
        total: the sum of all contributions.
        receipts: of the cohort, in its order.

    Attributes:
        shown: the opened sum as members fetch it, for whom it was asked for when it was opened; empty otherwise.
    """

    shown = b""

    def __init__(
        self,
        total: Contribution,
        plan: OneTimePlan,
        study: bytes,
        assignment: Assignment,
        context: bytes,
        receipts: Sequence[SignedReceipt],
    ) -> None:
        self.total, self.context = total, context
        self._plan, self._study, self._assignment = plan, study, assignment
        self.digest = total.digest(plan, context)
        self.challenge = challenge(context, [signed.body for signed in receipts], self.digest)

    def word(self, coordinator: str) -> SumStatement:
        """What the coordinator signs of it."""
        number, attempt = self._assignment.round, self._assignment.attempt
        return SumStatement(self._study, coordinator, number, attempt, self.context, self.digest)

    def statement(self, name: str, words: tuple[int, ...] = ()) -> CheckStatement:
        """What a member signs that answers with these words."""
        number, attempt = self._assignment.round, self._assignment.attempt
        return CheckStatement(self._study, name, number, attempt, self.context, self.challenge, self.digest, words)

    def open(self, answers: Sequence[CheckAnswer], consents: Sequence[bytes], *, shown: bool = False) -> Integers:
        """The released values in grid units, (size,) of the plan's narrowest type, once: the opened words take the place of
        the sum, which is stored.

        Args:
            answers, consents: of the cohort, in its order.
            shown: whether members are shown the opened sum.

        Raises:
            HostileInput: it is not the sum of what the members vouched for, or not one of exactly this cohort.
        """
        opening, words = None, self.total.coefficients
        if shown:
            opening = open_total(self.total, self._plan, self.context, consents)
        else:
            open_words(self.total, self._plan, self.context, consents, words)
        said = [answer.words for answer in answers]
        verify_check_words(words, self._plan.ring.plain_modulus, self.context, self.challenge, said, consents)
        self.total = Contribution(self.total.share, words[:0].copy())  # it is stored, and as long as the sum
        values = unmask_values(words, self._plan, self.context, consents, self._plan.narrowest)
        del words  # as long as the values
        if opening is not None:
            self.shown = opening.to_bytes(values)
        return values


@dataclass
class Round:
    """State of one round.

    Attributes:
        number: from 1.
        broadcast: encoded, as sent, in pieces.
        allowed: who may be in a cohort of it.
        assignment: of the present attempt.
        context: digest c of the present attempt.
        accumulator: of the present attempt.
        sum: the complete sum.
        countersigned: the coordinator's word on the receipts of the complete sum.
        fixed: its word on the complete sum.
        answers: by member.
        consents: by member.
        agreed: every member's signature under the answers that it consented to, by its name.
        checks: digest of all answers, once consent is asked for.
        asked: whether an earlier process may have asked for consent to this sum, so that no other attempt may begin.
    """

    number: int
    label: str
    broadcast: Pieces
    assignment: Assignment
    plan: RoundPlan
    context: bytes
    accumulator: Accumulator
    started: int
    deadline: int
    allowed: frozenset[str]
    phase: RoundPhase = RoundPhase.CONTRIBUTING
    attempts: int = 1
    received: int = 0
    finished: int | None = None
    sum: FixedSum | None = field(default=None, repr=False)
    countersigned: SignedReceipt | None = None
    fixed: Signed | None = None
    answers: dict[str, CheckAnswer] = field(default_factory=dict, repr=False)
    consents: dict[str, bytes] = field(default_factory=dict, repr=False)
    agreed: dict[str, bytes] = field(default_factory=dict, repr=False)
    checks: bytes = b""
    asked: bool = False

    @property
    def cohort(self) -> tuple[str, ...]:
        """Names of the present attempt's members."""
        return self.assignment.names

    @property
    def present(self) -> tuple[int, int]:
        """Numbers of the round and of its present attempt."""
        return self.number, self.assignment.attempt

    @property
    def bytes_received(self) -> int:
        """Bytes of contributions over all attempts."""
        return self.received + self.accumulator.received

    @property
    def seconds(self) -> int:
        """From its beginning to its end; 0 before that."""
        return (self.finished or self.started) - self.started

    def expect(self, name: str, attempt: int, phase: RoundPhase) -> None:
        """Check that a message belongs to the present attempt and phase.

        Raises:
            HostileInput: it does not.
        """
        if attempt != self.assignment.attempt or name not in self.cohort:
            raise HostileInput("The message is for a different attempt than the current one.", "Wait for the next directive.")
        if self.phase is not phase:
            raise HostileInput(f"The round is {self.phase.value}; that message belongs to {phase.value}.")

    def owes(self, name: str) -> bool:
        """Whether a member of the cohort has not done yet what the present phase asks of it."""
        match self.phase:
            case RoundPhase.CONTRIBUTING:
                return not self.accumulator.uploads[name].complete
            case RoundPhase.CHECKING:
                return name not in self.answers
            case RoundPhase.CONSENTING:
                return name not in self.consents
            case _:
                return False

    @property
    def owing(self) -> list[str]:
        """Who has not done yet what the present phase asks of all, in the cohort's order."""
        return [name for name in self.cohort if self.owes(name)]

    def retry(self, assignment: Assignment, plan: RoundPlan, context: bytes, deadline: int) -> None:
        """Begin another attempt; everything of the former one is dropped."""
        self.received += self.accumulator.received
        self.assignment, self.plan, self.context, self.deadline = assignment, plan, context, deadline
        self.accumulator = Accumulator(plan.encoding, assignment.names)
        self.attempts += 1
        self.sum, self.countersigned, self.fixed, self.answers = None, None, None, {}

    def drop(self) -> None:
        """Forget what was sent and received of an ended round: a coordinator of many rounds must not keep it for each."""
        self.sum, self.broadcast = None, ()
        self.accumulator.drop()

    def forget(self) -> None:
        """Forget who sent what of a round that is over as well: with many members it is as much as the rest."""
        self.drop()
        self.answers, self.consents, self.agreed = {}, {}, {}
        self.received, self.countersigned, self.fixed = self.bytes_received, None, None
        self.accumulator.uploads = {}
        self.assignment = replace(self.assignment)  # without its bytes as they were sent

    def receipt(self, name: str, told: ReceiptPart, roster: Roster, last: int) -> None:
        """Take the receipt that ends an upload: what its sender must have signed for this attempt and for what was received.

        What the mirror would refuse is refused here, to its sender: found with the last receipt, it would meet whoever sent
        that one.

        Args:
            told: what of it does not follow; its payload does.
            last: number of the sender's last receipt that was shown to a cohort, 0 for none.

        Raises:
            HostileInput: pieces are missing, or the receipt is not the sender's next one for exactly what it sent.
        """
        upload, task = self.accumulator.uploads[name], self.plan.task
        if upload.receipt is not None:
            if part_of_receipt(upload.receipt)._replace(payload=told.payload) != told:
                raise HostileInput("A second, different receipt came for one upload.")
            return
        if upload.next != self.plan.encoding.pieces:
            raise HostileInput("The receipt came before the last piece.")
        told = told._replace(payload=upload.payload)
        mechanism = Mechanism.of(self.plan.declaration, self.plan.noise)
        own = Receipt(
            task.agreed.digest, name, self.number, self.assignment.attempt, self.context, told.payload, told.number, told.head,
            task.study.dataset, mechanism, task.study.privacy.unit, len(self.cohort), told.consent,
        )  # fmt: skip
        (signed,) = whole_receipts((told,), own, (name,))
        try:
            verify(roster.member(name).identity.public_key, Label.RECEIPT, signed.body, signed.signature)
        except HostileInput as error:
            raise HostileInput("The receipt was not signed for this attempt and what was received in it.") from error
        if told.number <= last:
            raise HostileInput(f"The receipt has number {told.number}, but number {last} was shown already.")
        upload.receipt = signed

    def receipts(self) -> list[SignedReceipt]:
        """All receipts in the cohort's order."""
        uploads = self.accumulator.uploads
        return [receipt for name in self.cohort if (receipt := uploads[name].receipt) is not None]

    def fix(self, total: Contribution) -> FixedSum:
        """Let the sum of all contributions stand fixed."""
        study, plan = self.plan.task.agreed.digest, self.plan.encoding
        self.sum = FixedSum(total, plan, study, self.assignment, self.context, self.receipts())
        return self.sum

    @property
    def total(self) -> FixedSum:
        """The complete sum.

        Raises:
            StateError: there is none yet.
        """
        if self.sum is None:
            raise StateError("The round has no complete sum.")
        return self.sum

    def answer(self, name: str, answer: CheckAnswer, roster: Roster) -> None:
        """Take a member's answer to the challenge.

        Raises:
            HostileInput: not as many words below the plain modulus as there are vectors, a wrong signature under the statement
                that they make, or another answer than before.
        """
        if name in self.answers:
            if self.answers[name].words != answer.words:
                raise HostileInput("A second, different answer came to one challenge.")
            return
        modulus = self.plan.encoding.ring.plain_modulus
        verify_answer(self.total.statement(name), roster.member(name).identity, answer, modulus)
        self.answers[name] = answer

    def agree(self) -> None:
        """Note what all members answered, as every consent is given to exactly that."""
        statements = (self.total.statement(name, self.answers[name].words) for name in self.cohort)
        self.checks = checks_digest([statement.to_bytes() for statement in statements])

    def check_consent(self, name: str, consent: bytes, signature: bytes, roster: Roster) -> None:
        """Hold a consent to its sender's receipt, and its signature to the answers of all.

        Raises:
            HostileInput: it is another consent, or given to other answers.
        """
        receipt = self.accumulator.uploads[name].receipt
        if receipt is None:
            raise StateError("A consent is checked once all receipts are in.")
        receipt.read().hold(consent)
        body = consent_statement(self.total.statement(name), self.checks).to_bytes()
        verify(roster.member(name).identity.public_key, Label.CONSENT, body, signature)

    def sign(self, credentials: Credentials) -> None:
        """Sign for the complete sum with the coordinator's present credentials."""
        self.fixed = self.total.word(credentials.identity.name).sign(credentials.signing_key)

    def proof(self, coordinator: bytes) -> KeptProof:
        """What is kept with the release, so that it can be proven later; ``coordinator``: DER of its certificate."""
        if self.countersigned is None or self.fixed is None:
            raise StateError("A round was opened whose sum was never shown.")
        return KeptProof(self.countersigned, coordinator, self.fixed)

    def opening(self) -> Callable[[], Integers]:
        """What opens the sum, to be called without a lock; see :meth:`FixedSum.open`."""
        answers = [self.answers[name] for name in self.cohort]
        shown = followed(self.plan.task.study) is not None
        return partial(self.total.open, answers, [self.consents[name] for name in self.cohort], shown=shown)
