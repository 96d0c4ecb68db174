"""A study's queries from file to answer: what numpy gives without noise, honest intervals with it, what a plan promised."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import StratifiedTable, Table2x2

from support.studies import agreed, demand, drafted, federation, split_records
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum.exports import export_result
from veilsum.plan import plan_study
from veilsum_coordinator.methods import METHODS
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.results.result import result_files
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records, RowTask
from veilsum_privacy.tasks.queries.kinds.tables import CountTable
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query
from veilsum_privacy.tasks.tables import questions_of

pytestmark = pytest.mark.usefixtures("few_rehearsals")

SITES = [f"site-{index}" for index in range(4)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        NumberColumn(name="stay", low=0, high=60, unit="days"),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=2000,
)
QUERIES: tuple[dict[str, Any], ...] = (
    {"kind": "table-one", "name": "one", "by": "arm", "over": ["age", "stay", "sex"], "at": [0.5]},
    {"kind": "quantiles", "name": "stays", "over": "stay", "edges": {"from": 1, "to": 50, "steps": 40, "scale": "log"}},
    {"kind": "compare", "over": "age", "by": "sex", "where": "stay > 2"},
    {"kind": "independence", "over": ["arm", "sex"]},
    {"kind": "correlation", "over": ["age", "stay"]},
    {"kind": "linear", "outcome": "stay", "over": ["age", "arm", "sex"]},
    {"kind": "missing", "over": ["age", "sex"]},
    {"kind": "survival", "name": "curve", "over": "stay", "by": "arm", "event": "end", "censored": "alive",
     "edges": {"from": 0, "to": 30, "steps": 6}},
    {"kind": "count", "name": "old", "over": "sex", "by": "age_group"},
    {"kind": "histogram", "name": "ages", "over": "age", "edges": [40, 60, 80]},
)  # fmt: skip
DERIVE = {"age_group": {"of": "age", "edges": [65]}}


def records_of(n: int, seed: int = 0) -> tuple[Records, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    age, stay = rng.normal(60, 12, n).clip(20, 90), rng.gamma(2.0, 6.0, n).clip(0, 60)
    arm, sex, end = rng.integers(0, 2, n), rng.integers(0, 2, n), rng.integers(0, 2, n)
    missing = rng.random(n) < 0.08
    features, present = np.zeros((n, 8)), np.ones((n, 8), dtype=np.bool_)
    features[:, 0], features[:, 1] = np.where(missing, 0.0, (age - 20) / 35 - 1), stay / 30 - 1
    present[:, 0] = ~missing
    for start, codes in ((2, arm), (4, sex), (6, end)):
        features[np.arange(n), start + codes] = 1.0
    return Records(features, present, None), {
        "age": np.where(missing, np.nan, age),
        "stay": stay,
        "arm": arm,
        "sex": sex,
        "end": end,
    }


def request_of(epsilon: float | None, **more: Any) -> StudyRequest:
    asked = {"query": QUERIES, "derive": DERIVE} | more
    fixed = {"name": "s", "method": "statistics", "dataset": "d", "data": SCHEMA, "expected_records": 1000}
    return StudyRequest.model_validate(fixed | {"privacy": demand(epsilon)} | asked)


def compiled(epsilon: float | None, **more: Any) -> Study:
    return agreed(request_of(epsilon, **more), SITES)


def run(study: Study, records: Records, seed: int = 0) -> dict[str, Any]:
    result = METHODS["statistics"].run(federation(study, split_records(records, 4), seed))
    assert result_files(result)  # it can be stored
    return dict(json.loads(json.dumps(result.summary)))


def find(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=30),
    st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True).map(sorted),
    st.lists(st.sampled_from([0.05, 0.25, 0.5, 0.75, 0.95]), min_size=1, max_size=3, unique=True).map(sorted),
)
def test_a_quantile_beyond_its_edges_is_not_estimable_and_says_on_which_side(
    stays: list[int], edges: list[int], at: list[float]
) -> None:
    """A median of 50 with edges from 60 on was told as 39.8: half of the way to the column's lower bound."""
    records, _ = records_of(len(stays))
    records.features[:, 1] = np.array(stays) / 30 - 1
    query = {"kind": "quantiles", "over": "stay", "edges": edges, "at": at}
    for row in run(compiled(None, query=[query]), records)["quantiles"]:
        figure, rank = row["value"], row["quantile"] * len(stays)
        if sum(stay < edges[0] for stay in stays) > rank:
            assert figure["not_estimable"] == f"it lies below the first edge, {edges[0]}"
        elif sum(stay < edges[-1] for stay in stays) < rank and edges[-1] < 60:
            assert figure["not_estimable"] == f"it lies above the last edge, {edges[-1]}"
        else:
            assert edges[0] - 1e-4 <= figure["value"] <= edges[-1] + 1e-4


