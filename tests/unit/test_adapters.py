"""Adapters of low rank on frozen weights: against torch's own gradients and the merged network, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save_file
from torch import nn

from support.federation import schema_of
from support.pages import ROOT
from support.studies import Watched, agreed, compiled, complete
from veilsum.compile import StudyRequest
from veilsum.exports import export_result
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.applying.model import Model
from veilsum_privacy.computation.rehearsal import rehearse
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training import predict, weights
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.arrays import load as load_into
from veilsum_privacy.training.batches import compute_module
from veilsum_privacy.training.gradients import ModelGradient, cross_entropy
from veilsum_privacy.training.models import ModelSpec, build_architecture, check_resolved, resolve_model
from veilsum_privacy.training.models.adapters import Adapters
from veilsum_privacy.training.per_record import PerRecordGradients

WORDS, ACROSS, HEADS, HIDDEN, CLASSES = 5, 8, 2, 12, 3
LAYERS = ("features.query", "features.key", "features.value", "features.first")
BASE = ModelSpec(name="block", inputs=(WORDS, ACROSS), options={"heads": HEADS, "hidden": HIDDEN, "activation": "gelu"})
SITES = ("a", "b", "c", "d")


def base_values(seed: int = 3) -> dict[str, np.ndarray]:
    """What a pretrained block might hold, in float32; its own head is in the file too, and a bias of keys."""
    rng = np.random.default_rng(seed)
    found = build_architecture(BASE, WORDS * ACROSS, CLASSES).initial(seed)
    noisy = {name: (value + 0.1 * rng.standard_normal(value.shape)).astype(np.float32) for name, value in found.items()}
    return {**noisy, "features.key.bias": np.ones(ACROSS, dtype=np.float32)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "base.safetensors"
    save_file(base_values(), path)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def spec(sha256: str = "0" * 64, **options: object) -> ModelSpec:
    given = {"of": "block", "options": BASE.options, "weights": sha256, "layers": LAYERS, "rank": 2, "alpha": 6.0, **options}
    return ModelSpec(name="adapters", inputs=BASE.inputs, options=given)


def built(sha256: str = "0" * 64, **options: object) -> Adapters:
    found = build_architecture(spec(sha256, **options), WORDS * ACROSS, CLASSES)
    assert isinstance(found, Adapters)
    return found


def some_values(architecture: Adapters, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: 0.5 * rng.standard_normal(shape) for name, shape in architecture.shapes().items()}


def some_texts(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.standard_normal((n, WORDS, ACROSS))
    lengths = rng.integers(1, WORDS + 1, n)
    return np.where(np.arange(WORDS)[None, :, None] < lengths[:, None, None], x, 0.0).reshape(n, -1)


def merged(architecture: Adapters, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The block whose weights are W + (alpha / rank) B A."""
    found = {name: value.astype(np.float64) for name, value in base_values().items() if name != "features.key.bias"}
    for layer in LAYERS:
        found[f"{layer}.weight"] += 3.0 * arrays[f"{layer}.lora_B.weight"] @ arrays[f"{layer}.lora_A.weight"]
    return {**found, **{name: value for name, value in arrays.items() if name.startswith("head.")}}


