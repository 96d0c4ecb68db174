"""A hostile coordinator, or analyst, before sites that train: weights that single a site out, and numbers out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered, make_adversary
from support.restoring import copy_database, restore, vouch
from support.studies import compiled as own_study
from support.studies import shifted_sites
from veilsum.local.federation import LocalChannel
from veilsum_coordinator.parts.local_rounds import LOCAL
from veilsum_coordinator.service.runner import HubFederation, RoundLostError
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.endorsement import recover_receipts
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.weights import WEIGHTS
from veilsum_privacy.ledger import Kind, Mechanism
from veilsum_privacy.mechanism.noise_plan import task_noise
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.arrays import to_broadcast

NAMES = "abcd"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data(NAMES), min_cohort=2, disclosures=("joint", "per-site"))


def compiled(bed: TestBed, epsilon: float | None, method: str = "fedavg", **parameters: Any) -> Study:
    request = make_request(schema_of(2), method, epsilon, noise="none" if epsilon is None else "local", min_cohort=2)
    return bed.compile(request.model_copy(update={"parameters": parameters}))


def weighted(study: Study, weights: list[float]) -> dict[str, NDArray[np.float64]]:
    """A broadcast of one and the same model, with these weights."""
    task = AgreedStudy(study).task(LOCAL).task
    assert isinstance(task, LocalTraining)
    seeds = np.zeros((study.sites, 2))
    return {**to_broadcast(task.architecture.initial(0)), SEEDS: seeds, WEIGHTS: np.array(weights)}


def prepared(bed: TestBed, study: Study) -> HubFederation:
    local = bed.local
    return local.prepare(local.submit(study, bed.analyst))


def public(epsilon: float | None, bed: TestBed, **parameters: Any) -> Study:
    table = {"mode": "natural", "subsets": [{"sites": list(NAMES), "probability": 1.0}]}
    return compiled(bed, epsilon, rounds=3, model={"name": "linear"}, participation=table, **parameters)


def test_unlike_weights_of_one_cohort_do_not_single_a_site_out(bed: TestBed) -> None:
    """Each of the two sums is within every bound; their difference would be one site's own update."""
    study = public(None, bed)
    assert study.privacy.cohort_difference == "strict"
    federation = prepared(bed, study)
    federation.sum(LOCAL, weighted(study, [1.0, 1.0, 1.0, 1.0]))
    federation.sum(LOCAL, weighted(study, [2.0, 2.0, 2.0, 2.0]))  # the same factors
    with pytest.raises(RoundLostError):
        federation.sum(LOCAL, weighted(study, [1.0, 1.0, 1.0, 0.0]))
    for site in bed.sites.values():
        assert len(site.ledger.entries(kind=Kind.CHARGE)) == 2


def test_unlike_weights_in_two_studies_do_not_single_a_site_out(bed: TestBed) -> None:
    """One cohort and one model, in two studies of one analyst: the difference of their sums would be d's own update."""
    for weights, lost in (([1.0, 1.0, 1.0, 1.0], False), ([2.0, 2.0, 2.0, 2.0], False), ([1.0, 1.0, 1.0, 0.0], True)):
        study = public(None, bed)
        federation = prepared(bed, study)
        before = {name: site.ledger.head() for name, site in bed.sites.items()}
        if lost:
            with pytest.raises(RoundLostError):
                federation.sum(LOCAL, weighted(study, weights))
            after = {name: site.ledger.head() for name, site in bed.sites.items()}
            assert after == before  # nothing was reserved
        else:
            federation.sum(LOCAL, weighted(study, weights))


@pytest.mark.parametrize("lost", ["the study", "the round"])
def test_a_restored_site_does_not_know_by_which_weights_its_sums_were(bed: TestBed, tmp_path: Path, lost: str) -> None:
    """Receipts show who was in them, and no more: a second sum at other weights could be d's own update, so there is none."""
    copy, study = tmp_path / "copy.db", public(None, bed)
    state = bed.sites["a"].config.state
    copy_database(state, copy)
    federation = prepared(bed, study)
    if lost == "the round":
        copy_database(state, copy)
    federation.sum(LOCAL, weighted(study, [1.0, 1.0, 1.0, 1.0]))
    site = restore(bed, "a", copy)
    assert len(ParticipantCore(site).catch_up(LocalChannel(bed.hub, "a"))) == 1
    vouch(site)
    peer = bed.sites["b"].ledger
    recover_receipts(site, peer.receipts(participant="a"), lambda entry: peer.receipts(entry=entry))
    told = [item for item in SiteCheck(site.config, site.clock).run() if item.check == f"cohorts {DATASET}"]
    assert [item.status for item in told] == [CheckOutcome.OK, CheckOutcome.WARNING]
    attack = Adversary(bed, public(None, bed))
    assert attack.enrol("a").refused is RefusalCode.COHORT_CHANGED
    attack.use(compiled(bed, 5.0, rounds=1, model={"name": "linear"}, local_steps=1))
    assert attack.enrol("a").call == "enrol"
    attack.use(bed.compile(make_request(schema_of(2), epsilon=None, min_cohort=2)))  # a sum over records
    attack.set_up()
    assert attack.assign("a", attack.assignment()).call == "upload"


