"""Formulas of regressions: statsmodels' own coefficients, and nothing that a formula says is ever evaluated."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import formulaic
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from scipy.stats import norm, t

import veilsum
from support.studies import agreed, demand, split_records
from support.studies import federation as federation_of
from veilsum.api.fits import Fitted
from veilsum.compile import StudyRequest
from veilsum.formulas import formula_parameters, has_formula, offset_parameters
from veilsum_aggregation.figures import by_student, student_figure
from veilsum_coordinator.methods import METHODS
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import joined, record_of, traced
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.queries.cells import number_cells
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        NumberColumn(name="bmi", low=10, high=60),
        NumberColumn(name="given", low=0, high=1, impute=0.5),
        NumberColumn(name="time", low=0, high=10),
        NumberColumn(name="entry", low=0, high=5),
        NumberColumn(name="days", low=1, high=400),
        NumberColumn(name="visits", low=0, high=40),
        NumberColumn(name="odd name", low=-1, high=1),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="stage", categories=("I", "II", 'it\'s "III"')),
        CategoryColumn(name="died", categories=("no", "yes")),
    ),
    max_records=1000,
)
BOUNDS = {"lower_bound": 10, "upper_bound": 60}


def patients(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, bmi = rng.normal(60, 12, n).clip(20, 90).round(1), rng.normal(27, 6, n).clip(11, 59).round(2)
    sex, stage = rng.choice(["f", "m"], n), rng.choice(list(SCHEMA.columns[9].categories), n)  # type: ignore[union-attr]
    eta = -2.5 + 0.03 * (age - 60) + 0.5 * (sex == "m") + 0.004 * (bmi - 27) ** 2
    died = rng.random(n) < 1 / (1 + np.exp(-eta))
    days = rng.uniform(1, 400, n).round()
    start = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 3, n)).round(4)
    hazard = np.where(sex == "m", 0.35, 0.15) * np.exp(0.03 * (age - 60) - 0.5 * (stage == "II"))
    fell, left = start + rng.exponential(1 / hazard), start + rng.uniform(0.5, 6, n)
    return pd.DataFrame({
        "age": age, "bmi": bmi, "sex": sex, "stage": stage, "died": np.where(died, "yes", "no"), "event": died * 1.0,
        "days": days, "visits": rng.poisson(np.exp(-5.5 + 0.01 * age) * days).clip(0, 40), "entry": start, "given": 0.5,
        "time": np.minimum(np.minimum(fell, left), 9.9).round(4), "odd name": rng.uniform(-1, 1, n).round(2),
        "ended": np.where((fell <= left) & (fell < 9.9), "yes", "no"),
    })  # fmt: skip


def read(frame: pd.DataFrame) -> Records:
    """Records as a site would hold them."""
    from veilsum.api.models import encode_frame

    return encode_frame(frame[[column.name for column in SCHEMA.columns]], SCHEMA)


def computed(formula: str, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The columns that a formula derives, by name, as a site's rows compute them; NaN where one is missing."""
    derived = formula_parameters("logistic", formula, SCHEMA, {})["derive"]
    columns = Columns(SCHEMA, [DerivedColumn(name=name, **own) for name, own in derived.items()])
    record, found = record_of(SCHEMA.width, labelled=False), {}
    for name in derived:
        cells, domain = columns.cells(record), columns.number(name, "test")
        number = number_cells(cells, name)
        row = traced(joined(domain.low + (number.x + 1.0) * domain.half, number.present * 1.0))
        values = np.concatenate(list(Evaluation(row).rows(read(frame))))
        found[name] = np.where(values[:, 1] > 0.5, values[:, 0], np.nan)
    return found


SPLINES = [
    ("bs(bmi, knots=[22, 27, 35])", 3), ("bs(bmi, knots=[30], degree=1)", 1), ("bs(bmi, knots=[20.5, 21], degree=2)", 2),
    ("bs(bmi, knots=[25, 30], lower_bound=15, upper_bound=50)", 3),
    ("cr(bmi, knots=[22, 27, 35])", 0), ("cr(bmi, knots=[11])", 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "degree"), SPLINES)
