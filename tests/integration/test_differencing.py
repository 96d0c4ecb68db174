"""Sums without noise, or of one cohort only, over all studies of a population: no two may show a few sites by subtraction."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.checking import lay_out_as_before
from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Role
from veilsum_participant.checks import Check, CheckOutcome, SiteCheck
from veilsum_participant.protocol.endorsement import recover_receipts, vouch
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.site import Site
from veilsum_privacy.backup.backup import BackupOwner, back_up
from veilsum_privacy.backup.restore import restore
from veilsum_privacy.backup.restored import put_mark
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

ABCD = ("a", "b", "c", "d")


class Scene:
    """Honest sites, and a coordinator and an analyst who choose studies and cohorts."""

    def __init__(self, directory: Path, names: Sequence[str] = ABCD, **policy: Any) -> None:
        bed = make_bed(directory, make_data(names), **{"min_cohort": 3, "budget": (None, 1e-5), **policy})
        self.attack = Adversary(bed)
        self._count = 0

    @property
    def sites(self) -> dict[str, Site]:
        return self.attack.bed.sites

    def study(self, noise: str = "none", difference: str = "strict", dataset: str = DATASET) -> Study:
        """Another study of a few releases: exact, or with noise."""
        self._count += 1
        epsilon = None if noise == "none" else 50.0
        compiled = self.attack.bed.compile(make_request(schema_of(2), epsilon=epsilon and 5.0, min_cohort=2))
        changes: dict[str, Any] = {
            "privacy__cohort_difference": difference,
            "nonce": f"{self._count:032x}",
            "dataset": dataset,
        }
        changes["privacy__epsilon"] = epsilon
        return altered(compiled, task__releases=3, **changes)

    def begin(self, study: Study) -> None:
        """All enrol and exchange keys."""
        self.attack.use(study)
        self.attack.set_up()

    def release(self, cohort: Sequence[str], number: int = 1) -> None:
        """A round of the present study, opened."""
        self.attack.collect(cohort, number, number)
        self.attack.finish(number, number)

    def asked(self, cohort: Sequence[str], number: int = 1) -> dict[str, RefusalCode | str]:
        """What each member says to an assignment."""
        assignment = self.attack.assignment(cohort, number, number)
        said = {name: self.attack.assign(name, assignment) for name in cohort}
        return {name: item.refused if item.call == "refuse" else item.call for name, item in said.items()}


def refused(cohort: Sequence[str]) -> dict[str, RefusalCode | str]:
    return dict.fromkeys(cohort, RefusalCode.COHORT_CHANGED)


def uploaded(cohort: Sequence[str]) -> dict[str, RefusalCode | str]:
    return dict.fromkeys(cohort, "upload")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.attack.check_ledgers()


def test_two_exact_studies_do_not_show_the_site_that_one_of_them_lacks(scene: Scene) -> None:
    """abcd, then abc: the difference would be d's own vector. Nothing is reserved, and the same cohort goes on."""
    scene.begin(scene.study())
    scene.release(ABCD)
    scene.begin(scene.study())
    before = {name: scene.attack.kinds(name) for name in "abc"}
    assert scene.asked("abc") == refused("abc")
    assert {name: scene.attack.kinds(name) for name in "abc"} == before
    scene.release(ABCD, 2)


def test_a_larger_cohort_is_held_to_a_smaller_one_as_well(scene: Scene) -> None:
    """d, whose vector the difference would be, was in no sum; those who were in one protect it."""
    scene.begin(scene.study())
    scene.release("abc")
    scene.begin(scene.study())
    assert scene.asked(ABCD) == {**refused("abc"), "d": "upload"}


@pytest.mark.parametrize(("min_cohort", "answer"), [(2, uploaded("abcd")), (3, refused("abcd"))])
def test_cohorts_that_differ_in_as_many_as_a_cohort_needs(
    tmp_path: Path, min_cohort: int, answer: dict[str, RefusalCode | str]
) -> None:
    scene = Scene(tmp_path, "abcdef", min_cohort=min_cohort)
    scene.begin(scene.study())
    scene.release("abcdef")
    scene.begin(scene.study())
    assert scene.asked(ABCD) == answer


