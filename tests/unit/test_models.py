"""Models by name: arrays, symmetries, what is refused, entry points, and predictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from support.networks import permute
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen
from veilsum_privacy.training import predict
from veilsum_privacy.training.arrays import MODEL, flatten, from_broadcast, load, to_broadcast, unflatten
from veilsum_privacy.training.models import (
    MODELS,
    Architecture,
    ModelSpec,
    build_architecture,
    check_resolved,
    resolve_model,
)
from veilsum_privacy.training.models.networks import Network, named
from veilsum_privacy.training.models.perceptrons import Perceptron

Floats = NDArray[np.float64]

CLASSES = 5
SMALL = {"width": 0.125, "groups": 4}
SPECS = {
    "linear": (ModelSpec(name="linear", options={"scale": 0.5, "bias": 0.3}), 7),
    "mlp": (ModelSpec(name="mlp", options={"hidden": 9}), 7),
    "lenet5": (ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256),
    "lenet5 28": (ModelSpec(name="lenet5", inputs=(3, 28, 28)), 2352),
    "vgg11": (ModelSpec(name="vgg11", inputs=(2, 16, 16), options={**SMALL, "hidden": 12}), 512),
    "vgg11 32": (ModelSpec(name="vgg11", inputs=(1, 64, 32), options={**SMALL, "hidden": 12}), 2048),
    "resnet18": (ModelSpec(name="resnet18", inputs=(2, 16, 12), options=SMALL), 384),
    "block": (ModelSpec(name="block", inputs=(5, 6), options={"heads": 3, "hidden": 8}), 30),
}


def dump(module: torch.nn.Module) -> dict[str, Floats]:
    """A network's parameters as float64 arrays, by name; copies."""
    return {name: parameter.detach().cpu().double().numpy().copy() for name, parameter in module.named_parameters()}


def build(key: str) -> Architecture:
    spec, width = SPECS[key]
    return build_architecture(spec, width, CLASSES)


