"""The method fedavg: FedAvg in plain numpy, what each plug-in reaches, participation, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chisquare

from support.federation import schema_of
from support.studies import Watched, agreed, complete, pooled, skewed_sites
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedavg import Participation, ParticipationParameters
from veilsum_coordinator.parts.local_rounds import LocalRounds
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.accounting.accountant import Course, GaussianEvent, epsilon_of
from veilsum_privacy.computation.weights import SCORES, WEIGHTS
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.mlp import Descent, train
from veilsum_privacy.training.models import build_architecture
from veilsum_privacy.training.objectives import OBJECTIVES
from veilsum_privacy.training.predict import representations

SITES = ("site-0", "site-1", "site-2")
K, D = 3, 4
CONVEX = {"model": {"name": "linear", "options": {"scale": 1.0, "bias": 1.0}}, "learning_rate": 0.5}


def compiled(
    schema: DatasetSchema | None = None,
    epsilon: float | None = None,
    sites: Sequence[str] = SITES,
    privacy: Mapping[str, Any] | None = None,
    **parameters: object,
) -> Study:
    demand = {"noise": "none"} if epsilon is None else {"epsilon": epsilon, "noise": "local"}
    request = StudyRequest(
        name="s",
        method="fedavg",
        dataset="d",
        data=schema or schema_of(D, K),
        parameters=parameters,
        privacy=PrivacyRequest(**{**demand, **(privacy or {})}),
    )
    return agreed(request, sites)


def run(study: Study, sites: Mapping[str, Records] | None = None, seed: int = 0) -> tuple[Result, Watched]:
    watched = Watched(study, sites or skewed_sites(0), seed)
    result = METHODS["fedavg"].run(watched)
    json.dumps(result.summary, allow_nan=False)
    return result, watched


def accuracy(result: Result, sites: Mapping[str, Records]) -> float:
    model = Model.from_result(result)
    return float(np.mean([np.mean(model.predict(own) == own.labels) for own in sites.values()]))


def own_models(watched: Watched, number: int, sites: Mapping[str, Records], descent: Descent) -> list[list[np.ndarray]]:
    """What each site trains in a round, in plain numpy."""
    told = watched.broadcasts[number]
    names = [name for name in told if name.startswith("model.")]
    seeds = told["training.seeds"][:, 0]
    return [
        train([told[name] for name in names], own.features, own.labels, descent, np.random.default_rng(int(seed)))
        for own, seed in zip(sites.values(), seeds, strict=True)
    ]


@pytest.mark.parametrize("weighting", ["equal", "records"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_two_rounds_are_fedavg_in_plain_numpy(weighting: str, model: str) -> None:
    sites = skewed_sites(0)
    sites["site-1"] = sites["site-1"].take(slice(90))
    options = {"scale": 1.0, "bias": 1.0} if model == "linear" else {"hidden": 6}
    study = compiled(
        rounds=2, epochs=2, batch=32, learning_rate=0.1, momentum=0.5, weighting=weighting,
        model={"name": model, "options": options},
    )  # fmt: skip
    result, watched = run(study, sites)
    weights = [len(own) if weighting == "records" else 1.0 for own in sites.values()]
    for number in range(2):
        parts = own_models(watched, number, sites, Descent(2, 32, 0.1, 0.5))
        means = [np.average(part, axis=0, weights=weights) for part in zip(*parts, strict=True)]
        after = watched.broadcasts[1] if number == 0 else result.arrays
        names = [name for name in watched.broadcasts[0] if name.startswith("model.")]
        for name, mean in zip(names, means, strict=True):
            np.testing.assert_allclose(after[name], mean, atol=1e-8)  # three times half a unit of 100 / 2^40
    assert not np.any(watched.broadcasts[0]["training.seeds"][:, 0] == watched.broadcasts[1]["training.seeds"][:, 0])


def test_normalised_averaging_is_fednovas() -> None:
    sites = skewed_sites(0)
    sites["site-1"] = sites["site-1"].take(slice(64))
    study = compiled(rounds=1, epochs=1, batch=32, weighting="records", normalised=True, **CONVEX)
    result, watched = run(study, sites)
    parts = own_models(watched, 0, sites, Descent(1, 32, 0.5))
    weights = np.array([len(own) for own in sites.values()]) / sum(len(own) for own in sites.values())
    steps = np.array([-(-len(own) // 32) for own in sites.values()])
    start = watched.broadcasts[0]["model.head.weight"]
    mean = sum(w * (part[0] - start) / t for w, part, t in zip(weights, parts, steps, strict=True))
    np.testing.assert_allclose(result.arrays["model.head.weight"], start + (weights @ steps) * mean, atol=1e-8)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "yogi"])
def test_fedopt_takes_the_mean_update_for_a_gradient(optimiser: str) -> None:
    """Two rounds against the text's algorithm 2, without its correction for the beginning."""
    sites = skewed_sites(0)
    server = {"name": optimiser, "learning_rate": 0.3, "momentum": 0.4 if optimiser == "sgd" else 0.0, "tau": 0.01}
    result, watched = run(compiled(rounds=2, server=server, **CONVEX), sites)
    m, v = 0.0, 0.01**2
    for number in range(2):
        start = watched.broadcasts[number]["model.head.weight"]
        delta = np.mean([part[0] for part in own_models(watched, number, sites, Descent(1, 64, 0.5))], axis=0) - start
        if optimiser == "sgd":
            m = 0.4 * m + delta
            expected = start + 0.3 * m
        else:
            m = 0.9 * m + 0.1 * delta
            v = 0.99 * v + 0.01 * delta**2 if optimiser == "adam" else v - 0.01 * delta**2 * np.sign(v - delta**2)
            expected = start + 0.3 * m / (np.sqrt(v) + 0.01)
        after = watched.broadcasts[1] if number == 0 else result.arrays
        np.testing.assert_allclose(after["model.head.weight"], expected, atol=1e-6)