def test_the_documented_study_is_one(tmp_path: Path) -> None:
    """Its model with its names takes the arrays of a layer of BERT as transformers calls them, and is of the stated size."""
    page = (ROOT / "docs/methods.md").read_text()
    (told,) = map(tomllib.loads, re.findall(r"^```toml adapters\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    options = told["parameters"]["model"]["options"]
    options["weights"] = told["encoder"]["sha256"] = "3" * 64
    columns = [{"kind": "number", "name": f"token{place}", "low": 0, "high": 1000} for place in range(32)]
    label = {"column": "y", "classes": [{"name": name, "values": [name]} for name in "pq"]}
    data = DatasetSchema.model_validate({"columns": columns, "label": label, "max_records": 1000})
    found = agreed(StudyRequest.model_validate({**told, "data": data, "schema": None}))
    made = build_architecture(ModelSpec.model_validate(found.parameters["model"]), 4096, 2)
    assert isinstance(made, Adapters)
    assert made.size == 2048 + 2 * 129
    assert made.base.size - 2 * 129 == pytest.approx(198_000, rel=1e-3)
    bert = "bert.encoder.layer.1."
    parts = {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
             "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"}  # fmt: skip
    assert {other.rpartition(".")[0] for other, _ in made.frozen().values()} == {bert + part for part in parts}


# -- what is hostile ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "invalid options"),
        ({"rank": 9}, "rank of 9 is too large for the layer 'features.query', which maps 8 values to 8"),
        ({"layers": ()}, "invalid options"),
        ({"layers": ("features.query", "features.query")}, "twice"),
        ({"layers": ("features.quary",)}, "no Linear layer 'features.quary' to adapt"),
        ({"layers": ("head",)}, "no Linear layer 'head' to adapt"),
        ({"layers": ("features.norm1",)}, "no Linear layer 'features.norm1' to adapt"),
        ({"alpha": 0.0}, "invalid options"),
        ({"weights": "base.safetensors"}, "invalid options"),
        ({"of": "adapters"}, "of another model"),
        ({"of": "blok"}, "No model is called 'blok'"),
        ({"of": "linear", "options": {}}, "no Linear layer but its head"),
        ({"of": "trees", "options": {"trees": 1, "depth": 1}}, "not trained by gradients"),
        ({"options": {"heads": 3}}, "not divided by 3 heads"),
        ({"options": {"heads": "x"}}, "invalid options"),
        ({"names": {"features.query": "../x"}}, "invalid options"),
    ],
)
def test_what_cannot_be_adapted(options: dict[str, object], words: str) -> None:
    with pytest.raises(HostileInput, match=words) as caught:
        built(**options)
    assert caught.value.message


def test_a_signed_study_states_the_adapted_models_options_too() -> None:
    whole = resolve_model(spec(options={"heads": HEADS}))
    check_resolved(whole)
    assert whole.options["options"] == {"heads": HEADS, "hidden": 64}
    stated = whole.model_copy(update={"options": {**whole.options, "options": {"heads": HEADS}}})
    with pytest.raises(HostileInput, match="leaves options open: hidden"):
        check_resolved(stated)


@pytest.mark.parametrize("what", ["missing", "other", "no safetensors", "lacks", "shape", "whole numbers", "not finite"])
def test_files_that_do_not_hold_the_base(what: str, tmp_path: Path) -> None:
    path, values = tmp_path / "base.safetensors", base_values()
    match what:
        case "lacks":
            del values["features.norm1.bias"]
        case "shape":
            values["features.first.weight"] = values["features.first.weight"].T.copy()
        case "whole numbers":
            values["features.query.bias"] = np.zeros(ACROSS, dtype=np.int32)
        case "not finite":
            values["features.value.weight"][1, 2] = np.inf
    save_file(values, path)
    if what == "no safetensors":
        path.write_bytes(b"0" * 100)
    sha256 = digest(path)
    weights.offer(sha256, path)
    if what == "other":
        save_file(base_values(4), path)
    if what == "missing":
        path.unlink()
    words = {
        "missing": "does not exist", "other": "the study names", "no safetensors": "no safetensors", "lacks": "norm1.bias",
        "shape": "first.weight", "whole numbers": "query.bias", "not finite": "not finite",
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=words[what]) as caught:
        built(sha256).check_weights()
    assert "base.safetensors" in caught.value.message


def test_records_meet_no_made_up_weights() -> None:
    """Where no file is known a network is tried on made-up values, and computes on nothing else."""
    architecture = built("1" * 64)
    arrays, x = architecture.initial(0), np.zeros((2, WORDS * ACROSS))
    with pytest.raises(ConfigurationError, match="No file is known that holds the base weights"):
        predict.scores(architecture, arrays, x)
    with weights.made_up():
        assert np.isfinite(predict.scores(architecture, arrays, x)).all()
    with pytest.raises(ConfigurationError, match="No file is known"):
        predict.scores(architecture, arrays, x)


