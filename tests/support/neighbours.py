"""Neighbouring data for every registered task: what the audits and the sensitivity tests run on.

A task joins by an entry in :data:`NEIGHBOURS`; a test fails while a registered task has none. Records of a subject are made
here from single records, so a task only says which single record is its worst.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.rows import rows_of
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_privacy.audit.references import unsigned_study
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, Column, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import NoiseKind, PrivacyDemand, Study, TaskDeclaration, Unit
from veilsum_privacy.tasks import TASKS, build_task, hazard_step
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_privacy.tasks.base import FactorTask, Records, RowTask
from veilsum_privacy.tasks.class_mixtures import CENTRES
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS
from veilsum_privacy.tasks.newton_step import POINT, WHITEN
from veilsum_privacy.tasks.site_scores import BASELINE, SCALE
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.released import model_digest
from veilsum_privacy.training.sketches import DRAW

LABEL = LabelColumn(column="y", classes=tuple(ClassValues(name=f"c{i}", values=(str(i),)) for i in range(3)))
TASK_LABEL = "audited"


def schema(numbers: int, *, imputed: int = 0, categories: tuple[int, ...] = (), label: bool = True) -> DatasetSchema:
    """Numbers n0.. in [0, 1], categorical columns of the given sizes, and three classes."""
    columns: list[Column] = [
        NumberColumn(name=f"n{i}", low=0, high=1, impute=0.5 if i < imputed else None) for i in range(numbers)
    ]
    columns += [CategoryColumn(name=f"k{i}", categories=tuple("abcdefgh"[:k])) for i, k in enumerate(categories)]
    return DatasetSchema(columns=tuple(columns), label=LABEL if label else None, max_records=64)


@dataclass(frozen=True)
class Setting:
    """A task as a study may declare it, and the broadcast that its round starts from.

    Attributes:
        given: arrays that every site is given the same row of, in a broadcast that has one row a site.
    """

    name: str
    task: str
    schema: DatasetSchema
    parameters: Mapping[str, Any] = field(default_factory=dict)
    broadcast: Mapping[str, Floats] = field(default_factory=dict)
    given: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def additive(self) -> bool:
        """Whether what a unit adds to a sum does not depend on the others."""
        return issubclass(TASKS[self.task], RowTask)

    @property
    def rounded(self) -> bool:
        """Whether a site's sum is rounded as a whole, which takes a part of the grid."""
        return issubclass(TASKS[self.task], FactorTask)

    @property
    def seen(self) -> Mapping[str, Floats]:
        """The broadcast as the task is given it."""
        return {**self.broadcast, **self.given}

    def study(
        self, unit: Unit, *, grid: int, variance: int, noise: NoiseKind = "local", participants: int = 4, colluders: int = 1
    ) -> Study:
        """A study of this one task."""
        names = tuple(f"site-{index:04d}" for index in range(participants))
        if norm := build_task(self.task, self.parameters, self.schema).integer_norm():
            grid = max(norm, grid // norm * norm)
        declaration = TaskDeclaration(
            label=TASK_LABEL,
            task=self.task,
            parameters=dict(self.parameters),
            disclosure="joint",
            releases=1,
            grid=grid,
            variance=variance,
        )
        demand = PrivacyDemand(
            epsilon=1.0 if variance else None,
            delta=1e-5,
            noise=noise,
            assumed_colluders=colluders,
            min_cohort=2,
            cohort_difference="allowed" if variance else "strict",
            unit=unit,
        )
        return unsigned_study(self.schema, demand, declaration, names)

    def plan(self, study: Study, cohort: int | None = None) -> RoundPlan:
        """The plan of a round with this many members; all participants if not told."""
        return AgreedStudy(study).task(TASK_LABEL).plan(len(study.participants), cohort or len(study.participants))

    def total(self, study: Study, records: Records) -> NDArray[np.int64]:
        """A site's sum before noise, as a participant computes it; the last study's graph is kept, as among many sites."""
        if _last[:1] != [study]:
            _last[:] = study, self.plan(study), Evaluations()
        rows = {name: np.stack([row] * study.sites) for name, row in self.given.items()}
        return compute_sum(_last[1], records, {**self.broadcast, **rows}, SitePlace(evaluations=_last[2])).total


_last: list[Any] = []


class Neighbours(ABC):
    """What one task needs to be audited."""

    @abstractmethod
    def settings(self) -> tuple[Setting, ...]:
        """Declarations that take every branch of the task's vector and of its bound."""

    @abstractmethod
    def worst(self, setting: Setting) -> Records:
        """One record whose vector is as long as the task's bound allows."""

    def company(self, setting: Setting, rng: np.random.Generator, n: int) -> Records:
        """Records beside which the worst one changes the sum by as much as the bound allows; any ``n`` where that is alike."""
        return self.random(setting, rng, n)

    def random(self, setting: Setting, rng: np.random.Generator, n: int) -> Records:
        """Records of all kinds: complete, missing in part or whole, and with values that no reader should let through."""
        return spoil(random_records(rng, n, setting.schema), rng)


class _Tables(Neighbours):
    """Four tables of scale 128, whose norm is 256: the worst record is in all of them; one that is pooled, 265, 136 and twice
    -68 in a row, 313 together, in floating point too; and moments of a linear regression."""

    def settings(self) -> tuple[Setting, ...]:
        asked = (
            {"name": "ages", "kind": "histogram", "over": ("n0",), "edges": (0.25, 0.5), "by": ("k0",), "missing": "level"},
            {"name": "old", "kind": "count", "over": ("k1",), "where": "n0 >= 0.5 and (k0 is missing or not (k0 = 'b'))"},
            {"name": "label", "kind": "independence", "over": ("y", "k0")},
            {"name": "cut", "kind": "count", "over": ("n1-cut",), "where": "n0 > 0.25 or n1 is missing"},
        )
        parameters = {
            "queries": [{**query, "scale": 128} for query in asked],
            "derived": [{"name": "n1-cut", "of": "n1", "edges": (0.3, 0.7)}],
            "sensitivity": 256,
        }
        line = {"name": "line", "kind": "linear", "outcome": "n1", "over": ("n0", "k0"), "scale": 88}
        linear = {"queries": [line], "derived": [], "sensitivity": 256}
        strata = {"name": "strata", "kind": "independence", "over": ("y", "k0"), "by": ("k1",), "pooled": True, "scale": 265}
        return (
            Setting("four", "tables", schema(2, categories=(2, 3)), parameters),
            Setting(
                "pooled", "tables", schema(2, categories=(2, 3)), {"queries": [strata], "derived": [], "sensitivity": 313}
            ),
            Setting("linear", "tables", schema(2, categories=(2,)), linear),
        )

    def worst(self, setting: Setting) -> Records:
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        if setting.name == "linear":
            record.features[:] = [[1.0, -1.0, 1.0, 0.0]]
        else:
            record.features[:] = [[1.0, 0.5, 1.0, 0.0, 0.0, 1.0, 0.0]]
        return record


def moments_parameters(clip: float, a: float, b: float, c: float, e: float, missing: str = "skip") -> dict[str, object]:
    """Parameters of class-moments: clip, and the weights of counts, sums, squares and products."""
    weights = {"count_weight": a, "sum_weight": b, "square_weight": c, "product_weight": e}
    return {"clip": clip, "missing": missing, **weights}


MAPPED = {"width": 2}
"""Features that are bounded in norm alone."""


def longest(setting: Setting) -> Records:
    """The record with the longest vector of a moments task: of the largest norm, concentrated in few features or spread."""
    width, squared = setting.schema.width, float(setting.parameters["clip"]) ** 2
    centred = bool(setting.parameters.get("centre"))
    if setting.parameters.get("width") is None and not centred:
        squared = min(squared, width)
        left = np.clip(squared - np.arange(width), 0.0, 1.0)
    else:
        left = squared * (np.arange(width) == 0)
    rows = np.sqrt(np.array([left, np.full(width, squared / width)]))
    if centred:
        rows = setting.broadcast[CENTRE] - rows
    task = build_task(setting.task, setting.parameters, setting.schema)
    assert isinstance(task, RowTask)
    labels = None if setting.schema.label is None else np.array([1])
    each = complete(rows, None if labels is None else np.repeat(labels, len(rows)))
    norms = np.linalg.norm(rows_of(task, setting.seen)(each), axis=1)
    return complete(rows[[np.argmax(norms)]], labels)


@dataclass(frozen=True)
class _Moments(Neighbours):
    """A task of moments: one vector a record, longest for a record of the largest norm."""

    known: tuple[Setting, ...]

    def settings(self) -> tuple[Setting, ...]:
        return self.known

    def worst(self, setting: Setting) -> Records:
        return longest(setting)


_CLASS_MOMENTS = (
    Setting("even", "class-moments", schema(4), moments_parameters(1.3, 1, 1, 1, 1, "centre")),
    Setting("squares", "class-moments", schema(4), moments_parameters(1.7, 0.1, 0.1, 3.0, 0.2)),
    Setting("products", "class-moments", schema(2, categories=(2,)), moments_parameters(9.0, 0.1, 0.5, 0.2, 3.0)),
    Setting("single", "class-moments", schema(1), moments_parameters(0.5, 1, 2, 1, 1)),
    Setting("each", "class-moments", schema(2), {**moments_parameters(1.2, 1, 1, 1, 2), **MAPPED, "second": "class"}),
    Setting("diagonal", "class-moments", schema(2), {**moments_parameters(1.2, 0.5, 1, 1, 1), "second": "class-diagonal"}),
)

_CENTRED = (
    Setting(
        "centred", "class-moments", schema(3), {**moments_parameters(1.4, 0.5, 1, 2, 1), "centre": True},
        {CENTRE: np.array([0.5, 0.5, 0.0])},
    ),
    Setting(
        "centred-each", "class-moments", schema(2),
        {**moments_parameters(0.8, 0.5, 1, 0.3, 1, "centre"), "centre": True, "second": "class"},
        {CENTRE: np.array([0.2, -0.3])},
    ),
)  # fmt: skip

_POOLED = schema(2, label=False)
_GAUSSIAN_MOMENTS = (
    Setting("boxed", "gaussian-moments", schema(3, label=False), moments_parameters(1.5, 1, 1, 2, 1)),
    Setting("mapped", "gaussian-moments", _POOLED, {**moments_parameters(3.0, 1, 1, 0.5, 0.3), **MAPPED}),
    Setting("spread", "gaussian-moments", _POOLED, {**moments_parameters(3.0, 1, 1, 0.3, 0.5, "centre"), **MAPPED}),
)

_PROTOTYPES = (
    Setting("mapped", "prototypes", schema(2), {"clip": 2.0, "missing": "skip", "count_weight": 1, "sum_weight": 1, **MAPPED}),
)

_MIXED = {"clip": 1.5, "missing": "skip", "count_weight": 1, "sum_weight": 2, "square_weight": 1, "components": 2}
_CENTRES = np.random.default_rng(0).normal(size=(3, 2, 2))
_CLASS_MIXTURES = (
    Setting("joint", "class-mixtures", schema(2), _MIXED, {CENTRES: _CENTRES}),
    Setting("own", "class-mixtures", schema(2), {**_MIXED, **MAPPED, "centres": "site"}, given={CENTRES: _CENTRES}),
)


class _PowerMoments(Neighbours):
    """The longest record has every number at a bound, all of a channel at the same one."""

    def settings(self) -> tuple[Setting, ...]:
        common = {"clip": 1.0, "missing": "skip", "order": 4, "count_weight": 1.5, "power_weight": 0.7}
        two = {**common, "clip": 3.0, "order": 2, "missing": "centre", **MAPPED}
        return (
            Setting("features", "power-moments", schema(3, categories=(2,)), common),
            Setting("mapped", "power-moments", schema(2, label=False), two),
            Setting("channels", "power-moments", schema(6), {**common, "channels": 2, "missing": "centre"}),
            # The worst record is among these: its hash says so.
            Setting("part", "power-moments", schema(3), {**common, "part": "statistics", "part_share": 0.999}),
        )

    def worst(self, setting: Setting) -> Records:
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        numbers = sum(isinstance(column, NumberColumn) for column in setting.schema.columns)
        channels = int(setting.parameters.get("channels", numbers))
        sides = np.where(np.arange(numbers) * channels // numbers % 2, -1.0, 1.0) * float(setting.parameters["clip"])
        record.features[:, :numbers] = sides
        return record


class _Gradient(Neighbours):
    """A long record that the model is sure of and wrong about: its gradient is clipped."""

    def settings(self) -> tuple[Setting, ...]:
        common = {"clip": 2.0, "missing": "centre", "gradient_clip": 0.5}
        linear = {"name": "linear", "inputs": None, "options": {"scale": 0.7, "bias": 0.3}}
        hidden = {"name": "mlp", "inputs": None, "options": {"hidden": 4, "scale": 1.0}}
        found = []
        for model in (linear, hidden):
            arrays = build_architecture(ModelSpec.model_validate(model), 2, 3).initial(1)
            arrays["head.bias"] = np.array([-5.0, 5.0, 0.0])
            setting = Setting(str(model["name"]), "gradient", schema(2), {**common, "model": model}, to_broadcast(arrays))
            found.append(setting)
        weighted = {**common, "model": linear, "class_weights": True}
        found.append(
            Setting(
                "weighted", "gradient", schema(2), weighted, {**found[0].broadcast, CLASS_WEIGHTS: np.array([1.0, 0.2, 0.0])}
            )
        )
        projected, own = {**common, "model": hidden, "projection": {"ratio": 2.0}}, {DRAW: np.array([0.0, 1.0])}
        found.append(Setting("projected", "gradient", schema(2), projected, {**found[1].broadcast, **own}))
        for name, loss, columns in (
            ("number", {"column": "n2", "loss": "squared"}, ()),
            ("tails", {"column": "n2", "loss": "huber"}, ()),
            ("count", {"column": "n2", "loss": "poisson"}, ()),
            ("time", {"column": "n2", "loss": "hazard", "event": "k0", "censored": ["a"], "cuts": [0.5]}, (2,)),
        ):
            model = hidden if name == "count" else linear
            arrays = build_architecture(ModelSpec.model_validate(model), 2, 2 if columns else 1).initial(1)
            arrays["head.bias"] = np.full(len(arrays["head.bias"]), 5.0)
            # Huber's loss has a slope of a quarter at most.
            stated = {**common, "model": model, "outcome": loss, **({"gradient_clip": 0.1} if name == "tails" else {})}
            found.append(Setting(name, "gradient", schema(3, categories=columns), stated, to_broadcast(arrays)))
        return tuple(found)

    def worst(self, setting: Setting) -> Records:
        own = np.array([[1.0, -1.0, -0.4 if setting.name != "time" else 0.9, 0.0, 1.0]])[:, : setting.schema.width]
        return complete(own, np.array([0]))


class _Grams(Neighbours):
    """Any record whose inputs of every layer are as long as the clip, or longer."""

    def settings(self) -> tuple[Setting, ...]:
        linear = {"name": "linear", "inputs": None, "options": {"scale": 0.7, "bias": 0.3}}
        hidden = {"name": "mlp", "inputs": None, "options": {"hidden": 4, "scale": 1.0}}
        found = []
        for model, layers, clip, missing in (
            (linear, ["head"], 0.8, "skip"),
            (hidden, ["features.hidden", "head"], 1.0, "centre"),
        ):
            arrays = build_architecture(ModelSpec.model_validate(model), 2, 3).initial(1)
            given = {"clip": 2.0, "missing": missing, "model": model, "layers": layers, "gram_clip": clip}
            found.append(Setting(str(model["name"]), "grams", schema(2), given, to_broadcast(arrays)))
        return tuple(found)

    def worst(self, setting: Setting) -> Records:
        return complete(np.array([[1.0, -1.0]]), np.array([0]))


_FEATURE_MEANS = (
    Setting("boxed", "feature-means", schema(3), {"clip": 1.5, "missing": "skip", "count_weight": 0.3, "sum_weight": 0.7}),
    Setting(
        "mapped", "feature-means", schema(2), {"clip": 1.2, "missing": "centre", "count_weight": 1, "sum_weight": 2, **MAPPED}
    ),
    Setting(
        "by-class",
        "feature-means",
        schema(3),
        {"clip": 1.5, "missing": "centre", "count_weight": 0.3, "sum_weight": 0.7, "classes": True},
    ),
)


class _ModelTables(Neighbours):
    """Tables by the prediction of a tree, of a perceptron, and of a time, and of classifiers, whose norm is 256.

    The worst record is in all of them; a classifier all but rules out its class, so that its loss is cut.
    """

    def settings(self) -> tuple[Setting, ...]:
        trees = {"name": "trees", "inputs": None, "options": {"trees": 2, "depth": 1}}
        hidden = {"name": "mlp", "inputs": None, "options": {"hidden": 3, "scale": 1.0}}
        time = {"column": "n1", "loss": "hazard", "event": "k0", "censored": ("a",), "cuts": (0.5,)}
        return (
            self._setting("trees", trees, {"column": "n1", "loss": "squared"}, 3, 1, {"missing": "centre"}),
            self._setting("count", hidden, {"column": "n1", "loss": "poisson"}, 3, 1, {"missing": "skip", "most": 0.8}),
            self._setting("time", hidden, time, 1, 2, {"missing": "centre"}),
            *self._classifiers(),
        )

    def _classifiers(self) -> Iterator[Setting]:
        two = schema(2).model_copy(update={"label": LabelColumn(column="y", classes=LABEL.classes[:2])})
        linear = {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1.0}}
        hidden = {"name": "mlp", "inputs": None, "options": {"hidden": 4, "scale": 1.0}}
        clipped = {"name": "discriminant", "inputs": None, "options": {"clip": 0.4}}
        three = ("c0", "c1", "c2")
        yield self._classifier("linear", schema(2), linear, three, {"missing": "centre"})
        yield self._classifier("unknown", schema(2), hidden, ("c1", "c0"), {"missing": "skip"})
        yield self._classifier("two", two, linear, ("c1", "c0"), {"missing": "centre", **MAPPED, "clip": 2.0})
        yield self._classifier("clipped", schema(2), clipped, three, {"missing": "centre"})

    def _classifier(
        self, name: str, agreed: DatasetSchema, model: dict[str, Any], classes: tuple[str, ...], more: dict[str, object]
    ) -> Setting:
        architecture = build_architecture(ModelSpec.model_validate(model), 2, len(classes), trained=False)
        arrays = architecture.initial(1)
        arrays["head.weight"] = np.random.default_rng(1).normal(size=arrays["head.weight"].shape)
        arrays["head.bias"] = np.where(np.array(classes) == "c0", -20.0, 0.0)
        low, by = (0.0, "class") if name == "two" else (1.0 / len(classes), "right")
        asked = (
            {"name": "confusion", "kind": "count", "over": ("class", "predicted")},
            {"name": "scores", "kind": "histogram", "over": ("prediction",), "by": (by,), "edges": (0.6, 0.8)},
            {"name": "loss", "kind": "histogram", "over": ("loss",), "edges": (1.0,)},
            {"name": "wrong", "kind": "count", "over": ("predicted",), "where": "loss >= 1"},
        )
        told = {"model": model, "sha256": model_digest(architecture, arrays), "classes": classes, "low": low, "high": 1.0}
        queries = [{**query, "scale": 128} for query in asked]
        parameters = {"queries": queries, "sensitivity": 256, "largest_loss": 2.0, **told, **more}
        return Setting(name, "model-tables", agreed, parameters, to_broadcast(arrays))

    def _setting(
        self, name: str, model: dict[str, Any], outcome: dict[str, Any], width: int, scores: int, more: dict[str, object]
    ) -> Setting:
        architecture = build_architecture(ModelSpec.model_validate(model), width, scores, trained=False)
        rng = np.random.default_rng(3)
        arrays = {key: rng.normal(size=shape) for key, shape in architecture.shapes().items()}
        if "features" in arrays:
            arrays["features"] = np.array([[0.0], [2.0]])
        asked = (
            {"name": "level", "kind": "count", "over": ("level",)},
            {"name": "outcome", "kind": "histogram", "over": ("n1",), "edges": (0.5,), "by": ("k0",)},
            {"name": "both", "kind": "histogram", "over": ("prediction",), "edges": (0.0, 0.5), "by": ("k0",)},
            {"name": "high", "kind": "count", "over": ("k0",), "where": "not (prediction is missing)"},
        )
        derived = ({"name": "level", "of": "prediction", "edges": (0.0, 0.5)},)
        told = {"model": model, "sha256": model_digest(architecture, arrays), "outcome": outcome, "low": -1.0, "high": 1.0}
        queries = [{**query, "scale": 128} for query in asked]
        parameters = {"queries": queries, "derived": derived, "sensitivity": 256, **told, **more}
        return Setting(name, "model-tables", schema(2, categories=(2,)), parameters, to_broadcast(arrays))

    def worst(self, setting: Setting) -> Records:
        if "classes" in setting.parameters:
            return complete(np.array([[0.5, -0.5]]), np.array([0]))
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        record.features[:] = [[0.5, 1.0, 1.0, 0.0]]
        return record


class _NewtonStep(Neighbours):
    """The worst record has the least likely outcome at a point that is sure of the other one; its terms have the length C."""

    def settings(self) -> tuple[Setting, ...]:
        broadcast = {WHITEN: math.sqrt(2.0) * np.eye(3), POINT: np.array([100.0, 1.0, -1.0])}
        asked = {"name": "fit", "kind": "linear", "over": ("n0", "k0"), "where": "not (k0 = 'b') or n0 >= 0"}
        event = {"family": "logistic", "length": 2.0, "information_share": 0.83, "query": {**asked, "outcome": "y = 'c1'"}}
        count = {"family": "poisson", "length": 2.0, "information_share": 1.0, "most": 1.0}
        data = schema(2, categories=(2,))
        offset = {"name": "far", "number": "1000 * n0 - 900 * n1", "low": -900.0, "high": 1000.0}
        count = {**count, "query": {**asked, "outcome": "n1"}}
        return (
            Setting("event", "newton-step", data, event, broadcast),
            Setting("excess", "newton-step", data, {**event, "excess_share": 0.55}, broadcast),
            Setting("count", "newton-step", data, count, broadcast),
            Setting("offset", "newton-step", data, {**count, "offset": "far", "derived": (offset,)}, broadcast),
        )

    def worst(self, setting: Setting) -> Records:
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        record.features[:] = [[1.0, -1.0, 1.0, 0.0]]
        assert record.labels is not None
        record.labels[:] = 0
        return record


class _CalibrationStep(Neighbours):
    """A record of the first class that the model is sure to be of the second, through a linear model and a hidden layer."""

    def settings(self) -> tuple[Setting, ...]:
        data = schema(2).model_copy(update={"label": LabelColumn(column="y", classes=LABEL.classes[:2])})
        linear = {"name": "linear", "inputs": None, "options": {"scale": 1.0, "bias": 1.0}}
        hidden = {"name": "mlp", "inputs": None, "options": {"hidden": 4, "scale": 1.0}}
        common = {"clip": 1e6, "length": 2.0, "information_share": 0.83}
        return (
            self._setting("linear", data, linear, {**common, "missing": "skip"}),
            self._setting("hidden", data, hidden, {**common, "missing": "centre", "information_share": 2.0}),
            self._setting("mapped", data, linear, {**common, **MAPPED, "missing": "centre", "information_share": 0.1}),
        )

    def _setting(self, name: str, data: DatasetSchema, model: dict[str, Any], parameters: dict[str, object]) -> Setting:
        arrays = build_architecture(ModelSpec.model_validate(model), 2, 2).initial(1)
        arrays["head.bias"] = np.array([-2.0, 2.0])
        arrays["head.weight"] = np.random.default_rng(1).normal(size=arrays["head.weight"].shape)
        broadcast = {**to_broadcast(arrays), WHITEN: np.array([[2.0, 0.0], [0.0, 0.05]]), POINT: np.array([100.0, 1.0])}
        if name == "hidden":  # where the information is as long as can be beside the score
            broadcast[POINT] = np.array([math.log(0.516 / 0.484) / 2.0, 0.0])
        return Setting(name, "calibration-step", data, {**parameters, "model": model}, broadcast)

    def worst(self, setting: Setting) -> Records:
        return complete(np.array([[0.5, -0.5]]), np.array([0]))

    def random(self, setting: Setting, rng: np.random.Generator, n: int) -> Records:
        records = super().random(setting, rng, n)
        assert records.labels is not None
        return replace(records, labels=np.minimum(records.labels, 1))


class _SiteScores(_NewtonStep):
    """The same record, which every family's point shortens."""

    def settings(self) -> tuple[Setting, ...]:
        event, _, count, _ = super().settings()
        found = []
        for family, setting in (("logistic", event), ("poisson", count), ("linear", count)):
            parameters = {"family": family, "length": 2.0, "query": setting.parameters["query"]}
            broadcast = {**setting.broadcast, SCALE: np.ones(1)}
            found.append(Setting(family, "site-scores", setting.schema, parameters, broadcast))
        return tuple(found)


class _ScoreProducts(_SiteScores):
    def settings(self) -> tuple[Setting, ...]:
        return tuple(replace(setting, task="score-products") for setting in super().settings())


class _HazardStep(Neighbours):
    """The worst record has an event late, when most was expected of it already; whitened, it is as long as may be."""

    def settings(self) -> tuple[Setting, ...]:
        broadcast = {
            hazard_step.WHITEN: 4.0 * np.eye(2),
            hazard_step.CENTRE: np.array([0.0, 0.5]),
            hazard_step.POINT: np.array([1.0, -1.0]),
            hazard_step.PERIODS: np.array([0.0, 0.5, 1.0]),
            hazard_step.POWERS: np.ones(1),
            hazard_step.HAZARDS: np.array([2.0, -3.0]),
        }
        asked = {"name": "fit", "kind": "linear", "over": ("n0", "k0"), "outcome": "y = 'c1'"}
        parameters = {"query": asked, "time": "n1", "periods": 2}
        data = schema(2, categories=(2,))
        periods = {
            hazard_step.PERIODS: np.array([0.0, 0.5, 1.0, 0.0, 0.9, 1.0]),
            hazard_step.POWERS: np.ones(2),
            hazard_step.HAZARDS: np.array([2.0, -3.0, 9.0, 9.0]),
        }
        entry = {"name": "entry", "number": "0.5 - n0 / 2", "low": 0.0, "high": 1.0}
        apart = {**parameters, "periods": 4, "strata": "k0", "entry": "entry", "derived": (entry,)}
        return (
            Setting("ends", "hazard-step", data, parameters, broadcast),
            Setting("strata", "hazard-step", data, apart, {**broadcast, **periods}),
            Setting("warped", "hazard-step", data, apart, {**broadcast, **periods, hazard_step.POWERS: np.array([0.4, 3.0])}),
        )

    def worst(self, setting: Setting) -> Records:
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        record.features[:] = [[1.0, 0.9, 1.0, 0.0]]
        assert record.labels is not None
        record.labels[:] = 0
        return record


class _SiteHazardScores(_HazardStep):
    def settings(self) -> tuple[Setting, ...]:
        ends, *_ = super().settings()
        added = {BASELINE: np.array([[0.5, 0.0], [1.0, -0.5]]), SCALE: np.full(1, 4.0)}
        return (replace(ends, task="site-hazard-scores", broadcast={**ends.broadcast, **added}),)


class _TreeGradients(Neighbours):
    """The worst record has an outcome as far from a sure prediction as can be."""

    def settings(self) -> tuple[Setting, ...]:
        data = schema(2, categories=(3,)).model_copy(update={"label": LabelColumn(column="y", classes=LABEL.classes[:2])})
        common = {"clip": 1e6, "trees": 3, "depth": 2, "largest_model": 4}
        count = {**common, "loss": "poisson", "outcome": "n1"}
        classes = schema(2, categories=(3,))
        return (
            self._setting("classes", classes, {**common, "loss": "softmax", "missing": "skip"}, 0.0),
            self._setting("event", data, {**common, "loss": "logistic", "missing": "skip"}, 600.0),
            self._setting("number", data, {**common, "loss": "squared", "missing": "centre", "outcome": "n1"}, 600.0),
            self._setting("count", data, {**count, "missing": "skip", "most": 0.5}, -600.0),
            self._setting("far", data, {**count, "missing": "centre", "most": 2.0}, 600.0),
        )

    def _setting(self, name: str, agreed: DatasetSchema, parameters: dict[str, object], margin: float) -> Setting:
        """Four trees of which the first is in the model already."""
        rng = np.random.default_rng(2)
        leaves = np.array([[1.0, -1.0, 2.0, 0.5], *np.zeros((3, 4))])
        if parameters["loss"] == "softmax":  # the second class certain, or it and the third alike
            leaves = np.zeros((4, 4, 3))
            leaves[0] = [[0, 600, 0], [0, 600, 0], [0, 600, 600], [0, 600, 600]]
        model = {
            "features": rng.integers(0, 4, (4, 3)).astype(np.float64),  # an outcome is not a feature
            "thresholds": rng.uniform(-0.5, 0.5, (4, 3)),
            "leaves": leaves,
            "base": np.full(3 if leaves.ndim > 2 else 1, margin),
        }
        return Setting(name, "tree-gradients", agreed, parameters, to_broadcast(model))

    def worst(self, setting: Setting) -> Records:
        record = random_records(np.random.default_rng(0), 1, setting.schema, complete=True)
        assert record.labels is not None
        record.labels[:] = 0
        record.features[:, 1] = 1.0 if setting.name == "count" else -1.0
        return record

    def random(self, setting: Setting, rng: np.random.Generator, n: int) -> Records:
        records = super().random(setting, rng, n)
        assert records.labels is not None
        return replace(records, labels=np.minimum(records.labels, len(setting.schema.classes) - 1))


NEIGHBOURS: Mapping[str, Neighbours] = {
    "tree-gradients": _TreeGradients(),
    "hazard-step": _HazardStep(),
    "newton-step": _NewtonStep(),
    "calibration-step": _CalibrationStep(),
    "site-hazard-scores": _SiteHazardScores(),
    "site-scores": _SiteScores(),
    "score-products": _ScoreProducts(),
    "model-tables": _ModelTables(),
    "feature-means": _Moments(_FEATURE_MEANS),
    "gradient": _Gradient(),
    "grams": _Grams(),
    "tables": _Tables(),
    "class-moments": _Moments((*_CLASS_MOMENTS, *_CENTRED)),
    "gaussian-moments": _Moments(_GAUSSIAN_MOMENTS),
    "prototypes": _Moments(_PROTOTYPES),
    "class-mixtures": _Moments(_CLASS_MIXTURES),
    "power-moments": _PowerMoments(),
}
"""By the registered task's name; every task that reads records, but for those that train, whose steps are audited apart."""

SETTINGS = tuple(setting for name in sorted(NEIGHBOURS) for setting in NEIGHBOURS[name].settings())


def random_records(rng: np.random.Generator, n: int, agreed: DatasetSchema, *, complete: bool = False) -> Records:
    """Records as a reader returns them; a fifth of the cells is missing unless ``complete``."""
    features, present = np.zeros((n, agreed.width)), np.zeros((n, agreed.width), dtype=np.bool_)
    offset = 0
    for column in agreed.columns:
        known = np.ones(n, dtype=np.bool_) if complete else rng.random(n) < 0.8
        if isinstance(column, NumberColumn):
            values = rng.uniform(-1, 1, (n, 1))
        else:
            values = np.eye(column.width)[rng.integers(0, column.width, n)]
        features[:, offset : offset + column.width] = values * known[:, None]
        present[:, offset : offset + column.width] = known[:, None]
        offset += column.width
    low = 0 if complete else -1
    return Records(features, present, rng.integers(low, 3, n) if agreed.label is not None else None)


def spoil(records: Records, rng: np.random.Generator) -> Records:
    """Empty some records, push some to the bounds, and plant NaN, infinity and values far out of bounds in others."""
    features, present = records.features.copy(), records.present.copy()
    kind = rng.integers(0, 6, len(records))
    features[kind == 0], present[kind == 0] = 0.0, False
    features[kind == 1] = np.sign(features[kind == 1])
    poison = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324])
    rows = np.flatnonzero(kind == 2)
    columns = rng.integers(0, features.shape[1], len(rows))
    features[rows, columns], present[rows, columns] = rng.choice(poison, len(rows)), True
    return replace(records, features=features, present=present)


