"""Evaluations of trees and networks that predict numbers, counts and times, against scikit-learn and lifelines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance, mean_squared_error, r2_score

from support.studies import SITES, STAYS, Watched, agreed, drafted, federation, split_records
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum.plan import plan_study
from veilsum.request import with_model
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.results.released_models import find_released, released_arrays, result_predictor
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("few_rehearsals", "plans_without_search")

WITHOUT = {"time": [0, 1, 2, 4], "number": [0, 1, 2, 4, 5, 6, 7], "count": [0, 1, 2, 4, 5, 6, 7]}
OUTCOMES: dict[str, dict[str, Any]] = {
    "number": {"column": "stay", "loss": "squared"},
    "count": {"column": "stay", "loss": "poisson"},
    "time": {"column": "stay", "loss": "hazard", "event": "end", "censored": ["home", "moved"], "cuts": [10.0, 20.0]},
}
MLP = {"model": {"name": "mlp", "options": {"hidden": 8}}}
QUICK = {"steps": 150, "optimiser": {"name": "adam", "learning_rate": 0.05}}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "trees of a number": ("gbdt", "number", {"rounds": 8, "depth": 2}),
    "trees of a count": ("gbdt", "count", {"rounds": 8, "depth": 2, "most": 25.0}),
    "a perceptron of a number": ("fedsgd", "number", {**MLP, "steps": 60}),
    "a perceptron of a count": ("fedsgd", "count", {**MLP, "steps": 60}),
    "a perceptron of a time": ("fedsgd", "time", {**MLP, **QUICK}),
    "hazards of three periods": ("fedsgd", "time", {"model": {"name": "linear"}, **QUICK}),
}


def drawn(kind: str, n: int, seed: int) -> tuple[Records, dict[str, Any]]:
    """Records whose stay depends on age, ward and dose, not linearly; some doses are missing."""
    rng = np.random.default_rng(seed)
    age, dose, ward = rng.uniform(-1, 1, n), rng.uniform(-1, 1, n), rng.integers(0, 2, n)
    eta = 0.6 * np.abs(age) * (1.0 + ward) - 0.3 * dose
    end, died = rng.choice([0, 2], n), np.zeros(n, dtype=np.bool_)
    if kind == "time":
        times, left = rng.exponential(15.0 * np.exp(-eta)), rng.uniform(0, 60, n)
        stay, died = np.minimum(np.minimum(times, left), 40.0), (times <= left) & (times < 40.0)
        end = np.where(died, 1, end)
    else:
        stay = np.minimum(rng.poisson(6.0 * np.exp(eta)) if kind == "count" else 15 + 8 * eta + rng.normal(0, 3, n), 40.0)
        stay = np.maximum(stay, 0.0)
    ends = (end[:, None] == np.arange(3)).astype(np.float64)
    features = np.column_stack([age, ward == 0, ward == 1, stay / 20.0 - 1.0, dose, ends]).astype(np.float64)
    present = np.ones(features.shape, dtype=np.bool_)
    present[:, 4] = rng.random(n) > 0.03
    return Records(np.where(present, features, 0.0), present, None), {"stay": stay, "died": died, "known": present[:, 4]}


def request_of(method: str, parameters: dict[str, Any], epsilon: float | None) -> StudyRequest:
    privacy = PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon)
    return StudyRequest(
        name="s", method=method, dataset="stays", data=STAYS, parameters=parameters, privacy=privacy, expected_records=2000
    )


def trained(which: str, folder: Path) -> Result:
    """The model of 4,000 records, released without noise, in a folder."""
    result = model_of(which)
    save_result(folder / which.replace(" ", "-"), result)
    return result


@cache
def model_of(which: str) -> Result:
    method, kind, parameters = MODELS[which]
    study = agreed(request_of(method, {"outcome": OUTCOMES[kind], **parameters}, None), SITES)
    return METHODS[method].run(Watched(study, split_records(drawn(kind, 4000, 1)[0], SITES)))


def evaluation(which: str, folder: Path, epsilon: float | None) -> StudyRequest:
    return with_model(request_of("federated-evaluation", {"result": which.replace(" ", "-")}, epsilon), folder)


def evaluated(study: Study, records: Records, folder: Path, seed: int = 0) -> Result:
    sites = federation(study, split_records(records, SITES), seed, find_released(folder, study))
    return METHODS[study.method].run(sites)


def estimates(kind: str, result: Result, records: Records) -> Floats:
    """What a site gets from `veilsum participant apply`."""
    own = WITHOUT[kind]
    return Model.from_result(result).estimates(Records(records.features[:, own], records.present[:, own], None))


def oracle(kind: str, said: Floats, truth: dict[str, Any]) -> dict[str, float]:
    """The measures by other packages, of what is predicted record by record."""
    from lifelines import CoxPHFitter
    from lifelines.utils import concordance_index

    known = np.isfinite(said)
    y, said = truth["stay"][known], said[known]
    assert known.sum() == truth["known"].sum()  # features are skipped that are missing
    if kind == "number":
        return {"R squared": r2_score(y, said), "root mean squared error": mean_squared_error(y, said) ** 0.5}
    if kind == "count":
        return {
            "observed over expected": y.sum() / said.sum(),
            "mean deviance": mean_poisson_deviance(y, said),
            "deviance explained": d2_tweedie_score(y, said, power=1),
        }
    h, died = np.log(-np.log1p(-said)), truth["died"][known]
    frame = pd.DataFrame({"time": y, "event": died, "h": h})
    slope = float(CoxPHFitter().fit(frame, "time", "event").params_.iloc[0])
    return {"concordance": concordance_index(y, -h, died), "calibration slope": slope}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("which", list(MODELS))
def test_without_noise_measures_are_those_of_other_packages(which: str, tmp_path: Path) -> None:
    """To half of what sampling does to them, records being counted by level of the prediction."""
    kind, result = MODELS[which][1], trained(which, tmp_path)
    records, truth = drawn(kind, 8000, 2)
    wanted = oracle(kind, estimates(kind, result, records), truth)
    study = agreed(evaluation(which, tmp_path, None), SITES)
    summary = evaluated(study, records, tmp_path).summary
    found = {row["measure"]: row["value"] for row in summary["measures"]}
    for name, value in wanted.items():
        near = 0.012 if name == "concordance" else 0.6 * found[name]["sampling_error"]
        assert found[name]["value"] == pytest.approx(value, abs=near), name
    counted = sum(row["records"]["value"] for row in summary["levels"])
    assert counted == pytest.approx(truth["known"].sum(), abs=1)
    outer = sum(summary["levels"][place]["records"]["value"] for place in (0, -1))
    assert outer < 0.05 * counted  # few predictions are cut to the bounds


@pytest.mark.system
@pytest.mark.parametrize(
    "which",
    [
        "trees of a number",
        pytest.param("trees of a count", marks=pytest.mark.system),
        pytest.param("a perceptron of a time", marks=pytest.mark.system),
    ],
)
def test_with_noise_intervals_cover_and_are_planned(which: str, tmp_path: Path) -> None:
    kind, result = MODELS[which][1], trained(which, tmp_path)
    records, truth = drawn(kind, 8000, 3)
    wanted = oracle(kind, estimates(kind, result, records), truth)
    request = evaluation(which, tmp_path, 3.0)
    study = agreed(request, SITES)
    plan = plan_study(drafted(request, SITES), study)
    told = {item.quantity: item.half_width for part in plan.parts for item in part.forecasts}
    inside, widths = dict.fromkeys(wanted, 0), {name: list[float]() for name in wanted}
    for seed in range(6):
        for row in evaluated(study, records, tmp_path, seed).summary["measures"]:
            if (name := row["measure"]) in wanted:
                value = row["value"]
                inside[name] += value["low"] <= wanted[name] <= value["high"]
                widths[name].append((value["high"] - value["low"]) / 2.0)
                assert value["noise_error"] > 0.0
    assert min(inside.values()) >= 4, inside
    for name, each in widths.items():
        if name != "calibration slope":  # of a hazard it is not told of typical records, which die by chance
            assert np.median(each) == pytest.approx(told[name], rel=2.0), name


def test_the_study_names_the_model_and_any_other_is_refused(tmp_path: Path) -> None:
    result = trained("trees of a number", tmp_path)
    study = agreed(evaluation("trees of a number", tmp_path, 1.0), SITES)
    sha256, arrays = released_arrays(result)
    (task,) = study.tasks
    assert (task.task, task.releases, task.parameters["sha256"]) == ("model-tables", 1, sha256)
    assert set(find_released(tmp_path, study)) == set(arrays)
    records = split_records(drawn("number", 100, 4)[0], SITES)
    changed = {name: array + 0.5 * (name == "model.leaves") for name, array in arrays.items()}
    with pytest.raises(HostileInput, match="not the one that the study names"):
        METHODS[study.method].run(federation(study, records, 0, changed))


def test_bounds_are_stated_by_the_result_or_found_without_records(tmp_path: Path) -> None:
    result = trained("a perceptron of a count", tmp_path)
    told = result_predictor(result)
    older = result_predictor(Result(result.method, {}, result.arrays, result.application))
    assert told is not None
    assert older is not None
    assert (told.prediction.low, told.prediction.high) == tuple(result.summary["score"][0].values())
    span = told.prediction.high - told.prediction.low
    assert abs(older.prediction.low - told.prediction.low) < 0.5 * span
    assert older.prediction.by == told.prediction.by
    still = {name: np.zeros_like(array) for name, array in result.arrays.items()}
    with pytest.raises(Misuse, match="the same for every record"):
        result_predictor(Result(result.method, {}, still, result.application))


def test_what_cannot_be_evaluated_is_said(tmp_path: Path) -> None:
    trained("trees of a number", tmp_path)
    request = request_of("federated-evaluation", {"result": "trees-of-a-number"}, 1.0)
    wider = NumberColumn(name="stay", low=0, high=50, unit="days")
    for columns in ((*STAYS.columns[:2], wider, *STAYS.columns[3:]), STAYS.columns[1:]):
        other = request.model_copy(update={"data": STAYS.model_copy(update={"columns": columns})})
        with pytest.raises(ConfigurationError, match="other columns or bounds"):
            with_model(other, tmp_path)
    named = NumberColumn(name="prediction", low=0, high=1)
    parameters = with_model(request, tmp_path).parameters
    taken = request.model_copy(
        update={"data": STAYS.model_copy(update={"columns": (*STAYS.columns, named)}), "parameters": parameters}
    )
    with pytest.raises(ConfigurationError, match="'prediction'"):
        agreed(taken, SITES)


@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_the_predictor_is_what_a_site_is_told(kind: str, tmp_path: Path) -> None:
    """Outcome.predictor of a model's scores, against the estimates that are made apart from it."""
    which = {"number": "trees of a number", "count": "trees of a count", "time": "hazards of three periods"}[kind]
    result = trained(which, tmp_path)
    own = WITHOUT[kind]
    records, _ = drawn(kind, 200, 5)
    model = Model.from_result(result)
    z = model.scores(Records(records.features[:, own], records.present[:, own], None))
    known = np.isfinite(z).all(axis=1)
    h = Outcome.model_validate(OUTCOMES[kind]).predictor(z[known], STAYS, 25.0 if kind == "count" else None)
    told = {"number": lambda h: h, "count": np.exp, "time": lambda h: -np.expm1(-np.exp(h))}[kind](h)
    np.testing.assert_allclose(told, estimates(kind, result, records)[known], rtol=1e-9)


def test_rows_are_those_of_the_record_alone(tmp_path: Path) -> None:
    """Also beyond the chunk in which records are scored."""
    trained("a perceptron of a time", tmp_path)
    study = agreed(evaluation("a perceptron of a time", tmp_path, 1.0), SITES)
    task = build_task(study.tasks[0].task, study.tasks[0].parameters, STAYS)
    arrays, (records, _) = find_released(tmp_path, study), drawn("time", 4200, 6)
    every = np.vstack(list(task_rows(task, records, arrays)))  # type: ignore[attr-defined]
    for place in (0, 1, 4095, 4096, 4199):
        alone = np.vstack(list(task_rows(task, records.take(np.array([place])), arrays)))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(alone[0], every[place])
