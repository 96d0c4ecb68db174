"""Models as ONNX files: what onnxruntime computes from columns in their own units is what the model itself does."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from scipy.special import softmax
from torch import nn

from support.federation import schema_of
from support.studies import SITES, complete, run, split_records
from veilsum.api.models import Classifier, Encoder, Regressor
from veilsum.onnx_model import onnx_bytes
from veilsum_coordinator.parts.alignment import application, outcome_application
from veilsum_coordinator.parts.networks import network_head
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_node.fields import Frozen
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, DateColumn, LabelColumn, NumberColumn
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.networks import Network, linear, named

MIXED = DatasetSchema(
    columns=(
        CategoryColumn(name="sex", categories=("f", "m")),
        NumberColumn(name="age", low=20, high=100, unit="years"),
        CategoryColumn(name="ward", categories=("north, new", "it's <b>", "öst"), impute="öst"),
        NumberColumn(name="bmi", low=10, high=60, impute=25),
        NumberColumn(name="urea", low=1e-3, high=1.6),
        DateColumn(name="seen", low=-30, high=3650, origin="2015-01-01"),
    ),
    label=LabelColumn(column="ill", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "yes", "maybe"))),
    missing=("", "?", "-9", "n/a"),
)
WIDTH = MIXED.width
Table = dict[str, np.ndarray]


def drawn(schema: DatasetSchema, n: int = 300, seed: int = 0, missing: float = 0.1) -> Table:
    """Cells over the schema's range and beyond it, some of them missing."""
    rng, table = np.random.default_rng(seed), Table()
    for column in schema.columns:
        gone = rng.random(n) < missing
        if isinstance(column, CategoryColumn):
            table[column.name] = np.where(gone, "unheard of", rng.choice(np.array(column.categories), n))
        else:
            spare = 0.1 * (column.high - column.low)
            values = rng.uniform(column.low - spare, column.high + spare, n)
            whole = np.round(values, 1) if column.kind == "number" else np.round(values)
            table[column.name] = np.where(gone, rng.choice([np.nan, np.inf, -9.0], n), whole) if missing else whole
    return table


def inputs(schema: DatasetSchema, table: Table) -> dict[str, np.ndarray]:
    """A table as the file takes it."""
    numbers = [table[column.name] for column in schema.columns if not isinstance(column, CategoryColumn)]
    texts = [table[column.name].astype(object) for column in schema.columns if isinstance(column, CategoryColumn)]
    found = {"numbers": numbers, "categories": texts}
    return {name: np.column_stack(columns) for name, columns in found.items() if columns}


def frame(schema: DatasetSchema, table: Table) -> dict[str, Any]:
    """A table as the model itself reads it; dates as such."""
    found: dict[str, Any] = dict(table)
    for column in schema.columns:
        if isinstance(column, DateColumn):
            start = np.datetime64(column.origin)
            days = [None if not np.isfinite(day) else start + np.timedelta64(int(day), "D") for day in table[column.name]]
            found[column.name] = ["" if day is None else str(day) for day in days]
    return found


def opened(data: bytes) -> Any:
    import onnxruntime  # starts a thread, which a fork would lose

    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def metadata(data: bytes) -> dict[str, str]:
    return {item.key: item.value for item in onnx.load_from_string(data).metadata_props}


def assert_same(result: Result, schema: DatasetSchema, *, site: str | None = None, n: int = 300, rough: float = 2e-5) -> None:
    """A file's classes, probabilities and scores are those of the classifier, to float32."""
    model, table = Classifier(Model.from_result(result), site), drawn(schema, n)
    session = opened(onnx_bytes(model.released, {}, site=site))
    label, probabilities, scores = session.run(None, inputs(schema, table))
    records = model._records(frame(schema, table))
    own = model.released.scores(records, site)
    size = np.nanmax(np.abs(own))
    assert scores.dtype == np.float32
    assert np.isfinite(own[:, 0]).mean() > 0.05
    np.testing.assert_allclose(scores, own, rtol=rough, atol=rough * size)
    np.testing.assert_allclose(probabilities, softmax(own, axis=1), atol=rough * max(1.0, size))
    best = [name or "" for name in model.predict(frame(schema, table))]
    order = np.sort(own, axis=1)
    clear = ~(order[:, -1] - order[:, -2] < 4 * rough * size)  # NaN too
    assert clear.mean() > 0.9
    assert label[clear].tolist() == np.array(best)[clear].tolist()
    assert len(set(label)) > 2


