"""Sums of every task on made-up records, as integers before noise, that no change of how they are computed may change.

Records are hostile: missing, at bounds, not finite and far out of bounds. Run this file to write those of the working tree:
only where a decision says that a sum has changed, and under a new number of the method.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.neighbours import NEIGHBOURS, SETTINGS, Setting, schema, spoil, with_subjects
from support.randomness import SeededRandom
from support.studies import projection
from veilsum_privacy.audit.references import references
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_MATRIX, ALIGNMENT_OFFSET

FILE = Path(__file__).parents[1] / "data" / "golden-sums.json"
RECORDS = 320
GRID = 2**20
ROUNDED = frozenset({"gradient", "grams", "local-training"})
"""Tasks whose sums are made of reals that are rounded once: kept value by value, for the last one may differ by machine."""

PERSONS: tuple[Mapping[str, Any], ...] = (
    {"person": "first"}, {"person": "last"}, {"person": "max"}, {"person": "mean"}, {"at_most": 1}, {"at_most": 3},
)  # fmt: skip
COUNTED = frozenset({
    "tables", "model-tables", "newton-step", "hazard-step", "site-scores", "score-products", "site-hazard-scores",
})  # fmt: skip
"""Tasks that may be asked about persons."""

CURVE = {"event": "end", "censored": ("alive",), "edges": (0.0, 20.0, 40.0, 60.0)}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "count": {"kind": "count", "over": ("sex",), "by": ("arm",)},
    "all": {"kind": "count", "where": "age >= 50 and (arm is missing or arm not in ('b', 'c')) or stay is missing"},
    "level": {"kind": "count", "over": ("sex", "old"), "missing": "level"},
    "histogram": {"kind": "histogram", "over": ("age",), "edges": (40.0, 60.0, 80.0), "missing": "level"},
    "quantiles": {"kind": "quantiles", "over": ("stay",), "by": ("sex",), "edges": (10.0, 20.0, 30.0), "at": (0.5,)},
    "mean": {"kind": "mean", "over": ("age", "stay", "ratio"), "by": ("arm",), "missing": "level"},
    "one": {"kind": "mean", "over": ("odds",), "where": "age != 50"},
    "compare": {"kind": "compare", "over": ("stay",), "by": ("sex",)},
    "independence": {"kind": "independence", "over": ("arm", "sex")},
    "correlation": {"kind": "correlation", "over": ("age", "stay", "odds"), "where": "sex = 'm'"},
    "linear": {"kind": "linear", "outcome": "stay", "over": ("age", "arm", "odds")},
    "event": {"kind": "linear", "outcome": "end = 'died'", "over": ("age", "y")},
    "missing": {"kind": "missing", "over": ("age", "sex", "end", "old"), "by": ("arm",)},
    "survival": {"kind": "survival", "over": ("stay",), "by": ("arm",), "at": (0.5,), **CURVE},
    "logrank": {"kind": "logrank", "over": ("stay",), "by": ("sex",), "missing": "level", **CURVE},
    "area": {
        "kind": "discrimination", "over": ("age",), "outcome": "end = 'died' or age > 70", "where": "end is not missing",
    },
    "concordance": {"kind": "discrimination", "over": ("old",), "by": ("sex",), "outcome": "stay", **CURVE},
    "risk": {"kind": "effect", "over": ("odds",), "by": ("sex",), "outcome": "end = 'died'", "missing": "level"},
    "effect": {"kind": "effect", "over": ("odds",), "by": ("sex",), "outcome": "stay", "where": "arm != 'a'"},
    "synthetic": {"kind": "synthetic", "over": ("arm", "sex", "age"), "missing": "level"},
}  # fmt: skip
DERIVED = (
    {"name": "old", "of": "age", "edges": (50.0, 70.0)},
    {"name": "odds", "number": "0.06 * age - 3.3 + 0.5 * (sex = 'm')", "low": -2.0, "high": 2.0},
    {"name": "ratio", "number": "log(age) * stay / 3 - above(age, 60) * above(stay, 30)", "low": -100.0, "high": 100.0},
)


def hospital() -> DatasetSchema:
    """Numbers, categories and three classes."""
    numbers = (NumberColumn(name="age", low=18, high=90), NumberColumn(name="stay", low=0, high=60, impute=5.0))
    categories = (("sex", ("f", "m")), ("arm", ("a", "b", "c")), ("end", ("alive", "died", "moved")))
    columns = (*numbers, *(CategoryColumn(name=name, categories=levels) for name, levels in categories))
    return schema(1).model_copy(update={"columns": columns})


def _tables() -> Iterator[Setting]:
    for name, query in ASKED.items():
        asked = {"queries": [{"name": name, "scale": 512, **query}], "derived": DERIVED, "sensitivity": 2**12}
        yield Setting(f"asked {name}", "tables", hospital(), asked)
    every = [{"name": name, "scale": 100, **query} for name, query in ASKED.items()]
    yield Setting("every", "tables", hospital(), {"queries": every, "derived": DERIVED, "sensitivity": 2**11})


def _plain(setting: Setting) -> Setting:
    """With room for all records."""
    return replace(setting, schema=setting.schema.model_copy(update={"max_records": 2**12}))


def _records(setting: Setting) -> Records:
    seed = int.from_bytes(hashlib.sha256(f"{setting.task} {setting.name}".encode()).digest()[:4], "big")
    rng = np.random.default_rng(seed)
    some = NEIGHBOURS[setting.task].random(setting, rng, RECORDS) if setting.task in NEIGHBOURS else None
    assert some is not None
    return with_subjects(spoil(some, rng), rng)


def _sum(study: Study, setting: Setting, broadcast: Mapping[str, Any], records: Records) -> NDArray[np.int64]:
    plan = AgreedStudy(study).task(study.tasks[0].label).plan(study.sites, study.sites)
    rows = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    return compute_sum(plan, records, {**broadcast, **rows}, SitePlace(0, random=SeededRandom(7))).total


def _changed(study: Study, **changes: Any) -> Study:
    return study.model_copy(update={"tasks": (study.tasks[0].model_copy(update=changes),)})


Case = Callable[[], NDArray[np.int64]]


def cases() -> Iterator[tuple[str, Case]]:
    """Each by its name, ``task/setting/how``."""
    for setting in map(_plain, (*SETTINGS, *_tables())):
        yield from _of_setting(setting)
    yield from _encoded()
    yield "tables/every/limbs", _in_limbs
    for reference in references():
        if reference.task == "local-training":
            agreed = reference.study(unit="record", noise="local", rate=reference.rates[-1])
            tried, arrays = made_up_broadcast(agreed.task(reference.task))
            setting = Setting("reference", "tables", reference.schema)
            yield "local-training/reference/record", _bound(tried.study, setting, arrays, _training_records(setting))


def _training_records(setting: Setting) -> Records:
    rng = np.random.default_rng(5)
    return with_subjects(NEIGHBOURS["tables"].random(setting, rng, RECORDS), rng)


def _bound(study: Study, setting: Setting, broadcast: Mapping[str, Any], records: Records) -> Case:
    return lambda: _sum(study, setting, broadcast, records)


def _of_setting(setting: Setting) -> Iterator[tuple[str, Case]]:
    records, name = _records(setting), f"{setting.task}/{setting.name}"
    for unit in ("record", "subject"):
        study = setting.study(unit, grid=GRID, variance=10**9)  # type: ignore[arg-type]
        yield f"{name}/{unit}", _bound(study, setting, setting.broadcast, records)
        if setting.name == NEIGHBOURS[setting.task].settings()[0].name:
            sampled = _changed(study, sampling_rate=0.4)
            yield f"{name}/{unit}, sampled", _bound(sampled, setting, setting.broadcast, records)
    if setting.task in COUNTED:
        for persons in PERSONS:
            if setting.parameters.get("width") is not None and persons.get("person") in ("max", "mean"):
                continue
            own = replace(setting, parameters={**setting.parameters, **persons})
            study, (key, value) = own.study("subject", grid=GRID, variance=10**9), next(iter(persons.items()))
            yield f"{name}/{key}={value}", _bound(study, own, setting.broadcast, records)


def _encoded() -> Iterator[tuple[str, Case]]:
    """Through a projection, and through an alignment that is broadcast."""
    rng = np.random.default_rng(11)
    named, arrays = projection(rng.normal(size=(2, 4)), rng.normal(size=2))
    maps = {ALIGNMENT_MATRIX: rng.normal(size=(4, 2, 2)), ALIGNMENT_OFFSET: rng.normal(size=(4, 2))}
    for setting in map(_plain, SETTINGS):
        if setting.parameters.get("width") != 2 or setting.task in ("power-moments", "calibration-step"):
            continue
        wide = replace(setting, schema=schema(4).model_copy(update={"label": setting.schema.label, "max_records": 2**12}))
        aligned = {**setting.parameters, "alignment": {"kind": "broadcast", "tau": 1.0}}
        for how, parameters, given in (
            ("projected", setting.parameters, {}),
            ("aligned", aligned, maps),
        ):
            if parameters is aligned and setting.parameters.get("centre"):
                continue
            own = replace(wide, parameters=parameters)
            for unit in ("record", "subject"):
                study = own.study(unit, grid=GRID, variance=10**9).model_copy(update={"encoder": named})  # type: ignore[arg-type]
                records = _records(replace(wide, name=setting.name + how))
                yield (
                    f"{setting.task}/{setting.name}/{how}, {unit}",
                    _bound(study, own, {**setting.broadcast, **arrays, **given}, records),
                )


def _in_limbs() -> NDArray[np.int64]:
    asked = [{"name": name, **ASKED[name], "scale": 2**40} for name in ("mean", "linear", "count")]
    parameters = {"queries": asked, "derived": DERIVED, "sensitivity": 2**26, "limbs": 3, "limb_bits": 16}
    setting = _plain(Setting("limbs", "tables", hospital(), parameters))
    study = setting.study("record", grid=2**26, variance=0, noise="none")
    return _sum(study, setting, {}, _records(setting))


def summary(name: str, total: NDArray[np.int64]) -> dict[str, Any]:
    """What is kept of a sum: a digest and a few plain values; all of them where the last one may differ."""
    told = [int(value) for value in total[np.flatnonzero(total)[:3]]]
    if name.split("/")[0] in ROUNDED:
        return {"values": [int(value) for value in total]}
    return {"sha256": hashlib.sha256(np.ascontiguousarray(total, "<i8").tobytes()).hexdigest()[:24], "first": told}


if __name__ == "__main__":
    found = {name: summary(name, case()) for name, case in cases()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(found.items()))
    FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(len(found), "sums")
