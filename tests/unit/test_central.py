"""A study with all records in one place: the same sums, the whole noise once, and models trained alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.randomness import SeededRandom
from support.studies import SITES, compiled, shifted_sites
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_deploy.collections import single
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.evaluation import pool
from veilsum_deploy.simulation.baseline_names import BASELINES, parse_baselines
from veilsum_deploy.simulation.baselines import MOST_ALONE, CentralFederation, beside
from veilsum_deploy.simulation.deal import Deal, Setting, deal
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.study import SimulationDraft, draft_of
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.tasks.base import Records

STEPS = {"steps": 25, "gradient_clip": 0.5}


def records() -> dict[str, Records]:
    return shifted_sites(60)


def model_of(result: Any) -> np.ndarray:
    return np.concatenate([array.ravel() for _, array in sorted(result.arrays.items())])


def test_without_noise_pooled_sgd_is_the_federations_to_the_grid() -> None:
    study = compiled("fedsgd", STEPS)
    apart = get_method("fedsgd").run(PlainFederation(study, {name: PlainSite(own) for name, own in records().items()}))
    together = get_method("fedsgd").run(CentralFederation(study, pool(list(records().values()))))
    assert np.abs(model_of(apart)).max() > 0.05
    np.testing.assert_allclose(model_of(together), model_of(apart), atol=1e-4)


def test_the_noise_is_the_whole_once() -> None:
    study = compiled(
        "fedsgd", {"steps": 301, "gradient_clip": 0.3, "centre": False}, epsilon=3.0, cohort_difference="allowed", min_cohort=2
    )
    empty = Records(np.zeros((0, 6)), np.zeros((0, 6), dtype=bool), np.zeros(0, dtype=np.int64))
    central = CentralFederation(study, empty, random=SeededRandom(3))
    shapes = {"model.head.weight": (3, 6), "model.head.bias": (3,)}
    broadcast = {name: np.zeros(shape) for name, shape in shapes.items()}
    releases = [central.sum("gradient", broadcast) for _ in range(300)]
    drawn = np.concatenate([release.values["model.head.weight"].ravel() for release in releases])
    std = releases[0].noise_std["model.head.weight"]
    task = study.task("gradient")
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-4
    assert abs(np.mean((drawn / std) ** 2) - 1) < 4 * math.sqrt(2 / drawn.size) < 0.08
    assert releases[0].cohort == SITES
    # All four sites' shares, of which three are counted, are 4/3 of the variance; and 16 a share, as none is rounded.
    apart = PlainFederation(study, {name: PlainSite(empty) for name in SITES}).sum("gradient", broadcast)
    assert apart.noise_std["model.head.weight"] / std == pytest.approx(
        math.sqrt(4 * (task.variance / 3 + 16) / (task.variance + 16)), rel=1e-9
    )
    assert std == pytest.approx(math.sqrt(task.variance) / task.grid * 0.3, rel=1e-2)
    central.sum("gradient", broadcast)
    with pytest.raises(RoundLostError, match="used up"):
        central.sum("gradient", broadcast)


def test_pooled_sums_over_records_are_the_sites_sums() -> None:
    study = compiled("statistics")
    apart = PlainFederation(study, {name: PlainSite(own) for name, own in records().items()}).sum("statistics")
    central = CentralFederation(study, pool(list(records().values())))
    together = central.sum("statistics")
    for name, values in apart.values.items():
        np.testing.assert_array_equal(together.values[name], values)
    with pytest.raises(HostileInput, match="declares no task"):
        central.sum("gradient")


def test_local_training_of_pooled_records_is_one_sites_with_all_of_them() -> None:
    """One site that holds everything, beside others that hold nothing and so change nothing."""
    options = {
        "rounds": 2,
        "epochs": 2,
        "weighting": "records",
        "batch": 10_000,
        "model": {"name": "linear", "options": {"scale": 0.5}},
    }
    study = compiled("fedavg", options)
    whole = pool(list(records().values()))
    central = get_method("fedavg").run(CentralFederation(study, whole))
    empty = whole.take(slice(0))
    sites = {name: PlainSite(whole if name == SITES[0] else empty) for name in SITES}
    apart = get_method("fedavg").run(PlainFederation(study, sites))
    np.testing.assert_allclose(model_of(central), model_of(apart), atol=2e-4)
    assert np.abs(model_of(central)).max() > 0.05


def test_noised_local_steps_are_divided_by_the_pooled_number_of_records() -> None:
    privacy = {"epsilon": 1000.0, "noise": "local"}
    study = compiled(
        "fedavg", {"rounds": 1, "local_steps": 30, "model": {"name": "linear", "options": {"scale": 0.5}}}, **privacy
    )
    whole = pool(list(records().values()))
    pooled = get_method("fedavg").run(CentralFederation(study, whole, random=SeededRandom(1)))
    one = records()[SITES[0]]
    four = pool([one] * len(SITES))
    repeated = get_method("fedavg").run(CentralFederation(study, four, random=SeededRandom(1)))
    single_site = get_method("fedavg").run(CentralFederation(study, one, holders=1, random=SeededRandom(1)))
    # Four copies of a site in place of one are the same mean gradient; of other records it is another.
    size = np.abs(model_of(single_site)).max()
    assert np.abs(model_of(repeated) - model_of(single_site)).max() < 0.25 * size
    assert np.abs(model_of(pooled) - model_of(single_site)).max() > 0.1 * size


@pytest.mark.parametrize(
    "parameters",
    [{"disclosure": "per-site"}, {"alignment": {"reference": "slopes", "mode": "iterated", "rounds": 1}}],
    ids=["disclosed", "aligned"],
)
def test_a_study_whose_sites_differ_has_no_central_counterpart(parameters: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="records in one place"):
        CentralFederation(compiled("fedcgs", parameters), pool(list(records().values())))


def test_baselines_by_name() -> None:
    assert parse_baselines(None, "fedcgs") == ("alone", "pooled")
    assert parse_baselines(None, "fedsgd") == tuple(name for name in BASELINES if name != "personal")  # which is asked for
    assert parse_baselines("none", "fedsgd") == ()
    assert parse_baselines("central, trained", "fedcgs") == ("trained-alone", "trained-pooled", "central")
    with pytest.raises(Misuse, match="No baseline"):
        parse_baselines("alone,centre", "fedcgs")


@pytest.fixture(scope="module")
def cancer() -> Deal:
    names = [f"site-{index:02d}" for index in range(20)]
    return deal(single(packaged_dataset("breast-cancer")), Setting("iid", 20, holdout=0.3), 1, names)


def draft(cancer: Deal, **privacy: Any) -> SimulationDraft:
    content = {"name": "trial", "method": "fedsgd", "dataset": "d", "parameters": {"steps": 30}, "privacy": privacy}
    return draft_of(content, None, cancer.tests["breast-cancer"].schema, source="test")  # type: ignore[arg-type]


@pytest.mark.system
@pytest.mark.usefixtures("known_randomness")
def test_what_stands_beside_a_trained_model(cancer: Deal) -> None:
    asked = draft(cancer, epsilon=0.02)
    found = {kind: beside(kind, asked, cancer, lambda: 1) for kind in BASELINES}
    shares = {kind: one.scores.accuracies["breast-cancer"] for kind, one in found.items()}
    assert shares["trained-pooled"] > 0.92
    assert shares["central"] < shares["trained-pooled"] - 0.02  # so small an epsilon costs accuracy, noise is in it
    assert shares["trained-alone"] < shares["trained-pooled"]
    assert shares["personal"] > shares["alone"] - 0.02  # its released part is noise, and is not taken up
    assert found["central"].epsilon == pytest.approx(0.02, rel=0.01)
    assert {kind for kind, one in found.items() if one.epsilon is None} == set(BASELINES) - {"central", "personal"}
    assert found["trained-alone"].note == f"of {MOST_ALONE} of 20 sites"


@pytest.mark.usefixtures("known_randomness")
def test_a_generous_epsilon_is_almost_no_noise(cancer: Deal) -> None:
    central = beside("central", draft(cancer, epsilon=1000.0), cancer, lambda: 1).scores.accuracies["breast-cancer"]
    clear = beside("trained-pooled", draft(cancer, epsilon=1.0), cancer, lambda: 1).scores.accuracies["breast-cancer"]
    assert central == pytest.approx(clear, abs=0.02)
    assert CentralFederation(compiled("statistics"), pool(list(records().values())), random=SYSTEM_RANDOM).encoder == {}