def test_a_spline_is_that_of_formulaic_at_the_same_knots(text: str, degree: int) -> None:
    frame = patients(500)
    stated = text if "lower_bound" in text else text[:-1] + ", lower_bound=10, upper_bound=60)"
    clamped = frame.assign(bmi=frame.bmi.clip(15, 50)) if "lower_bound" in text else frame
    wanted = formulaic.model_matrix(stated, clamped)
    found = computed(f"died ~ {text}", frame)
    made = {name.rpartition("[")[2]: values for name, values in found.items() if name.startswith(text[:2])}
    names = {name.rpartition("[")[2]: name for name in wanted.columns if name != "Intercept"}
    # of natural splines formulaic has all columns, which add up to 1
    assert set(made) == set(names) - (set() if degree else {"1]"})
    for place, values in made.items():
        np.testing.assert_allclose(values, wanted[names[place]], rtol=0, atol=2e-9)


@pytest.mark.parametrize(
    ("term", "value"),
    [
        ("I(age ** 2)", lambda f: f.age**2),
        ("I((age - 60) / 10)", lambda f: (f.age - 60) / 10),
        ("np.log(bmi)", lambda f: np.log(f.bmi)),
        ("I(-2 * age * bmi + 3)", lambda f: -2 * f.age * f.bmi + 3),
        ("I(age > 65)", lambda f: 1.0 * (f.age > 65)),
        ("I(sex != 'f')", lambda f: 1.0 * (f.sex != "f")),
        ("`odd name`:age", lambda f: f["odd name"] * f.age),
        ("I(Q('odd name') ** 2)", lambda f: f["odd name"] ** 2),
        ("above(age, 50)", lambda f: (f.age - 50).clip(lower=0)),
    ],
)
def test_a_term_is_computed_as_it_reads(term: str, value: Any) -> None:
    frame = patients(300)
    (found,) = computed(f"died ~ {term}", frame).values()
    np.testing.assert_allclose(found, value(frame), rtol=1e-9, atol=1e-9)


def test_what_is_missing_is_a_term_of_its_own() -> None:
    frame = patients(300)
    frame.loc[:99, "bmi"], frame.loc[50:149, "sex"] = np.nan, None
    found = computed("died ~ missing(bmi) + filled(bmi, 25) + missing(sex) + C(filled(sex, 'm')) + I(bmi / 2)", frame)
    np.testing.assert_array_equal(found["missing(bmi)"], frame.bmi.isna() * 1.0)
    np.testing.assert_allclose(found["filled(bmi, 25)"], frame.bmi.fillna(25), rtol=1e-9)
    np.testing.assert_array_equal(found["missing(sex)"], frame.sex.isna() * 1.0)
    np.testing.assert_array_equal(found["C(filled(sex, 'm'))[T.m]"], 1.0 * (frame.sex.fillna("m") == "m"))
    assert np.isnan(found["I(bmi / 2)"][:100]).all()  # what nobody fills stays missing


