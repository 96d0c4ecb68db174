"""Checks a proof part by part, in the order in which one rests on another; the first one that fails is named.

What the authority issued is taken for granted, and nothing else: every digest and context is computed anew. Certificates may
have expired since, but must have been valid at some time of the study's life.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
from veilsum_privacy.results.former.layout import FormerPlan, former_context, former_plan
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.former.words import Statement, masked_sum, verify_decryptors, words_digest
from veilsum_privacy.results.proof_files import (
    STUDY_FILE,
    ReleaseEntry,
    ReleaseProof,
    StudyProof,
    release_digest,
    round_file,
    sum_file,
)
from veilsum_privacy.results.sum_evidence import verify_evidence
from veilsum_privacy.securesum.context import Assignment, context_digest, parse_assignment
from veilsum_privacy.securesum.roster import Roster, verify_roster
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import check_former
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask, RoundPlan


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
    """A release whose values are those that its sum opens to; or, in a former result, what its decryptors signed for.

    Attributes:
        assignment: of its attempt.
        task: that was summed.
        values: (size,) in grid units.
        digest: of the release.
        numbers: of its receipts, by member.
        decryptors: who signed for it; none since version 6 of the protocol.
    """

    assignment: Assignment
    task: AgreedTask
    values: Integers = field(repr=False)
    digest: bytes
    numbers: Mapping[str, int] = field(repr=False)
    decryptors: tuple[str, ...] = ()


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


def read_proof(entry: ReleaseEntry, read: Callable[[str], bytes]) -> ReleaseProof | FormerReleaseProof:
    """Read the proof of a release.

    Args:
        entry: what the manifest says of it.
        read: the content of a file, by its name below the result's directory.

    Raises:
        ProofFault: a file is missing or malformed.
    """
    with part(round_file(entry.round)):
        if entry.decrypted_by:
            return FormerReleaseProof.parse(read(round_file(entry.round)))
        return ReleaseProof.parse(read(round_file(entry.round)), read(sum_file(entry.round)))


class ReleaseChecker:
    """Checks a study's releases one after the other: each by itself, and that none is missing, repeated or beyond the study.

    Args:
        study: checked.
    """

    def __init__(self, study: CheckedStudy) -> None:
        self._checked, self._round, self._attempt = study, 0, 0
        self._released: Counter[tuple[str, str]] = Counter()  # by label and member, as each participant counts its own
        self._numbers: dict[str, int] = {}  # of each member's last receipt

    def check(self, entry: ReleaseEntry, proof: Callable[[], ReleaseProof | FormerReleaseProof]) -> CheckedRelease:
        """Check the next release.

        Args:
            entry: what the manifest says of it.
            proof: reads its proof.

        Raises:
            ProofFault: the first thing that is wrong.
        """
        where = round_file(entry.round)
        if entry.round != self._round + 1:
            raise ProofFault(
                where, f"After round {self._round} comes round {self._round + 1}: a release is missing or repeated."
            )
        found = proof()
        assignment, task = self._assignment(where, entry, found)
        if isinstance(found, ReleaseProof):
            values, receipts = self._opened(where, entry, assignment, task, found)
        else:
            values, receipts = self._vouched(where, entry, assignment, task, found)
        numbers = {receipt.participant: receipt.number for receipt in receipts}
        self._round, self._attempt = entry.round, assignment.attempt
        self._released.update((entry.label, name) for name in assignment.names)
        self._numbers |= numbers
        return CheckedRelease(assignment, task, values, entry.digest, numbers, tuple(entry.decrypted_by))

    def _opened(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, task: AgreedTask, proof: ReleaseProof
    ) -> tuple[Integers, list[Receipt]]:
        """The values that the sum opens to, whoever says what of them."""
        checked = self._checked
        with part(where, "The context cannot be computed:"):
            plan = task.plan(len(checked.roster.names), len(assignment.names))
            context = context_digest(plan, checked.roster, assignment)
        receipts, coordinator = self._receipts(where, assignment, plan, context, proof, 6)
        cohort = [checked.roster.member(name).identity for name in assignment.names]
        with part(where, "The sum does not hold:"):
            values = verify_evidence(proof.evidence, plan.encoding, checked.digest, context, cohort, coordinator)
            self._named(entry, assignment, values)
        return values, receipts

    def _vouched(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, task: AgreedTask, proof: FormerReleaseProof
    ) -> tuple[Integers, list[Receipt]]:
        """The values that two members of the cohort signed for; up to version 5 of the protocol."""
        checked = self._checked
        with part(where, "The context cannot be computed:"):
            plan = former_plan(task, len(checked.roster.names), len(assignment.names))
            context = former_context(plan, checked.roster, proof.keys, assignment)
        receipts, _ = self._receipts(where, assignment, plan, context, proof, 1)
        identities = {name: checked.roster.member(name).identity for name in assignment.names}

        def words(padded: bool) -> bytes:
            return words_digest(masked_sum(proof.values, plan.encoding, proof.consents, padded=padded))

        with part(where, "The released values do not hold:"):
            said = Statement(checked.digest, "", assignment.round, assignment.attempt, context, proof.keys, words(False))
            self._named(entry, assignment, proof.values)
            verify_decryptors(said, lambda: words(True), entry.decrypted_by, identities)
        return proof.values, receipts

    def _named(self, entry: ReleaseEntry, assignment: Assignment, values: Integers) -> None:
        """These values are those of the manifest's entry."""
        found = release_digest(
            self._checked.digest, assignment.round, assignment.attempt, values.astype("<i8", copy=False).tobytes()
        )
        if found != entry.digest:
            raise HostileInput("They are not those whose digest the manifest names.")

    def _assignment(
        self, where: str, entry: ReleaseEntry, proof: ReleaseProof | FormerReleaseProof
    ) -> tuple[Assignment, AgreedTask]:
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
            task = self._checked.agreed.task(assignment.label)
            if max(self._released[assignment.label, name] for name in names) >= task.declaration.releases:
                raise HostileInput(f"The study declares no further release of {assignment.label}.")
        return assignment, task

    def _receipts(
        self,
        where: str,
        assignment: Assignment,
        plan: RoundPlan | FormerPlan,
        context: bytes,
        proof: ReleaseProof | FormerReleaseProof,
        version: int,
    ) -> tuple[list[Receipt], Identity]:
        """The cohort's receipts, countersigned, with the consents that they promise; and the coordinator."""
        checked, study = self._checked, self._checked.study
        if len(proof.receipts) != len(assignment.names):
            raise ProofFault(where, "There is not exactly one receipt for each member of the cohort.")
        mechanism, receipts = Mechanism.of(plan.task.declaration, plan.noise), []
        for name, signed in zip(assignment.names, proof.receipts, strict=True):
            with part(where, f"The receipt of {name} does not hold:"):
                receipt = verify_receipt(signed, checked.roster.member(name).identity, checked.digest, context, version)
                described = (receipt.round, receipt.attempt, receipt.dataset, receipt.mechanism, receipt.unit)
                if (*described, receipt.cohort_size) != (
                    assignment.round, assignment.attempt, study.dataset, mechanism, study.privacy.unit, len(assignment.names)
                ):  # fmt: skip
                    raise HostileInput("It describes a different release than this attempt's.")
                if receipt.number <= self._numbers.get(name, 0):
                    raise HostileInput("Its number is not above that of the member's receipt before it.")
            receipts.append(receipt)
        coordinator = self._countersigned(where, receipts[0], proof)
        if len(proof.consents) != len(receipts):
            raise ProofFault(where, "There is not exactly one consent of each member of the cohort.")
        for receipt, consent in zip(receipts, proof.consents, strict=True):
            with part(where):
                receipt.hold(consent)
        return receipts, coordinator

    def _countersigned(self, where: str, receipt: Receipt, proof: ReleaseProof | FormerReleaseProof) -> Identity:
        checked, study = self._checked, self._checked.study
        with part(where, "The coordinator's countersignature does not hold:"):
            coordinator = _certified(proof.coordinator, checked.authority, Role.COORDINATOR, study)
            if coordinator.name != study.coordinator:
                raise HostileInput("It is by a different coordinator than the study names.")
            verify_countersignature(proof.countersigned, coordinator, checked.digest, receipt.context, proof.receipts)
            word = parse_countersignature(proof.countersigned.body)
            if (word.round, word.attempt) != (receipt.round, receipt.attempt):
                raise HostileInput("It is about another round or attempt.")
        return coordinator


def _certified(certificate: bytes, authority: x509.Certificate, role: Role, study: Study) -> Identity:
    identity = issued(certificate, authority, role)
    _in_its_time(identity, study)
    return identity


def _in_its_time(identity: Identity, study: Study) -> None:
    if identity.not_before > study.expires or identity.not_after < study.created:
        raise HostileInput(f"The certificate of {identity.name} was not valid at any time of the study's life.")
