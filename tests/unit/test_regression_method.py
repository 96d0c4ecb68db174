"""The method "regression": statsmodels without noise, intervals that cover with it, and what cannot be fitted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from support.neighbours import check_rows_stand_alone
from support.rows import cells_of, question_rows
from support.studies import agreed, demand, drafted, federation, split_records
from veilsum.compile import StudyRequest
from veilsum.exports import to_csv
from veilsum.plan import plan_study
from veilsum_aggregation.cells import Cell, Cells
from veilsum_aggregation.cells import Path as Steps
from veilsum_aggregation.families import link, mean_of
from veilsum_aggregation.figures import Figure, NotEstimable
from veilsum_aggregation.newton import LONGEST_STEP, NewtonFit, NewtonRelease, first_point, whitening
from veilsum_coordinator.methods import METHODS
from veilsum_node.config import read_toml, validate
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.designs import LARGEST_ENTRY
from veilsum_privacy.tasks.newton_step import POINT, WHITEN, NewtonStep
from veilsum_privacy.tasks.queries.cells import number_cells
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query

pytestmark = pytest.mark.usefixtures("few_rehearsals")

SITES = [f"site-{index}" for index in range(4)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        NumberColumn(name="visits", low=0, high=8),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="stage", categories=("I", "II", "III")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=20_000,
)
LOGISTIC = {"family": "logistic", "outcome": "end = 'died'", "over": ["age", "arm", "stage"]}
POISSON = {"family": "poisson", "outcome": "visits", "over": ["age", "arm", "stage"]}
LINEAR = {"family": "linear", "outcome": "visits", "over": ["age", "arm", "stage"]}
TERMS = ["constant", "age", "arm b", "stage II", "stage III"]
TRUTH = np.array([-2.4, 0.04, 0.6, 0.3, -0.5])
RATES = np.array([-0.6, 0.015, 0.3, 0.2, -0.3])


def records_of(n: int, seed: int = 0) -> tuple[Records, np.ndarray, np.ndarray, np.ndarray]:
    """Records, their terms (n, 5) in own units, who died and how many visits; some ages are missing."""
    rng = np.random.default_rng(seed)
    age, arm, stage = rng.normal(60, 12, n).clip(20, 90), rng.integers(0, 2, n), rng.integers(0, 3, n)
    terms = np.column_stack([np.ones(n), age, arm == 1, stage == 1, stage == 2]).astype(float)
    died = rng.random(n) < 1 / (1 + np.exp(-terms @ TRUTH))
    visits = rng.poisson(np.exp(terms @ RATES)).clip(0, 8)
    missing = rng.random(n) < 0.05
    features, present = np.zeros((n, 9)), np.ones((n, 9), dtype=np.bool_)
    features[:, 0], features[:, 1] = np.where(missing, 0.0, (age - 20) / 35 - 1), visits / 4 - 1
    present[:, 0] = ~missing
    features[np.arange(n), 2 + arm], features[np.arange(n), 4 + stage] = 1.0, 1.0
    features[np.arange(n), 7 + died] = 1.0
    terms[missing] = np.nan
    return Records(features, present, None), terms, died, visits


def request_of(parameters: dict[str, Any], epsilon: float | None, records: int = 1250) -> StudyRequest:
    return StudyRequest(
        name="fit", method="regression", dataset="records", data=SCHEMA, parameters=parameters, privacy=demand(epsilon),
        expected_records=records,
    )  # fmt: skip


def compiled(parameters: dict[str, Any], epsilon: float | None) -> Study:
    return agreed(request_of(parameters, epsilon), SITES)


def run(study: Study, records: Records, seed: int = 0) -> dict[str, Any]:
    return dict(METHODS["regression"].run(federation(study, split_records(records, 4), seed)).summary)


@pytest.mark.parametrize("parameters", [LOGISTIC, POISSON, LINEAR, LINEAR | {"outcome": "end = 'died'"}], ids=str)
@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_a_result_tells_its_records_and_events_however_far_their_terms_lie(
    parameters: dict[str, Any], epsilon: float | None
) -> None:
    """All are 90 years old, arm b and stage III, so that under noise every record is shortened in the moments."""
    records, _, died, _ = records_of(4000)
    features = records.features.copy()
    features[:, 0], features[:, 2:7] = np.where(records.present[:, 0], 1.0, 0.0), [0.0, 1.0, 0.0, 0.0, 1.0]
    features[:40, 0], features[:40, 2:7] = (
        np.where(records.present[:40, 0], -1.0, 0.0),
        [1.0, 0.0, 1.0, 0.0, 0.0],
    )  # so that terms vary
    known = records.present[:, 0]
    told = run(compiled(parameters, epsilon), Records(features, records.present, None))["coefficients tests"]
    row = told[0]
    truth = {"records": known.sum()} | ({"events": (died & known).sum()} if "died" in parameters["outcome"] else {})
    assert row.keys() & {"records", "events"} == truth.keys()
    for name, number in truth.items():
        figure = row[name]
        assert (figure["noise_error"] > 0.0) == (epsilon is not None)
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert abs(figure["value"] - number) <= 5.0 * figure["noise_error"]
        assert figure["noise_error"] < 60.0


@pytest.mark.parametrize("outcome", ["visits", "end = 'died'"])
@pytest.mark.parametrize("short", [False, True])
def test_counting_records_makes_no_row_longer(outcome: str, short: bool) -> None:
    """One of two cells is as long as one alone, so the bound of a study that counts is that of one that does not."""
    columns = Columns(SCHEMA)
    query = Query(name="q", kind="linear", over=("age", "arm", "stage"), outcome=outcome, unshortened=short)
    plain, counting = (LinearRegression(query.model_copy(update={"counted": counted}), columns) for counted in (False, True))
    assert plain.norm() == counting.norm()
    sizes = [sum(block.size for block in question.blocks()) for question in (plain, counting)]
    assert sizes[1] == sizes[0] + 1
    records, *_ = records_of(300, seed=5)
    rows = [question_rows(question, columns, records) for question in (plain, counting)]
    np.testing.assert_array_equal(rows[0][:, :-1], rows[1][:, :-2])
    assert ((rows[1] ** 2).sum(axis=1) <= counting.norm()).all()
    whole = rows[1][:, -2:].sum(axis=1)
    np.testing.assert_array_equal(whole > 0, records.present[:, 0])
    assert not (rows[1][:, -2:].prod(axis=1)).any()


@pytest.mark.parametrize(("parameters", "name"), [(LOGISTIC, "odds_ratio"), (POISSON, "rate_ratio")])
def test_without_noise_it_is_statsmodels(parameters: dict[str, Any], name: str) -> None:
    import statsmodels.api as sm

    records, terms, died, visits = records_of(6000)
    known = np.isfinite(terms[:, 1])
    if name == "odds_ratio":
        model = sm.Logit(died[known].astype(float), terms[known]).fit(disp=0)
    else:
        model = sm.GLM(visits[known], terms[known], family=sm.families.Poisson()).fit()
    study = compiled(parameters, None)
    summary = run(study, records)
    rows = summary["coefficients"]
    assert [row["term"] for row in rows] == TERMS
    assert [row["per"] for row in rows] == ["", "years", "", "", ""]
    for row, value, error, p_value in zip(rows, model.params, model.bse, model.pvalues, strict=True):
        figure, shown = row["log"], row[name]
        assert figure["value"] == pytest.approx(value, abs=0.02 * error)
        assert (figure["noise_error"], "without_interval" in row) == (0.0, False)
        assert figure["sampling_error"] == pytest.approx(error, rel=0.02)
        for end in ("value", "low", "high"):
            assert shown[end] == pytest.approx(math.exp(figure[end]))
        assert row["p_value"] is None if row["term"] == "constant" else row["p_value"] == pytest.approx(p_value, abs=0.1)
    tests = summary["coefficients tests"]
    assert len(tests) == (1 if name == "odds_ratio" else 2)  # of counts by robust errors as well
    for test in tests:
        assert (test["degrees"], test["noise_share"]) == (4, 0.0)
        assert test["p_value"] < 1e-6
    assert to_csv(rows).startswith(f"term,per,{name},{name}_noise_error")


def test_ratios_are_per_as_many_units_as_asked() -> None:
    records, *_ = records_of(3000)
    rows = [run(compiled({**LOGISTIC, **more}, None), records)["coefficients"] for more in ({}, {"per": {"age": 10.0}})]
    assert [row["per"] for row in rows[1]] == ["", "10 years", "", "", ""]
    assert rows[1][0]["log"]["value"] == pytest.approx(rows[0][0]["log"]["value"])
    for part in ("value", "sampling_error", "low", "high"):
        assert rows[1][1]["log"][part] == pytest.approx(10 * rows[0][1]["log"][part])


def test_a_linear_family_is_the_query_of_that_kind() -> None:
    records, *_ = records_of(3000)
    alone = run(compiled(LINEAR, None), records)
    query = {"kind": "linear", "name": "coefficients", "outcome": "visits", "over": LINEAR["over"]}
    request = request_of({"query": [query]}, None).model_copy(update={"method": "statistics"})
    study = agreed(request, SITES)
    beside = METHODS["statistics"].run(federation(study, split_records(records, 4))).summary
    assert alone["coefficients"] == beside["coefficients"]
    assert alone["coefficients tests"] == beside["coefficients tests"]


@pytest.mark.usefixtures("plans_without_search")
@pytest.mark.parametrize(
    ("parameters", "name", "truth"),
    [(LOGISTIC, "odds", TRUTH), pytest.param(POISSON, "rate", RATES, marks=pytest.mark.system)],
)
def test_with_noise_intervals_cover_and_are_as_wide_as_planned(
    parameters: dict[str, Any], name: str, truth: np.ndarray
) -> None:
    study, covered, widths, noises = compiled(parameters, 4.0), [], [], []
    for seed in range(25):
        rows = run(study, records_of(5000, seed)[0], seed)["coefficients"]
        for row, value in zip(rows[1:], truth[1:], strict=True):
            covered.append(row["log"]["low"] <= value <= row["log"]["high"])
        widths.append((rows[1]["log"]["high"] - rows[1]["log"]["low"]) / 2)
        noises.append(rows[1]["log"]["noise_error"])
    assert min(noises) > 0
    assert np.mean(covered) >= 0.88  # of 100, each 95% likely
    visits = records_of(5000)[3]
    guesses = {"age": (60.0, 12.0), "visits": (float(visits.mean()), float(visits.std()))}
    guessed = request_of(parameters, 4.0).model_copy(update={"expected": guesses})
    plan = plan_study(drafted(guessed, SITES), study)
    told = {item.quantity: item.half_width for part in plan.parts for item in part.forecasts if item.main}
    assert set(told) == {f"log {name} ratio of {term}" for term in TERMS[1:]}
    assert np.median(widths) == pytest.approx(told[f"log {name} ratio of age"], rel=0.15)


TERMS_FILE = """
name = "fit"
method = "regression"
dataset = "records"