REFUSED = {
    "died ~ nope": "no column 'nope'",
    "died ~ agee": "Did you mean 'age'",
    "nope ~ age": "no column 'nope'",
    "stage ~ age": "an event is one of two",
    "died ~ age - 1": "a regression has one",
    "died ~ 0 + age": "a regression has one",
    "died ~": "nothing behind",
    "~ age": "nothing before",
    "died ~ 1": "has no terms",
    "died ~ age ~ bmi": "one outcome",
    "died ~ age | bmi": "one outcome",
    "died ~ sex:stage": "without the terms",
    "died ~ center(age)": "I(age - 60)",
    "died ~ scale(age)": "I((age - 60) / 10)",
    "died ~ standardize(age)": "not public",
    "died ~ poly(age, 2)": "not public",
    "died ~ qcut(age, 4)": "edges",
    "died ~ bs(bmi)": "State public knots",
    "died ~ bs(bmi, df=4)": "State public knots",
    "died ~ cr(bmi, df=4)": "State public knots",
    "died ~ bs(bmi, knots=[])": "knots ascend",
    "died ~ bs(bmi, knots=[5, 25])": "outside of the bounds",
    "died ~ bs(bmi, knots=[25, 25])": "each once",
    "died ~ bs(bmi, knots=[30, 25])": "ascend",
    "died ~ bs(bmi, knots=25)": "a list of numbers",
    "died ~ bs(bmi, knots=quantiles)": "a list of numbers",
    "died ~ bs(bmi, knots=[age.mean()])": "neither number nor text",
    "died ~ bs(bmi, knots=[25], lower_bound=5)": "do not lie within",
    "died ~ bs(bmi, knots=[25], degree=0)": "degree",
    "died ~ bs(sex, knots=[25])": "a spline is of a number",
    "died ~ C(age)": "Cut it".lower(),
    "died ~ C(sex, Sum)": "only Treatment",
    "died ~ C(sex, Treatment('x'))": "not one of its categories",
    "died ~ C(sex, levels=['m', 'f'])": "the schema's categories",
    "died ~ I(sex * 2)": "has categories",
    "died ~ I(age / bmi)": "cannot be derived",
    "died ~ I(age ** 9)": "powers to 4",
    "died ~ I(age ** bmi)": "neither number nor text",
    "died ~ np.log(visits)": "no logarithm",
    "died ~ exp(age)": "not known",
    "died ~ missing(given)": "imputes",
    "died ~ filled(bmi, 99)": "outside",
    "died ~ filled(bmi)": "public one",
    "died ~ filled(sex, 'x')": "not one of its categories",
    "died ~ I(1e999 * age)": "finite",
    "died ~ `no such`": "neither a column",
    "died ~ " + " * ".join(f"I(age + {place})" for place in range(20)): "multiplies too much",
    "died ~ (age + bmi + sex) ** 99": "multiplies too much",
    "died ~ " + " + ".join(f"I(age + {place})" for place in range(300)): "at most",
    "died ~ age +": "",
    "died ~ age + )": "",
    "died ~ .": "",
    "died ~ I(" + "-" * 900 + "age)": "",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=lambda value: value[:40])
def test_what_is_no_public_formula_is_refused_with_what_to_state(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        formula_parameters("logistic", text, SCHEMA, {})
    assert said.lower() in f"{caught.value.message} {caught.value.advice}".lower()
    assert caught.value.advice


def marks(folder: Path) -> Iterator[str]:
    """Texts that would write a file if anything evaluated them."""
    call = f"open({str(folder / 'ran')!r}, 'w').close()"
    code = f"__import__('pathlib').Path({str(folder / 'ran')!r}).touch()"
    for each in (
        call,
        code,
        f"exec({code!r})",
        f"eval({code!r})",
        f"(lambda: {code})()",
        f"[{code} for _ in [0]]",
        f"{{{code}}}",
    ):
        yield from (
            f"died ~ {each}", f"died ~ age + {each}", f"died ~ I({each})", f"died ~ bs(bmi, knots=[{each}])", f"{each} ~ age",
            f"died ~ C(sex, Treatment({each}))", f"died ~ age:{each}", f"died ~ filled(bmi, {each})", f"died ~ {{{each}}}",
            f"died ~ `{each}`", f"died ~ I(age if {each} else bmi)", f"died ~ np.log({each})", f"died ~ I(age > {each})",
        )  # fmt: skip


def test_no_formula_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a formula was evaluated")

    formulaic.parser.DefaultFormulaParser().get_terms("a")  # what it imports is there before
    monkeypatch.setattr(builtins, "eval", forbidden)
    monkeypatch.setattr(builtins, "exec", forbidden)
    tried = 0
    for text in marks(tmp_path):
        with pytest.raises(ConfigurationError):
            formula_parameters("logistic", text, SCHEMA, {})
        tried += 1
    assert tried > 80
    assert not (tmp_path / "ran").exists()


PIECES = st.sampled_from(
    [*"()[]{}'\"`:*+-~/|^,.=<> 0123456789", "age", "sex", "died", "C(", "bs(", "I(", "knots=", "Treatment(", "\x00", "é", "**"]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=25).map("".join))
