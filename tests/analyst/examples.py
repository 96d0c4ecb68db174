"""What the analyst asks for: tasks of every method, a few values changed over their whole range."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.durable_studies import STUDIES
from support.federation import TestBed
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import VeilsumError
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy

Floats = NDArray[np.float64]

REALS = (
    5e-324, 2.3e-308, 1e-300, 1e-200, 1e-162, 9e-101, 1e-100, 1e-99, 1e-60, 1e-30, 1e-12, 1e-9, 1e-3, 0.1, 0.5, 1.0 - 2**-53,
    1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e12, 1e30, 1e99, 1e100, 1.1e100, 1e155, 1e200, 1e305, 1.7976931348623157e308, 0.0,
)  # fmt: skip
INTEGERS = (0, 1, 2, 3, 5, 8, 64, 1000, 2**16, 2**24, 2**26, 2**31, 2**40, 2**53 - 1)
TEXTS = ("", "0", "1", "c0", "x0", "nan", "1e5", "-0", "joint", "per-site", "none", "broadcast", "a\u0301")


@dataclass(frozen=True)
class Example:
    """One task that the analyst asks for.

    Attributes:
        seed: what it was made from.
        data: the study's canonical bytes.
        label: of the task.
        damage: what becomes of the broadcast; None for a legal one.
    """

    seed: int
    data: bytes
    label: str
    damage: int | None

    def broadcast(self, study: Study) -> dict[str, Floats]:
        """What the coordinator broadcasts for the task: a legal broadcast, or one with a few values changed."""
        arrays = made_up_broadcast(AgreedStudy(study).task(self.label))[1]
        if self.damage is None:
            return arrays
        rng = np.random.default_rng(self.damage)
        return {name: _damaged(array, rng) for name, array in arrays.items() if rng.random() > 0.02}


def bases(bed: TestBed) -> list[tuple[dict[str, Any], int]]:
    """Every task of every method's study, as the JSON of a study that holds it and the tasks it computes from."""
    found: list[tuple[dict[str, Any], int]] = []
    for make in STUDIES.values():
        try:
            study = parse_canonical(make(bed).to_bytes(), what="study")
        except VeilsumError:  # of stations that this federation has not
            continue
        for task in study["tasks"]:
            chain = [other for other in study["tasks"] if other["label"] == task["source"]]
            found.append(({**study, "tasks": [*chain, task]}, len(chain)))
    return found


def unchanged(bed: TestBed) -> list[Example]:
    """One legal example of each task of each method, in an order that mixes them."""
    found = {(study["method"], study["tasks"][place]["task"]): (study, place) for study, place in bases(bed)}
    return [
        Example(number, canonical(study), study["tasks"][place]["label"], None)
        for number, (_, (study, place)) in enumerate(sorted(found.items(), key=lambda item: item[0][1]))
    ]


def examples(bed: TestBed, seed: int) -> Iterator[Example]:
    """Examples without end, each from a seed of its own; those whose bytes are no study are left out."""
    known = bases(bed)
    while True:
        if (example := _example(known, seed)) is not None:
            yield example
        seed += 1


def _example(known: list[tuple[dict[str, Any], int]], seed: int) -> Example | None:
    rng = np.random.default_rng(seed)
    study, place = copy.deepcopy(known[rng.integers(len(known))])
    task = study["tasks"][place]
    for _ in range(rng.integers(0, 4)):
        roots: list[dict[str, Any]] = [task["parameters"], task["parameters"], task, study["data"]]
        _change(roots[rng.integers(len(roots))], rng)
    if rng.random() < 0.1:  # one number may stay small or large beside others; all of them may not
        for holder, key in [item for item in _leaves(task["parameters"]) if "0x" in str(item[0][item[1]])]:
            holder[key] = float(rng.choice(REALS)).hex() if rng.random() < 0.3 else (float(rng.choice(REALS[3:9]))).hex()
    if rng.random() < 0.3:
        study["privacy"]["unit"] = "subject" if rng.random() < 0.5 else "record"
    study["privacy"]["epsilon"] = None if study["privacy"]["noise"] == "none" else (999.0).hex()
    study["nonce"] = seed.to_bytes(16, "big").hex()
    try:
        parsed = Study.model_validate(study)
        if parsed.privacy.noise != "none" and study_epsilon(parsed, parsed.privacy.delta) > 999.0:
            return None
        data = parsed.to_bytes()
        parse_study(data)
    except (VeilsumError, ValueError, ArithmeticError, TypeError):
        return None
    return Example(seed, data, task["label"], int(rng.integers(2**32)) if rng.random() < 0.5 else None)


def _change(root: dict[str, Any], rng: np.random.Generator) -> None:
    """Change one leaf of a JSON value, mostly into another of its kind."""
    places = [
        (holder, key)
        for holder, key in _leaves(root)
        if rng.random() < 0.1 or not isinstance(holder[key], str | None) or "0x" in str(holder[key])
    ]  # most texts and things left out have few other values
    if not places:
        return
    holder, key = places[rng.integers(len(places))]
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = int(rng.choice(INTEGERS)) if rng.random() < 0.7 else value + int(rng.integers(-2, 3))
    elif value is None or (isinstance(value, str) and "0x" in value):
        holder[key] = float(rng.choice(REALS) * (1 if rng.random() < 0.9 else -1)).hex()
    elif isinstance(value, str):
        holder[key] = str(rng.choice(TEXTS))


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, dict | list):
            yield from _leaves(item)
        elif key not in ("label", "task", "kind", "version"):
            yield value, key


def _damaged(array: Floats, rng: np.random.Generator) -> Floats:
    kind = rng.integers(6)
    if kind == 0:
        return array
    if kind == 1:
        return rng.normal(size=array.shape)
    if kind == 2 and array.size:
        changed = np.array(array)
        changed.reshape(-1)[rng.integers(array.size)] = rng.choice(REALS) * rng.choice([-1, 1])
        return changed
    if kind == 3:
        return rng.choice(REALS, array.shape) * rng.choice([-1.0, 1.0], array.shape)
    if kind == 4:
        return np.full(array.shape, rng.choice(REALS))
    return array[:0] if array.ndim else array