def with_subjects(records: Records, rng: np.random.Generator) -> Records:
    """The records as those of subjects drawn at random, with even numbers."""
    n = len(records)
    return replace(records, subjects=np.sort(2 * rng.integers(0, max(1, n), n)).astype(np.int64))


def repeated(record: Records, times: int) -> Records:
    """The same record ``times`` over."""
    return record.take(np.zeros(times, dtype=np.intp))


def check_rows_stand_alone(task: RowTask[Any], records: Records, seen: Mapping[str, Floats]) -> None:
    """Insist that a record's row is the same to the last bit beside all others and alone, as products of BLAS are not.

    Of at most twenty records, the first and the last among them.
    """
    together = rows_of(task, seen)(records)
    rows = rows_of(task, seen)  # in whose blocks there is another record, or none, wherever the first had its others
    for row in np.unique(np.linspace(0, len(records) - 1, 20).astype(int)).tolist():
        np.testing.assert_array_equal(together[row : row + 1], rows(records.take(slice(row, row + 1))))


def join(first: Records, second: Records) -> Records:
    """Both sets of records, sorted by subject where they have subjects."""
    labels = None if first.labels is None or second.labels is None else np.concatenate([first.labels, second.labels])
    features = np.concatenate([first.features, second.features])
    present = np.concatenate([first.present, second.present])
    if first.subjects is None or second.subjects is None:
        return Records(features, present, labels)
    subjects = np.concatenate([first.subjects, second.subjects])
    return Records(features, present, labels, subjects).take(np.argsort(subjects, kind="stable"))


