"""Checks one release of a study after the other: that its sum is of the context, cohort and consents that its proof holds.

Whoever verifies a result does, and members of a study whose steps they take themselves. What the authority issued is taken for
granted, and nothing else: every digest and context is computed anew. Certificates may have expired since, but must have been
valid at some time of the study's life.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cryptography import x509

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import Identity, Role
from veilsum_node.identity.certificate import issued
from veilsum_privacy.computation.declared import DeclaredPlan, DeclaredStudy, DeclaredTask
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.ledger.receipts import (
    Receipt,
    ReceiptPart,
    SignedReceipt,
    WordPart,
    consent_commitment,
    consent_proof,
    verify_countersignature,
    whole_receipts,
    whole_word,
)
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.results.sum_evidence import Evidence, Held, Shown, check_bodies, verify_opened
from veilsum_privacy.securesum.check_words import Signed, SumStatement
from veilsum_privacy.securesum.context import Assignment, context_digest, parse_assignment
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.study.study import Study


class ProofFault(HostileInput):
    """A part of a proof does not hold.

    Args:
        where: the file.
        what: is wrong, in one sentence.
    """

    def __init__(self, where: str, what: str, advice: str = "") -> None:
        super().__init__(f"{where}: {what}", advice)
        self.where, self.what = where, what


@contextmanager
def part(where: str, what: str = "") -> Iterator[None]:
    """Whatever is wrong inside is a fault of this file; ``what`` says of which part of it."""
    try:
        yield
    except ProofFault:
        raise
    except VeilsumError as error:
        raise ProofFault(where, f"{what} {error.message}".strip(), error.advice) from error


@dataclass(frozen=True)
class CheckedRoster:
    """A signed study and its verified roster.

    Attributes:
        agreed: the study as signed, and what follows from it.
        roster: every member's enrolment verified.
        authority: the federation's.
    """

    agreed: DeclaredStudy
    roster: Roster
    authority: x509.Certificate = field(repr=False)

    @property
    def study(self) -> Study:
        """As signed."""
        return self.agreed.study

    @property
    def digest(self) -> bytes:
        """The study's name in the protocol."""
        return self.agreed.digest


@dataclass(frozen=True)
class MemberPart:
    """What a member gave for a release.

    Attributes:
        words: its answer to the challenge.
        consent: 32 bytes.
        agreed: its signature under the consent statement.
    """

    words: tuple[int, ...] = field(repr=False)
    consent: bytes = field(repr=False)
    agreed: bytes


class ReleaseParts(NamedTuple):
    """What of a release's proof does not follow from the study and the assignment; nothing of it is verified.

    Attributes:
        assignment: canonical JSON.
        receipts: of the cohort, in its order; their commitments follow from the consents.
        countersigned: the coordinator's word on them.
        fixed: digest of the sum.
        signature: under the coordinator's word on that.
        coordinator: its certificate, DER.
        members: of the cohort, in its order.
        opened: the sum as it opened (:mod:`veilsum_privacy.securesum.opened_sums`).
    """

    assignment: bytes
    receipts: Sequence[ReceiptPart]
    countersigned: WordPart
    fixed: bytes
    signature: bytes
    coordinator: bytes
    members: Sequence[MemberPart]
    opened: bytes