@example("age ~ C(C(C(sex)))")
@example("died ~ C(sex)[T.m]")
@example("died ~ age\x00")
@example("died ~ bs(bs(bmi, knots=[20]), knots=[1])")
def test_any_text_is_a_formula_or_a_reason(text: str) -> None:
    for whole in (text, f"died ~ {text}"):
        try:
            found = formula_parameters("logistic", whole, SCHEMA, {})
        except ConfigurationError:
            continue
        Columns(SCHEMA, [DerivedColumn(name=name, **own) for name, own in found["derive"].items()])
        assert found["over"]


def test_a_condition_is_no_formula() -> None:
    assert has_formula("died ~ age")
    assert not has_formula("died = '~'")
    assert not has_formula('"a~b" = 1')


# -- the fits ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return patients(1600)


@pytest.fixture(scope="module")
def federation(frame: pd.DataFrame) -> Iterator[Any]:
    schema = SCHEMA.model_copy(update={"columns": (*SCHEMA.columns, CategoryColumn(name="ended", categories=("no", "yes")))})
    with veilsum.simulate(frame, schema, sites=3, seed=1) as made:
        yield made


RHS = "age * sex + C(stage, Treatment('II')) + bs(bmi, knots=[25, 32]{bounds})"


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_without_noise_a_formula_is_statsmodels(family: str, federation: Any, frame: pd.DataFrame) -> None:
    outcome = {"linear": "visits", "logistic": "died", "poisson": "visits"}[family]
    with_bounds = RHS.format(bounds=", lower_bound=10, upper_bound=60")
    text = f"{'event' if family == 'logistic' else outcome} ~ {with_bounds}"
    if family == "linear":
        fit = smf.ols(text, frame).fit()
    elif family == "logistic":
        fit = smf.logit(text, frame).fit(disp=0)
    else:
        fit = smf.glm(text, frame, family=sm.families.Poisson(), offset=np.log(frame.days)).fit()
    more = {"exposure": "days"} if family == "poisson" else {}
    ask = getattr(federation.dataset(noise="none"), family)
    found = ask(f"{outcome} ~ {RHS.format(bounds='')}", errors="model", **more).run(progress=False)
    names = {
        **{name: name for name in fit.params.index},
        **{f"C(stage, Treatment('II'))[T.{level}]": f"stage[T.{level}]" for level in ("I", 'it\'s "III"')},
        **{f"{SPLINE_WITH}[{place}]": f"{SPLINE}[{place + 1}]" for place in range(5)},
    }
    assert set(found.params.index) == {names[name] for name in fit.params.index}
    for name, value in fit.params.items():
        own, error = names[str(name)], float(fit.bse[name])
        assert found.params[own] == pytest.approx(value, abs=2e-4 * error)
        # a record's share of the information is rounded to 2^-26 of the largest that it can have, toward 0
        assert found.bse[own] == pytest.approx(error, rel=1e-10 if family == "linear" else 1e-3)
        assert found.pvalues[own] == pytest.approx(fit.pvalues[name], abs=2e-3)
        np.testing.assert_allclose(found.conf_int().loc[own], fit.conf_int().loc[name], atol=5e-3 * error)
    more = {"offset": np.log(frame.days)} if family == "poisson" else {}
    np.testing.assert_allclose(found.predict(frame), fit.predict(frame, **more), rtol=0, atol=1e-4)
    assert "coef" in found.summary()
    assert all(name in found.summary() for name in found.params.index)


SPLINE = "bs(bmi, knots=[25, 32])"
SPLINE_WITH = "bs(bmi, knots=[25, 32], lower_bound=10, upper_bound=60)"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_without_noise_strata_and_late_entry_are_lifelines(
    late: bool, apart: bool, federation: Any, frame: pd.DataFrame
) -> None:
    kept = frame[frame.time > frame.entry]
    table = kept[["age", "time"]].assign(e=(kept.ended == "yes") * 1, two=(kept.stage == "II") * 1.0)
    table = table.assign(three=(kept.stage == 'it\'s "III"') * 1.0)
    more: dict[str, Any] = {}
    if late:
        table, more["entry_col"] = table.assign(entry=kept.entry), "entry"
    if apart:
        table, more["strata"] = table.assign(sex=kept.sex), ["sex"]
    truth = CoxPHFitter().fit(table, "time", "e", **more)
    keys = {"entry": "entry" if late else "", "strata": "sex" if apart else ""}
    found = (
        federation.dataset(noise="none").cox("time ~ age + stage", event="ended", censored="no", **keys).run(progress=False)
    )
    errors = truth.standard_errors_[["age", "two", "three"]].to_numpy()
    # periods are 20 of about equally many events: the rest is what these differ from single events by
    np.testing.assert_allclose(found.params / errors, truth.params_[["age", "two", "three"]] / errors, atol=0.06)
    np.testing.assert_allclose(found.bse, errors, rtol=0.01)


