"""A released model as an ONNX file: from columns in their own units to classes, numbers or features, for other runtimes.

Inputs are ``numbers`` (n, p), float64, and ``categories`` (n, q), texts as the schema has them; either is left out where there
are no such columns. NaN, and any other text, is missing. Numbers are float64, as frames hold them, and scaled as at the sites:
in float32 a value such as 0.7 could come to lie on the other side of a tree's split. Heads and networks compute in float32.

Outputs of a classifier are ``label`` (n,), ``probabilities`` and ``scores`` (n, K); of an outcome's model ``prediction`` (n,),
float64, in the column's unit or the probability of the event by the horizon; without a head ``features`` (n, m). A record that
the study's rule for missing values leaves out has the label "" and NaN.

Graphs are written operator by operator for opset 17 and ai.onnx.ml 3, of 2022, so that older runtimes read them too.

Networks and boosted trees as operators of ONNX (:mod:`.onnx_model`); a layer of an unknown kind is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum.onnx_graph import Graph
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import ConfigurationError, Misuse, Unavailable, raising
from veilsum_node.file_names import write_files
from veilsum_node.process.software import install_extra, installed_version
from veilsum_participant.applying.heads import Head, LinearArrays, MlpHead, NetworkHead, PersonalHead
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.recipe import Maps, OutcomeForm, ProjectionArrays
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import RandomFeatures
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.tasks.feature_maps import height, waves
from veilsum_privacy.training.losses import LARGEST_EXPONENT
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees

if TYPE_CHECKING:
    from torch import nn

    from veilsum_privacy.training.models.networks import Residual

OPSET, TREES, IR = 17, 3, 8
"""Versions of the operators, of those of ai.onnx.ml, and of the file's form."""


def write_onnx(
    model: Model,
    path: Path,
    about: Mapping[str, Any],
    *,
    site: str | None = None,
    from_features: bool = False,
    replace: bool = False,
) -> Path:
    """Write a model; arguments and errors as of :func:`onnx_bytes`. The folder must be there.

    Only the owner can read the file of a site's own model.

    Raises:
        StateError: another file is there, and ``replace`` is not set.
        Unavailable: the file cannot be written.
    """
    data = onnx_bytes(model, about, site=site, from_features=from_features)
    if not path.parent.is_dir():
        raise Unavailable(f"{path} cannot be written: the folder {path.parent} does not exist.", "Make it, or name another.")
    return write_files(path.parent, {path.name: data}, replace=replace, confidential=model.holds_own)[0]


def exported_model(result: Result) -> Model:
    """The model of a result, also where its frozen program is not at hand.

    Raises:
        Misuse: the result holds none.
    """
    return Model.from_result(result, _outside)


def _outside(values: Floats) -> Floats:
    raise Misuse("A model that was opened for export is not applied.", "Open it with its encoder's file.")


def onnx_bytes(model: Model, about: Mapping[str, Any], *, site: str | None = None, from_features: bool = False) -> bytes:
    """A model as the bytes of an ONNX file.

    Args:
        about: what the file's metadata say of the study, under ``veilsum.`` and the key; None is left out.
        site: whose alignment is applied, of a result with one for each site.
        from_features: whether the graph begins behind the encoder, with ``features`` (n, m) in place of columns.

    Raises:
        ConfigurationError: the package onnx is not installed.
        Misuse: a step has no form in ONNX: a frozen program, an alignment that a site makes of what it keeps, or a layer of a
            model that a package brings. The message says what to do.
    """
    with raising(ConfigurationError("ONNX files need the package onnx.", install_extra("onnx")), on=ImportError):
        import onnx
    graph, told = Graph(), dict(about)
    whole: str | None
    if from_features and model.recipe.head is None:
        raise Misuse("This result has no head that takes features.", "Export it without from_features.")
    if from_features:
        x, whole = graph.features(model.width)
    elif model.program is not None:
        raise Misuse(
            "This result's features are made by a frozen program, which is a file of its own and not part of it.",
            "Export what comes behind it, with from_features=True or --from-features, and feed it the program's outputs.",
        )
    else:
        x, whole = graph.columns(model.schema, skip=model.recipe.missing_rule == "skip")
        told |= _columns(model.schema)
        if isinstance(encoder := model.recipe.encoder, ProjectionArrays):
            x = graph.affine(graph.single(x), model.arrays[encoder.matrix], model.arrays[encoder.offset])
        elif isinstance(encoder, RandomFeatures):
            cosines = graph.node("Cos", graph.affine(graph.single(x), *waves(encoder)))
            x = graph.node("Mul", cosines, graph.constant(np.float32(height(encoder))))
    if (alignment := model.recipe.alignment) is not None:
        if alignment.moments is not None or not (isinstance(alignment, Maps) or alignment.own):
            raise Misuse(
                "This result is aligned by what each site keeps to itself, which no file holds.",
                "Apply it at a site that took part: `veilsum participant apply`.",
            )
        if isinstance(alignment, Maps):
            place, told["site"] = _place(alignment, site), site
            pair = model.arrays[alignment.matrix][place], model.arrays[alignment.offset][place]
        else:
            pair = model.arrays[alignment.own["matrix"]], model.arrays[alignment.own["offset"]]
        x = graph.affine(graph.single(x), *pair)
    _outputs(graph, model, x, whole)
    told["classes"] = json.dumps(model.classes, ensure_ascii=False) if model.classes else None
    if (outcome := model.recipe.outcome) is not None:
        told |= {"outcome": outcome.column, "outcome_unit": outcome.unit or None, "loss": outcome.loss}
    made = onnx.helper.make_model(
        graph.build(),
        opset_imports=[onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ai.onnx.ml", TREES)],
        ir_version=IR,
        producer_name="veilsum",
        producer_version=installed_version(),
    )
    onnx.helper.set_model_props(made, {f"veilsum.{key}": str(value) for key, value in told.items() if value is not None})
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString(deterministic=True))


