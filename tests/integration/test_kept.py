"""Statistics that sites keep: drawn once, paid for once, and the source of later sums that cost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import delete

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, Said, altered
from support.opening import own_vector
from veilsum_aggregation.alignment import site_gaussian
from veilsum_aggregation.gaussian import barycenter_term
from veilsum_aggregation.polar import factor
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_node.errors import HostileInput, RefusalCode, StateError
from veilsum_participant.store.kept import KEPT, find_kept, kept_vector
from veilsum_privacy.accounting.accountant import GaussianEvent
from veilsum_privacy.accounting.figures import rdp_epsilon
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger import Kind, Mechanism, Reservation
from veilsum_privacy.ledger.faults import LedgerFault
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.securesum.context import encode_broadcast
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

WIDTH = 3
GRID = 2**16
STD = 40 * GRID // 100  # of a record's whole contribution
MOMENTS = {"width": None, "alignment": None, "clip": 1.5, "missing": "skip"}
WEIGHTS = {"count_weight": 1.0, "sum_weight": 1.0, "square_weight": 1.0, "product_weight": 1.0}


def study_of(bed: TestBed, *, private: bool = True, steps: int = 3) -> Study:
    """A study of one kept task and of steps that are derived from it."""
    base = bed.compile(make_request(schema_of(WIDTH), epsilon=1.0 if private else None, cohort_difference="strict"))
    variance = STD**2 if private else 0
    parameters = {name: value.hex() if isinstance(value, float) else value for name, value in (MOMENTS | WEIGHTS).items()}
    common: dict[str, Any] = {"disclosure": "joint", "releases": 1}
    tasks = (
        TaskDeclaration(
            label="moments", task="gaussian-moments", parameters=parameters, grid=GRID, variance=variance, keep=True, **common
        ),
        TaskDeclaration(
            label="step",
            task="barycenter-step",
            parameters={"width": None, "bound": (4.0).hex(), "shrinkage": "auto", "weights": "counts"},
            grid=2**36,
            variance=0,
            source="moments",
            **(common | {"releases": steps}),
        ),
    )
    epsilon = rdp_epsilon([GaussianEvent(GRID, Fraction(variance))], 1e-5) if private else None
    return with_tasks(base, tasks, privacy__epsilon=epsilon)


def with_tasks(study: Study, tasks: Sequence[TaskDeclaration], **changes: Any) -> Study:
    changed: Study = altered(study, tasks=[task.model_dump(mode="json") for task in tasks], **changes)
    return changed


def make_sites(directory: Path, names: str = "abcd", **policy: Any) -> TestBed:
    data = make_data(names, 400, WIDTH)
    tasks = ("gaussian-moments", "barycenter-step")
    return make_bed(directory, data, **({"tasks": tasks, "disclosures": ("joint", "per-site")} | policy))


@pytest.mark.parametrize("private", [True, False])
def test_steps_are_sums_over_what_the_sites_kept_and_cost_nothing(tmp_path: Path, private: bool) -> None:
    bed = make_sites(tmp_path)
    study = study_of(bed, private=private)
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key)
    moments = federation.sum("moments")
    total = moments.values["count"]
    kept = {}
    for name, site in bed.sites.items():
        with site.database.transaction() as connection:
            vector = kept_vector(connection, key, "moments")
        assert vector is not None
        kept[name] = AgreedStudy(study).task("moments").kept_blocks(vector)
    for block, values in moments.values.items():
        np.testing.assert_allclose(values, sum(blocks[block] for blocks, _ in kept.values()), rtol=1e-12)
    stds = {std["count"] for _, std in kept.values()}
    assert len(stds) == 1
    assert moments.noise_std["count"] == pytest.approx(2 * stds.pop())  # four sites, each with the whole noise
    q = np.eye(WIDTH)
    for _ in range(3):
        release = federation.sum("step", {"barycenter.factor": q, "reference.count": total})
        expected = np.zeros((WIDTH, WIDTH))
        for blocks, std in kept.values():
            found = site_gaussian(blocks, std)
            assert found is not None
            expected += barycenter_term(q, factor(found[1].covariance), found[0] / float(total[0]))
        np.testing.assert_allclose(release.values["term"], expected, atol=4 * 4.0 / 2**36 * 2)
        assert release.noise_std == {"term": 0.0, "weight": 0.0}
        q = release.values["term"] / release.values["weight"]
    for site in bed.sites.values():
        charges = site.ledger.entries(kind=Kind.CHARGE)
        assert len(charges) == 4
        assert [entry.mechanism.free for entry in charges if entry.mechanism] == [False, *[private] * 3]
        verified = site.ledger.verify()
        spent, _ = verified.spending["records"]
        assert spent == (pytest.approx(study_epsilon(study, 1e-5)) if private else math.inf)


def test_nothing_is_derived_from_a_statistic_that_was_never_paid_for(tmp_path: Path) -> None:
    """A coordinator that gives the kept task's round up before consent gets nothing that depends on it."""
    bed = make_sites(tmp_path, "abc")
    attack = Adversary(bed, study_of(bed))
    attack.set_up()
    site = bed.sites["a"]
    sent = encode_broadcast({"reference.count": np.array([1000.0])})

    def ask(label: str, attempt: int) -> Said:
        broadcast = sent if label == "step" else b""
        number = 1 if label == "moments" else 2
        assignment = attack.assignment("abc", number=number, attempt=attempt, broadcast=broadcast, label=label)
        return attack.assign("a", assignment, broadcast)

    def kept() -> NDArray[np.int64] | None:
        with site.database.transaction() as connection:
            return kept_vector(connection, attack.key, "moments")

    assert ask("moments", 1).call == "upload"
    first = kept()
    assert first is not None
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"
    assert ask("moments", 2).call == "upload"
    again = kept()
    assert again is not None
    np.testing.assert_array_equal(first, again)  # the same noise: attempts beside each other tell no more than one
    assert ask("step", 3).refused is RefusalCode.TASK
    assert not site.ledger.entries(kind=Kind.CHARGE)
    assert {entry.kind for entry in site.ledger.entries()} >= {Kind.RESERVE, Kind.FREE}


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_what_is_kept_is_what_went_out_and_goes_out_again(tmp_path: Path, disclosure: str) -> None:
    """Every attempt adds the same vector with the same noise; of one in blocks the site keeps its own."""
    bed = make_sites(tmp_path, "abc")
    attack = Adversary(bed, altered(study_of(bed), task__disclosure=disclosure))
    attack.set_up()
    whole = []
    for attempt in (1, 2):
        assert attack.assign("b", attack.assignment("abc", attempt=attempt, label="moments")).call == "upload"
        whole.append(own_vector(attack, "b", attempt))
    np.testing.assert_array_equal(*whole)
    with bed.sites["b"].database.reading() as connection:
        kept = find_kept(connection, attack.key, "moments")
    assert kept is not None
    np.testing.assert_array_equal(kept.whole, whole[0])
    blocks = whole[0].reshape(3 if disclosure == "per-site" else 1, -1)
    np.testing.assert_array_equal(kept.own, blocks[1 % len(blocks)])


