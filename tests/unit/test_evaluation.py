"""Federated and local evaluation: the task against counts by hand, how models are found, the method, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.dummy import DummyClassifier
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from support.commands import veilsum
from support.federation import make_request, schema_of
from support.randomness import SeededRandom
from support.studies import agreed, complete
from veilsum.compile import StudyRequest
from veilsum.request import load_study_request, with_model
from veilsum_aggregation.classification import auc_figure
from veilsum_coordinator.methods.federated_evaluation import FederatedEvaluation
from veilsum_coordinator.parts.alignment import application
from veilsum_coordinator.parts.networks import network_head
from veilsum_coordinator.results.released_models import find_released, result_model
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.study import draft_of
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, StateError
from veilsum_participant.applying.measurement import measure
from veilsum_participant.applying.model import Model
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.encoder import Projection, RandomFeatures
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records, RowTask
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.released import model_digest

WIDTH, CLASSES = 4, 3
SITES = ["berlin", "oslo", "rome"]
SCHEMA = schema_of(WIDTH, CLASSES)
TWO = schema_of(WIDTH, 2)


def network(name: str, width: int, classes: int, seed: int = 1) -> tuple[Architecture, dict[str, np.ndarray]]:
    """A model whose scores differ between records."""
    options = {"hidden": 8} if name == "mlp" else {}
    inputs = (1, 16, 16) if name == "lenet5" else None
    options = {"clip": 0.9} if name == "discriminant" else options
    spec = resolve_model(ModelSpec(name=name, inputs=inputs, options=options))
    architecture = build_architecture(spec, width, classes, trained=False)
    rng = np.random.default_rng(seed)
    shapes = architecture.shapes()
    arrays = {key: rng.normal(size=shape) * (0.1 if key == "head.bias" else 1.0) for key, shape in shapes.items()}
    return architecture, arrays


def records(n: int, width: int = WIDTH, classes: int = CLASSES, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    return complete(rng.uniform(-1, 1, (n, width)), rng.integers(0, classes, n))


def task_of(
    architecture: Architecture, arrays: dict[str, np.ndarray], schema: DatasetSchema, **changes: Any
) -> tuple[RowTask, dict[str, np.ndarray]]:
    spec = ModelSpec(name=architecture.name, inputs=architecture.inputs, options=architecture.options.model_dump(mode="json"))
    queries = changes.pop("queries", [COUNTS])
    low = 0.0 if len(schema.classes) == len(changes.get("classes", schema.classes)) == 2 else 1 / architecture.classes
    given = {
        "missing": "skip",
        "model": spec.model_dump(mode="json"),
        "sha256": model_digest(architecture, arrays),
        "classes": schema.classes,
        "low": low,
        "high": 1.0,
        "queries": queries,
        "sensitivity": 8 * len(queries),
    }
    task = build_task("model-tables", {**given, **changes}, schema)
    assert isinstance(task, RowTask)
    return task, to_broadcast(arrays)


COUNTS = {"name": "confusion", "kind": "count", "over": ("class", "predicted"), "scale": 8}


def scores_by(column: str, low: float, bins: int) -> dict[str, Any]:
    edges = tuple(np.linspace(low, 1.0, bins + 1)[1:-1].tolist())
    return {"name": "scores", "kind": "histogram", "over": ("prediction",), "by": (column,), "edges": edges, "scale": 8}


LOSSES = {"name": "loss", "kind": "mean", "over": ("loss",), "scale": 2**14}


def total_of(task: RowTask, data: Records, broadcast: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return task.layout().split(np.sum([batch.sum(axis=0) for batch in task_rows(task, data, broadcast)], axis=0))


def plain_scores(architecture: Architecture, arrays: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The model's scores by torch, all records at once."""
    import torch

    from veilsum_privacy.training.arrays import load

    module = architecture.module().eval()
    load(module, arrays)
    with torch.no_grad():
        return module(torch.from_numpy(x).reshape(len(x), *(architecture.inputs or (x.shape[1],)))).numpy()


