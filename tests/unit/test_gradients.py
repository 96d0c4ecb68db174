"""Clipped gradient sums: against torch.func, their sensitivity, and every way in which a per-record bound is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from support.gradient_sums import clipped_gradient_sum, engine_sum
from veilsum_node.errors import Misuse
from veilsum_privacy.training import gradients as subject
from veilsum_privacy.training.arrays import flatten, load
from veilsum_privacy.training.gradients import cross_entropy
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture
from veilsum_privacy.training.models.networks import Network, named
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.per_record import Mode, PerRecordGradients, choose_mode, formed_values

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CLASSES = 4
SMALL = {"width": 0.125, "groups": 4}
SPECS = {
    "linear": (ModelSpec(name="linear", options={"scale": 0.5, "bias": 0.3}), 6),
    "mlp": (ModelSpec(name="mlp", options={"hidden": 8}), 6),
    "lenet5": (ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256),
    "vgg11": (ModelSpec(name="vgg11", inputs=(1, 8, 8), options={**SMALL, "hidden": 12}), 64),
    "resnet18": (ModelSpec(name="resnet18", inputs=(1, 8, 8), options=SMALL), 64),
    "block": (ModelSpec(name="block", inputs=(5, 6), options={"heads": 3, "hidden": 7}), 30),
}
LOSS_SHAPE = "neither \\(B, 1\\) nor a mean"


def build(key: str) -> Architecture:
    spec, width = SPECS[key]
    return build_architecture(spec, width, CLASSES)


def values_of(architecture: Architecture) -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    return {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in architecture.initial(0).items()}


def records(architecture: Architecture, n: int, seed: int = 1) -> tuple[Floats, Integers]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, architecture.width)), rng.integers(CLASSES, size=n)


def oracle(architecture: Architecture, arrays: dict[str, Floats], x: Floats, labels: Integers) -> Floats:
    """Gradients (n, P) of the cross-entropy by torch.func, in float64."""
    module = architecture.module()
    load(module, arrays)
    return by_func(module, nn.functional.cross_entropy, x, labels)


def by_func(module: nn.Module, loss: Callable[..., torch.Tensor], x: Floats, labels: Integers) -> Floats:
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def one(values: dict[str, torch.Tensor], features: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(module, values, (features[None],)), label[None])

    found = vmap(grad(one), (None, 0, 0))(parameters, torch.tensor(x), torch.tensor(labels))
    return np.concatenate([found[name].reshape(len(x), -1).numpy() for name in parameters], axis=1)


def clipped(rows: Floats, clip: float) -> Floats:
    return rows * np.minimum(1.0, clip / np.linalg.norm(rows, axis=1))[:, None]


def engine_of(architecture: Architecture, mode: Mode | None, physical: int | None = None) -> PerRecordGradients:
    made = PerRecordGradients(architecture.module(), mode, physical)
    load(made.module, values_of(architecture))
    return made


def entropy(made: PerRecordGradients) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda x, labels: cross_entropy(made.module, x, labels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", SPECS)
@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_engines_agree_with_torch_func(key: str, mode: Mode) -> None:
    architecture = build(key)
    x, labels = records(architecture, 11)
    rows = oracle(architecture, values_of(architecture), x, labels)
    clip = 1.001 * float(np.median(np.linalg.norm(rows, axis=1)))
    made = engine_of(architecture, mode, 4)
    found = engine_sum(made, entropy(made), x, labels, clip)
    np.testing.assert_allclose(found.total, clipped(rows, clip).sum(axis=0), rtol=0, atol=3e-6 * clip)
    assert (found.clipped, found.invalid) == (5, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", SPECS)
def test_named_models_agree_with_torch_func(key: str) -> None:
    architecture = build(key)
    x, labels = records(architecture, 11)
    arrays = values_of(architecture)
    rows = oracle(architecture, arrays, x, labels)
    clip = 1.001 * float(np.median(np.linalg.norm(rows, axis=1)))
    found = clipped_gradient_sum(architecture, arrays, x, labels, clip)
    tolerance = 2e-7 if isinstance(architecture, Perceptron) else 2e-5
    np.testing.assert_allclose(found.total, clipped(rows, clip).sum(axis=0), rtol=0, atol=tolerance * clip)
    unclipped = clipped_gradient_sum(architecture, arrays, x, labels, 1e6)
    np.testing.assert_allclose(unclipped.total, rows.sum(axis=0), rtol=0, atol=1e-4)  # 1e-10 of the clip
    assert (unclipped.clipped, unclipped.invalid) == (0, 0)


@pytest.mark.parametrize("key", ["linear", "lenet5"])
def test_a_subjects_sum_is_clipped_again(key: str) -> None:
    architecture = build(key)
    x, labels = records(architecture, 30)
    arrays = values_of(architecture)
    groups = np.repeat([3, 5, 6, 9], [1, 20, 2, 7])
    rows = oracle(architecture, arrays, x, labels)
    clip = 0.8 * float(np.linalg.norm(rows, axis=1).max())
    own = clipped(rows, clip)
    sums = np.array([own[groups == one].sum(axis=0) for one in np.unique(groups)])
    found = clipped_gradient_sum(architecture, arrays, x, labels, clip, groups=groups)
    np.testing.assert_allclose(found.total, clipped(sums, clip).sum(axis=0), rtol=0, atol=2e-5 * clip)
    long = (np.linalg.norm(rows, axis=1) > clip).sum() + (np.linalg.norm(sums, axis=1) > clip * (1 + 1e-4)).sum()
    assert found.clipped == long
    assert np.linalg.norm(sums[1]) > 2 * clip  # without the second clipping this subject would count for several
    alone = clipped_gradient_sum(architecture, arrays, x[1:21], labels[1:21], clip, groups=np.zeros(20, dtype=np.int64))
    assert 0.999 * clip < np.linalg.norm(alone.total) <= clip * (1.0 + 1e-5)


@pytest.mark.parametrize("key", SPECS)
def test_a_huge_record_counts_for_the_clipping_norm(key: str) -> None:
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, 9)
    x[4] *= 1e4
    clip = 1e-3
    with_it = clipped_gradient_sum(architecture, arrays, x, labels, clip).total
    keep = np.arange(9) != 4
    without = clipped_gradient_sum(architecture, arrays, x[keep], labels[keep], clip).total
    moved = np.linalg.norm(with_it - without)
    assert moved <= clip * (1 + 1e-9)
    assert moved == 0 or moved >= 0.95 * clip


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_opacus_ghost_does_not_lose_the_bound_to_a_column_of_losses(mode: Mode) -> None:
    architecture = build("mlp")
    x, labels = records(architecture, 9)
    made = engine_of(architecture, mode)
    for wrong in (
        lambda a, b: cross_entropy(made.module, a, b)[:, None],
        lambda a, b: cross_entropy(made.module, a, b).mean(),
        lambda a, b: cross_entropy(made.module, a, b)[:1],
        lambda a, b: nn.functional.mse_loss(made.module(a), nn.functional.one_hot(b, CLASSES).double(), reduction="none"),
    ):
        with pytest.raises(Misuse, match=LOSS_SHAPE):
            engine_sum(made, wrong, x, labels, 1.0)
    # What was left over from the failures does not come back.
    expected = clipped(oracle(architecture, values_of(architecture), x, labels), 1.0).sum(axis=0)
    np.testing.assert_allclose(engine_sum(made, entropy(made), x, labels, 1.0).total, expected, atol=1e-6)


@pytest.mark.parametrize("key", SPECS)
@pytest.mark.parametrize("grouped", [False, True])
def test_an_empty_batch_is_zero(key: str, grouped: bool) -> None:
    architecture = build(key)
    x, labels = records(architecture, 0)
    groups = np.zeros(0, dtype=np.int64) if grouped else None
    found = clipped_gradient_sum(architecture, values_of(architecture), x, labels, 1.0, groups=groups)
    assert (found.clipped, found.invalid) == (0, 0)
    np.testing.assert_array_equal(found.total, np.zeros(architecture.size))


@pytest.mark.parametrize("key", ["linear", "mlp", "lenet5", "vgg11", "block"])
@pytest.mark.parametrize("grouped", [False, True])
def test_invalid_records_contribute_zero_and_touch_no_other(key: str, grouped: bool) -> None:
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, 8)
    groups = np.array([0, 0, 0, 1, 1, 2, 3, 3]) if grouped else None
    valid = np.ones(8, dtype=bool)
    x[0, 1], x[2, 0], x[3, 0] = np.nan, np.inf, -np.inf
    labels[5], labels[6] = -1, CLASSES
    valid[[0, 2, 3, 5, 6]] = False
    found = clipped_gradient_sum(architecture, arrays, x, labels, 0.5, groups=groups)
    kept = None if groups is None else groups[valid]
    expected = clipped_gradient_sum(architecture, arrays, x[valid], labels[valid], 0.5, groups=kept)
    np.testing.assert_allclose(found.total, expected.total, rtol=0, atol=1e-12)
    assert found.clipped == expected.clipped


@pytest.mark.parametrize("key", ["linear", "mlp", "lenet5"])
@pytest.mark.parametrize("size", [1e30, 1e200, 1e305, 1e308])
def test_a_gradient_that_overflows_contributes_zero_or_the_norm(key: str, size: float) -> None:
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, 3)
    before = clipped_gradient_sum(architecture, arrays, x, labels, 0.5)
    huge = np.full((1, architecture.width), size)
    found = clipped_gradient_sum(architecture, arrays, np.vstack([x, huge]), np.append(labels, 0), 0.5)
    assert np.isfinite(found.total).all()
    assert np.linalg.norm(found.total - before.total) <= 0.5 * (1 + 1e-9)
    if size >= 1e200:
        assert found.invalid == 1
        np.testing.assert_allclose(found.total, before.total, rtol=0, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    first=st.floats(-160, 160),
    second=st.floats(-300, 160),
    feature=st.floats(-200, 3),
    gap=st.floats(0.0, 740.0),
    clip=st.floats(-100, 100),
    grouped=st.booleans(),
)
@example(first=150.0, second=-300.0, feature=0.0, gap=380.0, clip=-30.0, grouped=False)
@example(first=150.0, second=150.0, feature=-170.0, gap=0.0, clip=-90.0, grouped=False)
def test_no_broadcast_lets_a_record_exceed_the_clipping_norm(
    first: float, second: float, feature: float, gap: float, clip: float, grouped: bool
) -> None:
    """A factor whose square vanishes, beside one that is huge: whatever model and clipping norm were chosen for it."""
    architecture = build_architecture(ModelSpec(name="mlp", options={"hidden": 4, "scale": 1.0}), 3, 2)
    x = np.full((1, 3), 10.0**feature)
    arrays = {
        "features.hidden.weight": np.full((4, 3), 10.0**first),
        "features.hidden.bias": np.zeros(4),
        "head.weight": np.array([[10.0**second], [0.0]]) * np.ones((2, 4)),
        "head.bias": np.array([gap, 0.0]),
    }
    groups = np.zeros(1, dtype=np.int64) if grouped else None
    for label in (0, 1):
        found = clipped_gradient_sum(architecture, arrays, x, np.array([label]), 10.0**clip, groups=groups).total
        largest = float(np.abs(found).max())
        if largest > 0.0:
            assert (largest / 10.0**clip) * np.linalg.norm(found / largest) <= 1.0 + 2.0**-12


@pytest.mark.sampled(4)
@pytest.mark.parametrize("key", SPECS)
def test_a_record_gives_the_same_bits_in_any_company(key: str) -> None:
    """As a subject each record's vector is added by itself, so the total is a plain sum of vectors in their order."""
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, {"linear": 70, "mlp": 70, "lenet5": 19}.get(key, 6))
    groups = np.arange(len(x))
    for clip in (0.3, 100.0) if key != "resnet18" else (0.3,):
        alone = [
            clipped_gradient_sum(architecture, arrays, x[i : i + 1], labels[i : i + 1], clip, groups=groups[:1]).integers
            for i in range(len(x))
        ]
        for order in (groups, np.random.default_rng(3).permutation(len(x)), groups[::3]):
            total = np.zeros(architecture.size, dtype=np.int64)
            for i in order:
                total = total + alone[i]
            found = clipped_gradient_sum(architecture, arrays, x[order], labels[order], clip, groups=groups[: len(order)])
            np.testing.assert_array_equal(found.integers, total)


