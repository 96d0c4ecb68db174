"""Every question of a study, for the matrix of edges: as studies ask it, and what oracles say of a frame without noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from support.edges import CLASSES, LEVELS, NUMBERS, SCHEMA, SITES, TWO, records_of, schema_of
from support.studies import agreed, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.results.result import Result, result_files
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.released import model_digest

CURVE = {"event": "end", "censored": "alive", "edges": {"from": 0, "to": 60, "steps": 6}}
EDGES = [10.0 * step for step in range(7)]
OVER = ["age", "dose", "sex"]
QUERIES: Mapping[str, Mapping[str, Any]] = {
    "count": {"kind": "count", "over": "sex", "by": "arm"},
    "histogram": {"kind": "histogram", "over": "age", "edges": [40, 60, 80]},
    "quantiles": {"kind": "quantiles", "over": "stay"},
    "mean": {"kind": "mean", "over": ["age", "dose"], "by": "arm"},
    "compare": {"kind": "compare", "over": "stay", "by": "sex"},
    "independence": {"kind": "independence", "over": ["arm", "sex"]},
    "strata": {"kind": "independence", "over": ["sex", "arm"], "by": "end"},
    "correlation": {"kind": "correlation", "over": ["age", "dose", "stay"]},
    "linear": {"kind": "linear", "outcome": "stay", "over": OVER},
    "missing": {"kind": "missing"},
    "survival": {"kind": "survival", "over": "stay", "by": "arm", **CURVE},
    "logrank": {"kind": "logrank", "over": "stay", "by": "arm", **CURVE},
    "area": {"kind": "discrimination", "over": "age", "outcome": "end = 'died'"},
    "concordance": {"kind": "discrimination", "over": "age", "outcome": "stay", **CURVE},
    "risk": {"kind": "effect", "over": "odds", "by": "arm", "outcome": "end = 'died'"},
    "effect": {"kind": "effect", "over": "odds", "by": "arm", "outcome": "stay"},
    "synthetic": {"kind": "synthetic", "over": ["arm", "sex", "end"]},
    "one": {"kind": "table-one", "by": "arm", "at": [0.5]},
}
"""The 14 kinds of query, table one among them; some in two forms."""

DERIVE = {"odds": {"number": "0.06 * age - 3.3", "low": -2.0, "high": 2.0}}


class Question(NamedTuple):
    """What a study asks.

    Attributes:
        method: that answers it.
        schema: of its records.
        asked: other keys of the study.
        arrays: that are broadcast, of a model that was released before.
        cohort: fewest members of a sum; by default all.
    """

    method: str
    schema: DatasetSchema
    asked: Mapping[str, Any]
    arrays: Mapping[str, NDArray[np.float64]] = {}
    cohort: int | None = None


def _fit(**parameters: Any) -> Question:
    return Question("regression", SCHEMA, {"parameters": {"over": OVER, **parameters}})


def _trained(method: str, loss: str, column: str, **parameters: Any) -> Question:
    outcome: dict[str, Any] = {"column": column, "loss": loss}
    if loss == "hazard":
        outcome |= {"event": "end", "censored": ["alive"]}
    return Question(method, SCHEMA, {"parameters": {**parameters, "outcome": outcome}})


def _classes(method: str, **parameters: Any) -> Question:
    return Question(method, CLASSES, {"parameters": parameters})


LINEAR = resolve_model(ModelSpec(name="linear", options={"scale": 1.0, "bias": 1.0}))


def _classifier(schema: DatasetSchema, classes: tuple[str, ...], missing: str) -> Question:
    """The evaluation of a linear model of drawn weights, whose losses are not cut."""
    rng = np.random.default_rng(len(classes))
    arrays = {"head.weight": rng.normal(size=(len(classes), schema.width)), "head.bias": rng.normal(size=len(classes))}
    architecture = build_architecture(LINEAR, schema.width, len(classes))
    told = {
        "model": LINEAR.model_dump(mode="json"),
        "sha256": model_digest(architecture, arrays),
        "classes": classes,
        "missing": missing,
    }
    asked = {"parameters": {**told, "largest_loss": 30.0}}
    return Question("federated-evaluation", schema, asked, to_broadcast(arrays))


COX = {"family": "cox", "outcome": "stay", "event": "end", "censored": ["alive"]}
HIDDEN = {"name": "mlp", "options": {"hidden": 4}}
STATIONS = {"one": list(SITES[:2]), "two": list(SITES[2:])}
TREES = {"rounds": 2, "trees": 4, "depth": 2}
PREDICTION = {"predicts": "probability", "number": "0.05 * age - 3", "low": -2.0, "high": 1.5, "outcome": "end = 'died'"}
NUMBER = {"predicts": "number", "number": "0.1 * age", "low": 2.0, "high": 9.0, "outcome": "stay"}
RATE = {"predicts": "rate", "number": "0.02 * age - 0.7", "low": -0.3, "high": 1.1, "outcome": "visits"}
HAZARD = {**PREDICTION, "predicts": "hazard", "outcome": "stay", "event": "end", "censored": ["alive"]}
QUESTIONS: Mapping[str, Question] = {
    "statistics": Question(
        "statistics", SCHEMA, {"query": [{"name": name, **asked} for name, asked in QUERIES.items()], "derive": DERIVE}
    ),
    "linear": _fit(family="linear", outcome="stay"),
    "logistic": _fit(family="logistic", outcome="end = 'died'"),
    "poisson": _fit(family="poisson", outcome="visits", errors="model"),
    "cox": _fit(**COX),
    "linear, clustered": _fit(family="linear", outcome="stay", errors="clustered"),
    "logistic, clustered": _fit(family="logistic", outcome="end = 'died'", errors="clustered"),
    "poisson, clustered": _fit(family="poisson", outcome="visits", errors="clustered"),
    "cox, clustered": _fit(**COX, errors="clustered"),
    "difference of risk": _fit(family="linear", outcome="end = 'died'"),
    "linear, robust": _fit(family="linear", outcome="stay", errors="robust"),
    "logistic, robust": _fit(family="logistic", outcome="end = 'died'", errors="robust"),
    "poisson, robust": _fit(family="poisson", outcome="visits", errors="robust"),
    "evaluation of a probability": Question("federated-evaluation", SCHEMA, {"parameters": {"prediction": PREDICTION}}),
    "evaluation of a number": Question("federated-evaluation", SCHEMA, {"parameters": {"prediction": NUMBER}}),
    "evaluation of a rate": Question("federated-evaluation", SCHEMA, {"parameters": {"prediction": RATE}}),
    "evaluation of a hazard": Question("federated-evaluation", SCHEMA, {"parameters": {"prediction": HAZARD}}),
    "evaluation of a classifier": _classifier(CLASSES, LEVELS["end"], "centre"),
    "evaluation of two classes": _classifier(TWO, ("gone", "alive"), "skip"),
    "evaluation of a classifier that lacks a class": _classifier(CLASSES, ("moved", "alive"), "centre"),
    "pca": _classes("pca", width=3),
    "pca, whitened": _classes("pca", width=3, scale="whiten"),
    "slot-align": _classes("slot-align", alignment={"reference": "two-way"}),
    "o-fedavg": _classes("o-fedavg"),
    "fedcgs": _classes("fedcgs"),
    "fedpft": _classes("fedpft"),
    "gbdt": _classes("gbdt", **TREES),
    "fedsgd": _classes("fedsgd", steps=3),
    "fedavg": _classes("fedavg", rounds=2),
    "hfedatm": _classes("hfedatm", rounds=2, model=HIDDEN, stations=STATIONS)._replace(cohort=2),
    "fedsgd, recalibrated": Question("fedsgd", TWO, {"parameters": {"steps": 3, "recalibrate": 0.3}}),
    "fedavg, recalibrated": Question("fedavg", TWO, {"parameters": {"rounds": 2, "recalibrate": 0.3}}),
    "ggeur": _classes("ggeur"),
    "fedsgd of a number": _trained("fedsgd", "squared", "stay", steps=3),
    "fedsgd, huber": _trained("fedsgd", "huber", "stay", steps=3),
    "fedsgd of a count": _trained("fedsgd", "poisson", "visits", steps=3),
    "fedsgd of a time": _trained("fedsgd", "hazard", "stay", steps=3),
    "gbdt of a number": _trained("gbdt", "squared", "stay", **TREES),
    "gbdt of a count": _trained("gbdt", "poisson", "visits", **TREES),
    "fedavg of a number": _trained("fedavg", "squared", "stay", rounds=2),
}
"""What is asked."""


def answer(
    question: Question,
    name: str,
    frame: pd.DataFrame,
    epsilon: float | None,
    seed: int = 0,
    ends: tuple[int, ...] | None = None,
    most: int | None = None,
    persons: NDArray[np.int64] | None = None,
) -> Result:
    """A question's result on a data set, by its name and frame; it is one that can be stored.

    Args:
        ends: of each site's records but the last's; by default they are dealt evenly.
        most: records of a site, if not as of the data set.
        persons: of whom the records are, in a study of persons; they never descend.
    """
    schema = schema_of(name, question.schema)
    schema = schema if most is None else schema.model_copy(update={"max_records": most})
    fixed = {"name": "edges", "method": question.method, "dataset": "d", "data": schema, "expected_records": 40}
    unit = {} if persons is None else {"unit": "subject"}
    privacy = demand(epsilon).model_copy(update={"min_cohort": question.cohort, **unit})
    study = agreed(StudyRequest.model_validate({**fixed, "privacy": privacy, **question.asked}), list(SITES))
    records = replace(records_of(frame, schema), subjects=persons)
    sites = split_records(records, 4)
    if ends is not None:
        sites = {site: records.take(part) for site, part in zip(SITES, np.split(np.arange(len(records)), ends), strict=True)}
    result = METHODS[question.method].run(federation(study, sites, seed, question.arrays))
    assert result_files(result)
    return result


def figures(value: object, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every figure with errors in a summary, by where it stands."""
    if isinstance(value, Mapping):
        if {"value", "low", "high"} <= value.keys() or "not_estimable" in value:
            yield path, value
        else:
            for key, own in value.items():
                yield from figures(own, f"{path}/{key}")
    elif isinstance(value, list):
        for place, own in enumerate(value):
            yield from figures(own, f"{path}/{place}")


