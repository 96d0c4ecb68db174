"""One round at the coordinator, as a state machine without I/O: attempts, uploads, consents, decryptions.

Allowed order: contributing (any number of attempts) -> consenting -> decrypting -> opening -> released; from contributing a
round can fail for want of a cohort, from consenting on it can only be released or lost. The coordinator sees masked,
encrypted payloads and, at the end, the words of a sum that all members consented to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice

from veilsum_coordinator.protocol.accumulator import Accumulator
from veilsum_coordinator.storage.records import KeptProof
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, verify_receipt
from veilsum_privacy.securesum.context import Assignment, Pieces, context_digest
from veilsum_privacy.securesum.contribution import Slots
from veilsum_privacy.securesum.decryption import SignedStatement, Statement, parse_statement, verify_statement, words_digest
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.tasks.agreed import RoundPlan
from veilsum_proto import federation_pb2 as pb

DECRYPTORS = 2


class RoundPhase(StrEnum):
    """Where a round is."""

    CONTRIBUTING = "contributing"
    CONSENTING = "consenting"
    DECRYPTING = "decrypting"
    OPENING = "opening"
    RELEASED = "released"
    FAILED = "failed"


@dataclass
class Round:
    """State of one round.

    Attributes:
        number: from 1.
        label: the task's.
        broadcast: encoded, as sent, in pieces.
        allowed: who may be in a cohort of it.
        assignment: of the present attempt.
        accumulator: of the present attempt.
        sum: the complete sum's ciphertexts.
        countersigned: the coordinator's word on the receipts of the complete sum.
        consents: by member.
        answers: digest of the decrypted words by decryptor.
        statements: its signed word on them, by decryptor.
        words: the decrypted words, once a decryptor returned them.
        unable: members that cannot decrypt any more.
        asked: whether an earlier process may have asked for consent to this sum, so that there is no other attempt.
    """

    number: int
    label: str
    broadcast: Pieces
    assignment: Assignment
    plan: RoundPlan
    accumulator: Accumulator
    started: int
    deadline: int
    allowed: frozenset[str]
    phase: RoundPhase = RoundPhase.CONTRIBUTING
    attempts: int = 1
    received: int = 0
    finished: int | None = None
    sum: Pieces = field(default_factory=list, repr=False)
    countersigned: SignedReceipt | None = None
    consents: dict[str, bytes] = field(default_factory=dict, repr=False)
    answers: dict[str, bytes] = field(default_factory=dict, repr=False)
    statements: dict[str, SignedStatement] = field(default_factory=dict, repr=False)
    words: list[Slots] | None = field(default=None, repr=False)
    unable: set[str] = field(default_factory=set)
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
        """Bytes of ciphertexts over all attempts."""
        return self.received + self.accumulator.received

    def expect(self, name: str, attempt: int, phase: RoundPhase) -> None:
        """Check that a message belongs to the present attempt and phase.

        Raises:
            HostileInput: it does not.
        """
        if attempt != self.assignment.attempt or name not in self.cohort:
            raise HostileInput("The message is for a different attempt than the current one.", "Wait for the next directive.")
        if self.phase is not phase:
            raise HostileInput(f"The round is {self.phase.value}; that message belongs to {phase.value}.")

    def retry(self, assignment: Assignment, plan: RoundPlan, deadline: int) -> None:
        """Begin another attempt; everything of the former one is dropped."""
        self.received += self.accumulator.received
        self.assignment, self.plan, self.deadline = assignment, plan, deadline
        self.accumulator = Accumulator(plan.encoding, assignment.names)
        self.attempts += 1
        self.sum = []

    def drop(self) -> None:
        """Forget what was sent and received of an ended round: a coordinator of many rounds must not keep it for each."""
        self.sum, self.broadcast = [], ()
        self.accumulator.drop()

    def forget(self) -> None:
        """Forget who sent what of a round that is over as well: with many members it is as much as the rest."""
        self.drop()
        self.answers, self.consents, self.statements, self.words = {}, {}, {}, None
        self.received, self.countersigned = self.bytes_received, None
        self.accumulator.uploads = {}

    def receipt(self, name: str, signed: SignedReceipt, roster: Roster, last: int) -> None:
        """Take the receipt that ends an upload.

        What the mirror would refuse is refused here, to its sender: found with the last receipt, it would meet whoever sent
        that one.

        Args:
            last: number of the sender's last receipt that was shown to a cohort, 0 for none.

        Raises:
            HostileInput: ciphertexts are missing, or the receipt is not the sender's next one for exactly what it sent.
        """
        upload = self.accumulator.uploads[name]
        if upload.complete:
            if upload.receipt != signed:
                raise HostileInput("A second, different receipt came for one upload.")
            return
        if upload.next != self.plan.encoding.ciphertexts:
            raise HostileInput("The receipt came before the last ciphertext.")
        study, key = self.plan.task.study, self.plan.task.agreed.digest
        receipt = verify_receipt(signed, roster.member(name).identity, key, parse_receipt(signed.body).context, 6)
        if receipt.payload != upload.digest.digest():
            raise HostileInput("The receipt is for different ciphertexts than those received.")
        mechanism = Mechanism.of(self.plan.declaration, self.plan.noise)
        described = (receipt.dataset, receipt.mechanism, receipt.unit, receipt.cohort_size)
        if (receipt.round, receipt.attempt) != self.present or described != (
            study.dataset, mechanism, study.privacy.unit, len(self.cohort)
        ):  # fmt: skip
            raise HostileInput("The receipt describes a different release than this attempt's.")
        if receipt.number <= last:
            raise HostileInput(f"The receipt has number {receipt.number}, but number {last} was shown already.")
        upload.receipt = signed

    def receipts(self) -> list[SignedReceipt]:
        """All receipts in the cohort's order."""
        uploads = self.accumulator.uploads
        return [receipt for name in self.cohort if (receipt := uploads[name].receipt) is not None]

    def contexts(self) -> dict[bytes, list[str]]:
        """Who signed which context; one entry if all were asked for the same sum."""
        signers: dict[bytes, list[str]] = {}
        for signed in self.receipts():
            receipt = parse_receipt(signed.body)
            signers.setdefault(receipt.context, []).append(receipt.participant)
        return signers

    def proof(self, coordinator: bytes) -> KeptProof:
        """What is kept with the release, so that it can be proven later; ``coordinator``: DER of its certificate."""
        if self.countersigned is None:
            raise StateError("A round was decrypted whose receipts were never shown.")
        keys = next(parse_statement(signed.body).keys for signed in self.statements.values())  # those of the context, all
        signatures = {name: self.statements[name].signature for name in sorted(self.answers, key=str.encode)}
        return KeptProof(keys, signatures, self.countersigned, coordinator)

    @property
    def context(self) -> bytes:
        """The context that all members of a complete sum signed; that it is one was found before the sum was stored."""
        first = self.accumulator.uploads[self.cohort[0]].receipt
        if first is None:
            raise StateError("A sum that is not complete has no context yet.")
        return parse_receipt(first.body).context

    def decryptors(self, connected: Sequence[str]) -> tuple[str, ...]:
        """Who is asked to decrypt: members that answered, then connected ones, two in all; fewer if none are left."""
        answered = [name for name in self.cohort if name in self.answers and name not in self.unable]
        waiting = (name for name in self.cohort if name in connected and name not in self.unable and name not in self.answers)
        return tuple(islice(chain(answered, waiting), DECRYPTORS))

    def awaited(self, connected: Sequence[str]) -> dict[str, bool]:
        """Who owes its signed digest while the sum is decrypted, and whether the words as well: one decryptor does."""
        asked = self.decryptors(connected)
        sender = None if self.words is not None else next((each for each in asked if each in connected), None)
        return {name: name == sender for name in asked if name not in self.answers or name == sender}

    def owed(self, name: str, connected: Sequence[str]) -> pb.Directive | None:
        """What a member is asked for while the sum is decrypted."""
        asked = self.awaited(connected)
        return pb.Directive(kind=pb.DIRECTIVE_KIND_DECRYPT, words=asked[name]) if name in asked else None

    def decrypted(self, name: str, words: list[Slots], signed: SignedStatement, roster: Roster) -> bool:
        """Take one decryption: its sender's signed digest of the words, with the words or without.

        Returns:
            whether two members signed for the same words, and the words are here.

        Raises:
            HostileInput: wrong shape, or the word is not the sender's for this context, under its keys, and these words.
            DecryptionsDiffer: unlike the other decryption; the round must then fail.
        """
        encoding = self.plan.encoding
        if words and [part.shape for part in words] != [(encoding.words(index),) for index in range(encoding.ciphertexts)]:
            raise HostileInput("A decryption has the wrong shape.")
        stated = parse_statement(signed.body)
        keys, opened = stated.keys, words_digest(words) if words else stated.words
        if context_digest(self.plan, roster, keys, self.assignment) != self.context:
            raise HostileInput("The decryption statement names different keys than the round's context.")
        said = Statement(self.plan.task.agreed.digest, name, *self.present, self.context, keys, opened)
        verify_statement(signed, roster.member(name).identity, said)
        if any(other != opened for other in self.answers.values()):
            raise DecryptionsDiffer("Two members decrypted the same sum to different words.")
        self.answers[name], self.statements[name] = opened, signed
        self.words = self.words or words or None
        return len(self.answers) >= DECRYPTORS and self.words is not None


class DecryptionsDiffer(HostileInput):
    """Two decryptions of one sum are unlike: one decryptor is broken or lies, and no value may be used."""