@pytest.mark.system
def test_drift_correction_reaches_the_common_optimum() -> None:
    """With full batches and ten local steps FedAvg stops beside the optimum of all sites together; these two reach it."""
    sites = skewed_sites(1, 200, (0.97, 0.02, 0.01))
    x, y = pooled(sites)

    def gradient(weight: np.ndarray, bias: np.ndarray) -> float:
        error = (softmax(x @ weight.T + bias, axis=1) - np.eye(K)[y]) / len(x)
        return float(np.sqrt(np.sum((error.T @ x + 0.02 * weight) ** 2) + np.sum((error.sum(axis=0) + 0.02 * bias) ** 2)))

    sizes = {}
    for name, options in (("none", {}), ("scaffold", {}), ("dyn", {"alpha": 0.5})):
        asked = {"name": name, "options": options}
        study = compiled(rounds=70, epochs=10, batch=1000, decay=0.02, objective=asked, **CONVEX)
        result, _ = run(study, sites)
        sizes[name] = gradient(result.arrays["model.head.weight"], result.arrays["model.head.bias"])
    assert sizes["none"] > 3e-3
    assert sizes["scaffold"] < sizes["none"] / 10
    assert sizes["dyn"] < sizes["none"] / 10


@pytest.mark.sampled(5)
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("epsilon", [None, 50.0])
def test_every_objective_learns(name: str, epsilon: float | None) -> None:
    if name == "iir" and epsilon is not None:
        with pytest.raises(ConfigurationError, match="whole batch"):
            compiled(epsilon=epsilon, objective={"name": name})
        return
    model = {"name": "mlp", "options": {"hidden": 8}}
    study = compiled(epsilon=epsilon, rounds=6, objective={"name": name}, model=model, learning_rate=0.5)
    result, watched = run(study, skewed_sites(0, 120))
    even = skewed_sites(50, 200, (0.34, 0.33, 0.33))
    assert accuracy(result, even) > 0.6
    assert set(result.arrays) >= {"model.head.weight", "model.features.hidden.weight"}
    assert not any("spread" in array for array in result.arrays)
    assert len(watched.broadcasts) == 6


