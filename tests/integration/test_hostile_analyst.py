"""An accepted analyst, with an honest coordinator or a hostile one, asks for what a site can only do for some records.

Whatever is asked, a site over no record, over one, and over a data set with and without one does the same: it refuses for what
stands in the study or the broadcast, or it contributes and pays.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analyst.direct import run_direct
from analyst.examples import unchanged
from analyst.judging import Judge
from analyst.worlds import SITES, World

from support.durable_studies import ODDS
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, Said, encoded
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_participant.data import local as local_module
from veilsum_participant.protocol import contributions
from veilsum_privacy.computation import contribution, rehearsal
from veilsum_privacy.computation.contribution import SitePart, SitePlace, contribute
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.ledger import Kind
from veilsum_privacy.securesum.context import encode_broadcast
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import DerivedTask, Records
from veilsum_privacy.tasks.designs import LARGEST_ENTRY
from veilsum_privacy.tasks.features import CENTRE
from veilsum_privacy.tasks.hazard_step import HAZARDS, PERIODS
from veilsum_privacy.tasks.newton_step import POINT, WHITEN
from veilsum_privacy.training.arrays import MODEL

SOMEBODY = np.array([[0.25, -0.5, 1.0]]), np.array([1])
NOBODY = np.zeros((0, 3)), np.zeros(0, dtype=np.int64)


def changed(study: Study, **parameters: Any) -> bytes:
    """The study's bytes with parameters of its first task changed; it need not be one that parses."""
    value = parse_canonical(study.to_bytes(), what="study")
    value["tasks"][0]["parameters"] |= parameters
    return canonical(value)


class Beside:
    """The same question to one site over nothing, over somebody's record, and over others without and with it."""

    def __init__(self, directory: Path) -> None:
        first = World(directory / "0")
        worlds = self.worlds = [first, *(World(directory / str(index), first.bed) for index in range(1, 4))]
        rng = np.random.default_rng(0)
        others = rng.uniform(-1, 1, (20, 3)), rng.integers(0, 2, 20)
        both = np.concatenate([others[0], SOMEBODY[0]]), np.concatenate([others[1], SOMEBODY[1]])
        for world, records in zip(worlds, (NOBODY, SOMEBODY, others, both), strict=True):
            world.put(*records)
        self.attacks = [world.attack for world in worlds]
        self.bed = first.bed

    def set_up(self, study: Study) -> None:
        for attack in self.attacks:
            attack.use(study)
            attack.set_up()

    def enrol(self, data: bytes) -> tuple[RefusalCode, ...]:
        """The codes by which every site refuses a study."""
        codes = {attack.enrol("a", attack.study_object(data)).codes for attack in self.attacks}
        assert len(codes) == 1
        return codes.pop()

    def assign(self, label: str, broadcast: bytes = b"", attempt: int = 1) -> list[Said]:
        """Every site's answer to an assignment: the same call, the same codes, the same number of bytes."""
        said = [
            attack.assign("a", attack.assignment(number=attempt, attempt=attempt, broadcast=broadcast, label=label), broadcast)
            for attack in self.attacks
        ]
        assert len({answer.call for answer in said}) == 1
        outlines = [answer.codes if answer.call == "refuse" else sum(map(len, answer.values[1].pieces)) for answer in said]
        assert len(set(outlines)) == 1
        return said

    def entries(self, kind: Kind) -> list[list[Any]]:
        """Details of entries of a kind in each site's ledger."""
        return [[entry.detail for entry in attack.bed.sites["a"].ledger.entries(kind=kind)] for attack in self.attacks]

    def kinds(self) -> list[list[Kind]]:
        """Kinds of all entries in each site's ledger, in order."""
        return [[entry.kind for entry in attack.bed.sites["a"].ledger.entries()] for attack in self.attacks]

    def failures(self) -> list[int]:
        """How often each site was told of a computation that failed."""
        return [world.failures for world in self.worlds]


