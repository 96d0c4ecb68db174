"""What plans tell by rehearsal: of every method and question, at any schema; what guesses do; what is shown of sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from support import edges
from support.questions import QUESTIONS, Question
from support.studies import CLASSES, SCHEMA, SITES, complete, demand, draft, drafted, federation, split_records
from veilsum.cli.planned import print_plan
from veilsum.compile import StudyDraft, StudyRequest
from veilsum.forecasts import SEARCH_RUNS, forecast, main_error, read_figures
from veilsum.plan import StudyPlan, Verdict, divide, plan_study, verdict
from veilsum.typical import POOL, check_guesses, typical_records
from veilsum_aggregation.feature_moments import moments_of_sums
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.base import Method
from veilsum_coordinator.parts.federation import released_noise
from veilsum_coordinator.parts.moment_alignment import records_to_align
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records

pytestmark = pytest.mark.usefixtures("few_rehearsals")

RUNS = Method.rehearsals  # outside of these tests

# -- what guesses do ------------------------------------------------------------------------------------------------------

CARE = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=18, high=100, unit="years"),
        NumberColumn(name="stay", low=0, high=60, unit="days"),
        NumberColumn(name="severity", low=0, high=60),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="arm", categories=("usual", "new")),
        CategoryColumn(name="ward", categories=("a", "b", "c")),
    ),
    label=LabelColumn(column="died", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "yes"))),
    max_records=2**24,
)
OUTCOME = CARE.model_copy(
    update={"label": None, "columns": (*CARE.columns, CategoryColumn(name="died", categories=("no", "yes")))}
)
FEW = {"died": 0.09}
FOUR = {"family": "logistic", "outcome": "died = 'yes'", "over": ["age", "severity", "sex", "arm"]}


def study_of(method: str, epsilon: float | None, records: int = 1000, **asked: Any) -> StudyDraft:
    content = {"name": "s", "method": method, "dataset": "d", "data": OUTCOME, "privacy": demand(epsilon), **asked}
    content["expected_records"] = max(1, records // len(SITES))
    return drafted(StudyRequest.model_validate(content))


def verdict_of(asked: StudyDraft) -> Verdict:
    """Without the epsilon for an error, which takes longest."""
    study = asked.compile()
    return verdict(study, divide(asked.forecast(study)))


def plan_of(asked: StudyDraft) -> StudyPlan:
    return plan_study(asked, asked.compile())


@pytest.mark.usefixtures("plans_without_search")
def test_rare_events_are_not_promised() -> None:
    """A model that came back in one of six runs was said to be worth its epsilon: half of all were taken to have the event."""
    rare = plan_of(study_of("regression", 2.0, 800, parameters=FOUR, expected=FEW))
    assert rare.verdict is Verdict.NOT_WORTH
    assert {part.name for part in rare.blame} == {f"log odds ratio of {term}" for term in FOUR["over"]}
    assert all(part.told < 0.5 for part in rare.blame)


@pytest.mark.system
def test_what_so_many_records_tell_is_promised_and_what_noise_hides_is_not() -> None:
    assert verdict_of(study_of("regression", 8.0, 100_000, parameters=FOUR, expected=FEW)) is Verdict.WORTH
    lost = study_of("regression", 1.0, 1000, parameters={"family": "linear", "outcome": "stay", "over": FOUR["over"]})
    assert all(item.told == 0.0 for item in lost.forecast(lost.compile()) if item.main)


@pytest.mark.system
@pytest.mark.parametrize("epsilon", [0.5, *(pytest.param(each, marks=pytest.mark.system) for each in (0.1, 2.0))])
@pytest.mark.parametrize(
    "query",
    [pytest.param({"kind": "mean", "over": ["age"]}, marks=pytest.mark.system), {"kind": "table-one", "over": ["age", "sex"]}],
)
def test_one_more_category_makes_no_verdict_better(query: dict[str, Any], epsilon: float) -> None:
    order = [Verdict.NOT_WORTH, Verdict.WEAK, Verdict.WORTH]
    by = [{}, {"by": ["arm"]}, {"by": ["arm", "ward"]}]
    found = [order.index(verdict_of(study_of("statistics", epsilon, 400, query=[{**query, **more}]))) for more in by]
    assert found == sorted(found, reverse=True)
    models = [{**FOUR, "over": ["age", *more]} for more in ([], ["ward"])]
    alone, together = (order.index(verdict_of(study_of("regression", 4 * epsilon, parameters=model))) for model in models)
    assert together <= alone


@pytest.mark.usefixtures("plans_without_search")
def test_the_question_to_blame_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    queries = [
        {"name": "ages", "kind": "mean", "over": ["age"]},
        {"name": "fit", "kind": "linear", "outcome": "stay", "over": ["age"]},
    ]
    plan = plan_of(study_of("statistics", 0.3, 2000, query=queries))
    assert [part.name for part in plan.blame] == ["coefficient of age"]
    assert plan.verdict is Verdict.WEAK
    print_plan(plan)
    printed = " ".join(capsys.readouterr().out.split())
    assert "What keeps it from being worth it: coefficient of age (told in" in printed
    assert plan.to_json()["blame"] == ["coefficient of age"]
    assert sum(plan.weights.values()) == pytest.approx(1.0)


@pytest.mark.usefixtures("few_rehearsals", "plans_without_search")
def test_a_plan_is_the_same_each_time_and_guesses_stay_in_it() -> None:
    asked = [study_of("regression", 3.0, parameters=FOUR, expected=guess) for guess in (FEW, FEW, {})]
    one, again, other = (plan_of(each) for each in asked)
    assert one.to_json() == again.to_json()
    assert one.parts != other.parts
    assert one.study.to_bytes() == other.study.to_bytes()
    assert b"expected" not in one.study.to_bytes()
    assert "died" in other.assumed
    assert "died" not in one.assumed


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ({"agee": [60, 10]}, "Did you mean 'age'"),
        ({"died": {"yess": 0.1}}, "Did you mean 'yes'"),
        ({"died": 1.1}, "within 0 and 1"),
        ({"died": -0.1}, "within 0 and 1"),
        ({"ward": 0.3}, "a table with the share of each"),
        ({"ward": [0.3, 0.1]}, "it has levels"),
        ({"ward": {"a": 0.7, "b": 0.7}}, "add up to 1.4"),
        ({"ward": {"a": 0.1, "b": 0.1, "c": 0.1}}, "add up to 0.3"),
        ({"age": 0.1}, "between 18 and 100"),
        ({"age": [101, 1]}, "between 18 and 100"),
        ({"age": [60, 0]}, "standard deviation below 40.99"),
        ({"age": [60, 50]}, "standard deviation below 40.99"),
        ({"age": [60, -3]}, "standard deviation below 40.99"),
        ({"age": [60, 50, 70]}, "quartiles must rise"),
        ({"age": [10, 50, 70]}, "quartiles must rise"),
        ({"age": {"mean": 60}}, "it is a number"),
    ],
)
def test_a_guess_that_no_records_have_is_explained(guess: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        study_of("statistics", 1.0, expected=guess)
    assert f"expected.{next(iter(guess))}" in caught.value.message


@pytest.mark.parametrize("guess", [math.nan, [60, math.inf], [1], [1, 2, 3, 4], "old", None, {"yes": math.nan}])
def test_a_guess_of_no_form_is_refused(guess: object) -> None:
    with pytest.raises(ValidationError, match="expected"):
        study_of("statistics", 1.0, expected={"died": guess})


def test_typical_records_are_as_guessed() -> None:
    guesses = {"age": (63, 18), "stay": (2.5, 4.5, 8.0), "died": 0.09, "ward": {"a": 0.5}, "sex": 0.0}
    check_guesses(guesses, CARE, "x")
    records = typical_records(CARE, guesses)
    assert records.labels is not None
    assert len(records) == POOL
    assert np.mean(records.labels) == pytest.approx(0.09, abs=1e-3)
    age, stay = (records.features[:, 0] + 1) * 41 + 18, (records.features[:, 1] + 1) * 30
    assert (age.mean(), age.std()) == (pytest.approx(63, abs=0.1), pytest.approx(18, abs=0.1))
    np.testing.assert_allclose(np.quantile(stay, [0.25, 0.5, 0.75]), guesses["stay"], rtol=0.01)
    np.testing.assert_allclose(records.features[:, 3:].mean(axis=0), [1, 0, 0.5, 0.5, 0.5, 0.25, 0.25], atol=1e-3)
    assert 0.1 < np.corrcoef(age, stay)[0, 1] < 0.3
    assert np.abs(typical_records(CARE, {}).features).max() <= 1.0


# -- every question at every schema ---------------------------------------------------------------------------------------


def hostile(question: Question, change: str) -> dict[str, Any]:
    """A study of the question whose schema or size is at an edge."""
    schema, more = question.schema, dict[str, Any]()
    columns = list(schema.columns)
    if change == "narrow bounds":
        narrow = {"low": 1e6, "high": 1e6 + 1}
        columns = [each.model_copy(update=narrow) if each.name == "dose" else each for each in columns]
    elif change == "256 categories":
        number = 64 if question.method in ("statistics", "regression") else 256  # what a study may ask for has its own bounds
        many = tuple(f"level {place}" for place in range(number))
        columns = [each.model_copy(update={"categories": (*each.categories, *many)[:number]}) if each.name == "sex" else each
                   for each in columns]  # fmt: skip
    elif change == "a level that nobody has" and schema.label is None:
        more["expected"] = {"end": {"alive": 1.0, "died": 0.0, "moved": 0.0}, "sex": {"x": 0.0}}
    records = {"one record": 1, "a million records": 10**6}.get(change, 40)
    schema = schema.model_copy(update={"columns": tuple(columns), "max_records": max(2000, records)})
    return {
        "name": "s",
        "method": question.method,
        "dataset": "d",
        "data": schema,
        "expected_records": records,
        **question.asked,
        **more,
    }


CHANGES = ("one record", "a million records", "narrow bounds", "256 categories", "a level that nobody has")


@pytest.mark.sampled(29)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_a_plan_at_any_schema(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs tell as well as many whether anything raises; what noise does not hide is said as finite numbers or None."""
    for method in METHODS.values():
        if type(method).rehearsals:
            monkeypatch.setattr(type(method), "rehearsals", 2)
    privacy = demand(2.0).model_copy(update={"min_cohort": QUESTIONS[name].cohort})
    asked = drafted(StudyRequest.model_validate({**hostile(QUESTIONS[name], change), "privacy": privacy}), edges.SITES)
    study = asked.compile()
    found = forecast(asked.rehearsal, study, 2)
    assert bool(found) == (METHODS[study.method].rehearsals > 0)
    assert all(item.size > 0 and not math.isnan(item.half_width) and 0 <= item.told <= 1 for item in found)