def test_what_is_refused_before_a_kept_statistic_is_used(tmp_path: Path) -> None:
    """It was computed from another broadcast, is lost, or what was sent gives nothing: no reservation, no further noise."""
    bed = make_sites(tmp_path, "abc")
    attack = Adversary(bed, study_of(bed))
    attack.set_up()
    site = bed.sites["a"]
    good, other = (encode_broadcast({"reference.count": np.full(size, 1000.0)}) for size in (1, 2))

    def ask(label: str, number: int, broadcast: bytes) -> Said:
        attempt = 1 + len(attack.channels["a"].said)
        assignment = attack.assignment("abc", number, attempt, broadcast, label=label)
        said = attack.assign("a", assignment, broadcast)
        if said.call == "upload":
            for name in "bc":
                assert attack.assign(name, assignment, broadcast).call == "upload"
        return said

    assert ask("moments", 1, b"").call == "upload"
    reserved = attack.kinds("a")["reserve"]
    assert ask("moments", 1, good).refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == reserved
    assert ask("moments", 1, b"").call == "upload"
    attempt = max(attack.assignments)
    attack.consents(1, attempt)
    reserved = attack.kinds("a")["reserve"]
    for broadcast in (b"", other):
        assert ask("step", 2, broadcast).refused is RefusalCode.CONTEXT
    with site.database.transaction() as connection:
        kept = connection.execute(KEPT.select()).mappings().one()
        connection.execute(delete(KEPT))
    assert ask("step", 2, good).refused is RefusalCode.TASK
    assert attack.kinds("a")["reserve"] == reserved
    with site.database.transaction() as connection:
        connection.execute(KEPT.insert().values(**kept))
    assert ask("step", 2, good).call == "upload"