def test_what_was_made_for_a_trial_goes_on_with_the_files_values(file: Path) -> None:
    weights.offer(digest(file), file)
    architecture = built(digest(file))
    arrays, x = some_values(architecture, 1), some_texts(np.random.default_rng(0), 4)
    compute = predict.network_map(architecture, arrays)
    with weights.made_up():
        tried = compute(x)
    found = compute(x)
    assert np.abs(found - tried).max() > 0.1
    np.testing.assert_array_equal(found, predict.scores(architecture, arrays, x))


# -- against the merged network -----------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_scores_are_those_of_the_merged_network(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    save_file(base_values(), path)
    weights.offer(digest(path), path)
    architecture = built(digest(path))
    arrays, x = some_values(architecture, seed), some_texts(np.random.default_rng(seed), 7)
    whole = build_architecture(BASE, WORDS * ACROSS, CLASSES)
    np.testing.assert_allclose(
        predict.scores(architecture, arrays, x), predict.scores(whole, merged(architecture, arrays), x), atol=1e-9
    )


def test_it_begins_as_the_frozen_network(file: Path) -> None:
    weights.offer(digest(file), file)
    architecture = built(digest(file))
    first, x = architecture.initial(5), some_texts(np.random.default_rng(1), 6)
    spread = np.concatenate([first[f"{layer}.lora_A.weight"].ravel() for layer in LAYERS])
    assert np.std(spread) == pytest.approx((3 * ACROSS) ** -0.5, rel=0.3)
    assert not any(first[f"{layer}.lora_B.weight"].any() for layer in LAYERS)
    whole = build_architecture(BASE, WORDS * ACROSS, CLASSES)
    np.testing.assert_allclose(
        predict.scores(architecture, first, x), predict.scores(whole, merged(architecture, first), x), atol=1e-12
    )
    same = architecture.initial(5)
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert list(first) == list(architecture.shapes()) == [name for name, _ in architecture.module().named_parameters()]
    assert architecture.size == 2 * (16 * 3 + 8 + 12) + CLASSES * (ACROSS + 1)


def test_gradients_are_torchs_of_the_merged_network(file: Path) -> None:
    """dL/dA = s B^T dL/dW and dL/dB = s dL/dW A^T, of autograd's own gradient by the merged weights; each record alone."""
    weights.offer(digest(file), file)
    architecture = built(digest(file))
    arrays, x = some_values(architecture, 2), some_texts(np.random.default_rng(2), 6)
    labels = np.array([0, 1, 2, 0, 1, 2])
    kind = ModelGradient(architecture)
    given = kind.maps(arrays)["network"](np.column_stack([x, labels]))
    whole = compute_module(build_architecture(BASE, WORDS * ACROSS, CLASSES))
    load_into(whole, merged(architecture, arrays))
    for row, one, label in zip(given, x, labels, strict=True):
        loss = cross_entropy(whole, torch.tensor(one[None]), torch.tensor([label])).sum()
        named = dict(whole.named_parameters())
        by = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        expected = []
        for name in architecture.shapes():
            if name.startswith("head."):
                expected.append(by[name].numpy().ravel())
                continue
            layer, a, b = (
                name.rsplit(".lora_", 1)[0],
                *(arrays[f"{name.rsplit('.lora_', 1)[0]}.lora_{k}.weight"] for k in "AB"),
            )
            d = by[f"{layer}.weight"].numpy()
            expected.append((3.0 * (b.T @ d if "lora_A" in name else d @ a.T)).ravel())
        np.testing.assert_allclose(_formed(kind, row), np.concatenate(expected), atol=1e-9)