def test_one_site_in_the_place_of_another_is_a_difference_of_two(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "abcde")
    scene.begin(scene.study())
    scene.release(ABCD)
    scene.begin(scene.study())
    assert scene.asked("abce") == {**refused("abc"), "e": "upload"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("first", "second"), [("none", "distributed"), ("distributed", "none"), ("distributed", "distributed")]
)
def test_exact_and_strict_sums_are_held_to_one_another(scene: Scene, first: str, second: str) -> None:
    scene.begin(scene.study(first))
    scene.release(ABCD)
    scene.begin(scene.study(second))
    assert scene.asked("abc") == refused("abc")


def test_studies_that_allow_differing_cohorts_are_not_held(scene: Scene) -> None:
    """Each of their sums has noise of its own, and was paid for; nor do they bind what comes after them."""
    for cohort in (ABCD, ("a", "b", "c"), ("b", "c", "d")):
        scene.begin(scene.study("distributed", "allowed"))
        scene.release(cohort)
    scene.begin(scene.study())
    scene.release(("a", "b", "d"))
    scene.begin(scene.study("distributed", "allowed"))
    scene.release(ABCD)


def test_what_was_uploaded_before_another_sum_was_paid_gets_no_consent(scene: Scene) -> None:
    """Both assignments came while nothing was remembered: the consent decides, in the transaction that charges."""
    first, second = scene.study(), scene.study()
    scene.begin(first)
    scene.attack.collect(ABCD)
    kept = scene.attack.payloads, scene.attack.assignments
    scene.begin(second)
    scene.attack.collect("abc")
    asked = scene.attack.payloads, scene.attack.assignments
    scene.attack.use(first)
    scene.attack.payloads, scene.attack.assignments = kept
    scene.attack.finish()
    scene.attack.use(second)
    scene.attack.payloads, scene.attack.assignments = asked
    answers = scene.attack.answers()
    for name in "abc":
        assert scene.attack.ask_consent(name, answers).refused is RefusalCode.COHORT_CHANGED
        assert scene.attack.charges(name) == 1


@pytest.mark.parametrize("end", [True, False])
def test_cohorts_are_remembered_across_restarts_and_after_the_study(scene: Scene, *, end: bool) -> None:
    scene.begin(scene.study())
    scene.release(ABCD)
    for name in ABCD:
        if end:
            assert scene.attack.tell(name, pb.DIRECTIVE_KIND_END).call == "confirm"
        scene.attack.reopen(name)
    scene.begin(scene.study())
    assert scene.asked("abc") == refused("abc")
    scene.release(ABCD, 2)


@pytest.mark.parametrize(("population", "answer"), [("people", refused("abc")), (None, uploaded("abc"))])
def test_all_datasets_of_a_population_count(
    scene: Scene, population: str | None, answer: dict[str, RefusalCode | str]
) -> None:
    """The same people under another dataset's name; also where the operator says only later that they are the same."""
    scene.begin(scene.study())
    scene.release(ABCD)
    for site in scene.sites.values():
        (dataset,) = site.config.datasets.values()
        datasets = {
            DATASET: dataset.model_copy(update={"population": population}),
            "copy": DatasetConfig(most_records=20, path=dataset.path, population=population),
        }
        site.config = site.config.model_copy(update={"datasets": datasets})
        with site.database.engine.begin() as connection:
            site.ledger.set_budget(
                connection, population or "copy", None, 1e-5, reason="test", operator="test", adaptive="gaussian"
            )
    scene.begin(scene.study(dataset="copy"))
    assert scene.asked("abc") == answer


# -- before anyone enrols --------------------------------------------------------------------------------------------------


def inviting(study: Study, names: Sequence[str]) -> Study:
    return altered(study, participants=sorted(names), weights=dict.fromkeys(names, 1))


def test_a_study_whose_sites_can_form_no_cohort_is_refused_at_once(scene: Scene) -> None:
    scene.begin(scene.study())
    scene.release(ABCD)
    for names, code in (("abc", RefusalCode.COHORT_CHANGED), (ABCD, None)):
        scene.attack.use(inviting(scene.study(), names))
        for name in names:
            said = scene.attack.enrol(name)
            assert (said.refused if said.call == "refuse" else None) == code
    scene.attack.use(inviting(scene.study("distributed", "allowed"), "abc"))
    assert scene.attack.enrol("a").call == "enrol"


