"""A result proves itself: it verifies offline, and whatever of it or of its proof is changed is found and named."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from sqlalchemy import delete, update

from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import TestBed, make_bed, make_data
from support.proving import Copied, lay_proof
from veilsum.verification import look_at, verify_result
from veilsum_coordinator.results.proof import proof_file, release_entries
from veilsum_coordinator.service.runner import HubFederation
from veilsum_coordinator.storage.journal import STUDIES as STUDY_TABLE
from veilsum_coordinator.storage.records import RELEASES
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Label, SigningKey
from veilsum_privacy.results import whole_sums
from veilsum_privacy.results.proof_files import STUDY_FILE, StudyProof, sum_file
from veilsum_privacy.results.release_check import ProofFault
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.results.result import ARRAYS, MANIFEST, load_result
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.study.study import parse_study

FIRST, SECOND = round_file(1), round_file(2)
TOTAL = sum_file(2)
FEDSGD = partial(STUDIES["fedsgd"], min_cohort=2)


@dataclass(frozen=True)
class Proven:
    """A result with its proof, and the parties that made it."""

    directory: Path
    bed: TestBed

    @property
    def authority(self) -> x509.Certificate:
        return self.bed.analyst.authority

    @property
    def study(self) -> bytes:
        """Its digest."""
        return bytes.fromhex(self.directory.name)

    def copy(self, place: Path) -> Copied:
        """The same elsewhere, to be changed."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.directory, place)
        return Copied(place, self.authority)


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    """DP-SGD of four steps, each with a broadcast that depends on the step before it."""
    directory = tmp_path_factory.mktemp("proven")
    data = make_data(NAMES, 24, WIDTH)
    bed = make_bed(directory, data)
    study = FEDSGD(bed)
    key = bytes(bed.local.run(study, bed.analyst, directory / "results").study)
    result = directory / "results" / key.hex()
    lay_proof(bed.hub.journal, result)
    return Proven(result, bed)


def test_an_honest_result_verifies(proven: Proven) -> None:
    found = verify_result(proven.directory, proven.authority)
    assert found.comparison.exact
    assert found.replayed
    study = parse_study(proven.bed.hub.journal.submitted(found.study.digest).study)
    assert found.study.study == study
    assert len(found.releases) == sum(task.releases for task in study.tasks)
    assert found.study.roster.names == tuple(NAMES)
    assert not any(release.decryptors for release in found.releases)
    assert "decrypted_by" not in found.fields
    assert any("the coordinator together with members neither" in line for line in found.proves)
    assert not any("conspires" in line for line in found.leaves_open)
    assert found.fields["proof_bytes"] == sum(path.stat().st_size for path in (proven.directory / "proof").iterdir())


def flipped(text: str) -> str:
    """Hexadecimal digits with the last of them changed."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def _without_a_member(result: Copied) -> None:
    result.change(STUDY_FILE, "roster", to=lambda roster: roster[:-1])


def _sum(place: int) -> Callable[[Copied], None]:
    """Change a byte of a round's sum."""

    def change(result: Copied) -> None:
        data = bytearray((result.directory / TOTAL).read_bytes())
        data[place] ^= 1
        (result.directory / TOTAL).write_bytes(data)

    return change


def _another_word(body: str) -> str:
    """An answer of which the first word is larger by one."""
    said = json.loads(body)
    said["words"][0] += 1
    return canonical(said).decode()


def _array(result: Copied) -> None:
    arrays = load_file(result.directory / ARRAYS)
    name = sorted(arrays)[0]
    arrays[name].reshape(-1)[0] = np.nextafter(arrays[name].reshape(-1)[0], 9.0)
    save_file(arrays, result.directory / ARRAYS)
    new = hashlib.sha256((result.directory / ARRAYS).read_bytes()).hexdigest()
    result.change(MANIFEST, "files", ARRAYS, to=lambda _: new)


def _exchanged(result: Copied) -> None:
    data = [(result.directory / name).read_bytes() for name in (FIRST, SECOND)]
    for name, other in zip((SECOND, FIRST), data, strict=True):
        (result.directory / name).write_bytes(other)


def _own_study(result: Copied) -> None:
    """Another study, signed by somebody with a key but no certificate."""
    proof = StudyProof.parse((result.directory / STUDY_FILE).read_bytes())
    study = proof.study.replace(b'"test-study"', b'"best-study"')
    signature = SigningKey.generate().sign(Label.STUDY, study)
    (result.directory / STUDY_FILE).write_bytes(StudyProof(study, signature, proof.analyst, proof.enrolments).to_bytes())


