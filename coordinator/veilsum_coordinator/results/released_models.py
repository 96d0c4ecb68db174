"""Released models by their digest: a result whose model a later study evaluates (the method "federated-evaluation").

A study names architecture and digest; the coordinator finds the arrays among its results, the checkpoints included, and every
round broadcasts them, as it does a released projection.

Released projections by their digest: a result whose arrays encode the records of later studies (the method "pca").
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.outcomes import PREDICTION, SCORE, predictor_bounds, predicts
from veilsum_coordinator.parts.predictions import Prediction, Predictor
from veilsum_node.errors import HostileInput, Misuse, StateError, VeilsumError, raising
from veilsum_privacy.results.result import MANIFEST, Result, load_result
from veilsum_privacy.study.encoder import Encoder, Program, Projection, RandomFeatures
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import CategoryColumn, Column, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.discriminants import CENTRE
from veilsum_privacy.training.released import model_digest

_AGAIN = "Fetch the result again."


@dataclass(frozen=True)
class ReleasedModel:
    """A classifier as an evaluation takes it.

    Attributes:
        model: with every option stated.
        sha256: :func:`veilsum_privacy.training.released.model_digest`.
        classes: in the order of the scores.
        missing: the missing rule.
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
            f"The result of {result.method} predicts an outcome and tells no classes apart.", "Evaluate its prediction."
        )
    if told.get("alignment") is not None:
        raise Misuse(
            "The result aligns features at each site; a federated evaluation has no alignment.",
            "Measure it at each site with `veilsum participant evaluate`.",
        )
    with raising(HostileInput("The result's application is malformed.", _AGAIN), on=(KeyError, TypeError, ValueError)):
        columns = TypeAdapter(tuple[Column, ...]).validate_python(told["features"])
        classes, missing = tuple(str(name) for name in told["classes"]), str(told["missing_rule"])
        if len(classes) < 2:
            raise ValueError("a classifier tells two classes apart, or more")
        encoder = _encoder(told.get("encoder"), result)
        width = sum(column.width for column in columns) if encoder is None else encoder.width
        spec, architecture, arrays = _built(told["head"], result.arrays, width, len(classes))
        sha256 = model_digest(architecture, arrays)
    return ReleasedModel(spec, sha256, classes, missing, columns, encoder, to_broadcast(arrays))


@dataclass(frozen=True)
class ReleasedPredictor:
    """A model of an outcome as an evaluation takes it.

    Attributes:
        prediction: parameters of the evaluation (:class:`veilsum_coordinator.parts.predictions.Prediction`).
        bounds: of the outcome's column, in which the model's scores are scaled.
        arrays: by their names in a broadcast.
    """

    prediction: Prediction
    columns: tuple[Column, ...]
    bounds: tuple[float, float]
    arrays: Mapping[str, Floats]

    def fits(self, schema: DatasetSchema) -> bool:
        """Whether the model reads a schema's columns but its outcome's, and the outcome is in the bounds that it knows.

        Raises:
            Misuse: the schema has no such outcome.
        """
        outcome = self.prediction.of_model()
        outcome.check(schema)
        number = outcome.number(schema)
        return outcome.features(schema).columns == self.columns and (number.low, number.high) == self.bounds


def result_predictor(result: Result) -> ReleasedPredictor | None:
    """The model of an outcome that a result released; None where it released none.

    Raises:
        Misuse: the model predicts the same for every record, or has more than one hidden layer.
        HostileInput: the result is malformed.
    """
    told = result.application
    if not isinstance(told, Mapping) or not told.get("head") or not told.get("outcome"):
        return None
    with raising(HostileInput("The result's application is malformed.", _AGAIN), on=(KeyError, TypeError, ValueError)):
        about = dict(told["outcome"])
        columns = TypeAdapter(tuple[Column, ...]).validate_python(told["features"])
        low, high, most = float(about.pop("low")), float(about.pop("high")), about.pop("most", None)
        outcome = Outcome.model_validate({name: value for name, value in about.items() if name != "unit"})
        schema = _read_schema(columns, outcome, low, high)
        outcome.check(schema)
        width, scores = sum(column.width for column in columns), outcome.build(schema).scores
        spec, architecture, arrays = _built(told["head"], result.arrays, width, scores)
        by = Predictor(
            model=spec, sha256=model_digest(architecture, arrays), missing=told["missing_rule"], most=most, cuts=outcome.cuts
        )
        ends = _score_bounds(result) or predictor_bounds(outcome, schema, architecture, arrays, most=most)
        prediction = Prediction.model_validate({**predicts(outcome), "low": ends[0], "high": ends[1], "by": by})
    return ReleasedPredictor(prediction, columns, (low, high), to_broadcast(arrays))


def _read_schema(columns: tuple[Column, ...], outcome: Outcome, low: float, high: float) -> DatasetSchema:
    """A schema of the model's columns and its outcome's; of an event only its levels that are known."""
    own: list[Column] = [*columns, NumberColumn(name=outcome.column, low=low, high=high)]
    if outcome.event is not None:
        own.append(CategoryColumn(name=outcome.event, categories=(*outcome.censored, "event")))
    return DatasetSchema(columns=tuple(own), max_records=1)


