"""Methods on a federation in memory: right without noise, honest with it, and never a crash when noise swallows everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from support.studies import agreed, demand, draft, federation, split_records
from veilsum.compile import StudyRequest
from veilsum.exports import tables_of
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.methods import METHODS, get_method
from veilsum_coordinator.methods.fedcgs import FedCGSParameters
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model
from veilsum_participant.data import load_records
from veilsum_privacy.results.result import Result, load_result, save_result
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

SITES = [f"site-{index}" for index in range(4)]
BREAST_CANCER = Path(__file__).parents[2] / "deploy" / "veilsum_deploy" / "demo_data" / "breast_cancer.toml"


def compiled(schema: DatasetSchema, method: str, epsilon: float | None, **parameters: object) -> Study:
    request = StudyRequest(name="s", method=method, dataset="d", data=schema, parameters=parameters, privacy=demand(epsilon))
    return agreed(request, SITES)


@pytest.fixture(scope="module")
def breast_cancer(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetSchema, Records]:
    bunch = load_breast_cancer()
    path = tmp_path_factory.mktemp("data") / "breast_cancer.npz"
    np.savez(path, X=bunch.data, y=bunch.target)
    schema = load_schema(BREAST_CANCER)
    assert [column.name for column in schema.columns] == list(bunch.feature_names)
    records, _ = load_records(path, schema)
    return schema, records


def head_of(result: Result) -> LinearHead:
    arrays, told = result.arrays, result.application
    return LinearHead(
        arrays["weights"], arrays["bias"], tuple(told["classes"]), arrays.get("centre"), told["head"].get("clip")
    )


def accuracy(schema: DatasetSchema, result: Result, records: Records) -> float:
    if not result.arrays:
        return 0.0
    head = head_of(result)
    classes = np.array([schema.classes.index(name) for name in head.classes])
    return float(np.mean(classes[head.predict(records.features)] == records.labels))


def test_registry_names_the_nearest() -> None:
    assert all(get_method(name).name == name for name in METHODS)
    with pytest.raises(ConfigurationError, match="Did you mean 'fedcgs'"):
        get_method("fedcg")


MIXED = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=100, unit="years"),
        NumberColumn(name="bmi", low=10, high=60, impute=25),
        CategoryColumn(name="sex", categories=("f", "m")),
    ),
    label=LabelColumn(column="ill", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))),
)


def mixed_file(path: Path, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    age, bmi = rng.normal(60, 12, n).clip(20, 100), rng.normal(27, 5, n).clip(10, 60)
    age[rng.random(n) < 0.1] = np.nan
    sex, ill = rng.choice(["f", "m"], n, p=[0.3, 0.7]), rng.integers(0, 2, n)
    np.savez(path, age=age, bmi=bmi, sex=sex, ill=ill)
    return age, bmi, sex, ill


def test_statistics_without_noise_are_numpys(tmp_path: Path) -> None:
    age, bmi, sex, ill = mixed_file(tmp_path / "d.npz", 3000)
    records, _ = load_records(tmp_path / "d.npz", MIXED)
    study = compiled(MIXED, "statistics", None)
    summary = METHODS["statistics"].run(federation(study, split_records(records, 4))).summary
    first, second = summary["overview.numbers"]
    (number,) = summary["records"]
    assert (number["count"]["value"], number["count"]["noise_error"]) == (3000, 0)
    assert first["count"]["value"] == np.sum(~np.isnan(age))
    assert first["mean"]["value"] == pytest.approx(np.nanmean(age), abs=0.05)
    assert first["standard_deviation"]["value"] == pytest.approx(np.nanstd(age), abs=0.1)
    assert second["mean"]["value"] == pytest.approx(bmi.mean(), abs=0.05)
    assert second["standard_deviation"]["value"] == pytest.approx(bmi.std(), abs=0.1)
    assert second["unit"] == ""
    women, men, unknown = summary["overview.sex"]
    assert [row["count"]["value"] for row in (women, men, unknown)] == [np.sum(sex == "f"), np.sum(sex == "m"), 0]
    assert women["share"]["value"] == pytest.approx(np.mean(sex == "f"), abs=1e-9)
    assert summary["classes"][1]["share"]["value"] == pytest.approx(ill.mean(), abs=1e-9)


@pytest.mark.system
def test_noise_errors_of_statistics_are_those_of_the_noise(tmp_path: Path) -> None:
    age, bmi, _, ill = mixed_file(tmp_path / "d.npz", 3000)
    records, _ = load_records(tmp_path / "d.npz", MIXED)
    study, sites = compiled(MIXED, "statistics", 2.0), split_records(records, 4)
    truths = (np.nanmean(age), bmi.mean(), np.nanstd(age), ill.mean())
    errors: list[list[float]] = []
    for seed in range(200):
        summary = METHODS["statistics"].run(federation(study, sites, seed)).summary
        first, second = summary["overview.numbers"]
        found = (first["mean"], second["mean"], first["standard_deviation"], summary["classes"][1]["share"])
        errors.append([(item["value"] - truth) / item["noise_error"] for item, truth in zip(found, truths, strict=True)])
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    np.testing.assert_allclose(spread, 1.0, atol=0.17)


@pytest.mark.parametrize("kind", ["within", "total"])
def test_fedcgs_without_noise_is_linear_discriminant_analysis(breast_cancer: tuple[DatasetSchema, Records], kind: str) -> None:
    """With the classes' covariance, or as FedCGS has it with that about the mean of all; each shrunk by OAS."""
    schema, records = breast_cancer
    study = compiled(schema, "fedcgs", None, clip=6.0, covariance=kind)  # sqrt(30) at most: nothing is clipped
    result = METHODS["fedcgs"].run(federation(study, split_records(records, 4)))
    assert records.labels is not None
    x, y = records.features, records.labels
    within = sum(np.mean(y == c) * np.cov(x[y == c].T, bias=True) for c in (0, 1))
    if kind == "total":
        within = np.cov(x.T, bias=True)
    alpha, mu, n, d = np.mean(within**2), np.trace(within) / 30, len(y), 30
    shrinkage = min(1.0, (alpha + mu**2) / ((n + 1) * (alpha - mu**2 / d)))
    shrunk = (1 - shrinkage) * within + shrinkage * mu * np.eye(d)
    means = np.array([x[y == c].mean(axis=0) for c in (0, 1)])
    expected = np.linalg.solve(shrunk, means[1] - means[0])
    weights = head_of(result).weights
    np.testing.assert_allclose(weights[1] - weights[0], expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
    plain = LinearDiscriminantAnalysis().fit(x, y).score(x, y)
    assert accuracy(schema, result, records) >= plain - (0.015 if kind == "within" else 0.05)
    assert ("covariance" in study.parameters) == (kind == "total")  # studies that were signed before keep their bytes


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.88), pytest.param(3.0, 0.915, marks=pytest.mark.system)])
def test_fedcgs_on_breast_cancer(breast_cancer: tuple[DatasetSchema, Records], epsilon: float, least: float) -> None:
    schema, records = breast_cancer
    study = compiled(schema, "fedcgs", epsilon)
    assert study.privacy.epsilon is not None
    assert 0.99 * epsilon < study.privacy.epsilon <= epsilon
    accuracies = []
    for split in range(6):
        order = np.random.default_rng(split).permutation(len(records))
        train, test = records.take(order[170:]), records.take(order[:170])
        sites = split_records(train, 4, split)
        runs = [METHODS["fedcgs"].run(federation(study, sites, 10 * split + draw)) for draw in range(10)]
        accuracies += [accuracy(schema, result, test) for result in runs]
    assert np.mean(accuracies) > least


