"""The method gbdt: without noise its trees are those of a plain boosting of all records, and its plan prices noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rows import of_values
from support.studies import SITES, compiled, complete, draft, run
from veilsum.xgboost_model import xgboost_json
from veilsum_aggregation.boosting import LeafSums, SplitColumn, first_base, newton_leaves, random_trees, split_gains
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_participant.applying.model import Model
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.mechanism.rows.symbols import symbol
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records, RowTask
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
    noise = rng.normal(0.0, 3.0, (4, 8, 1))  # the same in both classes, so it is not part of their difference
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
    g, h = (of_values(lambda row, place=place: softmax_derivatives(row, symbol(int(y[0])))[place], f) for place in (0, 1))
    p = scipy.special.softmax(f[0])
    np.testing.assert_allclose(g[0], p - np.eye(len(p))[y[0]], atol=1e-12)
    np.testing.assert_allclose(h[0], p * (1.0 - p), atol=1e-12)
    assert (g @ g.T + 4.0 * h @ h.T).item() / 2.0 <= 1.0 - p[y[0]] + 1e-12


@pytest.mark.parametrize("scores", [[0.0, 600.0, 0.0], [0.0, 600.0, 600.0]])
def test_two_predictions_of_classes_make_it_as_long_as_that(scores: list[float]) -> None:
    g, h = (of_values(lambda row, p=p: softmax_derivatives(row, symbol(0))[p], np.array([scores])) for p in (0, 1))
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
    assert isinstance(task, RowTask)
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
        np.sum([rows.sum(axis=0) for rows in task_rows(task, records, {f"model.{k}": v for k, v in arrays.items()})], axis=0)
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


NUMBERS = DatasetSchema(
    columns=(*SCHEMA.columns[:2], NumberColumn(name="n", low=0, high=8, unit="visits"), SCHEMA.columns[2]), max_records=400
)
"""The outcome lies between the features."""


def of_counts(seed: int, n: int = 150) -> Records:
    """Counts and numbers alike; every ninth record has none."""
    rng, records = np.random.default_rng((seed, 4)), some_records(seed, n)
    x = records.features
    y = np.minimum(rng.poisson(np.exp(0.2 + 0.6 * np.sign(x[:, 0] * x[:, 1]) + 0.5 * x[:, 2])), 8)
    features = np.insert(x, 2, y / 4.0 - 1.0, axis=1)
    present = np.ones(features.shape, dtype=np.bool_)
    present[::9, 2] = False
    return Records(features, present, None)


def plain_outcome_boosting(arrays: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, loss: str) -> tuple[float, np.ndarray]:
    """Base (of outcomes y in half ranges) and leaves (12, 8) of four rounds of three trees, written out.

    A mean count is at most 1, and no residual of a number longer, but in the first round, whose sums are of predictions 0.
    """
    base = float(y.mean() if loss == "squared" else np.log(y.mean()))
    f, leaves = np.full(len(x), base), np.zeros((12, 8))
    for first in range(0, 12, 3):
        mean = f.copy() if loss == "squared" else np.minimum(np.exp(f), 1.0)
        longest = 1.0 if loss == "squared" and first > 0 else np.inf
        residual = np.clip(y - mean, -longest, longest)
        curvature = np.ones(len(x)) if loss == "squared" else mean
        for tree in range(first, first + 3):
            leaf = np.array([walk(row, arrays["features"][tree], arrays["thresholds"][tree]) for row in x])
            for place in range(8):
                own = leaf == place
                leaves[tree, place] = np.clip(residual[own].sum() / (curvature[own].sum() + 1.0), -4.0, 4.0) / 3.0
                f[own] += leaves[tree, place]
    return base, leaves


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_without_noise_trees_of_an_outcome_are_those_of_plain_boosting(loss: str) -> None:
    """From the mean of all records that have the outcome on; what the model predicts is in the column's unit."""
    sites = {name: of_counts(index) for index, name in enumerate(SITES)}
    asked = {"outcome": {"column": "n", "loss": loss}, "rounds": 4, "trees": 3, "depth": 3}
    result = run("gbdt", asked, sites, schema=NUMBERS)
    arrays = {name.removeprefix("model."): array for name, array in result.arrays.items()}
    features = np.concatenate([site.features[site.present[:, 2]] for site in sites.values()])
    x, scaled = np.delete(features, 2, axis=1), features[:, 2]
    base, leaves = plain_outcome_boosting(arrays, x, scaled if loss == "squared" else scaled + 1.0, loss)
    assert arrays["base"].shape == (1,)
    assert arrays["base"][0] == pytest.approx(base, abs=1e-5)
    np.testing.assert_allclose(arrays["leaves"], leaves, atol=1e-4)
    model = Model.from_result(result)
    assert model.schema.feature_names == ("x", "z", "k=a", "k=b", "k=c")
    found = model.estimates(Records(x, np.ones(x.shape, dtype=np.bool_), None))
    f = base + np.array(
        [sum(leaves[t, walk(row, arrays["features"][t], arrays["thresholds"][t])] for t in range(12)) for row in x]
    )
    wanted = (f + 1.0) * 4.0 if loss == "squared" else np.exp(f) * 4.0
    np.testing.assert_allclose(found, wanted, atol=4e-3)
    assert np.corrcoef(found, scaled)[0, 1] > 0.4
    assert {row["column"] for row in result.summary["importance"]} == {"x", "z", "k"}