def test_prototypes_come_from_all_sites() -> None:
    study = compiled(rounds=2, objective={"name": "proto"}, model={"name": "mlp", "options": {"hidden": 5}})
    sites = skewed_sites(0)
    _, watched = run(study, sites)
    assert not watched.broadcasts[0]["proto.known"].any()
    told = watched.broadcasts[1]
    names = [name for name in told if name.startswith("model.")]
    architecture = build_architecture(LocalRounds(Watched(study, sites), _parameters(study)).task.parameters.model, D, K)
    sums, counts = np.zeros((K, 5)), np.zeros(K)
    for own, arrays in zip(sites.values(), own_models(watched, 0, sites, Descent(1, 64, 0.1)), strict=True):
        named = dict(zip([name.removeprefix("model.") for name in names], arrays, strict=True))
        z = representations(architecture, named, own.features)
        for c in range(K):
            sums[c] += z[own.labels == c].sum(axis=0)
            counts[c] += np.sum(own.labels == c)
    np.testing.assert_allclose(told["proto.prototypes"], sums / counts[:, None], atol=1e-3)
    assert told["proto.known"].all()


def _parameters(study: Study) -> Any:
    return METHODS["fedavg"].Parameters.model_validate(study.parameters)


# With noise.


def test_the_study_is_booked_as_the_steps_it_takes() -> None:
    for objective, further in (("none", 0), ("proto", 1)):
        study = compiled(epsilon=3.0, rounds=4, local_steps=6, sampling_rate=0.2, objective={"name": objective})
        (task,) = study.tasks
        assert (task.local_steps, task.releases, task.sampling_rate) == (6 + further, 4, 0.2)
        event = GaussianEvent(
            task.grid, Fraction(task.variance), 0.2, 4 * (6 + further), Course(4 * (6 + further), task.slack)
        )
        assert study.privacy.epsilon == epsilon_of([event], 1e-5, "gaussian")
        assert 2.9 < study.privacy.epsilon <= 3.0
        assert task.parameters["expected_records"] == 1000


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.system  # coverage of a forecast, over many runs
def test_travel_is_how_far_noise_alone_moves_the_mean_model(momentum: float) -> None:
    """Sites without records, so that nothing but noise moves; (4 + 1) x 3 values from zero on."""
    nobody = {name: complete(np.zeros((0, D)), np.zeros(0)) for name in SITES}
    study = compiled(epsilon=2.0, rounds=4, local_steps=12, travel=30.0, momentum=momentum, model={"name": "linear"})
    squares = []
    for seed in range(12):
        result, _ = run(study, nobody, seed)
        squares.append(np.sum(result.arrays["model.head.weight"] ** 2) + np.sum(result.arrays["model.head.bias"] ** 2))
    # 12 x 15 squares of normal numbers: 10% is their standard error; with momentum a round cuts the last steps short.
    assert np.sqrt(np.mean(squares)) == pytest.approx(30.0, rel=0.2)


def test_the_rate_is_stated_or_follows_from_the_travel() -> None:
    stated, follows, pulled, clear = (
        compiled(epsilon=epsilon, **parameters).parameters
        for epsilon, parameters in (
            (1.0, {"learning_rate": 0.2}), (1.0, {}), (1.0, {"objective": {"name": "prox"}}), (None, {})
        )
    )  # fmt: skip
    assert (stated["travel"], follows["learning_rate"], clear["travel"]) == (None, None, None)
    assert follows["travel"] is not None
    assert (pulled["travel"], pulled["learning_rate"]) == (None, (0.5).hex())
    for epsilon, parameters in ((1.0, {"travel": 5.0, "learning_rate": 0.1}), (None, {"travel": 5.0})):
        with pytest.raises(ConfigurationError, match="travel"):
            compiled(epsilon=epsilon, **parameters)