[parameters]
family = "poisson"
outcome = "visits"
over = ["age", "older", "arm", "age in b", "log age", "first stage", "third stage"]

[parameters.derive]
older = { number = "above(age, 65)", low = 0, high = 25 }
"age in b" = { number = "age * (arm = 'b')", low = 0, high = 90 }
"log age" = { number = "log(age)", low = 2.9, high = 4.6 }
"first stage" = { number = "1 * (stage = 'I')", low = 0, high = 1 }
"third stage" = { number = "1 * (stage = 'III')", low = 0, high = 1 }

[privacy]
noise = "none"
"""


def test_odds_of_a_rare_group_have_converged() -> None:
    """A tenth of the records has the event seven times as often: its terms are shortened, and no step goes too far."""
    import statsmodels.api as sm

    rng = np.random.default_rng(5)
    records, *_ = records_of(6000)
    arm = rng.random(6000) < 0.1
    died = rng.random(6000) < np.where(arm, 0.35, 0.05)
    records.features[:, 2:4] = np.column_stack([~arm, arm])
    records.features[:, 7:9] = np.column_stack([~died, died])
    wanted = sm.Logit(died.astype(float), sm.add_constant(arm.astype(float))).fit(disp=0)
    study = compiled({**LOGISTIC, "over": ["arm"], "per": {}}, 8.0)
    found = [run(study, records, seed)["coefficients"][1]["log"] for seed in range(4)]
    for figure in found:
        assert figure["value"] == pytest.approx(wanted.params[1], abs=0.25 * wanted.bse[1] + 5 * figure["noise_error"])
    # of 38 seeds .03 high, and .13 its standard deviation
    assert np.mean([figure["value"] for figure in found]) == pytest.approx(wanted.params[1], abs=0.25 * wanted.bse[1])


@pytest.mark.parametrize("share", [0.03, 0.1, 0.2, 0.5])
@pytest.mark.parametrize(("family", "outcome"), [("logistic", "end = 'died'"), ("poisson", "visits")])
def test_errors_of_a_rare_group_are_not_lengthened_by_shortening(family: str, outcome: str, share: float) -> None:
    """Of one binary term the log ratio's error is known by counts alone, however much the rare group's terms are shortened."""
    records, *_, died, visits = records_of(8000, 4)
    rare = np.random.default_rng(5).random(8000) < share
    records.features[:, 2:4] = np.stack([~rare, rare], axis=1)
    study = compiled({"family": family, "outcome": outcome, "over": ["arm"], "errors": "model"}, 1e4)
    (row,) = (row for row in run(study, records)["coefficients"] if row["term"] == "arm b")
    expected = 0.0
    for group in (rare, ~rare):
        events = float((died if family == "logistic" else visits)[group].sum())
        expected += 1 / events + (1 / (group.sum() - events) if family == "logistic" else 0.0)
    assert row["log"]["sampling_error"] == pytest.approx(math.sqrt(expected), rel=0.03)


def test_a_study_file_states_interactions_splines_logarithms_and_another_reference(tmp_path: Path) -> None:
    """All as derived numbers, against statsmodels on the same columns; the reference is stage II here."""
    import statsmodels.api as sm

    records, terms, _, visits = records_of(20_000)
    (tmp_path / "study.toml").write_text(TERMS_FILE)
    request = validate({**read_toml(tmp_path / "study.toml"), "data": SCHEMA}, StudyRequest, source="study.toml")
    study = agreed(request, SITES)
    rows = run(study, records)["coefficients"]
    known = np.isfinite(terms[:, 1])
    _, age, arm, second, third = terms[known].T
    design = [np.ones_like(age), age, np.maximum(age - 65, 0), arm, age * arm, np.log(age), 1 - second - third, third]
    model = sm.GLM(visits[known], np.column_stack(design), family=sm.families.Poisson()).fit()
    assert [row["term"] for row in rows] == ["constant", *(f"{name} b" if name == "arm" else name for name in OVER_FILE)]
    for row, value, error in zip(rows, model.params, model.bse, strict=True):
        assert row["log"]["value"] == pytest.approx(value, abs=0.1 * error)
        assert row["log"]["sampling_error"] == pytest.approx(error, rel=0.1)


OVER_FILE = ("age", "older", "arm", "age in b", "log age", "first stage", "third stage")


@pytest.mark.parametrize("parameters", [LINEAR, LOGISTIC])
def test_the_score_is_the_prediction_as_a_derived_number(parameters: dict[str, Any]) -> None:
    records, terms, *_ = records_of(4000)
    summary = run(compiled(parameters, None), records)
    (score,) = summary["score"]
    columns = Columns(SCHEMA, [DerivedColumn(name="score", **score)])
    found = number_cells(cells_of(columns, records, ["score"]), "score")
    known = ~np.isnan(terms[:, 1])
    assert found.present.tolist() == known.tolist()
    inside = known & (np.abs(found.x) < 1.0)
    assert inside.sum() > 0.98 * known.sum()
    figures = [row.get("coefficient") or row["log"] for row in summary["coefficients"]]
    expected = terms[inside] @ [figure["value"] for figure in figures]
    middle, half = (score["low"] + score["high"]) / 2, (score["high"] - score["low"]) / 2
    assert middle + half * found.x[inside] == pytest.approx(expected, abs=1e-4)


@pytest.mark.system
@pytest.mark.parametrize("parameters", [pytest.param(LOGISTIC, marks=pytest.mark.system), POISSON])
def test_planned_intervals_widen_with_the_noise(parameters: dict[str, Any]) -> None:
    draft = drafted(request_of(parameters, 4.0), SITES)
    studies = [draft.compile_with(multiplier) for multiplier in (0.1, 10.0, 20_000.0)]
    widths = np.array([[item.half_width for item in draft.forecast(study) if item.main] for study in studies])
    assert np.isfinite(widths[0]).all()
    assert not np.isfinite(widths[-1]).any()
    assert (widths[1:] >= widths[:-1]).all()


def test_what_noise_drowns_has_an_estimate_and_no_interval() -> None:
    summary = run(compiled(LOGISTIC, 0.05), records_of(400)[0])
    for row in summary["coefficients"]:
        assert "not_estimable" in row["odds_ratio"]
        assert math.isfinite(row["without_interval"])
        assert row["p_value"] is None
    (test,) = summary["coefficients tests"]
    assert test["p_value"] is None
    assert "against the noise" in test["note"]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"outcome": "visits"}, "explains an event; 'visits' is a number"),
        ({"outcome": "end"}, "neither a number nor a condition"),
        ({"outcome": "end = 'dead'"}, "dead"),
        ({"over": ["age", "end"]}, "`over` names the terms"),
        ({"over": ["ages"]}, "the schema has no column 'ages'"),
        ({"family": "poisson"}, "a number that is 0 or more"),
        ({"per": {"arm": 2.0}}, "'arm' is not a numeric term"),
        ({"per": {"age": 0.0}}, "per"),
        ({**LINEAR, "per": {"age": 10.0}}, "`per` is of ratios"),
        ({"most": 2.0}, "Only counts have a largest mean"),
        ({"family": "probit"}, "family"),
        ({"where": "age < 20"}, "no record can meet"),
        ({"person": "last"}, "counts persons"),
    ],
)
def test_what_cannot_be_fitted_is_said(changed: dict[str, Any], match: str) -> None:
    with pytest.raises((ConfigurationError, HostileInput), match=match):
        compiled({**LOGISTIC, **changed}, 1.0)


def test_persons_have_one_row() -> None:
    records, *_ = records_of(900)
    joined = Records(records.features, records.present, None, np.repeat(np.arange(300), 3))
    request = request_of({**LOGISTIC, "person": "last"}, 200.0)
    request = request.model_copy(update={"privacy": request.privacy.model_copy(update={"unit": "subject"})})
    study = agreed(request, SITES)
    task = AgreedStudy(study).task("newton-3").task
    assert isinstance(task, NewtonStep)
    rows = np.vstack(list(task_rows(task, joined, task.example_broadcast(4))))
    assert np.flatnonzero(rows.any(axis=1)).tolist() == [3 * i for i in range(300) if joined.present[3 * i + 2, 0]]


def task_of(parameters: dict[str, Any]) -> NewtonStep:
    task = AgreedStudy(compiled(parameters, 1.0)).task("newton-1").task
    assert isinstance(task, NewtonStep)
    return task


@pytest.mark.parametrize("parameters", [LOGISTIC, POISSON])
def test_no_broadcast_makes_a_row_longer_than_the_bound(parameters: dict[str, Any]) -> None:
    task, rng, longest = task_of(parameters), np.random.default_rng(3), 0.0
    records, *_ = records_of(500, 3)
    for size in (1e-6, 0.3, 3.0, 1e3, LARGEST_ENTRY):
        for point in (0.0, 1.0, 30.0, LARGEST_ENTRY):
            broadcast = {WHITEN: rng.uniform(-size, size, (5, 5)), POINT: rng.uniform(-point, point, 5)}
            rows = np.vstack(list(task_rows(task, records, broadcast)))
            assert np.isfinite(rows).all()
            longest = max(longest, float(np.linalg.norm(rows, axis=1).max()))
    assert 0.9 * task.clip() <= longest <= task.clip() * (1 + 1e-12)


SHORTER = np.linspace(0.0, 1.0, 101)[:, None, None]
"""c^2 of records that are shortened, and of one that is not."""


@pytest.mark.parametrize("excess", [0.0, 0.55, 3.0])
@pytest.mark.parametrize("kappa", [0.2, 0.7, 0.8, 0.84, 1.5, 20.0])
def test_the_bound_of_an_event_is_the_largest_over_all_means(kappa: float, excess: float) -> None:
    task = task_of(LOGISTIC)
    parameters = {**task.parameters.model_dump(), "information_share": kappa, "excess_share": excess}
    changed = build_task("newton-step", parameters, SCHEMA)
    means = np.linspace(0.5, 1.0, 100_001)
    variance = 16 * means**2 * (1 - means) ** 2
    norms = [shorter * means**2 + (kappa**2 + excess**2 * (1 - shorter) ** 2) * variance for shorter in SHORTER[:, 0, 0]]
    assert changed.clip() == pytest.approx(math.sqrt(np.max(norms)), rel=1e-8)


@pytest.mark.parametrize("excess", [0.0, 0.51, 3.0])
@pytest.mark.parametrize(("kappa", "most"), [(0.3, 4.0), (0.86, 4.0), (1.0, 4.0), (0.86, 1.0), (0.7, 7.0), (0.5, 12.0)])
def test_the_bound_of_counts_is_the_largest_over_means_and_counts(kappa: float, most: float, excess: float) -> None:
    task = task_of(POISSON)
    parameters = {**task.parameters.model_dump(), "information_share": kappa, "most": most, "excess_share": excess}
    changed = build_task("newton-step", parameters, SCHEMA)
    means, counts = np.linspace(0.0, most, 4001)[:, None], np.linspace(0.0, 8.0, 9)
    information = kappa**2 + (excess * (1 - SHORTER)) ** 2
    norms = SHORTER * ((counts - means) / max(8.0, most)) ** 2 + information * (means / most) ** 2
    assert changed.clip() == pytest.approx(max(1.0, math.sqrt(norms.max())), rel=1e-9)


@pytest.mark.parametrize(
    "broadcast",
    [
        {},
        {WHITEN: np.eye(5)},
        {WHITEN: np.eye(4), POINT: np.zeros(5)},
        {WHITEN: np.eye(5), POINT: np.zeros((5, 1))},
        {WHITEN: np.eye(5) * np.nan, POINT: np.zeros(5)},
        {WHITEN: np.eye(5), POINT: np.full(5, 2 * LARGEST_ENTRY)},
    ],
)
def test_a_broadcast_that_is_no_point_is_refused(broadcast: dict[str, np.ndarray]) -> None:
    with pytest.raises(HostileInput, match="The broadcast must hold newton"):
        task_of(LOGISTIC).traced(broadcast)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    (records, *_), rng = records_of(3000), np.random.default_rng(0)
    check_rows_stand_alone(task_of(POISSON), records, {WHITEN: rng.normal(size=(5, 5)), POINT: rng.normal(size=5)})


# -- the fit itself --------------------------------------------------------------------------------------------------------


def white_fit(rng: np.random.Generator, n: int, score_std: float, information_std: float) -> tuple[NewtonFit, np.ndarray]:
    """Three steps of a logistic model of four terms on released sums made here, and the truth in the same coordinates."""
    truth = np.array([-0.5, 0.6, -0.4, 0.8])
    z = np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 3))])
    y = rng.random(n) < mean_of("logistic", z @ truth, 1.0)[0]
    gram = z.T @ z
    whiten = whitening(gram, 0.0)
    point, released, white = first_point("logistic", gram, z.T @ y, whiten, 1.0), [], z @ whiten
    for _ in range(3):
        mean, variance = mean_of("logistic", white @ point, 1.0)
        noise = np.triu(rng.normal(size=(4, 4)), 1) * information_std / math.sqrt(2)
        noise = noise + noise.T + np.diag(rng.normal(size=4) * information_std)
        score = white.T @ (y - mean) + rng.normal(size=4) * score_std
        released.append(NewtonRelease(point, score, (white * variance[:, None]).T @ white + noise, score_std, information_std))
        fit = NewtonFit(whiten, tuple(released), cells=Cells("logistic", gram))
        point = fit.point
    return fit, truth


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "score_std", "information_std"), [(2000, 0.0, 0.0), (2000, 12.0, 12.0), (20_000, 60.0, 100.0)])
def test_a_fit_covers_both_errors(n: int, score_std: float, information_std: float) -> None:
    rng, covered = np.random.default_rng(n), []
    for _ in range(300):
        fit, truth = white_fit(rng, n, score_std, information_std)
        assert fit.drowned is None
        error = np.sqrt(np.diag(sum(fit.covariances)))
        covered.append(np.abs(fit.coefficients - truth) <= 1.96 * error)
    assert 0.925 <= np.mean(covered) <= 0.975


@pytest.mark.system
@pytest.mark.parametrize(("information_std", "least", "most"), [(25.0, 0.8, 0.95), (30.0, 0.6, 0.8), (40.0, 0.1, 0.3)])
def test_where_few_fits_are_told_those_are_not_the_wrong_ones(information_std: float, least: float, most: float) -> None:
    """600 records: the noise of the information nears what it tells, so that nearly all, two thirds and a fifth are told."""
    rng, told, covered = np.random.default_rng(5), 0, []
    for _ in range(400):
        fit, truth = white_fit(rng, 600, 14.0, information_std)
        told += fit.drowned is None
        if fit.drowned is None:
            figures = [fit.combination(np.eye(4)[place]) for place in (1, 2, 3)]
            covered += [a.low <= truth[k] <= a.high for k, a in enumerate(figures, 1) if not isinstance(a, NotEstimable)]
    assert least <= told / 400 <= most
    assert len(covered) >= 200
    assert 0.925 <= np.mean(covered) <= 0.985


def test_a_fit_says_where_it_cannot_be_trusted() -> None:
    fit, _ = white_fit(np.random.default_rng(0), 200, 5.0, 60.0)
    assert fit.drowned is not None
    assert "against the noise" in fit.drowned.reason
    seven = NewtonRelease(np.zeros(2), np.array([1.0, -1.0]), np.eye(2) * 20.0, 0.1, 7.0)  # its noise is .7 of the information
    assert NewtonFit(np.eye(2), [seven], cells=Cells("logistic", np.eye(2))).drowned is None
    assert NewtonFit(np.eye(2), [seven]).drowned is not None  # whose last step is not solved in cells
    far = NewtonRelease(np.zeros(2), np.array([40.0, 0.0]), np.eye(2) * 10.0, 0.1, 0.0)
    fit = NewtonFit(np.eye(2), [far])
    assert fit.drowned is not None
    assert "to have converged" in fit.drowned.reason
    assert np.linalg.norm(fit.step) == pytest.approx(LONGEST_STEP)


@pytest.mark.parametrize(("family", "mean"), [("poisson", 0.8), ("logistic", 0.3)])
def test_a_step_solved_in_its_cells_is_the_exact_solution(family: Any, mean: float) -> None:
    """Two cells of 40 and 960 records: from any point, a Newton step without error leads to the cells' own log ratio."""
    sizes, x = np.array([960.0, 40.0]), np.array([[1.0, 0.0], [1.0, 1.0]])
    gram = x.T @ (x * sizes[:, None])
    for off in (-0.6, 0.0, 0.3, 0.6):
        truth = np.array([np.log(mean), 0.4])
        at = truth + np.array([0.05, off])
        (one, variance), (own, _) = (mean_of(family, x @ each, np.inf) for each in (at, truth))
        step = np.linalg.solve(x.T @ (x * (sizes * variance)[:, None]), x.T @ (sizes * (own - one)))
        contrast = Cells(family, gram, ((1,),)).contrast(np.array([0.0, 1.0]), Steps(at[None]))
        assert contrast is not None
        assert at[1] + contrast.solved(step, 0.0) == pytest.approx(truth[1], abs=1e-9)
        assert contrast.share == pytest.approx((variance * sizes)[0] / (variance * sizes).sum())
        assert contrast.solved(step, -50.0) == -np.inf


