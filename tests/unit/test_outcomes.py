"""Training on numbers, counts and times: losses, tasks, methods and released models, each against another implementation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, PoissonRegressor

from support.gradient_sums import task_vector
from support.rows import cells_of
from support.studies import SITES, STAYS, Watched, compiled, complete, split_records
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedsgd import FedSGDParameters
from veilsum_coordinator.parts.predictions import Prediction
from veilsum_coordinator.results.released_models import result_model, result_prediction
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.queries.cells import NumberDomain, ScaledNumbers
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.losses import Hazards, Huber, OutcomeLoss, Poisson, Squared, intervals
from veilsum_privacy.training.models import ModelSpec, build_architecture

SCHEMA = STAYS.model_copy(update={"max_records": 2000})
FEATURES = np.array([0, 1, 2, 4])
NUMBER = {"column": "stay", "loss": "squared"}
COUNT = {"column": "stay", "loss": "poisson"}
TIME = {"column": "stay", "loss": "hazard", "event": "end", "censored": ["home", "moved"]}


def drawn(kind: str, n: int = 2000, seed: int = 0) -> Records:
    """Records whose stay depends on age, ward and dose."""
    rng = np.random.default_rng(seed)
    age, dose, ward = rng.uniform(-1, 1, n), rng.uniform(-1, 1, n), rng.integers(0, 2, n)
    eta = 0.5 * age - 0.3 * dose + 0.4 * ward
    ends = np.zeros((n, 3))
    if kind == "time":
        times, censored = rng.exponential(15.0 * np.exp(-eta)), rng.uniform(0, 60, n)
        stay, died = np.minimum(times, censored), times <= censored
        ends[np.arange(n), np.where(died, 1, rng.choice([0, 2], n))] = 1.0
    else:
        stay = rng.poisson(6.0 * np.exp(eta)) if kind == "count" else 15 + 8 * eta + rng.normal(0, 3, n)
        ends[:, 0] = 1.0
    scaled = np.clip(np.asarray(stay, dtype=np.float64) / 20.0 - 1.0, -1, 1)
    return complete(np.column_stack([age, ward == 0, ward == 1, scaled, dose, ends]).astype(np.float64))


def trained(outcome: dict[str, Any], records: Records, method: str = "fedsgd", **options: Any) -> Result:
    parameters = {"outcome": outcome, **options.pop("parameters", {})}
    study = compiled(method, parameters, schema=SCHEMA, sites=SITES, **options)
    result = METHODS[method].run(Watched(study, split_records(records, SITES)))
    json.dumps(result.summary, allow_nan=False)
    return result


def estimates(result: Result, records: Records) -> Floats:
    return Model.from_result(result).estimates(complete(records.features[:, FEATURES]))


# -- losses ------------------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**16), bend=st.floats(0.05, 2.0))
def test_gradients_are_those_of_torchs_losses(seed: int, bend: float) -> None:
    rng = np.random.default_rng(seed)
    z, y = rng.normal(size=(7, 1)), rng.normal(size=(7, 1))
    for loss, theirs in (
        (Squared(), lambda s, t: torch.nn.functional.mse_loss(s, t, reduction="sum") / 2),
        (Huber(bend), lambda s, t: torch.nn.functional.huber_loss(s, t, reduction="sum", delta=bend)),
        (Poisson(), lambda s, t: torch.nn.functional.poisson_nll_loss(s, t, reduction="sum")),
    ):
        scores = torch.tensor(z, requires_grad=True)
        total = theirs(scores, torch.tensor(y))
        total.backward()
        np.testing.assert_allclose(loss.gradient(z, y), scores.grad.numpy(), rtol=1e-9, atol=1e-12)
        assert float(loss.values(z, y).sum()) == pytest.approx(float(total.detach()), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("loss", [Squared(), Huber(0.3), Poisson(), Hazards(1), Hazards(3)])
def test_gradients_are_derivatives(loss: OutcomeLoss) -> None:
    rng = np.random.default_rng(2)
    z, y = rng.normal(size=(5, loss.scores)), np.abs(rng.normal(size=(5, loss.outcomes)))
    for place in range(loss.scores):
        step = np.zeros_like(z)
        step[:, place] = 1e-6
        slope = (loss.values(z + step, y) - loss.values(z - step, y)) / 2e-6
        np.testing.assert_allclose(loss.gradient(z, y)[:, place], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("loss", [Squared(), Poisson(), Hazards(1), Hazards(3)])
def test_the_constant_has_no_gradient_on_average(loss: OutcomeLoss) -> None:
    rng = np.random.default_rng(3)
    y = np.abs(rng.normal(size=(200, loss.outcomes)))
    constant = loss.constant(y.mean(axis=0))
    at = np.tile(constant, (200, 1))
    np.testing.assert_allclose(loss.gradient(at, y).mean(axis=0), 0.0, atol=1e-12)
    slope = (loss.gradient(at + 1e-6, y) - loss.gradient(at - 1e-6, y)).mean(axis=0) / 2e-6
    assert loss.curvature(y.mean(axis=0)) == pytest.approx(slope.max(), rel=1e-5)


def test_hazards_are_those_of_lifelines() -> None:
    from lifelines import ExponentialFitter, PiecewiseExponentialRegressionFitter

    rng = np.random.default_rng(4)
    times, events = rng.exponential(8.0, 500), rng.random(500) < 0.7
    told = intervals(times, events & (times < 30.0), (0.0, 30.0))
    one = ExponentialFitter().fit(np.minimum(times, 30.0), events & (times < 30.0))
    assert math.exp(Hazards(1).constant(told.mean(axis=0))[0]) / 30.0 == pytest.approx(1.0 / one.lambda_, rel=1e-4)
    told = intervals(times, events, (0.0, 4.0, 10.0, 30.0))
    assert told[:, :3].sum(axis=1) * 30.0 == pytest.approx(np.minimum(times, 30.0))
    assert told[:, 3:].sum() == (events & (times < 30.0)).sum()
    import pandas as pd

    frame = pd.DataFrame({"time": np.minimum(times, 30.0), "event": events & (times < 30.0)})
    many = PiecewiseExponentialRegressionFitter(breakpoints=[4.0, 10.0]).fit(frame, "time", "event")
    theirs = [-float(many.params_[f"lambda_{place}_"]["Intercept"]) for place in range(3)]
    np.testing.assert_allclose(Hazards(3).constant(told.mean(axis=0)) - math.log(30.0), theirs, atol=2e-3)


def test_an_event_at_the_horizon_is_none_and_at_a_cut_is_of_the_period_it_ends() -> None:
    told = intervals(np.array([30.0, 10.0, 12.0]), np.array([True, True, False]), (0.0, 10.0, 30.0))
    np.testing.assert_allclose(told, [[1 / 3, 2 / 3, 0, 0], [1 / 3, 0, 1, 0], [1 / 3, 2 / 30, 0, 0]], atol=1e-15)


def test_an_outcome_by_hand() -> None:
    """Columns on either side, bounds other than 0, values out of bounds, missing features, and a label."""
    schema = DatasetSchema(
        columns=(
            NumberColumn(name="age", low=20, high=80),
            CategoryColumn(name="end", categories=("home", "died", "moved")),
            NumberColumn(name="stay", low=4, high=20, unit="days"),
            NumberColumn(name="dose", low=-5, high=5),
            CategoryColumn(name="ward", categories=("north", "south")),
        ),
        label={"column": "sex", "classes": [{"name": "f", "values": ["f"]}, {"name": "m", "values": ["m"]}]},
        max_records=10,
    )
    features = np.array(
        [
            [0.1, 0, 1, 0, 0.0, 0.5, 1, 0],  # died after 12 days
            [0.2, 1, 0, 0, 1.5, 0.2, 0, 1],  # home, later than the highest
            [0.3, 0, 0, 1, -2.0, 0.3, 0, 1],  # moved, before the lowest
        ]
    )
    present = np.ones(features.shape, dtype=np.bool_)
    present[:, [0, 5, 6, 7]] = False  # features that are missing are no outcome's business
    records = Records(features, present, np.array([0, 1, 0]))
    died = {"column": "stay", "loss": "hazard", "event": "end", "censored": ["home", "moved"], "cuts": [0.5, 10.0]}
    outcome = Outcome.model_validate(died)
    outcome.check(schema)
    parted = outcome.split(records, schema)
    expected = [[0.5, 9.5, 2, 0, 0, 1], [0.5, 9.5, 10, 0, 0, 0], [0.5, 3.5, 0, 0, 0, 0]]
    np.testing.assert_allclose(parted.outcomes, np.array(expected) / [[20, 20, 20, 1, 1, 1]])
    np.testing.assert_array_equal(parted.records.features, features[:, [0, 5, 6, 7]])
    np.testing.assert_array_equal(parted.records.present, present[:, [0, 5, 6, 7]])
    assert parted.records.labels is None
    assert parted.known.dtype == np.bool_
    assert parted.known.all()
    assert outcome.features(schema).label is None
    assert [column.name for column in outcome.features(schema).columns] == ["age", "dose", "ward"]
    bounds = {"column": "stay", "low": 4.0, "high": 20.0, "unit": "days"}
    event = {"event": "end", "censored": ["home", "moved"], "cuts": [0.5, 10.0]}
    assert outcome.told(schema) == {**bounds, **event, "loss": "hazard"}
    count = Outcome.model_validate({"column": "stay", "loss": "poisson"})
    assert count.told(schema) == {**bounds, "loss": "poisson"}
    np.testing.assert_allclose(count.split(records, schema).outcomes[:, 0], np.array([12, 20, 4]) / 8)
    number = Outcome.model_validate({"column": "stay", "loss": "huber", "bend": 2.0})
    np.testing.assert_array_equal(number.split(records, schema).outcomes[:, 0], [0.0, 1.0, -1.0])
    errors = np.array([[5.0]]), np.array([[0.0]])
    assert number.build(schema).gradient(*errors) == pytest.approx(2.0 / 8)
    tenth = number.model_copy(update={"bend": None}).build(schema)
    assert tenth.gradient(*errors) == pytest.approx(0.1)
    assert tenth.curvature(np.zeros(1)) == 1.0


def test_what_scores_predict_by_hand() -> None:
    schema = DatasetSchema(
        columns=(
            NumberColumn(name="stay", low=4, high=20),
            NumberColumn(name="age", low=20, high=80),
            CategoryColumn(name="end", categories=("home", "died")),
        ),
        max_records=10,
    )
    scores = np.array([[0.5, 2.0], [-3.0, 1.0], [1.5, -1.0]])
    for loss in ("squared", "huber"):
        number = Outcome.model_validate({"column": "stay", "loss": loss})
        np.testing.assert_allclose(number.predictor(scores[:, :1], schema), [16.0, 4.0, 20.0])
    count = Outcome.model_validate({"column": "stay", "loss": "poisson"})
    np.testing.assert_allclose(np.exp(count.predictor(scores[:, :1], schema)), 8.0 * np.exp(scores[:, 0]))
    np.testing.assert_allclose(np.exp(count.predictor(scores[:, :1], schema, most=10.0)), [10.0, 8.0 * np.exp(-3.0), 10.0])
    died = {"column": "stay", "loss": "hazard", "event": "end", "censored": ["home"], "cuts": [5.0]}
    found = Outcome.model_validate(died).predictor(scores, schema)
    np.testing.assert_allclose(np.exp(found), 0.25 * np.exp(scores[:, 0]) + 0.75 * np.exp(scores[:, 1]))
    far = Outcome.model_validate(died).predictor(np.array([[-800.0, 800.0]]), schema)
    np.testing.assert_allclose(far, 800.0 + np.log(0.75))


def test_an_outcome_has_at_most_64_cuts_and_a_bend_above_0() -> None:
    died = {"column": "stay", "loss": "hazard", "event": "end"}
    assert len(Outcome.model_validate({**died, "cuts": [float(k + 1) for k in range(64)]}).cuts) == 64
    with pytest.raises(ValueError, match="cuts"):
        Outcome.model_validate({**died, "cuts": [float(k + 1) for k in range(65)]})
    for bend in (0.5, 1e100):
        assert Outcome.model_validate({"column": "stay", "loss": "huber", "bend": bend}).bend == bend
    for bend in (0.0, 1.5e100):
        with pytest.raises(ValueError, match="bend"):
            Outcome.model_validate({"column": "stay", "loss": "huber", "bend": bend})


def test_the_largest_scores_have_finite_losses() -> None:
    for loss, outcome in ((Poisson(), [[1.0]]), (Hazards(1), [[0.5, 1.0]])):
        far = np.array([[1e6]])
        assert np.isfinite(loss.gradient(far, np.array(outcome))).all()
        assert np.isfinite(loss.values(far, np.array(outcome))).all()


def test_an_outcome_may_be_negative_but_must_have_something_to_be_predicted_from() -> None:
    dose = Outcome.model_validate({"column": "dose", "loss": "squared"})
    dose.check(SCHEMA)
    with pytest.raises(Misuse, match="no columns beside"):
        dose.check(DatasetSchema(columns=(NumberColumn(name="dose", low=-5, high=5),), max_records=10))


# -- the task ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [NUMBER, {**NUMBER, "loss": "huber", "bend": 3.0}, COUNT, {**TIME, "cuts": [10.0]}])
@pytest.mark.parametrize("hidden", [0, 3])
def test_the_task_adds_up_clipped_gradients_by_autograd(outcome: dict[str, Any], hidden: int) -> None:
    records = drawn("time" if outcome["loss"] == "hazard" else "count", 60)
    name, options = ("mlp", {"hidden": hidden, "scale": 0.8}) if hidden else ("linear", {"scale": 0.8, "bias": 0.5})
    model = {"name": name, "inputs": None, "options": options}
    task = build_task(
        "gradient", {"clip": 10.0, "missing": "skip", "model": model, "gradient_clip": 0.4, "outcome": outcome}, SCHEMA
    )
    stated = Outcome.model_validate(outcome)
    loss, parted = stated.build(SCHEMA), stated.split(records, SCHEMA)
    kept = FEATURES if outcome["loss"] == "hazard" else np.array([0, 1, 2, 4, 5, 6, 7])
    np.testing.assert_array_equal(parted.records.features, records.features[:, kept])
    architecture = build_architecture(ModelSpec.model_validate(model), len(kept), loss.scores)
    arrays = {name: np.random.default_rng(9).normal(size=shape) for name, shape in architecture.shapes().items()}
    network = architecture.module()
    for parameter, values in zip(network.parameters(), arrays.values(), strict=True):
        parameter.data = torch.tensor(values)
    total = np.zeros(architecture.size)
    for x, y in zip(parted.records.features, parted.outcomes, strict=True):
        network.zero_grad()
        scores = network(torch.tensor(x[None]))
        scores.backward(torch.tensor(loss.gradient(scores.detach().numpy(), y[None])))
        own = np.concatenate([parameter.grad.numpy().ravel() for parameter in network.parameters()])
        total += own * min(1.0, 0.4 / max(np.linalg.norm(own), 1e-300))
    found = task_vector(task, records, to_broadcast(arrays))
    np.testing.assert_allclose(found, total, rtol=1e-6, atol=1e-6)


def test_a_record_without_its_outcome_or_event_adds_nothing() -> None:
    records = drawn("time", 20)
    present = records.present.copy()
    present[0, 3], present[1, 5:] = False, False
    parted = Outcome.model_validate(TIME).split(Records(records.features, present, None), SCHEMA)
    assert parted.known.tolist() == [False, False, *[True] * 18]
    spoilt = records.features.copy()
    spoilt[2, 3] = np.nan
    assert not Outcome.model_validate(TIME).split(Records(spoilt, records.present, None), SCHEMA).known[2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": {"name": "lenet5", "inputs": [1, 28, 28]}}, "tells classes apart"),
        ({"width": 4}, "the schema's own features"),
        (
            {"alignment": {"kind": "moments", "tau": 1.0, "moments": {"order": 2, "adjust": "both"}}},
            "the schema's own features",
        ),
        ({"outcome": {"column": "ward", "loss": "squared"}}, "not a numeric column"),
    ],
)
def test_a_task_of_an_outcome_is_refused_by_a_site_too(more: dict[str, Any], message: str) -> None:
    parameters = {"clip": 1.0, "missing": "skip", "model": {"name": "linear"}, "gradient_clip": 0.4, "outcome": NUMBER}
    with pytest.raises(HostileInput, match=message):
        build_task("gradient", {**parameters, **more}, SCHEMA)


# -- methods -----------------------------------------------------------------------------------------------------------------

PATIENT = {"gradient_clip": 1e3, "steps": 400, "average": 0.0, "optimiser": {"learning_rate": 15.0}}
EACH = {"number": NUMBER, "count": COUNT, "time": TIME}


def features_of(kind: str, records: Records) -> Records:
    return complete(records.features[:, FEATURES if kind == "time" else np.array([0, 1, 2, 4, 5, 6, 7])])


def in_one_place(kind: str, records: Records) -> Floats:
    """What scikit-learn predicts for the records: numbers, counts, or risks by the Poisson trick (events over time at risk,
    weighted by it, have the likelihood of exponential times)."""
    x = features_of(kind, records).features
    if kind == "number":
        return (LinearRegression().fit(x, records.features[:, 3]).predict(x) + 1.0) * 20.0
    patient = PoissonRegressor(alpha=0.0, max_iter=2000, tol=1e-8)
    if kind == "count":
        return patient.fit(x, (records.features[:, 3] + 1.0) * 20.0).predict(x)
    told = Outcome.model_validate(TIME).split(records, SCHEMA).outcomes
    risk = np.maximum(told[:, 0], 1e-9)
    return -np.expm1(-patient.fit(x, told[:, 1] / risk, sample_weight=risk).predict(x))


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        ("number", 0.01),
        pytest.param("count", 0.01, marks=pytest.mark.system),
        pytest.param("time", 0.001, marks=pytest.mark.system),  # test_hazards_are_those_of_lifelines shows their sums
    ],
)
def test_without_noise_it_is_regression_in_one_place(kind: str, tolerance: float) -> None:
    records = drawn(kind, 800)
    result = trained(EACH[kind], records, parameters=PATIENT)
    found = Model.from_result(result).estimates(features_of(kind, records))
    np.testing.assert_allclose(found, in_one_place(kind, records), atol=tolerance)
    assert result.application["outcome"]["column"] == "stay"


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", sorted(EACH))
def test_defaults_under_noise_come_near_what_is_without(kind: str) -> None:
    records = drawn(kind, 4000)
    noised = Model.from_result(trained(EACH[kind], records, epsilon=8.0)).estimates(features_of(kind, records))
    exact = in_one_place(kind, records)
    assert np.corrcoef(exact, noised)[0, 1] > 0.95
    assert abs(np.mean(noised) / np.mean(exact) - 1.0) < 0.1


@pytest.mark.system
def test_outliers_hardly_move_huber() -> None:
    records = drawn("number")
    spoilt = records.features.copy()
    spoilt[::10, 3] = 1.0
    truth = (records.features[:, 3] + 1.0) * 20.0
    errors = {}
    for loss in ("squared", "huber"):
        result = trained({**NUMBER, "loss": loss}, complete(spoilt), parameters={**PATIENT, "steps": 150})
        found = Model.from_result(result).estimates(complete(records.features[:, [0, 1, 2, 4, 5, 6, 7]]))
        errors[loss] = abs(float(np.mean(found - truth)))
    assert errors["huber"] < 0.5 * errors["squared"]


@pytest.mark.system
def test_fedavg_trains_on_outcomes() -> None:
    records = drawn("number")
    parameters = {"model": {"name": "linear"}, "rounds": 30, "epochs": 2}
    for objective in ("none", "prox", "scaffold"):
        result = trained(NUMBER, records, "fedavg", parameters={**parameters, "objective": {"name": objective}})
        x, y = records.features[:, [0, 1, 2, 4, 5, 6, 7]], (records.features[:, 3] + 1.0) * 20.0
        error = y - Model.from_result(result).estimates(complete(x))
        least = y - (LinearRegression().fit(x, records.features[:, 3]).predict(x) + 1.0) * 20.0
        assert np.mean(error**2) < 1.05 * np.mean(least**2)


@pytest.mark.system
def test_without_a_stated_model_fedavg_learns_under_noise() -> None:
    """By the linear model, which is the default of outcomes; a perceptron's would still be near its random start."""
    records = drawn("number", 3000, 71)
    result = trained(NUMBER, records, "fedavg", epsilon=8.0)
    assert result.summary["model"] == "linear"
    truth, x = (records.features[:, 3] + 1.0) * 20.0, features_of("number", records)
    found, exact = Model.from_result(result).estimates(x), in_one_place("number", records)
    explained = [1.0 - float(np.mean((truth - each) ** 2)) / float(truth.var()) for each in (found, exact)]
    assert explained[0] > explained[1] - 0.1
    assert (
        compiled("fedavg", {"outcome": NUMBER, "model": {"name": "mlp"}}, schema=SCHEMA).parameters["model"]["name"] == "mlp"
    )


