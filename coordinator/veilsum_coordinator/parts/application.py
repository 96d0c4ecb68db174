"""How a result is applied to new records, as its manifest says it: columns, encoder, alignment and head, in this order.

A result repeats the arrays of the projection that its study used, so that it is applied without another result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.parts.alignment import Aligned
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.moment_alignment import MomentReference
from veilsum_coordinator.parts.moment_plans import Missing
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Encoder, Program, Projection
from veilsum_privacy.study.schema import DatasetSchema, DateColumn, NumberColumn
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET
from veilsum_privacy.tasks.outcomes import Outcome

LINEAR = {"kind": "linear", "weights": "weights", "bias": "bias"}
"""A linear head, as an application says it."""


def application(
    schema: DatasetSchema,
    *,
    missing: Missing = "centre",
    encoder: Mapping[str, Any] | None = None,
    alignment: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The application of a result, as JSON.

    Args:
        schema: of the records.
        missing: the missing rule of the study's tasks.
        encoder: from :func:`encoder_application`.
        alignment: of :class:`veilsum_coordinator.parts.alignment.Aligned`.
        head: :data:`LINEAR`, or another that names its arrays.
        classes: of the head, in the order of its scores.
    """
    columns: list[dict[str, Any]] = []
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            shape = {"low": column.low, "high": column.high, "unit": column.unit}
        else:
            shape = column.model_dump(mode="json", exclude={"kind", "name", "impute"})
        if isinstance(column, DateColumn):
            shape["origin"] = column.origin
        columns.append({"kind": column.kind, "name": column.name, **shape, "impute": column.impute})
    label = None if schema.label is None else schema.label.model_dump(mode="json")
    rest = "a record without one has no scores" if missing == "skip" else "where there is none, 0"
    return {
        "features": columns,
        "file": {
            "label": label,
            "header": schema.header,
            "order": list(schema.order),
            "missing": list(schema.missing),
        },
        "scaling": "number: 2 (clamp(x, low, high) - low) / (high - low) - 1; category: one indicator each, in order",
        "missing": f"take impute; {rest}",
        "missing_rule": missing,
        "encoder": None if encoder is None else dict(encoder),
        "alignment": None if alignment is None else dict(alignment),
        "head": None if head is None else dict(head),
        "classes": list(classes),
        "scores": "" if head is None else _CLIPPED if "clip" in head else _SCORES[str(head["kind"])],
    }


def outcome_application(
    schema: DatasetSchema, outcome: Outcome, *, missing: Missing, head: Mapping[str, Any], most: float | None = None
) -> dict[str, Any]:
    """The application of a model of a number, a count or a time: it reads all columns but the outcome's.

    Args:
        schema: of the study.
        outcome: what is predicted.
        missing, head: as of :func:`application`.
        most: of counts, what larger predictions are taken as, in the column's unit.
    """
    found = application(outcome.features(schema), missing=missing, head=head)
    told, scores = outcome.told(schema), _OUTCOMES[outcome.loss]
    if most is not None:
        told, scores = {**told, "most": most}, f"{scores}, at most `most`"
    return {**found, "outcome": told, "scores": scores}


_OUTCOMES = {
    "squared": "score s of the head; the number is low + (s + 1) (high - low) / 2",
    "huber": "score s of the head; the number is low + (s + 1) (high - low) / 2",
    "poisson": "score s of the head; the mean count is exp(s) (high - low) / 2",
    "hazard": "score s_j of the head for each period, which end at the cuts and at high; the hazard is exp(s_j) / high",
}

_CLIPPED = "features less centre, scaled down to a norm of clip, @ weights.T + bias; the class with the largest score"

_SCORES = {
    "linear": "features @ weights.T + bias; the class with the largest score",
    "network": "the named model's, on the arrays that begin with the prefix; the class with the largest score",
    "mlp": "layer by layer, a rectifier between them; the class with the largest score",
}


def encoder_application(encoder: Encoder | None) -> dict[str, Any] | None:
    """How a result names the encoder of its study."""
    if isinstance(encoder, Program):
        return encoder.model_dump(mode="json")
    if isinstance(encoder, Projection):
        return {"kind": "projection", "sha256": encoder.sha256, "matrix": ENCODER_MATRIX, "offset": ENCODER_OFFSET}
    return None


def study_application(
    federation: Federation,
    missing: Missing,
    aligned: Aligned | MomentReference | None = None,
    head: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The application of a result of this study; ``aligned`` is None where its features were not aligned."""
    study = federation.study
    return application(
        study.data,
        missing=missing,
        encoder=encoder_application(study.encoder),
        alignment=None if aligned is None else aligned.application,
        head=head,
        classes=classes,
    )


def study_arrays(federation: Federation, aligned: Aligned | MomentReference | None = None) -> dict[str, Floats]:
    """The arrays that :func:`study_application` names, but for the head's."""
    encoder = dict(federation.encoder) if isinstance(federation.study.encoder, Projection) else {}
    return {**encoder, **({} if aligned is None else aligned.arrays)}


def study_result(
    federation: Federation,
    summary: Mapping[str, Any],
    missing: Missing,
    head: Mapping[str, Any],
    arrays: Mapping[str, Floats],
    classes: Sequence[str],
    aligned: Aligned | MomentReference | None = None,
) -> Result:
    """A result of this study that is applied to tell classes.

    Args:
        summary: of the result.
        missing, head, classes: as of :func:`application`.
        arrays: of the head, and any others.
        aligned: as of :func:`study_application`.
    """
    applied = study_application(federation, missing, aligned, head, classes)
    return Result(federation.study.method, summary, {**study_arrays(federation, aligned), **arrays}, applied)


def linear_result(
    federation: Federation,
    summary: Mapping[str, Any],
    missing: Missing,
    head: LinearHead,
    aligned: Aligned | None = None,
    arrays: Mapping[str, Floats] | None = None,
) -> Result:
    """The same of a linear head; ``arrays`` are any others."""
    form, own = dict[str, Any](LINEAR), {"weights": head.weights, "bias": head.bias}
    if head.centre is not None:
        form, own = {**form, "centre": "centre", "clip": head.clip}, {**own, "centre": head.centre}
    return study_result(federation, summary, missing, form, {**own, **(arrays or {})}, head.classes, aligned)