@pytest.mark.parametrize(("family", "mean"), [("poisson", 0.8), ("logistic", 0.1)])
@pytest.mark.parametrize("apart", [[(0.9, -1.0)], [(-0.5, 1.4), (0.4, 0.8)]])
def test_older_scores_move_by_the_cells_own_means(family: Any, mean: float, apart: list[tuple[float, float]]) -> None:
    """Exact sums of two cells at several points, each with a share: the last step leads to the cells' own log ratio."""
    sizes, x, whiten = np.array([960.0, 40.0]), np.array([[1.0, 0.0], [1.0, 1.0]]), np.diag([1.0, 2.0])
    truth = np.array([link(family, mean), 0.7])
    events, released = sizes * mean_of(family, x @ truth, np.inf)[0], []
    for off in [*apart, (0.1, -0.3)]:
        at = truth + off
        own, variance = mean_of(family, x @ at, np.inf)
        white = x @ whiten
        information = white.T @ (white * (sizes * variance)[:, None])
        released.append(NewtonRelease(np.linalg.solve(whiten, at), white.T @ (events - sizes * own), information, 1e-9, 1e-9))
    cells, weights = Cells(family, x.T @ (x * sizes[:, None]), ((1,),)), np.array([0.0, 1.0])
    fit = NewtonFit(whiten, released, cells=cells)
    found = fit.figure(weights, 1e-12, 0.1)
    assert isinstance(found, Figure)
    assert found.value == pytest.approx(truth[1], abs=1e-6)
    path, step = fit.last_step
    alone = cells.contrast(weights, Steps(path.points[-1:]))
    assert alone is not None
    assert abs(path.points[-1][1] + alone.solved(step, 0.0) - truth[1]) > 0.005  # which the last point alone does not find