def test_missing_values_by_group_are_of_all_other_columns() -> None:
    records, data = records_of(300)
    summary = run(compiled(None, query=[{"kind": "missing", "by": "arm"}]), records)
    assert {row["column"] for row in summary["missing"]} == {"age", "stay", "sex", "end", "age_group"}
    for arm, level in enumerate("ab"):
        wanted = np.isnan(data["age"][data["arm"] == arm]).sum()
        assert find(summary["missing"], arm=level, column="age")["missing"]["value"] == pytest.approx(wanted)


def test_answers_without_noise_are_numpys() -> None:
    records, data = records_of(4000)
    summary = run(compiled(None), records)
    age, stay, arm, sex = data["age"], data["stay"], data["arm"], data["sex"]
    of_b = find(summary["one.numbers"], arm="b", column="age")
    assert of_b["count"]["value"] == np.sum((arm == 1) & ~np.isnan(age))
    assert of_b["mean"]["value"] == pytest.approx(np.nanmean(age[arm == 1]), abs=0.05)
    assert of_b["standard_deviation"]["value"] == pytest.approx(np.nanstd(age[arm == 1]), abs=0.1)
    assert of_b["mean"]["noise_error"] == 0.0
    assert of_b["mean"]["low"] < np.nanmean(age[arm == 1]) < of_b["mean"]["high"]
    men = find(summary["one.sex"], arm="a", sex="m")
    assert men["count"]["value"] == np.sum((arm == 0) & (sex == 1))
    assert men["share"]["value"] == pytest.approx(np.mean(sex[arm == 0] == 1), abs=1e-6)
    assert find(summary["one.sex"], arm="a", sex="missing")["count"]["value"] == 0
    for q in (0.25, 0.5, 0.75):
        assert find(summary["stays"], quantile=q)["value"]["value"] == pytest.approx(np.quantile(stay, q), rel=0.02)
    assert find(summary["old"], age_group="65 to 90", sex="f")["count"]["value"] == np.sum((age >= 65) & (sex == 0))
    assert [row["count"]["value"] for row in summary["ages"]] == np.histogram(age[~np.isnan(age)], [20, 40, 60, 80, 90])[
        0
    ].tolist()
    whole = ~np.isnan(age)
    expected = np.corrcoef(age[whole], stay[whole])[0, 1]
    assert summary["correlation"][0]["correlation"]["value"] == pytest.approx(expected, abs=0.01)
    assert find(summary["missing"], column="age")["missing"]["value"] == np.isnan(age).sum()
    assert find(summary["curve"], arm="a", time=10)["value"]["value"] == pytest.approx(0.76, abs=0.1)
    tests = {row["test"] for key, rows in summary.items() if key.endswith(" tests") for row in rows}
    assert tests == {"equal means (Welch)", "independence (chi-squared)", "log-rank", "all slopes are 0 (Wald)"}
    assert summary["queries"][0]["part_of"] == "one"


