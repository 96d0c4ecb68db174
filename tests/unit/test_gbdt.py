"""The method gbdt: without noise its trees are those of a plain boosting of all records, and its plan prices noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from support.studies import SITES, compiled, complete, draft, run
from veilsum.xgboost_model import xgboost_json
from veilsum_aggregation.boosting import LeafSums, SplitColumn, newton_leaves, random_trees, split_gains
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records, RecordTask
from veilsum_privacy.tasks.tree_gradients import softmax_derivatives

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="x", low=-1, high=1),
        NumberColumn(name="z", low=-1, high=1),
        CategoryColumn(name="k", categories=("a", "b", "c")),
    ),
    label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "yes"))),
    max_records=400,
)


def some_records(seed: int, n: int = 150) -> Records:
    rng = np.random.default_rng(seed)
    x, k = rng.uniform(-1, 1, (n, 2)), np.eye(3)[rng.integers(0, 3, n)]
    odds = 3.0 * np.sign(x[:, 0] * x[:, 1]) + 2.0 * k[:, 0]
    label = (rng.random(n) < 1.0 / (1.0 + np.exp(-odds))).astype(np.int64)
    return complete(np.hstack([x, k]), label)


CLASSES = SCHEMA.model_copy(
    update={"label": LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in "abc"))}
)


def of_classes(seed: int, n: int = 150) -> Records:
    rng = np.random.default_rng((seed, 3))
    records = some_records(seed, n)
    x = records.features
    logits = 3.0 * np.column_stack([np.sign(x[:, 0] * x[:, 1]), x[:, 0], 2.0 * x[:, 3]])
    return replace(records, labels=np.argmax(logits + rng.gumbel(size=logits.shape), axis=1))


def walk(row: np.ndarray, features: np.ndarray, thresholds: np.ndarray) -> int:
    """The leaf of one record in one tree, written out."""
    node = 0
    while node < len(features):
        node = 2 * node + (2 if row[int(features[node])] >= thresholds[node] else 1)
    return node - len(features)


def test_without_noise_trees_are_those_of_plain_boosting_of_all_records() -> None:
    sites = {name: some_records(index) for index, name in enumerate(SITES)}
    parameters = {"rounds": 4, "trees": 3, "depth": 3}
    result = run("gbdt", parameters, sites, schema=SCHEMA)
    arrays = {name.removeprefix("model."): array for name, array in result.arrays.items()}
    x = np.concatenate([site.features for site in sites.values()])
    y = np.concatenate([site.labels for site in sites.values() if site.labels is not None])
    margin = np.zeros(len(x))
    for first in range(0, 12, 3):
        step = np.zeros(len(x))
        for tree in range(first, first + 3):
            leaf = np.array([walk(row, arrays["features"][tree], arrays["thresholds"][tree]) for row in x])
            p = 1.0 / (1.0 + np.exp(-margin))
            for place in range(8):
                own = leaf == place
                value = np.clip((y - p)[own].sum() / ((p * (1 - p))[own].sum() + 1.0), -4.0, 4.0) / 3.0
                assert arrays["leaves"][tree, place] == pytest.approx(value, abs=1e-4)
                step[own] += value
        margin += step
    model = Model.from_result(result)
    records = complete(x, y)
    scores = model.scores(records)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], margin, atol=1e-3)
    assert np.mean(model.predict(records) == y) > 0.7


def test_paths_never_split_what_is_split_off() -> None:
    features, thresholds = random_trees(np.random.default_rng(1), [SplitColumn(0), SplitColumn(1, 3)], 20, 4, 8)
    assert set(features.ravel().tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert set(thresholds[features > 0].tolist()) == {0.5}
    again = random_trees(np.random.default_rng(1), [SplitColumn(0), SplitColumn(1, 3)], 20, 4, 8)
    np.testing.assert_array_equal(features, again[0])


def test_without_noise_leaves_of_classes_are_those_of_plain_boosting() -> None:
    """Friedman's multi-class boosting (2001, algorithm 6) with a ridge of 1, a tree at a time, written out."""
    sites = {name: of_classes(index) for index, name in enumerate(SITES)}
    result = run("gbdt", {"rounds": 4, "trees": 3, "depth": 3}, sites, schema=CLASSES)
    arrays = {name.removeprefix("model."): array for name, array in result.arrays.items()}
    x = np.concatenate([site.features for site in sites.values()])
    y = np.concatenate([site.labels for site in sites.values() if site.labels is not None])
    scores = np.zeros((len(x), 3))
    for first in range(0, 12, 3):
        p = scipy.special.softmax(scores, axis=1)
        for tree in range(first, first + 3):
            leaf = np.array([walk(row, arrays["features"][tree], arrays["thresholds"][tree]) for row in x])
            for place in range(8):
                own = leaf == place
                for k in range(3):
                    residual, curvature = ((y == k) - p[:, k])[own].sum(), (p * (1 - p))[own, k].sum()
                    value = np.clip(2 / 3 * residual / (curvature + 1.0), -4.0, 4.0) / 3.0
                    assert arrays["leaves"][tree, place, k] == pytest.approx(value, abs=1e-4)
                    scores[own, k] += value
    model = Model.from_result(result)
    records = complete(x, y)
    np.testing.assert_allclose(model.scores(records), scores, atol=1e-3)
    assert np.mean(model.predict(records) == y) > 0.7
    assert result.summary["importance"][0]["column"] == "k"