def test_fedcgs_describes_the_columns_by_class_in_their_own_units() -> None:
    """Against pandas, at an epsilon at which noise hardly counts; and the head is as good as with the mean alone."""
    rng = np.random.default_rng(5)
    ill = rng.integers(0, 2, 3000)
    frame = pd.DataFrame({"age": rng.normal(50 + 8 * ill, 9).clip(20, 100), "bmi": rng.normal(26, 4, 3000).clip(10, 60)})
    frame["sex"] = rng.random(3000) < 0.4 + 0.2 * ill
    features = np.column_stack([(frame.age - 60) / 40, (frame.bmi - 35) / 25, ~frame.sex, frame.sex]).astype(float)
    present = np.ones((3000, 4), dtype=np.bool_)
    present[:40, 0] = False
    frame.loc[:39, "age"] = np.nan
    study = compiled(MIXED, "fedcgs", 5000.0, describe=True, missing="centre")
    result = METHODS["fedcgs"].run(federation(study, split_records(Records(features, present, ill), 4)))
    summary, by = result.summary, frame.groupby(np.where(ill, "yes", "no"))
    assert len(summary["numbers-by-class"]) == len(summary["categories-by-class"]) == 4
    for row in summary["numbers-by-class"]:
        own = by[row["column"]].get_group(row["ill"])
        assert row["mean"]["value"] == pytest.approx(own.mean(), abs=0.1)
        assert row["standard_deviation"]["value"] == pytest.approx(own.std(), abs=0.1)
        assert row["count"]["value"] == pytest.approx(own.count(), abs=5)
        assert row["mean"]["sampling_error"] == pytest.approx(own.sem(), rel=0.05)
    for row in summary["categories-by-class"]:
        male = by.sex.mean()[row["ill"]]
        assert row["share"]["value"] == pytest.approx(male if row["level"] == "m" else 1.0 - male, abs=0.01)
    assert summary["numbers-by-class tests"][0]["p_value"] < 1e-6
    assert "numbers-by-class" in tables_of(result)
    plain = LinearDiscriminantAnalysis().fit(features[:, :3], ill).predict(features[:, :3])
    assert np.mean(head_of(result).predict(features) == plain) > 0.97


