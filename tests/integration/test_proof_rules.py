"""What a coordinator and all members cannot do even together: sign for releases that the analyst's study does not declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import TestBed, make_bed, make_data
from support.hostile import altered
from support.proving import Conspiracy, Copied, lay_proof
from veilsum.replay import Comparison, Replayed
from veilsum.verification import Verified
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Authority, Credentials, Label, Role, SigningKey, new_key_and_csr, verify_certificate
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.proof_check import CheckedStudy, ReleaseChecker, check_study
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof
from veilsum_privacy.results.release_check import ProofFault
from veilsum_privacy.results.result import MANIFEST
from veilsum_privacy.study.study import parse_study

DAY = 86_400

Sign = Callable[[int, int, str, int], "Shown"]
Shown = tuple[ReleaseEntry, ReleaseProof | FormerReleaseProof]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = make_data(NAMES, 24, WIDTH)
    return make_bed(tmp_path_factory.mktemp("rules"), data)


@pytest.fixture(scope="module")
def whole(bed: TestBed) -> StudyProof:
    """The signed study and its roster: a first task with one release, then three steps."""
    key = bed.local.submit(STUDIES["fedsgd"](bed), bed.analyst)
    bed.local.prepare(key)
    entry, roster = bed.hub.studies[key], bed.hub.studies[key].machine.members.fixed_roster()
    enrolments = tuple(member.enrolment for member in roster.members)
    return StudyProof(entry.signed.study, entry.signed.signature, entry.signed.certificate, enrolments)


@pytest.fixture(scope="module")
def study(bed: TestBed, whole: StudyProof) -> CheckedStudy:
    return check_study(whole, bed.analyst.authority)


@pytest.fixture(scope="module")
def all_of_them(bed: TestBed, study: CheckedStudy) -> Conspiracy:
    return Conspiracy(bed, study)


@pytest.fixture(params=["version 6", "former"])
def sign(request: pytest.FixtureRequest, all_of_them: Conspiracy) -> Sign:
    """A release as everyone together can sign for it; of this version of the protocol and of those before."""
    if request.param == "former":
        return all_of_them.former_release
    return lambda *about: all_of_them.round(*about).release


@pytest.fixture
def checker(study: CheckedStudy) -> ReleaseChecker:
    return ReleaseChecker(study)


def take(checker: ReleaseChecker, signed: Shown) -> None:
    checker.check(signed[0], lambda: signed[1])


def refused(checker: ReleaseChecker, signed: Shown, match: str) -> None:
    with pytest.raises(ProofFault, match=match):
        take(checker, signed)


def other_coordinator(bed: TestBed) -> Credentials:
    """Of the same federation, for another coordinator."""
    key, csr = new_key_and_csr("another", Role.COORDINATOR)
    authority = Authority.load(bed.kit.authority, bed.clock)
    pem = authority.sign(csr, role=Role.COORDINATOR, name="another", hosts=["localhost"])
    identity = verify_certificate(pem, bed.analyst.authority, bed.clock(), Role.COORDINATOR)
    return Credentials(identity, SigningKey.from_pem(key), bed.analyst.authority, key, pem, bed.analyst.authority_pem)


def test_releases_that_follow_the_study_hold(checker: ReleaseChecker, study: CheckedStudy, sign: Sign) -> None:
    """The control of this file: what is refused below is refused for what it changes."""
    first, second = study.study.tasks
    assert (first.releases, second.releases) == (1, 3)
    for number, label in enumerate((first.label, *[second.label] * 3), 1):
        take(checker, sign(number, 2 * number, label, number))


def test_proofs_of_protocol_version_3_hold(study: CheckedStudy, all_of_them: Conspiracy) -> None:
    """Their last ciphertext was as long as the others; two decryptors of one sum saw the same words."""
    label = study.study.tasks[0].label
    for mixed in ((False, True), (True, False)):
        refused(ReleaseChecker(study), all_of_them.former_release(1, 1, label, 1, mixed), "b did not sign")
    take(ReleaseChecker(study), all_of_them.former_release(1, 1, label, 1, (True, True)))


def test_a_release_more_than_the_study_declares(checker: ReleaseChecker, study: CheckedStudy, sign: Sign) -> None:
    label = study.study.tasks[0].label
    take(checker, sign(1, 1, label, 1))
    refused(checker, sign(2, 2, label, 2), "declares no further release")


def test_an_undeclared_task(checker: ReleaseChecker, study: CheckedStudy, sign: Sign) -> None:
    entry, proof = sign(1, 1, study.study.tasks[0].label, 1)
    other = replace(proof, assignment=proof.assignment.replace(entry.label.encode(), b"another"))
    refused(checker, (replace(entry, label="another"), other), "declares no task")


def test_attempts_and_receipts_rise(checker: ReleaseChecker, study: CheckedStudy, sign: Sign) -> None:
    first, second = (task.label for task in study.study.tasks)
    take(checker, sign(1, 5, first, 5))
    refused(checker, sign(2, 5, second, 6), "Its attempt is older")
    refused(checker, sign(2, 6, second, 5), "number is not above")
    take(checker, sign(2, 6, second, 6))


def test_rounds_are_all_there(checker: ReleaseChecker, study: CheckedStudy, sign: Sign) -> None:
    first, second = (task.label for task in study.study.tasks)
    refused(checker, sign(2, 1, first, 1), "a release is missing")
    take(checker, sign(1, 1, first, 1))
    refused(checker, sign(3, 2, second, 2), "a release is missing")
    refused(checker, sign(1, 2, second, 2), "or repeated")


def test_the_word_of_another_coordinator(
    bed: TestBed, checker: ReleaseChecker, study: CheckedStudy, all_of_them: Conspiracy
) -> None:
    label = study.study.tasks[0].label
    other = all_of_them.round(1, 1, label, 1, other_coordinator(bed))
    refused(checker, other.release, "different coordinator than the study names")


def test_what_has_no_release_is_counted(study: CheckedStudy, all_of_them: Conspiracy) -> None:
    """Attempts and contributions between releases: a coordinator may have opened some of them, and shows none."""
    first, second = (task.label for task in study.study.tasks)
    checker = ReleaseChecker(study)
    plan = [(1, 2, first, 2), (2, 3, second, 3), (3, 7, second, 6)]
    signed = [all_of_them.round(*about).release for about in plan]
    releases = tuple(checker.check(entry, lambda proof=proof: proof) for entry, proof in signed)  # type: ignore[misc]

    def found(count: int) -> Verified:
        return Verified(study, releases[:count], Comparison(True, 0.0), True, 0)

    assert [found(count).attempts_without_release for count in (1, 2, 3)] == [1, 1, 4]
    assert [set(found(count).receipts_without_release.values()) for count in (1, 2, 3)] == [{1}, {1}, {3}]
    assert found(3).fields["receipts_without_release"] == dict.fromkeys(study.roster.names, 3)
    text = " ".join(found(3).leaves_open)
    assert "Why 4 attempts before the last release have none (a member signed for up to 3 contributions to such)" in text
    assert "one member can open a sum, look at it, and declare its round lost" in text
    once = all_of_them.round(1, 1, first, 1).release
    complete = Verified(study, (ReleaseChecker(study).check(once[0], lambda: once[1]),), Comparison(True, 0.0), True, 0)
    assert complete.attempts_without_release == 0
    assert "every attempt before it has its release" in " ".join(complete.leaves_open)


def test_a_study_of_another_time_than_its_certificates(bed: TestBed, whole: StudyProof) -> None:
    """A key whose certificate has ended signs nothing that began later."""
    study = parse_study(whole.study)
    value = whole.study.replace(
        f'"created":{study.created},"'.encode(), f'"created":{study.created + 4000 * DAY},"'.encode()
    ).replace(f'"expires":{study.expires},"'.encode(), f'"expires":{study.expires + 4000 * DAY},"'.encode())
    later = StudyProof(value, bed.analyst.signing_key.sign(Label.STUDY, value), whole.analyst, whole.enrolments)
    with pytest.raises(HostileInput, match="not valid at any time of the study's life"):
        check_study(later, bed.analyst.authority)


def test_a_former_task_excuses_no_signature(bed: TestBed, whole: StudyProof) -> None:
    """That this version cannot repeat a result is said only after all that was signed was found to hold."""
    value = altered(parse_study(whole.study), task__task="evaluation").to_bytes()
    former = StudyProof(value, bed.analyst.signing_key.sign(Label.STUDY, value), whole.analyst, whole.enrolments)
    with pytest.raises(ProofFault, match="The roster does not hold"):
        check_study(former, bed.analyst.authority)


def test_a_release_that_the_method_does_not_ask_for(tmp_path: Path) -> None:
    """Declared by the study and signed for by everyone, but one more than the method wants."""
    data = make_data(NAMES, 4, WIDTH)
    own = make_bed(tmp_path, data)
    study = altered(STUDIES["statistics"](own), task__releases=2, privacy__epsilon=50.0)
    key = bytes(own.local.run(study, own.analyst, tmp_path / "results").study)
    directory = tmp_path / "results" / key.hex()
    lay_proof(own.hub.journal, directory)
    result = Copied(directory, own.analyst.authority)
    checked = check_study(StudyProof.parse((directory / STUDY_FILE).read_bytes()), result.authority)
    entry, proof = Conspiracy(own, checked).round(2, 50, study.tasks[0].label, 50).release
    result.change(MANIFEST, "releases", to=lambda items: [*items, entry.to_json()])
    result.write_proof(2, proof)
    fault = result.fault()
    assert (fault.where, fault.what) == (MANIFEST, "It names 2 releases, but the method asks for 1.")


def test_a_release_in_the_place_of_another(study: CheckedStudy, sign: Sign) -> None:
    first, second = (task.label for task in study.study.tasks)
    release = ReleaseChecker(study).check((signed := sign(1, 1, second, 1))[0], lambda: signed[1])
    federation = Replayed(study.study, iter([release]), {}, exact=False)
    with pytest.raises(ProofFault, match=f"release of {second}, where the method asks for one of {first}"):
        federation.sum(first)
    with pytest.raises(ProofFault, match="that the manifest does not name"):
        federation.sum(first)
