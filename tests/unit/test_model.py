"""A result as a model: every step against torch, scikit-learn or a closed form, and malformed bundles."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from support.federation import schema_of
from support.studies import complete
from veilsum_aggregation.alignment import local_map, reference_arrays
from veilsum_aggregation.gaussian import Gaussian
from veilsum_coordinator.parts.alignment import application
from veilsum_coordinator.parts.networks import network_head
from veilsum_deploy.evaluation import exact_head
from veilsum_node.errors import ConfigurationError, DataError, HostileInput, Misuse
from veilsum_participant.applying import model as model_module
from veilsum_participant.applying.model import Model, load_model, probabilities
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.arrays import load
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=100, unit="years"),
        NumberColumn(name="bmi", low=10, high=60, impute=25),
        CategoryColumn(name="sex", categories=("f", "m")),
    ),
    label=LabelColumn(column="ill", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))),
)
WIDTH, SITES = 4, ("berlin", "oslo")


def _records(n: int = 9, seed: int = 0, width: int = WIDTH) -> Records:
    rng = np.random.default_rng(seed)
    return complete(rng.uniform(-1, 1, (n, width)), rng.integers(0, 2, n))


def _linear(width: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"weights": rng.standard_normal((2, width)), "bias": rng.standard_normal(2)}


def _result(arrays: dict[str, Any] | None = None, **changes: Any) -> Result:
    given: dict[str, Any] = {
        **application(SCHEMA),
        "classes": ["no", "yes"],
        "missing_rule": "skip",
        "encoder": None,
        "alignment": None,
        "head": {"kind": "linear", "weights": "weights", "bias": "bias"},
    }
    given.update(changes)
    return Result("test", {}, _linear(WIDTH) if arrays is None else arrays, {k: v for k, v in given.items() if v != "absent"})


def _projection(width: int, seed: int = 2) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    matrix, offset = rng.standard_normal((width, WIDTH)), rng.standard_normal(width)
    named = {"kind": "projection", "matrix": "encoder.matrix", "offset": "encoder.offset"}
    return matrix, offset, {**named, "sha256": projection_digest(matrix, offset)}


def _maps(width: int, seed: int = 3) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    arrays = {
        "alignment.matrix": rng.standard_normal((2, width, width)),
        "alignment.offset": rng.standard_normal((2, width)),
    }
    return arrays, {"kind": "maps", "sites": list(SITES), "matrix": "alignment.matrix", "offset": "alignment.offset"}


def test_a_linear_head_scores_as_scikit_learns_discriminant() -> None:
    """Where every class has the same within-class covariance, known in closed form, both are the same function."""
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], 200)
    x = np.clip(rng.standard_normal((400, WIDTH)) * 0.2 + np.where(labels[:, None] == 1, 0.3, -0.3), -1, 1)
    x[:, 2:] *= [0.5, 1.0]
    records = complete(x, labels)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=None).fit(x, labels)
    weights = np.stack([-reference.coef_[0] / 2, reference.coef_[0] / 2])
    bias = np.array([-reference.intercept_[0] / 2, reference.intercept_[0] / 2])
    model = Model.from_result(_result({"weights": weights, "bias": bias}))
    scores = model.scores(records)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], reference.decision_function(x), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(model.predict(records), reference.predict(x))
    np.testing.assert_allclose(probabilities(scores), reference.predict_proba(x), rtol=1e-8, atol=1e-12)


def test_the_exact_head_is_the_same_as_a_model() -> None:
    records = _records(200, 5)
    head = exact_head(records, SCHEMA)
    model = Model.from_result(_result({"weights": head.weights, "bias": head.bias}))
    np.testing.assert_allclose(model.scores(records), head.scores(records.features), rtol=1e-12)


@pytest.mark.parametrize("widths", [(WIDTH, 2), (WIDTH, 7, 2), (WIDTH, 9, 5, 2)])
def test_an_mlp_head_scores_as_torch(widths: tuple[int, ...]) -> None:
    torch.manual_seed(6)
    layers: list[nn.Module] = []
    for index in range(len(widths) - 1):
        layers += [nn.Linear(widths[index], widths[index + 1]), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    arrays = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    names = [[f"{2 * index}.weight", f"{2 * index}.bias"] for index in range(len(widths) - 1)]
    model = Model.from_result(_result(arrays, head={"kind": "mlp", "layers": names, "activation": "relu"}))
    records = _records(50)
    with torch.no_grad():
        expected = net.double()(torch.from_numpy(records.features)).numpy()
    np.testing.assert_allclose(model.scores(records), expected, rtol=1e-12, atol=1e-12)


def test_projection_then_the_sites_map_then_the_head() -> None:
    matrix, offset, encoder = _projection(3)
    arrays, alignment = _maps(3)
    head = _linear(3)
    everything = {"encoder.matrix": matrix, "encoder.offset": offset, **arrays, **head}
    model = Model.from_result(_result(everything, encoder=encoder, alignment=alignment))
    records = _records(30)
    found = {}
    for index, site in enumerate(SITES):
        encoded = np.array([matrix @ row + offset for row in records.features])
        aligned = np.array([arrays["alignment.matrix"][index] @ row + arrays["alignment.offset"][index] for row in encoded])
        np.testing.assert_allclose(model.features(records, site), aligned, rtol=1e-11, atol=1e-11)
        expected = aligned @ head["weights"].T + head["bias"]
        found[site] = model.scores(records, site=site)
        np.testing.assert_allclose(found[site], expected, rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(model.predict(records, site), expected.argmax(axis=1))
    assert not np.allclose(found["berlin"], found["oslo"])
    with pytest.raises(Misuse, match="aligns the features of each site"):
        model.scores(records)
    with pytest.raises(Misuse, match="no alignment for 'osl'") as caught:
        model.scores(records, "osl")
    assert "oslo" in caught.value.advice


def _gaussian_blocks(x: np.ndarray) -> dict[str, np.ndarray]:
    second = x.T @ x
    return {
        "count": np.array([float(len(x))]),
        "sum": x.sum(axis=0),
        "squares": np.diag(second).copy(),
        "products": second[np.triu_indices(x.shape[1], 1)],
    }


def _own_alignment(noise: dict[str, float] | None) -> tuple[dict[str, np.ndarray], dict[str, Any], Gaussian]:
    factor = np.random.default_rng(7).standard_normal((WIDTH, WIDTH))
    target = Gaussian(np.arange(WIDTH) / 3.0, factor @ factor.T + np.eye(WIDTH))
    arrays = {f"array.{name}": value for name, value in reference_arrays(target).items()}
    described: dict[str, Any] = {
        "kind": "barycenter",
        "source": "moments",
        "tau": 1.0,
        "reference": {name.removeprefix("array."): name for name in arrays},
    }
    return arrays, described if noise is None else {**described, "noise_std": noise}, target


def test_a_sites_own_alignment_carries_its_moments_to_the_reference() -> None:
    """With tau = 1 the mapped site has the reference's mean; the map is the one that a site makes in a study."""
    noise = {"count": 0.0, "sum": 0.0, "squares": 0.0, "products": 0.0}
    arrays, described, target = _own_alignment(noise)
    model = Model.from_result(_result({**_linear(WIDTH), **arrays}, alignment=described))
    records = _records(3000, 8)
    kept = _gaussian_blocks(records.features)
    aligned = model.features(records, kept=kept)
    np.testing.assert_allclose(aligned.mean(axis=0), target.mean, atol=1e-8)
    own = local_map("barycenter", kept, noise, reference_arrays(target), tau=1.0)
    np.testing.assert_allclose(aligned, records.features @ own.matrix.T + own.offset, atol=1e-8)
    with pytest.raises(Misuse, match="what a site kept of the task 'moments'"):
        model.features(records, "berlin")
    with pytest.raises(HostileInput, match="does not fit"):
        model.features(records, kept={"count": np.array([1.0])})


