"""Channel permutations of networks in torch, whose outputs they must not change; assignments against brute force and POT."""

from __future__ import annotations

from itertools import permutations as orders

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.networks import permute
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_aggregation.filters import (
    align_filters,
    check_groups,
    convolutions,
    permute_gram,
    places,
    weighted_mean,
)
from veilsum_privacy.training.models import ModelSpec, build_architecture


class LeNet(nn.Module):
    """Two convolutions, two hidden linear layers; the second feature map, 3 x 3, is flattened."""

    inputs = (1, 12, 12)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 7, 3, padding=1)
        self.hidden, self.head = nn.Linear(7 * 9, 11), nn.Linear(11, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.head(torch.tanh(self.hidden(x.flatten(1))))


LENET = (
    ChannelGroup(
        "first", 5, (GroupMember("first.weight", 0), GroupMember("first.bias", 0)), (GroupMember("second.weight", 1),)
    ),
    ChannelGroup(
        "second", 7, (GroupMember("second.weight", 0), GroupMember("second.bias", 0)), (GroupMember("hidden.weight", 1, 9),)
    ),
    ChannelGroup(
        "hidden", 11, (GroupMember("hidden.weight", 0), GroupMember("hidden.bias", 0)), (GroupMember("head.weight", 1),)
    ),
)


class Vgg(nn.Module):
    """Convolutions with GroupNorm of several groups, and a depthwise one."""

    inputs = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(4, 8)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.second, self.second_norm = nn.Conv2d(8, 12, 3, padding=1), nn.GroupNorm(2, 12)
        self.head = nn.Linear(12 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first_norm(self.first(x)))
        x = nn.functional.max_pool2d(torch.relu(self.depth(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.second_norm(self.second(x))), 2)
        return self.head(x.flatten(1))


VGG = (
    ChannelGroup(
        "first",
        8,
        tuple(
            GroupMember(name, 0)
            for name in ("first.weight", "first_norm.weight", "first_norm.bias", "depth.weight", "depth.bias")
        ),
        (GroupMember("second.weight", 1),),
        blocks=4,
    ),
    ChannelGroup(
        "second",
        12,
        tuple(GroupMember(f"{name}.{part}", 0) for name in ("second", "second_norm") for part in ("weight", "bias")),
        (GroupMember("head.weight", 1, 4),),
        blocks=2,
    ),
)


class Block(nn.Module):
    """A basic residual block, with a projection where the stream gets wider."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.a, self.a_norm = nn.Conv2d(before, after, 3, padding=1, bias=False), nn.GroupNorm(2, after)
        self.b, self.b_norm = nn.Conv2d(after, after, 3, padding=1, bias=False), nn.GroupNorm(2, after)
        self.down = nn.Conv2d(before, after, 1, bias=False) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.a_norm(self.a(x)))
        return torch.relu(self.b_norm(self.b(inner)) + self.down(x))


class Residual(nn.Module):
    """A stem, a block on its stream, and two on a wider stream."""

    inputs = (3, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.GroupNorm(2, 6)
        self.one, self.two, self.three = Block(6, 6), Block(6, 8), Block(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.three(self.two(self.one(torch.relu(self.norm(self.stem(x))))))
        return self.head(x.mean((2, 3)))


def produced(*layers: str) -> tuple[GroupMember, ...]:
    """Convolutions without bias, and norms with one."""
    parts = [f"{name}.{part}" for name in layers for part in (("weight", "bias") if "norm" in name else ("weight",))]
    return tuple(GroupMember(part, 0) for part in parts)


RESIDUAL = (
    ChannelGroup(
        "stream.1",
        6,
        produced("stem", "norm", "one.b", "one.b_norm"),
        (GroupMember("one.a.weight", 1), GroupMember("two.a.weight", 1), GroupMember("two.down.weight", 1)),
        blocks=2,
    ),
    ChannelGroup("one", 6, produced("one.a", "one.a_norm"), (GroupMember("one.b.weight", 1),), blocks=2),
    ChannelGroup(
        "stream.2",
        8,
        produced("two.down", "two.b", "two.b_norm", "three.b", "three.b_norm"),
        (GroupMember("three.a.weight", 1), GroupMember("head.weight", 1)),
        blocks=2,
    ),
    ChannelGroup("two", 8, produced("two.a", "two.a_norm"), (GroupMember("two.b.weight", 1),), blocks=2),
    ChannelGroup("three", 8, produced("three.a", "three.a_norm"), (GroupMember("three.b.weight", 1),), blocks=2),
)

NETWORKS = [(LeNet, LENET), (Vgg, VGG), (Residual, RESIDUAL)]
IDS = ["lenet", "vgg", "residual"]


def network(kind: type[nn.Module], seed: int) -> dict[str, np.ndarray]:
    """Arrays of a fresh network; norms differ from channel to channel."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    arrays = {name: array.detach().double().numpy().copy() for name, array in kind().state_dict().items()}
    return {name: array + 0.3 * rng.standard_normal(array.shape) * (array.ndim == 1) for name, array in arrays.items()}


def outputs(kind: type[nn.Module], arrays: dict[str, np.ndarray], seed: int = 0) -> np.ndarray:
    module = kind().double()
    module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((4, *kind.inputs)))
    with torch.no_grad():
        return module(x).numpy()


def drawn(groups: tuple[ChannelGroup, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random permutations that map blocks onto blocks."""
    result = {}
    for group in groups:
        block = group.size // group.blocks
        inner = np.array([rng.permutation(block) for _ in range(group.blocks)])
        result[group.name] = (rng.permutation(group.blocks)[:, None] * block + inner).ravel()
    return result


@pytest.mark.parametrize(("kind", "groups"), NETWORKS, ids=IDS)
def test_a_permuted_network_computes_the_same(kind: type[nn.Module], groups: tuple[ChannelGroup, ...]) -> None:
    for seed in range(5):
        arrays = network(kind, seed)
        permutations = drawn(groups, np.random.default_rng(seed))
        permuted = permute(arrays, groups, permutations)
        before = outputs(kind, arrays)
        assert any(not np.array_equal(permuted[name], arrays[name]) for name in arrays)
        np.testing.assert_allclose(outputs(kind, permuted), before, rtol=0, atol=1e-10)
        back = permute(permuted, groups, {name: np.argsort(order) for name, order in permutations.items()})
        assert all(np.array_equal(back[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize(("kind", "groups"), NETWORKS, ids=IDS)
def test_every_member_is_needed(kind: type[nn.Module], groups: tuple[ChannelGroup, ...]) -> None:
    arrays = network(kind, 3)
    before, permutations = outputs(kind, arrays), drawn(groups, np.random.default_rng(2))
    for i, group in enumerate(groups):
        if np.array_equal(permutations[group.name], np.arange(group.size)):
            continue
        for member in (*group.produced, *group.consumed):
            less = group._replace(
                produced=tuple(m for m in group.produced if m != member),
                consumed=tuple(m for m in group.consumed if m != member),
            )
            if not any(arrays[m.array].ndim > 1 for m in less.produced):
                continue
            permuted = permute(arrays, (*groups[:i], less, *groups[i + 1 :]), permutations)
            assert np.abs(outputs(kind, permuted) - before).max() > 1e-4, member


def test_blocks_of_a_norm_are_not_torn_apart() -> None:
    arrays = network(Vgg, 0)
    torn = {"first": np.array([0, 2, 1, 3, 4, 5, 6, 7])}
    with pytest.raises(ValueError, match="tears a block"):
        permute(arrays, VGG, torn)
    unaware = (VGG[0]._replace(blocks=1), VGG[1])
    assert np.abs(outputs(Vgg, permute(arrays, unaware, torn)) - outputs(Vgg, arrays)).max() > 1e-4


@pytest.mark.sampled(5)
@pytest.mark.parametrize("entropy", [0.0, 0.05])
@pytest.mark.parametrize(("kind", "groups"), NETWORKS, ids=IDS)
def test_alignment_undoes_a_permutation(kind: type[nn.Module], groups: tuple[ChannelGroup, ...], entropy: float) -> None:
    for seed in range(3 if entropy == 0.0 else 1):
        reference = network(kind, seed)
        permutations = drawn(groups, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        near = {
            name: array + 0.01 * np.abs(array).mean() * rng.standard_normal(array.shape) for name, array in reference.items()
        }
        aligned = align_filters(permute(near, groups, permutations), reference, groups, entropy)
        for name, order in permutations.items():
            np.testing.assert_array_equal(aligned.permutations[name], np.argsort(order))
        assert all(np.array_equal(aligned.arrays[name], near[name]) for name in near)
        displaced = sum(int(np.sum(order != np.arange(len(order)))) for order in permutations.values())
        assert aligned.moved == displaced / sum(group.size for group in groups) > 0.0


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "groups"), NETWORKS, ids=IDS)
def test_alignment_of_networks_that_have_nothing_in_common_keeps_their_function(
    kind: type[nn.Module], groups: tuple[ChannelGroup, ...]
) -> None:
    arrays = network(kind, 1)
    for entropy in (0.0, 0.05):
        aligned = align_filters(arrays, network(kind, 2), groups, entropy)
        assert aligned.moved > 0.3
        np.testing.assert_allclose(outputs(kind, aligned.arrays), outputs(kind, arrays), rtol=0, atol=1e-10)


def trained(kind: type[nn.Module], arrays: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Twenty steps of SGD on a site's own data: its own inputs, and labels from its own random rule."""
    torch.manual_seed(seed)
    module = kind().double()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    x = torch.randn(64, *kind.inputs, dtype=torch.float64) + seed
    y = torch.argmax(x.flatten(1) @ torch.randn(x[0].numel(), 4, dtype=torch.float64), dim=1)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return {name: array.detach().numpy().copy() for name, array in module.state_dict().items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "groups"), NETWORKS, ids=IDS)
def test_from_a_shared_start_nothing_moves(kind: type[nn.Module], groups: tuple[ChannelGroup, ...]) -> None:
    start = network(kind, 5)
    a, b = trained(kind, start, 1), trained(kind, start, 2)
    assert max(np.abs(a[name] - b[name]).max() for name in a) > 0.01
    for entropy in (0.0, 0.05):
        aligned = align_filters(b, a, groups, entropy)
        assert aligned.moved == 0.0
        assert all(np.array_equal(order, np.arange(len(order))) for order in aligned.permutations.values())
        average = weighted_mean([a, b], [3, 2])
        assert all(np.array_equal(average[name], array) for name, array in weighted_mean([a, aligned.arrays], [3, 2]).items())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet5", {}),
        ("vgg11", {"width": 0.125, "groups": 4, "hidden": 24}),
        pytest.param("vgg11", {"width": 0.25, "groups": 2, "hidden": 24}, marks=pytest.mark.system),
        ("resnet18", {"width": 0.125, "groups": 4}),
        pytest.param("resnet18", {"width": 0.25, "groups": 2}, marks=pytest.mark.system),
    ],
)
def test_the_named_networks_keep_their_function(name: str, options: dict[str, object], channels: int) -> None:
    """LeNet-5, VGG-11 and ResNet-18 after random permutations of all their groups, and after FOT undid them."""
    spec = ModelSpec(name=name, inputs=(channels, 16, 16), options=options)
    architecture = build_architecture(spec, channels * 256, 4)
    rng = np.random.default_rng(channels)
    arrays = {
        key: array + 0.3 * rng.standard_normal(array.shape) * (array.ndim == 1)
        for key, array in architecture.initial(1).items()
    }
    groups = architecture.channels()
    permutations = drawn(groups, rng)
    permuted = permute(arrays, groups, permutations)
    x = torch.from_numpy(rng.standard_normal((3, channels * 256)))

    def scores(values: dict[str, np.ndarray]) -> np.ndarray:
        module = architecture.module()
        module.load_state_dict({key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in values.items()})
        with torch.no_grad():
            return module(x).numpy()

    before = scores(arrays)
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(scores(permuted), before, rtol=0, atol=1e-10 * np.abs(before).max())
    aligned = align_filters(permuted, arrays, groups)
    assert all(np.array_equal(aligned.arrays[key], array) for key, array in arrays.items())
    other = align_filters(architecture.initial(2), arrays, groups)
    assert other.moved > 0.5
    np.testing.assert_allclose(scores(other.arrays), scores(architecture.initial(2)), rtol=0, atol=1e-10)
    kept = {group.name for group in convolutions(arrays, groups)}
    assert {group.name for group in groups} - kept == ({"fc1", "fc2"} if name != "resnet18" else set())
    assert {f"{layer}.weight" for layer in architecture.linear_layers()} <= arrays.keys()


