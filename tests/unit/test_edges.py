"""The matrix of edges: every question on every degenerate data set equals its oracle, covers it, or says why it cannot."""

from __future__ import annotations

import io
import json
import logging
import math
import re
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.edges import DATA, LEVELS, typical
from support.questions import QUESTIONS, answer, bounded, figures, truths
from veilsum.exports import records_csv, tables_of
from veilsum.forecasts import read_figures
from veilsum.papers import paper_tables
from veilsum_privacy.results.result import Result
from veilsum_privacy.tasks.queries.base import FIELDS

RECORDS = typical()
NOISE = (None, 0.5, 8.0)
FAR = 7.0  # standard errors of the noise; seeds are fixed


@cache
def answered(question: str, name: str, epsilon: float | None) -> Result:
    """What several tests ask; none of them changes it."""
    with np.errstate(all="ignore"):
        return answer(QUESTIONS[question], name, DATA[name](RECORDS), epsilon)


def check(question: str, name: str, epsilon: float | None, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """It raises nothing, the net under formulas has nothing to catch, and every figure is a number in its interval."""
    with caplog.at_level(logging.ERROR, "veilsum.coordinator"), np.errstate(all="ignore"):
        result = answer(QUESTIONS[question], name, DATA[name](RECORDS), epsilon)
    return sound(result, epsilon, caplog)


def sound(result: Result, epsilon: float | None, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    assert not [record.getMessage() for record in caplog.records]
    assert all(np.isfinite(values).all() for values in result.arrays.values())
    told = json.dumps(result.summary, allow_nan=False)
    assert epsilon or not re.search(r'"(not_estimable|advice|note)": "[^"]*(noise|epsilon)', told)  # there is none
    summary: dict[str, Any] = json.loads(told)
    for path, figure in figures(summary):
        if "not_estimable" in figure:
            assert figure["not_estimable"], path
            continue
        low = -math.inf if figure["low"] is None else figure["low"]
        high = math.inf if figure["high"] is None else figure["high"]
        assert low - 1e-9 <= figure["value"] <= high + 1e-9, (path, figure)
    for path, figure, least, most in bounded(summary):
        ends = [figure[key] for key in ("low", "value", "high") if figure.get(key) is not None]
        assert [least, *ends, most] == sorted([least, *ends, most]), (path, figure)
    return summary


def agrees(question: str, name: str, summary: dict[str, Any], epsilon: float | None) -> int:
    """How many figures were held against an oracle."""
    return agrees_with(question, DATA[name](RECORDS), summary, epsilon)


def agrees_with(question: str, frame: pd.DataFrame, summary: dict[str, Any], epsilon: float | None) -> int:
    held = 0
    with np.errstate(all="ignore"):
        for path, figure, truth in truths(question, frame, summary):
            if "not_estimable" in figure:
                continue
            held += 1
            low = -math.inf if figure["low"] is None else figure["low"]
            high = math.inf if figure["high"] is None else figure["high"]
            exact = math.isfinite(truth.tolerance)
            near = exact and abs(figure["value"] - truth.value) <= FAR * figure["noise_error"] + truth.tolerance
            covered = low - 1e-9 <= truth.value <= high + 1e-9
            assert near or (covered and (epsilon is not None or not exact)), (path, figure, truth)
    return held


@pytest.mark.sampled(7)  # the whole matrix has all of them
@pytest.mark.parametrize("name", [name for name in DATA if name != "more than max_records"])
def test_statistics_without_noise(name: str, caplog: pytest.LogCaptureFixture) -> None:
    held = agrees("statistics", name, check("statistics", name, None, caplog), None)
    assert held >= 10


@pytest.mark.sampled(7)
@pytest.mark.parametrize("question", [question for question in QUESTIONS if QUESTIONS[question].arrays])
@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_a_classifiers_figures_are_those_of_scikit_learn(
    question: str, epsilon: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    held = 0
    for name in DATA:
        if name != "more than max_records":
            held += agrees(question, name, check(question, name, epsilon, caplog), epsilon)
    assert held > 10 * len(DATA)


SOME = (
    ("statistics", "one interval", 8.0),
    ("statistics", "constant at the bounds", 8.0),
    ("linear", "collinear", None),
    ("linear", "constant", None),
    ("linear", "no record", None),
    ("linear, clustered", "one record", None),
    ("difference of risk", "one class", 8.0),
    ("linear, robust", "collinear", 8.0),
    ("logistic, robust", "a level that nobody has", 8.0),
    ("poisson, robust", "constant", 8.0),
    ("poisson, robust", "one record", None),
    ("logistic", "separated", None),
    ("logistic", "quasi-separated", 8.0),
    ("poisson", "a level that nobody has", 8.0),
    ("cox", "all missing", None),
    ("cox", "all censored", None),
    ("cox, clustered", "constant", None),
    ("evaluation of a probability", "one class", 0.5),
    ("fedcgs", "a level that nobody has", 8.0),
    ("hfedatm", "no record", None),
    ("hfedatm", "one class", 8.0),
    ("gbdt", "one class", None),
    ("fedsgd, recalibrated", "one class", None),
    ("fedavg, recalibrated", "separated", 8.0),
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("question", "name", "epsilon"), SOME)
def test_some_of_the_matrix(question: str, name: str, epsilon: float | None, caplog: pytest.LogCaptureFixture) -> None:
    check(question, name, epsilon, caplog)


@pytest.mark.system
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_whole_matrix(question: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in DATA:
        for epsilon in NOISE:
            summary = check(question, name, epsilon, caplog)
            if name != "more than max_records":
                agrees(question, name, summary, epsilon)


UNEVEN = {
    "one site with all but a few": {},
    "a level of one record, at a site of one": {"sex": "x"},
    "a stratum of one record": {"arm": "b"},
    "an end at one small site": {"end": "moved"},
}
"""What the record of a site of one alone has."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("own", UNEVEN)
@pytest.mark.parametrize(
    "question",
    [
        "statistics",
        "logistic",
        "poisson",
        "cox",
        "difference of risk",
        "linear, robust",
        "linear, clustered",
        "cox, clustered",
    ],
)
def test_sites_of_next_to_all_records_and_of_one(question: str, own: str, caplog: pytest.LogCaptureFixture) -> None:
    """Sites of 3,000 records, one, none and five, of which the one has what nobody else has."""
    frame = typical(3006, 3)
    for column, level in UNEVEN[own].items():
        others = frame[column].replace(level, next(other for other in LEVELS[column] if other != level))
        frame = frame.assign(**{column: others.where(np.arange(len(frame)) != 3000, level)})
    for epsilon in (None, 0.5, 8.0):
        with caplog.at_level(logging.ERROR, "veilsum.coordinator"), np.errstate(all="ignore"):
            result = answer(QUESTIONS[question], "typical", frame, epsilon, ends=(3000, 3001, 3001), most=3000)
        summary = sound(result, epsilon, caplog)
        told = agrees_with(question, frame, summary, epsilon)
        assert told >= (50 if epsilon is None else 30) * (question == "statistics")  # noise hides some
        for path, figure in figures(summary):
            if "value" in figure and figure["low"] is not None:  # of one record there is no end
                assert figure["low"] != figure["high"] or NO_LENGTH.search(path), path


NO_LENGTH = re.compile(r"(correlation|auc|events)$|count|missing|records|predicted|cohort")
"""Figures that may be certain: numbers of the records that there are, the correlation of a column with its multiple, and an
area where all records have one score."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "question",
    ["statistics", "difference of risk", "evaluation of a hazard", "evaluation of a number", "evaluation of two classes"],
)
def test_without_noise_no_interval_is_without_length(question: str) -> None:
    """What so few records did not show another sample may."""
    for name in DATA:
        for path, figure in figures(json.loads(json.dumps(answered(question, name, None).summary))):
            if NO_LENGTH.search(path) or "value" not in figure or None in (figure["low"], figure["high"]):
                continue
            assert figure["high"] - figure["low"] > 1e-7 * max(1.0, abs(figure["value"])), (name, path, figure)


def terms(question: str, frame: pd.DataFrame, epsilon: float | None = None) -> dict[str, dict[str, Any]]:
    """A regression's coefficients by term, logarithms of ratios."""
    rows = answer(QUESTIONS[question], "typical", frame, epsilon).summary["coefficients"]
    return {row["term"]: row.get("log", row.get("coefficient")) for row in rows}


def scaled(question: str, name: str) -> dict[str, dict[str, Any]]:
    return terms(question, DATA[name](RECORDS))


@pytest.mark.parametrize("question", ["logistic", "logistic, clustered", "logistic, robust", "poisson", "poisson, robust"])
def test_a_level_without_events_is_named_and_the_others_stand(question: str) -> None:
    """Whatever a level without the outcome has for a coefficient, the others are as without its records."""
    import statsmodels.api as sm

    found, frame = scaled(question, "quasi-separated"), DATA["quasi-separated"](RECORDS).dropna()
    assert "sex x" in found["sex x"]["not_estimable"]
    assert "nobody has" in found["sex x"]["not_estimable"]
    some = frame[frame["sex"] != "x"]
    design = sm.add_constant(np.column_stack([some["age"], some["dose"], some["sex"] == "m"]).astype(float))
    counts = question.startswith("poisson")
    outcome = some["visits"] if counts else (some["end"] == "died").astype(float)
    model = sm.GLM(outcome, design, family=sm.families.Poisson() if counts else sm.families.Binomial()).fit()
    for term, value, error in zip(
        ("age", "dose", "sex m"), np.asarray(model.params)[1:], np.asarray(model.bse)[1:], strict=True
    ):
        assert found[term]["value"] == pytest.approx(value, abs=0.3 * error), term


@pytest.mark.sampled(4)
@pytest.mark.parametrize("few", [1, 3, 20, 60])
@pytest.mark.parametrize(
    "question", ["logistic", "logistic, clustered", "logistic, robust", "poisson", "poisson, robust", "cox", "cox, clustered"]
)
def test_a_number_that_separates_the_outcomes_is_named_however_few_records_it_separates(question: str, few: int) -> None:
    """A dose that nobody with the outcome has: its ratio grows without end, and robust errors of it shrink to nothing."""
    import statsmodels.api as sm
    from lifelines import CoxPHFitter

    frame = RECORDS.dropna().reset_index(drop=True)
    own = np.arange(len(frame)) < few
    changed: dict[str, Any] = {"dose": np.where(own, 5.0, -5.0), "visits": np.where(own, 0.0, frame["visits"])}
    frame = frame.assign(end=np.where(own, "alive", frame["end"]), **changed)
    result = answer(QUESTIONS[question], "typical", frame, None).summary
    found = {row["term"]: row["log"] for row in result["coefficients"]}
    assert "dose" in found["dose"]["not_estimable"]
    tests = [row for row in result["coefficients tests"] if row["p_value"] is not None]
    assert tests
    assert all(row["degrees"] == 3 for row in tests)
    some = frame[~own]
    terms_of = pd.DataFrame({"age": some["age"], "m": some["sex"] == "m", "x": some["sex"] == "x"}).astype(float)
    if question.startswith("cox"):
        data = terms_of.assign(time=np.ceil(some["stay"] / 3.0), event=some["end"] != "alive")
        value = float(CoxPHFitter().fit(data, "time", "event").params_["age"])
    else:
        counts = question.startswith("poisson")
        outcome = some["visits"] if counts else (some["end"] == "died").astype(float)
        model = sm.GLM(outcome, sm.add_constant(terms_of), family=sm.families.Poisson() if counts else sm.families.Binomial())
        value = float(model.fit().params["age"])
    assert found["age"]["value"] == pytest.approx(
        value, abs=(0.5 if question.startswith("cox") else 0.1) * found["age"]["sampling_error"]
    )


def test_a_first_level_without_events_makes_its_column_not_estimable() -> None:
    frame = RECORDS.assign(end=np.where(RECORDS["sex"] == "f", "alive", RECORDS["end"]))
    found = terms("logistic", frame)
    for term in ("constant", "sex m", "sex x"):
        assert "sex f" in found[term]["not_estimable"]
    assert "value" in found["dose"]


@pytest.mark.parametrize(
    ("question", "name"), [("logistic", "one class"), ("cox", "all censored"), ("logistic", "all censored")]
)
@pytest.mark.parametrize("epsilon", NOISE)
def test_an_outcome_that_nobody_or_everybody_has_has_no_coefficients(question: str, name: str, epsilon: float | None) -> None:
    found = terms(question, DATA[name](RECORDS), epsilon)
    assert found
    assert all("not_estimable" in figure for figure in found.values())
    assert epsilon == 0.5 or all("has the event" in figure["not_estimable"] for figure in found.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("question", ["linear", "logistic", "poisson", "cox", "cox, clustered"])
def test_one_complete_record_of_whatever_values_ends_no_study(question: str) -> None:
    """Its terms do not vary but for rounding, which is not to be taken for variance."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        alone = {"age": rng.uniform(20, 90), "dose": rng.uniform(-5, 5), "stay": rng.uniform(0, 60), "end": "died"}
        found = terms(question, RECORDS[:1].assign(**alone))
        assert found
        assert all("not_estimable" in figure for term, figure in found.items() if term != "constant")


@pytest.mark.parametrize(
    "name", ["separated", "collinear", "constant", "a level that nobody has", "the reference level that nobody has"]
)
def test_linear_coefficients_are_those_of_statsmodels_or_name_the_terms(name: str) -> None:
    import statsmodels.api as sm

    found, frame = scaled("linear", name), DATA[name](RECORDS).dropna()
    x = np.column_stack([frame["sex"] == level for level in ("m", "x")]).astype(float)
    design = np.column_stack([np.ones(len(frame)), frame["age"], frame["dose"], x])
    unit = np.column_stack([np.ones(len(frame)), frame["age"] / 35 - 55 / 35, frame["dose"] / 5, x])
    kernel = np.linalg.svd(unit)[2][np.linalg.matrix_rank(unit) :]
    model = sm.OLS(frame["stay"], design).fit()
    told = 0
    for place, term in enumerate(("constant", "age", "dose", "sex m", "sex x")):
        free = bool(np.any(np.abs(kernel[:, :3] if place == 0 else kernel[:, place]) > 1e-9))
        assert not free or "not_estimable" in found[term], term
        if "value" in found[term]:
            told += 1
            assert found[term]["value"] == pytest.approx(
                model.params.iloc[place], rel=1e-2, abs=0.02 * found[term]["sampling_error"]
            )
        elif place:
            assert any(word in found[term]["not_estimable"] for word in ("age", "dose", "sex", "outcome does not vary"))
    assert told >= {"separated": 5, "collinear": 1, "constant": 0}.get(name, 2)


@pytest.mark.parametrize("question", ["linear", "logistic", "poisson", "linear, robust", "logistic, robust"])
def test_with_noise_a_level_that_nobody_has_leaves_the_others_estimable(question: str) -> None:
    found = terms(question, DATA["a level that nobody has"](typical(8000)), 8.0)
    assert "sex x" in found["sex x"]["not_estimable"]
    assert all("value" in found[term] for term in ("age", "dose", "sex m"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["typical", "a level that nobody has", "quasi-separated"])
def test_table_ones_test_is_scipys_of_the_levels_that_there_are(name: str) -> None:
    from scipy.stats import chi2_contingency

    frame = DATA[name](RECORDS)
    summary = answered("statistics", name, None).summary
    for column in ("sex", "end"):
        (row,) = summary[f"one.{column} tests"]
        wanted = chi2_contingency(pd.crosstab(frame["arm"], frame[column]), correction=False)
        assert (row["degrees"], row["statistic"]) == (wanted.dof, pytest.approx(wanted.statistic, rel=1e-3))
        assert row["p_value"] == pytest.approx(wanted.pvalue, rel=1e-2, abs=1e-12)
    (row,) = answered("statistics", name, 8.0).summary["one.sex tests"]
    assert row["degrees"] == 2  # with noise a level that nobody has cannot be told from a rare one; "missing" is left out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [0.0, 3.0, 7.0, 41.7])
def test_without_noise_a_constant_column_is_what_it_is(value: float) -> None:
    frame = RECORDS.assign(stay=value)
    summary = answer(QUESTIONS["statistics"], "typical", frame, None).summary
    for row in summary["one.numbers"]:
        if row["column"] == "stay":
            assert row["mean"]["value"] == pytest.approx(value, abs=60e-9)
            assert row["mean"]["low"] <= value <= row["mean"]["high"]
            assert row["standard_deviation"]["low"] == 0.0
    assert all(
        "not_estimable" in row["correlation"] for row in summary["correlation"] if "stay" in (row["column"], row["with"])
    )


@pytest.mark.parametrize("epsilon", NOISE)
def test_effective_records_are_no_more_than_there_are(epsilon: float | None) -> None:
    rows = answered("statistics", "typical", epsilon).summary["risk"]
    known = RECORDS.dropna()
    odds = np.clip(0.06 * known["age"] - 3.3, -2, 2)
    for row in rows[:2]:
        own = (known["arm"] == row["arm"]).to_numpy()
        weights = (1 + np.exp(odds if row["arm"] == "a" else -odds))[own]
        told = row["effective_records"]
        if epsilon is None:
            assert told == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-2)
        assert told is None or told <= 1.5 * len(RECORDS)


def renamed(value: Any, name: str, key: str) -> Any:
    """A summary, or what a study asks, whose column "arm" has another name, and its levels' key in rows."""
    if isinstance(value, dict):
        return {key if own == "arm" else own: renamed(each, name, key) for own, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, name, key) for each in value]
    return re.sub(r"\barm\b", name, value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", ["unit", "of", "time", "number", "per", "term", "measure", "ratio", "waist_ratio", "log"])
def test_no_columns_name_takes_the_place_of_what_a_row_tells(name: str) -> None:
    """A ward's unit, say, by which patients are grouped: its levels stand beside the unit of the number."""
    question, frame = QUESTIONS["statistics"], DATA["typical"](RECORDS)
    usual = answered("statistics", "typical", None).summary
    rows = [row for rows in usual.values() if isinstance(rows, list) for row in rows]
    columns = {column.name for column in question.schema.columns}
    told = {key for row in rows if "query" not in row and "levels" not in row and "term" not in row for key in row}
    without_groups = {"association_kept", "at_bound", "r_squared", "records"}
    assert told - columns - without_groups == FIELDS
    schema = question.schema.model_copy(
        update={
            "columns": tuple(
                column.model_copy(update={"name": name}) if column.name == "arm" else column
                for column in question.schema.columns
            )
        }
    )
    own = question._replace(schema=schema, asked=renamed(dict(question.asked), name, name))
    found = answer(own, "typical", frame.rename(columns={"arm": name}), None).summary
    key = name if name == "waist_ratio" else f"{name} (column)"
    assert found == renamed(dict(usual), name, key)
    result, as_before = (Result("statistics", dict(each)) for each in (found, usual))
    seen, before = read_figures(result), read_figures(as_before)
    told = [each.quantity.replace(" (column)", "") for each in seen.values()]
    assert told == [renamed(each.quantity, name, key) for each in before.values()]
    assert [(each.value, each.half, each.rank, each.main) for each in seen.values()] == [
        (each.value, each.half, each.rank, each.main) for each in before.values()
    ]
    tables, others = (paper_tables(tables_of(each), None) for each in (result, as_before))
    assert [[line.cells for line in table.lines] for table in tables.values()] == [
        [line.cells for line in table.lines] for table in others.values()
    ]


def test_a_category_called_missing_is_told_from_values_that_are() -> None:
    """As in registers that write it out: of the levels a, missing and no value each has its own count, and no record of the
    synthetic ones that has the category lacks a value."""
    question, frame = QUESTIONS["statistics"], DATA["typical"](RECORDS).copy()
    frame["arm"] = np.where(frame["arm"] == "b", "missing", "a")
    frame.loc[frame.index[::7], "arm"] = None
    schema = question.schema.model_copy(
        update={
            "columns": tuple(
                column.model_copy(update={"categories": ("a", "missing")}) if column.name == "arm" else column
                for column in question.schema.columns
            )
        }
    )
    asked = [
        {"name": "one", "kind": "table-one", "over": ["arm", "sex"]},
        {"name": "made", "kind": "synthetic", "over": ["arm", "sex"]},
    ]
    result = answer(question._replace(schema=schema, asked={"query": asked}), "typical", frame, None)
    wanted = {"a": int((frame["arm"] == "a").sum()), "missing": int((frame["arm"] == "missing").sum())}
    wanted["no value"] = int(frame["arm"].isna().sum())
    rows = result.summary["one.arm"]
    assert {row["arm"]: round(row["count"]["value"]) for row in rows} == wanted
    table = paper_tables(tables_of(result), None)["one"]
    (place,) = [place for place, line in enumerate(table.lines) if line.name == "arm, n (%)"]
    lines = {line.name: line.cells[0].split(" ")[0] for line in table.lines[place + 1 : place + 4]}
    assert lines == {"a": str(wanted["a"]), "missing": str(wanted["missing"]), "Missing": str(wanted["no value"])}
    (name,) = [name for name in result.summary if name.startswith("made") and "levels" in result.summary[name][0]]
    written = pd.read_csv(io.StringIO(records_csv(result.arrays[name], result.summary[name])), keep_default_na=False)
    assert set(written["arm"]) == {"a", "missing", ""}
    assert (written["arm"] == "").sum() == pytest.approx(wanted["no value"], abs=0.5 * wanted["no value"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("question", ["statistics", "linear", "poisson, robust", "cox"])
@pytest.mark.parametrize("stated", [{"person": "first"}, {"person": "last"}, {"at_most": 3}], ids=str)
def test_persons_of_one_record_and_of_a_thousand_count_as_stated(
    question: str, stated: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A study of persons tells what one of the records that count of each tells."""
    sizes = np.array([1000, 1, 1, 1000, 3, *([1] * 300), *([2] * 60)])
    persons = np.repeat(np.arange(len(sizes)), sizes)
    frame = typical(len(persons), 5)
    own = pd.Series(persons).groupby(persons)
    counts = own.cumcount(ascending=False) < 1 if stated.get("person") == "last" else own.cumcount() < stated.get("at_most", 1)
    kept, asked = frame[counts.to_numpy()].reset_index(drop=True), QUESTIONS[question]
    ends = tuple(np.searchsorted(persons, (1, 2, 100)).tolist())
    of_persons = asked._replace(asked={**asked.asked, "parameters": {**asked.asked.get("parameters", {}), **stated}})
    with np.errstate(all="ignore"):
        found = answer(of_persons, "typical", frame, None, ends=ends, persons=persons)
        expected = dict(figures(answer(asked, "typical", kept, None).summary))
    summary = sound(found, None, caplog)
    agrees_with(question, kept, summary, None)
    told = dict(figures(summary))
    assert told.keys() == expected.keys()
    for path, figure in told.items():
        assert ("value" in figure) == ("value" in expected[path]), path
        if "value" in figure:
            error = expected[path].get("sampling_error", 0.0)
            assert figure["value"] == pytest.approx(expected[path]["value"], rel=2e-3, abs=max(0.01 * error, 2e-3)), path