def test_one_column_has_a_plan() -> None:
    for column in (NumberColumn(name="x", low=0, high=1e-6), CategoryColumn(name="x", categories=("a", "b"))):
        for method in ("statistics", "pca", "fedcgs"):
            schema = DatasetSchema(columns=(column,), label=SCHEMA.label, max_records=100)
            assert verdict_of(draft(method, {}, schema, epsilon=2.0, expected=50)) is not Verdict.NOT_FORECAST


@pytest.mark.system
def test_forecasts_are_what_studies_then_tell() -> None:
    """Against the real grid and noise on other made-up records: 9% with the event, a skewed column, unequal wards."""
    expected = {"age": (63, 16), "severity": (16, 7.5), "stay": (2.6, 4.7, 8.5), "ward": {"a": 0.7, "b": 0.25}, **FEW}
    rare = {"parameters": {**FOUR, "over": ["age", "severity"]}}
    mean = {"query": [{"kind": "mean", "over": ["severity", "stay"], "where": "died = 'yes'"}]}
    for method, epsilon, keys in (("regression", 8.0, rare), ("statistics", 1.0, mean)):
        asked = study_of(method, epsilon, 2000, expected=expected, **keys)
        study = asked.compile()
        told = {item.quantity: item for item in asked.forecast(study) if item.main}
        results = [
            METHODS[method].run(federation(study, split_records(patients(2000, seed), SITES), seed)) for seed in range(12)
        ]
        found = [each for result in results for each in read_figures(result).values() if each.main]
        for name, item in told.items():
            own = [each for each in found if each.quantity == name and each.value is not None]
            assert len(own) == 12
            assert item.told == 1.0
            assert np.median([each.half for each in own]) == pytest.approx(item.half_width, rel=0.15), name


