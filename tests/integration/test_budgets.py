"""Budgets at enrolment: what is charged, open and promised is held against each new study, at every site by its own ledger."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from sqlalchemy import inspect

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, open_test_site, schema_of
from support.hostile import Adversary, altered, make_adversary
from support.network import submit, wait_for, wired
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_deploy.cli.additions import asked_study
from veilsum_node.errors import Refusal, RefusalCode, StateError
from veilsum_node.identity import Label
from veilsum_node.phrases import rounded
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.checks import SiteCheck
from veilsum_participant.protocol import budgets
from veilsum_participant.protocol.approval import SignedStudy
from veilsum_participant.protocol.budgets import remaining
from veilsum_participant.protocol.membership import Membership
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.store.tables import METADATA, create_tables
from veilsum_privacy.ledger import Kind
from veilsum_privacy.study.study import Study, study_digest
from veilsum_proto import federation_pb2 as pb


def epsilon_of(study: Study, times: int, delta: float) -> float:
    """The oracle: one Gaussian mechanism in place of all releases (Balle and Wang 2018, theorem 8), four grid units of
    variance taken off for rounding, at nine tenths of delta."""
    mu = math.sqrt(times * sum(task.releases * float(task.grid**2 / (Fraction(task.variance) - 4)) for task in study.tasks))

    def excess(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - 0.9 * delta

    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))


def figures(bed: TestBed, name: str) -> dict[str, float]:
    """What the last refusal in a site's ledger says of its budget."""
    entry = bed.sites[name].ledger.entries(kind=Kind.REFUSAL)[-1]
    return {key: float.fromhex(value) for key, value in entry.detail["figures"].items()}


@pytest.mark.parametrize(("delta", "fit"), [(1e-10, 3), pytest.param(1e-5, 7, marks=pytest.mark.system)])
def test_studies_of_epsilon_one_fill_a_budget_of_three(tmp_path: Path, delta: float, fit: int) -> None:
    """The one that the budget does not bear is refused at every site: figures in each ledger, a fixed code outside.

    How many fit is what their composition says at the budget's own delta, not the sum of their epsilons.
    """
    bed = make_bed(tmp_path, make_data("abc"), budget=(3.0, delta))
    local = bed.local
    for _ in range(fit):
        local.run(bed.compile(make_request(schema_of(2))), bed.analyst, tmp_path / "results")
    study = bed.compile(make_request(schema_of(2)))
    assert epsilon_of(study, fit, delta) <= 3.0 < epsilon_of(study, fit + 1, delta)
    key = local.submit(study, bed.analyst)
    with pytest.raises(StateError):
        local.prepare(key)
    status = bed.hub.shown.status(key)
    assert status.phase == StudyPhase.FAILED.value
    refused = sorted((item.participant, item.code, item.round) for item in status.refusals)
    assert refused == [(name, "budget-exceeded", 0) for name in "abc"]
    for name, site in bed.sites.items():
        entries = site.ledger.entries(kind=Kind.REFUSAL)
        assert [(entry.study, entry.population, entry.dataset) for entry in entries] == [(key, DATASET, DATASET)]
        found = figures(bed, name)
        assert found["budget"] == 3.0
        assert found["reserved"] == pytest.approx(epsilon_of(study, fit, delta), rel=1e-6)
        assert found["after"] == pytest.approx(epsilon_of(study, fit + 1, delta), rel=1e-6)
        assert f"bring it to {rounded(found['after'])}." in entries[0].detail["message"]
        site.ledger.verify(authority=site.credentials.authority)
        assert len(site.ledger.entries(kind=Kind.CHARGE)) == fit


