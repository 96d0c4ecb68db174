"""The smallest sensible study of every method, and of each way in which a method computes otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from support.durable import WIDTH, Compile
from support.federation import TestBed, make_request, schema_of
from veilsum.request import with_model
from veilsum_coordinator.parts.alignment import application
from veilsum_coordinator.parts.networks import network_head
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.encoder import RandomFeatures
from veilsum_privacy.study.study import Study
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.objectives import OBJECTIVES

SCHEMA = schema_of(WIDTH, max_records=40)
LINEAR = {"name": "linear"}
SMALL = {"name": "mlp", "options": {"hidden": 4}}


def _plain(
    bed: TestBed,
    method: str,
    epsilon: float | None,
    parameters: dict[str, Any] | None = None,
    classes: int = 2,
    encoder: RandomFeatures | None = None,
    **privacy: Any,
) -> Study:
    request = make_request(schema_of(WIDTH, classes, 40), method, epsilon, **privacy)
    return bed.compile(request.model_copy(update={"parameters": parameters or {}, "encoder": encoder}))


def _local(
    bed: TestBed,
    objective: str = "none",
    epsilon: float | None = 20.0,
    min_cohort: int | None = None,
    classes: int = 2,
    **parameters: Any,
) -> Study:
    of_all = {"model": LINEAR, "rounds": 2, "local_steps": 2, "objective": {"name": objective}, **parameters}
    noise = "local" if epsilon else "none"
    return _plain(bed, "fedavg", epsilon, of_all, classes=classes, noise=noise, min_cohort=min_cohort)


def _evaluation(bed: TestBed) -> Study:
    """Of a model that lies among the coordinator's results."""
    results = bed.kit.directory / "results"
    architecture = build_architecture(ModelSpec(name="linear"), WIDTH, 2)
    rng = np.random.default_rng(3)
    head, arrays = network_head(architecture, {key: rng.normal(size=shape) for key, shape in architecture.shapes().items()})
    applied = application(SCHEMA, missing="skip", head=head, classes=SCHEMA.classes)
    save_result(results / "earlier", Result("fedsgd", {}, arrays, applied))
    request = make_request(SCHEMA, "federated-evaluation", 4.0)
    request = request.model_copy(update={"parameters": {"result": str(results / "earlier")}})
    return bed.compile(with_model(request, results / "earlier"))


STATIONS = {"stations": {"one": ["a", "b"], "two": ["c", "d"]}, "rounds": 2}
STATION_MODEL = {"model": {"name": "linear", "options": {"scale": 0.5, "bias": 0.7}}}
ITERATED = {"alignment": {"reference": "barycenter", "mode": "iterated", "rounds": 3}}
WAVES = RandomFeatures(width=5)
GENERATION = {"mode": "multi-domain", "target": 30, "extra": 5}

CLEAR = ("none", "moon", "scaffold", "sr", "iir", "ntd")
OWN: dict[str, dict[str, Any]] = {"moon": {"model": SMALL}, "ntd": {"classes": 3}}

QUERIES: dict[str, Any] = {
    "derive": {"half": {"of": "x0", "edges": [0.0]}, "sum": {"number": "x0 + x1 / 2", "low": -1, "high": 1}},
    "query": [
        {"kind": "table-one", "by": "y", "over": ["x0", "x1", "half"], "at": [0.5]},
        {"kind": "correlation", "over": ["x0", "sum"], "where": "x1 > -0.5 or x0 is missing"},
        {"kind": "survival", "over": "x1", "event": "y", "censored": "c0", "edges": [-1.0, 0.0, 0.5], "by": "half"},
        {"kind": "linear", "outcome": "x1", "over": ["x0", "half", "y"], "where": "x1 < 0.9"},
        {"kind": "missing", "over": ["x0"]},
        {"kind": "synthetic", "over": ["half", "y"]},
    ],
}

ODDS: dict[str, Any] = {"family": "logistic", "outcome": "y = 'c0'", "over": ["x0", "x1"]}

STUDIES: dict[str, Compile] = {
    "statistics": partial(_plain, method="statistics", epsilon=2.0),
    "statistics of queries": partial(_plain, method="statistics", epsilon=2.0, parameters=QUERIES),
    "regression": partial(_plain, method="regression", epsilon=20.0, parameters=ODDS),
    "pca": partial(_plain, method="pca", epsilon=4.0, parameters={"width": 2}),
    "slot-align": partial(_plain, method="slot-align", epsilon=900.0, parameters=ITERATED),
    "slot-align once": partial(_plain, method="slot-align", epsilon=None),
    "o-fedavg": partial(_plain, method="o-fedavg", epsilon=4.0),
    "o-fedavg aligned": partial(_plain, method="o-fedavg", epsilon=None, parameters={"alignment": {}}),
    "fedcgs": partial(_plain, method="fedcgs", epsilon=20.0),  # at 2 its head would be within its noise, and not given
    "fedcgs of random features": partial(_plain, method="fedcgs", epsilon=900.0, parameters={"head": "ridge"}, encoder=WAVES),
    "fedcgs iterated": partial(_plain, method="fedcgs", epsilon=900.0, parameters=ITERATED),
    "fedpft": partial(_plain, method="fedpft", epsilon=None, parameters={"components": 2, "rounds": 1, "samples": 20}),
    "ggeur": partial(_plain, method="ggeur", epsilon=None, parameters={**GENERATION, "rounds": 2, "hidden": 3, "epochs": 1}),
    "ggeur at the coordinator": partial(
        _plain, method="ggeur", epsilon=20.0, parameters={**GENERATION, "rounds": 2, "hidden": 3, "epochs": 1}
    ),
    "fedsgd": partial(
        _plain, method="fedsgd", epsilon=2.0, parameters={"steps": 3, "sampling_rate": 0.5, "gradient_clip": 0.5}
    ),
    "fedsgd aligned": partial(_plain, method="fedsgd", epsilon=8.0, parameters={"steps": 2, "moments": {}}),
    "gbdt": partial(_plain, method="gbdt", epsilon=4.0, parameters={"rounds": 3, "depth": 2}),
    "fedavg": partial(_local, model=SMALL),
    **{
        f"fedavg {name}": partial(_local, objective=name, epsilon=None if name in CLEAR else 20.0, **OWN.get(name, {}))
        for name in OBJECTIVES
    },
    "fedavg some": partial(_local, participation={"mode": "coordinated", "size": 3}, min_cohort=3),
    "fedavg of a drawn number": partial(_local, participation={"mode": "uniform", "size": 3}, min_cohort=3),
    "fedavg aligned": partial(_local, moments={}),
    "fedavg moved by drawn sites": partial(_local, moments={"moved_by": "drawn", "records": 1.0}),
    "fedavg aligned each round": partial(_local, moments={"released": "each-round"}),
    "hfedatm": partial(_plain, method="hfedatm", epsilon=None, min_cohort=2, parameters={**STATIONS, **STATION_MODEL}),
    "federated-evaluation": _evaluation,
    "gbdt of a number": partial(
        _plain,
        method="gbdt",
        epsilon=4.0,
        parameters={"rounds": 2, "depth": 2, "outcome": {"column": "x2", "loss": "squared"}},
    ),
    "gbdt of classes": partial(_plain, method="gbdt", epsilon=4.0, parameters={"rounds": 2, "depth": 2}, classes=3),
}
"""By the method's name, with a word more for a way of its own."""