def test_a_weighted_sum_does_not_stand_beside_one_without_weights_of_an_earlier_study(bed: TestBed) -> None:
    plain = compiled(bed, None, rounds=3, model={"name": "linear"})
    arrays = weighted(plain, [])
    prepared(bed, plain).sum(LOCAL, {name: array for name, array in arrays.items() if name != WEIGHTS})
    study = public(None, bed)
    with pytest.raises(RoundLostError):
        prepared(bed, study).sum(LOCAL, weighted(study, [1.0, 1.0, 1.0, 0.0]))
    study = public(None, bed)
    prepared(bed, study).sum(LOCAL, weighted(study, [3.0, 3.0, 3.0, 3.0]))


def test_unlike_bounds_of_two_studies_do_not_show_the_largest_update(tmp_path: Path) -> None:
    """Below the largest update's norm a bound takes from that one alone: what two sums differ by points as it does. So it is
    disclosure per site, which a site has to allow."""
    given, arrays = shifted_sites(60), dict[str, NDArray[np.float64]]()

    def updates(norm: float) -> list[NDArray[np.float64]]:
        study = own_study("fedavg", {"rounds": 1, "model": {"name": "linear"}}, noise="none")
        task = AgreedStudy(altered(study, task__parameters={**study.tasks[0].parameters, "norm": norm})).task(LOCAL)
        arrays.update(to_broadcast(task.task.architecture.initial(0)), **{SEEDS: np.zeros((study.sites, 2))})
        parts = [compute_sum(task.plan(4, 4), given[name], arrays, SitePlace(place)) for place, name in enumerate(given)]
        return [task.unit * part.total[:-1] for part in parts]

    whole = updates(50.0)
    norms = np.array([np.linalg.norm(update) for update in whole])
    bounded = updates(float(np.sort(norms)[-2:].mean()))
    difference, largest = np.sum(whole, axis=0) - np.sum(bounded, axis=0), whole[int(norms.argmax())]
    assert difference @ largest == pytest.approx(np.linalg.norm(difference) * np.linalg.norm(largest), rel=1e-6)
    assert np.linalg.norm(difference) > 0.01

    bed = make_bed(tmp_path, make_data(NAMES), min_cohort=2)
    attack = Adversary(bed, compiled(bed, None, rounds=1, model={"name": "linear"}))
    for name in NAMES:
        assert attack.enrol(name).refused is RefusalCode.DISCLOSURE
    attack.use(compiled(bed, 5.0, rounds=1, model={"name": "linear"}, local_steps=1))
    assert attack.enrol("a").call == "enrol"  # with noise each update has its own


def test_where_cohorts_may_differ_weights_may(bed: TestBed) -> None:
    study = public(5.0, bed, local_steps=1)
    assert study.privacy.cohort_difference == "allowed"
    federation = prepared(bed, study)
    for weights in ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]):
        federation.sum(LOCAL, weighted(study, weights))
    with pytest.raises(RoundLostError):
        federation.sum(LOCAL, weighted(study, [0.0, 0.0, 0.0, 1.0]))  # as if one site took part


def test_a_weighted_sum_stands_alone_in_a_study_of_one_cohort(bed: TestBed) -> None:
    """Beside the same sum without weights it would say as much as one with others."""
    study = public(None, bed)
    (task,) = study.tasks
    plain = task.model_copy(update={"label": "plain", "parameters": {**task.parameters, "weighting": "equal"}})
    both = study.model_copy(update={"tasks": (task, plain)})
    federation = prepared(bed, both)
    with pytest.raises(RoundLostError):
        federation.sum(LOCAL, weighted(both, [1.0, 1.0, 1.0, 1.0]))


def test_a_refused_study_of_steps_is_recorded_with_all_of_them(bed: TestBed, tmp_path: Path) -> None:
    study = compiled(bed, 5.0, rounds=3, local_steps=4, sampling_rate=0.5)
    (task,) = study.tasks
    attack = Adversary(bed, study)
    site = bed.sites["a"]
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update={"max_epsilon": 0.1})})
    assert attack.enrol("a").refused is RefusalCode.EPSILON
    (entry,) = site.ledger.entries(kind=Kind.REFUSAL)
    ((cost, colluders, count),) = entry.detail["cost"]
    assert Mechanism.from_json(cost, colluders).steps * count == 4 * 3 == task.steps * task.releases
    assert Mechanism.from_json(cost, colluders).noise == task_noise(study, task, study.sites)


def test_more_steps_than_an_event_holds_are_no_study(tmp_path: Path) -> None:
    attack = make_adversary(tmp_path)
    study = compiled(attack.bed, 5.0, rounds=2, local_steps=2)
    with pytest.raises(HostileInput, match="10\\^9"):
        altered(study, task__local_steps=100_000, task__releases=100_000)


def test_parameters_that_nothing_can_be_computed_from_are_refused() -> None:
    """Whatever arithmetic does on them, a participant must not end by it."""
    model = {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1.0}}
    parameters = {"clip": 1.0, "missing": "skip", "model": model, "layers": ("head",), "gram_clip": 5e-324}
    with pytest.raises(HostileInput):
        build_task("grams", parameters, schema_of(2))