@pytest.mark.system
def test_a_mean_count_is_at_most_what_the_study_states() -> None:
    """Above it training pushes scores on and on; predictions stay."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-1.0, 1.0, (100, 2))
    records = Records(
        np.column_stack([x, np.where(x[:, 0] > 0.0, 0.5, -0.75), np.eye(3)[rng.integers(0, 3, 100)]]),
        np.ones((100, 6), dtype=np.bool_),
        None,
    )
    asked: dict[str, Any] = {"outcome": {"column": "n", "loss": "poisson"}, "depth": 1, "rounds": 36}
    given = Records(np.delete(records.features, 2, axis=1), np.ones((100, 5), dtype=np.bool_), None)
    model = Model.from_result(run("gbdt", asked, dict.fromkeys(SITES, records), schema=NUMBERS))
    found = model.estimates(given)
    assert model.scores(given).max() > 1.0  # e times half of the range
    assert found[x[:, 0] > 0.1].max() == 4.0  # of 6: no more than half of the bound
    wide = Model.from_result(run("gbdt", {**asked, "most": 7.0}, dict.fromkeys(SITES, records), schema=NUMBERS))
    assert wide.estimates(given)[x[:, 0] > 0.1].mean() == pytest.approx(6.0, rel=0.05)


def test_noise_in_the_first_round_is_told_at_the_base() -> None:
    """The sums' deviation about those without noise, where the base is the same."""
    rng, (b, leaves, n) = np.random.default_rng(6), (4000, 8, 4000.0)
    for loss, gradient, hessian, most in (("squared", -0.4, 1.0, 1.0), ("poisson", 0.8, 1.0, 1.0)):
        std = 3.0, 5.0
        exact = np.full((b, leaves), n / leaves)
        noised = LeafSums(
            gradient * exact + std[0] * rng.normal(size=exact.shape),
            hessian * exact + std[1] * rng.normal(size=exact.shape),
            *std,
        )
        base, moved = first_base(noised, "squared" if loss == "squared" else "poisson", most)
        assert base == pytest.approx(0.4 if loss == "squared" else np.log(0.2), abs=1e-3)
        assert moved.gradients.mean() == pytest.approx(0.0, abs=0.5)
        assert moved.hessians.mean() == pytest.approx(n / leaves * (1.0 if loss == "squared" else 0.2), rel=1e-3)
        assert moved.gradients.std() == pytest.approx(moved.gradient_std, rel=0.02)
        assert moved.hessians.std() == pytest.approx(moved.hessian_std, rel=0.02)


def test_drowned_first_rounds_begin_within_bounds() -> None:
    """Whatever noise says of the number of records and the sum of counts."""
    for sign in (-1.0, 1.0):
        sums = LeafSums(np.full((2, 4), 50.0 * sign), np.full((2, 4), -20.0), 30.0, 30.0)
        assert abs(first_base(sums, "squared", 1.0)[0]) <= 1.0
        base, moved = first_base(sums, "poisson", 0.5)
        assert np.log(0.5e-3) - 1e-6 <= base <= np.log(0.5) + 1e-6
        assert np.isfinite(moved.gradients).all()