def test_two_classes_take_the_same_step_as_one_log_odds() -> None:
    """What algorithm 6 is scaled by: with two classes the scores' difference moves as the logistic loss' margin does."""
    rng = np.random.default_rng(1)
    gradient, hessian = rng.normal(0.0, 5.0, (4, 8)), rng.uniform(0.0, 9.0, (4, 8))
    noise = rng.normal(0.0, 3.0, (4, 8, 1))  # the same in both classes, so it is no part of their difference
    one = newton_leaves(LeafSums(gradient, hessian, 2.0, 1.0), 1.0, 1.0)
    pair = LeafSums(
        np.stack([-gradient, gradient], axis=2) + noise, np.stack([hessian, hessian], axis=2), 2.0 * np.sqrt(2.0), 1.0
    )
    both = newton_leaves(pair, 1.0, 1.0)
    unclipped = np.abs(4 * one) < 4.0
    np.testing.assert_allclose((both[:, :, 1] - both[:, :, 0])[unclipped], one[unclipped], rtol=1e-5)
    assert unclipped.sum() > 20
    features = rng.integers(0, 3, (4, 7)).astype(np.float64)
    gains = split_gains(features, LeafSums(gradient, hessian, 2.0, 1.0), 1.0, 3)
    np.testing.assert_allclose(split_gains(features, pair, 1.0, 3), 2.0 * gains, rtol=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(-40.0, 40.0) | st.sampled_from([-600.0, 0.0, 600.0]), min_size=3, max_size=12), st.integers(0, 11))
def test_no_prediction_of_classes_makes_a_record_longer(scores: list[float], label: int) -> None:
    """(|g|^2 + 4 |h|^2) / 2 is at most 1 minus the label's probability; g and h are those of the cross-entropy."""
    f, y = np.array([scores]), np.array([label % len(scores)])
    g, h = softmax_derivatives(f, y)
    p = scipy.special.softmax(f[0])
    np.testing.assert_allclose(g[0], p - np.eye(len(p))[y[0]], atol=1e-12)
    np.testing.assert_allclose(h[0], p * (1.0 - p), atol=1e-12)
    assert (g @ g.T + 4.0 * h @ h.T).item() / 2.0 <= 1.0 - p[y[0]] + 1e-12


@pytest.mark.parametrize("scores", [[0.0, 600.0, 0.0], [0.0, 600.0, 600.0]])
def test_two_predictions_of_classes_make_it_as_long_as_that(scores: list[float]) -> None:
    g, h = softmax_derivatives(np.array([scores]), np.array([0]))
    assert (g @ g.T + 4.0 * h @ h.T).item() / 2.0 == pytest.approx(1.0)


def test_losses_suit_the_label() -> None:
    common = {"clip": 1e6, "missing": "skip", "trees": 2, "depth": 2, "largest_model": 2}
    for schema, loss in ((SCHEMA, "softmax"), (CLASSES, "logistic")):
        with pytest.raises(HostileInput, match="logistic loss is of two classes, softmax of more"):
            build_task("tree-gradients", {**common, "loss": loss}, schema)
    with pytest.raises(ConfigurationError, match="label"):
        compiled("gbdt", schema=SCHEMA.model_copy(update={"label": None}))


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_sums_of_numbers_and_counts_are_derivatives_of_their_loss(loss: str) -> None:
    """By differences of the loss, of a column that the trees do not split; a record without it adds nothing."""
    columns = (SCHEMA.columns[0], NumberColumn(name="n", low=0, high=8), *SCHEMA.columns[2:])
    schema = DatasetSchema(columns=columns, max_records=400)
    common = {"clip": 1e6, "missing": "skip", "trees": 2, "depth": 2, "largest_model": 3, "loss": loss, "outcome": "n"}
    task = build_task("tree-gradients", {**common, "most": 4.0}, schema)
    assert isinstance(task, RecordTask)
    records = replace(some_records(4, 60), labels=None)
    records.present[::7, 1] = False
    rng = np.random.default_rng(8)
    arrays = {
        "features": rng.integers(0, 4, (3, 3)).astype(np.float64),  # x, and the three categories
        "thresholds": rng.uniform(-0.5, 0.5, (3, 3)),
        "leaves": np.array([[-0.5, -0.25, -0.75, 0.0], *np.zeros((2, 4))]),
        "base": np.array([-0.125]),
    }
    found = task.layout().split(
        np.sum([rows.sum(axis=0) for rows in task.vectors(records, {f"model.{k}": v for k, v in arrays.items()})], axis=0)
    )

    def value(f: float, y: float) -> float:
        return (f - y) ** 2 / 2.0 if loss == "squared" else float(np.exp(f)) - (y + 1.0) * f  # counts in half ranges

    gradients, hessians, step = np.zeros((2, 4)), np.zeros((2, 4)), 1e-4
    for row, known in zip(records.features, records.present[:, 1], strict=True):
        x, y = np.delete(row, 1), row[1]
        leaf = [walk(x, arrays["features"][k], arrays["thresholds"][k]) for k in range(3)]
        f = arrays["base"][0] + arrays["leaves"][0, leaf[0]]
        if not known:
            continue
        if loss == "squared":
            y = f + np.clip(y - f, -1.0, 1.0)  # the gradient is cut to 1
        below, at, above = (value(f + shift, y) for shift in (-step, 0.0, step))
        for tree in range(2):
            gradients[tree, leaf[tree + 1]] += (above - below) / (2.0 * step)
            hessians[tree, leaf[tree + 1]] += (above - 2.0 * at + below) / step**2
    np.testing.assert_allclose(found["gradients"], gradients, atol=1e-6)
    np.testing.assert_allclose(found["hessians"], hessians, atol=1e-4)


