"""Personal models: against closed forms and scikit-learn, and where there is little to learn from."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import beta, poisson
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from support.commands import veilsum
from support.federation import schema_of
from veilsum.api.models import Classifier
from veilsum.exports import export_result
from veilsum.mlflow_run import log_result
from veilsum_coordinator.parts.alignment import application, outcome_application
from veilsum_coordinator.results.released_models import result_model
from veilsum_node.errors import DataError, Misuse
from veilsum_participant.applying import personal
from veilsum_participant.applying.heads import PersonalHead
from veilsum_participant.applying.model import Model, load_model
from veilsum_participant.applying.personal import FEWEST, FOLDS, PARTS, fold_of, personalise
from veilsum_privacy.results.result import Result, load_result, save_result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.losses import Poisson, Squared

WIDTH = 3
SCHEMA = schema_of(WIDTH)
HEAD = {"kind": "linear", "weights": "weights", "bias": "bias"}


def released(weights: Any, bias: Any = (0.0, 0.0), schema: DatasetSchema = SCHEMA, classes: Any = ("c0", "c1")) -> Result:
    arrays = {"weights": np.array(weights, dtype=np.float64), "bias": np.array(bias, dtype=np.float64)}
    return Result("test", {}, arrays, application(schema, missing="skip", head=HEAD, classes=classes))


def drawn(n: int, weights: Any, seed: int = 0, bias: float = 0.0) -> Records:
    """Records whose class is 1 with the logistic probability of a linear score."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (n, WIDTH))
    chance = 1.0 / (1.0 + np.exp(-(x @ np.array(weights) + bias)))
    return Records(x, np.ones((n, WIDTH), dtype=bool), (rng.uniform(size=n) < chance).astype(np.int64))


def right(model: Model, records: Records) -> float:
    return float(np.mean(model.predict(records) == records.labels))


def loss(model: Model, records: Records) -> float:
    return float(log_loss(records.labels, softmax(model.scores(records), axis=1)))


TRUE = (4.0, -3.0, 2.0)
GOOD = ((0.0, 0.0, 0.0), TRUE)
WRONG = ((0.0, 0.0, 0.0), (-4.0, 3.0, -2.0))


@pytest.mark.parametrize("records", [30, 400])
@pytest.mark.parametrize("weights", [GOOD, WRONG])
def test_a_personal_model_is_no_worse_than_the_better_of_released_and_alone(weights: Any, records: int) -> None:
    model, test = Model.from_result(released(weights)), drawn(4000, TRUE, seed=1)
    found = personalise(model, drawn(records, TRUE, seed=2))
    x, y = drawn(records, TRUE, seed=2).features, drawn(records, TRUE, seed=2).labels
    own = LogisticRegression().fit(x, y)
    alone = float(np.mean(own.predict(test.features) == test.labels))
    assert right(found.model, test) > max(right(model, test), alone) - 0.03
    assert found.records == records
    assert sum(found.weights.values()) == pytest.approx(1.0)
    assert set(found.figures) == {"released", "alone", "personal"}
    assert loss(found.model, test) < min(loss(model, test), log_loss(test.labels, own.predict_proba(test.features))) + 0.01


def test_a_released_model_in_another_unit_or_with_another_prevalence_is_calibrated() -> None:
    """Scores ten times too large, where the site has many more of one class."""
    model = Model.from_result(released(np.array(GOOD) * 10.0))
    found = personalise(model, drawn(2000, TRUE, seed=3, bias=2.0))
    test = drawn(4000, TRUE, seed=4, bias=2.0)
    assert found.figures["personal"]["loss"] < 0.5 * found.figures["released"]["loss"]
    assert right(found.model, test) > right(model, test) + 0.03


def test_ridge_regression_towards_the_released_scores_has_a_closed_form() -> None:
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((60, 4)), rng.standard_normal((60, 1))
    y = 0.5 * z + x @ np.array([[0.3], [0.0], [-0.2], [0.1]]) + 0.1 * rng.standard_normal((60, 1)) + 0.4
    data = personal._Standard.of(x, z, y, Squared())
    found = personal._fit(data, personal._Choice("moved", 0.1))
    # Normal equations of sum (s z + x v + c - y)^2 / 2n + penalties, by s, c and v.
    rows = np.hstack([z, np.ones((60, 1)), data.x])
    tight = np.diag([1.0 / 60 / personal.SPREAD**2, personal.STEADY / 60, *[0.1] * 4])
    prior = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    solved = np.linalg.solve(rows.T @ rows / 60 + tight, rows.T @ y[:, 0] / 60 + tight @ prior)
    np.testing.assert_allclose([found.scale, *found.offset, *found.matrix[0]], solved, atol=1e-5)
    calibrated = personal._fit(data, personal._Choice("calibrated"))
    assert not calibrated.matrix.any()