def linear_result(schema: DatasetSchema, width: int, missing: str = "skip", seed: int = 1, **changes: Any) -> Result:
    rng, names = np.random.default_rng(seed), changes.pop("arrays", {})
    arrays = {"weights": rng.standard_normal((3, width)), "bias": rng.standard_normal(3), **names}
    head = {"kind": "linear", "weights": "weights", "bias": "bias"}
    applied = {**application(schema, missing=missing, head=head, classes=schema.classes), **changes}  # type: ignore[arg-type]
    return Result("test", {}, arrays, applied)


def encoder_of(width: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    rng = np.random.default_rng(2)
    matrix, offset = rng.standard_normal((width, WIDTH)), rng.standard_normal(width)
    told = {"kind": "projection", "matrix": "e.matrix", "offset": "e.offset", "sha256": projection_digest(matrix, offset)}
    return {"e.matrix": matrix, "e.offset": offset}, told


@pytest.mark.parametrize("missing", ["skip", "centre"])
def test_a_linear_head_reads_columns_of_every_kind_as_the_model_does(missing: str) -> None:
    assert_same(linear_result(MIXED, WIDTH, missing), MIXED, n=2000)


@pytest.mark.parametrize("clip", [0.3, 2.0, 1e6])
def test_a_head_of_features_clipped_about_a_centre(clip: float) -> None:
    """What `fedcgs` releases under noise: some features are shortened, all, or none."""
    head = {"kind": "linear", "weights": "weights", "bias": "bias", "centre": "centre", "clip": clip}
    centre = {"centre": np.random.default_rng(5).uniform(-0.5, 0.5, WIDTH)}
    assert_same(linear_result(MIXED, WIDTH, arrays=centre, head=head), MIXED, n=2000)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("scale", [0.0, 0.7])
def test_a_personal_head_adds_the_sites_own_part(scale: float, clip: float | None) -> None:
    released = {"kind": "linear", "weights": "weights", "bias": "bias"}
    rng = np.random.default_rng(6)
    own = {"personal.weights": rng.standard_normal((3, WIDTH)), "personal.bias": rng.standard_normal(3)}
    if clip is not None:
        released, own["centre"] = {**released, "centre": "centre", "clip": clip}, rng.uniform(-0.5, 0.5, WIDTH)
    head = {"kind": "personal", "released": released, "scale": scale, "weights": "personal.weights", "bias": "personal.bias"}
    assert_same(linear_result(MIXED, WIDTH, arrays=own, head=head), MIXED, n=2000)


@pytest.mark.parametrize("site", ["berlin", "oslo"])
def test_a_projection_and_a_sites_map_come_before_the_head(site: str) -> None:
    rng = np.random.default_rng(3)
    arrays, encoder = encoder_of(4)
    maps = {"kind": "maps", "sites": ["berlin", "oslo"], "matrix": "a.matrix", "offset": "a.offset"}
    arrays |= {"a.matrix": rng.standard_normal((2, 4, 4)), "a.offset": rng.standard_normal((2, 4))}
    result = linear_result(MIXED, 4, arrays=arrays, encoder=encoder, alignment=maps)
    assert_same(result, MIXED, site=site)
    with pytest.raises(Misuse, match="features of each site") as caught:
        onnx_bytes(Model.from_result(result), {})
    assert "berlin, oslo" in caught.value.advice


def test_the_map_of_a_new_sites_own_model_comes_before_its_head(tmp_path: Path) -> None:
    """Only its owner can read the file: the map is made of the site's records without noise."""
    rng = np.random.default_rng(3)
    arrays, encoder = encoder_of(4)
    arrays |= {"own.matrix": rng.standard_normal((4, 4)), "own.offset": rng.standard_normal(4)}
    own = {"matrix": "own.matrix", "offset": "own.offset"}
    alignment = {"kind": "barycenter", "source": "", "tau": 1.0, "reference": {}, "own": own}
    result = linear_result(MIXED, 4, arrays=arrays, encoder=encoder, alignment=alignment)
    assert_same(result, MIXED)
    path = Classifier(Model.from_result(result)).to_onnx(tmp_path / "own.onnx")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_random_features_come_before_the_head() -> None:
    encoder = {"kind": "random-features", "width": 30, "gamma": 0.5, "seed": 4, "inputs": WIDTH}
    assert_same(linear_result(MIXED, 30, "centre", encoder=encoder), MIXED, n=1000)


class Pressed(Frozen):
    """No options."""


class Own(Architecture):
    """A model as a package may bring it, with layers of torch alone."""

    name = "own"
    Options = Pressed
    squash: type[nn.Module] = nn.Tanh
    inputs: tuple[int, ...]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "features.conv.weight": (4, 2, 3, 2), "features.conv.bias": (4,),
            "features.norm.weight": (4,), "features.norm.bias": (4,),
            "head.weight": (self.classes, 4), "head.bias": (self.classes,),
        }  # fmt: skip

    def network(self) -> Network:
        from veilsum_privacy.training.models.networks import Reshape

        features = named(
            image=Reshape(*self.inputs),
            conv=nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(0, 1), dilation=(2, 1)),
            squash=self.squash(),
            norm=nn.GroupNorm(2, 4),
            sigmoid=nn.Sigmoid(),
            pool=nn.MaxPool2d((2, 1), stride=1, padding=(1, 0)),
            still=nn.Identity(),
            mean=nn.AdaptiveAvgPool2d((1, 1)),
            flat=nn.Flatten(),
        )
        return Network(features, linear(4, self.classes))