def test_a_new_site_is_aligned_by_its_own_records_without_their_classes() -> None:
    """As if it had kept its moments in a study without noise; and one map a site needs what the maps were made by."""
    noise = {"count": 0.0, "sum": 0.0, "squares": 0.0, "products": 0.0}
    arrays, described, target = _own_alignment(noise)
    model = Model.from_result(_result({**_linear(WIDTH), **arrays}, alignment=described))
    records = _records(800, 8)
    unlabelled = Records(records.features, records.present, None)
    new = model.at_new_site(unlabelled)
    expected = model.features(records, kept=_gaussian_blocks(records.features))
    np.testing.assert_allclose(new.features(records), expected, atol=1e-8)
    np.testing.assert_allclose(new.features(records).mean(axis=0), target.mean, atol=1e-8)

    maps, said = _maps(WIDTH)
    by = {"kind": "barycenter", "tau": 1.0, "reference": described["reference"]}
    several = Model.from_result(_result({**_linear(WIDTH), **arrays, **maps}, alignment={**said, "made_by": by}))
    np.testing.assert_allclose(several.at_new_site(unlabelled).features(records), expected, atol=1e-8)
    nothing = Model.from_result(_result({**_linear(WIDTH), **maps}, alignment={**said, "made_by": {**by, "reference": {}}}))
    np.testing.assert_array_equal(nothing.at_new_site(unlabelled).features(records), records.features)
    earlier = Model.from_result(_result({**_linear(WIDTH), **maps}, alignment=said))
    with pytest.raises(Misuse, match="nothing that a new site"):
        earlier.at_new_site(records)
    absent = Records(records.features * 0.0, np.zeros_like(records.present), None)
    with pytest.raises(DataError, match="No record has features"):
        several.at_new_site(absent)
    plain = Model.from_result(_result(_linear(WIDTH)))
    assert plain.at_new_site(records) is plain
    with pytest.raises(HostileInput, match="unknown reference"):
        Model.from_result(
            _result(
                {**_linear(WIDTH), **maps}, alignment={**said, "made_by": {**by, "reference": {"reference.other": "weights"}}}
            )
        )