def _receipt_of(name: str, place: int, part: int) -> Callable[[Copied], None]:
    return lambda result: result.change(name, "receipts", place, part, to=flipped)


def _other_end(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


CHANGES: dict[str, tuple[Callable[[Copied], object], str, str]] = {
    "a digit of an array": (_array, ARRAYS, "but the releases give"),
    "a byte of the arrays' file": (
        lambda result: (result.directory / ARRAYS).write_bytes(_other_end((result.directory / ARRAYS).read_bytes())),
        MANIFEST,
        "not the file that the manifest names",
    ),
    "a digit of the summary": (
        lambda result: result.change(MANIFEST, "summary", "steps", to=lambda steps: steps + 1),
        MANIFEST,
        "summary.steps is 4, but the releases give 3",
    ),
    "the application": (
        lambda result: result.change(MANIFEST, "application", "missing_rule", to=lambda _: "drop"),
        MANIFEST,
        "application.missing_rule",
    ),
    "the study's name in the manifest": (
        lambda result: result.change(MANIFEST, "study", "name", to=lambda _: "another"), MANIFEST, "study.name",
    ),
    "one more field": (lambda result: result.change(MANIFEST, "study", to=lambda it: {**it, "x": 1}), MANIFEST, "study is"),
    "the study's signature": (
        lambda result: result.change(STUDY_FILE, "signature", to=flipped), STUDY_FILE, "analyst's signature does not hold",
    ),
    "the study": (
        lambda result: result.change(STUDY_FILE, "study", to=lambda text: text.replace('"test-study"', '"best-study"')),
        STUDY_FILE,
        "analyst's signature does not hold",
    ),
    "a study of one's own": (_own_study, STUDY_FILE, "analyst's signature does not hold"),
    "a member fewer": (_without_a_member, FIRST, "not a part of the roster"),
    "a member twice": (
        lambda result: result.change(STUDY_FILE, "roster", to=lambda roster: [*roster, roster[0]]),
        STUDY_FILE,
        "roster does not hold: The roster is not sorted",
    ),
    "a member's signature": (
        lambda result: result.change(STUDY_FILE, "roster", 1, 2, to=flipped), STUDY_FILE, "roster does not hold",
    ),
    "a member's certificate": (
        lambda result: result.change(STUDY_FILE, "roster", 1, 0, to=flipped), STUDY_FILE, "roster does not hold",
    ),
    "a receipt's signature": (_receipt_of(SECOND, 2, 1), SECOND, "receipt of c does not hold"),
    "a receipt": (
        lambda result: result.change(SECOND, "receipts", 1, 0, to=lambda text: text.replace('"number":', '"number":1')),
        SECOND,
        "receipt of b does not hold",
    ),
    "receipts in another order": (
        lambda result: result.change(SECOND, "receipts", to=lambda items: items[::-1]), SECOND, "receipt of a does not hold",
    ),
    "a receipt fewer": (
        lambda result: result.change(SECOND, "receipts", to=lambda items: items[:-1]), SECOND, "exactly one receipt",
    ),
    "the receipts of another round": (
        lambda result: result.change(SECOND, "receipts", to=lambda _: result.json(FIRST)["receipts"]),
        SECOND,
        "for another context",
    ),
    "the coordinator's word": (
        lambda result: result.change(SECOND, "countersigned", 1, to=flipped), SECOND, "coordinator's countersignature",
    ),
    "the coordinator's certificate": (
        lambda result: result.change(SECOND, "coordinator", to=lambda _: result.json(STUDY_FILE)["analyst"]),
        SECOND,
        "coordinator's countersignature",
    ),
    "the assignment": (
        lambda result: result.change(FIRST, "assignment", to=lambda text: text.replace('"deadline":', '"deadline":1')),
        FIRST,
        "for another context",
    ),
    "the cohort": (
        lambda result: result.change(
            FIRST, "assignment", to=lambda text: canonical({**(it := json.loads(text)), "cohort": it["cohort"][:-1]}).decode()
        ),
        FIRST,
        "exactly one receipt",
    ),
    "a consent": (lambda result: result.change(SECOND, "consents", 3, to=flipped), SECOND, "consent of d is not"),
    "a consent fewer": (
        lambda result: result.change(SECOND, "consents", to=lambda items: items[:-1]), SECOND, "exactly one consent",
    ),
    "a coefficient of the sum": (_sum(-9), SECOND, "another sum, or one that does not follow from it"),
    "a coefficient of the key share": (_sum(9), SECOND, "another sum, or one that does not follow from it"),
    "a shorter sum": (
        lambda result: (result.directory / TOTAL).write_bytes((result.directory / TOTAL).read_bytes()[:-1]),
        SECOND,
        "bytes instead of",
    ),
    "the sum of another round": (
        lambda result: (result.directory / TOTAL).write_bytes((result.directory / sum_file(3)).read_bytes()),
        SECOND,
        "another sum, or one that does not follow from it",
    ),
    "a sum that is gone": (lambda result: (result.directory / TOTAL).unlink(), TOTAL, "cannot be read"),
    "the coordinator's word on the sum": (
        lambda result: result.change(SECOND, "fixed", 1, to=flipped), SECOND, "signature under veilsum/6/sum is invalid",
    ),
    "the words on the sum of another round": (
        lambda result: result.change(SECOND, "fixed", to=lambda _: result.json(FIRST)["fixed"]),
        SECOND,
        "coordinator's word is about another sum",
    ),
    "an answer": (
        lambda result: result.change(SECOND, "checks", 2, to=_another_word), SECOND, "signature under veilsum/6/consent",
    ),
    "an answer fewer": (
        lambda result: result.change(SECOND, "checks", to=lambda items: items[:-1]), SECOND, "exactly one receipt, answer",
    ),
    "answers in another order": (
        lambda result: result.change(SECOND, "checks", to=lambda items: items[::-1]), SECOND, "challenge about another sum",
    ),
    "a signature under the answers": (
        lambda result: result.change(SECOND, "agreed", 3, to=flipped), SECOND, "signature under veilsum/6/consent",
    ),
    "signatures under the answers in another order": (
        lambda result: result.change(SECOND, "agreed", to=lambda items: items[::-1]),
        SECOND,
        "signature under veilsum/6/consent",
    ),
    "the digest of a release": (
        lambda result: result.change(MANIFEST, "releases", 1, "digest", to=flipped),
        SECOND,
        "not those whose digest the manifest names",
    ),
    "signatures of decryptors, as in former results": (
        lambda result: result.change(MANIFEST, "releases", 1, to=lambda it: {**it, "decrypted_by": {"a": "00", "b": "00"}}),
        SECOND,
        "It is malformed",
    ),
    "a release's label": (
        lambda result: result.change(MANIFEST, "releases", 1, "label", to=lambda _: "another"), SECOND, "different round",
    ),
    "the last release left out": (
        lambda result: result.change(MANIFEST, "releases", to=lambda items: items[:-1]),
        MANIFEST,
        "that the manifest does not name",
    ),
    "the first release left out": (
        lambda result: result.change(MANIFEST, "releases", to=lambda items: items[1:]), SECOND, "a release is missing",
    ),
    "a release twice": (
        lambda result: result.change(MANIFEST, "releases", to=lambda items: [*items, items[-1]]),
        round_file(4),
        "or repeated",
    ),
    "two releases exchanged": (
        _exchanged,
        FIRST,
        "different round or task",
    ),
    "no signatures, as software before 0.2 had it": (
        lambda result: result.change(MANIFEST, "releases", 0, to=lambda it: {**it, "decrypted_by": {}}),
        MANIFEST,
        "nothing can be proven",
    ),
    "no releases": (lambda result: result.change(MANIFEST, "releases", to=lambda _: []), MANIFEST, "nothing can be proven"),
    "a file that is gone": (lambda result: (result.directory / SECOND).unlink(), SECOND, "cannot be read"),
    "no manifest": (lambda result: (result.directory / MANIFEST).unlink(), MANIFEST, "cannot be read"),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_named(proven: Proven, tmp_path: Path, change: str) -> None:
    result = proven.copy(tmp_path / "result")
    work, where, match = CHANGES[change]
    work(result)
    fault = result.fault()
    assert (fault.where, match in fault.what) == (where, True), str(fault)
    assert not look_at(result.directory, result.authority, proven.study).verified or change == "a digit of an array"


def test_each_sum_is_opened_once(proven: Proven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method runs on the sums as they are opened; none is kept, for each is as large as a model."""
    opened = []
    honest = whole_sums.open_words

    def counted(total: Contribution, *rest: Any) -> Any:
        opened.append(total)
        return honest(total, *rest)

    monkeypatch.setattr(whole_sums, "open_words", counted)
    found = verify_result(proven.directory, proven.authority)
    assert len(opened) == len(found.releases) > 1
    assert not any(release.values.size for release in found.releases)


@pytest.mark.parametrize("change", ["a digit of an array", "a digit of the summary", "a byte of the arrays' file"])
@pytest.mark.parametrize("software", [False, True])
def test_what_was_signed_is_checked_before_what_was_made(proven: Proven, tmp_path: Path, change: str, software: bool) -> None:
    """Though the method runs while sums are checked: no result is called one of other software whose proof does not hold."""
    result = proven.copy(tmp_path / "result")
    CHANGES[change][0](result)
    result.change(round_file(4), "agreed", 0, to=flipped)
    if software:
        result.change(MANIFEST, "software", to=lambda _: "veilsum 9.9")
    fault = result.fault()
    assert (fault.where, type(fault)) == (round_file(4), ProofFault)


def test_the_last_sum_is_checked_though_the_method_fails_at_the_first(
    proven: Proven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = proven.copy(tmp_path / "result")

    def fails(*_: object, **named: object) -> None:
        raise HostileInput("It does not run.")

    monkeypatch.setattr("veilsum.verification.Replayed.sum", fails)
    assert result.fault().where == MANIFEST
    result.change(round_file(4), "consents", 0, to=flipped)
    assert result.fault().where == round_file(4)


def test_a_broadcast_that_the_releases_do_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator broadcast another model than the method makes: signed for by everyone, and found by running it again."""
    data = make_data(NAMES, 24, WIDTH)
    bed = make_bed(tmp_path, data)
    honest = HubFederation.sum

    def crafted(self: Any, label: str, broadcast: Any = None, **named: Any) -> Any:
        return honest(self, label, {name: array + (array == 0) for name, array in (broadcast or {}).items()}, **named)

    with monkeypatch.context() as patch:
        patch.setattr(HubFederation, "sum", crafted)
        study = FEDSGD(
            bed, parameters={"steps": 3, "gradient_clip": 0.5, "followed": False}
        )  # else sites refuse it themselves
        key = bytes(bed.local.run(study, bed.analyst, tmp_path / "results").study)
    directory = tmp_path / "results" / key.hex()
    names = lay_proof(bed.hub.journal, directory)
    with pytest.raises(ProofFault, match="broadcast to its cohort differs from what the method computes") as caught:
        verify_result(directory, bed.analyst.authority)
    assert caught.value.where in names


def test_the_result_of_another_study_is_not_the_one_that_was_asked_for(proven: Proven) -> None:
    """All of it is proven, and of a study that an analyst of this federation signed."""
    assert look_at(proven.directory, proven.authority, proven.study).verified is not None
    other = bytes([proven.study[0] ^ 1]) + proven.study[1:]
    look = look_at(proven.directory, proven.authority, other)
    assert look.verified is None
    assert "not of the one that was asked for" in look.fault
    with pytest.raises(ProofFault, match="another study's result"):
        verify_result(proven.directory, proven.authority, study=other)


def test_another_authority(proven: Proven, tmp_path: Path) -> None:
    other = make_bed(tmp_path, make_data("ab", 1, 1))
    with pytest.raises(ProofFault, match="different federation"):
        verify_result(proven.directory, other.analyst.authority)


def test_rounding_passes_only_when_it_is_let(proven: Proven, tmp_path: Path) -> None:
    """The last bit of a number: as another kind of processor may have it, or somebody who changes digits."""
    result = proven.copy(tmp_path / "result")
    _array(result)
    fault = result.fault()
    assert "--tolerance" in fault.advice
    found = verify_result(result.directory, result.authority, tolerance=1e-9)
    assert not found.comparison.exact
    assert 0 < found.comparison.largest < 1e-9
    assert look_at(result.directory, result.authority, proven.study).rounded
    result = proven.copy(tmp_path / "result")
    arrays = load_file(result.directory / ARRAYS)
    arrays[sorted(arrays)[0]].reshape(-1)[0] += 1e-4
    save_file(arrays, result.directory / ARRAYS)
    new = hashlib.sha256((result.directory / ARRAYS).read_bytes()).hexdigest()
    result.change(MANIFEST, "files", ARRAYS, to=lambda _: new)
    assert "--tolerance" not in result.fault().advice
    assert look_at(result.directory, result.authority, proven.study).fault


FILES = [MANIFEST, ARRAYS, STUDY_FILE, FIRST, SECOND, TOTAL, round_file(4)]


def names_other_software(result: Copied, proven: Proven) -> bool:
    """Whether nothing but the version that made the result differs, which nobody signed: it verifies, and that is told."""
    try:
        one, other = (json.loads((place / MANIFEST).read_bytes()) for place in (result.directory, proven.directory))
    except ValueError:
        return False
    told = one.get("software") if isinstance(one, dict) else None
    if told is None or told == other["software"] or one | {"software": ""} != other | {"software": ""}:
        return False
    if any((result.directory / name).read_bytes() != (proven.directory / name).read_bytes() for name in FILES[1:]):
        return False
    if re.fullmatch(r"veilsum [0-9.]+[a-z0-9.+-]*", told) is None:
        return False
    try:
        return verify_result(result.directory, result.authority).made_by == told
    except ProofFault:
        return False


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_any_byte_of_any_file(proven: Proven, tmp_path: Path, name: str, place: float, flip: int) -> None:
    result = proven.copy(tmp_path / "result")
    data = bytearray((result.directory / name).read_bytes())
    data[int(place * len(data))] ^= flip
    (result.directory / name).write_bytes(data)
    if names_other_software(result, proven):
        return
    fault = result.fault()
    assert fault.where in {*FILES, round_file(3)}
    assert fault.what


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, key))
    else:
        yield path


def _another(value: Any, seed: int) -> Any:
    """Another value of the same kind: a character of a text, a number beside a number."""
    if isinstance(value, bool) or value is None:
        return 1 if value is None else not value
    if isinstance(value, int | float):
        return value + 1
    if not value:
        return "0"
    place = random.Random(seed).randrange(len(value))
    return value[:place] + ("1" if value[place] != "1" else "2") + value[place + 1 :]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([name for name in FILES if name not in (ARRAYS, TOTAL)]), st.integers(0, 2**32))
