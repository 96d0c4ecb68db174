"""Alignment by moments in front of the methods that train: what they declare, what they train on, and how it is applied."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.rows import in_statistics_part
from support.studies import (
    CLASSES,
    SCHEMA,
    SITES,
    WIDTH,
    compiled,
    complete,
    federation,
    projection,
    shifted_sites,
    split_records,
)
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.fedavg import FedAvg, FedAvgParameters
from veilsum_coordinator.methods.fedsgd import FedSGDParameters
from veilsum_coordinator.parts.base import Inputs
from veilsum_coordinator.parts.moment_alignment import LABEL, WITHIN_LABEL, MomentAlignment, training_records
from veilsum_deploy.simulation.plain import PlainFederation
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model, load_model
from veilsum_participant.applying.personal import personalise
from veilsum_privacy.accounting.accountant import Course, GaussianEvent, epsilon_of
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import map_records
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.perceptrons import Linear

NOISED = {
    "fedsgd": {"epsilon": 8.0, "delta": 1e-5, "noise": "distributed"},
    "fedavg": {"epsilon": 8.0, "delta": 1e-5, "noise": "local"},
}
SHORT: dict[str, dict[str, Any]] = {
    "fedsgd": {"steps": 12, "optimiser": {"learning_rate": 2.0}},
    "fedavg": {"rounds": 4, "model": {"name": "linear"}, "learning_rate": 0.5},
}
STEPS = {"fedsgd": ("gradient", 12), "fedavg": ("local-training", 20)}


def parameters_of(study: Study, label: str) -> Any:
    task = study.task(label)
    return TASKS[task.task].Parameters.model_validate(dict(task.parameters))


def run(study: Study, sites: dict[str, Records], **options: Any) -> tuple[Result, PlainFederation]:
    running = federation(study, sites, **options)
    return get_method(study.method).run(running), running


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("reference", ["pooled", "within"])
def test_what_is_declared(method: str, reference: str) -> None:
    moments = {"records": 0.25, "reference": reference}
    study = compiled(method, {**SHORT[method], "moments": moments}, expected=400)
    label = STEPS[method][0]
    assert [task.label for task in study.tasks] == [LABEL, WITHIN_LABEL, label][:: 1 if reference == "within" else 2]
    assert study.task(LABEL).keep
    assert study.task(label).source == LABEL
    assert study.privacy.cohort_difference == "strict"
    training, statistics = parameters_of(study, label), parameters_of(study, LABEL)
    assert (training.part, training.part_share) == ("training", 0.25)
    assert (statistics.part, statistics.part_share) == ("statistics", 0.25)
    assert training.alignment.kind == "moments"
    if method == "fedavg":
        assert training.expected_records == 300
    else:
        assert FedSGDParameters.model_validate(study.parameters).records == 4 * 300
    plain = compiled(method, SHORT[method], expected=400)
    assert parameters_of(plain, label).part == "all"
    assert parameters_of(plain, label).alignment is None


@pytest.mark.parametrize(("share", "records", "expected"), [(0.5, 401, 200), (0.25, 400, 300), (1.0, 400, 400), (0.9, 1, 1)])
def test_a_site_is_expected_to_train_on_what_is_left(share: float, records: int, expected: int) -> None:
    assert training_records(MomentAlignment(records=share), records) == expected
    assert training_records(None, records) == records


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_images_share_the_moments_of_their_channels(method: str) -> None:
    schema = SCHEMA.model_copy(update={"columns": tuple(numbered(2 * 16 * 16))})
    inputs = Inputs(schema, private=False)
    spec = ModelSpec(name="lenet5", inputs=(2, 16, 16))
    asked: Any = FedAvgParameters if method == "fedavg" else FedSGDParameters
    resolved: Any = get_method(method).resolve(asked(model=spec, moments=MomentAlignment()), inputs)
    assert (resolved.moments.per, resolved.moments.channels) == ("channel", 2)
    plans = get_method(method).declare(resolved, inputs)
    assert plans[0].parameters.channels == 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="not 3 channels"):
        get_method(method).resolve(asked(model=spec, moments=MomentAlignment(channels=3)), inputs)


def numbered(count: int) -> list[Any]:
    return [SCHEMA.columns[0].model_copy(update={"name": f"n{index}"}) for index in range(count)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_both_layers_are_in_one_epsilon(method: str, rate: float) -> None:
    """Two events of one ledger, told apart in the summary; the moments take about their share of the budget."""
    asked = {**SHORT[method], "sampling_rate": rate, "moments": {"share": 0.2}}
    study = compiled(method, asked, **NOISED[method])
    label, steps = STEPS[method]
    tasks = {name: study.task(name) for name in (LABEL, label)}
    first = GaussianEvent(tasks[LABEL].grid, Fraction(tasks[LABEL].variance), 1.0, 1)
    second = GaussianEvent(
        tasks[label].grid,
        Fraction(tasks[label].variance),
        rate,
        steps,
        Course(steps, tasks[label].slack) if rate < 1 else None,
    )
    result, _ = run(study, shifted_sites(60))
    found = result.summary["epsilon"]
    assert found == {
        "moments": epsilon_of([first], 1e-5, "gaussian"),
        "training": epsilon_of([second], 1e-5, "gaussian"),
        "total": epsilon_of([first, second], 1e-5, "gaussian"),
    }
    assert found["total"] == study.privacy.epsilon == pytest.approx(8.0, rel=1e-3)
    assert max(found["moments"], found["training"]) < found["total"] < found["moments"] + found["training"]
    cost = [rate**2 * steps * tasks[label].grid ** 2 / tasks[label].variance, tasks[LABEL].grid ** 2 / tasks[LABEL].variance]
    assert cost[1] / sum(cost) == pytest.approx(0.2, abs=0.01)
    silent, _ = run(compiled(method, {**SHORT[method], "moments": {}}), shifted_sites(60))
    assert silent.summary["epsilon"] == {"moments": None, "training": None, "total": None}


def aligned_by_hand(sites: dict[str, Records], share: float, adjust: str) -> dict[str, Records]:
    """S_k of each site, each column moved from the moments of its U_k to those of all U_k together."""
    chosen = {name: in_statistics_part(own, share) for name, own in sites.items()}
    every = np.concatenate([own.features[chosen[name]] for name, own in sites.items()])
    found = {}
    for name, own in sites.items():
        kept, x = own.features[chosen[name]], own.features[~chosen[name]]
        ratio = every.std(axis=0) / kept.std(axis=0) if adjust != "mean" else np.ones(WIDTH)
        target = every.mean(axis=0) if adjust != "variance" else kept.mean(axis=0)
        moved = np.clip((x - kept.mean(axis=0)) * np.clip(ratio, 0.2, 5.0) + target, -1.0, 1.0)
        assert own.labels is not None
        found[name] = complete(moved, own.labels[~chosen[name]])
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("adjust", ["both", "mean", "variance"])
def test_training_is_on_the_other_records_moved_by_hand(method: str, adjust: str) -> None:
    """The same method without alignment, on S_k as numpy aligns it, comes to the same model."""
    sites = shifted_sites(80)
    common = {**SHORT[method], **({"centre": False} if method == "fedsgd" else {"batch": 1000})}
    result, _ = run(compiled(method, {**common, "moments": {"records": 0.4, "adjust": adjust}}), sites)
    plain, _ = run(compiled(method, common), aligned_by_hand(sites, 0.4, adjust))
    unaligned, _ = run(compiled(method, common), sites)
    np.testing.assert_allclose(result.arrays["weights"], plain.arrays["weights"], atol=2e-5)
    np.testing.assert_allclose(result.arrays["bias"], plain.arrays["bias"], atol=2e-5)
    assert np.abs(unaligned.arrays["weights"] - plain.arrays["weights"]).max() > 1e-3


def skewed(seed: int = 3) -> dict[str, Records]:
    """Sites of one mix of classes whose instruments have gains and offsets of their own."""
    whole = shifted_sites(1200, sites=("a",), shift=0.0)["a"]
    rng = np.random.default_rng(seed)
    found = {}
    for name, own in zip(SITES, split_records(whole, 4).values(), strict=True):
        x = own.features * rng.uniform(0.4, 1.0, WIDTH) + rng.uniform(-0.3, 0.3, WIDTH)
        found[name] = replace(own, features=np.clip(x, -1.0, 1.0))
    return found


@pytest.mark.parametrize("method", ["fedsgd", pytest.param("fedavg", marks=pytest.mark.system)])
def test_alignment_takes_gains_and_offsets_of_sites_away(method: str) -> None:
    sites = skewed()

    def share(moments: dict[str, Any] | None) -> float:
        longer = {"steps": 40} if method == "fedsgd" else {"rounds": 15, "learning_rate": 4.0}
        asked = {**SHORT[method], **longer, **({} if moments is None else {"moments": moments})}
        result, running = run(compiled(method, asked), sites)
        model = Model.from_result(result)
        hits = []
        for name, own in sites.items():
            kept = None if moments is None else running.kept_blocks(name, LABEL)
            hits.append(np.mean(model.predict(replace(own, labels=None), name, kept) == own.labels))
        return float(np.mean(hits))

    assert share({"records": 1.0}) > share(None) + 0.03


@pytest.mark.sampled(11)
@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("moments", [{}, {"order": 4, "records": 1.0, "tau": 0.7}, {"channels": 3}, {"reference": "within"}])
@pytest.mark.parametrize("noise", [False, True])
def test_a_result_is_applied_to_the_features_that_were_trained_on(method: str, moments: dict[str, Any], noise: bool) -> None:
    """Bit for bit: the map at a site after the study is the one that its training was given."""
    study = compiled(method, {**SHORT[method], "moments": moments}, **(NOISED[method] if noise else {}))
    sites = shifted_sites(120)
    result, running = run(study, sites)
    model, label = Model.from_result(result), STEPS[method][0]
    parameters = parameters_of(study, label)
    asked = parameters.model_copy(update={"part": "all"})
    for index, (name, own) in enumerate(sites.items()):
        blocks, std = AgreedStudy(study).task(LABEL).kept_blocks(running._states.kept[index][LABEL])
        assert {key: float(value) for key, value in result.application["alignment"]["noise_std"].items()} == pytest.approx(std)
        trained = map_records(study, asked, own, result.arrays, index=index, kept=blocks, noise_std=std)
        np.testing.assert_array_equal(model.features(own, name, blocks, std), trained.features)
        np.testing.assert_array_equal(model.features(own, name, blocks), trained.features)
        moved = np.abs(trained.features - own.features).max()
        assert moved > 1e-3 or result.summary["moments"]["columns"]["none"]


def mixed_schema() -> tuple[DatasetSchema, dict[str, Records]]:
    """Numbers with absent values, and a category."""
    schema = SCHEMA.model_copy(update={"columns": (*SCHEMA.columns, CategoryColumn(name="k", categories=("a", "b")))})
    rng, found = np.random.default_rng(1), {}
    for name, own in shifted_sites(90).items():
        kind = rng.integers(0, 2, len(own))
        features = np.hstack([own.features, np.eye(2)[kind]])
        present = np.hstack([rng.random(own.features.shape) > 0.1, np.ones((len(own), 2), dtype=bool)])
        found[name] = Records(np.where(present, features, 0.0), present, own.labels)
    return schema, found


@pytest.mark.parametrize("method", ["fedsgd", pytest.param("fedavg", marks=pytest.mark.system)])
def test_categories_and_absent_values_stay(method: str) -> None:
    schema, sites = mixed_schema()
    study = compiled(method, {**SHORT[method], "moments": {}, "missing": "centre"}, schema=schema)
    result, running = run(study, sites)
    model, name = Model.from_result(result), "b"
    own = sites[name]
    found = model.features(own, name, running.kept_blocks(name, LABEL))
    np.testing.assert_array_equal(found[:, WIDTH:], own.features[:, WIDTH:])
    assert (found[~own.present] == 0.0).all()
    asked = parameters_of(study, STEPS[method][0]).model_copy(update={"part": "all"})
    blocks, std = AgreedStudy(study).task(LABEL).kept_blocks(running._states.kept[1][LABEL])
    trained = map_records(study, asked, own, result.arrays, index=1, kept=blocks, noise_std=std)
    np.testing.assert_array_equal(found, trained.features)


@pytest.mark.parametrize("method", ["fedsgd", pytest.param("fedavg", marks=pytest.mark.system)])
def test_features_of_a_projection_are_aligned_as_well(method: str) -> None:
    rng = np.random.default_rng(4)
    named, arrays = projection(rng.normal(size=(3, WIDTH)), rng.normal(size=3))
    study = compiled(method, {**SHORT[method], "moments": {"bound": 4.0}}, encoder=named)
    sites = shifted_sites(100)
    result, running = run(study, sites, encoder=arrays)
    asked = parameters_of(study, STEPS[method][0]).model_copy(update={"part": "all"})
    assert isinstance(asked, FeatureParameters)
    model = Model.from_result(result)
    for index, (name, own) in enumerate(sites.items()):
        blocks, std = AgreedStudy(study).task(LABEL).kept_blocks(running._states.kept[index][LABEL])
        trained = map_records(study, asked, own, {**arrays, **result.arrays}, index=index, kept=blocks, noise_std=std)
        np.testing.assert_array_equal(model.features(own, name, blocks), trained.features)
        np.testing.assert_allclose(trained.features.mean(axis=0), result.arrays["reference.mean"] * 4.0, atol=0.15)


def test_the_mean_of_aligned_features_costs_nothing_more() -> None:
    """fedsgd takes the reference's mean off: its result is that of centring by hand, and nothing else is released."""
    schema, sites = mixed_schema()
    asked = {**SHORT["fedsgd"], "missing": "centre", "moments": {"records": 1.0}}
    study = compiled("fedsgd", asked, schema=schema)
    assert study.parameters["centre"] is True
    assert [task.label for task in study.tasks] == [LABEL, "gradient"]
    result, running = run(study, sites)
    mean: Floats = np.append(result.arrays["reference.mean"], [0.0, 0.0])
    seen = np.concatenate([own.features[:, 0][own.present[:, 0]] for own in sites.values()])
    assert mean[0] == pytest.approx(seen.mean() * 0.9, abs=0.02)  # absent values count as 0
    model, own = Model.from_result(result), sites["a"]
    x = model.features(own, "a", running.kept_blocks("a", LABEL)) - mean
    spec = FedSGDParameters.model_validate(study.parameters).model
    assert spec is not None
    architecture = build_architecture(spec, schema.width, len(CLASSES))
    assert isinstance(architecture, Linear)
    scale, bias = architecture.scale, architecture.layers()[0].constant
    expected = scale * x @ result.arrays["model.head.weight"].T + bias * result.arrays["model.head.bias"]
    np.testing.assert_allclose(model.scores(own, "a", running.kept_blocks("a", LABEL)), expected, atol=1e-9)