def patients(n: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    age, severity, stay = 100 - rng.gamma(5.5, 6.8, n), rng.gamma(4.5, 3.5, n), rng.lognormal(1.55, 0.87, n)
    died = rng.random(n) < 1 / (1 + np.exp(2.38 - 0.09 * (severity - 16) - 0.03 * (age - 63)))
    numbers = [((age - 18) / 41 - 1), (stay / 30 - 1), (severity / 30 - 1)]
    codes = [
        (2, rng.integers(0, 2, n)),
        (2, rng.integers(0, 2, n)),
        (3, rng.choice(3, n, p=(0.7, 0.25, 0.05))),
        (2, died.astype(int)),
    ]
    return complete(np.hstack([np.clip(np.column_stack(numbers), -1, 1), *(np.eye(width)[code] for width, code in codes)]))


def test_the_number_of_runs_is_each_methods_own() -> None:
    assert RUNS > SEARCH_RUNS
    assert all(method.rehearsals >= 0 for method in METHODS.values())


# -- every method ---------------------------------------------------------------------------------------------------------


def alignment(reference: str = "two-way", mode: str = "one-shot") -> dict[str, Any]:
    return {"alignment": {"reference": reference, "mode": mode}}


def wide(columns: int, records: int) -> DatasetSchema:
    label = SCHEMA.label
    assert isinstance(label, LabelColumn)
    return DatasetSchema(
        columns=tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(columns)),
        label=label,
        max_records=records,
    )