def test_a_copied_or_renamed_dataset_finds_the_same_budget(tmp_path: Path) -> None:
    """Datasets of one population share one budget, whatever they are called and wherever they lie."""
    bed = make_bed(tmp_path, make_data("abc"), budget=(1.2, 1e-5))
    for site in bed.sites.values():
        offered = site.config.datasets[DATASET]
        again = DatasetConfig(path=offered.path, population=DATASET)
        site.config = site.config.model_copy(update={"datasets": {DATASET: offered, "copy": again, "other": offered}})
    bed.local.run(bed.compile(make_request(schema_of(2))), bed.analyst, tmp_path / "results")
    copied = altered(bed.compile(make_request(schema_of(2))), dataset="copy")
    key = bed.local.submit(copied, bed.analyst)
    with pytest.raises(StateError):
        bed.local.prepare(key)
    assert {refusal.code for refusal in bed.hub.shown.status(key).refusals} == {"budget-exceeded"}
    assert bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)[0].population == DATASET
    assert figures(bed, "a")["after"] == pytest.approx(epsilon_of(copied, 2, 1e-5), rel=1e-6)
    other = altered(copied, dataset="other", nonce="0" * 32)  # a population of its own, without a budget
    key = bed.local.submit(other, bed.analyst)
    with pytest.raises(StateError):
        bed.local.prepare(key)
    assert "has no budget" in bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)[1].detail["message"]


def enrol(bed: TestBed, name: str, study: Study, membership: Membership | None = None) -> bytes:
    """Let one site enrol; returns the study's digest."""
    data = study.to_bytes()
    key = study_digest(data)
    signature = bed.analyst.signing_key.sign(Label.STUDY, data)
    found = (membership or Membership(bed.sites[name])).on_study(
        key, SignedStudy(data, signature, bed.analyst.identity.certificate, "coordinator")
    )
    assert found is not None
    return key


@pytest.fixture
def tight(tmp_path: Path) -> TestBed:
    """Sites whose budget bears one study of epsilon 1, not two; an analyst may ask as often as a test does."""
    return make_bed(tmp_path, make_data("abc"), budget=(1.2, 1e-5), max_budget_answers=1000)


def test_what_an_enrolled_study_may_ask_for_is_taken(tight: TestBed) -> None:
    """Nothing is charged yet, but a second study of that size would not fit beside the first; once it is over it does."""
    first, second = (tight.compile(make_request(schema_of(2))) for _ in range(2))
    key = enrol(tight, "a", first)
    with pytest.raises(Refusal) as caught:
        enrol(tight, "a", second)
    assert caught.value.codes == (RefusalCode.BUDGET,)
    assert "1 that other studies here may still ask for" in caught.value.message
    membership = Membership(tight.sites["a"])
    membership.leave(key, "ended")
    enrol(tight, "a", second, membership)


def test_a_study_that_expires_gives_its_promise_back(tight: TestBed) -> None:
    enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    tight.clock.now += 24 * 3600
    Membership(tight.sites["a"]).expire()
    enrol(tight, "a", tight.compile(make_request(schema_of(2))))


def test_a_release_is_counted_once_while_it_is_open_and_after(tmp_path: Path) -> None:
    """A study's declared releases, less those open and charged: reserving or charging one does not change what is taken."""
    attack = make_adversary(tmp_path)
    attack.use(altered(attack.study, task__releases=3, nonce="0" * 32))
    site = attack.bed.sites["a"]

    def taken() -> tuple[int, float]:
        with site.database.transaction() as connection:
            left = remaining(connection, attack.key, attack.study)
            return left.total(), site.ledger.headroom(DATASET, left, connection).after

    attack.set_up()
    after = taken()[1]
    seen = [taken()]
    attack.collect()
    seen.append(taken())
    attack.consents()
    seen.append(taken())
    attack.collect(number=2, attempt=2)
    attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 2, 2)
    seen.append(taken())
    assert [left for left, _ in seen] == [3, 2, 2, 2]
    assert all(total == pytest.approx(after, rel=1e-12) for _, total in seen)