@pytest.mark.parametrize("entropy", [0.0, 0.05])
@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_ties_move_nothing(entropy: float, blocks: int) -> None:
    """Filters of zeros, and filters that are alike but for rounding, which scales of their own bring about."""
    group = (ChannelGroup("all", 18, (GroupMember("w", 0),), (), blocks=blocks),)
    rng = np.random.default_rng(0)
    for weights in (np.zeros((18, 7)), np.ones((18, 7)), np.tile(rng.standard_normal((3, 7)), (6, 1))):
        for _ in range(4):
            ours, reference = (weights * rng.uniform(0.1, 9.0, (18, 1)) for _ in range(2))
            assert align_filters({"w": ours}, {"w": reference}, group, entropy).moved == 0.0


def normalised(weights: np.ndarray) -> np.ndarray:
    flat = weights.reshape(len(weights), -1)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 5), (2, 2), (2, 3), (3, 2), (5, 1)]), st.floats(1e-200, 1e200))
def test_no_permutation_of_blocks_is_cheaper(seed: int, sizes: tuple[int, int], scale: float) -> None:
    rng = np.random.default_rng(seed)
    blocks, block = sizes
    a, b = rng.standard_normal((2, blocks * block, 2, 3))
    bias = rng.standard_normal(len(a))
    group = (ChannelGroup("all", len(a), (GroupMember("w", 0), GroupMember("b", 0)), (), blocks=blocks),)
    aligned = align_filters({"w": scale * b, "b": bias}, {"w": a, "b": bias}, group)
    order = aligned.permutations["all"]
    np.testing.assert_array_equal(aligned.arrays["b"], bias[order])
    cost = ot.dist(normalised(a), normalised(b), metric="sqeuclidean")
    allowed = [
        np.concatenate([np.array(part) + block * to for part, to in zip(inner, outer, strict=True)])
        for outer in orders(range(blocks))
        for inner in _products(block, blocks)
    ]
    best = min(cost[np.arange(len(a)), one].sum() for one in allowed)
    assert any(np.array_equal(order, one) for one in allowed)
    assert cost[np.arange(len(a)), order].sum() <= best + 1e-7