@pytest.mark.system
@pytest.mark.usefixtures("plans_without_search")
def test_a_plan_says_what_is_shown_of_single_sites(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(METHODS["fedcgs"]), "rehearsals", 2)  # notes come from the study alone

    def notes(mode: str, **privacy: Any) -> str:
        asked = draft("fedcgs", alignment(mode=mode), **privacy)
        plan = plan_study(asked, asked.compile())
        print_plan(plan)
        printed = " ".join(capsys.readouterr().out.split())
        assert all(note in printed for note in plan.notes)
        assert plan.to_json()["notes"] == list(plan.notes)
        return " ".join(plan.notes)

    assert "Disclosed per site: alignment" in notes("one-shot", epsilon=9.0)
    assert "noised, by site" in notes("one-shot", epsilon=9.0)
    assert "exactly and without noise" in notes("one-shot")
    assert "determine the covariance of each site" in notes("iterated")
    assert "cost nothing more" in notes("iterated", epsilon=9.0)
    plain = draft("fedcgs", epsilon=9.0)
    assert plan_study(plain, plain.compile()).notes == ()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg", "pca"])
@pytest.mark.parametrize("disclosed", [{}, alignment("barycenter", "iterated")])
def test_every_method_says_what_matters_most_and_gets_there_by_an_error(method: str, disclosed: dict[str, Any]) -> None:
    parameters = {} if method == "pca" else disclosed or (alignment() if method == "slot-align" else {})
    asked = draft(method, parameters, epsilon=2.0, expected=400)
    found = asked.forecast(asked.compile())
    assert any(item.main for item in found)
    assert all(item.size > 0 and item.half_width > 0 for item in found)
    if not disclosed:
        by_error = draft(method, parameters, error=0.8, expected=400)
        study = by_error.compile()
        assert main_error(forecast(by_error.rehearsal, study, SEARCH_RUNS)) <= 0.8


