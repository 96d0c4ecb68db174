"""The method gbdt: without noise its trees are those of a plain boosting of all records, and its plan prices noise."""

from __future__ import annotations

import numpy as np
import pytest

from support.studies import SITES, compiled, draft, run
from veilsum.xgboost_model import xgboost_json
from veilsum_aggregation.boosting import SplitColumn, random_trees
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records

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
    return Records(np.hstack([x, k]), np.ones((n, 5), dtype=np.bool_), label)


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
    records = Records(x, np.ones(x.shape, dtype=np.bool_), y)
    scores = model.scores(records)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], margin, atol=1e-3)
    assert np.mean(model.predict(records) == y) > 0.7


def test_paths_never_split_what_is_split_off() -> None:
    features, thresholds = random_trees(np.random.default_rng(1), [SplitColumn(0), SplitColumn(1, 3)], 20, 4, 8)
    assert set(features.ravel().tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert set(thresholds[features > 0].tolist()) == {0.5}
    again = random_trees(np.random.default_rng(1), [SplitColumn(0), SplitColumn(1, 3)], 20, 4, 8)
    np.testing.assert_array_equal(features, again[0])


def test_more_than_two_classes_are_refused_and_noise_is_priced() -> None:
    with pytest.raises(ConfigurationError, match="two classes"):
        compiled("gbdt")
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