# -- the task --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "width"), [("linear", WIDTH), ("mlp", WIDTH), ("lenet5", 256)])
def test_the_blocks_are_counts_by_hand(name: str, width: int) -> None:
    architecture, arrays = network(name, width, CLASSES)
    schema = schema_of(width, CLASSES)
    asked = [COUNTS, scores_by("right", 1 / CLASSES, 6), LOSSES]
    task, broadcast = task_of(architecture, arrays, schema, largest_loss=2.0, queries=asked, sensitivity=2**15)
    data = records(150, width)
    found = total_of(task, data, broadcast)
    z = plain_scores(architecture, arrays, data.features)
    assert data.labels is not None
    counts = confusion_matrix(data.labels, z.argmax(axis=1), labels=range(CLASSES))
    np.testing.assert_array_equal(found["confusion/table"], counts)
    losses = -log_softmax(z, axis=1)[np.arange(150), data.labels]
    assert (losses > 2.0).any()
    assert (losses < 2.0).any()
    rough = 1e-4 if name == "lenet5" else 1e-5
    assert found["loss/records"] == pytest.approx(150)
    assert found["loss/sum"][0, 0] + 150 == pytest.approx(np.minimum(losses, 2.0).sum(), rel=rough)
    confidence, right = softmax(z, axis=1).max(axis=1), z.argmax(axis=1) == data.labels
    for row, own in ((0, ~right), (1, right)):
        expected, _ = np.histogram(confidence[own], np.linspace(1 / CLASSES, 1, 7))
        np.testing.assert_array_equal(found["scores/table"][row], expected)


def test_two_classes_are_counted_by_the_probability_of_the_second() -> None:
    """The schema's second, which here is the model's first."""
    architecture, arrays = network("mlp", WIDTH, 2)
    task, broadcast = task_of(architecture, arrays, TWO, classes=("c1", "c0"), queries=[COUNTS, scores_by("class", 0.0, 8)])
    data = records(200, classes=2)
    found = total_of(task, data, broadcast)
    z = plain_scores(architecture, arrays, data.features)
    assert data.labels is not None
    for row in (0, 1):
        expected, _ = np.histogram(softmax(z, axis=1)[data.labels == row, 0], np.linspace(0, 1, 9))
        np.testing.assert_array_equal(found["scores/table"][row], expected)
    by_schema = confusion_matrix(1 - data.labels, z.argmax(axis=1))[::-1]
    np.testing.assert_array_equal(found["confusion/table"], by_schema)


def test_a_class_that_the_model_does_not_know_is_always_wrong() -> None:
    architecture, arrays = network("linear", WIDTH, 2)
    asked = [COUNTS, scores_by("right", 0.5, 4), LOSSES]
    task, broadcast = task_of(
        architecture, arrays, SCHEMA, classes=("c2", "c0"), largest_loss=3.0, queries=asked, sensitivity=2**15
    )
    data = records(1, seed=3)
    data.labels[:] = 1  # type: ignore[index]
    found = total_of(task, data, broadcast)
    assert found["confusion/table"][1].sum() == 1
    assert found["confusion/table"].sum() == 1
    assert found["scores/table"][0].sum() == 1
    assert found["loss/sum"][0, 0] == pytest.approx(1.0, rel=1e-4)  # at its upper end


def test_records_that_cannot_be_scored_add_nothing() -> None:
    architecture, arrays = network("mlp", WIDTH, CLASSES)
    data = records(6)
    data.labels[0], data.labels[1] = -1, 7  # type: ignore[index]
    data.present[2, 0] = False
    data.features[3, 1] = np.nan
    skip, broadcast = task_of(architecture, arrays, SCHEMA, queries=[COUNTS, scores_by("right", 1 / CLASSES, 2)])
    (rows,) = task_rows(skip, data, broadcast)
    assert not rows[:4].any()
    assert (rows[4:, : CLASSES**2].sum(axis=1) == 8).all()
    centre, _ = task_of(architecture, arrays, SCHEMA, missing="centre")
    (rows,) = task_rows(centre, data, broadcast)
    assert rows[2].sum() == 8
    assert not any(len(batch) for batch in task_rows(skip, records(0), broadcast))


@pytest.mark.parametrize(("name", "width"), [("mlp", WIDTH), ("lenet5", 256), ("discriminant", WIDTH)])
def test_a_row_does_not_depend_on_its_company(name: str, width: int) -> None:
    architecture, arrays = network(name, width, CLASSES)
    asked = [COUNTS, scores_by("right", 1 / CLASSES, 4), LOSSES]
    task, broadcast = task_of(
        architecture, arrays, schema_of(width, CLASSES), largest_loss=50.0, queries=asked, sensitivity=2**15
    )
    data = records(130, width)
    together = np.vstack(list(task_rows(task, data, broadcast)))
    for index in (0, 63, 64, 129):
        one = data.take(slice(index, index + 1))
        (alone,) = task_rows(task, one, broadcast)
        assert alone[0].tobytes() == together[index].tobytes()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 500), st.integers(32, 500), st.floats(0.1, 20), st.floats(0.1, 1e5))