def _formed(kind: ModelGradient, row: np.ndarray) -> np.ndarray:
    """A gradient of its factors, in the order of the model's arrays."""
    found, start = [], 0
    for term in kind.terms:
        own, start = row[start : start + term.given], start + term.given
        if type(term).__name__ == "Entries":
            found.append(own)
            continue
        delta, right = own[: term.left], own[term.left :]
        product = np.outer(delta, right)
        found += [product[:, :-1].ravel(), product[:, -1]] if term.bias else [product.ravel()]
    return np.concatenate(found)


def test_gradients_are_finite_differences(file: Path) -> None:
    weights.offer(digest(file), file)
    architecture = built(digest(file), layers=("features.second",))
    arrays, x = some_values(architecture, 3), some_texts(np.random.default_rng(3), 1)
    kind = ModelGradient(architecture)
    found = _formed(kind, kind.maps(arrays)["network"](np.column_stack([x, [1]]))[0])

    def loss(moved: dict[str, np.ndarray]) -> float:
        z = predict.scores(architecture, moved, x)[0]
        return float(np.log(np.exp(z).sum()) - z[1])

    place = 0
    for name, array in arrays.items():
        for at in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[at] = 1e-5
            slope = (loss({**arrays, name: array + step}) - loss({**arrays, name: array - step})) / 2e-5
            assert found[place] == pytest.approx(slope, abs=1e-6)
            place += 1


def test_frozen_values_are_no_parameters_and_follow_the_network(file: Path) -> None:
    weights.offer(digest(file), file)
    architecture = built(digest(file))
    module = compute_module(architecture)
    load_into(module, architecture.initial(0))
    assert not list(module.buffers())
    assert {name for name, _ in module.named_parameters()} == set(architecture.shapes())
    frozen = module.get_submodule("features.query.base_layer").weight
    assert isinstance(frozen, torch.Tensor)
    assert not isinstance(frozen, nn.Parameter)
    assert frozen.dtype == torch.float64
    np.testing.assert_array_equal(frozen.numpy(), base_values()["features.query.weight"].astype(np.float64))
    assert module.float().get_submodule("features.norm1").bias.dtype == torch.float32
    engine = PerRecordGradients(compute_module(architecture))
    assert sum(term.size for term in engine.terms(lambda x, y: cross_entropy(engine.module, x, y), (40,))) == architecture.size


# -- in studies ---------------------------------------------------------------------------------------------------------------


def texts(n: int = 80, one_class: bool = False) -> dict[str, Records]:
    """Texts whose class the second word tells; some with features that are no numbers, one site of one class, one empty."""
    found, fixed = {}, np.random.default_rng(7).uniform(-1, 1, (CLASSES, ACROSS))
    for place, name in enumerate(SITES):
        rng = np.random.default_rng(place)
        y = np.zeros(n, dtype=np.int64) if one_class and place == 1 else rng.integers(CLASSES, size=n)
        x = 0.3 * some_texts(rng, n).reshape(n, WORDS, ACROSS).clip(-2, 2)
        x[:, 1] = fixed[y] + 0.1 * rng.standard_normal((n, ACROSS))
        features = x.clip(-1, 1).reshape(n, -1)
        features[:3] = np.nan
        own = Records(features, np.isfinite(features) | (np.arange(n) < 3)[:, None], y, None)
        found[name] = own.take(slice(0, 0)) if one_class and place == 2 else own
    return found


def study(path: Path, epsilon: float | None = None, method: str = "fedsgd", **parameters: object) -> Study:
    privacy = {"noise": "none", "min_cohort": 2} if epsilon is None else {"epsilon": epsilon, "min_cohort": 2}
    options = {"model": spec(digest(path), **parameters.pop("options", {})).model_dump(mode="json"), **parameters}  # type: ignore[dict-item]
    return compiled(method, options, schema=schema_of(WORDS * ACROSS, CLASSES), sites=SITES, **privacy)


def accuracy(result: Result) -> float:
    held = texts(480)
    model = Model.from_result(result)
    new = [complete(own.features[400:], own.labels[400:]) for own in held.values()]
    return float(np.mean([np.mean(model.predict(own) == own.labels) for own in new]))