def _products(block: int, blocks: int) -> list[tuple[tuple[int, ...], ...]]:
    result: list[tuple[tuple[int, ...], ...]] = [()]
    for _ in range(blocks):
        result = [(*one, order) for one in result for order in orders(range(block))]
    return result


@pytest.mark.parametrize("size", [1, 2, 20, 90])
def test_the_assignment_costs_what_optimal_transport_costs(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size, 9))
    group = (ChannelGroup("all", size, (GroupMember("w", 1),), ()),)
    cost = ot.dist(normalised(a), normalised(b), metric="sqeuclidean")
    share = np.full(size, 1.0 / size)
    best = ot.emd2(share, share, cost)
    for entropy, slack in ((0.0, 1e-8), (0.05, 0.1 * best + 1e-8)):
        order = align_filters({"w": b.T}, {"w": a.T}, group, entropy).permutations["all"]
        found = cost[np.arange(size), order].mean()
        assert best - 1e-8 <= found <= best + slack


def test_settled_weights_decide_first() -> None:
    """A stream that a layer with unsettled inputs also adds to is aligned by the layer that reads the data, in any order."""
    rng = np.random.default_rng(0)
    reference = {"stem": rng.standard_normal((6, 3)), "inner": rng.standard_normal((6, 6)), "out": rng.standard_normal((6, 6))}
    stream = ChannelGroup("stream", 6, (GroupMember("out", 0), GroupMember("stem", 0)), (GroupMember("inner", 1),))
    inner = ChannelGroup("inner", 6, (GroupMember("inner", 0),), (GroupMember("out", 1),))
    permutations = {"stream": rng.permutation(6), "inner": rng.permutation(6)}
    arrays = permute(reference, (stream, inner), permutations)
    for groups in ((stream, inner), (inner, stream)):
        aligned = align_filters(arrays, reference, groups)
        assert all(np.array_equal(aligned.arrays[name], reference[name]) for name in reference)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_a_gram_is_permuted_as_its_inputs(seed: int, size: int, repeat: int, appended: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (10, size * repeat)).astype(float)
    order = rng.permutation(size)
    moved = x[:, [c * repeat + i for c in order for i in range(repeat)]]
    if appended:
        x, moved = (np.column_stack([item, np.ones(10)]) for item in (x, moved))
    np.testing.assert_array_equal(permute_gram(x.T @ x, GroupMember("w", 1, repeat), order), moved.T @ moved)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_weighted_mean_is_numpys(seed: int, stations: int) -> None:
    rng = np.random.default_rng(seed)
    models = [{"w": rng.standard_normal((3, 2, 2)), "b": rng.standard_normal(3)} for _ in range(stations)]
    counts = rng.integers(1, 9, stations).astype(float)
    mean = weighted_mean(models, counts.tolist())
    for name in ("w", "b"):
        expected = np.average([model[name] for model in models], axis=0, weights=counts)
        np.testing.assert_allclose(mean[name], expected, rtol=1e-12, atol=1e-14)