def test_any_field_of_any_file(proven: Proven, tmp_path: Path, name: str, seed: int) -> None:
    """Each value replaced by another one, written as its writer would write it."""
    result = proven.copy(tmp_path / "result")
    leaves = list(_leaves(result.json(name)))
    result.change(name, *leaves[seed % len(leaves)], to=lambda value: _another(value, seed))
    if names_other_software(result, proven):
        return
    assert result.fault().what


def test_the_journal_keeps_no_second_copy_and_hands_out_nothing_else(proven: Proven) -> None:
    journal, key = proven.bed.hub.journal, bytes.fromhex(proven.directory.name)
    for name in ("proof/round-1.json", "proof/round-000009.json", "proof/../manifest.json", "proof/", "proof/study.json/x"):
        with pytest.raises(HostileInput):
            proof_file(journal.database, key, name)
    assert [entry.round for entry in release_entries(journal.database, key)] == [1, 2, 3, 4]


def test_a_study_of_older_software_has_no_proof(tmp_path: Path) -> None:
    """Releases without signatures, and a study whose roster was not kept: said so, and nothing is made up."""
    data = make_data(NAMES, 24, WIDTH)
    bed = make_bed(tmp_path, data)
    key = bytes(bed.local.run(STUDIES["statistics"](bed), bed.analyst, tmp_path / "results").study)
    database = bed.hub.journal.database
    with database.transaction() as connection:
        connection.execute(update(RELEASES).values(proof=None))
        connection.execute(update(STUDY_TABLE).values(roster=None))
    assert [entry.decrypted_by for entry in release_entries(bed.hub.journal.database, key)] == [{}]
    for name in (STUDY_FILE, FIRST):
        with pytest.raises(HostileInput, match="kept"):
            proof_file(bed.hub.journal.database, key, name)
    look = look_at(tmp_path / "results" / key.hex(), bed.analyst.authority, key)
    assert look.verified is None
    assert "no proof" in look.missing
    with database.transaction() as connection:
        connection.execute(delete(RELEASES))
    with pytest.raises(HostileInput, match="no such release"):
        proof_file(bed.hub.journal.database, key, FIRST)
    assert load_result(tmp_path / "results" / key.hex()).summary