def test_a_fourfold_table_tells_ratios_alone_and_by_strata() -> None:
    """Without noise statsmodels'; the second level against the first, a missing value in none of the tables."""
    records, data = records_of(3000)
    asked = {"kind": "independence", "name": "deaths", "over": ["arm", "end"]}
    queries = (
        {**asked, "missing": "level"},
        {**asked, "name": "by-age", "by": ["age_group"]},
        {"kind": "independence", "name": "ages", "over": ["age_group", "end"]},
        {"kind": "independence", "name": "wide", "over": ["end", "third"]},
    )
    study = compiled(None, query=queries, derive={**DERIVE, "third": {"of": "stay", "edges": [5, 10]}})
    summary, old = run(study, records), data["age"] >= 65
    known = ~np.isnan(data["age"])

    def table(taken: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.array([[np.sum(taken & (rows == i) & (data["end"] == j)) for j in (1, 0)] for i in (1, 0)])

    whole = table(np.ones(3000, dtype=bool), data["arm"])
    oracle, rows = Table2x2(whole), summary["deaths ratios"]
    assert [row["figure"] for row in rows] == ["odds ratio", "risk ratio", "risk difference"]
    assert {(row["of"], row["compared"]) for row in rows} == {("end: died", "arm: b against a")}
    assert rows[0]["value"]["value"] == pytest.approx(oracle.oddsratio)
    assert (rows[0]["value"]["low"], rows[0]["value"]["high"]) == pytest.approx(oracle.oddsratio_confint())
    assert rows[1]["value"]["value"] == pytest.approx(oracle.riskratio)
    assert rows[0]["p_value"] == pytest.approx(oracle.oddsratio_pvalue())
    assert find(summary["ages ratios"], figure="odds ratio")["value"]["value"] == pytest.approx(
        Table2x2(table(known, old)).oddsratio
    )
    strata = [table(known & ~old, data["arm"]), table(known & old, data["arm"])]
    pooled, rows = StratifiedTable(strata), summary["by-age ratios"]
    assert len(rows) == 9
    for level, stratum in zip(("20 to 65", "65 to 90"), strata, strict=True):
        found = find(rows, age_group=level, figure="risk ratio")
        assert found["value"]["value"] == pytest.approx(Table2x2(stratum).riskratio)
    found = find(rows, age_group="all strata", figure="odds ratio (Mantel-Haenszel)")
    assert found["value"]["value"] == pytest.approx(pooled.oddsratio_pooled)
    (test,) = (row for row in summary["by-age tests"] if "Mantel-Haenszel" in row["test"])
    assert test["p_value"] == pytest.approx(pooled.test_null_odds().pvalue)
    assert "wide ratios" not in summary  # three ends have no odds
    noised = run(compiled(1.0, query=queries[:1]), records_of(1650)[0])["deaths ratios"]
    assert all("not_estimable" not in row["value"] and row["value"]["noise_error"] > 0 for row in noised)
    hidden = run(compiled(None, query=queries[:1], parameters={"smallest_cell": 3000}), records)["deaths ratios"]
    assert [row["value"] for row in hidden] == [{"below": 3000}] * 3
    assert {row["p_value"] for row in hidden} == {None}


def test_contrasts_of_all_strata_together_are_released_as_well() -> None:
    """Where an event has two levels: what strata have in common has less noise by it."""
    records, data = records_of(3000)
    asked = {"kind": "independence", "name": "deaths", "over": ["arm", "end"], "by": ["age_group"]}
    derive = {**DERIVE, "third": {"of": "stay", "edges": [5, 10]}}
    queries = [compiled(1.0, query=({**asked, **more},), derive=derive) for more in ({}, {"over": ["end", "third"]})]
    stated, three = (study.tasks[0].parameters["queries"][0] for study in queries)
    assert stated["pooled"] is True
    assert "pooled" not in three  # three ends have nothing in common to tell; and studies signed before stay what they were
    summary = run(queries[0], records)
    for row in summary["deaths"]:
        old = data["age"] >= 65 if row["age_group"] == "65 to 90" else data["age"] < 65
        expected = np.sum(old & (data["arm"] == "ab".index(row["arm"])) & (data["end"] == (row["end"] == "died")))
        assert abs(row["count"]["value"] - expected) < 6 * row["count"]["noise_error"]
    ones = [find(summary["deaths ratios"], age_group=level, figure="odds ratio") for level in ("20 to 65", "65 to 90")]
    noise = [row["value"]["noise_error"] / row["value"]["value"] for row in ones]
    pooled = find(summary["deaths ratios"], figure="odds ratio (Mantel-Haenszel)")["value"]
    assert (
        pooled["noise_error"] / pooled["value"] < 0.9 * math.hypot(*noise) / 2
    )  # what independent strata of a size would have


@pytest.mark.parametrize("missing", ["drop", "level"])
@pytest.mark.parametrize("exposure", ["arm", "third"])
def test_contrasts_are_those_of_the_sum_of_all_strata(exposure: str, missing: str) -> None:
    """Record by record, with a stratum, an exposure or an end that is missing; a row is no longer than is declared."""
    records, _ = records_of(400)
    rng = np.random.default_rng(1)
    gaps = rng.random((400, 8)) > 0.1
    gaps[:, 3::2] = gaps[:, 2::2]  # both levels of a category are there, or neither
    records = Records(np.where(gaps, records.features, 0.0), records.present & gaps, None)
    asked = {"kind": "independence", "name": "q", "over": [exposure, "end"], "by": ["age_group"], "missing": missing}
    study = compiled(1.0, query=(asked,), derive={**DERIVE, "third": {"of": "stay", "edges": [5, 10]}})
    task = AgreedStudy(study).tasks[0].task
    assert isinstance(task, RowTask)
    rows = np.vstack([batch.astype(np.float64) for batch in task_rows(task, records, {})])
    (question,) = questions_of(task)
    assert (rows**2).sum(axis=1).max() == question.norm()
    sizes = [block.size for block in question.blocks()]
    table, contrasts = (
        part.reshape(-1, *block.shape) / block.weight
        for part, block in zip(np.split(rows, np.cumsum(sizes)[:-1], axis=1), question.blocks(), strict=True)
    )
    whole = table.sum(axis=1)
    assert 200 < whole.sum() <= 400
    np.testing.assert_allclose(contrasts, whole - whole.mean(axis=1, keepdims=True), rtol=0, atol=1e-12)


def test_nothing_in_common_is_asked_of_one_exposure() -> None:
    asked = {"kind": "independence", "name": "q", "over": ["all", "end"], "by": ["sex"]}
    derive = {"all": {"of": "stay", "edges": [60]}}  # an interval without another
    (stated,) = compiled(1.0, query=(asked,), derive=derive).tasks[0].parameters["queries"]
    assert "pooled" not in stated
    columns = Columns(SCHEMA, [DerivedColumn(name="all", of="stay", edges=(60.0,))])
    with pytest.raises(HostileInput, match="nothing is compared"):
        CountTable(Query.model_validate({**stated, "pooled": True}), columns)
    with pytest.raises(HostileInput, match="nothing is compared"):
        CountTable(Query(name="q", kind="count", over=("sex",), by=("end",), pooled=True), columns)


def test_a_condition_takes_part_in_the_answer() -> None:
    records, data = records_of(3000)
    found = find(run(compiled(None), records)["compare"], sex="m")
    taken = (data["sex"] == 1) & (data["stay"] > 2) & ~np.isnan(data["age"])
    assert found["count"]["value"] == taken.sum()
    assert found["mean"]["value"] == pytest.approx(data["age"][taken].mean(), abs=0.05)


@pytest.mark.system
@pytest.mark.usefixtures("plans_without_search")
def test_intervals_cover_and_plans_keep_their_word() -> None:
    """Intervals hold the population's value, and are about as wide as the plan said, at the records that it was told."""
    study = compiled(1.0)
    widths: dict[str, list[float]] = {"mean": [], "count": [], "quantile": []}
    hits: list[bool] = []
    for seed in range(20):
        records, _ = records_of(4000, seed)
        summary = run(study, records, seed)
        mean = find(summary["compare"], sex="f")["mean"]
        hits.append(mean["low"] <= 60 <= mean["high"])
        widths["mean"].append((mean["high"] - mean["low"]) / 2)
        count = find(summary["old"], age_group="65 to 90", sex="f")["count"]
        widths["count"].append((count["high"] - count["low"]) / 2)
    assert np.mean(hits) >= 0.85
    plan = plan_study(drafted(request_of(1.0), SITES), study)
    parts = [part for part in plan.parts if part.name in ("mean of compare", "count of old")]
    told = {item.quantity: item.half_width for part in parts for item in part.forecasts}
    assert np.median(widths["mean"]) == pytest.approx(told["mean of sex f, age"], rel=0.15)
    assert np.median(widths["count"]) == pytest.approx(told["count of age_group 65 to 90, sex f"], rel=0.15)
    assert plan.cost.rounding == 0.0


def test_compiled_sums_are_short_and_narrow() -> None:
    agreed = AgreedStudy(compiled(1.0)).task("statistics")
    assert agreed.size <= 2000
    assert agreed.plan(4, 4).encoding.width <= 24
    assert agreed.plan(4, 4).encoding.pieces == 2, "a key share and one piece of coefficients"


def test_a_regression_without_noise_is_statsmodels() -> None:
    """No row is shortened without noise; on a scale so fine that rounding says nothing."""
    import statsmodels.api as sm

    records, data = records_of(4000)
    rows = run(compiled(None), records)["linear"]
    known = ~np.isnan(data["age"])
    age, stay, arm, sex = (data[name][known] for name in ("age", "stay", "arm", "sex"))
    terms = np.column_stack([np.ones(len(age)), age, arm == 1, sex == 1])
    fit = sm.OLS(stay, terms).fit()
    (test,) = run(compiled(None), records)["linear tests"]
    assert test["r_squared"]["value"] == pytest.approx(fit.rsquared, abs=2e-3)
    assert test["at_bound"] == pytest.approx(np.mean((stay <= 0.0) | (stay >= 60.0)), rel=2e-3)
    assert test["at_bound"] > 0.0
    assert [row["term"] for row in rows] == ["constant", "age", "arm b", "sex m"]
    assert [row["unit"] for row in rows] == ["days", "days per years", "days", "days"]
    for row, value, error, p_value in zip(rows, fit.params, fit.bse, fit.pvalues, strict=True):
        figure = row["coefficient"]
        assert figure["value"] == pytest.approx(value, abs=0.25 * error)
        assert (figure["noise_error"], "without_interval" in row) == (0.0, False)
        assert figure["sampling_error"] == pytest.approx(error, rel=0.1)
        assert row["p_value"] is None if row["term"] == "constant" else row["p_value"] == pytest.approx(p_value, abs=0.15)


def test_a_regression_that_noise_drowns_says_so() -> None:
    asked = {"query": [{"kind": "linear", "outcome": "stay", "over": ["age", "arm", "sex"]}]}
    rows = run(compiled(0.02, **asked), records_of(400)[0])["linear"]
    assert all("not_estimable" in row["coefficient"] for row in rows)
    assert all(isinstance(row["without_interval"], float) and row["p_value"] is None for row in rows)
    assert all(row["noise_share"] is None for row in rows)
    for row in run(compiled(3.0, **asked), records_of(4000)[0])["linear"]:
        noise, sampling = row["coefficient"]["noise_error"], row["coefficient"]["sampling_error"]
        assert row["noise_share"] == pytest.approx(noise**2 / (noise**2 + sampling**2))
        assert 0.0 < row["noise_share"] < 1.0


def figures_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for row in rows for value in row.values() if isinstance(value, dict)]