def network_result(spec: ModelSpec, schema: DatasetSchema) -> Result:
    """A result as methods that train write it, of arrays about as large as trained ones."""
    architecture = build_architecture(resolve_model(spec), schema.width, len(schema.classes))
    rng, start = np.random.default_rng(12), architecture.initial(3)
    arrays = {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in start.items()}
    head, arrays = network_head(architecture, arrays)
    return Result("fedsgd", {}, arrays, application(schema, missing="skip", head=head, classes=schema.classes))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("spec", "width"),
    [
        (ModelSpec(name="linear", options={"scale": 0.3, "bias": 0.2}), 5),
        (ModelSpec(name="mlp", options={"hidden": 6, "scale": 0.7}), 5),
        (ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256),
        (ModelSpec(name="vgg11", inputs=(1, 16, 12), options={"width": 0.125, "groups": 4, "hidden": 16}), 192),
        (ModelSpec(name="resnet18", inputs=(3, 8, 8), options={"width": 0.125, "groups": 4}), 192),
    ],
    ids=["linear", "mlp", "lenet5", "vgg11", "resnet18"],
)
def test_every_architecture_that_gradients_train(spec: ModelSpec, width: int) -> None:
    schema = schema_of(width, 4)
    table = drawn(schema, 120, missing=0.0)
    model = Classifier(Model.from_result(network_result(spec, schema)))
    label, probabilities, scores = opened(onnx_bytes(model.released, {})).run(None, inputs(schema, table))
    own = model.released.scores(model._records(table))
    spread = own.std(axis=0).max()
    assert spread > 1e-3
    np.testing.assert_allclose(scores, own, rtol=1e-4, atol=1e-4 * spread)
    np.testing.assert_allclose(probabilities, model.predict_proba(table), atol=1e-4)
    assert np.mean(label == model.predict(table)) > 0.98
    table["x0"][7] = np.nan
    label, _, scores = opened(onnx_bytes(model.released, {})).run(None, inputs(schema, table))
    assert label[7] == ""
    assert np.flatnonzero(np.isnan(scores).any(axis=1)).tolist() == [7]


def test_a_network_of_layers_that_a_package_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    from veilsum_participant.applying import heads
    from veilsum_privacy.training import models

    monkeypatch.setattr(models, "MODELS", {**models.MODELS, "own": Own})
    monkeypatch.setattr(heads, "MODELS", {**heads.MODELS, "own": Own})
    schema = schema_of(2 * 7 * 6, 3)
    result = network_result(ModelSpec(name="own", inputs=(2, 7, 6)), schema)
    model, table = Classifier(Model.from_result(result)), drawn(schema, 60, missing=0.0)
    scores = opened(onnx_bytes(model.released, {})).run(["scores"], inputs(schema, table))[0]
    own = model.released.scores(model._records(table))
    np.testing.assert_allclose(scores, own, rtol=1e-5, atol=1e-5)
    assert own.std(axis=0).max() > 1e-3
    monkeypatch.setattr(Own, "squash", nn.Softsign)
    with pytest.raises(Misuse, match="layer Softsign") as caught:
        onnx_bytes(model.released, {})
    assert "torch.onnx.export" in caught.value.advice


# -- trees -----------------------------------------------------------------------------------------------------------------