def test_the_noise_of_what_a_site_kept_is_never_guessed() -> None:
    arrays, described, target = _own_alignment(None)
    model = Model.from_result(_result({**_linear(WIDTH), **arrays}, alignment=described))
    records = _records(500, 9)
    kept = _gaussian_blocks(records.features)
    with pytest.raises(Misuse, match="noise of the kept statistic is unknown"):
        model.features(records, kept=kept)
    noise = dict.fromkeys(kept, 3.0)
    own = local_map("barycenter", kept, noise, reference_arrays(target), tau=1.0)
    expected = records.features @ own.matrix.T + own.offset
    np.testing.assert_allclose(model.features(records, kept=kept, noise_std=noise), expected, atol=1e-8)
    assert not np.allclose(model.features(records, kept=kept, noise_std=dict.fromkeys(kept, 0.0)), expected)


def _program(tmp_path: Path) -> tuple[Path, dict[str, Any], nn.Module]:
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(net), buffer)
    path = tmp_path / "net.pt"
    path.write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    return path, {"kind": "program", "format": "torchscript", "sha256": digest, "inputs": [WIDTH], "width": 3}, net


def test_a_frozen_program_is_taken_from_its_file(tmp_path: Path) -> None:
    path, declared, net = _program(tmp_path)
    result = _result(_linear(3), encoder=declared)
    records = _records(20)
    with torch.no_grad():
        features = net.double()(torch.from_numpy(records.features)).numpy()
    directory = tmp_path / "result"
    save_result(directory, result)
    np.testing.assert_allclose(load_model(directory, path).features(records), features, rtol=1e-5, atol=1e-6)
    given = Model.from_result(result, lambda x: 2.0 * x[:, :3])
    np.testing.assert_array_equal(given.features(records), 2.0 * records.features[:, :3])
    with pytest.raises(Misuse, match=f"needs the frozen program with SHA-256 {declared['sha256']}"):
        load_model(directory)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ConfigurationError, match="its SHA-256 is"):
        load_model(directory, path)