def test_a_site_that_is_away_at_first_is_asked_no_more() -> None:
    """Who kept no statistic cannot align; rounds go on with the others."""
    study = compiled("fedavg", {**SHORT["fedavg"], "moments": {}}, min_cohort=3, **NOISED["fedavg"])
    running = federation(study, shifted_sites(50))
    inner = running.sum
    asked = []

    def absent_at_first(label: str, broadcast: Any = None, *, members: Any = None) -> Any:
        asked.append(members)
        return inner(label, broadcast, members=["a", "b", "c"] if label == LABEL else members)

    running.sum = absent_at_first  # type: ignore[method-assign]
    result = FedAvg().run(running)
    assert asked[0] is None
    assert all(set(members) == {"a", "b", "c"} for members in asked[1:])
    assert result.summary["rounds"] == 4


def test_a_study_that_keeps_statistics_has_one_cohort() -> None:
    """Drawing other cohorts in each round would be refused by every participant; it is said beforehand."""
    table = {"mode": "coordinated", "size": 2, "importance": dict.fromkeys(SITES, 1.0)}
    with pytest.raises(ConfigurationError, match="one cohort"):
        compiled("fedavg", {**SHORT["fedavg"], "moments": {}, "participation": table})
    natural = {"mode": "natural", "importance": dict.fromkeys(SITES, 1.0), "rates": dict.fromkeys(SITES, 0.5)}
    study = compiled("fedavg", {**SHORT["fedavg"], "moments": {}, "participation": natural})
    result, _ = run(study, shifted_sites(40))
    assert result.summary["participation"]["mode"] == "natural"
    assert result.summary["rounds"] == 4