def test_small_cells_are_not_printed() -> None:
    records, data = records_of(300)
    study = compiled(50.0, parameters={"smallest_cell": 30})
    summary = run(study, records)
    old = find(summary["old"], age_group="65 to 90", sex="f")
    assert np.sum((data["age"] >= 65) & (data["sex"] == 0)) > 30
    assert "value" in old["count"]
    assert len([row for row in summary["ages"] if row["count"] == {"below": 30}]) >= 1
    late = [row for row in summary["curve"] if row["at_risk"] is None and row["figure"] == "survival"]
    assert all(row["value"] == {"below": 30} for row in late)
    assert METHODS["statistics"].run(federation(study, split_records(records, 4))).arrays == {}


def test_no_kind_prints_figures_of_a_small_group() -> None:
    """Where all records together are fewer, nothing but tests is left, with queries and without."""
    records, _ = records_of(300)
    large = {"parameters": {"smallest_cell": 5000}}
    for more in (large, {**large, "query": (), "derive": {}}):
        summary = run(compiled(50.0, **more), records)
        rows = [
            row for key, value in summary.items() if isinstance(value, list) and not key.endswith(" tests") for row in value
        ]
        assert len(figures_of(rows)) > 5
        assert all(figure == {"below": 5000} for figure in figures_of(rows))
        assert all(row.get("at_risk") is None for row in rows)