def test_a_record_that_the_program_finds_invalid_gets_no_class() -> None:
    def program(x: np.ndarray) -> np.ndarray:
        x = x[:, :3].copy()
        x[2] = np.nan
        return x

    declared = {"kind": "program", "format": "exported", "sha256": "0" * 64, "inputs": [2, 2], "width": 3}
    arrays, alignment = _maps(3)
    for aligned in (None, alignment):
        model = Model.from_result(_result({**_linear(3), **arrays}, encoder=declared, alignment=aligned), program)
        predicted = model.predict(_records(5), "oslo")
        assert predicted[2] == -1
        assert (predicted[[0, 1, 3, 4]] >= 0).all()


@pytest.mark.parametrize("rule", ["skip", "centre"])
def test_absent_values_follow_the_missing_rule(rule: str) -> None:
    model = Model.from_result(_result(missing_rule=rule))
    records = _records(4)
    present = records.present.copy()
    present[1, 0] = False
    gappy = Records(records.features, present, records.labels)
    scores, whole = model.scores(gappy), model.scores(records)
    np.testing.assert_array_equal(scores[[0, 2, 3]], whole[[0, 2, 3]])
    if rule == "skip":
        assert np.isnan(scores[1]).all()
        assert model.predict(gappy)[1] == -1
    else:
        middle = records.features[1] * [0, 1, 1, 1]
        arrays = _linear(WIDTH)
        np.testing.assert_allclose(scores[1], arrays["weights"] @ middle + arrays["bias"])


def test_results_of_the_first_version_have_no_head_of_their_own() -> None:
    old = _result(head="absent", missing_rule="absent", encoder="absent", alignment="absent", file="absent")
    model, new = Model.from_result(old), Model.from_result(_result())
    np.testing.assert_array_equal(model.scores(_records()), new.scores(_records()))
    assert model.schema.label is None
    assert model.recipe.missing_rule == "centre"  # they said: where there is none, 0
    assert new.schema.label == SCHEMA.label
    assert new.schema.columns == SCHEMA.columns


def test_an_encoder_without_a_head_makes_features() -> None:
    matrix, offset, encoder = _projection(3)
    arrays = {"encoder.matrix": matrix, "encoder.offset": offset}
    model = Model.from_result(_result(arrays, encoder=encoder, head=None, classes=[]))
    assert model.features(_records(5)).shape == (5, 3)
    assert (model.width, model.classes) == (3, ())
    with pytest.raises(Misuse, match="holds no classifier"):
        model.scores(_records(5))


def test_three_lines_load_a_model_and_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very lines of the module's docstring, run in a directory with a result and a file."""
    save_result(tmp_path / "result", _result(missing_rule="centre"))
    (tmp_path / "new.csv").write_text("bmi,sex,age\n30,m,60\n25,f,\n,f,20\n")
    text = model_module.__doc__ or ""
    lines = [line.strip() for line in text.split("::", 1)[1].splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)  # noqa: S102  our own documentation
    # By hand: age 60 is the middle of 20 to 100, bmi 30 is -0.2 of 10 to 60; the absent bmi is imputed by 25.
    scaled = np.array([[0.0, -0.2, 0, 1], [0.0, -0.4, 1, 0], [-1.0, -0.4, 1, 0]])
    arrays = _linear(WIDTH)
    expected = (scaled @ arrays["weights"].T + arrays["bias"]).argmax(axis=1)
    assert names["predicted"] == [["no", "yes"][index] for index in expected]


def test_reading_with_labels_and_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("60,30,m,1\n70,31,f,0\n")
    model = Model.from_result(_result())
    with pytest.raises(DataError):
        model.read(path)
    bare = SCHEMA.model_copy(update={"header": False, "order": ("age", "bmi", "sex", "ill")})
    records = model.with_schema(bare).read(path, labelled=True)
    assert records.labels is not None
    assert records.labels.tolist() == [1, 0]
    other = SCHEMA.model_copy(update={"columns": (NumberColumn(name="age", low=0, high=100), *SCHEMA.columns[1:])})
    with pytest.raises(Misuse, match="other columns"):
        model.with_schema(other)


