"""A coordinator and all members but one publish a result that was never the sum: whatever they sign, ``study verify`` refuses.

The one member kept the order of the steps. The others have all keys, seeds and consents but its own signing key, may sign
anything, also after everything is open, and compute the whole result from the values that they would like to see.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from support.commands import veilsum
from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import TestBed, make_bed, make_data
from support.one_time import Played, said_in, shifted
from support.proving import Conspiracy, Signing, countersigned
from veilsum.replay import Replayed
from veilsum.verification import verify_result
from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.methods import get_method
from veilsum_node.canonical import canonical
from veilsum_node.file_names import write_files
from veilsum_node.identity import SigningKey
from veilsum_privacy.ledger.receipts import consent_commitment, consent_proof, parse_receipt, sign_receipt
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.proof_check import CheckedRelease, CheckedStudy, ProofFault, check_study
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, sum_file
from veilsum_privacy.results.release_names import FOLDER, round_file
from veilsum_privacy.results.result import result_files, study_fields
from veilsum_privacy.results.whole_sums import total_to_bytes
from veilsum_privacy.securesum.check_words import Signed, products
from veilsum_privacy.securesum.key_shares import consent_of

HONEST, LIARS = NAMES[-1], tuple(NAMES[:-1])
PLACE, AMOUNT = 3, 5
"""Which word of the sum they would have otherwise, and by how much."""


@dataclass(frozen=True)
class Published:
    """A study whose one sum everybody contributed to, and a folder for results of it."""

    bed: TestBed
    whole: StudyProof
    study: CheckedStudy
    round: Signing
    folder: Path

    def publish(self, entry: ReleaseEntry, proof: ReleaseProof | FormerReleaseProof, values: Integers) -> Path:
        """Write the result that the method makes of these values, with this proof."""
        task = self.study.agreed.task(entry.label)
        release = CheckedRelease(self.round.assignment, task, values, entry.digest, {})
        made = get_method(self.study.study.method).run(Replayed(self.study.study, iter([release]), {}, exact=True))
        about = study_fields(self.study.study, self.study.digest)
        shown = {STUDY_FILE: self.whole.to_bytes(), round_file(1): proof.to_bytes()}
        if isinstance(proof, ReleaseProof):
            shown[sum_file(1)] = proof.total
        shutil.rmtree(self.folder, ignore_errors=True)
        write_files(self.folder, shown | result_files(made, study=about, releases=[entry]))
        return self.folder

    @property
    def wanted(self) -> Integers:
        """The values that they would like to see: one of the opened sum's words is larger."""
        plan, values = self.round.played.members.plan, self.round.played.exact.copy()
        values[(PLACE - 1) * plan.lanes] += AMOUNT
        return values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TestBed, StudyProof, CheckedStudy]:
    bed = make_bed(tmp_path_factory.mktemp("forged"), make_data(NAMES, 4, WIDTH))
    key = bed.local.submit(STUDIES["statistics"](bed), bed.analyst)
    bed.local.prepare(key)
    entry, roster = bed.hub.studies[key], bed.hub.studies[key].machine.members.fixed_roster()
    enrolments = tuple(member.enrolment for member in roster.members)
    whole = StudyProof(entry.signed.study, entry.signed.signature, entry.signed.certificate, enrolments)
    return bed, whole, check_study(whole, bed.analyst.authority)


@pytest.fixture
def published(made: tuple[TestBed, StudyProof, CheckedStudy], tmp_path: Path) -> Published:
    bed, whole, study = made
    signing = Conspiracy(bed, study).round(1, 1, study.study.tasks[0].label, 1)
    return Published(bed, whole, study, signing, tmp_path / "result")