SURVEY = SCHEMA.model_copy(
    update={"columns": (*SCHEMA.columns, CategoryColumn(name="event", categories=("no", "yes")))},
)
LOGISTIC = {"family": "logistic", "outcome": "event = 'yes'", "over": ["x0", "x1"]}
NET = {"model": {"name": "linear"}, "learning_rate": 0.2}
PLANNED: dict[str, dict[str, Any]] = {
    "statistics": {},
    "regression": LOGISTIC,
    "pca": {},
    "slot-align": alignment(),
    "o-fedavg": {},
    "fedcgs": {},
    "fedpft": {},
    "gbdt": {"rounds": 3, "trees": 4, "depth": 2},
    "fedsgd": {},
    "fedavg": NET,
    "hfedatm": {**NET, "model": {"name": "mlp", "options": {"hidden": 4}}, "stations": {"x": SITES[:2], "y": SITES[2:]}},
    "ggeur": {},
    "federated-evaluation": {
        "model": {"name": "linear", "options": {"scale": 1.0, "bias": 1.0}},
        "sha256": "0" * 64,
        "classes": CLASSES,
    },
}
TRAINED = {"fedsgd", "fedavg", "hfedatm"}
"""Methods that train in many steps."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("expected", [20, pytest.param(800, marks=pytest.mark.system)])
def test_of_every_method_a_verdict_on_the_models_figures_or_none(
    method: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"epsilon": 2.0, **({"min_cohort": 2} if method == "hfedatm" else {})}
    options |= {"noise": "local"} if method in ("fedavg", "hfedatm") else {}
    asked = draft(method, PLANNED[method], SURVEY, expected=expected, **options)
    plan = plan_study(asked, asked.compile())
    print_plan(plan)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Verdict: {plan.verdict.value}" in printed
    if method in TRAINED:
        assert (plan.verdict, plan.parts) == (Verdict.NOT_FORECAST, ())
        assert plan.error_epsilon is None
        assert "veilsum simulate" in printed
        exact = draft(method, PLANNED[method], SURVEY, expected=expected, **{**options, "epsilon": None, "noise": "none"})
        assert plan_study(exact, exact.compile()).verdict is Verdict.EXACT
    else:
        assert plan.verdict in (Verdict.WORTH, Verdict.WEAK, Verdict.NOT_WORTH)
        assert any(part.main for part in plan.parts)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("share", [0.1, 0.6])
@pytest.mark.parametrize("moments", [{}, {"records": 1.0}, {"order": 4}])
def test_a_plan_says_when_alignment_by_moments_is_in_vain(share: float, moments: dict[str, Any]) -> None:
    """Against whole studies of normal features: below the number of the plan sites stay as they are, above it they align."""
    schema = wide(4, 2**20)
    parameters = {"moments": {"share": share, **moments}, "steps": 5}
    study = draft("fedsgd", parameters, schema, epsilon=2.0, expected=1000).compile()
    needed = records_to_align(study)
    assert needed is not None

    def vain(records: int) -> bool:
        asked = draft("fedsgd", parameters, schema, epsilon=2.0, expected=records)
        return any("will not pay" in note for note in plan_study(asked, asked.compile()).notes)

    assert vain(needed - 1)
    assert not vain(needed)
    noise = {name: std / 2.0 for name, std in released_noise(study, "power-moments", len(SITES)).items()}
    part = moments.get("records", 0.5)

    def told(records: int) -> float:
        rng, aligned = np.random.default_rng(0), 0
        for _ in range(200):
            number = round(part * records)
            x = np.clip(1 / 3 + rng.standard_normal((number, 4)) / 3, -1, 1)
            sums = {"count": np.array([float(number)]), "t1": x.sum(axis=0), "t2": (2 * x**2 - 1).sum(axis=0)}
            noised = {name: values + noise[name] * rng.standard_normal(values.shape) for name, values in sums.items()}
            aligned += int((moments_of_sums(noised, noise).order >= 2).sum())
        return aligned / 800

    assert told(needed // 3) < 0.3
    assert told(3 * needed) > 0.9
    plain = draft("fedsgd", {"steps": 5}, schema, epsilon=2.0, expected=10)
    assert not any("will not pay" in note for note in plan_study(plain, plain.compile()).notes)