def some_values(architecture: Architecture, seed: int = 0) -> dict[str, Floats]:
    """Values of which none is zero, so that every array shows in the outputs."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in architecture.initial(seed).items()}


def records(architecture: Architecture, n: int) -> Floats:
    return np.random.default_rng(5).standard_normal((n, architecture.width))


def outputs(architecture: Architecture, arrays: dict[str, Floats], x: Floats) -> Floats:
    module = architecture.module()
    load(module, arrays)
    with torch.no_grad():
        return np.asarray(module(torch.tensor(x)).numpy())


@pytest.mark.parametrize("key", SPECS)
def test_shapes_are_those_of_the_network_in_order(key: str) -> None:
    architecture = build(key)
    module = architecture.module()
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == architecture.shapes()
    assert [name for name, _ in module.named_parameters()] == list(architecture.shapes())
    assert architecture.size == sum(parameter.numel() for parameter in module.parameters())
    assert module.training
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}


@pytest.mark.parametrize("key", SPECS)
def test_scores_are_the_head_of_the_features(key: str) -> None:
    architecture = build(key)
    module = architecture.module()
    load(module, some_values(architecture))
    x = torch.tensor(records(architecture, 3))
    scores = module(x)
    features = module.features(x)
    assert scores.shape == (3, CLASSES)
    assert features.shape == (3, architecture.shapes()["head.weight"][1])
    assert torch.equal(module.head(features), scores)
    if architecture.inputs is not None:
        assert torch.equal(module(x.reshape(3, *architecture.inputs)), scores)


@pytest.mark.parametrize("key", SPECS)
def test_first_values_follow_from_the_seed(key: str) -> None:
    architecture = build(key)
    first, again, other = architecture.initial(3), build(key).initial(3), architecture.initial(4)
    assert {name: value.shape for name, value in first.items()} == architecture.shapes()
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert all(value.dtype == np.float64 for value in first.values())
    assert key == "linear" or not np.array_equal(flatten(first, architecture.shapes()), flatten(other, architecture.shapes()))


def test_first_values_keep_the_size_of_signals() -> None:
    architecture = build_architecture(ModelSpec(name="mlp", options={"hidden": 400}), 500, 50)
    x = records(architecture, 200)
    hidden, scores = (f(architecture, architecture.initial(0), x) for f in (predict.representations, predict.scores))
    assert np.mean(hidden**2) == pytest.approx(1.0, rel=0.1)  # E relu(z)^2 = var(z) / 2 = 1
    assert np.mean(scores**2) == pytest.approx(1.0, rel=0.1)


def test_linear_is_the_stated_map() -> None:
    architecture = build("linear")
    arrays = some_values(architecture)
    x = records(architecture, 4)
    expected = 0.5 * x @ arrays["head.weight"].T + 0.3 * arrays["head.bias"]
    np.testing.assert_allclose(outputs(architecture, arrays, x), expected, atol=1e-14)
    np.testing.assert_allclose(predict.scores(architecture, arrays, x), expected, atol=1e-11)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", [key for key in SPECS if key != "linear"])
def test_renumbered_channels_compute_the_same(key: str) -> None:
    architecture = build(key)
    arrays, groups = some_values(architecture), architecture.channels()
    rng = np.random.default_rng(1)
    orders = {}
    for group in groups:
        size = group.size // group.blocks
        blocks = [block * size + rng.permutation(size) for block in rng.permutation(group.blocks)]
        orders[group.name] = np.concatenate(blocks)
    x = records(architecture, 3)
    before = outputs(architecture, arrays, x)
    moved = permute(arrays, groups, orders)
    np.testing.assert_allclose(outputs(architecture, moved, x), before, atol=1e-10)
    for group in groups:  # each group shows: without what reads it, renumbering changes the model
        broken = permute(arrays, [group._replace(consumed=())], {group.name: orders[group.name]})
        assert np.abs(outputs(architecture, broken, x) - before).max() > 1e-6, group.name


@pytest.mark.parametrize("key", [key for key in SPECS if key not in ("linear", "block")])
def test_every_hidden_axis_belongs_to_one_group(key: str) -> None:
    architecture = build(key)
    shapes = architecture.shapes()
    axes = [(m.array, m.axis) for group in architecture.channels() for m in (*group.produced, *group.consumed)]
    first = next(iter(shapes))
    expected = {(name, axis) for name, shape in shapes.items() for axis in range(min(len(shape), 2))}
    expected -= {(first, 1), ("head.weight", 0), ("head.bias", 0)}
    assert sorted(axes) == sorted(expected)
    for group in architecture.channels():
        for member in group.produced:
            assert shapes[member.array][member.axis] == group.size * member.repeat
        for member in group.consumed:
            assert shapes[member.array][member.axis] == group.size * member.repeat


@pytest.mark.parametrize("key", SPECS)
def test_linear_layers_are_the_networks(key: str) -> None:
    architecture = build(key)
    found = tuple(name for name, layer in architecture.module().named_modules() if isinstance(layer, nn.Linear))
    every_word = ("features.key", "features.value")  # which take many vectors of a record
    assert architecture.linear_layers() == tuple(name for name in found if name not in every_word)


def test_published_sizes() -> None:
    lenet = build_architecture(ModelSpec(name="lenet5", inputs=(1, 28, 28)), 784, 10)
    assert lenet.size == 61_706  # LeNet-5 with dense second convolution
    resnet = build_architecture(ModelSpec(name="resnet18", inputs=(3, 32, 32)), 3072, 10)
    assert resnet.size == 11_173_962  # the usual ResNet-18 for CIFAR-10
    vgg = build_architecture(ModelSpec(name="vgg11", inputs=(3, 32, 32)), 3072, 10)
    convolutions = sum(np.prod(shape) for name, shape in vgg.shapes().items() if "conv" in name)
    assert convolutions == 9_217_728  # 9,220,480 of configuration A less 2,752 biases


def test_torch_is_imported_for_networks_only() -> None:
    code = (
        "import sys; from veilsum_privacy.training.models import *; "
        "a = build_architecture(ModelSpec(name='vgg11', inputs=(3, 32, 32)), 3072, 10); "
        "a.shapes(), a.channels(), a.linear_layers(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("spec", "width", "words"),
    [
        (ModelSpec(name="lenet"), 256, "Did you mean 'lenet5'"),
        (ModelSpec(name="mlp", options={"hiden": 3}), 4, "Did you mean 'hidden'"),
        (ModelSpec(name="mlp", options={"hidden": 0}), 4, "hidden"),
        (ModelSpec(name="mlp", options={"hidden": 65536}), 4096, "values"),
        (ModelSpec(name="linear", options={"scale": float("nan")}), 4, "scale"),
        (ModelSpec(name="lenet5"), 256, "images"),
        (ModelSpec(name="lenet5", inputs=(1, 16, 16)), 255, "255 features"),
        (ModelSpec(name="lenet5", inputs=(1, 11, 11)), 121, "12 x 12"),
        (ModelSpec(name="vgg11", inputs=(1, 16, 16), options={"width": 0.125, "groups": 8}), 256, "fewer groups"),
        (ModelSpec(name="resnet18", inputs=(1, 16, 16), options={"width": 0.1, "groups": 4}), 256, "groups of two"),
        (ModelSpec(name="linear"), 0, "1 feature"),
    ],
)
def test_what_does_not_fit_is_refused(spec: ModelSpec, width: int, words: str) -> None:
    with pytest.raises(HostileInput, match=words):
        build_architecture(spec, width, 3)


def test_resolved_models_leave_nothing_open() -> None:
    spec = ModelSpec(name="mlp", options={"scale": 0.1})
    with pytest.raises(HostileInput, match="hidden"):
        check_resolved(spec)
    resolved = resolve_model(spec)
    check_resolved(resolved)
    assert resolve_model(resolved) == resolved
    assert b"0x1.9" in canonical(resolved.model_dump(mode="json"))
    assert build_architecture(resolved, 3, 2).options == build_architecture(spec, 3, 2).options
    with pytest.raises(HostileInput, match="invalid options"):
        resolve_model(ModelSpec(name="mlp", options={"depth": 3}))
    assert set(MODELS) == {"linear", "mlp", "lenet5", "vgg11", "resnet18", "block", "adapters"}
    needed = {"adapters": {"weights": "0" * 64, "layers": ["features.query"]}}
    for name in MODELS:
        check_resolved(resolve_model(ModelSpec(name=name, options=needed.get(name, {}))))


class _Own(Architecture):
    """An architecture around one middle layer."""

    name = "own"

    class Options(Frozen):
        """None."""

    middle: ClassVar[nn.Module]
    extra: ClassVar[dict[str, tuple[int, ...]]] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "features.first.weight": (4, self.width),
            "features.first.bias": (4,),
            **self.extra,
            "head.weight": (self.classes, 4),
            "head.bias": (self.classes,),
        }

    def network(self) -> Network:
        return Network(named(first=nn.Linear(self.width, 4), middle=self.middle), nn.Linear(4, self.classes))


def _own(middle: nn.Module, **extra: tuple[int, ...]) -> Architecture:
    class Own(_Own):
        pass

    Own.middle = middle
    Own.extra = {f"features.middle.{name}": shape for name, shape in extra.items()}
    return Own(Own.Options(), None, 3, 2)


class _Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Frozen(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.weight.requires_grad_(False)


def test_an_own_network_works() -> None:
    architecture = _own(nn.GroupNorm(2, 4), weight=(4,), bias=(4,))
    assert list(dump(architecture.module())) == list(architecture.shapes())
    _own(nn.LayerNorm(4), weight=(4,), bias=(4,)).module()
    assert architecture.channels() == ()
    assert architecture.linear_layers() == ("head",)


@pytest.mark.parametrize(
    ("middle", "extra", "words"),
    [
        (nn.BatchNorm1d(4), {"weight": (4,), "bias": (4,)}, "Use GroupNorm"),
        (nn.BatchNorm1d(4, affine=False), {}, "Use GroupNorm"),
        (nn.BatchNorm1d(4, affine=False, track_running_stats=False), {}, "Use GroupNorm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), {}, "Use GroupNorm"),
        (_Buffer(), {}, "buffers: features.middle.mean"),
        (nn.Dropout(0.5), {}, "dropout"),
        (_Frozen(), {"weight": (4, 4)}, "frozen"),
        (nn.Linear(4, 4), {"weight": (4, 4)}, "features.middle.bias"),
        (nn.Identity(), {"weight": (4, 4)}, "features.middle.weight"),
        (nn.GroupNorm(2, 4), {"bias": (4,), "weight": (4,)}, "they come as features.first.weight"),  # told by their order
    ],
)
def test_networks_without_gradients_by_record_are_refused(
    middle: nn.Module, extra: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(Misuse, match=words):
        _own(middle, **extra).module()


def test_shared_parameters_are_refused() -> None:
    class Shared(_Own):
        def network(self) -> Network:
            head = nn.Linear(4, self.classes)
            network = Network(named(first=nn.Linear(self.width, 4)), head)
            head.bias = network.features.get_submodule("first").bias  # type: ignore[assignment]
            return network

    with pytest.raises(Misuse, match="under two names"):
        Shared(Shared.Options(), None, 3, 4).module()


def _install(folder: Path, text: str, points: str) -> None:
    """A distribution as an installer leaves it."""
    (folder / "sitemodels.py").write_text(text)
    info = folder / "sitemodels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sitemodels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[veilsum.models]\n{points}\n")


@pytest.fixture
def site_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sitemodels", raising=False)
    yield tmp_path
    sys.modules.pop("sitemodels", None)


OWN = """
from veilsum_privacy.training.models.perceptrons import Mlp