def bounded(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], float, float]]:
    """Figures of what lies within public bounds, by where they stand: figure, least and largest value."""
    bounds = {column.name: (float(column.low), float(column.high)) for column in SCHEMA.columns if column.name in NUMBERS}
    bounds["odds"] = -2.0, 2.0
    for name in ("mean", "compare", "one.numbers"):
        for row in summary.get(name, ()):
            low, high = bounds[row["column"]]
            yield f"{name}/mean", row["mean"], low, high
            yield f"{name}/standard_deviation", row["standard_deviation"], 0.0, high / 2 - low / 2
    for name, ends in (("risk", (0.0, 1.0)), ("effect", bounds["stay"])):
        for row in summary.get(name, ()):
            if row["effect"] == "weighted mean":
                yield name, row["value"], *ends
    for row in summary.get("quantiles", ()):
        yield "quantiles", row["value"], *bounds["stay"]
    if "log_loss" in summary:
        yield "log loss", summary["log_loss"], 0.0, 30.0


# -- what oracles say ------------------------------------------------------------------------------------------------------


class Truth(NamedTuple):
    """What a figure should be: within ``tolerance``, what rounding and intervals of a table leave open."""

    value: float
    tolerance: float


Held = Iterator[tuple[str, Mapping[str, Any], Truth]]