def _change(result: Result, **changes: Any) -> Result:
    return Result(result.method, result.summary, result.arrays, {**result.application, **changes})


def _with(name: str, value: Any) -> Callable[[], Result]:
    def build() -> Result:
        matrix, offset, encoder = _projection(3)
        arrays, alignment = _maps(3)
        everything = {"encoder.matrix": matrix, "encoder.offset": offset, **arrays, **_linear(3)}
        if value is None:
            del everything[name]
        else:
            everything[name] = value
        return _result(everything, encoder=encoder, alignment=alignment)

    return build


_LINEAR = {"kind": "linear", "weights": "weights", "bias": "bias"}
_MLP = {"kind": "mlp", "layers": [["a", "b"], ["c", "d"]], "activation": "relu"}
_MALFORMED: dict[str, tuple[Callable[[], Result], str]] = {
    "unknown key": (lambda: _change(_result(), normalise=True), "normalise: unknown key"),
    "no features": (lambda: _change(_result(), features=[]), "features"),
    "features of another kind": (lambda: _change(_result(), features="age"), "features"),
    "bounds the wrong way": (
        lambda: _change(_result(), features=[{"kind": "number", "name": "a", "low": 2, "high": 1}]),
        "low must be below high",
    ),
    "a column twice": (lambda: _change(_result(), features=[*_result().application["features"]] * 2), "a column stands twice"),
    "unknown rule": (lambda: _change(_result(), missing_rule="drop"), "missing_rule"),
    "unknown head": (lambda: _change(_result(), head={"kind": "tree"}), "head"),
    "unknown alignment": (lambda: _change(_result(), alignment={"kind": "shift"}), "alignment"),
    "a clip without a centre": (lambda: _change(_result(), head={**_LINEAR, "clip": 1.0}), "go together"),
    "a clip that is none": (lambda: _change(_result(), head={**_LINEAR, "clip": 0.0, "centre": "bias"}), "clip"),
    "a centre of other features": (
        lambda: _change(_result(), head={**_LINEAR, "clip": 1.0, "centre": "bias"}),
        "'bias' is float64 of shape",
    ),
    "classes twice": (lambda: _change(_result(), classes=["no", "no"]), "distinct classes"),
    "classes absent": (lambda: _change(_result(), classes=[]), "distinct classes"),
    "classes too many": (lambda: _change(_result(), classes=["no", "yes", "so"]), "'weights' is float64 of shape"),
    "weights of other features": (lambda: _result(_linear(5)), "not real 2x4"),
    "weights of integers": (lambda: _result({**_linear(4), "weights": np.ones((2, 4), dtype=np.int64)}), "int64"),
    "weights not finite": (lambda: _result({**_linear(4), "bias": np.array([0.0, np.inf])}), "not finite"),
    "bias absent": (lambda: _result({"weights": np.ones((2, 4))}), "'bias' that it does not hold"),
    "projection absent": (_with("encoder.matrix", None), "'encoder.matrix' that it does not hold"),
    "projection changed": (_with("encoder.offset", np.zeros(3)), "not the one"),
    "projection of other columns": (_with("encoder.matrix", np.ones((3, 5))), "not real anyx4"),
    "maps of other sites": (_with("alignment.matrix", np.ones((3, 3, 3))), "not real 2x3x3"),
    "offsets of other features": (_with("alignment.offset", np.ones((2, 4))), "not real 2x3"),
    "a site twice": (
        lambda: _result({**_linear(4), **_maps(4)[0]}, alignment={**_maps(4)[1], "sites": ["oslo", "oslo"]}),
        "a site twice",
    ),
    "tau too large": (
        lambda: _result({**_linear(4), **_own_alignment({})[0]}, alignment={**_own_alignment({})[1], "tau": 1.5}),
        "tau",
    ),
    "negative noise": (
        lambda: _result({**_linear(4), **_own_alignment({})[0]}, alignment=_own_alignment({"sum": -1.0})[1]),
        "noise_std",
    ),
    "unknown reference": (
        lambda: _result(
            {**_linear(4), "w": np.ones(4)}, alignment={**_own_alignment({})[1], "reference": {"reference.x": "w"}}
        ),
        "unknown reference",
    ),
    "layers that do not fit": (
        lambda: _result({"a": np.ones((5, 4)), "b": np.ones(5), "c": np.ones((2, 6)), "d": np.ones(2)}, head=_MLP),
        "not real 2x5",
    ),
    "program of other columns": (
        lambda: _change(
            _result(), encoder={"kind": "program", "format": "exported", "sha256": "0" * 64, "inputs": [5], "width": 3}
        ),
        "takes 5 values",
    ),
}


