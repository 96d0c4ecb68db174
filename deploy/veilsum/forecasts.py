"""What a study will tell, read from the results of its rehearsal: how well each figure will be known, and whether at all.

There is one reader for all methods. A figure with an interval has the median half width of its runs. A model has the error of
its scores of typical records against those without noise, and any other array its error as an array, each 1.96 times as a
root mean square. A figure's chance of being told is the share of runs in which it was estimable.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from veilsum.privacy_loss import finite
from veilsum.rehearsal import Rehearsal
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import MODEL_ERRORS, Z95
from veilsum_node.errors import Misuse
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.queries.base import OVERALL

MANY_TIMES, SEARCH_RUNS = 5, 8
"""Times as many runs where a figure is told in some of them only; most runs at each noise of a search for an epsilon."""

SOMETIMES = 0.5
"""Chance of being told below which a figure counts as lost."""

OFTEN = 0.9
"""The same below which a part is weak at best, and is named."""

SIDE_TABLES = frozenset({"classes", "confusion", "levels", "sites"})
"""Tables that no study is run for."""

SIDE = frozenset(
    {"count", "share", "standard_deviation", "r_squared", "share with the event", "weighted mean", "records", "events"}
)
"""Figures that stand beside others: a question that has others is asked for those."""

DIRECTION = "variance along a direction, on average"
"""Unit of principal components: the variance they are found by, against what noise alone shows along some direction."""

ASKED_FOR = frozenset(
    {"area under the ROC curve", "concordance", "R squared", "observed over expected", "accuracy", DIRECTION}
)
"""What evaluations and components are run for."""

OWN_NAMES = frozenset(
    {"column", "with", "term", "figure", "effect", "measure", "ratio", "class", "score", "test", "of", "level"}
)
"""Keys of a row whose text names a figure by itself."""

BESIDE = f" {MODEL_ERRORS}"
"""End of the name of a table that stands beside one with robust or clustered errors."""

NOT_LABELS = frozenset({"unit", "per", "note", "number", "p_value", "noise_share"})


@dataclass(frozen=True)
class Forecast:
    """One quantity of a result.

    Attributes:
        part: of the result that it belongs to, a question or one of its terms.
        quantity: in words.
        size: what it is measured against, in its unit.
        half_width: of its 95% interval, in its unit; infinite where there is none.
        told: in which share of the runs it is estimable.
        unit: of size and half width; empty where it has none.
        main: whether the study is run for it.
    """

    part: str
    quantity: str
    size: float
    half_width: float
    told: float = 1.0
    unit: str = ""
    main: bool = False

    @property
    def share(self) -> float:
        """The half width as a share of the size; infinite where the quantity is mostly not told."""
        return self.half_width / self.size if self.told >= SOMETIMES else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is infinite becomes None."""
        return {
            "part": self.part,
            "quantity": self.quantity,
            "unit": self.unit,
            "expected_size": self.size,
            "half_width_95": finite(self.half_width),
            "share": finite(self.share),
            "told": self.told,
            "main": self.main,
        }


def main_error(forecasts: Sequence[Forecast]) -> float:
    """The widest interval among the main quantities, as a share of the expected size: what a study's ``error`` bounds."""
    return max((item.share if item.told >= OFTEN else math.inf for item in forecasts if item.main), default=math.inf)


def forecast(rehearsal: Rehearsal, study: Study, most: int | None = None) -> tuple[Forecast, ...]:
    """Rehearse a study, compiled, and read what it will tell; nothing where it is not rehearsed.

    Args:
        study: with its noise.
        most: how many runs there may be; by default :data:`MANY_TIMES` as many as the method's.
    """
    most = MANY_TIMES * rehearsal.runs(study) if most is None else most
    few = min(rehearsal.runs(study), most)
    if not few:
        return ()
    exact = rehearsal.exact(study)
    model, first = _scores(exact, rehearsal), read_figures(exact)
    results = [(rehearsal.same_records if model else rehearsal.run)(study, number) for number in range(few)]
    if model is not None:
        return _of_model(model, results, rehearsal), *(
            replace(item, main=False) for item in _figures(rehearsal, study, first, results)
        )
    found = _figures(rehearsal, study, first, results)
    if any(0.0 < item.told < 1.0 for item in found if item.main):
        results += [rehearsal.run(study, number) for number in range(few, most)]
        found = _figures(rehearsal, study, first, results)
    nothing = Forecast(study.method, "result", 1.0, math.inf, 0.0, main=True)
    return (*found, *_of_arrays(exact, results, found)) or (nothing,)


