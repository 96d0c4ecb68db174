"""Checks a proof part by part, in the order in which one rests on another; the first one that fails is named.

What the authority issued is taken for granted, and nothing else: every digest and context is computed anew. Certificates may
have expired since, but must have been valid at some time of the study's life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cryptography import x509

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import Identity, Label, Role, verify
from veilsum_node.identity.certificate import federation_id, issued
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.ledger.receipts import (
    Receipt,
    parse_countersignature,
    verify_countersignature,
    verify_receipt,
)
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, release_digest, round_file
from veilsum_privacy.securesum.context import Assignment, context_digest, parse_assignment
from veilsum_privacy.securesum.contribution import masked_sum
from veilsum_privacy.securesum.decryption import SignedStatement, Statement, verify_statement, words_digest
from veilsum_privacy.securesum.roster import Roster, verify_roster
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import check_former
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan

LEAST_DECRYPTORS = 2
"""Members that decrypt every sum, and sign for it."""


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
class CheckedStudy:
    """A study that an analyst of the federation signed, and the participants that it was made with.

    Attributes:
        agreed: the study as signed, and what follows from it.
        analyst: who signed it.
        roster: every member's enrolment verified.
        authority: the federation's.
    """

    agreed: AgreedStudy
    analyst: Identity
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
class CheckedRelease:
    """A release whose values are what its decryptors signed for.

    Attributes:
        assignment: of its attempt.
        plan: of its sum.
        values: (size,) in grid units.
        digest: of the release.
        decryptors: who signed for it.
    """

    assignment: Assignment
    plan: RoundPlan
    values: Integers = field(repr=False)
    digest: bytes
    decryptors: tuple[str, ...]


def check_study(proof: StudyProof, authority: x509.Certificate) -> CheckedStudy:
    """Check the analyst's signature and the whole roster.

    Raises:
        ProofFault: the first thing that is wrong.
    """
    with part(STUDY_FILE, "The study does not hold:"):
        agreed = AgreedStudy.parse(proof.study)
        study = agreed.study
        if study.federation != federation_id(authority):
            raise HostileInput("It belongs to a different federation than the authority's certificate.")
    with part(STUDY_FILE, "The analyst's signature does not hold:"):
        analyst = _certified(proof.analyst, authority, Role.ANALYST, study)
        verify(analyst.public_key, Label.STUDY, proof.study, proof.signature)
    with part(STUDY_FILE, "This version cannot verify it:"):
        for declaration in study.tasks:
            check_former(declaration.task)
    with part(STUDY_FILE, "The roster does not hold:"):
        roster = verify_roster(proof.enrolments, study, agreed.digest, authority, None)
        for member in roster.members:
            _in_its_time(member.identity, study)
    return CheckedStudy(agreed, analyst, roster, authority)


class ReleaseChecker:
    """Checks a study's releases one after the other: each by itself, and that none is missing, repeated or beyond the study.

    Args:
        study: checked.
    """

    def __init__(self, study: CheckedStudy) -> None:
        self._checked, self._round, self._attempt = study, 0, 0
        self._released: Counter[tuple[str, str]] = Counter()  # by label and member, as each participant counts its own
        self._numbers: dict[str, int] = {}  # of each member's last receipt

    def check(self, entry: ReleaseEntry, load: Callable[[int], ReleaseProof]) -> CheckedRelease:
        """Check the next release.

        Args:
            entry: what the manifest says of it.
            load: the proof of a round's release.

        Raises:
            ProofFault: the first thing that is wrong.
        """
        where = round_file(entry.round)
        if entry.round != self._round + 1:
            raise ProofFault(
                where, f"After round {self._round} comes round {self._round + 1}: a release is missing or repeated."
            )
        with part(where):
            proof = load(entry.round)
        assignment, plan = self._assignment(where, entry, proof)
        receipts = self._receipts(where, assignment, plan, proof)
        self._countersigned(where, receipts[0], proof)
        self._consents(where, receipts, proof)
        release = self._values(where, entry, assignment, plan, receipts[0].context, proof)
        self._round, self._attempt = entry.round, assignment.attempt
        self._released.update((entry.label, name) for name in assignment.names)
        self._numbers |= {receipt.participant: receipt.number for receipt in receipts}
        return release

    def _assignment(self, where: str, entry: ReleaseEntry, proof: ReleaseProof) -> tuple[Assignment, RoundPlan]:
        study, roster = self._checked.study, self._checked.roster
        with part(where, "The assignment does not hold:"):
            assignment = parse_assignment(proof.assignment)
            if (assignment.round, assignment.label) != (entry.round, entry.label):
                raise HostileInput("It is for a different round or task than the manifest names.")
            if assignment.attempt <= self._attempt:
                raise HostileInput("Its attempt is older than that of the round before it.")
            names = assignment.names
            if list(names) != [name for name in roster.names if name in names] or len(names) < study.privacy.min_cohort:
                raise HostileInput("Its cohort is not a part of the roster in the roster's order, or is too small.")
            plan = self._checked.agreed.task(assignment.label).plan(len(roster.names), len(names))
            if max(self._released[assignment.label, name] for name in names) >= plan.declaration.releases:
                raise HostileInput(f"The study declares no further release of {assignment.label}.")
        return assignment, plan

    def _receipts(self, where: str, assignment: Assignment, plan: RoundPlan, proof: ReleaseProof) -> list[Receipt]:
        checked, study = self._checked, self._checked.study
        with part(where, "The context cannot be computed:"):
            context = context_digest(plan, checked.roster, proof.keys, assignment)
        if len(proof.receipts) != len(assignment.names):
            raise ProofFault(where, "There is not exactly one receipt for each member of the cohort.")
        mechanism, receipts = Mechanism.of(plan.declaration, plan.noise), []
        for name, signed in zip(assignment.names, proof.receipts, strict=True):
            with part(where, f"The receipt of {name} does not hold:"):
                receipt = verify_receipt(signed, checked.roster.member(name).identity, checked.digest, context, 1)
                described = (receipt.round, receipt.attempt, receipt.dataset, receipt.mechanism, receipt.unit)
                if (*described, receipt.cohort_size) != (
                    assignment.round, assignment.attempt, study.dataset, mechanism, study.privacy.unit, len(assignment.names)
                ):  # fmt: skip
                    raise HostileInput("It describes a different release than this attempt's.")
                if receipt.number <= self._numbers.get(name, 0):
                    raise HostileInput("Its number is not above that of the member's receipt before it.")
            receipts.append(receipt)
        return receipts

    def _countersigned(self, where: str, receipt: Receipt, proof: ReleaseProof) -> None:
        checked, study = self._checked, self._checked.study
        with part(where, "The coordinator's countersignature does not hold:"):
            coordinator = _certified(proof.coordinator, checked.authority, Role.COORDINATOR, study)
            if coordinator.name != study.coordinator:
                raise HostileInput("It is by a different coordinator than the study names.")
            verify_countersignature(proof.countersigned, coordinator, checked.digest, receipt.context, proof.receipts)
            word = parse_countersignature(proof.countersigned.body)
            if (word.round, word.attempt) != (receipt.round, receipt.attempt):
                raise HostileInput("It is about another round or attempt.")

    @staticmethod
    def _consents(where: str, receipts: list[Receipt], proof: ReleaseProof) -> None:
        if len(proof.consents) != len(receipts):
            raise ProofFault(where, "There is not exactly one consent of each member of the cohort.")
        for receipt, consent in zip(receipts, proof.consents, strict=True):
            with part(where):
                receipt.hold(consent)

    def _values(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, plan: RoundPlan, context: bytes, proof: ReleaseProof
    ) -> CheckedRelease:
        key, roster = self._checked.digest, self._checked.roster
        with part(where, "The released values do not hold:"):
            words = words_digest(masked_sum(proof.values, plan.encoding, proof.consents))
            digest = release_digest(key, assignment.round, assignment.attempt, proof.values.astype("<i8").tobytes())
            if digest != entry.digest:
                raise HostileInput("They are not those whose digest the manifest names.")
        names = tuple(entry.decrypted_by)
        if len(names) < LEAST_DECRYPTORS or not set(names) <= set(assignment.names):
            raise ProofFault(where, f"The manifest does not name {LEAST_DECRYPTORS} members of the cohort that decrypted it.")

        def signed(name: str) -> None:
            said = Statement(key, name, assignment.round, assignment.attempt, context, proof.keys, words)
            statement = SignedStatement(said.to_bytes(), entry.decrypted_by[name])
            verify_statement(statement, roster.member(name).identity, said)

        try:
            signed(names[0])
        except HostileInput:  # in a proof of protocol version 3 or before, the last ciphertext was as long as the others
            words = words_digest(masked_sum(proof.values, plan.encoding, proof.consents, padded=True))
        for name in names:
            with part(where, f"{name} did not sign for these values:"):
                signed(name)
        return CheckedRelease(assignment, plan, proof.values, digest, names)


def _certified(certificate: bytes, authority: x509.Certificate, role: Role, study: Study) -> Identity:
    identity = issued(certificate, authority, role)
    _in_its_time(identity, study)
    return identity


def _in_its_time(identity: Identity, study: Study) -> None:
    if identity.not_before > study.expires or identity.not_after < study.created:
        raise HostileInput(f"The certificate of {identity.name} was not valid at any time of the study's life.")