def test_no_record_is_longer_than_stated(seed: int, counts: int, losses: int, most: float, size: float) -> None:
    """Each query's norm is reached but never passed, so that the sensitivity of their sum is exact."""
    architecture, arrays = network("linear", WIDTH, CLASSES, seed % 1000)
    arrays["head.weight"] *= size
    asked = [{**COUNTS, "scale": counts}, {**LOSSES, "scale": losses}]
    task, broadcast = task_of(architecture, arrays, SCHEMA, largest_loss=most, queries=asked)
    assert isinstance(task, ModelTables)
    rows = np.vstack(list(task_rows(task, records(40, seed=seed), broadcast)))
    most_square = sum(question.norm() for question in task.questions)
    assert (rows**2).sum(axis=1).max() <= most_square
    assert (rows[:, : CLASSES**2] ** 2).sum(axis=1).max() == counts**2


def test_only_the_named_model_is_taken() -> None:
    architecture, arrays = network("mlp", WIDTH, CLASSES)
    task, broadcast = task_of(architecture, arrays, SCHEMA)
    other = dict(broadcast)
    other["model.head.bias"] = np.nextafter(other["model.head.bias"], 9.0)
    with pytest.raises(HostileInput, match="not the one that the study names"):
        next(task_rows(task, records(2), other))
    del other["model.head.bias"]
    with pytest.raises(HostileInput, match=r"model\.head\.bias"):
        next(task_rows(task, records(2), other))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ("c0", "c9", "c1")}, "not distinct classes of the schema"),
        ({"classes": ("c0", "c0", "c1")}, "not distinct classes of the schema"),
        ({"classes": ("c0",)}, "not distinct classes of the schema"),
        ({"classes": ()}, "state `outcome` or `classes`"),
        ({"model": {"name": "mlp", "inputs": None, "options": {}}}, "leaves options open"),
        ({"model": {"name": "nothing", "inputs": None, "options": {}}}, "No model is called 'nothing'"),
        ({"most": 3.0}, "model that predicts counts"),
        ({"width": 4, "person": "mean"}, "not joined"),
        ({"sha256": "x"}, "sha256"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    architecture, arrays = network("mlp", WIDTH, CLASSES)
    with pytest.raises(HostileInput, match=words):
        task_of(architecture, arrays, SCHEMA, **changes)
    with pytest.raises(HostileInput, match="needs a label"):
        task_of(architecture, arrays, SCHEMA.model_copy(update={"label": None}), classes=("c0", "c1", "c2"))


def test_a_classifier_may_read_columns_of_any_name() -> None:
    """What the task calls its own columns are names of the schema here, the label's too."""
    names = ("class", "right", "loss", "prediction")
    columns = tuple(column.model_copy(update={"name": name}) for column, name in zip(SCHEMA.columns, names, strict=True))
    label = SCHEMA.label.model_copy(update={"column": "predicted"})  # type: ignore[union-attr]
    schema = DatasetSchema(columns=columns, label=label, max_records=SCHEMA.max_records)
    architecture, arrays = network("mlp", WIDTH, CLASSES)
    data = records(60)
    same, broadcast = task_of(architecture, arrays, SCHEMA)
    task, _ = task_of(architecture, arrays, schema)
    np.testing.assert_array_equal(*(np.vstack(list(task_rows(one, data, broadcast))) for one in (task, same)))


def test_the_task_that_did_it_before_is_named_with_its_version() -> None:
    with pytest.raises(HostileInput, match=r"removed after version 0\.2") as caught:
        build_task("evaluation", {}, SCHEMA)
    assert "with that version" in caught.value.advice


def test_a_digest_tells_models_apart() -> None:
    architecture, arrays = network("mlp", WIDTH, CLASSES)
    digest = model_digest(architecture, arrays)
    assert model_digest(architecture, {name: array.copy() for name, array in reversed(arrays.items())}) == digest
    other = build_architecture(ModelSpec(name="mlp", options={"hidden": 8, "scale": 2.0}), WIDTH, CLASSES)
    assert model_digest(other, arrays) != digest
    changed = {**arrays, "head.bias": -arrays["head.bias"]}
    assert model_digest(architecture, changed) != digest


# -- released models -------------------------------------------------------------------------------------------------------


def released(name: str, schema: DatasetSchema = SCHEMA, *, number: int = CLASSES, **changes: Any) -> Result:
    """A result as trained methods make them."""
    architecture, arrays = network(name, schema.width, number)
    head, named = network_head(architecture, arrays)
    applied = application(schema, missing="skip", head=head, classes=schema.classes[:number])
    return Result("fedsgd", {}, named, {**applied, **changes})


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet5"])
def test_a_results_model_scores_as_the_result_does(name: str) -> None:
    schema = schema_of(256 if name == "lenet5" else WIDTH, CLASSES)
    result = released(name, schema)
    found = result_model(result)
    assert found.classes == ("c0", "c1", "c2")
    architecture = build_architecture(found.model, schema.width, CLASSES)
    arrays = {key.removeprefix("model."): array for key, array in found.arrays.items()}
    assert found.sha256 == model_digest(architecture, arrays)
    data = records(20, schema.width)
    own = Model.from_result(result).scores(data)
    np.testing.assert_allclose(own, plain_scores(architecture, arrays, data.features), rtol=1e-4, atol=1e-4)


def test_a_discriminant_is_evaluated_clipped_as_it_is_applied() -> None:
    architecture, arrays = network("discriminant", WIDTH, CLASSES)
    given = {"weights": arrays["head.weight"], "bias": arrays["head.bias"], "centre": arrays["features.centre"]}
    head = {"kind": "linear", "weights": "weights", "bias": "bias", "centre": "centre", "clip": 0.9}
    result = Result("fedcgs", {}, given, application(SCHEMA, missing="skip", head=head, classes=SCHEMA.classes))
    found = result_model(result)
    assert (found.model.name, found.sha256) == ("discriminant", model_digest(architecture, arrays))
    data = records(200)
    apart = data.features - arrays["features.centre"]
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    assert (lengths > 0.9).any()
    assert (lengths < 0.9).any()
    expected = np.where(lengths > 0.9, 0.9 * apart / lengths, apart) @ arrays["head.weight"].T + arrays["head.bias"]
    np.testing.assert_allclose(Model.from_result(result).scores(data), expected, atol=1e-12)
    task, _ = task_of(architecture, arrays, SCHEMA)
    counts = total_of(task, data, dict(found.arrays))["confusion/table"]
    for row in range(CLASSES):
        predicted = expected[np.asarray(data.labels) == row].argmax(axis=1)
        np.testing.assert_array_equal(counts[row], np.bincount(predicted, minlength=CLASSES))
    with pytest.raises(HostileInput, match="not trained by gradients"):
        build_architecture(found.model, WIDTH, CLASSES)


def test_results_without_such_a_model_are_refused() -> None:
    with pytest.raises(Misuse, match="holds no classifier"):
        result_model(Result("statistics", {}))
    with pytest.raises(Misuse) as caught:
        result_model(Result("regression", {"score": [{"number": "age"}]}))
    assert "discrimination" in caught.value.advice
    with pytest.raises(Misuse, match="aligns features at each site") as caught:
        result_model(released("linear", alignment={"kind": "maps"}))
    assert "participant evaluate" in caught.value.advice
    deep = {"kind": "mlp", "layers": [["a", "b"]] * 3, "activation": "relu"}
    with pytest.raises(Misuse, match="more than one hidden layer"):
        result_model(released("mlp", head=deep))
    for broken in ({"features": None}, {"classes": ["c0"]}, {"head": {"kind": "linear"}}):
        with pytest.raises(HostileInput):
            result_model(released("linear", **broken))
    spoilt = released("linear")
    spoilt.arrays["weights"][0, 0] = np.inf
    with pytest.raises(HostileInput, match="finite"):
        result_model(spoilt)


def write_schema(path: Path, schema: DatasetSchema) -> None:
    columns = "\n".join(
        f'    {{ kind = "number", name = "{item.name}", low = {item.low}, high = {item.high} }},'
        for item in schema.columns
        if item.kind == "number"
    )
    classes = ", ".join(f'{{ name = "{c}", values = ["{i}"] }}' for i, c in enumerate(schema.classes))
    path.write_text(f'columns = [\n{columns}\n]\n[label]\ncolumn = "{schema.label.column}"\nclasses = [{classes}]\n')  # type: ignore[union-attr]


def study_file(folder: Path, extra: str = "", parameters: str = "") -> Path:
    write_schema(folder / "schema.toml", SCHEMA)
    path = folder / "study.toml"
    path.write_text(
        'name = "measure"\nmethod = "federated-evaluation"\ndataset = "records"\nschema = "schema.toml"\n'
        f'{extra}\n[parameters]\nresult = "model"\n{parameters}\n[privacy]\nepsilon = 2.0\n'
    )
    return path


def test_a_study_file_names_the_result_and_the_study_its_digest(tmp_path: Path) -> None:
    result = released("mlp")
    save_result(tmp_path / "model", result)
    request = load_study_request(study_file(tmp_path, parameters="bins = 4"))
    told = result_model(result)
    assert "result" not in request.parameters
    assert request.parameters["sha256"] == told.sha256
    assert request.parameters["missing"] == "skip"
    assert request.parameters["bins"] == 4
    study = compiled(request)
    assert study.task("predictions").parameters["sha256"] == told.sha256
    found = find_released(tmp_path, study)
    for name, array in told.arrays.items():
        np.testing.assert_array_equal(found[name], array)
    save_result(tmp_path / "model", released("mlp", missing_rule="centre"))  # the same model still
    assert find_released(tmp_path, study).keys() == found.keys()
    save_result(tmp_path / "model", released("linear"))
    with pytest.raises(StateError, match="released the model"):
        find_released(tmp_path, study)
    save_result(tmp_path / "study" / "checkpoints" / "round-000003", result)
    assert find_released(tmp_path, study).keys() == found.keys()


def test_a_models_encoder_comes_with_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    matrix, offset = rng.normal(size=(2, WIDTH)), rng.normal(size=2)
    encoder = {"kind": "projection", "matrix": "encoder.matrix", "offset": "encoder.offset"}
    head, named = network_head(*network("linear", 2, CLASSES))
    applied = application(SCHEMA, missing="skip", head=head, classes=SCHEMA.classes)
    applied["encoder"] = {**encoder, "sha256": projection_digest(matrix, offset)}
    arrays = {**named, "encoder.matrix": matrix, "encoder.offset": offset}
    save_result(tmp_path / "model", Result("fedsgd", {}, arrays, applied))
    request = load_study_request(study_file(tmp_path))
    assert request.encoder == Projection(sha256=projection_digest(matrix, offset), inputs=WIDTH, width=2)
    study = compiled(request)
    found = find_released(tmp_path, study)
    assert {"encoder.matrix", "encoder.offset", "model.head.weight", "model.head.bias"} == set(found)
    data = {name: records(60, seed=index) for index, name in enumerate(SITES)}
    result = FederatedEvaluation().run(federation(study, data, found))
    model = Model.from_result(Result("fedsgd", {}, arrays, applied))
    right = sum(int((model.predict(own) == own.labels).sum()) for own in data.values())
    assert result.summary["accuracy"]["value"] == pytest.approx(right / 180, abs=0.15)
    drawn = RandomFeatures(width=2, gamma=0.3, inputs=WIDTH, seed=1)
    applied["encoder"] = drawn.model_dump(mode="json")
    waves = Result("fedsgd", {}, named, applied)
    save_result(tmp_path / "model", waves)
    again = load_study_request(study_file(tmp_path))
    assert again.encoder == drawn
    assert find_released(tmp_path, compiled(again)).keys() == {"model.head.weight", "model.head.bias"}
    found = FederatedEvaluation().run(federation(compiled(again), data, find_released(tmp_path, compiled(again))))
    right = sum(int((Model.from_result(waves).predict(own) == own.labels).sum()) for own in data.values())
    assert found.summary["accuracy"]["value"] == pytest.approx(right / 180, abs=0.15)
    with pytest.raises(ConfigurationError, match="another encoder"):
        with_model(
            StudyRequest(
                name="x", method="federated-evaluation", dataset="records", data=SCHEMA, parameters={"result": "model"},
                privacy=request.privacy, schema=None, encoder=Projection(sha256="0" * 64, inputs=WIDTH, width=2),
            ),
            tmp_path,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "schema", "words"),
    [
        ('sha256 = "00"', SCHEMA, "says sha256 itself"),
        ("", schema_of(WIDTH + 1, CLASSES), "reads other columns"),
    ],
)
def test_a_study_file_that_contradicts_its_result(tmp_path: Path, parameters: str, schema: DatasetSchema, words: str) -> None:
    save_result(tmp_path / "model", released("linear", schema))
    with pytest.raises(ConfigurationError, match=words):
        load_study_request(study_file(tmp_path, parameters=parameters))


