"""Networks and boosted trees as operators of ONNX (:mod:`.onnx_model`); a layer of an unknown kind is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum.onnx_graph import Graph
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_participant.applying.heads import NetworkHead
from veilsum_participant.applying.model import Model
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees

if TYPE_CHECKING:
    from torch import nn

    from veilsum_privacy.training.models.networks import Residual


def write_network(graph: Graph, head: NetworkHead, model: Model, x: str, count: int) -> str:
    """Scores (n, ``count``) of features ``x`` (n, m), by the network or the trees of a model.

    Raises:
        Misuse: a layer, or an option of one, is not written here.
    """
    architecture = head.architecture(model.width, count)
    own = {name.removeprefix(head.prefix): value for name, value in model.arrays.items() if name.startswith(head.prefix)}
    if isinstance(architecture, Trees):
        return _trees(graph, own, x, count)
    from veilsum_privacy.training.arrays import load

    module = architecture.module()
    load(module, own)
    return _layer(graph, module, graph.single(x))


def _trees(graph: Graph, arrays: Mapping[str, Floats], x: str, count: int) -> str:
    """Sums of leaves, (n, K): features are compared in float64, as thresholds are; of two classes the first scores 0."""
    features, thresholds, leaves = (arrays[name] for name in (FEATURES, THRESHOLDS, LEAVES))
    trees, inner = features.shape
    nodes, scored = 2 * inner + 1, 1 if leaves.ndim == 2 else leaves.shape[2]
    each, ends = np.arange(nodes), np.zeros((trees, inner + 1))
    below = np.minimum(2 * each, nodes - 2) * (each < inner)  # leaves lead nowhere
    sums = graph.node(
        "TreeEnsembleRegressor",
        x,
        domain="ai.onnx.ml",
        n_targets=scored,
        aggregate_function="SUM",
        base_values_as_tensor=graph.tensor(arrays[BASE].astype(np.float64)),
        nodes_treeids=np.repeat(np.arange(trees), nodes).tolist(),
        nodes_nodeids=np.tile(each, trees).tolist(),
        nodes_modes=(["BRANCH_LT"] * inner + ["LEAF"] * (inner + 1)) * trees,
        nodes_featureids=np.hstack([np.rint(features), ends]).astype(np.int64).ravel().tolist(),
        nodes_values_as_tensor=graph.tensor(np.hstack([thresholds, ends]).ravel()),
        nodes_truenodeids=np.tile(below + (each < inner), trees).tolist(),
        nodes_falsenodeids=np.tile(below + 2 * (each < inner), trees).tolist(),
        target_treeids=np.repeat(np.arange(trees), (inner + 1) * scored).tolist(),
        target_nodeids=np.tile(np.repeat(each[inner:], scored), trees).tolist(),
        target_ids=np.tile(np.arange(scored), trees * (inner + 1)).tolist(),
        target_weights_as_tensor=graph.tensor(leaves.ravel().astype(np.float64)),
    )
    if count != 2 or scored == 2:
        return sums
    return graph.node("Concat", graph.node("Mul", sums, graph.constant(np.float32(0.0))), sums, axis=1)


def _layer(graph: Graph, layer: nn.Module, x: str) -> str:
    """A layer and what is inside of it, by its own type: a subclass may compute something else."""
    write = _writers().get(type(layer))
    if write is None:
        raise Misuse(
            f"The model's network has a layer {type(layer).__name__}, which is not written as ONNX here.",
            "Build the network with the installed package, load the result's arrays, and use torch.onnx.export.",
        )
    return write(graph, layer, x)


def _writers() -> dict[type[Any], Callable[[Graph, Any, str], str]]:
    from torch import nn

    from veilsum_privacy.training.models import networks

    plain = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid", nn.Identity: "Identity"}
    return {
        **{kind: _elementwise(name) for kind, name in plain.items()},
        networks.Network: lambda graph, layer, x: _layer(graph, layer.head, _layer(graph, layer.features, x)),
        nn.Sequential: _sequential,
        nn.Linear: lambda graph, layer, x: graph.affine(x, _values(layer.weight), _bias(layer)),
        networks.ScaledBias: lambda graph, layer, x: graph.affine(x, _values(layer.weight), layer.constant * _bias(layer)),
        networks.Scale: lambda graph, layer, x: graph.node("Mul", x, graph.constant(np.float32(layer.scale))),
        networks.Reshape: lambda graph, layer, x: graph.node("Reshape", x, graph.constant(np.array([-1, *layer.shape]))),
        networks.Residual: _residual,
        nn.Flatten: lambda graph, layer, x: graph.node("Flatten", x, axis=_asked(layer.start_dim, 1)),
        nn.Conv2d: _convolution,
        nn.GroupNorm: _group_norm,
        nn.MaxPool2d: _pool,
        nn.AdaptiveAvgPool2d: _average,
    }


def _elementwise(name: str) -> Callable[[Graph, Any, str], str]:
    return lambda graph, layer, x: graph.node(name, x)


def _sequential(graph: Graph, layers: Any, x: str) -> str:
    for layer in layers:
        x = _layer(graph, layer, x)
    return x


def _residual(graph: Graph, block: Residual, x: str) -> str:
    inner = graph.node("Relu", _layer(graph, block.norm1, _layer(graph, block.conv1, x)))
    inner = _layer(graph, block.norm2, _layer(graph, block.conv2, inner))
    beside = x if block.straight else _layer(graph, block.shortcut_norm, _layer(graph, block.shortcut, x))
    return graph.node("Relu", graph.node("Add", inner, beside))


def _convolution(graph: Graph, layer: Any, x: str) -> str:
    given = [x, graph.constant(_values(layer.weight).astype(np.float32))]
    if layer.bias is not None:
        given.append(graph.constant(_values(layer.bias).astype(np.float32)))
    _asked(layer.padding_mode, "zeros")
    pads = [*_pair(layer.padding), *_pair(layer.padding)]
    return graph.node(
        "Conv", *given, group=layer.groups, strides=layer.stride, dilations=layer.dilation, pads=pads,
        kernel_shape=layer.kernel_size,
    )  # fmt: skip


def _group_norm(graph: Graph, layer: Any, x: str) -> str:
    """(n, channels, ...) normalised over each group: an InstanceNormalization of the groups, which opset 17 has."""
    ones, groups = np.ones(layer.num_groups, dtype=np.float32), layer.num_groups
    grouped = graph.node("Reshape", x, graph.constant(np.array([0, groups, -1])))
    plain = graph.node(
        "InstanceNormalization", grouped, graph.constant(ones), graph.constant(0.0 * ones), epsilon=float(layer.eps)
    )
    normed = graph.node("Reshape", plain, graph.node("Shape", x))
    if not layer.affine:
        return normed
    shape = (-1, 1, 1)  # of an image's channels
    weight, bias = (graph.constant(_values(value).reshape(shape).astype(np.float32)) for value in (layer.weight, layer.bias))
    return graph.node("Add", graph.node("Mul", normed, weight), bias)


def _pool(graph: Graph, layer: Any, x: str) -> str:
    _asked((layer.ceil_mode, layer.return_indices), (False, False))
    size, stride, pad = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
    return graph.node("MaxPool", x, kernel_shape=size, strides=stride, pads=[*pad, *pad], dilations=_pair(layer.dilation))


def _average(graph: Graph, layer: Any, x: str) -> str:
    _asked(_pair(layer.output_size), [1, 1])
    return graph.node("GlobalAveragePool", x)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _asked(value: Any, only: Any) -> Any:
    """An option of a layer, of which one value alone is written here."""
    if value != only:
        raise Misuse(
            f"A layer of the model's network has an option {value!r}, of which only {only!r} is written as ONNX here.",
            "Build the network with the installed package, load the result's arrays, and use torch.onnx.export.",
        )
    return value


def _values(parameter: Any) -> Floats:
    found: Floats = parameter.detach().double().numpy()
    return found


def _bias(layer: Any) -> Floats:
    return np.zeros(layer.out_features) if layer.bias is None else _values(layer.bias)
