"""Simulated rounds per second for 100 and 1000 sites on one core, and where the time goes.

Sites have 20 records of 30 features in two classes. Every round is a whole one: broadcast, tasks, grid, noise, release. The
sites' sums are compared with those of the sites one by one, so a figure never belongs to a wrong result.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from support.studies import compiled
from veilsum_aggregation.arrays import Floats
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records

WIDTH, RECORDS, CLASSES = 30, 20, ("p", "q")
PRIVACY = {"epsilon": 8.0, "cohort_difference": "allowed", "min_cohort": 2}
SECONDS = 2.0
PROFILE = 5

SMALL = {"name": "mlp", "options": {"hidden": 16}}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "class moments": ("fedcgs", "class-moments", {"clip": 1.0}),
    "gradients, linear": ("fedsgd", "gradient", {"steps": 200, "sampling_rate": 0.2}),
    "gradients, 64 hidden": ("fedsgd", "gradient", {"steps": 200, "model": {"name": "mlp", "options": {"hidden": 64}}}),
    "local training": ("fedavg", "local-training", {"rounds": 20, "local_steps": 5, "model": SMALL}),
    "local training, no noise": ("fedavg", "local-training", {"rounds": 20, "epochs": 5, "model": SMALL}),
}
"""By name: method, label of the task whose rounds are counted, parameters; with noise unless the name says otherwise."""

SCHEMA = DatasetSchema(
    columns=tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(WIDTH)),
    label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in CLASSES)),
    max_records=100,
)


def sites_of(number: int) -> dict[str, PlainSite]:
    """Sites with random records."""
    rng = np.random.default_rng(0)
    found = {}
    for index in range(number):
        y = rng.integers(0, len(CLASSES), RECORDS)
        x = np.clip(rng.normal(0.2 * y[:, None] - 0.1, 0.3, (RECORDS, WIDTH)), -1.0, 1.0)
        found[f"site-{index:04d}"] = PlainSite(Records(x, np.ones((RECORDS, WIDTH), dtype=bool), y))
    return found


def broadcast_of(study: Study, label: str) -> dict[str, Floats]:
    """Any broadcast that the task takes, with a random model where it takes one."""
    rng = np.random.default_rng(1)
    example = AgreedStudy(study).task(label).task.example_broadcast(study.sites)
    return {name: rng.normal(0.0, 0.1, array.shape) if name.startswith("model.") else array for name, array in example.items()}


def rate(federation: PlainFederation, label: str, broadcast: Mapping[str, Floats]) -> float:
    """Rounds per second of CPU time."""
    federation.sum(label, broadcast)  # what stays the same is remembered from here on
    started, rounds = time.process_time(), 0
    while rounds == 0 or time.process_time() - started < SECONDS:
        federation.sum(label, broadcast)
        rounds += 1
    return rounds / (time.process_time() - started)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Every case for 100 and 1000 sites, together and one by one, with the first lines of a profile of 1000."""
    found: dict[str, Any] = {}
    with threadpool_limits(1):
        for name, (method, label, parameters) in CASES.items():
            figures: dict[str, Any] = {}
            privacy = {"noise": "none"} if name.endswith("no noise") else PRIVACY
            for number in (100,) if quick else (100, 1000):
                sites = sites_of(number)
                study = compiled(method, parameters, schema=SCHEMA, sites=tuple(sites), **privacy)
                study = study.model_copy(update={"tasks": tuple(_endless(task) for task in study.tasks)})
                broadcast = broadcast_of(study, label)
                _check(method, parameters, sites, label)
                federation = PlainFederation(study, sites)
                figures[f"{number} sites, rounds/s"] = rate(federation, label, broadcast)
                figures[f"{number} sites one by one, rounds/s"] = rate(
                    PlainFederation(study, sites, batched=False), label, broadcast
                )
            figures["profile"] = profile(lambda: federation.sum(label, broadcast))  # noqa: B023
            found[name] = figures
    return found


def profile(work: Callable[[], object]) -> list[str]:
    """The five functions that take longest by themselves in three rounds."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(3):
        work()
    profiler.disable()
    stream = io.StringIO()
    pstats.Stats(profiler, stream=stream).strip_dirs().sort_stats("tottime").print_stats(PROFILE)
    lines = stream.getvalue().splitlines()
    start = next(index for index, line in enumerate(lines) if line.lstrip().startswith("ncalls"))
    return [" ".join(line.split()) for line in lines[start + 1 : start + 1 + PROFILE]]


def _endless(task: Any) -> Any:
    return task if task.keep else task.model_copy(update={"releases": 100_000})


def _check(method: str, parameters: Mapping[str, Any], sites: dict[str, PlainSite], label: str) -> None:
    """Without noise, and so without samples, the sites' sum is the same in both ways, up to rounding.

    Raises:
        AssertionError: it is not.
    """
    all_records = {name: value for name, value in parameters.items() if name not in ("sampling_rate", "local_steps")}
    clear = compiled(method, all_records, schema=SCHEMA, sites=tuple(sites), noise="none")
    sums = []
    for batched in (True, False):
        federation = PlainFederation(clear, sites, batched=batched)
        federation.sum(label, broadcast_of(clear, label))
        sums.append(federation.sums[0])
    rounding = len(sites) * (1.0 + 1e-12 * clear.task(label).resolution)
    np.testing.assert_allclose(sums[0], sums[1], rtol=0, atol=rounding)