class ReleaseRules:
    """Checks a study's releases one after the other: each by itself, and that none is missing, repeated or beyond the study.

    Args:
        checked: the study and its roster.
        marks: of an earlier object, to go on after its last release.
    """

    def __init__(self, checked: CheckedRoster, marks: Mapping[str, Any] | None = None) -> None:
        marks = marks or {"round": 0, "attempt": 0, "released": [], "numbers": {}}
        self._checked = checked
        self._round, self._attempt = int(marks["round"]), int(marks["attempt"])
        # by label and member, as each participant counts its own
        self._released = Counter({(str(label), str(name)): int(count) for label, name, count in marks["released"]})
        self._numbers = {str(name): int(number) for name, number in marks["numbers"].items()}  # of each one's last receipt

    @property
    def marks(self) -> dict[str, Any]:
        """What the next release is held to, as JSON values."""
        released = [[*key, count] for key, count in sorted(self._released.items())]
        return {"round": self._round, "attempt": self._attempt, "released": released, "numbers": self._numbers}

    @property
    def round(self) -> int:
        """Number of the last release."""
        return self._round

    def follow(self, parts: ReleaseParts) -> tuple[Assignment, Integers]:
        """Check the next release, of which nothing is known but these parts: assignment, and (size,) values in grid units.

        Raises:
            ProofFault: the first thing that is wrong.
        """
        where = round_file(self._round + 1)
        assignment, task = self._assignment(where, self._round + 1, None, parts.assignment)
        plan, context = self._planned(where, assignment, task)
        with part(where, "What was signed does not hold:"):
            word, evidence = self._whole(assignment, plan, context, parts)
        mechanism = Mechanism.of(plan.declaration, plan.noise)
        held = self._held(where, assignment, mechanism, context, evidence)
        coordinator = self._countersigned(where, held, word, parts.coordinator)
        with part(where, "The sum does not hold:"):
            values = verify_opened(held, plan.encoding, coordinator)
        self._passed(assignment, held.receipts)
        return assignment, values

    def _whole(
        self, assignment: Assignment, plan: DeclaredPlan, context: bytes, parts: ReleaseParts
    ) -> tuple[SignedReceipt, Evidence]:
        """The coordinator's word on the receipts, and the evidence, each text as it was signed if it was for this attempt."""
        checked, study, names, none = self._checked, self._checked.study, assignment.names, bytes(32)
        mechanism, about = Mechanism.of(plan.declaration, plan.noise), (assignment.round, assignment.attempt, context)
        own = Receipt(
            checked.digest, "", *about, none, 1, none, study.dataset, mechanism, study.privacy.unit, len(names), none
        )
        if {len(parts.receipts), len(parts.members)} != {len(names)}:
            raise HostileInput("There is not exactly one receipt and consent of each member of the cohort.")
        told = tuple(
            receipt._replace(consent=consent_commitment(context, name, consent_proof(member.consent)))
            for name, receipt, member in zip(names, parts.receipts, parts.members, strict=True)
        )
        receipts = whole_receipts(told, own, names)
        word = whole_word(parts.countersigned, own, study.coordinator, receipts)
        fixed = SumStatement(checked.digest, study.coordinator, *about, parts.fixed).to_bytes()
        words = [item.words for item in parts.members]
        evidence = Evidence(
            receipts,
            parts.opened,
            Signed(fixed, parts.signature),
            check_bodies(checked.digest, assignment, context, receipts, parts.fixed, words),
            tuple(item.consent for item in parts.members),
            tuple(item.agreed for item in parts.members),
        )
        return word, evidence

    def _passed(self, assignment: Assignment, receipts: Sequence[Receipt]) -> None:
        """Hold the next release to this one."""
        self._round, self._attempt = assignment.round, assignment.attempt
        self._released.update((assignment.label, name) for name in assignment.names)
        self._numbers |= {receipt.participant: receipt.number for receipt in receipts}

    def _planned(self, where: str, assignment: Assignment, task: DeclaredTask) -> tuple[DeclaredPlan, bytes]:
        """The plan of an attempt's sum, and its context, whoever says what of them."""
        roster = self._checked.roster
        with part(where, "The context cannot be computed:"):
            plan = task.plan(len(roster.names), len(assignment.names))
            return plan, context_digest(plan, roster, assignment)

    def _assignment(self, where: str, number: int, label: str | None, data: bytes) -> tuple[Assignment, DeclaredTask]:
        study, roster = self._checked.study, self._checked.roster
        with part(where, "The assignment does not hold:"):
            assignment = parse_assignment(data)
            if assignment.round != number or label not in (None, assignment.label):
                raise HostileInput("It is for a different round or task than the manifest names.")
            if assignment.attempt <= self._attempt:
                raise HostileInput("Its attempt is older than that of the round before it.")
            names = assignment.names
            if list(names) != [name for name in roster.names if name in names] or len(names) < study.privacy.min_cohort:
                raise HostileInput("Its cohort is not a part of the roster in the roster's order, or is too small.")
            task = self._checked.agreed.task(assignment.label)
            if max(self._released[assignment.label, name] for name in names) >= task.declaration.releases:
                raise HostileInput(f"The study declares no further release of {assignment.label}.")
        return assignment, task

    def _held(
        self, where: str, assignment: Assignment, mechanism: Mechanism, context: bytes, shown: Shown, version: int = 6
    ) -> Held[Shown]:
        """The cohort's receipts for such a release, with the consents that they promise."""
        checked, study, names = self._checked, self._checked.study, assignment.names
        with part(where):
            cohort = [checked.roster.member(name).identity for name in names]
            held = Held(shown, cohort, checked.digest, context, version)
        about = assignment.round, assignment.attempt, study.dataset, mechanism
        for name, receipt in zip(names, held.receipts, strict=True):
            with part(where, f"The receipt of {name} does not hold:"):
                described = receipt.round, receipt.attempt, receipt.dataset, receipt.mechanism
                if (*described, receipt.unit, receipt.cohort_size) != (*about, study.privacy.unit, len(names)):
                    raise HostileInput("It describes a different release than this attempt's.")
                if receipt.number <= self._numbers.get(name, 0):
                    raise HostileInput("Its number is not above that of the member's receipt before it.")
        return held

    def _countersigned(self, where: str, held: Held[Shown], countersigned: SignedReceipt, certificate: bytes) -> Identity:
        """The coordinator, by its certificate, if it countersigned these receipts."""
        checked, study, receipt = self._checked, self._checked.study, held.receipts[0]
        with part(where, "The coordinator's countersignature does not hold:"):
            coordinator = certified(certificate, checked.authority, Role.COORDINATOR, study)
            if coordinator.name != study.coordinator:
                raise HostileInput("It is by a different coordinator than the study names.")
            word = verify_countersignature(countersigned, coordinator, checked.digest, held.context, held.shown.receipts)
            if (word.round, word.attempt) != (receipt.round, receipt.attempt):
                raise HostileInput("It is about another round or attempt.")
        return coordinator


def certified(certificate: bytes, authority: x509.Certificate, role: Role, study: Study) -> Identity:
    """Whom a certificate names, if the authority issued it and it was valid at some time of the study's life."""
    identity = issued(certificate, authority, role)
    in_its_time(identity, study)
    return identity


def in_its_time(identity: Identity, study: Study) -> None:
    """Insist that a certificate was valid at some time of the study's life."""
    if identity.not_before > study.expires or identity.not_after < study.created:
        raise HostileInput(f"The certificate of {identity.name} was not valid at any time of the study's life.")