@pytest.mark.parametrize("epsilon", [None, 30.0])
def test_they_train_with_noise_and_without(epsilon: float | None, file: Path) -> None:
    weights.offer(digest(file), file)
    told = study(file, epsilon, steps=12, optimiser={"name": "adam", "learning_rate": 0.05})
    result = get_method("fedsgd").run(Watched(told, texts(400), 0))
    assert result.summary["values"] == 163
    assert accuracy(result) > 0.65
    assert {name.removeprefix(MODEL) for name in result.arrays} == set(built().shapes())


def test_a_full_rank_without_noise_descends_as_the_whole_layer_would(file: Path) -> None:
    """One small step of plain descent from B = 0: the merged weights move by -rate s^2 G A^T A, and the loss falls."""
    weights.offer(digest(file), file)
    rate, data = 0.05, texts()
    told = study(
        file, steps=1, average=0.0, gradient_clip=1e3, optimiser={"name": "sgd", "learning_rate": rate},
        options={"layers": ["features.first"], "rank": ACROSS, "alpha": 3.0 * ACROSS},
    )  # fmt: skip
    architecture = built(digest(file), layers=("features.first",), rank=ACROSS, alpha=3.0 * ACROSS)
    first = architecture.initial(0)
    result = get_method("fedsgd").run(Watched(told, data, 0))
    x = np.concatenate([own.features[3:] for own in data.values()]).clip(-1, 1)
    y = np.concatenate([own.labels[3:] for own in data.values()])
    whole = build_architecture(BASE, WORDS * ACROSS, CLASSES)
    module = compute_module(whole)
    start = {**{k: v.astype(np.float64) for k, v in base_values().items()}, "head.weight": first["head.weight"]}
    load_into(module, {**start, "head.bias": first["head.bias"]})
    cross_entropy(module, torch.tensor(x), torch.tensor(y)).mean().backward()
    slope = module.get_submodule("features.first").weight.grad.numpy()
    b = result.arrays["model.features.first.lora_B.weight"]
    np.testing.assert_allclose(b, -rate * 3.0 * slope @ first["features.first.lora_A.weight"].T, atol=2e-5)
    np.testing.assert_allclose(
        result.arrays["model.features.first.lora_A.weight"], first["features.first.lora_A.weight"], atol=1e-6
    )
    after = {name.removeprefix(MODEL): value for name, value in result.arrays.items()}

    def loss(arrays: dict[str, np.ndarray]) -> float:
        z = predict.scores(architecture, arrays, x)
        return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]))

    assert loss(after) < loss(first)


def test_an_empty_site_and_one_of_one_class_change_nothing_but_the_sum(file: Path) -> None:
    weights.offer(digest(file), file)
    told = study(file, steps=2, optimiser={"name": "adam", "learning_rate": 0.02})
    result = get_method("fedsgd").run(Watched(told, texts(one_class=True), 0))
    assert all(np.isfinite(value).all() for value in result.arrays.values())


def test_fedavg_trains_them_too(file: Path) -> None:
    weights.offer(digest(file), file)
    told = study(file, method="fedavg", rounds=2, batch=32)
    result = get_method("fedavg").run(Watched(told, texts(), 0))
    first = built(digest(file)).initial(0)
    assert (
        np.abs(result.arrays["model.features.query.lora_B.weight"]).max()
        > 0.0
        == np.abs(first["features.query.lora_B.weight"]).max()
    )


def test_a_study_is_made_and_tried_where_the_file_is_not(file: Path) -> None:
    """An analyst and a coordinator have no file; a site tries the task on made-up values before it needs its own."""
    save_file(base_values(11), file)  # which no other test has offered
    told = study(file, 8.0, steps=2)
    task = AgreedStudy(told).task("gradient")
    assert task.terms.weights == digest(file)
    assert not weights.offered(digest(file))
    rehearse(task)
    with pytest.raises(ConfigurationError, match="No file is known"):
        get_method("fedsgd").run(Watched(told, texts(), 0))