FRAMED = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90),
        NumberColumn(name="days", low=1, high=400),
        NumberColumn(name="visits", low=0, high=16),
        NumberColumn(name="entry", low=0, high=8),
        NumberColumn(name="time", low=0, high=8),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="died", categories=("no", "yes")),
        CategoryColumn(name="ended", categories=("no", "yes")),
    ),
    max_records=20_000,
)


def drawn(n: int, seed: int) -> Records:
    """Records of three models whose coefficients :data:`MODELS` has."""
    from veilsum.api.models import encode_frame

    rng = np.random.default_rng(seed)
    age, sex, arm = rng.normal(60, 12, n).clip(20, 90), rng.integers(0, 2, n), rng.integers(0, 2, n)
    died = rng.random(n) < 1 / (1 + np.exp(1 - 0.03 * (age - 60) - 0.5 * sex + 0.3 * arm - 0.4 * sex * arm))
    days = rng.uniform(50, 400, n)
    visits = rng.poisson(np.exp(-5.2 + 0.01 * (age - 60) + 0.3 * sex) * days).clip(0, 16)
    entry = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 3, n))
    hazard = np.where(sex == 1, 0.35, 0.15) * np.exp(0.03 * (age - 60) - 0.4 * arm)
    fell, left = entry + rng.exponential(1 / hazard), entry + rng.uniform(0.5, 6, n)
    known = (fell <= left) & (fell < 7.99)
    frame = {
        "age": age, "days": days, "visits": visits, "entry": entry, "time": np.minimum(np.minimum(fell, left), 7.99),
        "sex": np.array(["f", "m"])[sex], "arm": np.array(["a", "b"])[arm],
        "died": np.array(["no", "yes"])[died * 1], "ended": np.array(["no", "yes"])[known * 1],
    }  # fmt: skip
    return encode_frame(pd.DataFrame(frame), FRAMED)


MODELS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "logistic": (
        {"family": "logistic", **formula_parameters("logistic", "died ~ age + sex * C(arm, Treatment('b'))", FRAMED, {})},
        {"age": 0.03, "sex m": 0.9, "arm a": 0.3, "sex[T.m]:C(arm, Treatment('b'))[T.a]": -0.4},
    ),
    "poisson": (
        {"family": "poisson", "outcome": "visits", "over": ["age", "sex"], **offset_parameters("days", FRAMED, {})},
        {"age": 0.01, "sex m": 0.3},
    ),
    "cox": (
        {"family": "cox", "outcome": "time", "over": ["age", "arm"], "event": "ended", "censored": ["no"],
         "strata": "sex", "entry": "entry"},
        {"age": 0.03, "arm b": -0.4},
    ),
}  # fmt: skip


@pytest.mark.system
@pytest.mark.usefixtures("plans_without_search")
@pytest.mark.parametrize("family", MODELS)
def test_with_noise_intervals_hold_the_truth(family: str) -> None:
    """Of 30 intervals of one coefficient, each 95% likely, 13 or fewer hold with a chance below 1e-13."""
    parameters, truth = MODELS[family]
    sites = [f"site-{place}" for place in range(4)]
    request = StudyRequest(
        name="fit", method="regression", dataset="records", data=FRAMED, parameters=parameters, privacy=demand(8.0),
        expected_records=2000,
    )  # fmt: skip
    study, held = agreed(request, sites), dict.fromkeys(truth, 0)
    for seed in range(30):
        rows = (
            METHODS["regression"].run(federation_of(study, split_records(drawn(8000, seed), 4), seed)).summary["coefficients"]
        )
        for row in rows:
            if row["term"] in truth and "value" in row["log"]:
                assert row["log"]["noise_error"] > 0.0
                held[row["term"]] += row["log"]["low"] <= truth[row["term"]] <= row["log"]["high"]
    assert min(held.values()) > 13