@pytest.mark.parametrize("what", list(_MALFORMED))
def test_a_malformed_result_is_refused_with_advice(what: str) -> None:
    build, message = _MALFORMED[what]
    with pytest.raises(HostileInput, match=message) as caught:
        Model.from_result(build(), lambda x: x)
    assert caught.value.advice


def test_a_result_that_is_only_read_is_no_model() -> None:
    with pytest.raises(Misuse, match="is only read"):
        Model.from_result(Result("statistics", {"n": 3}))


@pytest.mark.parametrize("value", [["features"], "features", 3, {"features": {"a": 1}}])
def test_an_application_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    save_result(tmp_path, _result())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "application": value}))
    with pytest.raises(HostileInput):
        load_model(tmp_path)


def test_a_bundle_that_was_changed_is_refused(tmp_path: Path) -> None:
    save_result(tmp_path, _result())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["application"]["features"][0]["low"] = "deep"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(HostileInput):
        load_model(tmp_path)


def test_records_of_other_columns_are_a_misuse() -> None:
    with pytest.raises(Misuse, match="the model reads 4"):
        Model.from_result(_result()).scores(_records(3, width=5))


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_probabilities_are_the_softmax(rows: list[list[float]]) -> None:
    scores = np.array(rows)
    np.testing.assert_allclose(probabilities(scores), softmax(scores, axis=1), rtol=1e-12, atol=1e-300)


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_a_records_scores_do_not_depend_on_the_others(n: int, seed: int) -> None:
    matrix, offset, encoder = _projection(3, seed)
    arrays, alignment = _maps(3, seed)
    everything = {"encoder.matrix": matrix, "encoder.offset": offset, **arrays, **_linear(3, seed)}
    model = Model.from_result(_result(everything, encoder=encoder, alignment=alignment))
    records = _records(n, seed)
    features = model.features(records, "berlin")
    one = Records(records.features[-1:], records.present[-1:], None)
    assert model.features(one, "berlin").tobytes() == features[-1:].tobytes()


