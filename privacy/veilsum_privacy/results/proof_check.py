"""Checks a proof part by part, in the order in which one rests on another; the first one that fails is named.

What the authority issued is taken for granted, and nothing else: every digest and context is computed anew. Certificates may
have expired since, but must have been valid at some time of the study's life.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from cryptography import x509

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, Role, verify
from veilsum_node.identity.certificate import federation_id
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.ledger.receipts import Receipt
from veilsum_privacy.results.former.layout import FormerStudy, former_context, former_plan
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.former.words import Statement, masked_sum, verify_decryptors, words_digest
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, sum_file
from veilsum_privacy.results.release_check import (
    CheckedRoster,
    ProofFault,
    ReleaseRules,
    certified,
    in_its_time,
    part,
)
from veilsum_privacy.results.release_names import release_digest, round_file
from veilsum_privacy.results.whole_sums import verify_evidence
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.roster import verify_roster
from veilsum_privacy.tasks.agreed import AgreedStudy


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
    task: DeclaredTask
    values: Integers = field(repr=False)
    digest: bytes
    numbers: Mapping[str, int] = field(repr=False)
    decryptors: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckedStudy(CheckedRoster):
    """A study that an analyst of the federation signed, and the participants that it was made with.

    Attributes:
        agreed: with its tasks, which say what a release means.
        analyst: who signed it.
    """

    agreed: AgreedStudy
    analyst: Identity


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
        analyst = certified(proof.analyst, authority, Role.ANALYST, study)
        verify(analyst.public_key, Label.STUDY, proof.study, proof.signature)
    with part(STUDY_FILE, "The roster does not hold:"):
        roster = verify_roster(proof.enrolments, study, agreed.digest, authority, None)
        for member in roster.members:
            in_its_time(member.identity, study)
    return CheckedStudy(agreed, roster, authority, analyst)


def as_former(checked: CheckedStudy, entries: Iterable[ReleaseEntry], read: Callable[[str], bytes]) -> CheckedStudy:
    """The study as its sums alone tell it, where this version has not all of its tasks: what was signed can be checked.

    Raises:
        ProofFault: a file is missing or malformed.
    """
    sizes = dict[str, int]()
    for entry in entries:
        found = read_proof(entry, read)
        if isinstance(found, FormerReleaseProof):
            sizes[entry.label] = len(found.values)
    return replace(checked, agreed=cast(AgreedStudy, FormerStudy(checked.study, sizes)))


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


class ReleaseChecker(ReleaseRules):
    """Checks the releases that a manifest names, of every version of the protocol."""

    def check(self, entry: ReleaseEntry, proof: Callable[[], ReleaseProof | FormerReleaseProof]) -> CheckedRelease:
        """Check the next release.

        Args:
            entry: what the manifest says of it.

        Raises:
            ProofFault: the first thing that is wrong.
        """
        where = round_file(entry.round)
        if entry.round != self._round + 1:
            raise ProofFault(
                where, f"After round {self._round} comes round {self._round + 1}: a release is missing or repeated."
            )
        found = proof()
        assignment, task = self._assignment(where, entry.round, entry.label, found.assignment)
        if isinstance(found, ReleaseProof):
            values, receipts = self._opened(where, entry, assignment, task, found)
        else:
            values, receipts = self._vouched(where, entry, assignment, task, found)
        self._passed(assignment, receipts)
        numbers = {receipt.participant: receipt.number for receipt in receipts}
        return CheckedRelease(assignment, task, values, entry.digest, numbers, tuple(entry.decrypted_by))

    def _opened(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, task: DeclaredTask, proof: ReleaseProof
    ) -> tuple[Integers, Sequence[Receipt]]:
        """The values that the sum opens to, whoever says what of them."""
        plan, context = self._planned(where, assignment, task)
        mechanism = Mechanism.of(plan.declaration, plan.noise)
        held = self._held(where, assignment, mechanism, context, proof.evidence)
        coordinator = self._countersigned(where, held, proof.countersigned, proof.coordinator)
        with part(where, "The sum does not hold:"):
            values = verify_evidence(held, plan.encoding, coordinator)
            self._named(assignment, values, entry)
        return values, held.receipts

    def _vouched(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, task: DeclaredTask, proof: FormerReleaseProof
    ) -> tuple[Integers, Sequence[Receipt]]:
        """The values that two members of the cohort signed for; up to version 5 of the protocol."""
        checked = self._checked
        with part(where, "The context cannot be computed:"):
            plan = former_plan(task, len(checked.roster.names), len(assignment.names))
            context = former_context(plan, checked.roster, proof.keys, assignment)
        mechanism = Mechanism.of(task.declaration, plan.noise)
        held = self._held(where, assignment, mechanism, context, proof, 1)
        self._countersigned(where, held, proof.countersigned, proof.coordinator)
        identities = {name: checked.roster.member(name).identity for name in assignment.names}

        def words(padded: bool) -> bytes:
            return words_digest(masked_sum(proof.values, plan.encoding, proof.consents, padded=padded))

        with part(where, "The released values do not hold:"):
            said = Statement(checked.digest, "", assignment.round, assignment.attempt, context, proof.keys, words(False))
            self._named(assignment, proof.values, entry)
            verify_decryptors(said, lambda: words(True), entry.decrypted_by, identities)
        return proof.values, held.receipts

    def _named(self, assignment: Assignment, values: Integers, entry: ReleaseEntry) -> None:
        """Hold values to the digest by which the manifest names them."""
        about = self._checked.digest, assignment.round, assignment.attempt
        if release_digest(*about, values.astype("<i8", copy=False).tobytes()) != entry.digest:
            raise HostileInput("They are not those whose digest the manifest names.")
