"""Configurations beyond what methods ask for: every kind of query, condition and derived number, odd bounds, any broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import ValidationError

from analyst.examples import Floats
from support.neighbours import SETTINGS, TASK_LABEL, Setting, join, moments_parameters, random_records, schema, spoil
from veilsum_node.errors import VeilsumError
from veilsum_privacy.audit.references import unsigned_study
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, Column, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study, TaskDeclaration, Unit
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.hazard_step import PERIODS
from veilsum_privacy.tasks.local_training import SEEDS
from veilsum_privacy.tasks.queries.kinds import KINDS
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.objectives import OBJECTIVES, ObjectiveSpec, resolve_objective
from veilsum_privacy.training.released import model_digest

BOUNDS = (
    (0.0, 1.0), (-1.0, 1.0), (0.0, 40.0), (-5.0, -1.0), (1e-100, 3e-100), (-1e100, 1e100), (1e99, 1e100), (0.0, 1e100),
    (-1e-100, 1e-100), (1.0, 1.0 + 2**-50),
)  # fmt: skip
SIZES = (1e-300, 1e-200, 1e-100, 1e-30, 1e-9, 1e-3, 0.1, 1.0, 3.0, 50.0, 700.0, 1e4, 1e6, 1e12, 1e60, 1e100, 1e155, 1e290)
NUMBERS = (
    "{0} * {1}", "{0} - {1} / 2 + 1", "{0} * {0} * {0} * {0} * {0}", "1e300 * {0} - 1e300 * {0}", "1e300 * {0} * {0}",
    "{0} / 1e-300", "log({0})", "above({0}, {c})", "{c} * (k0 = 'b')", "{0} * (k0 = 'a') - {1} * (y = 'c1') * 1e200",
    "{0} * (not ({1} >= {c}))", "{0} - {0}", "0 * {0} + {c}",
)  # fmt: skip
"""Derived numbers, some of them undefined or infinite somewhere, or everywhere."""

POISON = (np.nan, np.inf, -np.inf, 1e308, -1e300, 5e-324, 1.5, -1.0000001)
DESIGNS = ("newton-step", "hazard-step", "site-scores", "site-hazard-scores")


@dataclass(frozen=True)
class Configuration:
    """A task, a broadcast, and records to compute it on.

    Attributes:
        task: its name.
        study: that declares it as ``label``.
        broadcast: that its round starts from.
        base: records D, and ``added``: those of one unit, r.
        additive: whether what a unit adds to the sum is the same in any company.
        rounded: whether the sum is rounded after it was added up.
    """

    task: str
    study: Study
    label: str
    broadcast: dict[str, Floats]
    base: Records
    added: Records
    additive: bool = False
    rounded: bool = False

    def worlds(self) -> list[Records]:
        """{}, {r}, D and D + r."""
        base, added = self.base, self.added
        if self.study.privacy.unit == "subject":
            rng = np.random.default_rng(0)
            base = replace(base, subjects=np.sort(2 * rng.integers(0, max(1, len(base)), len(base))).astype(np.int64))
            added = replace(added, subjects=np.full(len(added), 5, dtype=np.int64))
        return [base.take(slice(0, 0)), added, base, join(base, added)]


def configuration(seed: int) -> Configuration | None:
    """The configuration of a seed; None if it is not a study."""
    rng = np.random.default_rng(seed)
    unit: Unit = "subject" if rng.random() < 0.5 else "record"
    try:
        setting = _asked(rng, unit) if rng.random() < 0.6 else _known(rng, unit)
        study = setting.study(unit, grid=2**20, variance=0, noise="none")
    except (VeilsumError, ValidationError, ArithmeticError):
        return None
    rows = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    broadcast = {**setting.broadcast, **rows}
    return Configuration(
        setting.task,
        study,
        TASK_LABEL,
        broadcast,
        *_both(rng, setting.schema, unit),
        additive=setting.additive,
        rounded=setting.rounded,
    )


def trained(seed: int) -> Configuration | None:
    """The configuration of a seed whose task trains at the site, or computes from what it kept; None if it is not a study."""
    rng = np.random.default_rng(seed)
    unit: Unit = "subject" if rng.random() < 0.5 else "record"
    try:
        agreed, declared = _training(rng) if rng.random() < 0.5 else _derived(rng)
        privacy = SETTINGS[0].study(unit, grid=2**20, variance=0, noise="none").privacy
        study = unsigned_study(agreed, privacy, declared[0], tuple("abcd")).model_copy(update={"tasks": declared})
        task = AgreedStudy(study).task(declared[-1].label)
        example = made_up_broadcast(task)[1]
    except (VeilsumError, ValidationError, ArithmeticError):
        return None
    broadcast = {name: _any_array(array, rng) for name, array in example.items()}
    if SEEDS in broadcast and rng.random() < 0.9:
        broadcast[SEEDS] = example[SEEDS]
    return Configuration(declared[-1].task, study, declared[-1].label, broadcast, *_both(rng, agreed, unit))


def _training(rng: np.random.Generator) -> tuple[DatasetSchema, tuple[TaskDeclaration, ...]]:
    name = str(_pick(rng, sorted(OBJECTIVES)))
    hidden = _pick(rng, ({"name": "linear"}, {"name": "mlp", "options": {"hidden": 3}}))
    objective = ObjectiveSpec(name=name)
    parameters = {
        "clip": float(_pick(rng, (1e-3, 1.0, 1e6))), "missing": _pick(rng, ("skip", "centre")), "width": None,
        "model": resolve_model(ModelSpec.model_validate(hidden)).model_dump(mode="json"),
        "objective": resolve_objective(objective).model_dump(mode="json"), "epochs": 1, "batch": int(_pick(rng, (1, 4, 64))),
        "learning_rate": float(_pick(rng, (1e-100, 1e-3, 0.1, 10.0, 1e6))), "momentum": float(_pick(rng, (0.0, 0.9))),
        "decay": float(_pick(rng, (0.0, 1e-3, 1e6))), "norm": float(_pick(rng, (1e-30, 1.0, 1e9))),
        "weighting": _pick(rng, ("equal", "records")), "normalised": bool(rng.random() < 0.5), "local_steps": 1,
        "gradient_clip": 0.5, "expected_records": 8,
    }  # fmt: skip
    declared = _declare("trained", "local-training", parameters, resolution=2**16)
    return schema(2, categories=(2,)), (declared,)


def _derived(rng: np.random.Generator) -> tuple[DatasetSchema, tuple[TaskDeclaration, ...]]:
    agreed = schema(2)
    power = {"clip": 1.0, "missing": "skip", "order": 4, "count_weight": 1.0, "power_weight": 1.0}
    tau = float(_pick(rng, (0.0, 1e-100, 0.4, 1.0)))
    size = float(_pick(rng, (1e-30, 1.0, 1e6)))
    own = {"ridge": float(_pick(rng, (1e-300, 0.1, 1e9))), "bias": size, "prior": float(_pick(rng, (0.0, 1.0))), "reach": size}
    kept, task, parameters = _pick(
        rng,
        (
            ("power-moments", "within-moments", {}),
            ("class-moments", "barycenter-step", {"bound": size}),
            ("class-moments", "two-way-step", {"step": "within", "bound": size}),
            ("class-moments", "two-way-step", {"step": "effects", "bound": size}),
            ("class-moments", "aligned-moments", {"alignment": {"kind": "slopes", "tau": tau}, "reach": size}),
            ("class-moments", "aligned-moments", {"alignment": {"kind": "two-way", "tau": tau}, "reach": size}),
            ("class-moments", "aligned-moments", {"alignment": {"kind": "barycenter", "tau": tau}, "reach": size}),
            ("class-moments", "ridge-head", own),
            ("class-moments", "ridge-head", own | {"alignment": {"kind": "slopes", "tau": tau}}),
            ("class-moments", "ridge-head", own | {"alignment": {"kind": "two-way", "tau": tau}}),
            ("class-moments", "ridge-head", own | {"alignment": {"kind": "barycenter", "tau": tau}}),
        ),
    )
    source = power if kept == "power-moments" else moments_parameters(1.3, 1, 1, 1, 1)
    return agreed, (_declare("kept", kept, source, keep=True), _declare("derived", task, parameters, source="kept"))


def _declare(label: str, task: str, parameters: Mapping[str, Any], **more: Any) -> TaskDeclaration:
    values = {"disclosure": "joint", "releases": 1, "grid": 2**20, "variance": 0, **more}
    return TaskDeclaration(label=label, task=task, parameters=dict(parameters), **values)


def _both(rng: np.random.Generator, agreed: DatasetSchema, unit: Unit) -> tuple[Records, Records]:
    return _records(rng, agreed, int(rng.integers(0, 12))), _records(
        rng, agreed, 1 if unit == "record" else int(rng.integers(1, 5))
    )


def _pick(rng: np.random.Generator, among: Any) -> Any:
    return among[int(rng.integers(len(among)))]


# -- tasks as they are known, with any broadcast ----------------------------------------------------------------------------


def _known(rng: np.random.Generator, unit: Unit) -> Setting:
    setting: Setting = _pick(rng, SETTINGS)
    if unit == "subject" and setting.task in ("tables", "model-tables", *DESIGNS):
        setting = replace(setting, parameters={**setting.parameters, **_persons(rng)})
    broadcast = {name: _any_array(array, rng) for name, array in setting.broadcast.items()}
    given = {name: _any_array(array, rng) for name, array in setting.given.items()}
    parameters = dict(setting.parameters)
    if "sha256" in parameters:  # the model that it names is the broadcast one
        spec = ModelSpec.model_validate(parameters["model"])
        arrays = {name.removeprefix(MODEL): array for name, array in broadcast.items()}
        inputs, scores = _sizes(setting)
        parameters["sha256"] = model_digest(build_architecture(spec, inputs, scores, trained=False), arrays)
    return replace(setting, parameters=parameters, broadcast=broadcast, given=given)


def _sizes(setting: Setting) -> tuple[int, int]:
    if "classes" in setting.parameters:
        return 2, len(setting.parameters["classes"])
    hazard = setting.parameters["outcome"]["loss"] == "hazard"
    return (1, 2) if hazard else (3, 1)


def _any_array(array: Floats, rng: np.random.Generator) -> Floats:
    kind = rng.integers(8)
    if kind <= 2:
        return array
    if kind == 3:
        return rng.normal(size=array.shape) * _pick(rng, SIZES[5:13])
    if kind == 4 and array.size:
        changed = np.array(array)
        changed.reshape(-1)[rng.integers(array.size)] = _pick(rng, SIZES) * rng.choice([-1.0, 1.0])
        return changed
    if kind == 5:
        return rng.choice(SIZES, array.shape) * rng.choice([-1.0, 1.0], array.shape)
    if kind == 6:
        return np.full(array.shape, _pick(rng, SIZES) * rng.choice([-1.0, 0.0, 1.0]))
    return np.round(rng.normal(size=array.shape))


def _persons(rng: np.random.Generator) -> dict[str, Any]:
    return {"person": _pick(rng, (None, "first", "last", "max", "mean")), "at_most": int(rng.integers(0, 3))}


# -- queries ----------------------------------------------------------------------------------------------------------------


def _schema(rng: np.random.Generator) -> DatasetSchema:
    columns: list[Column] = []
    for index in range(int(rng.integers(1, 4))):
        low, high = _pick(rng, BOUNDS) if rng.random() < 0.5 else (0.0, 1.0)
        columns.append(NumberColumn(name=f"n{index}", low=low, high=high, impute=low if rng.random() < 0.2 else None))
    for index in range(int(rng.integers(1, 3))):
        levels = tuple("abcd"[: int(rng.integers(2, 5))])
        columns.append(CategoryColumn(name=f"k{index}", categories=levels, impute="a" if rng.random() < 0.2 else None))
    classes = tuple(ClassValues(name=f"c{index}", values=(str(index),)) for index in range(int(rng.integers(2, 4))))
    return DatasetSchema(columns=tuple(columns), label=LabelColumn(column="y", classes=classes), max_records=64)


class _Asker:
    """Asks about the columns of a schema."""

    def __init__(self, rng: np.random.Generator, schema: DatasetSchema) -> None:
        self.rng, self.schema = rng, schema
        self.bounds = {c.name: (c.low, c.high) for c in schema.columns if isinstance(c, NumberColumn)}
        self.levels = {c.name: c.categories for c in schema.columns if isinstance(c, CategoryColumn)}
        self.levels["y"] = schema.classes
        self.derived: list[dict[str, Any]] = []

    def derive(self) -> None:
        for index in range(int(self.rng.integers(0, 3))):
            low, high = _pick(self.rng, BOUNDS)
            name, text = f"d{index}", str(_pick(self.rng, NUMBERS))
            first, second = (_pick(self.rng, sorted(self.bounds)) for _ in range(2))
            number = text.format(first, second, c=f"{abs(self.constant(first)):g}")
            self.derived.append({"name": name, "number": number, "low": low, "high": high})
            self.bounds[name] = (low, high)
        name = _pick(self.rng, sorted(self.bounds))
        if len(edges := self.edges(name)) > 1:
            self.derived.append({"name": "cut", "of": name, "edges": edges})
            whole = sorted({*edges, *self.bounds[name]})
            self.levels["cut"] = tuple(f"{a:g} to {b:g}" for a, b in pairwise(whole))

    def constant(self, name: str) -> float:
        low, high = self.bounds[name]
        inside = low + float(self.rng.random()) * (high - low)
        return float(_pick(self.rng, (low, high, (low + high) / 2, inside, inside, 0.0, 1e300)))

    def edges(self, name: str) -> tuple[float, ...]:
        low, high = self.bounds[name]
        drawn = low + self.rng.random(int(self.rng.integers(1, 5))) * (high - low)
        ends = [*drawn.tolist(), *([low] if self.rng.random() < 0.3 else []), *([high] if self.rng.random() < 0.3 else [])]
        return tuple(sorted({edge for edge in ends if edge == 0.0 or abs(edge) >= 1e-100}))

    def condition(self, depth: int = 0) -> str:
        kind = self.rng.integers(6 if depth < 3 else 4)
        if kind == 4:
            return f"({self.condition(depth + 1)} {_pick(self.rng, ('and', 'or'))} {self.condition(depth + 1)})"
        if kind == 5:
            return f"not ({self.condition(depth + 1)})"
        if kind == 0:
            name = _pick(self.rng, [*self.bounds, *self.levels])
            return f"{name} is {_pick(self.rng, ('missing', 'not missing'))}"
        if kind == 1:
            name = _pick(self.rng, sorted(self.levels))
            chosen = sorted({str(_pick(self.rng, self.levels[name])) for _ in range(2)})
            listed = ", ".join(f"'{level}'" for level in chosen)
            return f"{name} {_pick(self.rng, ('in', 'not in'))} ({listed})"
        if kind == 2:
            name = _pick(self.rng, sorted(self.levels))
            return f"{name} {_pick(self.rng, ('=', '!='))} '{_pick(self.rng, self.levels[name])}'"
        name = _pick(self.rng, sorted(self.bounds))
        return f"{name} {_pick(self.rng, ('=', '!=', '<', '<=', '>', '>='))} {self.constant(name):g}"

    def event(self) -> str:
        return self.condition(2)

    def query(self, name: str, kind: str) -> dict[str, Any]:
        rng, numbers, levels = self.rng, sorted(self.bounds), sorted(self.levels)
        some = lambda among, most: tuple(dict.fromkeys(_pick(rng, among) for _ in range(int(rng.integers(1, most + 1)))))  # noqa: E731
        asked: dict[str, Any] = {"name": name, "kind": kind, "missing": _pick(rng, ("drop", "level", "level"))}
        asked["scale"] = int(_pick(rng, (1, 3, 64, 1000)))
        if rng.random() < 0.7:
            asked["where"] = self.condition()
        if rng.random() < 0.5:
            asked["by"] = some(levels, 2)
        over: dict[str, Callable[[], tuple[str, ...]]] = {
            "count": lambda: some(levels, 2), "independence": lambda: tuple(rng.permutation(levels)[:2].tolist()),
            "mean": lambda: some(numbers, 3), "compare": lambda: some(numbers, 2), "correlation": lambda: tuple(numbers[:3]),
            "missing": lambda: some([*numbers, *levels], 3), "synthetic": lambda: some([*numbers, *levels], 4),
            "linear": lambda: some([*numbers, *levels], 3), "discrimination": lambda: some([*numbers, *levels], 1),
        }  # fmt: skip
        asked["over"] = over[kind]() if kind in over else (_pick(rng, numbers),)
        if kind in ("histogram", "quantiles", "survival", "logrank", "discrimination"):
            column = asked["over"][0] if kind != "discrimination" else _pick(rng, numbers)
            if column in self.bounds:
                asked["edges"] = self.edges(column)
        if kind in ("survival", "logrank") or (kind == "discrimination" and rng.random() < 0.5):
            event = _pick(rng, levels)
            asked |= {"event": event, "censored": self.levels[event][:1]}
            if kind == "discrimination":
                asked["outcome"] = column
        elif kind in ("linear", "discrimination", "effect"):
            number = kind != "discrimination" and rng.random() < 0.4
            asked["outcome"] = _pick(rng, numbers) if number else self.event()
        if kind == "effect":
            asked["by"] = (_pick(rng, [level for level in levels if len(self.levels[level]) == 2] or levels),)
        if kind in ("synthetic", "linear", "correlation"):
            asked["by"] = ()
        return asked


def _asked(rng: np.random.Generator, unit: Unit) -> Setting:
    """A task of columns with queries of its own."""
    agreed = _schema(rng)
    asker = _Asker(rng, agreed)
    asker.derive()
    persons = _persons(rng) if unit == "subject" else {}
    common: dict[str, Any] = {"derived": asker.derived, **persons}
    if rng.random() < 0.65:
        kinds = [str(_pick(rng, sorted(KINDS))) for _ in range(int(rng.integers(1, 4)))]
        queries = []
        for index, kind in enumerate(kinds):
            queries.append(asker.query(f"q{index}", kind))
        return Setting("asked", "tables", agreed, {**common, "queries": queries, "sensitivity": 2 ** int(rng.integers(0, 14))})
    task = str(_pick(rng, DESIGNS))
    query = {**asker.query("fit", "linear"), "by": ()}
    parameters: dict[str, Any] = {**common, "query": query}
    length = float(_pick(rng, (1e-3, 0.5, 2.0, 1e6)))
    if task in ("newton-step", "site-scores"):
        number = query["outcome"] in asker.bounds
        families = ("poisson",) if number else ("logistic",)
        family = _pick(rng, (*families, "linear") if task == "site-scores" else families)
        parameters |= {"family": family, "length": length, "most": float(_pick(rng, (1.0, 0.01, 1e6)))}
        if task == "newton-step":
            parameters["information_share"] = float(_pick(rng, (1e-3, 0.83, 1e3)))
    else:
        query["outcome"] = asker.event()
        parameters |= {"time": _pick(rng, sorted(asker.bounds)), "periods": int(rng.integers(1, 5))}
    setting = Setting("asked", task, agreed, parameters)
    known = TASKS[task](TASKS[task].Parameters.model_validate(parameters), agreed).example_broadcast(4)
    broadcast = {name: _any_array(array, rng) for name, array in known.items()}
    if PERIODS in broadcast and rng.random() < 0.8:
        ends = np.sort(rng.choice([0.0, 0.2, 0.5, 0.5, 1.0, 5e-324, 1e-300], broadcast[PERIODS].shape))
        broadcast[PERIODS] = ends
    return replace(setting, broadcast=broadcast)


# -- records ----------------------------------------------------------------------------------------------------------------


def _records(rng: np.random.Generator, schema: DatasetSchema, n: int) -> Records:
    """Records at bounds and between, with missing cells, values that no reader gives, and classes that there are not."""
    records = random_records(rng, n, schema)
    start = 0
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            at = rng.random(n) < 0.5
            chosen = rng.choice([-1.0, 0.0, 1.0, 0.5, -0.5, 2**-40], n)
            records.features[at, start] = (chosen * records.present[:, start])[at]
        start += column.width
    if rng.random() < 0.5:
        records = spoil(records, rng)
    if n and rng.random() < 0.3:
        row, place = int(rng.integers(n)), int(rng.integers(schema.width))
        records.features[row, place], records.present[row, place] = _pick(rng, POISON), True
    if records.labels is not None:
        labels = records.labels.copy()
        labels[rng.random(n) < 0.1] = _pick(rng, (-5, len(schema.classes), 2**40))
        records = replace(records, labels=labels)
    return records