def test_fedcgs_scores_records_as_short_as_those_it_is_made_of() -> None:
    """Handwritten eights against the rest: clipping to a third of the norm must not move the threshold."""
    bunch = load_digits()
    data, labels = bunch.data / 8.0 - 1.0, (bunch.target == 8).astype(np.int64)
    columns = tuple(NumberColumn(name=f"x{index}", low=0, high=16) for index in range(64))
    classes = tuple(ClassValues(name=name, values=(name,)) for name in ("rest", "eight"))
    schema = DatasetSchema(columns=columns, label=LabelColumn(column="y", classes=classes), max_records=2000)
    order = np.random.default_rng(0).permutation(len(labels))
    everyone = Records(data, np.ones(data.shape, dtype=np.bool_), labels)
    train, test = everyone.take(order[540:]), everyone.take(order[:540])
    guess = 1.0 - float(np.mean(test.labels))
    found = {}
    for scored in ("clipped", "whole"):
        study = compiled(schema, "fedcgs", 3.0, scored=scored)
        runs = [METHODS["fedcgs"].run(federation(study, split_records(train, 4), seed)) for seed in range(5)]
        found[scored] = np.mean([accuracy(schema, result, test) for result in runs])
        for result in runs:
            own = Model.from_result(result)
            np.testing.assert_array_equal(own.predict(test), head_of(result).predict(test.features))
    assert found["clipped"] > guess + 0.03
    assert found["whole"] < guess
    older = study.model_copy(update={"parameters": {k: v for k, v in study.parameters.items() if k != "scored"}})
    assert "centre" not in METHODS["fedcgs"].run(federation(older, split_records(train, 4), 0)).arrays


def test_fedcgs_states_what_its_defaults_depend_on(breast_cancer: tuple[DatasetSchema, Records]) -> None:
    def shares(study: Study) -> list[float]:
        split = FedCGSParameters.model_validate(study.parameters).split
        assert split is not None
        return [split.counts, split.sums, split.second]

    schema, _ = breast_cancer
    study = compiled(schema, "fedcgs", 1.0)
    assert shares(study) == [0.1, 0.55, 0.35]
    assert study.parameters["scored"] == "clipped"
    for plain in (compiled(schema, "fedcgs", 1.0, centre=False), compiled(schema, "fedcgs", None)):
        assert shares(plain) == [0.15, 0.65, 0.2]
        assert "scored" not in plain.parameters
    asked = compiled(schema, "fedcgs", 1.0, split={"counts": 1, "sums": 2, "second": 1})
    assert shares(asked) == [1, 2, 1]
    three = LabelColumn(column="y", classes=tuple(ClassValues(name=n, values=(n,)) for n in "abc"))
    assert shares(compiled(schema.model_copy(update={"label": three}), "fedcgs", 1.0)) == [0.15, 0.65, 0.2]
    with pytest.raises(ConfigurationError, match="clipped about their centre"):
        compiled(schema, "fedcgs", 1.0, centre=False, scored="clipped")