def set_policy(site: Site, **changes: Any) -> None:
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("change", "code"), [({"analysts": ("bob",)}, RefusalCode.ANALYST), ({"methods": ()}, RefusalCode.METHOD)]
)
def test_who_may_not_ask_hears_nothing_of_earlier_cohorts(scene: Scene, change: dict[str, Any], code: RefusalCode) -> None:
    """The sites abc can form no cohort beside abcd, and that there was one is nothing for this analyst, or for this study."""
    scene.begin(scene.study())
    scene.release(ABCD)
    set_policy(scene.sites["a"], **change)
    for names in (ABCD, "abc"):
        scene.attack.use(inviting(scene.study(), names))
        assert scene.attack.enrol("a").codes == (code,)


def test_earlier_cohorts_are_not_enumerated_by_refusals(scene: Scene) -> None:
    """Whoever may ask hears of so many sets of sites a day, and of any other the same whatever there was."""
    set_policy(scene.sites["a"], max_budget_answers=3)
    scene.begin(scene.study())
    scene.release(ABCD)

    def heard(names: Sequence[str]) -> RefusalCode | str:
        scene.attack.use(inviting(scene.study(), names))
        said = scene.attack.enrol("a")
        return said.refused if said.call == "refuse" else said.call

    assert [heard(names) for names in ("abc", "abd", ABCD)] == [RefusalCode.COHORT_CHANGED] * 2 + ["enrol"]
    assert [heard(names) for names in ("acd", "acd")] == [RefusalCode.ASKED] * 2
    assert [heard(names) for names in (ABCD, "abc") * 3] == ["enrol", RefusalCode.COHORT_CHANGED] * 3


def test_who_is_not_accepted_hears_nothing_else_of_the_site(scene: Scene) -> None:
    """Neither its policy, nor what it offers, has spent or did before; nor whether its ledger verifies."""
    site = scene.sites["a"]
    scene.begin(scene.study())
    scene.release(ABCD)
    set_policy(site, analysts=("bob",), min_cohort=5, max_epsilon=0.01, disclosures=(), approval="manual")
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, DATASET, 0.001, 1e-5, reason="test", operator="test", adaptive="gaussian")
    asked = [
        scene.study(),
        inviting(scene.study(), "abc"),
        scene.study("distributed", "allowed"),
        scene.study(dataset="elsewhere"),
        altered(scene.study(), method="fedcgs", privacy__unit="subject", weights={**dict.fromkeys("bcd", 1), "a": 2}),
        altered(scene.study("local"), task__variance=1),
        altered(scene.study(), task__disclosure="per-site"),
    ]

    def heard() -> list[tuple[RefusalCode, ...]]:
        found = []
        for study in asked:
            scene.attack.use(altered(study, nonce=f"{len(asked)}{study.nonce[1:]}"))
            found.append(scene.attack.enrol("a").codes)
        return found

    only = [(RefusalCode.ANALYST,)] * len(asked)
    assert heard() == only
    site.ledger_fault = "of a test"
    assert heard() == only
    site.ledger_fault = ""
    with site.database.transaction() as connection:
        put_mark(connection, site.clock(), site.ledger.head(connection))
    assert heard() == only


def test_a_study_that_may_have_an_earlier_cohort_is_let_in(tmp_path: Path) -> None:
    """All five differ from abcd in one; but without e, whom nobody has to invite, they are abcd."""
    scene = Scene(tmp_path, "abcde")
    scene.begin(scene.study())
    scene.release(ABCD)
    scene.attack.use(scene.study())
    assert scene.attack.enrol("a").call == "enrol"


# -- after a backup --------------------------------------------------------------------------------------------------------


def checked(site: Site) -> list[Check]:
    found = SiteCheck(site.config, site.clock).run()
    return [item for item in found if item.check == f"cohorts {DATASET}"]


