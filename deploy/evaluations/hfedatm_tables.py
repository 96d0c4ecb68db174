"""Tables of the evaluation of HFedATM, from its rows: one over all baselines, one by baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluations.tables import line, mean_with_error

Row = Mapping[str, Any]

PRIVATE = "all private"
"""The baseline of rows in which training has noise as well."""


class RowKind(NamedTuple):
    """Rows of one kind: a course of training, a merge, and the epsilon of its Grams, infinite without noise."""

    start: str
    merge: str
    epsilon: float

    @property
    def words(self) -> list[str]:
        """Its cells."""
        released = "none released" if "RegMean" not in self.merge else "infinite" if math.isinf(self.epsilon) else None
        return [self.start, self.merge, released or f"{self.epsilon:g}"]


def split(row: Row) -> tuple[float, float]:
    """Mean accuracy on the stations' origins, and accuracy on the one left out, in percent."""
    sources = [value for domain, value in row["accuracies"].items() if domain != row["left_out"]]
    return statistics.fmean(sources), row["accuracies"][row["left_out"]]


def gain(row: Row, rows: Sequence[Row]) -> tuple[float, float]:
    """How much better it is than the average of the same stations' models, on the stations' origins and on the other."""
    same = ("seed", "left_out", "baseline", "start")
    base = next(one for one in rows if one["merge"] == "average" and all(one[key] == row[key] for key in same))
    own, other = split(row), split(base)
    return own[0] - other[0], own[1] - other[1]


def tables(rows: Sequence[Row]) -> str:
    """The tables as Markdown.

    Figures behind a plus-minus are standard errors over pairs of a seed and an origin left out, of which each is the mean over
    its baselines: these share records and first values, and are not independent of each other.
    """
    plain = [row for row in rows if row["baseline"] != PRIVATE]
    kinds = list(dict.fromkeys(_kind(row) for row in plain))
    kinds.sort(key=lambda kind: kind.start)
    names = list(dict.fromkeys(row["baseline"] for row in plain))
    first = [line(["start", "merge", "epsilon of Grams", "sources", "left out", "gain, sources", "gain, left out", "runs"])]
    second = [line(["start", "merge", "epsilon of Grams", *names])]
    for lines in (first, second):
        lines.append(line(["---"] * lines[0].count(" | ") + ["---"]))
    for kind in kinds:
        own = [row for row in plain if _kind(row) == kind]
        first.append(line([*kind.words, *_figures(own, plain, empty=kind.merge == "average"), str(len(own))]))
        cells = []
        for name in names:
            part = [row for row in own if row["baseline"] == name]
            of = [split(row) if kind.merge == "average" else gain(row, plain) for row in part]
            sign = kind.merge != "average"
            cells.append(" / ".join(_mean([pair[side] for pair in of], sign=sign) for side in (0, 1)) if of else "")
        second.append(line([*kind.words, *cells]))
    parts = ["\n".join(first), "\n".join(second)]
    if private := [row for row in rows if row["baseline"] == PRIVATE]:
        parts.append(_private(private))
    return "\n\n".join(parts)


def _private(rows: Sequence[Row]) -> str:
    heads = ["merge", "epsilon of training", "of Grams", "in all", "sources", "left out", "gain, sources", "gain, left out"]
    lines = [line(heads), line(["---"] * len(heads))]
    for merge in dict.fromkeys(row["merge"] for row in rows):
        own = [row for row in rows if row["merge"] == merge]
        spent = [own[0][f"epsilon_{part}"] for part in ("training", "grams", "total")]
        told = [f"{value:.3g}" if value else "none released" for value in spent]
        lines.append(line([merge, *told, *_figures(own, rows, empty=merge == "average")]))
    return "\n".join(lines)


def _kind(row: Row) -> RowKind:
    return RowKind(row["start"], row["merge"], row["epsilon"])


def _figures(own: Sequence[Row], rows: Sequence[Row], *, empty: bool) -> list[str]:
    """Accuracies and gains with their standard errors."""
    reached = _clustered(own, [split(row) for row in own])
    found = [_mean([pair[side] for pair in reached], error=True) for side in (0, 1)]
    if empty:
        return [*found, "", ""]
    gained = _clustered(own, [gain(row, rows) for row in own])
    return found + [_mean([pair[side] for pair in gained], error=True, sign=True) for side in (0, 1)]


def _clustered(rows: Sequence[Row], pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means over the baselines of each seed and origin left out."""
    clusters: dict[tuple[Any, Any], list[tuple[float, float]]] = {}
    for row, pair in zip(rows, pairs, strict=True):
        clusters.setdefault((row["seed"], row["left_out"]), []).append(pair)
    return [
        (statistics.fmean(one for one, _ in found), statistics.fmean(other for _, other in found))
        for found in clusters.values()
    ]


def _mean(values: Sequence[float], *, error: bool = False, sign: bool = False) -> str:
    return mean_with_error(values if error else [statistics.fmean(values)], sign=sign)