def test_a_missing_result_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"parameters\.result: .*no readable result"):
        load_study_request(study_file(tmp_path))
    request = make_request(SCHEMA, "federated-evaluation", 1.0)
    with pytest.raises(ConfigurationError, match="evaluates a released model"):
        compiled(request)


def test_a_simulation_takes_the_model_from_its_result(tmp_path: Path) -> None:
    result = released("mlp")
    save_result(tmp_path / "model", result)
    content = {
        "name": "x", "method": "federated-evaluation", "dataset": "records", "parameters": {"result": "model"},
        "privacy": {"epsilon": 1.0},
    }  # fmt: skip
    draft = draft_of(content, tmp_path, SCHEMA, source="study")
    assert draft.request.parameters["sha256"] == result_model(result).sha256
    assert set(draft.broadcast) == set(result_model(result).arrays)
    data = records(5)
    assert draft.encode(data) is data  # the model is not an encoder


# -- the method ------------------------------------------------------------------------------------------------------------


def compiled(request: StudyRequest) -> Study:
    return agreed(request, SITES)


def federation(study: Study, data: dict[str, Records], arrays: Any) -> PlainFederation:
    sites = {name: PlainSite(own, SeededRandom(f"noise of {name}".encode())) for name, own in data.items()}
    return PlainFederation(study, sites, arrays)