def test_what_does_not_fit_is_refused() -> None:
    arrays = network(LeNet, 0)
    first = LENET[0]
    wrong = [
        ((first, first), "must differ"),
        ((first._replace(blocks=2),), "do not divide"),
        ((first._replace(consumed=(GroupMember("third.weight", 1),)),), "does not exist"),
        ((first._replace(consumed=(GroupMember("second.weight", 0),)),), "does not hold 5 channels"),
        ((first._replace(consumed=(GroupMember("second.weight", 4),)),), "does not hold 5 channels"),
        ((first._replace(consumed=(GroupMember("second.weight", 1, 2),)),), "does not hold 5 channels of 2"),
        ((first._replace(consumed=(GroupMember("second.weight", 1),) * 2),), "named twice"),
        ((first, LENET[1]._replace(size=5, produced=(GroupMember("first.weight", 0),), consumed=())), "named twice"),
        ((first._replace(produced=(GroupMember("first.bias", 0),)),), "no weights"),
    ]
    for groups, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            check_groups(arrays, groups)
        with pytest.raises(ValueError, match=reason):
            align_filters(arrays, arrays, groups)
    for permutation in ([0, 1, 2, 3, 3], [0, 1, 2, 3, 5], [-1, 0, 1, 2, 3]):
        with pytest.raises(ValueError, match="not a permutation"):
            permute(arrays, LENET, {"first": np.array(permutation)})
    with pytest.raises(ValueError, match="does not fit"):
        permute(arrays, LENET, {"first": np.arange(4)})
    with pytest.raises(ValueError, match="unknown"):
        permute(arrays, LENET, {"last": np.arange(4)})
    with pytest.raises(ValueError, match="not a permutation"):
        places(np.zeros((2, 2), dtype=np.intp), 1)
    with pytest.raises(ValueError, match="not finite"):
        align_filters({**arrays, "first.weight": np.full_like(arrays["first.weight"], np.nan)}, arrays, LENET)
    with pytest.raises(ValueError, match="entropy"):
        align_filters(arrays, arrays, LENET, -1.0)
    with pytest.raises(ValueError, match="Gram"):
        permute_gram(np.eye(5), GroupMember("w", 1, 2), np.arange(3))
    with pytest.raises(ValueError, match="Gram"):
        permute_gram(np.ones((6, 7)), GroupMember("w", 1, 2), np.arange(3))
    for models, counts in (([], []), ([arrays], [0.0]), ([arrays], [1.0, 1.0]), ([arrays], [float("nan")])):
        with pytest.raises(ValueError, match="counts"):
            weighted_mean(models, counts)
    with pytest.raises(ValueError, match="architectures"):
        weighted_mean([arrays, network(Vgg, 0)], [1, 1])