LEVELS = DatasetSchema(
    columns=(
        NumberColumn(name="dose", low=0, high=1.6),
        NumberColumn(name="x", low=-1, high=1),
        CategoryColumn(name="k", categories=("a", "b", "c")),
        NumberColumn(name="n", low=0, high=12, unit="visits"),
    ),
    label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "yes"))),
    max_records=400,
)


def grown(classes: int = 2, outcome: str | None = None) -> tuple[Result, DatasetSchema]:
    """Boosted trees of three sites' records."""
    rng, n = np.random.default_rng(5), 600
    x, k = rng.uniform(-1, 1, (n, 3)), np.eye(3)[rng.integers(0, 3, n)]
    x[:, 0] = rng.integers(0, 17, n) / 8.0 - 1.0
    names = ("no", "yes") if classes == 2 else tuple("pqr")
    label = LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in names))
    schema = LEVELS.model_copy(update={"label": None if outcome else label})
    odds = np.column_stack([2 * np.sign(x[:, 0] * x[:, 1]), 2 * k[:, 0], 2 * x[:, 0]])[:, :classes]
    y = np.argmax(odds + rng.gumbel(size=odds.shape), axis=1)
    x[:, 2] = np.clip(np.round(6 * (1 + 0.4 * x[:, 0] + 0.3 * k[:, 1])) / 6 - 1, -1, 1)
    records = complete(np.column_stack([x[:, :2], k, x[:, 2]]), None if outcome else y)
    parameters: dict[str, Any] = {"rounds": 4} | ({"outcome": {"column": "n", "loss": outcome}} if outcome else {})
    result = run("gbdt", parameters, split_records(records, SITES), schema=schema, epsilon=8.0)
    return result, Model.from_result(result).schema


@pytest.mark.parametrize("classes", [2, 3])
def test_boosted_trees_split_where_the_model_does(classes: int) -> None:
    """Doses on the edges that trees split at, 0.1 apart, which float32 does not have."""
    result, schema = grown(classes)
    model, table = Classifier(Model.from_result(result)), drawn(schema, 600, missing=0.0)
    table["dose"] = np.random.default_rng(1).integers(0, 17, 600) / 10.0
    arrays = result.arrays
    at = arrays["model.thresholds"][arrays["model.features"] == 0]
    assert np.isin(table["dose"] / 0.8 - 1.0, at).any()
    label, probabilities, scores = opened(onnx_bytes(model.released, {})).run(None, inputs(schema, table))
    own = model.released.scores(model._records(table))
    np.testing.assert_allclose(scores, own, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probabilities, model.predict_proba(table), atol=1e-5)
    assert np.mean(label == model.predict(table)) > 0.99


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_boosted_trees_of_an_outcome(loss: str) -> None:
    result, schema = grown(outcome=loss)
    model, table = Regressor(Model.from_result(result)), drawn(schema, 300)
    data = onnx_bytes(model.released, {})
    (found,) = opened(data).run(None, inputs(schema, table))
    np.testing.assert_allclose(found, model.predict(table), rtol=1e-5, atol=1e-5)
    assert found[np.isfinite(found)].std() > 0.1
    assert (metadata(data)["veilsum.outcome"], metadata(data)["veilsum.outcome_unit"]) == ("n", "visits")


# -- outcomes and encoders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"column": "bmi", "loss": "squared"},
        {"column": "bmi", "loss": "huber"},
        {"column": "age", "loss": "poisson"},
        {"column": "age", "loss": "hazard", "event": "sex", "censored": ["f"], "cuts": [40.0, 60.0]},
    ],
    ids=["squared", "huber", "poisson", "hazard"],
)
@pytest.mark.parametrize("largest", [1.0, 400.0])
def test_a_regressors_link_and_bounds(told: dict[str, Any], largest: float) -> None:
    """Also where scores are far beyond what the link is cut at."""
    outcome, rng = Outcome.model_validate(told), np.random.default_rng(9)
    schema = MIXED.model_copy(update={"label": None})
    scores = len(told.get("cuts", ())) + 1
    head = {"kind": "linear", "weights": "weights", "bias": "bias"}
    most = 90.0 if told["loss"] == "poisson" else None
    applied = outcome_application(schema, outcome, missing="skip", head=head, most=most)
    width = outcome.features(schema).width
    arrays = {"weights": largest * rng.standard_normal((scores, width)), "bias": rng.standard_normal(scores)}
    model = Regressor(Model.from_result(Result("fedsgd", {}, arrays, applied)))
    own_schema, table = model.released.schema, drawn(model.released.schema, 400)
    (found,) = opened(onnx_bytes(model.released, {})).run(None, inputs(own_schema, table))
    own = model.predict(frame(own_schema, table))
    assert found.dtype == np.float64
    assert (np.isnan(found) == np.isnan(own)).all()
    np.testing.assert_allclose(found, own, rtol=1e-5 * max(1.0, largest), atol=1e-6 * largest)
    assert 0.3 < np.isfinite(own).mean() < 0.9
    assert np.nanstd(own) > 0.01