def asked(
    tmp_path: Path, name: str, epsilon: float | None, schema: DatasetSchema = SCHEMA, **parameters: Any
) -> tuple[Study, Result]:
    result = released(name, schema, number=len(schema.classes))
    save_result(tmp_path / "model", result)
    request = make_request(schema, "federated-evaluation", epsilon)
    request = request.model_copy(update={"parameters": {"result": "model", **parameters}})
    return compiled(with_model(request, tmp_path)), result


@pytest.mark.parametrize("classes", [2, 3])
def test_without_noise_the_figures_are_those_of_pooled_records(tmp_path: Path, classes: int) -> None:
    schema = schema_of(WIDTH, classes)
    study, result = asked(tmp_path, "linear", None, schema, bins=1000, largest_loss=20.0)
    data = {name: records(80 + 10 * index, classes=classes, seed=index) for index, name in enumerate(SITES)}
    summary = FederatedEvaluation().run(federation(study, data, find_released(tmp_path, study))).summary
    x = np.vstack([own.features for own in data.values()])
    y = np.concatenate([own.labels for own in data.values() if own.labels is not None])
    z = Model.from_result(result).scores(complete(x, y))
    said, p = z.argmax(axis=1), softmax(z, axis=1)
    precision, recall, f1, support = precision_recall_fscore_support(y, said, zero_division=0)
    assert summary["records"]["value"] == pytest.approx(len(y), abs=1e-3)
    assert summary["records"]["noise_error"] == 0.0
    assert summary["accuracy"]["value"] == pytest.approx(accuracy_score(y, said))
    guess = DummyClassifier(strategy="most_frequent").fit(y[:, None], y)
    assert summary["accuracy_of_constant_guess"]["value"] == pytest.approx(guess.score(y[:, None], y))
    assert -np.log(p[np.arange(len(y)), y]).max() < 20.0  # none is cut
    assert summary["log_loss"]["value"] == pytest.approx(log_loss(y, p), rel=1e-4)
    for index, row in enumerate(summary["classes"]):
        assert row["records"]["value"] == pytest.approx(support[index], abs=1e-3)
        assert row["recall"]["value"] == pytest.approx(recall[index])
        assert row["precision"]["value"] == pytest.approx(precision[index])
        assert row["f1"]["value"] == pytest.approx(f1[index])
    table = [[row[f"predicted c{j}"]["value"] for j in range(classes)] for row in summary["confusion"]]
    np.testing.assert_allclose(table, confusion_matrix(y, said), atol=1e-3)
    assert ("auc" in summary) == (classes == 2)
    if classes == 2:
        assert summary["auc"]["value"] == pytest.approx(roc_auc_score(y, p[:, 1]), abs=2e-3)
        area = summary["auc"]["value"]
        assert summary["auc"]["low"] < area < summary["auc"]["high"]
        positives = y.mean() * len(y)
        closed = auc_figure(area, round(positives), round(len(y) - positives))  # of the sample, in closed form
        assert summary["auc"]["high"] - summary["auc"]["low"] == pytest.approx(closed.high - closed.low, rel=0.25)
    assert "calibration_error_of_noise" not in summary