@pytest.mark.system
def test_more_epsilon_learns_more() -> None:
    even, found = skewed_sites(50, 200, (0.34, 0.33, 0.33)), {}
    for epsilon in (0.05, 20.0):
        study = compiled(schema_of(D, K, 300), epsilon, rounds=5, local_steps=5, model={"name": "linear"})
        found[epsilon] = np.mean([accuracy(run(study, skewed_sites(0), seed)[0], even) for seed in range(3)])
    assert found[20.0] > 0.75
    assert found[20.0] > found[0.05] + 0.1


def test_a_mean_of_the_last_models_is_the_result() -> None:
    study = compiled(rounds=4, average=0.5, checkpoint_every=3, **CONVEX)
    result, watched = run(study)
    last, _ = run(compiled(rounds=4, **CONVEX))
    mean = (watched.broadcasts[3]["model.head.weight"] + last.arrays["model.head.weight"]) / 2
    np.testing.assert_allclose(result.arrays["model.head.weight"], mean, atol=1e-9)
    assert watched.kept == [{"round": 3, "rounds": 4}]


# Participation.

FIVE = tuple(f"site-{index}" for index in range(5))


def test_transported_weights_meet_importance_where_they_can() -> None:
    rates = dict(zip(FIVE, (1.0, 1.2, 1.4, 1.6, 1.8), strict=True))
    importance = dict(zip(FIVE, (0.26, 0.23, 0.2, 0.17, 0.14), strict=True))
    who = Participation(ParticipationParameters(rates=rates, importance=importance), FIVE)
    said = who.summary()
    assert said["feasible"] is True
    assert said["residual"] < 1e-8
    rng, total = np.random.default_rng(0), np.zeros(5)
    for _ in range(8_000):
        members, told = who.draw(rng)
        assert members is not None
        assert len(members) == 2
        places = [FIVE.index(name) for name in members]
        weights = np.exp(told[SCORES][places] - told[SCORES][places].max())
        total[places] += weights / weights.sum()
    np.testing.assert_allclose(total / 8_000, list(importance.values()), atol=0.02)


def test_who_is_in_the_way_is_named() -> None:
    importance = dict(zip(FIVE, (0.9, 0.025, 0.025, 0.025, 0.025), strict=True))
    said = Participation(ParticipationParameters(rates=dict.fromkeys(FIVE, 1.0), importance=importance), FIVE).summary()
    assert said["feasible"] is False
    assert said["blocking"] == ["site-0"]
    assert said["excess"] == pytest.approx(0.9 - 0.4)
    assert said["residual"] >= 2 * said["excess"] - 1e-9
    json.dumps(said)


def test_a_coordinated_design_meets_any_importance() -> None:
    importance = np.array([0.9, 0.025, 0.025, 0.03, 0.02])
    given = dict(zip(FIVE, importance, strict=True))
    who = Participation(ParticipationParameters(mode="coordinated", size=2, importance=given), FIVE)
    rng, total = np.random.default_rng(0), np.zeros(5)
    for _ in range(8_000):
        members, told = who.draw(rng)
        assert members is not None
        places = [FIVE.index(name) for name in members]
        assert told[WEIGHTS][places].sum() == pytest.approx(1.0)
        total[places] += told[WEIGHTS][places]
    np.testing.assert_allclose(total / 8_000, importance, atol=0.015)
    assert who.summary()["always"] == ["site-0"]