def test_what_they_contributed_verifies(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    """The control: the same hands, the true sum."""
    entry, proof = published.round.release
    directory = published.publish(entry, proof, published.round.played.exact)
    assert verify_result(directory, published.bed.analyst.authority).comparison.exact
    authority = published.folder.parent / "authority.pem"
    authority.write_bytes(published.bed.analyst.authority_pem)
    code, out, _ = veilsum(capsys, "study", "verify", directory, "--authority", authority)
    assert code == 0
    assert "Nobody could have forged a sum" in " ".join(out.split())


def resigned(played: Played, proof: ReleaseProof, checks: tuple[bytes, ...]) -> ReleaseProof:
    """The same with other answers, under which all but the honest member sign anew."""
    members, kept = played.members, dict(zip(played.members.names, proof.agreed, strict=True))
    said = said_in(checks[0])
    bodies = [Signed(body, b"") for body in checks]  # no proof holds an answer's own signature
    again = members.agree(bodies, said.challenge, said.sum)
    agreed = tuple(kept[name] if name == HONEST else signature for name, signature in zip(members.names, again, strict=True))
    return replace(proof, checks=checks, agreed=agreed)


def fitting(played: Played, proof: ReleaseProof, liar: str) -> tuple[bytes, ...]:
    """Answers that fit the sum which is larger by the amount: a liar's differs by <r, v>."""
    members, modulus = played.members, played.members.ring.plain_modulus
    said = [said_in(body) for body in proof.checks]
    extra = np.zeros(members.plan.words, dtype=np.uint64)
    extra[PLACE] = AMOUNT
    by = products(extra, members.context, said[0].challenge)
    return tuple(
        replace(one, words=tuple((word + more) % modulus for word, more in zip(one.words, by, strict=True))).to_bytes()
        if one.participant == liar
        else body
        for one, body in zip(said, proof.checks, strict=True)
    )


def larger(played: Played) -> Played:
    """The same contributions, and a sum that is larger."""
    return replace(played, total=shifted(played.total, PLACE, AMOUNT, played.members.ring))


def only_the_sum(at: Published) -> ReleaseProof:
    other = larger(at.round.played)
    return replace(at.round.proof, total=total_to_bytes(other.total, other.members.plan))


def the_sum_and_answers_that_fit(at: Published) -> ReleaseProof:
    proof = only_the_sum(at)
    return resigned(at.round.played, proof, fitting(at.round.played, proof, LIARS[0]))


def the_sum_fixed_anew_under_the_old_answers(at: Published) -> ReleaseProof:
    fixed = larger(at.round.played).fixed[1]
    return replace(only_the_sum(at), fixed=fixed)


def everything_anew_but_the_honest_members_answer(at: Published) -> ReleaseProof:
    other = replace(at.round, played=larger(at.round.played))
    checks = [
        at.round.proof.checks[-1] if name == HONEST else body for name, body in zip(NAMES, other.proof.checks, strict=True)
    ]
    return resigned(other.played, other.proof, tuple(checks))


def everything_anew_and_the_honest_members_answer_made_up(at: Published) -> ReleaseProof:
    """The list holds no signature of an answer: what stands in the way is the one under the whole list."""
    other = replace(at.round, played=larger(at.round.played))
    proof = other.proof
    kept = at.round.proof.agreed[-1]
    return replace(proof, agreed=(*proof.agreed[:-1], kept))


def a_false_sum_fixed_in_time(at: Published) -> ReleaseProof:
    """Everybody answered about it, and consented: all signatures hold, and the words do not fit."""
    return replace(at.round, played=larger(at.round.played)).proof


def a_false_sum_fixed_in_time_and_an_answer_changed_after_the_opening(at: Published) -> ReleaseProof:
    proof = a_false_sum_fixed_in_time(at)
    played = larger(at.round.played)
    return resigned(played, proof, fitting(played, proof, LIARS[1]))


def another_consent_after_the_opening(at: Published) -> ReleaseProof:
    """A liar's consent is another one, and its receipt commits it to that: the challenge does not follow any more."""
    played = at.round.played
    members, proof = played.members, at.round.proof
    consent = consent_of(b"another secret of thirty-two byte", members.context)
    body = parse_receipt(proof.receipts[0].body)
    commitment = consent_commitment(members.context, LIARS[0], consent_proof(consent))
    receipt = sign_receipt(replace(body, consent=commitment), members.key(LIARS[0]))
    receipts = (receipt, *proof.receipts[1:])
    word = countersigned(members.key(members.lead), members.lead, members.study, receipts)
    return replace(only_the_sum(at), receipts=receipts, countersigned=word, consents=(consent, *proof.consents[1:]))


def without_the_honest_member(at: Published) -> ReleaseProof:
    assignment = json.loads(at.round.proof.assignment)
    fewer = canonical({**assignment, "cohort": assignment["cohort"][:-1]})
    return replace(at.round.proof, assignment=fewer, receipts=at.round.proof.receipts[:-1])


FORGERIES: dict[Callable[[Published], ReleaseProof], str] = {
    only_the_sum: "another sum, or one that does not follow from it",
    the_sum_and_answers_that_fit: "another sum, or one that does not follow from it",
    the_sum_fixed_anew_under_the_old_answers: "another sum, or one that does not follow from it",
    everything_anew_but_the_honest_members_answer: "challenge about another sum",
    everything_anew_and_the_honest_members_answer_made_up: "signature",
    a_false_sum_fixed_in_time: "not that of the contributions which its members vouched for",
    a_false_sum_fixed_in_time_and_an_answer_changed_after_the_opening: "signature",
    another_consent_after_the_opening: "another sum, or one that does not follow from it",
    without_the_honest_member: "is too small",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_result_is_refused(
    published: Published, capsys: pytest.CaptureFixture[str], forge: Callable[[Published], ReleaseProof]
) -> None:
    values = published.wanted
    directory = published.publish(published.round.entry(values), forge(published), values)
    with pytest.raises(ProofFault) as caught:
        verify_result(directory, published.bed.analyst.authority)
    assert caught.value.where == round_file(1)
    assert FORGERIES[forge] in caught.value.what
    authority = published.folder.parent / "authority.pem"
    authority.write_bytes(published.bed.analyst.authority_pem)
    code, out, _ = veilsum(capsys, "study", "verify", directory, "--authority", authority, "--json")
    assert (code, json.loads(out)["valid"]) == (1, False)


def test_with_the_honest_members_key_the_same_forgery_passes(published: Published) -> None:
    """The control of the strongest forgery above: what stood in its way is that member's signature, and nothing else."""
    played = larger(published.round.played)
    proof = replace(published.round, played=played).proof
    checks = fitting(played, proof, LIARS[1])
    members = played.members
    agreed = members.agree([Signed(body, b"") for body in checks], played.rho, played.fixed[0])
    values = published.wanted
    directory = published.publish(published.round.entry(values), replace(proof, checks=checks, agreed=agreed), values)
    assert verify_result(directory, published.bed.analyst.authority).comparison.exact


def test_a_sum_is_not_passed_off_as_one_of_a_former_version(published: Published) -> None:
    """There two members' word was enough. The honest member signed no receipt of that form."""
    entry, proof = Conspiracy(published.bed, published.study).former_release(1, 1, published.round.label, 1)
    receipt = published.round.proof.receipts[-1]
    own = json.loads(proof.receipts[-1].body)
    made_up = sign_receipt(parse_receipt(canonical(own)), SigningKey.generate())
    for last in (receipt, made_up, replace(receipt, body=proof.receipts[-1].body)):
        receipts = (*proof.receipts[:-1], last)
        word = countersigned(
            published.bed.hub.credentials.signing_key, published.round.played.members.lead, published.study.digest, receipts
        )
        directory = published.publish(entry, replace(proof, receipts=receipts, countersigned=word), proof.values)
        with pytest.raises(ProofFault, match=f"receipt of {HONEST} does not hold"):
            verify_result(directory, published.bed.analyst.authority)
        assert not (directory / FOLDER / "round-000001.sum").exists()