@settings(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(["linear", "mlp"]),
    n=st.integers(1, 12),
    scale=st.floats(-3, 4),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
    grouped=st.booleans(),
)
def test_neighbours_never_differ_by_more_than_stated(
    key: str, n: int, scale: float, clip: float, seed: int, grouped: bool
) -> None:
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, n, seed)
    x *= 10.0**scale
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, 4, size=n)) if grouped else np.arange(n)
    dropped = groups == rng.choice(groups)
    given_groups = groups if grouped else None
    whole = clipped_gradient_sum(architecture, arrays, x, labels, clip, groups=given_groups)
    left = clipped_gradient_sum(
        architecture, arrays, x[~dropped], labels[~dropped], clip, groups=groups[~dropped] if grouped else None
    )
    assert np.linalg.norm(whole.total - left.total) <= clip * (1 + 1e-5)


@pytest.mark.parametrize("key", ["linear", "mlp", "lenet5", "resnet18"])
def test_the_worst_neighbour_reaches_the_stated_sensitivity(key: str) -> None:
    architecture = build(key)
    arrays = values_of(architecture)
    x, labels = records(architecture, 6)
    scores = architecture.module()
    load(scores, arrays)
    with torch.no_grad():
        labels[0] = int(scores(torch.tensor(x[:1])).argmin())  # a record that the model is wrong about
    clip = 0.01
    whole = clipped_gradient_sum(architecture, arrays, x, labels, clip).total
    left = clipped_gradient_sum(architecture, arrays, x[1:], labels[1:], clip).total
    assert 0.95 * clip <= np.linalg.norm(whole - left) <= clip * (1 + 1e-9)


