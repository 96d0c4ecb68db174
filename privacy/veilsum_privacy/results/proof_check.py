"""Checks a proof part by part, in the order in which one rests on another; the first one that fails is named.

What the authority issued is taken for granted, and nothing else: every digest and context is computed anew. Certificates may
have expired since, but must have been valid at some time of the study's life.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import cast

from cryptography import x509

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, Role, verify
from veilsum_node.identity.certificate import federation_id
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.ledger.receipts import Receipt
from veilsum_privacy.results.former.layout import FormerStudy, former_context, former_plan
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.former.words import Statement, masked_sum, verify_decryptors, words_digest
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, sum_file
from veilsum_privacy.results.release_check import (
    CheckedRelease,
    CheckedRoster,
    ProofFault,
    ReleaseRules,
    certified,
    in_its_time,
    part,
)
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.results.whole_sums import verify_evidence
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.roster import verify_roster
from veilsum_privacy.tasks.agreed import AgreedStudy


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
            values, receipts, _ = self._opened(where, assignment, task, found, verify_evidence, entry.digest)
        else:
            values, receipts = self._vouched(where, entry, assignment, task, found)
        return self._passed(assignment, task, values, entry.digest, receipts, tuple(entry.decrypted_by))

    def _vouched(
        self, where: str, entry: ReleaseEntry, assignment: Assignment, task: DeclaredTask, proof: FormerReleaseProof
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
            self._digest(assignment, proof.values, entry.digest)
            verify_decryptors(said, lambda: words(True), entry.decrypted_by, identities)
        return proof.values, receipts