def test_what_a_site_reaches_alone_is_logistic_regression_and_the_discriminant() -> None:
    records = drawn(500, TRUE, seed=6)
    assert records.labels is not None
    x, y, targets = records.features, records.labels, np.eye(2)[records.labels]
    data = personal._Standard.of(x, np.zeros((500, 2)), targets, personal._Classes(2))
    alone = personal._fit(data, personal._Choice("alone", 0.01))
    # Two symmetric rows of weights v and -v: the penalty of their difference w = 2 v is |w|^2 / 4 of the two.
    own = LogisticRegression(C=1.0 / (500 * 0.01 * data.curvature / 2.0), tol=1e-10).fit(data.x, y)
    np.testing.assert_allclose(alone.matrix[1] - alone.matrix[0], own.coef_[0], rtol=2e-3)
    found = personal._fit(data, personal._Choice("discriminant")).scores(data)
    theirs = LinearDiscriminantAnalysis().fit(x, y).decision_function(x)
    assert np.corrcoef(found[:, 1] - found[:, 0], theirs)[0, 1] > 0.9999
    np.testing.assert_allclose(found[:, 1] - found[:, 0], theirs, rtol=0.15, atol=0.05)  # OAS shrinks what separates


@pytest.mark.parametrize(("n", "lead"), [(25, 0.999), (50, 0.948), (100, 0.711), (200, 0.475), (5000, 0.258)])
def test_parts_that_are_alike_have_the_priors_weights(n: int, lead: float) -> None:
    rng = np.random.default_rng(12)
    z = rng.standard_normal((n, 1))
    data = personal._Standard.of(rng.standard_normal((n, 2)), z, z + rng.standard_normal((n, 1)), Squared())
    found = personal._stacked(data, [z] * 4)
    np.testing.assert_allclose(found, [lead, *[(1.0 - lead) / 3.0] * 3], atol=0.03)  # 600 draws


@settings(max_examples=30)
@given(st.integers(20, 400), st.tuples(st.floats(0.2, 2.0), st.floats(0.2, 2.0)), st.booleans(), st.integers(0, 99))
def test_weights_are_the_mean_of_their_posterior(n: int, errors: tuple[float, float], counts: bool, seed: int) -> None:
    """Of two parts it is an integral over one weight, whose prior is a beta distribution."""
    rng = np.random.default_rng(seed)
    truth = 0.5 * rng.standard_normal((n, 1))
    parts = [truth + error * rng.standard_normal((n, 1)) for error in errors]
    y = rng.poisson(np.exp(truth)).astype(np.float64) if counts else truth + rng.standard_normal((n, 1))
    data = personal._Standard.of(rng.standard_normal((n, 2)), truth, y, Poisson() if counts else Squared())
    at = (np.arange(20_000) + 0.5) / 20_000
    mixed = at[:, None] * parts[0].T + (1.0 - at[:, None]) * parts[1].T
    squares = ((mixed - y.T) ** 2).sum(axis=1)
    normal = -squares / 2.0 / (squares.min() / n)
    likelihood = poisson.logpmf(y.T, np.exp(mixed)).sum(axis=1) if counts else normal
    mean = 1.0 / (1.0 + np.exp(-200.0 / n))
    prior = beta(5.0 * mean, 5.0 * (1.0 - mean))
    chance = np.exp(likelihood - likelihood.max()) * np.diff(prior.cdf(np.append(at - 0.5 / 20_000, 1.0)))
    np.testing.assert_allclose(personal._stacked(data, parts)[0], at @ chance / chance.sum(), atol=0.05)