def net(middle: nn.Module, width: int = 5) -> Network:
    torch.manual_seed(0)
    return Network(named(first=nn.Linear(width, 6), middle=middle), nn.Linear(6, CLASSES)).double()


class _OverBatch(nn.Module):
    """A batch norm in disguise: no buffers, no type to know it by."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-3)


class _ByPlace(nn.Module):
    """Rounds a record in another way at every place of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + 1e-15 * torch.arange(len(x), dtype=x.dtype))[:, None]


class _Twice(nn.Module):
    """One layer that a record goes through twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class _Free(nn.Module):
    """Parameters of its own beside a layer; Opacus takes such a module as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)) * self.gain


class _Words(nn.Module):
    """A Linear layer over positions, whose gradient by record is not an outer product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x.reshape(-1, 3, 2))).reshape(-1, 6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("middle", [_Twice(), _Free(), _Words(), nn.LayerNorm(6), nn.GroupNorm(2, 6)])
@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_other_layers_agree_with_torch_func(middle: nn.Module, mode: Mode) -> None:
    module = net(middle)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9)
    rows = by_func(module, nn.functional.cross_entropy, x, labels)
    made = PerRecordGradients(module, mode, 4)
    found = engine_sum(made, entropy(made), x, labels, 0.7)
    np.testing.assert_allclose(found.total, clipped(rows, 0.7).sum(axis=0), rtol=0, atol=3e-6)
    made.close()
    with pytest.raises(Misuse, match="closed"):
        engine_sum(made, entropy(made), x, labels, 0.7)
    PerRecordGradients(module, mode).close()  # nothing of the first is left on it


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_losses_that_mix_records_are_refused(mode: Mode) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9)
    made = PerRecordGradients(net(_OverBatch()), mode)
    with pytest.raises(Misuse, match="depends on the other records"):
        engine_sum(made, entropy(made), x, labels, 0.7)
    plain = PerRecordGradients(net(nn.Tanh()), mode)

    def centred(features: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        return cross_entropy(plain.module, features - features.mean(dim=0), names)

    with pytest.raises(Misuse, match="depends on the other records"):
        engine_sum(plain, centred, x, labels, 0.7)

    def penalised(features: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
        penalty = sum(parameter.square().sum() for parameter in plain.module.parameters())
        return cross_entropy(plain.module, features, names) + penalty

    with pytest.raises(Misuse, match="layers alone"):
        engine_sum(plain, penalised, x, labels, 0.7)
    assert engine_sum(plain, entropy(plain), x, labels, 0.7).invalid == 0


class _Beside(nn.Module):
    """A layer whose outputs count so much, times the record's place in the batch."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.key = share, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.share * torch.arange(len(x), dtype=x.dtype)[:, None] * self.key(x)


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
@pytest.mark.parametrize(("share", "words"), [(1e-16, "is rounding alone"), (1e-6, "depends on the other records")])
def test_a_parameter_that_nothing_depends_on_is_named(share: float, words: str, mode: Mode) -> None:
    """As a bias of attention's keys, which adds the same to every word's fit: no company is blamed for its rounding."""
    rng = np.random.default_rng(0)
    made = PerRecordGradients(net(_Beside(share)), mode)
    with pytest.raises(Misuse, match=rf"'features\.middle\.key\.weight' {words}") as caught:
        engine_sum(made, entropy(made), rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9), 0.7)
    assert ("keys" in caught.value.advice) is (share < 1e-9)