# -- figures ---------------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """One figure of one result.

    Attributes:
        part, quantity, unit: of the forecast.
        value, half: None where it is not estimable; logarithms of a ratio.
        kind: by which its size is found.
        deviation: its sampling error.
        rank: place in :data:`_RANKS`; a question is asked for its figures of the smallest rank.
        main: whether the study is run for it.
    """

    part: str
    quantity: str
    unit: str
    value: float | None
    half: float
    kind: str
    deviation: float
    row: Mapping[str, Any]
    rank: int
    question: str
    main: bool = False


_RANKS = ("", "share", "count", "total", "test")
"""A study is run for figures of the first of these that it has, and for the tests of questions that have nothing else. The
total is the count of all records."""

NEVER = len(_RANKS)


def read_figures(result: Result) -> dict[tuple[str, ...], _Seen]:
    """The figures of a result, each by what names it."""
    asked = result.summary.get("queries", ())
    belongs = {row["query"]: row.get("part_of") or row["query"] for row in asked if isinstance(row, Mapping)}
    terms = [name for row in asked for name in str(row.get("over", "")).split(", ")]
    found: dict[tuple[str, ...], _Seen] = {}
    for name, content in result.summary.items():
        for row in _rows(name, content, result.summary) if not name.endswith(OVERALL) else ():  # sums of what is forecast
            table = name if isinstance(content, list | tuple) and DIRECTION not in row else ""
            question = table.removesuffix(" tests").removesuffix(" ratios")
            question = belongs.get(question, question)
            for key, figure in row.items():
                if _is_figure(figure) and not (key.endswith("_ratio") and "log" in row):
                    seen = _of_figure(key, figure, row, table if table not in belongs else "", question, terms)
                    found[table, key, *_labels(row)] = seen
    smallest: dict[str, int] = {}
    for seen in found.values():
        smallest[seen.question] = min(seen.rank, smallest.get(seen.question, NEVER))
    test = _RANKS.index("test")
    least = min((rank for rank in smallest.values() if rank != test), default=NEVER)
    asked_for = {test, least} - {NEVER}
    return {
        key: seen._replace(main=seen.rank == smallest[seen.question] and seen.rank in asked_for) for key, seen in found.items()
    }


def _rows(name: str, content: Any, summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of a table of a summary; a figure by itself is one."""
    if _is_figure(content):
        yield {name: content}
    if name == "components" and "noise_variance" in summary:
        mean = float(np.mean([row["variance"] for row in content]))
        yield {DIRECTION: {"value": mean, "half": summary["noise_variance"]}}
    for row in content if isinstance(content, list | tuple) else ():
        if not isinstance(row, Mapping):
            continue
        if "p_value" in row and "test" in row:
            told = row["p_value"] is not None
            yield {**row, "p-value": {"value": 1.0, "half": row["noise_share"]} if told else {"not_estimable": row["note"]}}
        else:
            yield row


def _is_figure(value: Any) -> bool:
    return isinstance(value, Mapping) and ("not_estimable" in value or isinstance(value.get("value"), float))