def truths(question: str, frame: pd.DataFrame, summary: Mapping[str, Any]) -> Held:
    """The figures that have an oracle, each with what it says."""
    if QUESTIONS[question].arrays:
        yield from _classified(QUESTIONS[question], frame, summary)
    for name, oracle in ORACLES.items() if question == "statistics" else ():
        for row in summary[name]:
            for key, truth in oracle(frame, row):
                yield f"{name}/{row}/{key}", row[key], truth


def _classified(question: Question, frame: pd.DataFrame, summary: Mapping[str, Any]) -> Held:
    """Figures of a classifier by scikit-learn, of what numpy predicts."""
    from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, precision_recall_fscore_support, roc_auc_score

    records, classes = records_of(frame, question.schema), question.asked["parameters"]["classes"]
    if question.asked["parameters"]["missing"] == "skip":
        records = records.take(records.present.all(axis=1))
    assert records.labels is not None
    yield "records", summary["records"], Truth(len(records), 1e-6)
    if not len(records):
        return
    names = question.schema.classes
    z = records.features @ question.arrays["model.head.weight"].T + question.arrays["model.head.bias"]
    known = np.full((len(records), len(names)), -np.inf)
    known[:, [names.index(name) for name in classes]] = z  # by the schema's classes
    p = np.exp(known - known.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y, said, labels = records.labels, known.argmax(axis=1), list(range(len(names)))
    yield "accuracy", summary["accuracy"], Truth(accuracy_score(y, said), 1e-6)
    yield "guess", summary["accuracy_of_constant_guess"], Truth(float(np.bincount(y).max() / len(y)), 1e-6)
    if len(classes) == len(names):
        yield "log_loss", summary["log_loss"], Truth(log_loss(y, p, labels=labels), 1e-3)
    if len(names) == 2 and 0 < y.sum() < len(y):
        yield "auc", summary["auc"], Truth(roc_auc_score(y, np.minimum(np.floor(p[:, 1] * 10), 9)), 1e-6)
    each = zip(*precision_recall_fscore_support(y, said, labels=labels, zero_division=0), summary["classes"], strict=True)
    for precision, recall, f1, support, row in each:
        yield f"{row['class']} records", row["records"], Truth(support, 1e-6)
        yield f"{row['class']} recall", row["recall"], Truth(recall, 1e-6)
        yield f"{row['class']} precision", row["precision"], Truth(precision, 1e-6)
        yield f"{row['class']} f1", row["f1"], Truth(f1, 1e-6)
    for own, row in zip(confusion_matrix(y, said, labels=labels), summary["confusion"], strict=True):
        for name in classes:
            yield f"{row['class']} as {name}", row[f"predicted {name}"], Truth(own[names.index(name)], 1e-6)


def _counts(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    own = frame[(frame["arm"] == row["arm"]) & (frame["sex"] == row["sex"])]
    group = frame[(frame["arm"] == row["arm"]) & frame["sex"].notna()]
    yield "count", Truth(len(own), 1e-6)
    if len(group):
        yield "share", Truth(len(own) / len(group), 1e-6)


def _histogram(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    low, high = (float(end) for end in str(row["age"]).split(" to "))
    inside = (frame["age"] >= low) & ((frame["age"] < high) | ((frame["age"] <= high) & (high == 90)))
    yield "count", Truth(int(inside.sum()), 1e-6)


def _means(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    own = frame[frame["arm"] == row["arm"]][row["column"]].dropna()
    width = {"age": 70.0, "dose": 10.0}[row["column"]]
    yield "count", Truth(len(own), 1e-6)
    if len(own):
        yield "mean", Truth(float(own.mean()), 2e-4 * width)
        yield "standard_deviation", Truth(float(own.std(ddof=0)), 1e-2 * width)


def _compared(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    own = frame[frame["sex"] == row["sex"]]["stay"].dropna()
    if len(own):
        yield "mean", Truth(float(own.mean()), 0.02)


def _quantiles(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    known = frame["stay"].dropna()
    if len(known):
        yield "value", Truth(float(known.quantile(row["quantile"], interpolation="lower")), math.inf)


def _correlations(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    known = frame[["age", "dose", "stay"]].dropna()
    one, two = known[row["column"]], known[row["with"]]
    if len(known) > 2 and min(one.std(), two.std()) > 0:
        yield "correlation", Truth(float(np.corrcoef(one, two)[0, 1]), 1e-6)


def _strata(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    """Odds ratios of one end and of all by statsmodels."""
    from statsmodels.stats.contingency_tables import StratifiedTable, Table2x2

    compared = str(row["compared"]).removeprefix("sex: ").split(" against ")
    tables = {
        end: pd.crosstab(own["sex"], own["arm"]).reindex(index=compared, columns=["b", "a"], fill_value=0).to_numpy()
        for end, own in frame.groupby("end")
    }
    if row["figure"] == "odds ratio (Mantel-Haenszel)":
        filled = [table for table in tables.values() if table.sum() > 1]
        value = StratifiedTable(filled).oddsratio_pooled if filled else math.nan
    elif row["figure"] == "odds ratio" and row["end"] in tables and tables[row["end"]].all():
        value = Table2x2(tables[row["end"]]).oddsratio
    else:
        return
    if math.isfinite(value) and value > 0:
        yield "value", Truth(float(value), 1e-6)


def _missing(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    if row["column"] in frame:
        yield "missing", Truth(int(frame[row["column"]].isna().sum()), 1e-6)


def _survival(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    """The actuarial estimate from lifelines' table of who is at risk, of times moved to the ends of their intervals."""
    from lifelines.utils import survival_table_from_events

    own = frame[(frame["arm"] == row["arm"]) & frame["stay"].notna()]
    own = own[own["end"].notna() | (own["stay"] >= 60)]
    if row["figure"] == "survival" and row["time"] is not None and len(own):
        past = own["stay"] >= 60
        ends = np.where(past, 70.0, np.ceil(np.maximum(own["stay"], 1e-9) / 10) * 10)
        table = survival_table_from_events(ends, (own["end"] != "alive") & ~past)
        hazard = table["observed"] / (table["at_risk"] - table["censored"] / 2).clip(lower=0.5)
        yield "value", Truth(float(np.prod(1 - hazard[table.index <= row["time"]])), 1e-6)


def _area(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
    from sklearn.metrics import roc_auc_score

    known = frame[frame["age"].notna() & frame["end"].notna()]
    died = known["end"] == "died"
    if row["figure"] == "area under the ROC curve" and 0 < died.sum() < len(died):
        yield "value", Truth(float(roc_auc_score(died, np.minimum(np.floor((known["age"] - 20) / 70 * 16), 15))), 1e-6)


def _weighted(outcome: Callable[[pd.DataFrame], NDArray[Any]], tolerance: float) -> Callable[..., Iterator[tuple[str, Truth]]]:
    def truth(frame: pd.DataFrame, row: Mapping[str, Any]) -> Iterator[tuple[str, Truth]]:
        known = frame[frame["age"].notna() & frame["arm"].notna() & frame["stay"].notna() & frame["end"].notna()]
        treated = (known["arm"] == "b").to_numpy()
        odds = np.clip(0.06 * known["age"].to_numpy(float) - 3.3, -2, 2)
        own = treated == (row["arm"] == "b")
        if row["effect"] == "weighted mean" and own.any():
            weights = 1 + np.exp(np.where(treated, -odds, odds))
            yield "value", Truth(float(np.average(outcome(known)[own], weights=weights[own])), tolerance)

    return truth


ORACLES: Mapping[str, Callable[[pd.DataFrame, Mapping[str, Any]], Iterator[tuple[str, Truth]]]] = {
    "count": _counts,
    "histogram": _histogram,
    "mean": _means,
    "compare": _compared,
    "quantiles": _quantiles,
    "correlation": _correlations,
    "strata ratios": _strata,
    "missing": _missing,
    "survival": _survival,
    "area": _area,
    "risk": _weighted(lambda frame: (frame["end"] == "died").to_numpy(float), 1e-3),
    "effect": _weighted(lambda frame: frame["stay"].to_numpy(float), 0.06),
}

__all__ = ["LEVELS", "NUMBERS", "QUESTIONS", "Question", "Truth", "answer", "bounded", "figures", "truths"]