def evenly(classes: int, n: int = 200) -> dict[str, Records]:
    """Sites whose labels tell nothing of their features."""
    rng = np.random.default_rng(3)
    return {name: replace(some_records(index, n), labels=rng.integers(0, classes, n)) for index, name in enumerate(SITES)}


@pytest.mark.parametrize(
    ("schema", "epsilon", "parameters"),
    [
        (SCHEMA, 4.0, {"rounds": 10}),
        (SCHEMA, 1.0, {"rounds": 10, "trees": 40, "depth": 3}),
        (SCHEMA, 4.0, {"rounds": 1}),
        (CLASSES, 4.0, {"rounds": 6, "learning_rate": 0.5}),
    ],
)
def test_the_plan_prices_the_noise_that_models_have(
    schema: DatasetSchema, epsilon: float, parameters: dict[str, float]
) -> None:
    """Models of the same records that differ by their noise alone: the deviation of a log odds between two classes."""
    agreed = schema.model_copy(update={"max_records": 200})
    records, asked = evenly(len(schema.classes)), some_records(9, 300)
    margins = []
    for seed in range(6):
        model = Model.from_result(run("gbdt", parameters, records, seed, schema=agreed, epsilon=epsilon))
        scores = model.scores(asked)
        margins.append(scores[:, 1] - scores[:, 0])
    simulated = float(np.sqrt(np.var(margins, axis=0, ddof=1).mean()))
    wanted = draft("gbdt", parameters, schema=agreed, epsilon=epsilon)
    (stated,) = wanted.expectations(wanted.compile())
    assert stated.half_width / 1.96 == pytest.approx(simulated, rel=0.25)


def test_noise_is_priced() -> None:
    study = compiled("gbdt", schema=SCHEMA, epsilon=3.0)
    assert study.tasks[0].releases == 30
    wide, near = (draft("gbdt", schema=SCHEMA, expected=n, epsilon=3.0) for n in (50, 400))
    assert wide.expectations(wide.compile())[0].share > near.expectations(near.compile())[0].share


def test_xgboost_reads_the_model_and_adds_up_the_same_float32() -> None:
    xgboost = pytest.importorskip("xgboost")
    result = run("gbdt", {"rounds": 5}, {name: some_records(index) for index, name in enumerate(SITES)}, schema=SCHEMA)
    booster = xgboost.Booster()
    booster.load_model(bytearray(xgboost_json(result)))
    model, records = Model.from_result(result), some_records(9, 500)
    given = xgboost.DMatrix(model.features(records).astype(np.float32), feature_names=list(SCHEMA.feature_names))
    scores = model.scores(records)
    np.testing.assert_array_equal(booster.predict(given, output_margin=True), (scores[:, 1] - scores[:, 0]).astype(np.float32))


def test_xgboost_reads_a_model_of_classes_and_adds_up_the_same_float32() -> None:
    xgboost = pytest.importorskip("xgboost")
    result = run(
        "gbdt", {"rounds": 5}, {name: of_classes(index) for index, name in enumerate(SITES)}, schema=CLASSES, epsilon=8.0
    )
    booster = xgboost.Booster()
    booster.load_model(bytearray(xgboost_json(result)))
    model, records = Model.from_result(result), of_classes(9, 500)
    given = xgboost.DMatrix(model.features(records).astype(np.float32), feature_names=list(CLASSES.feature_names))
    scores = model.scores(records)
    np.testing.assert_array_equal(booster.predict(given, output_margin=True), scores.astype(np.float32))
    np.testing.assert_allclose(booster.predict(given), scipy.special.softmax(scores, axis=1), atol=1e-6)
    assert booster.num_boosted_rounds() == 5 * 16