# -- what a result says ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("outcome", "kind"), [(NUMBER, "number"), (COUNT, "count"), (TIME, "time")])
def test_the_score_is_the_models_prediction(outcome: dict[str, Any], kind: str) -> None:
    """The formula of columns that evaluations take, computed as queries compute it, against the model."""
    records = drawn(kind, 400)
    result = trained(outcome, records, epsilon=8.0)
    told = Prediction.model_validate(result_prediction(result))
    assert told.predicts == {"number": "number", "count": "rate", "time": "hazard"}[kind]
    derived = DerivedColumn.model_validate({"name": "score", "number": told.number, "low": -1e4, "high": 1e4})
    columns = Columns(SCHEMA, [derived])
    domain = columns.domains["score"]
    assert isinstance(domain, NumberDomain)
    cells = cells_of(columns, records, ["score"])["score"]
    assert isinstance(cells, ScaledNumbers)
    score = cells.x * 1e4
    places = FEATURES if kind == "time" else np.array([0, 1, 2, 4, 5, 6, 7])
    model = Model.from_result(result)
    raw = model.scores(complete(records.features[:, places]))[:, 0]
    expected = {"number": 20.0 + 20.0 * raw, "count": raw + math.log(20.0), "time": raw}[kind]
    np.testing.assert_allclose(score, expected, atol=2e-4 * (1 + np.abs(expected).max()))
    inside = (told.low <= expected) & (expected <= told.high)
    assert inside.mean() > 0.95