@pytest.mark.parametrize("spread", [0.0, 0.4, 1.1])
def test_a_cell_of_counts_is_solved_where_means_are_at_their_bound(spread: float) -> None:
    """Exposures of 20,000 quantiles of a lognormal and a bound that a tenth to nearly all of them reach at the point: scipy's
    root of sum (y - min(mu, M)) is where the step leads, not the logarithm of 1 + x."""
    drawn = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000) * spread
    most, truth = 5.0, 0.4
    y = np.minimum(np.exp(drawn + truth), most).mean()
    for at in (-0.5, 0.4, 1.5, 2.5, 4.0):
        mean = np.minimum(np.exp(drawn + at), most).mean()
        cell, x = Cell("poisson", at, spread, most), (y - mean) / mean
        assert cell.mean == pytest.approx(mean, rel=1e-3)
        exact = optimize.brentq(lambda t: np.minimum(np.exp(drawn + t), most).mean() - y, -5.0, 5.0)
        assert at + cell.moved(x) == pytest.approx(exact, abs=3e-3)
        assert Cell("poisson", at, spread).moved(x) == pytest.approx(math.log1p(x))
        assert cell.moved(-1.0) == -math.inf
        assert cell.moved(most / cell.mean - 1.0 + 1e-9) == math.inf  # more than the bound in every record