@pytest.fixture
def worlds(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def study_of(bed: TestBed, method: str, epsilon: float | None = 4.0, **parameters: Any) -> Study:
    request = make_request(schema_of(3), method, epsilon, min_cohort=2)
    return bed.compile(request.model_copy(update={"parameters": parameters}))


# -- numbers that vanish, or overflow, once a record is multiplied by them --------------------------------------------------


@pytest.mark.parametrize("size", [5e-324, 1e-200, 9e-101])
def test_weights_whose_squares_vanish_are_no_study(worlds: Beside, size: float) -> None:
    """With all weights at 1e-200 the clipping norm would be 0, which only a site with records of the class would notice."""
    study = study_of(worlds.bed, "fedcgs")
    weights = [name for name in study.tasks[0].parameters if name.endswith("_weight")]
    assert weights
    for tiny in ([*weights, "clip"], weights[:1]):
        assert worlds.enrol(changed(study, **dict.fromkeys(tiny, size.hex()))) == (RefusalCode.STUDY_INVALID,)
    assert worlds.entries(Kind.RESERVE) == [[], [], [], []]


@pytest.mark.parametrize("size", [1e101, pytest.param(1.7e308, marks=pytest.mark.system)])
def test_a_model_beyond_all_bounds_is_refused_without_a_record(worlds: Beside, size: float) -> None:
    """Exact products refuse such numbers, within the loop over records: with one record there would be a refusal, else not."""
    study = study_of(
        worlds.bed, "fedsgd", steps=2, followed=False, sampling_rate=1.0, model={"name": "mlp", "options": {"hidden": 3}}
    )
    label = next(task.label for task in study.tasks if task.task == "gradient")
    worlds.set_up(study)
    arrays = made_up_broadcast(AgreedStudy(study).task(label))[1]
    model = {name: np.full_like(array, size) if name.startswith(MODEL) else array for name, array in arrays.items()}
    assert worlds.assign(label, encoded(study, label, model))[0].codes == (RefusalCode.CONTEXT,)
    assert worlds.entries(Kind.RESERVE) == [[], [], [], []]
    assert worlds.assign(label, encoded(study, label, arrays), attempt=2)[0].call == "upload"


HAZARD = {"family": "cox", "outcome": "x1", "event": "y", "censored": ["c0"], "over": ["x0"]}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("method", "parameters", "label", "name", "legal", "beyond"),
    [
        ("regression", ODDS, "newton-1", WHITEN, LARGEST_ENTRY, 2 * LARGEST_ENTRY),
        ("regression", ODDS, "newton-1", POINT, LARGEST_ENTRY, 1e300),
        ("regression", HAZARD, "newton-1", HAZARDS, LARGEST_ENTRY, 1e300),
        ("regression", HAZARD, "newton-1", PERIODS, 1.0, 1.5),
        ("fedcgs", {}, "class-moments", CENTRE, 1e99, 1e101),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_a_point_beyond_all_bounds_is_refused_without_a_record_and_any_other_is_not(
    worlds: Beside,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    parameters: dict[str, Any],
    label: str,
    name: str,
    legal: float,
    beyond: float,
    large: bool,
) -> None:
    """Each round anew: after a round whose arrays were well, a budget could be spent on sums of nothing."""
    if large:
        monkeypatch.setattr(rehearsal, "SMALL", 0)
    study = study_of(worlds.bed, method, **parameters)
    worlds.set_up(study)
    arrays = made_up_broadcast(AgreedStudy(study).task(label))[1]
    for attempt, size in ((1, beyond), (2, legal), (3, beyond)):
        sent = encode_broadcast({**arrays, name: np.full_like(arrays[name], size)})
        said = worlds.assign(label, sent, attempt=attempt)[0]
        assert said.codes == (RefusalCode.CONTEXT,) if size is beyond else said.call == "upload"
    assert [len(entries) for entries in worlds.entries(Kind.RESERVE)] == [1, 1, 1, 1]
    assert worlds.entries(Kind.FAULT) == [[], [], [], []]


# -- a computation that fails all the same ----------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """Let the kernel fail on records of which ``fails`` says so, as a fault that nobody knows of would."""
    real = contribution.rows_sum

    def fails_on(evaluation: Any, records: Records, *rest: Any, **more: Any) -> Any:
        if any(fails(row) for row in records.features):
            raise FloatingPointError("somebody is here")
        return real(evaluation, records, *rest, **more)

    monkeypatch.setattr(contribution, "rows_sum", fails_on)


def test_a_site_that_fails_counts_as_one_without_records(worlds: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site contributes and pays; only its own log and metrics tell."""
    failing(monkeypatch, lambda row: row[0] == SOMEBODY[0][0, 0])
    study = study_of(worlds.bed, "statistics")
    worlds.set_up(study)
    assert worlds.assign("statistics")[0].call == "upload"
    assert worlds.failures() == [0, 1, 0, 1]
    assert len({tuple(kinds) for kinds in worlds.kinds()}) == 1
    assert worlds.kinds()[0][-1] is Kind.RESERVE
    plan = AgreedStudy(study).task("statistics").plan(4, 4)
    parts = [
        contribute(plan, lambda site=attack.bed.sites["a"]: site.records("records", study.data), {}, SitePlace())  # type: ignore[misc]
        for attack in worlds.attacks
    ]
    assert [bool(part.total.any()) for part in parts] == [False, False, True, False]
    assert [part.fault is None for part in parts] == [True, False, True, False]


def test_a_computation_that_fails_is_charged(worlds: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda row: 0.0 < abs(row[0]) < 1.0)
    attack = worlds.attacks[2]
    worlds.set_up(study_of(worlds.bed, "statistics"))
    for name in SITES:
        assert attack.assign(name, attack.assignment()).call == "upload"
    attack.consents()
    site = attack.bed.sites["a"]
    assert worlds.failures()[2] == 1
    assert worlds.kinds()[2][-2:] == [Kind.RESERVE, Kind.CHARGE]
    site.ledger.verify()
    assert site.ledger.spending("records").releases == 1


def test_a_file_that_fails_in_reading_contributes_as_no_records_would(worlds: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's fault in the midst of a file: the round is paid for and nobody hears of it."""

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(local_module, "load_records", broken)
    worlds.set_up(study_of(worlds.bed, "statistics"))
    assert worlds.assign("statistics")[0].call == "upload"
    assert worlds.failures() == [1] * 4
    assert [kinds[-1] for kinds in worlds.kinds()] == [Kind.RESERVE] * 4


def test_what_reads_is_reserved_first_and_counted(worlds: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that read records are in the ledger before they do, and there are ``max_attempts`` of them a round at most."""
    attack = worlds.attacks[2]
    site = attack.bed.sites["a"]
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update={"max_attempts": 3})})
    seen: list[int] = []
    real = local_module.load_records

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(len(site.ledger.entries(kind=Kind.RESERVE)))
        return real(*given, **named)

    monkeypatch.setattr(local_module, "load_records", watched)
    attack.use(study_of(worlds.bed, "statistics"))
    attack.set_up()
    for attempt in (1, 2, 3):
        assert attack.assign("a", attack.assignment(attempt=attempt)).call == "upload"
    assert attack.assign("a", attack.assignment(attempt=4)).codes == (RefusalCode.ATTEMPTS,)
    assert seen == [1]
    assert len(site.ledger.entries(kind=Kind.RESERVE)) == 3


# -- a broadcast with a row a site ------------------------------------------------------------------------------------------


def test_centres_for_each_site_are_disclosure_per_site(tmp_path: Path) -> None:
    """Centres that draw one site's records into a component of its own would show that site's sums in a joint one."""
    bed = make_bed(tmp_path, make_data(width=3))
    study = study_of(bed, "fedpft", None, components=2, rounds=1, samples=20, disclosure="joint")
    mixtures = [task for task in study.tasks if task.task == "class-mixtures" and task.parameters["components"] > 1]
    assert mixtures
    assert {task.disclosure for task in mixtures} == {"joint"}
    value = parse_canonical(study.to_bytes(), what="study")
    for task in value["tasks"]:
        if task["task"] == "class-mixtures":
            task["parameters"]["centres"] = "site"
    attack = Adversary(bed, parse_study(canonical(value)))
    assert RefusalCode.DISCLOSURE in attack.enrol("a").codes
    attack.use(study)
    assert attack.enrol("a").call == "enrol"


# -- what a site keeps ------------------------------------------------------------------------------------------------------


def test_a_kept_vector_goes_out_for_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts of one task with unlike broadcasts: the vector of the first would stand alone in the second's sum."""
    bed = make_bed(tmp_path, make_data(width=3), disclosures=("joint", "per-site"))
    study = study_of(bed, "slot-align", None)
    kept = next(task for task in study.tasks if task.keep) if any(task.keep for task in study.tasks) else None
    if kept is None:
        study = study_of(bed, "slot-align", 900.0, alignment={"reference": "barycenter", "mode": "iterated", "rounds": 3})
        kept = next(task for task in study.tasks if task.keep)
    attack = Adversary(bed, study)
    attack.set_up()
    first, other = b"", encode_broadcast({"unread": np.ones(1)})
    assert attack.assign("a", attack.assignment(broadcast=first, label=kept.label), first).call == "upload"
    again = attack.assignment(attempt=2, broadcast=first, label=kept.label)
    assert attack.assign("a", again, first).call == "upload"
    said = attack.assign("a", attack.assignment(attempt=3, broadcast=other, label=kept.label), other)
    assert said.codes == (RefusalCode.CONTEXT,)


# -- everything, at random --------------------------------------------------------------------------------------------------


def test_nothing_that_leaves_depends_on_a_record(tmp_path: Path) -> None:
    """A short run of ``python -m analyst``; docs/reliability.md tells of the long one."""
    report = Judge(tmp_path).run(120, seed=7_000_000)
    assert not report.findings
    assert report.computed > 36
    assert report.carried >= 2


PARTS = 17


@pytest.mark.sampled(17)
@pytest.mark.parametrize("part", [*(pytest.param(part, marks=pytest.mark.system) for part in range(PARTS - 1)), PARTS - 1])
def test_no_task_shows_that_a_record_makes_it_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Messages, receipts with their heads, and every word of the ledgers are alike, though r has a fault of its own."""
    real = contributions.contribute

    def failing(plan: Any, load: Any, *given: Any) -> SitePart:
        found = real(plan, load, *given)
        if isinstance(plan.task.task, DerivedTask):
            return found
        records = load()
        count = sum(map(len, [records] if isinstance(records, Records) else records))
        return found._replace(fault=IndexError("r") if count in (1, 6) else None)

    monkeypatch.setattr(contributions, "contribute", failing)
    judge, told = Judge(tmp_path), Counter[bool]()
    for example in unchanged(judge.bed)[part::PARTS]:
        seen = judge.carry(parse_study(example.data), example, np.random.default_rng(example.seed))
        often = seen[1].faults
        assert [item.faults for item in seen] == [0, often, 0, often]
        told[often > 0] += all(message[0] != "refuse" for message in seen[0].messages)
    assert told[True] > 0


def test_no_record_makes_a_task_fail_that_passed_its_rehearsal() -> None:
    """A short run of ``python -m analyst --direct``, without the guard that a site has around a task."""
    report = run_direct(150, seed=8_000_001)
    assert not report.findings
    assert sum(report.computed.values()) > 75
    assert report.computed["tables"] > 25


@pytest.mark.system
@pytest.mark.timeout(3600)  # ten minutes beside other work
def test_no_record_makes_any_task_fail_that_passed_its_rehearsal() -> None:
    """The same of every task that there is, trained ones included."""
    report = run_direct(10_000, seed=9_000_000)
    assert not report.findings
    assert set(report.computed) == set(TASKS)


def test_the_direct_judge_finds_records_that_fail_and_steps_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of records that no rehearsal has: one that raises, one that makes others count twice."""
    real = contribution.rows_sum

    def fails(evaluation: Any, records: Records, *rest: Any, **more: Any) -> Any:
        if len(records) > 4 and (records.features[:, 0] == 0.5).any() and len(records) < 30:
            raise IndexError("somebody is here")
        return real(evaluation, records, *rest, **more)

    def counts(evaluation: Any, records: Records, *rest: Any, **more: Any) -> Any:
        found = real(evaluation, records, *rest, **more)
        return found._replace(total=found.total * (1 + (records.features[:, 0] == 0.5).any()))

    for fault, said in ((fails, "fails on records"), (counts, "depends on who else is there")):
        monkeypatch.setattr(contribution, "rows_sum", fault)
        assert any(said in finding for finding in run_direct(100, seed=8_000_001).findings.values())


def test_the_judge_finds_a_fault_that_depends_on_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a judge that can say no: a task that fails on so many records, which no rehearsal has."""
    real = contribution.rows_sum

    def fails_on(evaluation: Any, records: Records, *rest: Any, **more: Any) -> Any:
        if len(records) == 6:
            raise HostileInput("six of them")
        return real(evaluation, records, *rest, **more)

    monkeypatch.setattr(contribution, "rows_sum", fails_on)
    report = Judge(tmp_path).run(100, seed=7_000_000)
    assert any("a fault depends on records" in finding for finding in report.findings.values())