def _score(result: Result) -> Mapping[str, Any]:
    """What a result says of its predictions: their bounds and, under ``number``, a formula; empty where it says nothing."""
    score = result.summary.get(SCORE)
    return score[0] if isinstance(score, list) and len(score) == 1 and isinstance(score[0], Mapping) else {}


def _score_bounds(result: Result) -> tuple[float, float] | None:
    """The bounds of its predictions, where a result says them without a formula."""
    score = _score(result)
    return (float(score["low"]), float(score["high"])) if score and "number" not in score else None


def result_prediction(result: Result) -> dict[str, Any] | None:
    """What a result predicts by a formula of columns, as parameters of an evaluation; None where it holds no such formula.

    Raises:
        Misuse: its model was not estimable, so that it predicts nothing.
    """
    about = result.summary.get(PREDICTION)
    if not isinstance(about, Mapping):
        return None
    score = _score(result)
    if "number" not in score:
        if isinstance(result.application, Mapping) and result.application.get("outcome"):
            return None  # its model says more
        raise Misuse(
            f"The result of {result.method} predicts nothing.", "Its terms explain nothing, or are too many to write down."
        )
    return {**about, **{name: score.get(name) for name in ("number", "low", "high")}}


def released_arrays(result: Result) -> tuple[str, Mapping[str, Floats]]:
    """Digest and arrays, by their names in a broadcast, of the model that a result released, of classes or of an outcome.

    Raises:
        Misuse, HostileInput: as :func:`result_model` and :func:`result_predictor`.
    """
    predictor = result_predictor(result)
    if predictor is not None and predictor.prediction.by is not None:
        return predictor.prediction.by.sha256, predictor.arrays
    released = result_model(result)
    return released.sha256, released.arrays


def find_released(results: Path, study: Study) -> Mapping[str, Floats]:
    """The arrays that every round of a study broadcasts: of its projection, and of the model that it evaluates.

    Args:
        results: the folder of all results.

    Raises:
        StateError: no result in the folder released what the study names.
    """
    found = dict(find_projection(results, study.encoder))
    for declaration in study.tasks:
        if declaration.task == ModelTables.name:
            found |= _find_model(results, str(declaration.parameters["sha256"]))
    return found


def _find_model(results: Path, wanted: str) -> Mapping[str, Floats]:
    for directory in _bundles(results):
        try:
            sha256, arrays = released_arrays(load_result(directory))
        except VeilsumError:
            continue
        if sha256 == wanted:
            return arrays
    raise StateError(
        "No result at this coordinator released the model that the study names.",
        "Run the study that releases it at this coordinator first, and keep its result.",
    )


def _bundles(results: Path) -> Iterator[Path]:
    """Directories of results, then of their checkpoints, from the newest."""
    for pattern in (f"*/{MANIFEST}", f"*/checkpoints/*/{MANIFEST}"):
        yield from (path.parent for path in sorted(results.glob(pattern), reverse=True))


def _built(
    head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], width: int, scores: int
) -> tuple[ModelSpec, Architecture, dict[str, Floats]]:
    """A head as a model with every option stated, its architecture, and its arrays."""
    spec, own = _head(head, arrays)
    spec = resolve_model(spec)
    architecture = build_architecture(spec, width, scores, trained=False)
    return spec, architecture, {name: own[name] for name in architecture.shapes()}


def _head(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> tuple[ModelSpec, dict[str, Floats]]:
    """A head as a named model: affine layers are a linear model or a perceptron with one hidden layer."""
    if head["kind"] == "personal":
        raise Misuse(
            "This model was made of one site's records without noise; a study would show it to others.",
            "Name the released result, and measure this one with `veilsum participant evaluate`.",
        )
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
    return (RandomFeatures if told["kind"] == "random-features" else Program).model_validate(dict(told))


def result_projection(result: Result) -> tuple[Projection, dict[str, Floats]]:
    """The projection that a result released, and its arrays by the names under which they are broadcast.

    Raises:
        HostileInput: the result holds none.
    """
    matrix, offset = result.arrays.get(ENCODER_MATRIX), result.arrays.get(ENCODER_OFFSET)
    if matrix is None or offset is None or matrix.ndim != 2 or offset.shape != (len(matrix),):
        raise HostileInput("The result holds no projection.", "Name a result of the method pca.")
    arrays = {ENCODER_MATRIX: matrix.astype(np.float64), ENCODER_OFFSET: offset.astype(np.float64)}
    sha256 = projection_digest(arrays[ENCODER_MATRIX], arrays[ENCODER_OFFSET])
    return Projection(sha256=sha256, inputs=matrix.shape[1], width=len(matrix)), arrays


def find_projection(results: Path, encoder: Encoder | None) -> Mapping[str, Floats]:
    """The arrays that every round of a study with this encoder broadcasts; empty unless it is a projection.

    Args:
        results: the folder of all results.

    Raises:
        StateError: no result in the folder released this projection.
    """
    if not isinstance(encoder, Projection):
        return {}
    for manifest in sorted(results.glob(f"*/{MANIFEST}")):
        try:
            known = json.loads(manifest.read_bytes())["application"].get("encoder") or {}
            if known.get("sha256") != encoder.sha256:
                continue
            projection, arrays = result_projection(load_result(manifest.parent))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, HostileInput):
            continue
        if projection == encoder:
            return arrays
    raise StateError(
        "No result at this coordinator released the projection that the study names.",
        "Run the study that releases it at this coordinator first, and keep its result.",
    )