OWN = """
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.networks import Network, linear, named
from veilsum_node.fields import Frozen

class Options(Frozen):
    hidden: int = 3

class Deep(Architecture):
    name = "deep"
    Options = Options

    def shapes(self):
        h = self.options.hidden
        return {
            "features.first.weight": (h, self.width), "features.first.bias": (h,),
            "head.weight": (self.classes, h), "head.bias": (self.classes,),
        }

    def network(self):
        h = self.options.hidden
        return Network(named(first=linear(self.width, h)), linear(h, self.classes))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution of a site's own, as an installer leaves it."""
    folder = tmp_path / "site-packages"
    (folder / "ownmodels-1.0.dist-info").mkdir(parents=True)
    (folder / "ownmodels.py").write_text(OWN)
    (folder / "ownmodels-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ownmodels\nVersion: 1.0\n")
    (folder / "ownmodels-1.0.dist-info" / "entry_points.txt").write_text("[veilsum.models]\ndeep = ownmodels:Deep\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "ownmodels", raising=False)
    return folder


def _trained(spec: ModelSpec, schema: DatasetSchema, classes: int) -> tuple[Result, Architecture, dict[str, np.ndarray]]:
    """A result as methods that train write it."""
    architecture = build_architecture(resolve_model(spec), schema.width, classes)
    rng = np.random.default_rng(12)
    arrays = {name: 0.5 * rng.standard_normal(shape) for name, shape in architecture.shapes().items()}
    head, named = network_head(architecture, arrays)
    applied = application(schema, missing="skip", head=head, classes=[f"c{index}" for index in range(classes)])
    return Result("fedsgd", {}, named, applied), architecture, arrays


def _by_torch(architecture: Architecture, arrays: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    module = architecture.module().eval()
    load(module, arrays)
    with torch.no_grad():
        return module(torch.from_numpy(x).reshape(len(x), *(architecture.inputs or (x.shape[1],)))).numpy()


@pytest.mark.parametrize(
    ("spec", "width", "rough"),
    [
        (ModelSpec(name="linear", options={"scale": 0.3, "bias": 0.2}), 5, 1e-12),
        (ModelSpec(name="mlp", options={"hidden": 6, "scale": 0.7}), 5, 1e-12),
        (ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256, 1e-4),
    ],
    ids=["linear", "mlp", "lenet5"],
)
def test_a_trained_model_comes_back_from_its_bundle(tmp_path: Path, spec: ModelSpec, width: int, rough: float) -> None:
    schema = schema_of(width, 4)
    result, architecture, arrays = _trained(spec, schema, 4)
    save_result(tmp_path, result)
    model = load_model(tmp_path)
    records = _records(70, width=width)
    records.present[3, 0] = False
    found = model.scores(records)
    expected = _by_torch(architecture, arrays, records.features)
    expected[3] = np.nan
    np.testing.assert_allclose(found, expected, rtol=rough, atol=rough)
    assert model.predict(records)[3] == -1
    assert len(set(model.predict(records))) > 2
    assert model.scores(_records(0, width=width)).shape == (0, 4)


def test_a_sites_own_model_is_applied_where_it_is_installed(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_of(WIDTH, 3)
    result, architecture, arrays = _trained(ModelSpec(name="deep"), schema, 3)
    assert result.application["head"]["model"]["name"] == "deep"
    save_result(tmp_path / "result", result)
    records = _records(20)
    found = load_model(tmp_path / "result").scores(records)
    np.testing.assert_allclose(found, _by_torch(architecture, arrays, records.features), rtol=1e-9)
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item != str(installed)])
    with pytest.raises(Misuse, match="model 'deep', which is not installed here") as caught:
        load_model(tmp_path / "result")
    assert "entry point of the group 'veilsum.models'" in caught.value.advice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prefix": "other."}, r"array 'other\.features"),
        ({"model": {"name": "lenet5", "inputs": [1, 20, 20], "options": {}}}, "400 values"),
        ({"model": {"name": "lenet5", "inputs": [1, 16, 16], "options": {"depth": 3}}}, "invalid options"),
        ({"model": {"name": "vgg11", "inputs": [1, 16, 16], "options": {}}}, "vgg11|array"),
        ({"weights": "weights"}, "malformed"),
        ({"prefix": ""}, "malformed"),
    ],
)
def test_a_network_that_contradicts_its_bundle(changes: dict[str, Any], words: str) -> None:
    result, _, _ = _trained(ModelSpec(name="lenet5", inputs=(1, 16, 16)), schema_of(256, 4), 4)
    head = {**result.application["head"], **changes}
    with pytest.raises(HostileInput, match=words):
        Model.from_result(Result("fedsgd", {}, result.arrays, {**result.application, "head": head}))


def test_a_networks_arrays_are_checked() -> None:
    result, _, _ = _trained(ModelSpec(name="lenet5", inputs=(1, 16, 16)), schema_of(256, 4), 4)
    for spoilt, words in ((np.zeros((4, 3)), "of shape"), (np.full((4, 84), np.nan), "not finite"), (None, "does not hold")):
        arrays = {name: array for name, array in result.arrays.items() if name != "model.head.weight" or spoilt is not None}
        if spoilt is not None:
            arrays["model.head.weight"] = spoilt
        with pytest.raises(HostileInput, match=words):
            Model.from_result(Result("fedsgd", {}, arrays, result.application))