def test_what_a_perceptron_of_outcomes_releases_is_no_formula() -> None:
    result = trained(
        NUMBER, drawn("number", 200), epsilon=8.0, parameters={"model": {"name": "mlp", "options": {"hidden": 4}}}
    )
    assert result_prediction(result) is None
    with pytest.raises(Misuse, match="predicts an outcome"):
        result_model(result)
    with pytest.raises(Misuse, match="tells no classes apart"):
        Model.from_result(result).predict(complete(drawn("number", 5).features[:, [0, 1, 2, 4, 5, 6, 7]]))


@pytest.mark.parametrize(
    ("outcome", "more", "message"),
    [
        ({"column": "ward", "loss": "squared"}, {}, "not a numeric column"),
        ({"column": "dose", "loss": "poisson"}, {}, "may be negative"),
        ({**TIME, "event": "ward"}, {}, "has no category"),
        ({**TIME, "censored": ["home", "died", "moved"]}, {}, "censored"),
        ({**TIME, "cuts": [50.0]}, {}, "rise between"),
        ({**TIME, "cuts": [10.0, 10.0]}, {}, "rise between"),
        ({**TIME, "event": "age", "censored": []}, {}, "not a categorical column"),
        (NUMBER, {"class_weights": "balanced"}, "has no class_weights"),
        (NUMBER, {"centre": False}, "has no centre"),
        (NUMBER, {"moments": {}}, "has no moments"),
        (NUMBER, {"model": {"name": "lenet5", "inputs": [1, 28, 28]}}, r"lenet5|features"),
    ],
)
def test_what_is_refused(outcome: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled("fedsgd", {"outcome": outcome, **more}, schema=SCHEMA, sites=SITES)


@pytest.mark.parametrize(
    "wrong", [{"loss": "hazard"}, {"event": "end"}, {"cuts": [1.0]}, {"censored": ["home"]}, {"bend": 1.0}]
)
def test_an_outcome_states_what_its_loss_has(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"outcome|loss"):
        FedSGDParameters.model_validate({"outcome": {**NUMBER, **wrong}})


def test_a_model_is_read_and_written_as_a_regressor(tmp_path: Path) -> None:
    from veilsum.api.models import Regressor, open_model

    records = drawn("number", 400)
    model = open_model(trained(NUMBER, records, epsilon=8.0), site=None, encoder=None)
    assert isinstance(model, Regressor)
    frame = {"age": [50.0, 80.0], "ward": ["north", "it's"], "dose": [0.0, -5.0], "end": ["home", "died"]}
    found = model.predict(frame)
    assert found.shape == (2,)
    assert found[1] > found[0]
    assert model.score(frame, found) == pytest.approx(1.0)
