"""Recalibration of trained models: statsmodels' logistic regression on the model's log odds, and risks that are observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit
from scipy.stats import binomtest

from support.studies import agreed, complete, federation, split_records
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.base import Records

SITES = tuple(f"site-{index}" for index in range(4))
ENDS = tuple(ClassValues(name=name, values=(name,)) for name in ("lives", "dies", "moves"))
COLUMNS = (
    *(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(4)),
    CategoryColumn(name="k", categories=("a", "b")),
)
SCHEMA = DatasetSchema(columns=COLUMNS, label=LabelColumn(column="end", classes=ENDS[:2]), max_records=5000)
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear, with a centre": ("fedsgd", {"steps": 30}),
    "perceptron, with a centre": ("fedsgd", {"steps": 60, "model": {"name": "mlp", "options": {"hidden": 16}}}),
    "without a centre": ("fedsgd", {"steps": 30, "centre": False}),
    "aligned": ("fedsgd", {"steps": 20, "moments": {}}),
    "averaged": ("fedavg", {"rounds": 6}),
    "averaged, aligned, linear": ("fedavg", {"rounds": 6, "model": {"name": "linear"}, "moments": {"records": 1.0}}),
}


def cohort(n: int, seed: int, intercept: float = -2.9) -> Records:
    """Of whom about 9% die, by columns that lie off the middle of their bounds; a tenth of the numbers of one is missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal([0.3, -0.2, 0.0, -0.5], [0.3, 0.2, 0.4, 0.2], (n, 4)).clip(-1, 1)
    k = rng.random(n) < 0.2
    y = rng.random(n) < expit(intercept + 2.5 * (x[:, 0] - 0.3) + 3 * (x[:, 1] + 0.2) + x[:, 2] + 0.8 * k)
    return complete(np.column_stack([x, ~k, k]).astype(np.float64), y)


def compiled(method: str, parameters: dict[str, Any], epsilon: float | None, schema: DatasetSchema = SCHEMA) -> Study:
    noise = "local" if method == "fedavg" or "moments" in parameters else "distributed"
    privacy = PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon, noise=noise)
    request = StudyRequest(
        name="s", method=method, dataset="d", data=schema, parameters=parameters, privacy=privacy, expected_records=400
    )
    return agreed(request, SITES)


def run(method: str, parameters: dict[str, Any], records: Records, epsilon: float | None = None, seed: int = 0) -> Result:
    study = compiled(method, parameters, epsilon)
    return METHODS[method].run(federation(study, split_records(records, 4), seed))


def log_odds(result: Result, records: Records) -> Floats:
    scores = Model.from_result(result).scores(records)
    return np.asarray(scores[:, 1] - scores[:, 0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [kind for kind in TRAINED if "aligned" not in kind])
def test_without_noise_it_is_statsmodels_logit_on_the_models_log_odds(kind: str) -> None:
    method, parameters = TRAINED[kind]
    records = cohort(1600, 1)
    assert records.labels is not None
    plain, found = (run(method, {**parameters, "recalibrate": part}, records) for part in (0.0, 0.2))
    assert "recalibration" not in plain.summary
    before, after = log_odds(plain, records), log_odds(found, records)
    wanted = sm.Logit(records.labels, sm.add_constant(before)).fit(disp=0)
    told = found.summary["recalibration"]
    assert told["applied"] is True
    for name, value, error in zip(("intercept", "slope"), wanted.params, wanted.bse, strict=True):
        figure = told[f"calibration {name}"]
        assert figure["value"] == pytest.approx(value, abs=0.05 * error)
        assert figure["sampling_error"] == pytest.approx(error, rel=0.05)
        assert figure["noise_error"] == pytest.approx(0.0, abs=1e-3 * error)
    intercept, slope = (told[f"calibration {name}"]["value"] for name in ("intercept", "slope"))
    np.testing.assert_allclose(after, intercept + slope * before, atol=1e-6)
    assert float(expit(after).mean()) == pytest.approx(float(np.mean(records.labels)), abs=1e-3)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.system)])