@pytest.mark.parametrize("order", [2, 4])
def test_a_new_sites_personal_model_keeps_the_map_that_it_was_made_with(order: int, tmp_path: Path) -> None:
    result, _ = run(compiled("fedavg", {**SHORT["fedavg"], "moments": {"order": order}}), shifted_sites(50))
    own, later = shifted_sites(90)["b"], shifted_sites(95)["b"].take(np.arange(90, 95))
    new = Model.from_result(result).at_new_site(own)
    expected = new.features(later)
    assert np.abs(expected - later.features).max() > 0.01
    found = personalise(new, own)
    told = found.result(result)
    save_result(tmp_path, told)
    stored = load_model(tmp_path)
    np.testing.assert_array_equal(stored.features(later), expected)
    np.testing.assert_array_equal(stored.at_new_site(later).scores(later), found.model.scores(later))
    np.testing.assert_array_equal(
        new.at_new_site(later).features(later), Model.from_result(result).at_new_site(later).features(later)
    )
    said = told.application["alignment"]
    for wrong in ({"count": said["own"]["count"]}, {**said["own"], "t1": said["own"]["count"]}, {"matrix": "weights"}):
        with pytest.raises(HostileInput):
            Model.from_result(replace(told, application={**told.application, "alignment": {**said, "own": wrong}}))


def test_a_bundle_that_contradicts_itself_is_refused() -> None:
    result, running = run(compiled("fedavg", {**SHORT["fedavg"], "moments": {}}), shifted_sites(50))
    told, kept = result.application["alignment"], running.kept_blocks("a", LABEL)

    def changed(**changes: Any) -> Result:
        return replace(result, application={**result.application, "alignment": {**told, **changes}})

    for wrong in (
        changed(moments=None),
        changed(kind="barycenter"),
        changed(reference={name: array for name, array in told["reference"].items() if name != "reference.order"}),
        changed(moments={**told["moments"], "channels": 4}),
        changed(moments={**told["moments"], "channels": 3}),
        changed(moments={**told["moments"], "order": 3}),
        replace(result, arrays={**result.arrays, "reference.mean": np.zeros(WIDTH + 1)}),
    ):
        with pytest.raises(HostileInput):
            Model.from_result(wrong)
    model, records = Model.from_result(result), shifted_sites(10)["a"]
    with pytest.raises(Misuse, match="kept"):
        model.predict(records)
    with pytest.raises(HostileInput, match="does not fit"):
        model.predict(records, kept={name: block[:2] for name, block in kept.items()})
    assert len(CLASSES) == model.scores(records, kept=kept).shape[1]