def test_uniform_rounds_take_every_set_of_sites_alike() -> None:
    given = dict(zip(FIVE, (0.9, 0.025, 0.025, 0.03, 0.02), strict=True))
    who = Participation(ParticipationParameters(mode="uniform", size=2, importance=given), FIVE)
    rng, counts = np.random.default_rng(0), Counter[tuple[str, ...]]()
    for _ in range(10_000):
        members, told = who.draw(rng)
        assert members is not None
        counts[members] += 1
        np.testing.assert_allclose(told[WEIGHTS], list(given.values()))
    assert set(counts) == set(combinations(FIVE, 2))
    assert chisquare(list(counts.values())).pvalue > 1e-4
    assert who.scale(FIVE[:1]) == 1.0


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("importance", [(1.0, 1.0, 1.0, 1.0, 1.0), (0.6, 0.1, 0.1, 0.1, 0.1)])
def test_fedavg_k_in_plain_numpy(importance: tuple[float, ...], unscaled: bool) -> None:
    """McMahan et al. divide by the sum of a round's weights; FedAVOT's control is sum_i (N / K) p_i theta_i as it stands."""
    sites = skewed_sites(0, 100, sites=FIVE)
    sites["site-3"] = sites["site-3"].take(slice(0))
    p = np.array(importance) / sum(importance)
    table = {"mode": "uniform", "size": 2, "importance": dict(zip(FIVE, importance, strict=True)), "unscaled": unscaled}
    study = compiled(sites=FIVE, rounds=6, participation=table, **CONVEX)
    result, watched = run(study, sites)
    factors = set()
    for number, members in enumerate(watched.members):
        assert members is not None
        assert len(members) == 2
        places = [FIVE.index(name) for name in members]
        weights = 5 / 2 * p[places] if unscaled else p[places] / p[places].sum()
        factors.add(round(float(weights.sum()), 9))
        parts = own_models(watched, number, sites, Descent(1, 64, 0.5))
        after = watched.broadcasts[number + 1] if number < 5 else result.arrays
        for index, name in enumerate(("model.head.weight", "model.head.bias")):
            expected = sum(weight * parts[place][index] for weight, place in zip(weights, places, strict=True))
            np.testing.assert_allclose(after[name], expected, atol=1e-8)
    assert len(set(watched.members)) > 1
    assert (factors == {1.0}) == (not unscaled or len(set(importance)) == 1)
    assert result.summary["participation"] == {"mode": "uniform", "size": 2}


def test_a_member_that_fails_leaves_unscaled_weights_of_those_who_came() -> None:
    given = dict(zip(FIVE, (0.6, 0.1, 0.1, 0.1, 0.1), strict=True))
    who = Participation(ParticipationParameters(mode="uniform", size=3, importance=given, unscaled=True), FIVE)
    assert who.scale(("site-0", "site-4")) == pytest.approx(5 / 2 * 0.7)
    assert who.scale(["site-4"]) == pytest.approx(0.5)


def test_a_public_draw_of_sites_lowers_no_price() -> None:
    """Members know of each round that they are in it: a site drawn every time spends what one does where all take part."""
    plain = compiled(epsilon=3.0, sites=FIVE, rounds=4, sampling_rate=0.2)
    drawn = compiled(epsilon=3.0, sites=FIVE, rounds=4, sampling_rate=0.2, participation={"mode": "uniform", "size": 2})
    for study in (plain, drawn):
        (task,) = study.tasks
        assert (task.releases, task.sampling_rate) == (4, 0.2)
    assert drawn.tasks[0].variance == plain.tasks[0].variance
    assert drawn.privacy.epsilon == plain.privacy.epsilon