@pytest.mark.parametrize(
    ("privacy", "more"),
    [({"noise": "none"}, {}), ({"epsilon": 1.0}, {"centre": False}), ({"epsilon": 1.0, "unit": "subject"}, {})],
)
def test_fedcgs_describes_only_what_it_centres_and_records(privacy: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="describes"):
        draft("fedcgs", {"describe": True, **more}, MIXED, **privacy).compile()


def test_fedcgs_survives_noise_that_swallows_everything(breast_cancer: tuple[DatasetSchema, Records]) -> None:
    schema, records = breast_cancer
    few = {site: part.take(np.arange(3)) for site, part in split_records(records, 4).items()}
    study = compiled(schema, "fedcgs", 0.1)
    heads = 0
    for seed in range(60):
        result = METHODS["fedcgs"].run(federation(study, few, seed))
        json.dumps(result.summary, allow_nan=False)
        if result.arrays:
            heads += 1
            assert np.isfinite(result.arrays["weights"]).all()
            assert np.isfinite(result.arrays["bias"]).all()
            assert len(result.application["classes"]) == sum(item["in_head"] for item in result.summary["classes"])
        else:
            assert "not_estimable" in result.summary
    assert heads < 10


@pytest.mark.parametrize("priors", ["released", "equal"])
@pytest.mark.parametrize("epsilon", [None, 5.0])
def test_fedcgs_with_missing_labels_a_missing_class_and_a_constant_feature(epsilon: float | None, priors: str) -> None:
    classes = tuple(ClassValues(name=name, values=(name,)) for name in ("a", "b", "never"))
    columns = tuple(NumberColumn(name=f"x{index}", low=-3, high=3) for index in range(4))
    schema = DatasetSchema(columns=columns, label=LabelColumn(column="y", classes=classes))
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 2, 4000)
    features = (rng.standard_normal((4000, 4)) / 3 + labels[:, None] * np.array([0.5, 0, 0, 0])).clip(-1, 1)
    features[:, 3] = 0.25
    records = Records(features, rng.random((4000, 4)) < 0.9, labels)
    study = compiled(schema, "fedcgs", epsilon, priors=priors, missing="centre")
    result = METHODS["fedcgs"].run(federation(study, split_records(records, 4), seed=1))
    assert result.application["classes"] == ["a", "b"]
    assert result.summary["classes"][2]["in_head"] is False
    known = records.take(np.flatnonzero(labels >= 0))
    assert accuracy(schema, result, known) > 0.7


def test_results_are_kept_and_checked(tmp_path: Path) -> None:
    result = Result("m", {"a": [{"x": 1}]}, {"w": np.arange(6.0).reshape(2, 3).T}, {"classes": ["p", "q"]})
    manifest = save_result(tmp_path / "r", result, study={"name": "s"})
    assert json.loads(manifest.read_text())["study"] == {"name": "s"}
    loaded = load_result(tmp_path / "r")
    np.testing.assert_array_equal(loaded.arrays["w"], result.arrays["w"])
    assert (loaded.method, loaded.summary, loaded.application) == ("m", result.summary, result.application)
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["arrays.safetensors", "manifest.json"]
    arrays = tmp_path / "r" / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"x")
    with pytest.raises(HostileInput, match="not the file"):
        load_result(tmp_path / "r")
    with pytest.raises(HostileInput, match="no readable result"):
        load_result(tmp_path / "none")
    manifest.write_text("[]")
    with pytest.raises(HostileInput, match="malformed"):
        load_result(tmp_path / "r")
    with pytest.raises(Misuse):
        save_result(tmp_path / "n", Result("m", {"a": float("nan")}))
    assert not (tmp_path / "n" / "manifest.json").exists()