def _columns(schema: DatasetSchema) -> dict[str, str]:
    """Names of the inputs' columns, in order, and the texts that each category knows."""
    numbers = [column.name for column in schema.columns if not isinstance(column, CategoryColumn)]
    known = {column.name: column.categories for column in schema.columns if isinstance(column, CategoryColumn)}
    return {"numbers": json.dumps(numbers, ensure_ascii=False), "categories": json.dumps(known, ensure_ascii=False)}


def _place(alignment: Maps, site: str | None) -> int:
    if site not in alignment.sites:
        raise Misuse("This result aligns the features of each site.", f"Name one: {', '.join(alignment.sites[:20])}.")
    return alignment.sites.index(site)


def _outputs(graph: Graph, model: Model, x: str, whole: str | None) -> None:
    """The head, and what is told of its scores; ``whole`` (n, 1) says which records have any, None for all."""
    recipe = model.recipe
    head, count = recipe.head, recipe.scores
    if head is None:
        graph.output("features", graph.known(whole, graph.single(x)), "FLOAT", model.width)
        return
    scores = _scores(graph, model, head, x, count)
    if recipe.outcome is not None:
        found = _estimates(graph, recipe.outcome, graph.node("Cast", scores, to=graph.type("DOUBLE")))
        found = graph.known(whole, found, np.float64)
        graph.output("prediction", graph.node("Squeeze", found, graph.constant(np.array([1]))), "DOUBLE")
        return
    best = graph.node("ArgMax", scores, axis=1, keepdims=0)
    label = graph.node("Gather", graph.constant(np.array(model.classes, dtype=object)), best)
    if whole is not None:
        kept = graph.node("Squeeze", whole, graph.constant(np.array([1])))
        label = graph.node("Where", kept, label, graph.constant(np.array([""], dtype=object)))
    graph.output("label", label, "STRING")
    graph.output("probabilities", graph.known(whole, graph.node("Softmax", scores, axis=1)), "FLOAT", count)
    graph.output("scores", graph.known(whole, scores), "FLOAT", count)


def _scores(graph: Graph, model: Model, head: Head, x: str, count: int) -> str:
    """Scores (n, ``count``) of a head."""
    if isinstance(head, PersonalHead):
        released = graph.node("Mul", _scores(graph, model, head.released, x, count), graph.constant(np.float32(head.scale)))
        own = graph.affine(graph.single(x), model.arrays[head.weights], model.arrays[head.bias])
        return graph.node("Add", released, own)
    if isinstance(head, LinearArrays):
        taken = graph.single(x) if head.centre is None else _clipped_about(graph, x, model.arrays[head.centre], head.clip)
        return graph.affine(taken, model.arrays[head.weights], model.arrays[head.bias])
    if isinstance(head, MlpHead):
        scores = graph.single(x)
        for index, (weight, bias) in enumerate(head.layers):
            scores = graph.node("Relu", scores) if index else scores
            scores = graph.affine(scores, model.arrays[weight], model.arrays[bias])
        return scores
    return write_network(graph, head, model, x, count)


def _clipped_about(graph: Graph, x: str, centre: Floats, clip: float | None) -> str:
    """Features less a centre, scaled down to an L2 norm of ``clip`` (:func:`.predict.clipped_about`)."""
    moved = graph.node("Sub", graph.single(x), graph.constant(centre.astype(np.float32)))
    most = graph.constant(np.array([[clip]], dtype=np.float32))
    norms = graph.node("ReduceL2", moved, axes=[1], keepdims=1)
    return graph.node("Mul", moved, graph.node("Div", most, graph.node("Max", norms, most)))


def _estimates(graph: Graph, outcome: OutcomeForm, scores: str) -> str:
    """:meth:`OutcomeForm.estimates`, (n, 1), of float64 scores."""
    low, half = np.float64(outcome.low), np.float64(outcome.high / 2.0 - outcome.low / 2.0)
    if outcome.loss in ("squared", "huber"):
        bounded = graph.node("Clip", scores, graph.constant(np.float64(-1.0)), graph.constant(np.float64(1.0)))
        above = graph.node("Mul", graph.node("Add", bounded, graph.constant(np.float64(1.0))), graph.constant(half))
        return graph.node("Add", above, graph.constant(low))
    rates = graph.node("Exp", graph.node("Min", scores, graph.constant(np.float64(LARGEST_EXPONENT))))
    if outcome.loss == "poisson":
        means = graph.node("Mul", rates, graph.constant(half))
        return means if outcome.most is None else graph.node("Min", means, graph.constant(np.float64(outcome.most)))
    lengths = np.diff([0.0, *outcome.cuts, outcome.high]) / outcome.high
    hazard = graph.node("MatMul", rates, graph.constant(lengths[:, None]))
    return graph.node("Sub", graph.constant(np.float64(1.0)), graph.node("Exp", graph.node("Neg", hazard)))


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