def test_more_classes_than_a_table_holds_are_counted_by_their_margins(tmp_path: Path) -> None:
    """Two of the classes are none of the model's; figures are scikit-learn's, and there are no confusion counts."""
    classes = 226
    schema = schema_of(WIDTH, classes)
    save_result(tmp_path / "model", released("linear", schema, number=classes - 2))
    request = make_request(schema, "federated-evaluation", None).model_copy(update={"parameters": {"result": "model"}})
    study = compiled(with_model(request, tmp_path))
    data = {name: records(900, classes=classes, seed=index) for index, name in enumerate(SITES)}
    result = FederatedEvaluation().run(federation(study, data, find_released(tmp_path, study)))
    summary, model = result.summary, Model.from_result(released("linear", schema, number=classes - 2))
    y = np.concatenate([own.labels for own in data.values() if own.labels is not None])
    said = np.concatenate([model.predict(own) for own in data.values()])
    precision, recall, f1, support = precision_recall_fscore_support(y, said, labels=range(classes), zero_division=0)
    assert "confusion" not in summary
    assert set(result.arrays) == {"right_by_class", "right_by_prediction", "scores"}
    assert summary["accuracy"]["value"] == pytest.approx(accuracy_score(y, said))
    for index, row in enumerate(summary["classes"]):
        assert row["records"]["value"] == pytest.approx(support[index], abs=1e-3)
        assert row["recall"]["value"] == pytest.approx(recall[index])
        assert row["f1"]["value"] == pytest.approx(f1[index])
        if index < classes - 2 and "value" in row["precision"]:
            assert row["precision"]["value"] == pytest.approx(precision[index])
    assert "does not know" in summary["classes"][-1]["precision"]["not_estimable"]


