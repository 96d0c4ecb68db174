"""Released models by their digest: a result whose classifier a later study evaluates (the method "federated-evaluation").

A study names architecture and digest; the coordinator finds the arrays among its results, the checkpoints included, and every
round broadcasts them, as it does a released projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from veilsum_coordinator.results.projections import find_projection, result_projection
from veilsum_node.errors import HostileInput, Misuse, StateError, VeilsumError
from veilsum_privacy.results.result import MANIFEST, Result, load_result
from veilsum_privacy.study.encoder import Encoder, Program
from veilsum_privacy.study.schema import Column
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.evaluation import Evaluation, EvaluationParameters
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.discriminants import CENTRE
from veilsum_privacy.training.released import model_digest

Floats = NDArray[np.float64]

_AGAIN = "Fetch the result again."


@dataclass(frozen=True)
class ReleasedModel:
    """A classifier as an evaluation takes it.

    Attributes:
        model: with every option stated.
        sha256: :func:`veilsum_privacy.training.released.model_digest`.
        classes: in the order of the scores.
        missing: the missing rule.
        columns: that it reads.
        encoder: what makes its features of them; None for the columns themselves.
        arrays: by their names in a broadcast.
    """

    model: ModelSpec
    sha256: str
    classes: tuple[str, ...]
    missing: str
    columns: tuple[Column, ...]
    encoder: Encoder | None
    arrays: Mapping[str, Floats]


def result_model(result: Result) -> ReleasedModel:
    """The classifier that a result released.

    Raises:
        Misuse: the result holds none, or one that each site applies in its own way.
        HostileInput: the result is malformed.
    """
    told = result.application
    if not isinstance(told, Mapping) or not isinstance(told.get("head"), Mapping):
        older = "Run its study again, or ask the method statistics about its `score`, by kind discrimination or linear."
        advice = older if "score" in result.summary else "Name a result that does."
        raise Misuse(f"The result of {result.method} holds no classifier.", advice)
    if told.get("outcome") is not None:
        raise Misuse(
            f"The result of {result.method} predicts an outcome by a model that is no formula of columns.",
            "Evaluate a linear model, or compare predictions of `veilsum participant apply` with the column.",
        )
    if told.get("alignment") is not None:
        raise Misuse(
            "The result aligns features at each site; a federated evaluation has no alignment.",
            "Measure it at each site with `veilsum participant evaluate`.",
        )
    try:
        columns = TypeAdapter(tuple[Column, ...]).validate_python(told["features"])
        classes, missing = tuple(str(name) for name in told["classes"]), str(told["missing_rule"])
        if len(classes) < 2:
            raise ValueError("a classifier tells two classes apart, or more")
        spec, arrays = _head(told["head"], result.arrays)
        encoder = _encoder(told.get("encoder"), result)
        width = sum(column.width for column in columns) if encoder is None else encoder.width
        spec = resolve_model(spec)
        architecture = build_architecture(spec, width, len(classes), trained=False)
        sha256 = model_digest(architecture, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise HostileInput("The result's application is malformed.", _AGAIN) from error
    named = {name: arrays[name] for name in architecture.shapes()}
    return ReleasedModel(spec, sha256, classes, missing, columns, encoder, to_broadcast(named))


def result_prediction(result: Result) -> dict[str, Any] | None:
    """What a result predicts by a formula of columns, as parameters of an evaluation; None where it holds no such formula.

    Raises:
        Misuse: its model was not estimable, so that it predicts nothing.
    """
    about = result.summary.get("prediction")
    if not isinstance(about, Mapping):
        return None
    score = result.summary.get("score")
    if not isinstance(score, list) or len(score) != 1 or not isinstance(score[0], Mapping):
        raise Misuse(
            f"The result of {result.method} predicts nothing.", "Its terms explain nothing, or are too many to write down."
        )
    return {**about, **{name: score[0].get(name) for name in ("number", "low", "high")}}


def find_released(results: Path, study: Study) -> Mapping[str, Floats]:
    """The arrays that every round of a study broadcasts: of its projection, and of the model that it evaluates.

    Args:
        results: the folder of all results.

    Raises:
        StateError: no result in the folder released what the study names.
    """
    found = dict(find_projection(results, study.encoder))
    for declaration in study.tasks:
        if declaration.task == Evaluation.name:
            wanted = EvaluationParameters.model_validate(dict(declaration.parameters))
            found |= _find_model(results, wanted)
    return found


def _find_model(results: Path, wanted: EvaluationParameters) -> Mapping[str, Floats]:
    for directory in _bundles(results):
        try:
            released = result_model(load_result(directory))
        except VeilsumError:
            continue
        if released.sha256 == wanted.sha256:
            return released.arrays
    raise StateError(
        "No result at this coordinator released the model that the study names.",
        "Run the study that releases it at this coordinator first, and keep its result.",
    )


def _bundles(results: Path) -> Iterator[Path]:
    """Directories of results, then of their checkpoints, from the newest."""
    for pattern in (f"*/{MANIFEST}", f"*/checkpoints/*/{MANIFEST}"):
        yield from (path.parent for path in sorted(results.glob(pattern), reverse=True))


def _head(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[ModelSpec, dict[str, Floats]]:
    """A head as a named model: affine layers are a linear model or a perceptron with one hidden layer."""
    if head["kind"] == "network":
        prefix = str(head["prefix"])
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        return ModelSpec.model_validate(head["model"]), {name: _real(array) for name, array in own.items()}
    layers = [(head["weights"], head["bias"])] if head["kind"] == "linear" else list(head["layers"])
    if head["kind"] not in ("linear", "mlp") or not 1 <= len(layers) <= 2:
        raise Misuse("The result's classifier has more than one hidden layer.", "Name it as a network in the result.")
    taken = [(_real(arrays[weight]), _real(arrays[bias])) for weight, bias in layers]
    last = {"head.weight": taken[-1][0], "head.bias": taken[-1][1]}
    if len(taken) == 1 and head.get("clip") is not None:
        named = {CENTRE: _real(arrays[head["centre"]]), **last}
        return ModelSpec(name="discriminant", options={"clip": float(head["clip"])}), named
    if len(taken) == 1:
        return ModelSpec(name="linear", options={"scale": 1.0, "bias": 1.0}), last
    hidden = {"features.hidden.weight": taken[0][0], "features.hidden.bias": taken[0][1]}
    return ModelSpec(name="mlp", options={"hidden": len(taken[0][0]), "scale": 1.0}), {**hidden, **last}


def _real(array: NDArray[Any]) -> Floats:
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise HostileInput("The result's model holds a value that is not a finite real number.", _AGAIN)
    return array.astype(np.float64)


def _encoder(told: Mapping[str, Any] | None, result: Result) -> Encoder | None:
    if told is None:
        return None
    if told["kind"] == "projection":
        return result_projection(result)[0]
    return Program.model_validate(dict(told))