def test_an_encoder_makes_its_features() -> None:
    arrays, encoder = encoder_of(3)
    applied = {**application(MIXED.model_copy(update={"label": None}), missing="skip"), "encoder": encoder}
    model, table = Encoder(Model.from_result(Result("pca", {}, arrays, applied))), drawn(MIXED)
    (found,) = opened(onnx_bytes(model.released, {})).run(["features"], inputs(MIXED, table))
    np.testing.assert_allclose(found, model.transform(frame(MIXED, table)), rtol=1e-5, atol=1e-5)
    with pytest.raises(Misuse, match="no head"):
        onnx_bytes(model.released, {}, from_features=True)


# -- what is told, and refused ---------------------------------------------------------------------------------------------


def test_metadata_tell_the_study_and_the_columns() -> None:
    model = Model.from_result(linear_result(MIXED, WIDTH))
    about = {"study": "ab" * 32, "epsilon": 2.0, "delta": 1e-6, "unit": None}
    data = onnx_bytes(model, about)
    told = metadata(data)
    assert (told["veilsum.study"], float(told["veilsum.epsilon"]), float(told["veilsum.delta"])) == ("ab" * 32, 2.0, 1e-6)
    assert "veilsum.unit" not in told
    assert json.loads(told["veilsum.numbers"]) == ["age", "bmi", "urea", "seen"]
    assert json.loads(told["veilsum.categories"])["ward"] == ["north, new", "it's <b>", "öst"]
    assert json.loads(told["veilsum.classes"]) == ["no", "yes", "maybe"]
    assert onnx_bytes(model, about) == data
    read = onnx.load_from_string(data)
    assert (read.producer_name, read.ir_version) == ("veilsum", 8)
    assert {item.domain: item.version for item in read.opset_import} == {"": 17, "ai.onnx.ml": 3}


def test_a_frozen_program_stays_outside_and_its_head_is_exported() -> None:
    """The head alone, behind features that the program makes."""
    program = Program(format="torchscript", sha256="0" * 64, inputs=(WIDTH,), width=5)
    applied = application(MIXED, missing="skip", encoder=program.model_dump(mode="json"), head={
        "kind": "linear", "weights": "weights", "bias": "bias"}, classes=MIXED.classes)  # fmt: skip
    rng = np.random.default_rng(4)
    mix = rng.standard_normal((WIDTH, 5))
    arrays = {"weights": rng.standard_normal((3, 5)), "bias": rng.standard_normal(3)}
    model = Classifier(Model.from_result(Result("fedcgs", {}, arrays, applied), lambda x: np.tanh(x @ mix)))
    with pytest.raises(Misuse, match="frozen program") as caught:
        onnx_bytes(model.released, {})
    assert "from_features=True" in caught.value.advice
    session = opened(onnx_bytes(model.released, {}, from_features=True))
    records = model._records(frame(MIXED, table := drawn(MIXED)))
    features = model.released.features(records).astype(np.float32)
    label, _, scores = session.run(None, {"features": features})
    np.testing.assert_allclose(scores, model.released.scores(records), rtol=1e-5, atol=1e-5)
    assert np.mean(label == np.array([name or "" for name in model.predict(frame(MIXED, table))])) > 0.99
    assert "" in label


def test_what_a_site_keeps_to_itself_is_in_no_file() -> None:
    own = {"kind": "barycenter", "source": "moments", "tau": 0.0, "reference": {}}
    with pytest.raises(Misuse, match="keeps to itself") as caught:
        onnx_bytes(Model.from_result(linear_result(MIXED, WIDTH, alignment=own)), {})
    assert "veilsum participant apply" in caught.value.advice


def test_without_the_package_the_advice_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigurationError) as caught:
        onnx_bytes(Model.from_result(linear_result(MIXED, WIDTH)), {})
    assert caught.value.advice == "pip install 'veilsum[onnx]'"