def test_everything_can_drown() -> None:
    records, _ = records_of(12)
    summary = run(compiled(0.3), records)
    figures = [figure for row in summary["compare"] for figure in row.values() if isinstance(figure, dict)]
    assert any("not_estimable" in figure for figure in figures)
    tests = [row for key, rows in summary.items() if key.endswith(" tests") for row in rows]
    assert all(row["p_value"] is None or 0 <= row["p_value"] <= 1 for row in tests)
    assert not any(math.isnan(row["count"]["value"]) for row in summary["old"])


def test_a_bad_study_says_what_to_do() -> None:
    for more, says in (
        ({"query": ()}, "Derived columns are for queries, and none is asked"),
        ({"query": ({"kind": "count", "over": "arms"},)}, "no column 'arms'"),
        ({"query": ({"kind": "counts"},)}, "kind"),
        ({"derive": {"x": {"of": "age", "edges": [5]}}}, "edges reach"),
        ({"parameters": {"person": "first"}}, "unit = "),
        ({"parameters": {"person": "first", "at_most": 2}, "privacy": PrivacyRequest(epsilon=1, unit="subject")}, "exclude"),
        ({"privacy": PrivacyRequest(epsilon=1, unit="subject")}, "exactly if unit"),
    ):
        with pytest.raises((ConfigurationError, HostileInput), match=says):
            compiled(1.0, **more)
    persons = compiled(1.0, parameters={"at_most": 3}, privacy=PrivacyRequest(epsilon=1, unit="subject"))
    assert persons.tasks[0].grid % (3 * persons.tasks[0].parameters["sensitivity"]) == 0


def test_a_synthetic_cohort_has_the_records_pairs(tmp_path: Path) -> None:
    records, data = records_of(4000)
    study = compiled(3.0, query=({"kind": "synthetic", "name": "alike", "over": ["age_group", "arm", "sex", "stay"]},))
    plain = federation(study, split_records(records, 4), 1)
    result = METHODS["statistics"].run(plain)
    codes = result.arrays["alike records"]
    assert abs(len(codes) - 4000) < 200
    assert np.mean(codes[:, 1] == 1) == pytest.approx(data["arm"].mean(), abs=0.05)
    assert [row["column"] for row in result.summary["alike records"]] == ["age_group", "arm", "sex", "stay"]
    assert "missing" in result.summary["alike records"][0]["levels"]
    export_result(result, tmp_path, ["csv"])
    lines = (tmp_path / "alike-records.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("age_group,arm,sex,stay", len(codes) + 1)
    again = METHODS["statistics"].run(federation(study, split_records(records, 4), 1))
    assert (again.arrays["alike records"] == codes).all()
    plan = plan_study(drafted(request_of(3.0, query=({"kind": "synthetic"},)), SITES), study)
    assert plan.parts
