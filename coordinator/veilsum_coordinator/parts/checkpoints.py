"""Checkpoints as results: an intermediate model with the application that the finished one will have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.application import study_result
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.networks import network_head
from veilsum_node.errors import VeilsumError
from veilsum_privacy.results.result import Result
from veilsum_privacy.tasks.features import CENTRE
from veilsum_privacy.training.arrays import from_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture


def checkpoint_due(every: int, number: int, last: int) -> bool:
    """Whether a model is kept after so many of ``last`` rounds; none after the last one, which is the result."""
    return every > 0 and number % every == 0 and number < last


def checkpoint_result(federation: Federation, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> Result:
    """A bundle of a model that its study is still training.

    It can be applied where the study's parameters name the model and sites do not align their features; other checkpoints
    hold the arrays alone.

    Args:
        federation: of the study.
        arrays: ``model.<name>``, and what the study's features are centred by, as its rounds broadcast them.
        summary: what the method says of them.
    """
    study, plain = federation.study, Result(federation.study.method, summary, arrays)
    told, missing = study.parameters.get("model"), study.parameters.get("missing")
    centre = arrays.get(CENTRE) if study.parameters.get("centre") else None
    if study.parameters.get("centre") and centre is None:
        return plain
    aligned = any(task.parameters.get("alignment") is not None for task in study.tasks)
    if not isinstance(told, Mapping) or missing not in ("skip", "centre") or aligned:
        return plain
    try:
        architecture = build_architecture(ModelSpec.model_validate(told), study.width, len(study.data.classes))
        model = from_broadcast(arrays, architecture.shapes())
    except (VeilsumError, ValueError):  # the method keeps something else than the model that it was asked for
        return plain
    head, named = network_head(architecture, model, centre)
    return study_result(federation, summary, missing, head, {**arrays, **named}, study.data.classes)