def test_few_records_do_not_make_a_good_model_worse() -> None:
    """25 records of 20 features: sites alone are far behind, and four parts are many to choose among."""
    true = np.random.default_rng(0).standard_normal(20)
    schema = schema_of(20)
    model = Model.from_result(released(np.stack([0.0 * true, true]), schema=schema))

    def patients(n: int, seed: int) -> Records:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, (n, 20))
        y = (rng.uniform(size=n) < 1.0 / (1.0 + np.exp(-x @ true))).astype(np.int64)
        return Records(x, np.ones(x.shape, dtype=bool), y)

    test = patients(2000, 1)
    own = [personalise(model, patients(25, seed)).model for seed in range(100, 140)]
    lost = right(model, test) - np.array([right(each, test) for each in own])
    assert np.quantile(lost, 0.9) < 0.01


@pytest.mark.parametrize("n", [0, 1, FEWEST - 1])
def test_few_records_leave_the_released_model_as_it_is(n: int) -> None:
    model = Model.from_result(released(GOOD))
    if n == 0:
        with pytest.raises(DataError, match="No record has features"):
            personalise(model, drawn(0, TRUE))
        return
    found = personalise(model, drawn(n, TRUE))
    assert (found.model, found.weights) == (model, {})
    stored = Model.from_result(found.result(released(GOOD)))  # which is the site's own: it tells of the site's records
    assert isinstance(stored.recipe.head, PersonalHead)
    np.testing.assert_array_equal(stored.scores(drawn(50, TRUE)), model.scores(drawn(50, TRUE)))


def test_records_of_one_class_teach_nothing() -> None:
    records = drawn(200, TRUE)
    found = personalise(Model.from_result(released(GOOD)), replace(records, labels=np.ones(200, dtype=np.int64)))
    assert found.weights == {}


def test_what_cannot_be_used_is_left_out_and_counted() -> None:
    records = drawn(300, TRUE)
    assert records.labels is not None
    labels, present = records.labels.copy(), records.present.copy()
    labels[:7], present[7:12, 1] = -1, False
    found = personalise(Model.from_result(released(GOOD)), replace(records, labels=labels, present=present))
    assert (found.records, found.left_out) == (288, 12)


def test_constant_columns_and_huge_scores_do_no_harm() -> None:
    records = drawn(200, TRUE)
    features = records.features.copy()
    features[:, 2] = 0.25
    model = Model.from_result(released(np.array(GOOD) * 1e6))
    found = personalise(model, replace(records, features=features))
    assert np.isfinite(found.model.scores(records)).all()
    own = found.model.arrays["personal.weights"]
    assert not own[:, 2].any()


def test_a_persons_records_share_a_fold() -> None:
    subjects = np.repeat(np.arange(50), 4)
    folds = fold_of(200, subjects)
    assert all(len(set(folds[subjects == person])) == 1 for person in range(50))
    assert sorted(set(folds)) == list(range(FOLDS))
    assert np.bincount(folds).tolist() == [40] * FOLDS