def test_a_restored_backup_knows_its_cohorts(scene: Scene, tmp_path: Path) -> None:
    scene.begin(scene.study())
    scene.release(ABCD)
    site = scene.sites["a"]
    party = BackupOwner(Role.PARTICIPANT, site.config.state, site.config.identity)
    back_up(party, tmp_path / "a.backup", software="test")
    site.database.close()
    site.config.state.unlink()
    restore(tmp_path / "a.backup", party)
    scene.attack.reopen("a")
    scene.attack.bed.clock.now += 60
    scene.sites["b"].ledger.checkpoint()
    assert vouch(scene.sites["a"], scene.sites["b"].ledger) == ""
    (check,) = checked(scene.sites["a"])
    assert (check.status, "a, b, c, d" in check.detail) == (CheckOutcome.OK, True)
    scene.begin(scene.study())
    assert scene.asked("abc") == refused("abc")


@pytest.mark.parametrize(
    ("vouched", "noise"),
    [
        ("peer", "none"),
        ("coordinator", "distributed"),
        pytest.param("peer", "distributed", marks=pytest.mark.system),
        pytest.param("coordinator", "none", marks=pytest.mark.system),
    ],
)
def test_what_a_backup_lacks_is_closed_until_a_peer_shows_who_took_part(
    scene: Scene, tmp_path: Path, vouched: str, noise: str
) -> None:
    """The mirror shows that there was a sum, and not of whom; receipts that a peer kept show that."""
    site = scene.sites["a"]
    party = BackupOwner(Role.PARTICIPANT, site.config.state, site.config.identity)
    back_up(party, tmp_path / "a.backup", software="test")
    scene.begin(scene.study(noise))
    scene.release(ABCD)
    receipt = scene.attack.payloads["a", 1].receipt
    site.ledger.checkpoint()
    site.database.close()
    restore(tmp_path / "a.backup", party, force=True)
    scene.attack.reopen("a")
    site, peer = scene.sites["a"], scene.sites["b"].ledger
    item = pb.MirroredReceipt(receipt=pb.SignedReceipt(body=receipt.body, signature=receipt.signature), number=5)
    channel = scene.attack.channels["a"]
    channel.objects = {pb.OBJECT_KIND_MIRRORED: pb.MirroredObject(receipts=[item]).SerializeToString()}
    if vouched == "coordinator":
        assert len(scene.attack.cores["a"].catch_up(channel)) == 1
        scene.attack.bed.clock.now += 60
        peer.checkpoint()
        assert vouch(site, peer) == ""  # somebody vouched; of that sum nobody has shown the cohort
        (check,) = checked(site)
        assert check.status is CheckOutcome.WARNING
        scene.attack.use(scene.study())
        assert scene.attack.enrol("a").refused is RefusalCode.COHORT_CHANGED
        scene.attack.use(scene.study("distributed", "allowed"))
        assert scene.attack.enrol("a").call == "enrol"
    shown = peer.receipts(participant="a")
    recover_receipts(
        site, shown, lambda entry: peer.receipts(entry=entry)[:-1]
    )  # one is kept back: who was in it is not known
    scene.attack.bed.clock.now += 60
    peer.checkpoint()
    assert vouch(site, peer) == ""
    scene.attack.use(scene.study())
    assert scene.attack.enrol("a").refused is RefusalCode.COHORT_CHANGED
    recover_receipts(site, shown, lambda entry: peer.receipts(entry=entry))
    # of the study nothing is known, so neither whether it had sums of one vector a site, nor by which weights
    assert [item.status for item in checked(site)] == [CheckOutcome.OK, CheckOutcome.WARNING]
    scene.begin(scene.study())
    assert scene.asked("abc") == refused("abc")
    scene.release(ABCD, 2)
    site.ledger.verify(authority=site.credentials.authority)


def test_a_state_of_an_earlier_version_brings_its_cohorts(scene: Scene) -> None:
    """Each charge's receipts say who was in the sum, and with which key."""
    scene.begin(scene.study())
    scene.release(ABCD)
    for name in ABCD:
        site = scene.sites[name]
        site.database.close()
        with closing(sqlite3.connect(site.config.state)) as raw, raw:
            lay_out_as_before(raw)
            raw.execute("DROP TABLE participant_cohort")
            raw.execute("DROP TABLE participant_answer")
            raw.execute("ALTER TABLE participant_study ADD COLUMN strict_cohort TEXT")
            raw.execute("ALTER TABLE participant_study DROP COLUMN shares")
            raw.execute("ALTER TABLE participant_kept DROP COLUMN origin")
            raw.execute("UPDATE participant_study SET strict_cohort = ?", (json.dumps(ABCD),))
            raw.execute("UPDATE participant_version SET version_num = '0004'")
        scene.attack.reopen(name)
    scene.begin(scene.study())
    assert scene.asked("abc") == refused("abc")
    assert scene.asked(ABCD, 2) == uploaded(ABCD)