# -- peft's form --------------------------------------------------------------------------------------------------------------


def test_peft_finds_its_names_and_shapes(file: Path, tmp_path: Path) -> None:
    """Loaded as peft does it: a prefix, the module's name in the base model, lora_A and lora_B."""
    weights.offer(digest(file), file)
    names = {
        "features": "bert.encoder.layer.1",
        "features.query": "bert.encoder.layer.1.attention.self.query",
        "head": "classifier",
    }
    renamed = tmp_path / "bert.safetensors"
    architecture = built(names=names)
    save_file({architecture.in_file(name): value for name, value in base_values().items()}, renamed)
    weights.offer(digest(renamed), renamed)
    told = study(renamed, steps=2, options={"names": names})
    result = get_method("fedsgd").run(Watched(told, texts(), 0))
    with pytest.raises(Misuse, match="holds no adapters"):
        export_result(Result("fedsgd", {}, {}, {**result.application, "head": None}), tmp_path / "none", ["peft"])
    written = export_result(result, tmp_path / "adapter", ["peft"])
    assert {path.name for path in written} >= {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 6.0)
    assert config["modules_to_save"] == ["classifier"]
    arrays = load((tmp_path / "adapter" / "adapter_model.safetensors").read_bytes())
    base = nn.Module()
    for name, value in load(renamed.read_bytes()).items():  # a model with these modules, as transformers would build it
        above = base
        *parts, own = name.split(".")
        for part in parts:
            if part not in above._modules:
                above.add_module(part, nn.Module())
            above = above._modules[part]
        above.register_parameter(own, nn.Parameter(torch.from_numpy(value)))
    modules = dict(base.named_modules())
    for name, value in arrays.items():
        assert value.dtype == np.float32
        inner = name.removeprefix("base_model.model.")
        assert inner != name
        if ".lora_" in inner:
            module, part = inner.split(".lora_")
            assert module in config["target_modules"]
            outputs, given_to = modules[module].weight.shape
            assert value.shape == ((2, given_to) if part == "A.weight" else (outputs, 2))
        else:
            assert inner in ("classifier.weight", "classifier.bias")
    assert len(arrays) == 2 * len(config["target_modules"]) + 2
    np.testing.assert_array_equal(
        arrays["base_model.model.bert.encoder.layer.1.attention.self.query.lora_A.weight"],
        result.arrays["model.features.query.lora_A.weight"].astype(np.float32),
    )


@pytest.mark.system
def test_peft_computes_what_the_result_does(file: Path, tmp_path: Path) -> None:
    """Loaded by peft itself, which nothing else needs: `.venv/bin/pip install peft` first."""
    peft = pytest.importorskip("peft")
    weights.offer(digest(file), file)
    result = get_method("fedsgd").run(Watched(study(file, steps=2), texts(), 0))
    export_result(result, tmp_path / "adapter", ["peft"])
    base, network = build_architecture(BASE, WORDS * ACROSS, CLASSES).network(), built(digest(file)).network()
    load_into(base, {name: value for name, value in base_values().items() if name != "features.key.bias"})
    load_into(network, {name: result.arrays[MODEL + name] for name in built().shapes()})
    x = torch.from_numpy(some_texts(np.random.default_rng(0), 50)).float()
    with torch.no_grad():
        alone, expected = base.float()(x).numpy(), network.float()(x).numpy()
        found = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()(x).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.abs(found - alone).max() > 0.1


def test_a_result_asks_for_its_weights(file: Path, tmp_path: Path) -> None:
    weights.offer(digest(file), file)
    result = get_method("fedsgd").run(Watched(study(file, steps=1), texts(), 0))
    other = tmp_path / "other.safetensors"
    save_file(base_values(9), other)
    with pytest.raises(ConfigurationError, match="the result names"):
        Model.from_result(result, None, other)
    assert Model.from_result(result, None, file).width == WORDS * ACROSS
