"""A release of every task, to audit where no study is at hand: what a policy allows, no larger than shows the code at work.

Each is booked at mu = 2 against whom the audit takes for everybody else: near that an audit needs the fewest releases. Where a
task keeps classes or cells apart, there are many of them, a thousand cells of a table: as many canaries stand at right
angles in one release.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from veilsum_privacy.study.schema import CategoryColumn, ClassValues, Column, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Disclosure, NoiseKind, PrivacyDemand, Study, TaskDeclaration, Unit
from veilsum_privacy.tasks import TASKS, build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import FactorTask, TrainingTask

MU = 2.0
GRID = 2**16
SITES = ("site-0000", "site-0001", "site-0002")
COLLUDERS = 1

_SOME = 40


@dataclass(frozen=True)
class ReferenceTask:
    """A task as a study might declare it.

    Attributes:
        rates: sampling rates at which it is released.
    """

    task: str
    schema: DatasetSchema
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (1.0,)

    @property
    def disclosures(self) -> tuple[Disclosure, ...]:
        """How it may be disclosed with noise of the site's own block."""
        return TASKS[self.task].disclosures

    def study(self, *, unit: Unit, noise: NoiseKind, disclosure: Disclosure = "joint", rate: float = 1.0) -> AgreedStudy:
        """A study of this one task; nobody signs it."""
        task = build_task(self.task, self.parameters, self.schema)
        norm = task.integer_norm()
        grid = max(norm, GRID // norm * norm) if norm else GRID
        training = isinstance(task, TrainingTask)
        honest = len(SITES) - COLLUDERS if noise == "distributed" and disclosure == "joint" and not training else 1
        declaration = TaskDeclaration(
            label=self.task,
            task=self.task,
            parameters=dict(self.parameters),
            disclosure=disclosure,
            own_noise=disclosure == "per-site" and not training,
            releases=1,
            grid=grid,
            variance=int(grid / MU) ** 2 * honest,
            sampling_rate=rate,
            local_steps=task.noised_sums() if isinstance(task, TrainingTask) else 0,
            resolution=2**20 if training else 0,
            unrounded=isinstance(task, FactorTask),
        )
        demand = PrivacyDemand(
            epsilon=1000.0,
            delta=1e-5,
            noise=noise,
            assumed_colluders=COLLUDERS,
            min_cohort=2,
            cohort_difference="allowed",
            unit=unit,
        )
        return AgreedStudy(unsigned_study(self.schema, demand, declaration, SITES))


def unsigned_study(schema: DatasetSchema, privacy: PrivacyDemand, task: TaskDeclaration, sites: tuple[str, ...]) -> Study:
    """A study of one task, of equal sites in a federation that exists nowhere."""
    return Study(
        version=1,
        name="audit",
        federation="0" * 64,
        coordinator="coordinator",
        nonce="0" * 32,
        created=0,
        expires=1,
        method="audit",
        parameters={},
        dataset="made-up",
        data=schema,
        privacy=privacy,
        tasks=(task,),
        participants=sites,
        weights=dict.fromkeys(sites, 1),
    )


def references() -> tuple[ReferenceTask, ...]:
    """One for every task that reads records."""
    return tuple(_references())


def _schema(numbers: int, *categories: int, classes: int = 0) -> DatasetSchema:
    columns: list[Column] = [NumberColumn(name=f"n{i}", low=0, high=1) for i in range(numbers)]
    columns += [
        CategoryColumn(name=f"k{i}", categories=tuple(f"c{level}" for level in range(count)))
        for i, count in enumerate(categories)
    ]
    named = tuple(ClassValues(name=f"c{i}", values=(str(i),)) for i in range(classes))
    return DatasetSchema(
        columns=tuple(columns), label=LabelColumn(column="y", classes=named) if classes else None, max_records=4096
    )


def _references() -> Iterator[ReferenceTask]:
    moments = {"missing": "centre", "count_weight": 1.0, "sum_weight": 1.0, "square_weight": 1.0}
    linear = {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1.0}}
    cells = {"name": "cells", "kind": "count", "over": ("k0", "k1"), "scale": 128}
    yield ReferenceTask("tables", _schema(1, 250, 4), {"queries": [cells], "derived": [], "sensitivity": 128})
    told = {"model": linear, "sha256": "0" * 64, "outcome": {"column": "n0", "loss": "squared"}, "low": -1.0, "high": 1.0}
    counted = {"queries": [cells], "derived": [], "sensitivity": 128, "missing": "centre"}
    yield ReferenceTask("model-tables", _schema(1, 250, 4), {**counted, **told})
    fit = {"name": "fit", "kind": "linear", "over": ("n0", "k0"), "outcome": "y = 'c1'"}
    event = {"family": "logistic", "length": 2.0, "information_share": 0.8}
    yield ReferenceTask("newton-step", _schema(2, 2, classes=3), {**event, "query": fit})
    yield ReferenceTask("hazard-step", _schema(2, 2, classes=3), {"query": fit, "time": "n1", "periods": 2})
    yield ReferenceTask("site-scores", _schema(2, 2, classes=3), {"query": fit, "family": "logistic", "length": 2.0})
    yield ReferenceTask("score-products", _schema(2, 2, classes=3), {"query": fit, "family": "logistic", "length": 2.0})
    yield ReferenceTask("site-hazard-scores", _schema(2, 2, classes=3), {"query": fit, "time": "n1", "periods": 2})
    means = {"clip": 1.0, "missing": "centre", "count_weight": 0.5, "sum_weight": 1.0}
    yield ReferenceTask("feature-means", _schema(3), means)
    yield ReferenceTask("gaussian-moments", _schema(3), {**moments, "clip": 1.0, "product_weight": 1.0})
    diagonal = {**moments, "clip": 1.0, "product_weight": 1.0, "second": "class-diagonal"}
    yield ReferenceTask("class-moments", _schema(2, classes=_SOME), diagonal)
    yield ReferenceTask("prototypes", _schema(2, classes=_SOME), {**means, "width": 2})
    yield ReferenceTask("class-mixtures", _schema(2, classes=_SOME), {**moments, "clip": 1.0, "components": 2})
    powers = {"clip": 1.0, "missing": "centre", "order": 4, "count_weight": 1.0, "power_weight": 1.0}
    yield ReferenceTask("power-moments", _schema(3), powers)
    gradient = {"clip": 2.0, "missing": "centre", "gradient_clip": 0.5, "model": linear}
    yield ReferenceTask("gradient", _schema(4, classes=3), gradient, rates=(1.0, 0.5))
    trees = {"clip": 1e6, "trees": 8, "depth": 2, "largest_model": 16, "loss": "logistic", "missing": "centre"}
    yield ReferenceTask("tree-gradients", _schema(2, 3, classes=2), trees)
    grams = {"clip": 1.0, "missing": "centre", "model": linear, "layers": ["head"], "gram_clip": 1.0}
    yield ReferenceTask("grams", _schema(4, classes=3), grams)
    step = {"clip": 1e6, "missing": "centre", "model": linear, "length": 1.0, "information_share": 0.8}
    yield ReferenceTask("calibration-step", _schema(3, classes=2), step)
    training = {
        "clip": 2.0, "missing": "centre", "model": linear, "objective": {"name": "none", "options": {}}, "epochs": 1,
        "batch": 32, "learning_rate": 0.1, "momentum": 0.0, "decay": 0.0, "norm": 10.0, "weighting": "equal",
        "normalised": False, "local_steps": 1, "gradient_clip": 0.5, "expected_records": 100,
    }  # fmt: skip
    yield ReferenceTask("local-training", _schema(4, classes=3), training, rates=(1.0, 0.5))