@pytest.mark.parametrize("mode", ["available", "natural", "coordinated"])
def test_a_round_is_the_weighted_mean_of_its_members(mode: str) -> None:
    sites = skewed_sites(0, 100, sites=FIVE)
    importance = dict(zip(FIVE, (0.3, 0.25, 0.2, 0.15, 0.1), strict=True))
    table: dict[str, Any] = {"mode": mode, "importance": importance}
    if mode == "coordinated":
        table["size"] = 3
    else:
        table["subsets"] = [{"sites": list(FIVE[first : first + 3]), "probability": 1.0 + first} for first in range(3)]
    study = compiled(sites=FIVE, rounds=3, participation=table, **CONVEX)
    result, watched = run(study, sites)
    for number in range(3):
        members = watched.members[number]
        places = [FIVE.index(name) for name in members or FIVE]
        assert (members is None) == (mode == "natural")
        told = watched.broadcasts[number]
        weights = told[WEIGHTS][places] if mode == "coordinated" else np.exp(told[SCORES][places])
        parts = own_models(watched, number, sites, Descent(1, 64, 0.5))
        expected = np.average([parts[place][0] for place in places], axis=0, weights=weights)
        after = watched.broadcasts[number + 1] if number < 2 else result.arrays
        np.testing.assert_allclose(after["model.head.weight"], expected, atol=1e-8)
    assert result.summary["participation"]["mode"] == mode


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"objective": {"name": "proxy"}}, "Did you mean 'prox'"),
        ({"objective": {"name": "prox", "options": {"my": 1}}}, "mu"),
        (
            {"objective": {"name": "scaffold"}, "participation": {"mode": "coordinated", "size": 2}},
            "with a participation table",
        ),
        ({"weighting": "records", "participation": {"mode": "coordinated", "size": 2}}, "importance"),
        ({"participation": {"mode": "coordinated"}}, "takes a size"),
        ({"participation": {"mode": "uniform"}}, "uniform participation takes a size"),
        ({"participation": {"mode": "coordinated", "size": 2, "unscaled": True}}, "of uniform participation"),
        ({"participation": {"mode": "available"}}, "either rates"),
        ({"participation": {"size": 3}}, "either rates"),
        ({"model": {"name": "lenet5"}}, "images"),
        ({"server": {"name": "adagrad"}}, "server"),
        ({"class_weights": {"c0": 1.0}}, "each class of the label a weight"),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        compiled(**parameters)


def test_what_is_refused_under_noise() -> None:
    with pytest.raises(ConfigurationError, match="number of records"):
        compiled(epsilon=1.0, weighting="records")
    with pytest.raises(ConfigurationError, match="needs a label"):
        compiled(schema_of(D, K).model_copy(update={"label": None}))


def test_sites_that_a_table_does_not_know_are_named() -> None:
    for mode in ("coordinated", "uniform"):
        for table in ({"importance": {"site-9": 1.0}}, {"importance": dict.fromkeys(SITES[:2], 1.0)}):
            study = compiled(participation={"mode": mode, "size": 2, **table})
            with pytest.raises(ConfigurationError, match="site-"):
                METHODS["fedavg"].run(Watched(study, skewed_sites(0)))
    for table, match in (({"size": 4}, "exceeds"), ({"importance": dict(zip(SITES, (1, 1, 0), strict=True))}, "every site")):
        study = compiled(participation={"mode": "uniform", "size": 2, **table})
        with pytest.raises(ConfigurationError, match=match):
            METHODS["fedavg"].run(Watched(study, skewed_sites(0)))


def test_sites_without_records_change_nothing() -> None:
    sites = {name: complete(np.zeros((0, D)), np.zeros(0)) for name in SITES}
    for weighting in ("equal", "records"):
        result, _ = run(compiled(rounds=2, weighting=weighting, **CONVEX), sites)
        assert not result.arrays["model.head.weight"].any()


def test_cohorts_that_sites_would_refuse_are_found_before_submission() -> None:
    """A simulation may run them; a federation's sites have a smallest cohort, and strict studies one cohort only."""
    table = {"mode": "coordinated", "size": 2}
    study = compiled(epsilon=3.0, participation=table)
    method = METHODS["fedavg"]
    with pytest.raises(ConfigurationError, match="min_cohort"):
        method.check_federation(study)
    small = study.model_copy(update={"privacy": study.privacy.model_copy(update={"min_cohort": 2})})
    method.check_federation(small)
    strict = small.model_copy(update={"privacy": small.privacy.model_copy(update={"cohort_difference": "strict"})})
    with pytest.raises(ConfigurationError, match="allows only one"):
        method.check_federation(strict)
    turns = tuple({"sites": sites, "probability": 0.5} for sites in (SITES[:1], SITES))
    for alone in ({"mode": "uniform", "size": 1}, {"subsets": turns}):
        with pytest.raises(ConfigurationError, match="cohorts of one site") as refused:
            method.check_federation(compiled(epsilon=3.0, participation=alone))
        assert "min_cohort" not in str(refused.value), "none is small enough"
    method.check_federation(compiled())