def test_enrolments_that_race_for_the_last_of_a_budget(tight: TestBed) -> None:
    """Two studies that fit only one at a time come at once, from two openings of the site's file: one gets in, every time."""
    site = tight.sites["a"]
    openings = [Membership(open_test_site(site.config, tight.clock, SYSTEM_RANDOM)) for _ in range(2)]
    for number in range(20):
        studies = [tight.compile(make_request(schema_of(2))) for _ in openings]
        start = threading.Barrier(2)
        outcomes: list[bytes | Refusal] = []

        def run(membership: Membership, study: Study, start: threading.Barrier = start, into: list = outcomes) -> None:  # type: ignore[type-arg]
            start.wait()
            try:
                into.append(enrol(tight, "a", study, membership))
            except Refusal as refusal:
                into.append(refusal)

        threads = [threading.Thread(target=run, args=pair) for pair in zip(openings, studies, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [item for item in outcomes if isinstance(item, Refusal)]
        assert [item.codes for item in refused] == [(RefusalCode.BUDGET,)], number
        (enrolled,) = (item for item in outcomes if isinstance(item, bytes))
        openings[0].leave(enrolled, "ended")
    site.ledger.verify(authority=site.credentials.authority)
    for membership in openings:
        membership._site.database.close()


def test_a_refused_study_is_recorded_once_with_every_reason(tight: TestBed) -> None:
    """The coordinator may ask as often as it likes; the ledger names all rules of the policy, with figures and advice."""
    site = tight.sites["a"]
    policy = site.config.policy.model_copy(update={"min_cohort": 4, "max_epsilon": 0.5, "units": ("subject",)})
    site.config = site.config.model_copy(update={"policy": policy})
    study = altered(tight.compile(make_request(schema_of(2))), task__releases=2, privacy__epsilon=2.0)
    for _ in range(3):
        with pytest.raises(Refusal) as caught:
            enrol(tight, "a", study)
    expected = (RefusalCode.COHORT_SMALL, RefusalCode.EPSILON, RefusalCode.UNIT)
    assert caught.value.codes == expected
    (entry,) = site.ledger.entries(kind=Kind.REFUSAL)
    assert [reason["code"] for reason in entry.detail["reasons"]] == [code.value for code in expected]
    assert all(reason["message"] for reason in entry.detail["reasons"])
    assert entry.detail["reasons"][1]["advice"]
    assert figures(tight, "a")["after"] == pytest.approx(epsilon_of(study, 1, 1e-5), rel=1e-6)
    site.ledger.verify(authority=site.credentials.authority)


def test_every_code_reaches_the_coordinator_over_the_wire(tmp_path: Path) -> None:
    """Codes alone, each once, in the list's order; the figures stay in the sites' ledgers."""
    bed = make_bed(tmp_path, make_data("ab"), budget=(0.5, 1e-5), max_epsilon=0.75, units=("subject",))
    study = bed.compile(make_request(schema_of(2)))
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed))
        key = submit(bed, stub, study)
        machine = server.hub.studies[key].machine
        wait_for(lambda: machine.phase.over, "the study's end")
        shown = stub.Show(pb.ShowRequest(study=key)).refusals
    codes = ["epsilon-too-large", "unit-not-accepted"]
    for name in "ab":
        assert [item.code for item in shown if item.participant == name] == codes
        (entry,) = bed.sites[name].ledger.entries(kind=Kind.REFUSAL)
        assert [reason["code"] for reason in entry.detail["reasons"]] == codes


def test_refusals_cannot_fill_the_disk(tight: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's refusals are bounded in the ledger, of studies and of rounds together."""
    monkeypatch.setattr(budgets, "MOST_REFUSALS", 5)
    site = tight.sites["a"]
    tight.clock.now += 2 * 86_400
    enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    for _ in range(8):
        with pytest.raises(Refusal):
            enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    assert len(site.ledger.entries(kind=Kind.REFUSAL)) == 5
    tight.clock.now += 86_400
    with pytest.raises(Refusal):
        enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    assert len(site.ledger.entries(kind=Kind.REFUSAL)) == 6
    tight.clock.now -= 2 * 86_400  # it was wrong: what it dated ahead is of no day that may be today
    for count in (7, 8, 9, 10, 11, 11):
        with pytest.raises(Refusal):
            enrol(tight, "a", tight.compile(make_request(schema_of(2))))
        assert len(site.ledger.entries(kind=Kind.REFUSAL)) == count


def test_studies_without_noise_need_an_unlimited_budget(tmp_path: Path) -> None:
    bed = make_bed(tmp_path / "bounded", make_data("abc"), budget=(1000.0, 1e-5))
    with pytest.raises(Refusal) as caught:
        enrol(bed, "a", bed.compile(make_request(schema_of(2), epsilon=None)))
    assert caught.value.codes == (RefusalCode.BUDGET,)
    assert bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)[0].detail["figures"]["after"] is None
    free = make_bed(tmp_path / "unlimited", make_data("abc"))
    enrol(free, "a", free.compile(make_request(schema_of(2), epsilon=None)))