def test_what_varies_in_a_cell_is_the_other_terms_and_the_offset() -> None:
    rng, at = np.random.default_rng(0), np.array([0.1, 0.8, -0.5, 0.7])
    x = np.column_stack([np.ones(4000), rng.uniform(-1, 1, 4000), rng.random((4000, 1)) < np.array([[0.3, 0.1]])])
    cells = Cells("poisson", x.T @ x, ((2, 3),), 9.0, (2.0, 0.6))
    level, number = (cells.contrast(np.eye(4)[place], Steps(at[None])) for place in (2, 1))
    assert level is not None
    assert number is not None
    assert level.cells[0].spread == pytest.approx(math.hypot(np.std(x[:, 1] * at[1]), 0.6))
    assert number.cells[0].spread == pytest.approx(math.hypot(np.std(x[:, 2:] @ at[2:]), 0.6))
    assert level.cells[0].at == pytest.approx(2.0 + at[0] + at[1] * x[:, 1].mean() + at[2])


def test_a_number_that_is_an_indicator_is_solved_as_its_level() -> None:
    gram = np.array([[1000.0, -920.0], [-920.0, 1000.0]])  # of a number in [-1, 1] that 40 records have at 1
    level = Cells("poisson", np.array([[1000.0, 40.0], [40.0, 40.0]]), ((1,),))
    at, step = np.array([0.2, 0.3]), np.array([0.01, -0.3])
    own = Cells("poisson", gram).contrast(np.array([0.0, 1.0]), Steps(np.array([[at[0] + at[1] / 2, at[1] / 2]])))
    other = level.contrast(np.array([0.0, 1.0]), Steps(at[None]))
    assert own is not None
    assert other is not None
    halved = np.array([step[0] + step[1] / 2, step[1] / 2])
    assert 2.0 * own.solved(halved, 0.05) == pytest.approx(other.solved(step, 0.1))
    assert Cells("poisson", gram).contrast(np.array([1.0, 1.0]), Steps(at[None])) is None