def test_outcomes_are_numbers_and_counts() -> None:
    for loss, more in (("huber", {}), ("hazard", {"event": "k"})):
        with pytest.raises(ConfigurationError, match=f'no loss "{loss}"') as refused:
            compiled("gbdt", {"outcome": {"column": "n", "loss": loss, **more}}, schema=NUMBERS)
        assert "fedsgd" in str(refused.value.advice)
    number, count = {"column": "n", "loss": "squared"}, {"column": "n", "loss": "poisson"}
    with pytest.raises(ConfigurationError, match="not a numeric column"):
        compiled("gbdt", {"outcome": {"column": "k", "loss": "squared"}}, schema=NUMBERS)
    with pytest.raises(ConfigurationError, match="largest mean"):
        compiled("gbdt", {"outcome": number, "most": 3.0}, schema=NUMBERS)
    with pytest.raises(ConfigurationError, match="No mean exceeds"):
        compiled("gbdt", {"outcome": count, "most": 9.0}, schema=NUMBERS)
    with pytest.raises(ConfigurationError, match="name an outcome"):
        compiled("gbdt", schema=NUMBERS)
    stated = compiled("gbdt", {"outcome": count}, schema=NUMBERS).parameters
    assert float.fromhex(str(stated["most"])) == 4.0
    assert not {"outcome", "most"} & set(compiled("gbdt", schema=SCHEMA).parameters)


def test_trees_of_a_number_predict_records_that_no_site_has() -> None:
    """scikit-learn's diabetes: four sites have 83 of the 442 records each, and 110 are held out."""
    from sklearn.datasets import load_diabetes
    from sklearn.metrics import r2_score

    x, y = load_diabetes(return_X_y=True, scaled=False)
    low = np.array([18.0, 1, 18, 60, 90, 30, 20, 2, 3, 55, 25])
    high = np.array([80.0, 2, 42, 135, 305, 245, 100, 10, 6.5, 125, 350])
    schema = DatasetSchema(
        columns=tuple(
            NumberColumn(name=f"c{place}", low=a, high=b) for place, (a, b) in enumerate(zip(low, high, strict=True))
        ),
        max_records=100,
    )
    scaled = 2.0 * (np.clip(np.column_stack([x, y]), low, high) - low) / (high - low) - 1.0
    order = np.random.default_rng(0).permutation(len(y))
    held, rest = order[:110], order[110:]
    sites = {
        name: Records(scaled[own], np.ones((len(own), 11), dtype=np.bool_), None)
        for name, own in zip(SITES, np.array_split(rest, 4), strict=True)
    }
    asked = {"outcome": {"column": "c10", "loss": "squared"}, "rounds": 16}
    given = Records(scaled[held, :10], np.ones((110, 10), dtype=np.bool_), None)
    found = []
    for seed in range(1):
        model = Model.from_result(run("gbdt", asked, sites, seed, schema=schema, epsilon=8.0))
        found.append(r2_score(y[held], model.estimates(given)))
    assert min(found) > 0.3


def evenly(classes: int, n: int = 200) -> dict[str, Records]:
    """Sites whose labels tell nothing of their features."""
    rng = np.random.default_rng(3)
    return {name: replace(some_records(index, n), labels=rng.integers(0, classes, n)) for index, name in enumerate(SITES)}


@pytest.mark.usefixtures("few_rehearsals")
def test_noise_is_priced() -> None:
    study = compiled("gbdt", schema=SCHEMA, epsilon=3.0)
    assert study.tasks[0].releases == 30
    wide, near = (draft("gbdt", {"rounds": 4}, schema=SCHEMA, expected=n, epsilon=3.0) for n in (50, 400))
    assert wide.forecast(wide.compile())[0].share > near.forecast(near.compile())[0].share


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


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_xgboost_reads_a_model_of_an_outcome_and_adds_up_the_same_float32(loss: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    sites = {name: of_counts(index) for index, name in enumerate(SITES)}
    result = run("gbdt", {"outcome": {"column": "n", "loss": loss}, "rounds": 5}, sites, schema=NUMBERS, epsilon=8.0)
    assert result.arrays["model.base"][0] != 0.0
    booster = xgboost.Booster()
    booster.load_model(bytearray(xgboost_json(result)))
    model, records = Model.from_result(result), some_records(9, 500)
    given = xgboost.DMatrix(model.features(records).astype(np.float32), feature_names=list(model.schema.feature_names))
    np.testing.assert_array_equal(booster.predict(given, output_margin=True), model.scores(records)[:, 0].astype(np.float32))
    told = booster.attributes()
    low, high, found = float(told["low"]), float(told["high"]), booster.predict(given)
    assert (told["column"], told["unit"]) == ("n", "visits")
    wanted = (
        low + (found + 1.0) * (high - low) / 2.0
        if loss == "squared"
        else np.minimum(found * (high - low) / 2.0, float(told["most"]))
    )
    np.testing.assert_allclose(model.estimates(records), np.clip(wanted, low, high), rtol=1e-5)
    assert booster.num_boosted_rounds() == 5 * 16 + 1