def add_unit(base: Records, added: Records, unit: Unit, rng: np.random.Generator) -> tuple[Records, Records]:
    """The worlds without and with one unit: one record at a random place, or one subject with all records of ``added``.

    The subjects of ``base`` are drawn at random; the added one comes before, between or after them.
    """
    if unit == "record":
        assert len(added) == 1
        both = join(base, added)
        return base, both.take(np.insert(np.arange(len(base)), int(rng.integers(0, len(base) + 1)), len(base)))
    without = with_subjects(base, rng)
    new = int(2 * rng.integers(-1, len(base) + 1) + 1)
    return without, join(without, replace(added, subjects=np.full(len(added), new, dtype=np.int64)))


def exact_norm(vector: NDArray[np.int64]) -> float:
    """L2 norm of integers of any size, correctly rounded."""
    return math.sqrt(sum(int(value) ** 2 for value in vector))


def network_settings() -> tuple[Setting, ...]:
    """Tasks of factors whose model is an opaque map."""
    spec = resolve_model(ModelSpec(name="lenet5", inputs=(1, 12, 12), options={"conv1": 2, "conv2": 2, "fc1": 5, "fc2": 4}))
    arrays = to_broadcast(build_architecture(spec, 144, 3).initial(3))
    common = {"clip": 20.0, "missing": "skip", "model": spec.model_dump(mode="json")}
    large = schema(144)
    return (
        Setting("network", "gradient", large, {**common, "gradient_clip": 0.5}, arrays),
        Setting("network", "grams", large, {**common, "gram_clip": 1.0, "layers": ["head", "features.fc1"]}, arrays),
    )