@pytest.mark.parametrize("value", [0.0, 1e300])
def test_no_broadcast_hides_what_the_check_looks_for(value: float) -> None:
    """A first model of zeros, or of values that overflow, in front of layers that mix records; and it is left as it was."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9)
    made = PerRecordGradients(net(_OverBatch()))
    load(made.module, {name: np.full(shape, value) for name, shape in made.shapes.items()})
    with pytest.raises(Misuse, match="depends on the other records"):
        engine_sum(made, entropy(made), x, labels, 0.7)
    assert all(bool((parameter == value).all()) for parameter in made.module.parameters())


def test_where_the_place_in_a_batch_shows_records_go_alone() -> None:
    made = PerRecordGradients(net(_ByPlace()), None, 8)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9)
    groups = np.arange(9)
    total = engine_sum(made, entropy(made), x, labels, 1e3, groups).integers
    assert made.physical == 1
    turned = [engine_sum(made, entropy(made), x[i : i + 1], labels[i : i + 1], 1e3, groups[:1]).integers for i in range(9)]
    expected = np.zeros_like(total)
    for one in turned:
        expected = expected + one
    np.testing.assert_array_equal(total, expected)


def test_an_array_that_the_loss_does_not_use_gets_zeros() -> None:
    made = PerRecordGradients(net(nn.Tanh()), "ghost")
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((9, 5)), rng.integers(CLASSES, size=9)
    found = engine_sum(made, lambda a, b: made.module.features(a).square().sum(dim=1), x, labels, 0.7)
    names = list(made.shapes)
    assert names[-2:] == ["head.weight", "head.bias"]
    np.testing.assert_array_equal(found.total[-(6 * CLASSES + CLASSES) :], 0.0)
    assert np.abs(found.total).max() > 0.1


def test_a_loss_of_ones_own_agrees_with_torch_func() -> None:
    for key in ("linear", "lenet5"):
        architecture = build(key)
        arrays = values_of(architecture)
        x, labels = records(architecture, 7)

        def squared(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return (scores - (torch.arange(CLASSES) == label[:, None]).to(scores)).square().sum()

        module = architecture.module()
        load(module, arrays)
        rows = by_func(module, squared, x, labels)
        found = clipped_gradient_sum(
            architecture,
            arrays,
            x,
            labels,
            0.5,
            loss=lambda net, a, b: (net(a) - (torch.arange(CLASSES) == b[:, None]).to(a)).square().sum(dim=1),
        )
        np.testing.assert_allclose(found.total, clipped(rows, 0.5).sum(axis=0), rtol=0, atol=1e-5)


def test_modes_are_chosen_by_the_stated_rule() -> None:
    assert choose_mode(nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2))) == "hooks"
    assert choose_mode(build("resnet18").module()) == "ghost"
    lenet = build("lenet5")
    convolutions = sum(int(np.prod(shape)) for name, shape in lenet.shapes().items() if "conv" in name)
    assert formed_values(lenet.module(), "ghost") == convolutions
    assert formed_values(lenet.module(), "hooks") == lenet.size


def test_threads_and_torchs_generator_are_left_as_they_were() -> None:
    architecture = build("lenet5")
    x, labels = records(architecture, 3)
    arrays = values_of(architecture)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        clipped_gradient_sum(architecture, arrays, x, labels, 1.0)
        state = torch.random.get_rng_state()
        clipped_gradient_sum(architecture, arrays, x, labels, 1.0)
        assert torch.equal(state, torch.random.get_rng_state())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_engines_are_kept_by_value() -> None:
    assert subject.engine(build("lenet5")) is subject.engine(build("lenet5"))
    first = subject.engine(build("lenet5"))
    for hidden in range(1, 6):
        spec = ModelSpec(name="mlp", options={"hidden": hidden})
        subject.engine(build_architecture(spec, 3, CLASSES))
    assert subject.engine(build("lenet5")) is not first  # memory is bounded
    other = build_architecture(ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256, CLASSES + 1)
    assert subject.engine(other) is not subject.engine(build("lenet5"))


def test_what_does_not_fit_is_refused() -> None:
    architecture = build("linear")
    arrays = values_of(architecture)
    x, labels = records(architecture, 3)
    for groups in (np.array([0, 1]), np.array([0, 1, 0])):
        with pytest.raises(Misuse):
            clipped_gradient_sum(architecture, arrays, x, labels, 1.0, groups=groups)
    for clip in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(Misuse, match="clipping norm"):
            clipped_gradient_sum(architecture, arrays, x, labels, clip)
    with pytest.raises(Misuse, match="one record or more"):
        PerRecordGradients(architecture.module(), None, 0)


def test_the_total_is_in_the_order_of_the_shapes() -> None:
    architecture = build("mlp")
    x, labels = records(architecture, 1)
    arrays = values_of(architecture)
    total = clipped_gradient_sum(architecture, arrays, x, labels, 1e6).total
    step = 1e-6
    for name in architecture.shapes():
        moved = {key: value.copy() for key, value in arrays.items()}
        moved[name].ravel()[0] += step
        place = np.flatnonzero(flatten(moved, architecture.shapes()) != flatten(arrays, architecture.shapes()))
        losses = []
        for model in (moved, arrays):
            module = architecture.module()
            load(module, model)
            losses.append(float(cross_entropy(module, torch.tensor(x), torch.tensor(labels)).detach()))
        assert total[place[0]] == pytest.approx((losses[0] - losses[1]) / step, abs=1e-4)