def test_the_operators_check_sees_what_enrolment_sees(tight: TestBed, tmp_path: Path) -> None:
    """Read only, beside the store: charged, promised, and what a further study would be told, in the same words."""
    site = tight.sites["a"]
    before = SiteCheck(site.config, tight.clock).run()
    request = make_request(schema_of(2)).model_copy(update={"participants": ("a", "b", "c")})
    assert [
        item.status for item in SiteCheck(site.config, tight.clock, study=asked_study(request)).run() if item.check == "study"
    ] == ["ok"]
    enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    found = {item.check: item for item in SiteCheck(site.config, tight.clock, study=asked_study(request)).run()}
    with pytest.raises(Refusal) as caught:
        enrol(tight, "a", tight.compile(make_request(schema_of(2))))
    assert found["study"].detail == f"budget-exceeded: {caught.value.message}"
    assert found["budget records"].detail.endswith("0 spent and set aside, 1 if enrolled studies use all that they may")
    (earlier,) = (item for item in before if item.check == "budget records")
    assert earlier.detail.endswith("0 spent and set aside, 0 if enrolled studies use all that they may")
    free = make_bed(tmp_path / "unlimited", make_data("abc"))
    enrol(free, "a", free.compile(make_request(schema_of(2), epsilon=None)))
    (shown,) = (item for item in SiteCheck(free.sites["a"].config, free.clock).run() if item.check == "budget records")
    assert shown.detail == "unlimited; 0 spent and set aside, infinite if enrolled studies use all that they may"


# -- attempts --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path, max_attempts=3)
    adversary.use(altered(adversary.study, task__releases=2, nonce="0" * 32))
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def test_attempts_of_a_round_are_bounded(attack: Adversary) -> None:
    """A coordinator that lets every attempt fail grows no ledger without end; the next round has attempts of its own."""
    for attempt in (1, 2, 3):
        assert attack.assign("a", attack.assignment(attempt=attempt)).call == "upload"
    entries = len(attack.bed.sites["a"].ledger.entries())
    for attempt in (4, 5):
        assert attack.assign("a", attack.assignment(attempt=attempt)).refused is RefusalCode.ATTEMPTS
    assert len(attack.bed.sites["a"].ledger.entries()) == entries
    assert attack.assign("a", attack.assignments[3]).call == "upload"  # the last one, asked for again, is still answered
    assert attack.assign("a", attack.assignment(number=2, attempt=6)).call == "upload"


def test_rounds_without_end_are_bounded_too(attack: Adversary) -> None:
    """New rounds do not help it: as many attempts as the declared releases could need, and no more."""
    for attempt in range(1, 7):
        assert attack.assign("a", attack.assignment(number=attempt, attempt=attempt)).call == "upload"
    assert attack.assign("a", attack.assignment(number=7, attempt=7)).refused is RefusalCode.ATTEMPTS
    kinds = attack.kinds("a")
    assert (kinds["reserve"], kinds["free"], kinds["refusal"]) == (6, 5, 0)


# -- the store -------------------------------------------------------------------------------------------------------------


def test_tables_without_a_version_are_refused_by_name(tmp_path: Path) -> None:
    """No released version made such; nothing in them changes."""
    site = make_adversary(tmp_path).bed.sites["a"]
    with site.database.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE participant_version")
        connection.exec_driver_sql("DROP TABLE participant_answer")
    with pytest.raises(StateError, match="'none', which no released version has"):
        create_tables(site.database)
    with site.database.reading() as connection:
        assert "participant_answer" not in inspect(connection).get_table_names()


def test_a_fresh_store_has_the_tables_that_queries_name(tmp_path: Path) -> None:
    site = make_adversary(tmp_path).bed.sites["a"]
    with site.database.engine.connect() as connection:
        for table in METADATA.tables.values():
            columns = connection.exec_driver_sql(f"PRAGMA table_info({table.name})").mappings().all()
            found = {row["name"]: (bool(row["notnull"]), bool(row["pk"])) for row in columns}
            assert found == {item.name: (not item.nullable, item.primary_key) for item in table.columns}, table.name