# -- what a site counts as, where it has more records than max_records --------------------------------------------------------


def counting(scene: Scene, records: int) -> Study:
    """Another exact study, by whose schema a site counts as so many records at most."""
    return altered(scene.study(), data__max_records=records)


def state_sizes(scene: Scene, records: int) -> None:
    for site in scene.sites.values():
        own = site.config.datasets[DATASET].model_copy(update={"most_records": records})
        site.config = site.config.model_copy(update={"datasets": {DATASET: own}})


def test_a_site_that_states_no_size_gives_no_exact_sums(scene: Scene) -> None:
    """Of two sums, whether by ``max_records`` or by task one fits and one does not, the difference would be its own vector."""
    state_sizes(scene, 0)
    for study in (scene.study(), counting(scene, 2**20)):
        scene.attack.use(study)
        for name in ABCD:
            before = scene.attack.kinds(name)
            assert scene.attack.enrol(name).refused is RefusalCode.DISCLOSURE
            assert Counter(scene.attack.kinds(name)) - Counter(before) == Counter({"refusal": 1})
    scene.attack.use(altered(scene.study("local"), data__max_records=19))
    assert scene.attack.enrol("a").call == "enrol"


def test_a_site_that_cannot_compute_gives_no_exact_sum(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether by a disk's fault, or by a deadline that its reader does not meet: the sum without its records, beside one with
    them, would show its own vector. With noise it contributes all the same, and pays."""
    site = scene.sites["a"]
    scene.begin(scene.study())
    scene.release(ABCD)

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(site, "batches", broken)
        scene.begin(scene.study())
        before = scene.attack.kinds("a")
        assert scene.asked(ABCD) == {**uploaded("bcd"), "a": RefusalCode.INTERNAL}
        assert Counter(scene.attack.kinds("a")) - Counter(before) == Counter({"reserve": 1, "free": 1})
        row = scene.attack.attempt_row("a")
        assert row is not None
        assert (row.state, row.payload, row.words) == ("tombstone", None, None)
        scene.begin(scene.study("distributed"))
        assert scene.asked(ABCD) == uploaded(ABCD)
    scene.begin(scene.study())
    scene.release(ABCD)


def test_what_no_site_exceeds_may_differ(scene: Scene) -> None:
    """By the word of each site, which no record decides."""
    state_sizes(scene, 19)
    scene.begin(scene.study())
    scene.release(ABCD)
    scene.begin(counting(scene, 19))
    scene.release(ABCD)
    scene.attack.use(counting(scene, 18))
    assert scene.attack.enrol("a").refused is RefusalCode.DISCLOSURE


def test_an_exact_sum_counts_all_records_that_a_site_may_hold(scene: Scene) -> None:
    """Else two tasks, of which one does not fit and one does, differ by the site's own vector, whatever max_records is."""
    state_sizes(scene, 20)
    scene.attack.use(counting(scene, 19))
    assert scene.attack.enrol("a").refused is RefusalCode.DISCLOSURE
    scene.attack.use(altered(scene.study("local", "allowed"), data__max_records=19))
    assert scene.attack.enrol("a").call == "enrol"
    scene.begin(counting(scene, 20))
    scene.release(ABCD)


def test_with_noise_max_records_may_differ(scene: Scene) -> None:
    for noise, difference in (("local", "allowed"), ("local", "strict")):
        for records in (1000, 19):
            scene.begin(altered(scene.study(noise, difference), data__max_records=records))
            scene.release(ABCD)


def test_a_whole_site_is_no_unit_without_noise(tmp_path: Path) -> None:
    """Its vector would be scaled down as one, by a bound that the analyst chooses."""
    scene = Scene(tmp_path, units=("record", "site"))
    scene.attack.use(altered(scene.study(), privacy__unit="site"))
    assert scene.attack.enrol("a").refused is RefusalCode.UNIT
