"""Declarations of local training, with records and broadcasts to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.neighbours import MAPPED, schema
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, resolve_model
from veilsum_privacy.training.objectives import ObjectiveSpec, resolve_objective

K, D = 3, 2
OWN = {
    "scaffold": {"scaffold.control": lambda task: np.zeros(task.objective.size)},
    "proto": {"proto.prototypes": lambda task: np.ones((K, 4)), "proto.known": lambda task: np.ones(K)},
    "iir": {"iir.gradient": lambda task: np.zeros(4 * K + K), "iir.known": lambda task: np.zeros(1)},
}


def parameters(objective: str = "none", options: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    hidden = changes.pop("hidden", 4)
    model = ModelSpec(name="mlp", options={"hidden": hidden}) if hidden else ModelSpec(name="linear")
    return {
        "clip": 100.0,
        "missing": "skip",
        **MAPPED,
        "model": resolve_model(model).model_dump(mode="json"),
        "objective": resolve_objective(ObjectiveSpec(name=objective, options=dict(options or {}))).model_dump(mode="json"),
        "epochs": 2,
        "batch": 16,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "decay": 0.0,
        "norm": 1e6,
        "weighting": "equal",
        "normalised": False,
        "local_steps": 3,
        "gradient_clip": 0.5,
        "expected_records": 50,
        **changes,
    }


def training(objective: str = "none", options: Mapping[str, Any] | None = None, **changes: Any) -> LocalTraining:
    task = build_task("local-training", parameters(objective, options, **changes), schema(D))
    assert isinstance(task, LocalTraining)
    return task


def drawn(seed: int, n: int) -> Records:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    x = np.array([[1.0, 0], [-0.5, 0.8], [-0.5, -0.8]])[y] + 0.6 * rng.normal(size=(n, D))
    return complete(x, y)


def given_arrays(task: LocalTraining, seed: int = 0) -> dict[str, Floats]:
    model = task.architecture.initial(seed)
    rng = np.random.default_rng(seed)
    model = {name: values + 0.2 * rng.normal(size=values.shape) for name, values in model.items()}
    own = {name: make(task) for name, make in OWN.get(task.parameters.objective.name, {}).items()}
    return {**to_broadcast(model), SEEDS: np.array([5.0, 6.0]), **own}
