"""What shows, to anybody and for ever, that a sum is the one which its members contributed to and consented to.

A verifier takes nothing on anybody's word: it holds receipts to the context, consents to receipts, the sum to its digest and
the digest to the challenge, opens the sum itself, and holds the words to what all members signed for. Members together with a
coordinator cannot make evidence for another sum, as long as one member kept the order of the steps: its signature stands under
the list of answers, and its consent, without which nothing opens, came with that signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, verify
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, verify_receipt
from veilsum_privacy.securesum.check_words import (
    CheckStatement,
    Signed,
    SumStatement,
    answer_words,
    challenge,
    checks_digest,
    consent_statement,
    verify_check_words,
    verify_sum,
)
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opened_sums import opened_from_bytes
from veilsum_privacy.securesum.sum_plan import OneTimePlan


@dataclass(frozen=True)
class Evidence:
    """Everything that a verifier needs besides the study, the roster and what the context is made of.

    Attributes:
        receipts: of every member, in the cohort's order.
        total: the sum of all contributions as it travels: its key share, then its coefficients.
        fixed: the coordinator's word on the sum's digest.
        checks: bodies of all members' answers, in the cohort's order.
        consents: of every member; 32 bytes each.
        agreed: every member's signature under its consent statement.
    """

    receipts: tuple[SignedReceipt, ...]
    total: bytes = field(repr=False)
    fixed: Signed
    checks: tuple[bytes, ...]
    consents: tuple[bytes, ...] = field(repr=False)
    agreed: tuple[bytes, ...]


class Receipted(Protocol):
    """What shows receipts, and the consents that they commit to."""

    @property
    def receipts(self) -> Sequence[SignedReceipt]: ...
    @property
    def consents(self) -> Sequence[bytes]: ...


Shown = TypeVar("Shown", bound=Receipted)


@dataclass(frozen=True)
class Held(Generic[Shown]):
    """What was shown of a sum whose receipts and consents hold: there is one of each member, truly signed, for this study and
    context. To make one is to verify that, once; whatever rests on it asks for this type.

    Attributes:
        shown: as it came.
        cohort: the members in the cohort's order, from the roster that the caller verified.
        study: the study's digest.
        context: the digest c, computed by the caller from what it is made of.
        version: the form that receipts must have.
        receipts: what they say.

    Raises:
        HostileInput: the first thing that does not hold.
    """

    shown: Shown
    cohort: Sequence[Identity]
    study: bytes
    context: bytes
    version: int = 6
    receipts: tuple[Receipt, ...] = field(init=False)

    def __post_init__(self) -> None:
        sizes = {len(self.shown.receipts), len(self.shown.consents), len(self.cohort)}
        if len(sizes) > 1:
            raise HostileInput("There is not exactly one receipt, and exactly one consent, of each member of the cohort.")
        pairs = zip(self.shown.receipts, self.cohort, strict=True)
        object.__setattr__(self, "receipts", tuple(self._receipt(signed, member) for signed, member in pairs))
        for receipt, consent in zip(self.receipts, self.shown.consents, strict=True):
            receipt.hold(consent)

    def _receipt(self, signed: SignedReceipt, member: Identity) -> Receipt:
        try:
            return verify_receipt(signed, member, self.study, self.context, self.version)
        except HostileInput as error:
            raise HostileInput(f"The receipt of {member.name} does not hold: {error.message}", error.advice) from error


def check_bodies(
    study: bytes,
    assignment: Assignment,
    context: bytes,
    receipts: Sequence[SignedReceipt],
    fixed: bytes,
    words: Sequence[tuple[int, ...]],
) -> tuple[bytes, ...]:
    """What every member signed when it answered with these words about this sum, in the cohort's order.

    Raises:
        HostileInput: not one answer of each member.
    """
    if len(words) != len(assignment.names):
        raise HostileInput("There is not exactly one answer of each member of the cohort.")
    rho = challenge(context, [signed.body for signed in receipts], fixed)
    about = assignment.round, assignment.attempt, context, rho, fixed
    pairs = zip(assignment.names, words, strict=True)
    return tuple(CheckStatement(study, name, *about, own).to_bytes() for name, own in pairs)


def verify_opened(held: Held[Evidence], plan: OneTimePlan, coordinator: Identity) -> Integers:
    """Check everything that speaks for a sum as it opened (:mod:`veilsum_privacy.securesum.opened_sums`).

    Args:
        held: the evidence.
        plan: of the sum.
        coordinator: whom the study names, its certificate verified.

    Returns:
        (size,) the released values in grid units.

    Raises:
        HostileInput: the first thing that does not hold.
    """
    evidence = held.shown
    opened = opened_from_bytes(evidence.total, plan, held.context, evidence.consents)
    said = answered(held, plan, coordinator, opened.total)
    answers = [item.words for item in said]
    verify_check_words(opened.words, plan.ring.plain_modulus, held.context, said[0].challenge, answers, evidence.consents)
    return opened.values


def answered(
    held: Held[Evidence], plan: OneTimePlan, coordinator: Identity, total: Contribution
) -> tuple[CheckStatement, ...]:
    """What the members answered, if everything that is signed is about this sum."""
    evidence, cohort = held.shown, held.cohort
    if {len(evidence.checks), len(evidence.agreed), len(cohort)} != {plan.cohort} or held.version != 6:
        raise HostileInput("There is not exactly one receipt, answer, consent and signature of each member of the cohort.")
    said = _answers(held, plan, total.digest(plan, held.context))
    _fixed(evidence, said[0], coordinator)
    _agreed(evidence, said, cohort)
    return said


def _answers(held: Held[Evidence], plan: OneTimePlan, fixed: bytes) -> tuple[CheckStatement, ...]:
    """All members' answers, if they are about this sum and the challenge that follows from it and these receipts."""
    evidence, receipt = held.shown, held.receipts[0]
    rho = challenge(held.context, [signed.body for signed in evidence.receipts], fixed)
    if any((item.round, item.attempt) != (receipt.round, receipt.attempt) for item in held.receipts):
        raise HostileInput("The receipts are about different rounds or attempts.")
    about, modulus = (receipt.round, receipt.attempt, held.context, rho, fixed), plan.ring.plain_modulus
    pairs = zip(held.cohort, evidence.checks, strict=True)
    said = tuple(CheckStatement(held.study, member.name, *about, answer_words(body, modulus)) for member, body in pairs)
    if tuple(item.to_bytes() for item in said) != tuple(evidence.checks):
        raise HostileInput("The members answered a challenge about another sum, or one that does not follow from it.")
    return said


def _fixed(evidence: Evidence, said: CheckStatement, coordinator: Identity) -> None:
    """The coordinator signed for the sum that the members were asked about."""
    word = SumStatement(said.study, coordinator.name, said.round, said.attempt, said.context, said.sum)
    verify_sum(evidence.fixed, coordinator, word)


def _agreed(evidence: Evidence, said: Sequence[CheckStatement], cohort: Sequence[Identity]) -> None:
    """Every member signed, with its consent, for this list of answers."""
    checks = checks_digest(evidence.checks)
    for statement, member, signature in zip(said, cohort, evidence.agreed, strict=True):
        word = consent_statement(statement, checks)
        verify(member.public_key, Label.CONSENT, word.to_bytes(), signature)