@pytest.mark.parametrize(("stated", "counted"), [({"at_most": 1}, 3), ({"at_most": 2}, 5), ({"person": "last"}, 3), ({}, 3)])
def test_persons_count_as_stated(tmp_path: Path, stated: dict[str, Any], counted: int) -> None:
    """Persons of one, two and three records; with nothing stated, each person's together are as long as one record."""
    save_result(tmp_path / "model", released("mlp"))
    request = make_request(SCHEMA, "federated-evaluation", None)
    privacy = request.privacy.model_copy(update={"unit": "subject"})
    request = request.model_copy(update={"parameters": {"result": "model", **stated}, "privacy": privacy})
    study = compiled(with_model(request, tmp_path))
    one = records(1)
    subjects = np.array([0, 1, 1, 2, 2, 2])
    own = replace(one.take(np.zeros(6, dtype=np.intp)), subjects=subjects)
    found = FederatedEvaluation().run(federation(study, dict.fromkeys(SITES, own), find_released(tmp_path, study))).summary
    assert found["records"]["value"] == pytest.approx(3 * counted, abs=0.05)
    request = request.model_copy(
        update={"parameters": {"result": "model", "at_most": 1}, "privacy": make_request(SCHEMA).privacy}
    )
    with pytest.raises(HostileInput, match="counts persons"):
        compiled(with_model(request, tmp_path))


def test_a_model_of_other_classes_is_refused_in_words(tmp_path: Path) -> None:
    save_result(tmp_path / "model", released("linear"))
    request = make_request(SCHEMA, "federated-evaluation", 1.0).model_copy(update={"parameters": {"result": "model"}})
    request = with_model(request, tmp_path)
    request = request.model_copy(update={"data": TWO})
    with pytest.raises(ConfigurationError, match="not distinct classes of the schema"):
        compiled(request)


@pytest.mark.system
def test_with_noise_the_figures_are_within_their_errors(tmp_path: Path) -> None:
    study, result = asked(tmp_path, "linear", 2.0)
    assert study.task("predictions").releases == 1
    data = {name: records(300, seed=index) for index, name in enumerate(SITES)}
    model = Model.from_result(result)
    truth = np.mean([np.mean(model.predict(own) == own.labels) for own in data.values()])
    offs = []
    for draw in range(60):
        sites = {name: PlainSite(own, SeededRandom(f"{name} {draw}".encode())) for name, own in data.items()}
        inner = PlainFederation(study, sites, find_released(tmp_path, study))
        found = FederatedEvaluation().run(inner).summary["accuracy"]
        offs.append((found["value"] - truth) / found["noise_error"])
    assert np.std(offs) == pytest.approx(1.0, abs=0.3)
    assert abs(np.mean(offs)) < 0.5


def test_sites_can_be_told_apart_where_they_agree_to_it(tmp_path: Path) -> None:
    study, result = asked(tmp_path, "mlp", 20.0, per_site=True)
    assert study.task("predictions").disclosure == "per-site"
    data = {name: records(300, seed=index) for index, name in enumerate(SITES)}
    found = FederatedEvaluation().run(federation(study, data, find_released(tmp_path, study))).summary
    model = Model.from_result(result)
    assert [row["site"] for row in found["sites"]] == SITES
    for row in found["sites"]:
        own = data[row["site"]]
        assert row["records"]["value"] == pytest.approx(300, abs=5 * row["records"]["noise_error"])
        share = float(np.mean(model.predict(own) == own.labels))
        assert row["accuracy"]["value"] == pytest.approx(share, abs=5 * row["accuracy"]["noise_error"])
    whole, one = found["records"]["noise_error"], found["sites"][0]["records"]["noise_error"]
    assert whole == pytest.approx(math.sqrt(3) * one)


# -- at a site -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_local_figures_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 300)
    z = rng.normal(size=(300, classes)) + 1.2 * np.eye(classes)[y]
    names = [f"c{index}" for index in range(classes)]
    found = measure(z, y, names, names)
    said, p = z.argmax(axis=1), softmax(z, axis=1)
    assert found["accuracy"]["value"] == pytest.approx(accuracy_score(y, said))
    guess = DummyClassifier(strategy="most_frequent").fit(y[:, None], y)
    assert found["accuracy_of_constant_guess"]["value"] == pytest.approx(guess.score(y[:, None], y))
    assert found["balanced_accuracy"]["value"] == pytest.approx(balanced_accuracy_score(y, said))
    assert found["log_loss"]["value"] == pytest.approx(log_loss(y, p))
    assert found["confusion"]["counts"] == confusion_matrix(y, said).tolist()
    for rates, name in zip(precision_recall_fscore_support(y, said)[:3], ("precision", "recall", "f1"), strict=True):
        np.testing.assert_allclose([row[name]["value"] for row in found["classes"]], rates)
    assert (found["auc"] is None) == (classes != 2)
    if classes == 2:
        assert found["auc"]["value"] == pytest.approx(roc_auc_score(y, p[:, 1]))
    assert sum(row["records"] for row in found["calibration"]) == 300
    for item in (found["accuracy"], found["balanced_accuracy"], found["log_loss"], found["calibration_error"]):
        assert item["low"] < item["value"] < item["high"]