class Deep(Mlp):
    name = "deep"
"""


def test_a_sites_own_model_comes_by_entry_point(site_package: Path) -> None:
    _install(
        site_package, OWN, "deep = sitemodels:Deep\nmlp = sitemodels:Deep\nother = sitemodels:Deep\ntext = sitemodels:OWN"
    )
    architecture = build_architecture(ModelSpec(name="deep", options={"hidden": 3}), 4, 2)
    assert type(architecture).__module__ == "sitemodels"
    assert architecture.shapes()["head.weight"] == (2, 3)
    assert type(build_architecture(ModelSpec(name="mlp"), 4, 2)) is MODELS["mlp"]  # never from an entry point
    with pytest.raises(Misuse, match="'other' does not name an Architecture"):
        build_architecture(ModelSpec(name="other"), 4, 2)
    with pytest.raises(Misuse, match="'text' cannot be loaded"):
        build_architecture(ModelSpec(name="text"), 4, 2)
    with pytest.raises(HostileInput, match="Did you mean 'deep'"):
        build_architecture(ModelSpec(name="deeep"), 4, 2)


def test_a_broken_package_is_named_and_nothing_else(site_package: Path) -> None:
    _install(site_package, "raise OSError('/secret/path')", "deep = sitemodels:Deep")
    with pytest.raises(Misuse, match="'deep' cannot be loaded: OSError") as caught:
        build_architecture(ModelSpec(name="deep"), 4, 2)
    assert "secret" not in str(caught.value)


def test_arrays_come_back() -> None:
    architecture = build("mlp")
    shapes, arrays = architecture.shapes(), some_values(architecture)
    vector = flatten(arrays, shapes)
    np.testing.assert_array_equal(vector[: 9 * 7], arrays["features.hidden.weight"].ravel())
    for found in (unflatten(vector, shapes), from_broadcast({**to_broadcast(arrays), "else": np.ones(1)}, shapes)):
        assert list(found) == list(shapes)
        for name, value in arrays.items():
            np.testing.assert_array_equal(found[name], value)
    module = architecture.module()
    frozen = {name: value.copy() for name, value in arrays.items()}
    for value in frozen.values():
        value.setflags(write=False)
    load(module, frozen)
    for name, value in dump(module).items():
        np.testing.assert_array_equal(value, arrays[name])
    assert unflatten(np.zeros(0), {}) == {}
    assert flatten({}, {}).shape == (0,)


def test_arrays_that_do_not_fit_are_refused() -> None:
    architecture = build("mlp")
    shapes, arrays = architecture.shapes(), some_values(architecture)
    sent = to_broadcast(arrays)
    name = MODEL + "head.bias"
    for wrong in (None, np.zeros(4), np.array([0.0, 1.0, np.nan, 0.0, 0.0])):
        broken = {key: value for key, value in sent.items() if key != name} | ({} if wrong is None else {name: wrong})
        with pytest.raises(HostileInput, match=r"head\.bias"):
            from_broadcast(broken, shapes)
    with pytest.raises(Misuse, match=r"head\.bias"):
        flatten(arrays | {"head.bias": np.zeros(4)}, shapes)
    with pytest.raises(Misuse, match="vector"):
        unflatten(np.zeros(architecture.size + 1), shapes)
    with pytest.raises(Misuse, match=r"head\.bias"):
        load(architecture.module(), arrays | {"head.bias": np.zeros((5, 1))})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", ["linear", "mlp", "lenet5", "vgg11", "resnet18", "block"])
def test_predictions_are_the_networks_and_each_records_own(key: str) -> None:
    architecture = build(key)
    arrays = some_values(architecture)
    x = records(architecture, 70)
    found = predict.scores(architecture, arrays, x)
    tolerance = 1e-9 if isinstance(architecture, Perceptron) else 1e-4 * float(np.abs(found).max())
    np.testing.assert_allclose(found, outputs(architecture, arrays, x), rtol=0, atol=tolerance)
    hidden = predict.representations(architecture, arrays, x)
    head = hidden @ arrays["head.weight"].T + (0.3 if key == "linear" else 1.0) * arrays["head.bias"]
    np.testing.assert_allclose(head, found, rtol=0, atol=tolerance)
    order = np.random.default_rng(2).permutation(len(x))
    np.testing.assert_array_equal(predict.scores(architecture, arrays, x[order]), found[order])
    np.testing.assert_array_equal(predict.scores(architecture, arrays, x[66:67]), found[66:67])
    spoiled = x.copy()
    spoiled[3, 1] = np.inf
    again = predict.scores(architecture, arrays, spoiled)
    assert np.isnan(again[3]).all()
    np.testing.assert_array_equal(np.delete(again, 3, axis=0), np.delete(found, 3, axis=0))
    assert predict.scores(architecture, arrays, x[:0]).shape == (0, CLASSES)
    with pytest.raises(Misuse, match="features"):
        predict.scores(architecture, arrays, x[:, 1:])
