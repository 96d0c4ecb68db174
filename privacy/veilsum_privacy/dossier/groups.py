"""Rows of the page: equal releases of a study, and equal refusals, stand in one row with their count; the twin lists each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from veilsum_privacy.dossier.figures import INFINITE

MOST_ROWS = 400
"""Rows of one table; the earliest beyond it stand in the twin only, and the page says so."""

_EQUAL = (
    "study", "dataset", "unit", "delta", "adaptive", "mechanism", "noise", "sensitivity", "variance", "sampling_rate", "steps",
    "cohort", "honest", "colluders",
)  # fmt: skip


def release_rows(releases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Releases of one study that differ in nothing but their number and time, as one row in the place of the last.

    A row has the release's fields and ``count``, ``from``, ``to`` (times), ``rounds``, ``unseen`` and ``recovered`` (counts);
    ``total`` is that after the last of them.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for release in releases:
        key = tuple(release[name] for name in _EQUAL)
        row = rows.pop(key, None) or {"count": 0, "from": release["time"], "unseen": 0, "recovered": 0, "rounds": []}
        row |= {name: value for name, value in release.items() if name != "recovered"}
        row["count"] += 1
        row["to"] = release["time"]
        row["unseen"] += not release["seen"]
        row["recovered"] += release["recovered"]
        row["rounds"].append(release["round"])
        rows[key] = row
    for row in rows.values():
        row["rounds"] = _ranges(row["rounds"])
    return list(rows.values())


def refusal_rows(refusals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Refusals of one study for the same reasons as one row: the last of them, with ``count``, ``from`` and ``to``.

    Its ``after`` is the largest that was asked for.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for refusal in refusals:
        reasons = tuple(str(reason.get("code", "")) for reason in refusal["reasons"])
        key = (refusal["study"], refusal["population"], refusal["dataset"], refusal["code"], reasons, refusal["budget"])
        row = rows.pop(key, None)
        rows[key] = {
            **refusal,
            "count": 1 + (row["count"] if row else 0),
            "from": row["from"] if row else refusal["time"],
            "to": refusal["time"],
            "after": max((row or refusal)["after"], refusal["after"], key=_size),
        }
    return list(rows.values())


def _size(value: float | str | None) -> float:
    return -math.inf if value is None else math.inf if value == INFINITE else float(value)


def _ranges(numbers: Sequence[int | None]) -> str:
    """``1–3, 5``: whole numbers as ranges, at most four of them."""
    found: list[list[int]] = []
    for number in sorted({number for number in numbers if number is not None}):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [f"{first}" if first == last else f"{first}–{last}" for first, last in found]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"… {texts[-1]}"])