def test_what_cannot_be_measured_is_left_open() -> None:
    nothing = measure(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), ["a", "b"], ["a", "b"])
    assert nothing["accuracy"] is None
    assert nothing["accuracy_of_constant_guess"] is None
    assert nothing["auc"] is None
    assert nothing["calibration"] == []
    unknown = measure(np.array([[1.0, 0.0]] * 3), np.array([2, 0, 0]), ["a", "b", "z"], ["a", "b"])
    assert unknown["accuracy"]["value"] == pytest.approx(2 / 3)
    rows = {row["class"]: row for row in unknown["classes"]}
    assert rows["z"]["recall"]["value"] == 0.0
    assert rows["b"]["recall"] is None
    assert rows["z"]["precision"] is None
    assert unknown["auc"] is None
    json.dumps(unknown, allow_nan=False)


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return veilsum(capsys, "participant", "evaluate", *arguments)


@pytest.fixture
def held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Model, Records]:
    """A result of a perceptron, and a file of 40 records: one without a class, one without a feature, one row too short."""
    monkeypatch.chdir(tmp_path)
    result = released("mlp")
    save_result(tmp_path / "model", result)
    data = records(40, seed=7)
    lines = [",".join([*(column.name for column in SCHEMA.columns), SCHEMA.label.column])]  # type: ignore[union-attr]
    for index, (row, label) in enumerate(zip(data.features, data.labels, strict=True)):  # type: ignore[arg-type]
        cells = [repr(float(value)) for value in row] + ["" if index == 0 else str(label)]
        cells[1] = "" if index == 1 else cells[1]
        lines.append(",".join(cells[:-1] if index == 2 else cells))
    (tmp_path / "held.csv").write_text("\n".join(lines) + "\n")
    return tmp_path, Model.from_result(result), data


def test_the_command_measures_a_result(held_out: tuple[Path, Model, Records], capsys: pytest.CaptureFixture[str]) -> None:
    folder, model, data = held_out
    before = sorted(folder.rglob("*"))
    code, out, err = command(capsys, "model", "--data", "held.csv", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["left_out"] == {"without_class": 1, "without_features": 1, "broken_rows": 1}
    assert report["evaluated"] == 37
    kept = data.take(slice(3, None))
    assert report["accuracy"]["value"] == pytest.approx(np.mean(model.predict(kept) == kept.labels))
    code, out, _ = command(capsys, "model", "--data", "held.csv")
    assert code == 0
    for words in ("1 without class, 1 without features, 1 broken rows", "balanced accuracy", "By class", "Calibration", "95%"):
        assert words in out
    assert sorted(folder.rglob("*")) == before  # nothing is written


def test_a_dataset_of_the_configuration_is_measured_by_name(
    held_out: tuple[Path, Model, Records], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _, _ = held_out
    (folder / "participant.toml").write_text(
        'coordinator = "localhost:1"\n[datasets.test]\npath = "held.csv"\n[budgets.test]\nepsilon = 1.0\ndelta = 1e-5\n'
        '[policy]\nanalysts = ["*"]\n'
    )
    by_file = json.loads(command(capsys, "model", "--data", "held.csv", "--json")[1])
    by_name = json.loads(command(capsys, "model", "--dataset", "test", "--json")[1])
    assert by_name["accuracy"] == by_file["accuracy"]
    code, _, err = command(capsys, "model", "--dataset", "tests")
    assert code == 2
    assert "'test'" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--data FILE or with --dataset NAME"),
        (("--data", "held.csv", "--dataset", "test"), "not both"),
        (("--data", "unlabelled.csv"), "holds no classes"),
        (("--data", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_what_cannot_be_evaluated_is_a_typed_error(
    held_out: tuple[Path, Model, Records], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    folder, _, data = held_out
    names = [column.name for column in SCHEMA.columns]
    rows = "\n".join(",".join(map(str, row)) for row in data.features)
    (folder / "unlabelled.csv").write_text(f"{','.join(names)}\n{rows}\n")
    code, _, err = command(capsys, "model", *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