def _labels(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What names a row."""
    found = []
    for key, value in row.items():
        if isinstance(value, str) and value and key not in NOT_LABELS:
            found.append(value if key in OWN_NAMES else f"{key} {value}")
        elif key in ("time", "quantile") and isinstance(value, int | float):
            found.append(f"{key} {value:g}")
    return tuple(found)


def _of_figure(
    key: str, figure: Mapping[str, Any], row: Mapping[str, Any], table: str, question: str, terms: Sequence[str]
) -> _Seen:
    ratio = next((name for name in row if name.endswith("_ratio")), "")
    kind = str(row.get("figure") or row.get("effect") or row.get("measure") or row.get("ratio") or key)
    kind = {"value": "quantile" if "quantile" in row else kind, "log": f"log {ratio}"}.get(kind, kind)
    part = f"{kind.replace('_', ' ')} of {question}".removesuffix(" of ")
    if "term" in row:
        own = [name for name in terms if f"{row['term']} ".startswith(f"{name} ")]
        part = f"{kind.replace('_', ' ')} of {max(own, key=len, default=row['term'])}"
    if table.endswith(BESIDE):
        part += f", errors{BESIDE}"
    aside = kind in SIDE or (kind == "missing" and "mean" in row)
    rank = 0 if not aside else _RANKS.index(kind) if kind in _RANKS else NEVER
    if kind == "count" and not _labels(row):
        rank = _RANKS.index("total")
    if "test" in row:
        part, rank = f"tests of {question}", _RANKS.index("test") if key == "p-value" else NEVER
    if (table == question == "" or "measure" in row) and kind not in ASKED_FOR:
        rank = NEVER
    if table in SIDE_TABLES or table.endswith(BESIDE) or row.get("level") or row.get("term") == "constant":
        rank = NEVER
    names = [label for label in _labels(row) if label != kind]
    quantity = kind.replace("_", " ") + (f" of {', '.join(names)}" if names else "")
    value, half, deviation = _width(figure, logarithm="ratio" in kind and not kind.startswith("log "))
    unit = "" if key in ("count", "share", "missing", "log", "correlation") else str(row.get("unit", ""))
    return _Seen(part, quantity, unit, value, half, kind, deviation, row, rank, question)


def _width(figure: Mapping[str, Any], *, logarithm: bool) -> tuple[float | None, float, float]:
    """Value, half width and sampling error; the first is None where the figure is not estimable."""
    if "value" not in figure:
        return None, math.inf, 0.0
    value, deviation = float(figure["value"]), float(figure.get("sampling_error", 0.0))
    if "half" in figure:
        return value, float(figure["half"]), 0.0
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None or (logarithm and low <= 0.0):
        return value, math.inf, deviation
    if logarithm:
        return math.log(value), (math.log(high) - math.log(low)) / 2.0, deviation / value
    return value, (high - low) / 2.0, deviation


def _figures(
    rehearsal: Rehearsal, study: Study, first: Mapping[tuple[str, ...], _Seen], results: Sequence[Result]
) -> list[Forecast]:
    """A forecast of each figure that there is without noise."""
    runs, found = [read_figures(result) for result in results], []
    derived = getattr(rehearsal.method.Parameters.model_validate(study.parameters), "derive", {})
    halves = _half_ranges(rehearsal, derived)
    for key, exact in first.items():
        own = [run[key] for run in runs if key in run and run[key].value is not None]
        values = [seen.value for seen in own if seen.value is not None]
        value = exact.value if exact.value is not None else float(np.median(values)) if values else 0.0
        size = _size(exact, abs(value), halves, rehearsal.sites * rehearsal.records)
        half = float(np.median([seen.half for seen in own])) if own else math.inf
        if size <= 0.0:
            continue  # nobody is expected there
        main = exact.main and exact.value is not None
        found.append(Forecast(exact.part, exact.quantity, size, half, len(own) / max(len(runs), 1), exact.unit, main))
    return found


def _size(seen: _Seen, value: float, halves: Mapping[str, float], records: int) -> float:
    """What a figure is measured against: how far it could be from saying nothing.

    A mean or quantile: half of its column's range. A ratio: 2.7 times, over half of its term's range. Coefficients,
    correlations and differences: the deviation that one record has, which is a correlation of 1. An area: from chance to 1.
    All others: themselves.
    """
    row, kind = seen.row, seen.kind
    if "ratio" in kind:
        step = str(row.get("per", "")).split(" ")[0]
        per = float(step) if step.replace(".", "", 1).isdecimal() else 1.0
        return per / halves.get(str(row.get("term")), 1.0)
    if kind in ("mean", "quantile") and row.get("column") in halves:
        return halves[str(row["column"])]
    if kind in ("coefficient", "correlation") or "difference" in kind:
        return seen.deviation * math.sqrt(records) or value or 1.0
    if kind in ("area under the ROC curve", "concordance"):
        return 0.5
    if "measure" in row:
        return max(value, 0.5)
    return max(value, 0.1 * records) if kind == "missing" else value


def _half_ranges(rehearsal: Rehearsal, derived: Mapping[str, Any] = MappingProxyType({})) -> dict[str, float]:
    """Half of the range of each numeric column, derived ones too."""
    ends = {name: (column.low, column.high) for name, column in derived.items() if column.number}
    ends |= {column.name: (column.low, column.high) for column in rehearsal.schema.columns if isinstance(column, NumberColumn)}
    return {name: high / 2.0 - low / 2.0 for name, (low, high) in ends.items()}


# -- models and other arrays -----------------------------------------------------------------------------------------------


class _Scores(NamedTuple):
    """What a model says of typical records: scores (n, K) less their means, or estimates (n, 1), and how they vary."""

    values: Floats
    size: float
    what: str


def _scores(result: Result, rehearsal: Rehearsal) -> _Scores | None:
    """The scores of a result that is a model; None of any other, and where sites align by what they keep."""
    if not result.application.get("head"):
        return None
    from veilsum_participant.applying.model import Model  # not for studies that release none

    try:
        model, places = Model.from_result(result), {column.name: place for column, place in rehearsal.schema.places()}
        own = np.r_[tuple(places[column.name] for column in model.schema.columns)]
        records = Records(rehearsal.pool.features[:, own], rehearsal.pool.present[:, own], None)
        outcome = model.recipe.outcome
        if outcome is not None:
            estimates, truth = model.estimates(records)[:, None], rehearsal.pool.features[:, places[outcome.column]]
            half = _half_ranges(rehearsal)[outcome.column]
            return _Scores(estimates, half * float(truth.std()), f"estimate of {outcome.column} for one record")
        scores = model.scores(records)
    except (Misuse, ValueError):
        return None
    scores = scores - scores.mean(axis=1, keepdims=True)
    return _Scores(scores, math.sqrt(float(np.mean(scores**2))), "score of a class for one record")


def _of_model(exact: _Scores, results: Sequence[Result], rehearsal: Rehearsal) -> Forecast:
    scores = [own.values for result in results if (own := _scores(result, rehearsal)) is not None]
    found = [values for values in scores if values.shape == exact.values.shape]  # with all classes
    half = _error(exact.values, found)
    return Forecast("model", exact.what, max(exact.size, 1e-12), half, len(found) / len(results), main=True)


def _of_arrays(exact: Result, results: Sequence[Result], known: Sequence[Forecast]) -> Iterator[Forecast]:
    """Arrays of which no figure tells: those of a result without figures, and the tables that synthetic records are of."""
    made = [name for name in exact.arrays if name.endswith(".pairs")]
    groups = [(name.removesuffix(".pairs"), "number of records in a cell of two columns", [name]) for name in made]
    if not groups and not any(item.main for item in known):
        real = [name for name, values in exact.arrays.items() if np.issubdtype(values.dtype, np.floating)]
        groups = [("arrays", "value of an array", real)]
    for part, what, names in groups:
        whole = _joined(exact, names)
        found = [own for result in results if (own := _joined(result, names)).shape == whole.shape]
        if whole.size and (size := math.sqrt(float(np.mean(whole**2)))) > 0.0:
            yield Forecast(part, what, size, _error(whole, found), len(found) / len(results), main=True)


def _joined(result: Result, names: Sequence[str]) -> Floats:
    """Arrays of a result, one after another."""
    return np.concatenate([np.zeros(0), *(result.arrays[name].ravel() for name in names if name in result.arrays)])


def _error(exact: Floats, found: Sequence[Floats]) -> float:
    """1.96 times the root mean square error; infinite where nothing was found."""
    return Z95 * math.sqrt(float(np.mean([np.mean((own - exact) ** 2) for own in found]))) if found else math.inf