def test_of_a_regression_alone_there_are_coefficients(federation: Any) -> None:
    result = federation.dataset(noise="none").mean("age").run(progress=False)
    with pytest.raises(Misuse, match="no coefficients"):
        _ = result.params


def test_a_term_that_is_not_estimable_is_nan_and_named() -> None:
    rows = [
        {"term": "constant", "per": "", "odds_ratio": {}, "log": {"not_estimable": "nobody", "advice": ""}, "p_value": None},
        {"term": "age", "per": "years", "odds_ratio": {}, "p_value": 0.2,
         "log": {"value": 0.1, "noise_error": 0.3, "sampling_error": 0.4, "low": None, "high": 1.1}},
    ]  # fmt: skip
    fit = Fitted(rows, None, {})
    assert np.isnan(fit.params["Intercept"])
    assert fit.bse["age"] == pytest.approx(0.5)
    assert list(fit.conf_int().loc["age"]) == [-np.inf, pytest.approx(1.1)]
    assert "Not estimable: Intercept: nobody." in fit.summary()
    lost = {"not_estimable": "too little", "advice": "more records"}
    every = Fitted([{**row, "log": lost} for row in rows], None, {}).summary()
    assert every.count("too little") == 1
    assert "Not estimable: all terms: too little. What would help: more records." in every
    with pytest.raises(Misuse, match="no proof"):
        fit.predict(pd.DataFrame({"age": [1.0]}))
    with pytest.raises(Misuse, match="alpha"):
        fit.conf_int(0.0)


@pytest.mark.parametrize(("degrees", "alpha"), [(3, 0.1), (3, 0.01), (12, 0.2), (5, 0.05)])
def test_intervals_of_few_records_are_students_at_each_level(degrees: int, alpha: float) -> None:
    """Without noise they are scipy's; with noise they hold 0 where p says so, and are between Student's and the normal one."""

    def ends(value: float, noise: float) -> list[float]:
        figure = by_student(student_figure(value, noise, 0.4, degrees))
        told = figure.to_json()
        fitted = Fitted([{"term": "age", "per": "", "p_value": figure.p_value, "coefficient": told}], None, {})
        return list(fitted.conf_int(alpha).loc["age"])

    assert ends(0.3, 0.0) == pytest.approx(t.interval(1 - alpha, degrees, 0.3, 0.4), rel=1e-6)
    for noise in (0.0, 0.1, 2.0):
        low, high = ends(0.3, noise)
        error, half = math.hypot(noise, 0.4), (high - low) / 2.0
        assert norm.ppf(1 - alpha / 2) * error * 0.99 <= half <= t.ppf(1 - alpha / 2, degrees) * error * (1 + 1e-6)
        for inside, outside in ((0.999 * half, 1.001 * half), (-0.999 * half, -1.001 * half)):
            figures = [by_student(student_figure(value, noise, 0.4, degrees)) for value in (inside, outside)]
            assert figures[0].p_value > alpha > figures[1].p_value


def test_a_summary_prints_numbers_as_statsmodels_does() -> None:
    """Per unit of a large column a coefficient is small, and no less than nothing."""
    from statsmodels.iolib.summary import forg

    values = [2.34e-7, 0.5, -12345.678]
    rows: list[dict[str, Any]] = []
    for value in values:
        told = {"value": value, "noise_error": 0.0, "sampling_error": abs(value) / 3.0, "low": -2.0 * value, "high": None}
        rows.append({"term": "age", "per": "", "p_value": 0.04, "coefficient": told})
    lines = Fitted(rows, None, {}).summary().splitlines()
    printed = [line.split() for line in lines if line.startswith("age")]
    assert len(printed) == len(values)
    for value, (_, coefficient, error, _, _, low, high) in zip(values, printed, strict=True):
        of_statsmodels = (
            forg(number, prec=digits).strip() for number, digits in ((value, 4), (abs(value) / 3.0, 3), (-2.0 * value, 3))
        )
        assert [coefficient, error, low, high] == [*of_statsmodels, "inf"]
