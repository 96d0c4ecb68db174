"""A released model as an ONNX file: from columns in their own units to classes, numbers or features, for other runtimes.

Inputs are ``numbers`` (n, p), float64, and ``categories`` (n, q), texts as the schema has them; either is left out where there
are no such columns. NaN, and any other text, is missing. Numbers are float64, as frames hold them, and scaled as at the sites:
in float32 a value such as 0.7 could come to lie on the other side of a tree's split. Heads and networks compute in float32.

Outputs of a classifier are ``label`` (n,), ``probabilities`` and ``scores`` (n, K); of an outcome's model ``prediction`` (n,),
float64, in the column's unit or the probability of the event by the horizon; without a head ``features`` (n, m). A record that
the study's rule for missing values leaves out has the label "" and NaN.

Graphs are written operator by operator for opset 17 and ai.onnx.ml 3, of 2022, so that older runtimes read them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from veilsum.onnx_graph import Graph
from veilsum.onnx_networks import write_network
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import ConfigurationError, Misuse, Unavailable
from veilsum_node.file_names import write_files
from veilsum_node.process.software import installed_version
from veilsum_participant.applying.heads import LinearArrays, MlpHead
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.recipe import Maps, OutcomeForm, ProjectionArrays
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.training.losses import LARGEST_EXPONENT

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

    Raises:
        StateError: another file is there, and ``replace`` is not set.
        Unavailable: the file cannot be written.
    """
    data = onnx_bytes(model, about, site=site, from_features=from_features)
    if not path.parent.is_dir():
        raise Unavailable(f"{path} cannot be written: there is no folder {path.parent}.", "Make it, or name another.")
    return write_files(path.parent, {path.name: data}, replace=replace)[0]


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
        model: of a result.
        about: what the file's metadata say of the study, under ``veilsum.`` and the key; None is left out.
        site: whose alignment is applied, of a result with one for each site.
        from_features: whether the graph begins behind the encoder, with ``features`` (n, m) in place of columns.

    Raises:
        ConfigurationError: the package onnx is not installed.
        Misuse: a step has no form in ONNX: a frozen program, an alignment that a site makes of what it keeps, or a layer of a
            model that a package brings. The message says what to do.
    """
    try:
        import onnx
    except ImportError as error:
        raise ConfigurationError("ONNX files need the package onnx.", "pip install veilsum[onnx]") from error
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
    if (alignment := model.recipe.alignment) is not None:
        if not isinstance(alignment, Maps):
            raise Misuse(
                "This result is aligned by what each site keeps to itself, which no file holds.",
                "Apply it at a site that took part: `veilsum participant apply`.",
            )
        place = _place(alignment, site)
        x = graph.affine(graph.single(x), model.arrays[alignment.matrix][place], model.arrays[alignment.offset][place])
        told["site"] = site
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
    if isinstance(head, LinearArrays):
        scores = graph.affine(graph.single(x), model.arrays[head.weights], model.arrays[head.bias])
    elif isinstance(head, MlpHead):
        scores = graph.single(x)
        for index, (weight, bias) in enumerate(head.layers):
            scores = graph.node("Relu", scores) if index else scores
            scores = graph.affine(scores, model.arrays[weight], model.arrays[bias])
    else:
        scores = write_network(graph, head, model, x, count)
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