@pytest.mark.parametrize(("kind", "epsilon"), [(kind, 8.0 if "linear" in kind or "out" in kind else 20.0) for kind in TRAINED])
def test_with_noise_the_mean_risk_is_within_the_interval_of_what_is_observed(kind: str, epsilon: float, seed: int) -> None:
    """About 9% of 4,000 die. The 99.99% interval leaves room for the noise; seeds are fixed."""
    method, parameters = TRAINED[kind]
    records = cohort(4000, 10 + seed)
    assert records.labels is not None
    found = run(method, {**parameters, "recalibrate": 0.3}, records, epsilon, seed)
    assert found.summary["recalibration"]["applied"], found.summary["recalibration"]
    interval = binomtest(int(records.labels.sum()), len(records)).proportion_ci(0.9999)
    if "aligned" in kind:
        return  # a model for aligned features is applied at a site, with its own moments
    assert interval.low <= float(expit(log_odds(found, records)).mean()) <= interval.high


@pytest.mark.sampled(3)
@pytest.mark.parametrize("epsilon", [None, 8.0])
@pytest.mark.parametrize("intercept", [-60.0, 60.0])
@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_where_nothing_can_be_told_the_model_stays_as_it_was(method: str, intercept: float, epsilon: float | None) -> None:
    records = cohort(800, 3, intercept)
    few = {"steps": 5} if method == "fedsgd" else {"rounds": 2}
    found = run(method, {**few, "recalibrate": 0.2}, records, epsilon)
    told = found.summary["recalibration"]
    assert told["applied"] is False
    assert "not_estimable" in told["calibration slope"]
    assert "the model stays as it was" in told["note"]
    if epsilon is None:
        np.testing.assert_array_equal(log_odds(found, records), log_odds(run(method, few, records), records))


def test_a_model_that_ranks_the_wrong_way_round_stays_as_it_was() -> None:
    records = cohort(4000, 4)
    assert records.labels is not None
    upside_down = {"model": {"name": "linear", "options": {"scale": 1.0, "bias": 1.0}}, "steps": 1}
    found = run("fedsgd", {**upside_down, "optimiser": {"learning_rate": 1e-9}, "recalibrate": 0.2}, records)
    assert found.summary["recalibration"]["applied"] in (True, False)  # nearly flat scores are told, or said to be flat
    assert np.isfinite(log_odds(found, records)).all()


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_what_cannot_be_recalibrated_is_refused(method: str) -> None:
    three = SCHEMA.model_copy(update={"label": LabelColumn(column="end", classes=ENDS)})
    with pytest.raises(ConfigurationError, match="one of two classes; this model is of 3 classes"):
        compiled(method, {"recalibrate": 0.1}, 1.0, three)
    outcome = {"outcome": {"column": "x0", "loss": "squared"}, "recalibrate": 0.1}
    with pytest.raises(ConfigurationError, match="one of two classes; this model is of an outcome"):
        compiled(method, outcome, 1.0)
    unbiased = {"model": {"name": "linear", "options": {"scale": 1.0, "bias": 0.0}}, "recalibrate": 0.1}
    with pytest.raises(ConfigurationError, match="this model has none"):
        compiled(method, unbiased, 1.0)


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_it_takes_its_part_of_the_budget(method: str) -> None:
    """Shares are of 1 / variance, and the epsilon of the whole is what the study asks for."""
    few = {"steps": 40} if method == "fedsgd" else {"rounds": 4}
    study = compiled(method, {**few, "recalibrate": 0.25}, 2.0)
    assert parse_study(study.to_bytes()) == study
    cost = {task.label: task.releases * max(task.local_steps, 1) * task.grid**2 / task.variance for task in study.tasks}
    own = sum(value for label, value in cost.items() if label.startswith("recalibration-"))
    assert own / sum(cost.values()) == pytest.approx(0.25, abs=0.02)
    plain = compiled(method, few, 2.0)
    assert "recalibrate" not in plain.parameters  # studies without it are signed as they always were
    assert not any(task.label.startswith("recalibration-") for task in plain.tasks)