@settings(max_examples=30)
@given(st.integers(FEWEST, 60), st.integers(0, 1000))
def test_any_labels_give_a_model_with_finite_scores(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = drawn(n, TRUE, seed)
    labels = rng.integers(-1, 2, n)
    if not (labels >= 0).any():
        labels[0] = 1
    found = personalise(Model.from_result(released(GOOD)), replace(records, labels=labels))
    assert np.isfinite(found.model.scores(records)).all()
    assert all(np.isfinite(list(each.values())).all() for each in found.figures.values())


OF_OUTCOME = DatasetSchema(
    columns=(
        NumberColumn(name="x0", low=-1.0, high=1.0),
        NumberColumn(name="y", low=0.0, high=10.0),
        CategoryColumn(name="status", categories=("alive", "dead")),
    ),
    max_records=1000,
)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson", "hazard"])
def test_models_of_numbers_counts_and_times_are_moved_too(loss: str) -> None:
    """The released model predicts the same for all; at the site x0 tells much."""
    event: dict[str, Any] = {"event": "status", "censored": ("alive",)} if loss == "hazard" else {}
    outcome = Outcome(column="y", loss=loss, **event)  # type: ignore[arg-type]
    arrays = {"weights": np.zeros((1, 1 if loss == "hazard" else 3)), "bias": np.zeros(1)}
    told = outcome_application(OF_OUTCOME, outcome, missing="skip", head=HEAD)
    result = Result("test", {}, arrays, told)
    rng = np.random.default_rng(8)
    x = rng.uniform(-1.0, 1.0, 600)
    y = rng.exponential(4.0 * np.exp(x)) if loss == "hazard" else rng.poisson(3.0 * np.exp(0.8 * x))
    clipped = np.clip(y, 0.0, 10.0)
    dead = (rng.uniform(size=600) < 0.8).astype(np.float64)
    features = np.column_stack([x, clipped / 5.0 - 1.0, 1.0 - dead, dead])
    records = Records(features, np.ones(features.shape, dtype=bool), None)
    with pytest.raises(Misuse, match="with the outcome"):
        personalise(Model.from_result(result), records)
    found = personalise(Model.from_result(result), records, schema=OF_OUTCOME)
    assert set(found.weights) == set(PARTS) - {"discriminant"}
    leading = {"poisson": "deviance_explained", "hazard": "concordance"}.get(loss, "r_squared")
    assert found.figures["personal"][leading] > found.figures["released"].get(leading, 0.5) + 0.1
    parted = outcome.split(records, OF_OUTCOME).records
    assert np.corrcoef(found.model.estimates(parted), x)[0, 1] * (-1.0 if loss == "hazard" else 1.0) > 0.9


def test_the_poisson_part_is_found_at_its_optimum() -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((300, 2))
    y = rng.poisson(np.exp(x @ [0.5, -0.3]))[:, None].astype(np.float64)
    data = personal._Standard.of(x, np.zeros((300, 1)), y, Poisson())
    found = personal._fit(data, personal._Choice("alone", 0.01))
    slopes = Poisson().gradient(found.scores(data), y) / 300
    own = slopes.T @ data.x + 0.01 * data.curvature * found.matrix
    np.testing.assert_allclose(own, 0.0, atol=1e-4 * data.curvature)


def test_a_classifier_of_the_python_interface_is_personalised() -> None:
    records = drawn(300, TRUE)
    assert records.labels is not None
    names = np.array(["c0", "c1", "elsewhere"])[np.where(np.arange(300) < 4, 2, records.labels)]
    model = Classifier(Model.from_result(released(WRONG)))
    own = model.personalise(records.features, names)
    assert own.score(records.features[4:], names[4:]) > 0.85 > model.score(records.features[4:], names[4:])
    assert own.personal is not None
    assert (own.personal.records, own.personal.left_out, model.personal) == (296, 4, None)
    with pytest.raises(DataError, match="300 records and y 2"):
        model.personalise(records.features, names[:2])


def test_a_personal_model_is_stored_applied_and_never_released(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_result(tmp_path / "result", released(WRONG), study={"name": "s", "digest": "00" * 32})
    records = drawn(300, TRUE)
    assert records.labels is not None
    lines = ["x0,x1,x2,y"]
    lines += [
        ",".join([*map(repr, map(float, row)), str(label)])
        for row, label in zip(records.features, records.labels, strict=True)
    ]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    status, text, problem = veilsum(capsys, "participant", "personalise", "result", "--data", "own.csv")
    assert (status, problem) == (0, "")
    assert "personal model" in text
    assert "without noise" in text
    folder = tmp_path / "personal"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"personal": 0o700, "manifest.json": 0o600, "arrays.safetensors": 0o600}
    model = load_model(folder)
    assert right(model, records) > 0.85
    status, text, _ = veilsum(capsys, "participant", "apply", "personal", "--data", "own.csv", "--out", "p.csv")
    assert (status, "accuracy" in text) == (0, True)
    for source, out, words in (("result", "personal", "already exists"), ("personal", "again", "a site's own already")):
        status, _, problem = veilsum(capsys, "participant", "personalise", source, "--data", "own.csv", "--out", out)
        assert status != 0
        assert words in problem
    with pytest.raises(Misuse, match="without noise"):
        result_model(load_result(folder))
    with pytest.raises(Misuse, match="without noise"):
        log_result(folder, {"study": "00" * 32}, "http://127.0.0.1:9", "nobody")  # before anything is sent, or mlflow loaded
    written = {
        name: export_result(load_result(tmp_path / name), tmp_path / "out" / name, ["html"]) for name in ("result", "personal")
    }
    assert {name: stat.S_IMODE(path.stat().st_mode) for name, (path,) in written.items()} == {
        "result": 0o644,
        "personal": 0o600,
    }
    (tmp_path / "bare.csv").write_text("x0,x1,x2\n1,0,0\n")
    status, _, problem = veilsum(capsys, "participant", "personalise", "result", "--data", "bare.csv", "--out", "new")
    assert status != 0
    assert "with their classes" in problem
    assert not (tmp_path / "new").exists()