def test_without_noise_a_kept_statistic_is_a_disclosure_per_site(tmp_path: Path) -> None:
    """Several steps determine each site's exact statistic, so a policy of joint sums refuses; noised ones it accepts."""
    bed = make_sites(tmp_path, "abc", disclosures=("joint",))
    for private, code in ((False, RefusalCode.DISCLOSURE), (True, None)):
        said = Adversary(bed, study_of(bed, private=private)).enrol("a")
        assert (said.refused is code) if code else said.call == "enrol"


def test_a_site_that_lost_what_it_kept_takes_no_further_part(tmp_path: Path) -> None:
    """A backup from before the kept task's round holds no statistic; drawing a new one would cost a second time."""
    bed = make_sites(tmp_path, "abc")
    study = study_of(bed)
    key = bed.local.submit(study, bed.analyst)
    federation = bed.local.prepare(key)
    total = federation.sum("moments").values["count"]
    with bed.sites["b"].database.transaction() as connection:
        connection.execute(delete(KEPT))
    with pytest.raises((RoundLostError, StateError)):
        federation.sum("step", {"reference.count": total})
    assert len(bed.sites["b"].ledger.entries(kind=Kind.CHARGE)) == 1


def test_a_ledger_does_not_verify_whose_post_processing_has_no_source(tmp_path: Path) -> None:
    """Who books a release of records as post-processing is found out offline."""
    bed = make_sites(tmp_path, "abc")
    site = bed.sites["a"]
    reservation = Reservation(
        study=bytes(32),
        round=1,
        attempt=1,
        population="records",
        dataset="records",
        mechanism=Mechanism(GRID, NoisePlan("kept", 0, 1, 1)),
        unit="record",
        cohort_size=3,
        context=bytes(32),
    )
    with site.database.transaction() as connection:
        site.ledger.reserve(connection, reservation)
    with pytest.raises(LedgerFault, match="never paid for"):
        site.ledger.verify()


def test_a_declaration_that_contradicts_its_task_is_refused(tmp_path: Path) -> None:
    """Only what reads no record goes without noise in a study that has noise; what is kept is released once."""
    bed = make_sites(tmp_path, "abc")
    study = study_of(bed)
    moments, step = study.tasks
    bare = moments.model_copy(update={"label": "bare", "variance": 0, "keep": False, "source": "moments"})
    for tasks, message in (
        ((moments, bare), "must have noise|needs a source"),
        ((moments, step.model_copy(update={"task": "gaussian-moments", "parameters": moments.parameters})), "noise|source"),
        ((moments.model_copy(update={"keep": True}), step.model_copy(update={"variance": 64})), "no noise of its own"),
    ):
        other = with_tasks(study, tasks)
        with pytest.raises(HostileInput, match=message):
            _ = AgreedStudy(other).tasks
        attack = Adversary(bed, other)
        assert RefusalCode.STUDY_INVALID in attack.enrol("a").codes
    for changed, fault in (
        ((step,), "is not a kept task before it"),
        ((step, moments), "is not a kept task before it"),
        ((moments.model_copy(update={"releases": 2}), step), "released once"),
    ):
        with pytest.raises(HostileInput, match=fault):
            with_tasks(study, changed)
