"""Robust errors of a regression: statsmodels' HC1 without noise, honest intervals with it where the model's are too short."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from support.studies import STAYS, agreed, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_aggregation.figures import MODEL_ERRORS, Figure, NotEstimable
from veilsum_aggregation.figures import Test as Wald
from veilsum_aggregation.regression import LinearFit
from veilsum_aggregation.robust import RobustFit, mean_terms
from veilsum_coordinator.methods import METHODS
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

SITES = [f"site-{index}" for index in range(4)]
EVENT = {"family": "linear", "outcome": "end = 'died'", "over": ["ward"]}
SKEWED = {"family": "linear", "outcome": "stay", "over": ["age"]}
COUNTS = {"family": "poisson", "outcome": "stay", "over": ["ward"], "most": 20.0}
ODDS = {"family": "logistic", "outcome": "end = 'died'", "over": ["ward", "age"]}


def requested(parameters: dict[str, Any], epsilon: float | None = 1.0) -> StudyRequest:
    return StudyRequest(
        name="fit", method="regression", dataset="stays", data=STAYS, parameters=parameters, privacy=demand(epsilon),
        expected_records=400,
    )  # fmt: skip


def compiled(parameters: dict[str, Any], epsilon: float | None, errors: str = "robust") -> Study:
    return agreed(requested({**parameters, "errors": errors}, epsilon), SITES)


class Cohort:
    """Records whose outcomes vary more where the term is larger: events of 5 and 35%, skewed stays, overdispersed counts."""

    def __init__(self, kind: str, n: int, seed: int, share: float = 0.2) -> None:
        rng = np.random.default_rng(seed)
        self.age, self.ward = np.where(rng.random(n) < share, 1.0, -1.0), (rng.random(n) < share).astype(int)
        died = rng.random(n) < np.where(self.ward == 1, 0.35, 0.05)
        if kind == "counts":
            mean = np.where(self.ward == 1, 5.0, 3.0)
            self.stay = rng.poisson(mean * rng.gamma(2.0, 0.5, n)).clip(0, 40).astype(float)
        else:
            self.stay = (8 + 2 * self.age + (rng.gamma(1.0, 1.0, n) - 1) * np.where(self.age > 0, 6.0, 1.0)).clip(0, 40)
        self.died = died
        features = np.zeros((n, STAYS.width))
        features[:, 0], features[np.arange(n), 1 + self.ward] = self.age, 1.0
        features[:, 3], features[np.arange(n), 5 + died] = self.stay / 20 - 1, 1.0
        self.records = Records(features, np.ones(features.shape, dtype=np.bool_), None)

    def run(self, study: Study, seed: int = 0) -> Any:
        return METHODS["regression"].run(federation(study, split_records(self.records, 4), seed)).summary


def answers(summary: Any, errors: str = "") -> list[Any]:
    return [row.get("coefficient") or row["log"] for row in summary[f"coefficients{errors}"]]


@pytest.mark.parametrize("parameters", [EVENT, SKEWED, COUNTS, ODDS], ids=["event", "skewed", "counts", "odds"])
def test_without_noise_they_are_statsmodels(parameters: dict[str, Any]) -> None:
    linear = parameters["family"] == "linear"
    # Newton steps shorten the terms of a rare group, in their information once more: errors are then somewhat too large.
    data = Cohort("counts" if parameters is COUNTS else "skewed", 2000, 1, share=0.2 if linear else 0.5)
    x = sm.add_constant(np.column_stack([{"ward": data.ward, "age": data.age}[name] for name in parameters["over"]]))
    y = data.stay if parameters["outcome"] == "stay" else data.died.astype(float)
    if linear:
        expected = sm.OLS(y, x).fit(cov_type="HC1")
    else:
        family = sm.families.Poisson() if parameters is COUNTS else sm.families.Binomial()
        expected = sm.GLM(y, x, family=family).fit(cov_type="HC1")
    summary = data.run(compiled(parameters, None))
    assert summary["queries"][0]["errors"] == "robust"
    per = {"ward": 1.0, "age": 30.0}  # of a term's range for which 1 in x stands
    found = answers(summary)[1:]
    plain = answers(summary, f" {MODEL_ERRORS}")[1:]
    for name, answer, model, value, error in zip(
        parameters["over"], found, plain, expected.params[1:], expected.bse[1:], strict=True
    ):
        assert answer["value"] * per[name] == pytest.approx(value, abs=0.15 * error)
        assert answer["sampling_error"] * per[name] == pytest.approx(
            error, rel=0.08 if parameters is ODDS else 0.02
        )  # earlier steps' part
        assert answer["value"] == model["value"]
    robustly, of_model = summary["coefficients tests"]
    assert [each["test"] for each in (robustly, of_model)] == [
        "all slopes are 0 (Wald), robust errors", f"all slopes are 0 (Wald), errors {MODEL_ERRORS}",
    ]  # fmt: skip
    wald = expected.wald_test(np.eye(len(expected.params))[1:], use_f=False, scalar=True)
    assert robustly["statistic"] == pytest.approx(float(wald.statistic), rel=0.2 if parameters is ODDS else 0.05)
    assert robustly["degrees"] == len(parameters["over"])
    if parameters is not ODDS:
        assert robustly["statistic"] < of_model["statistic"] / 1.15**2
        assert found[0]["sampling_error"] > 1.15 * plain[0]["sampling_error"]


@pytest.mark.parametrize(
    ("kind", "parameters", "epsilon", "n", "runs"),
    [
        ("events", EVENT, 1.0, 1650, 40),
        pytest.param("skewed", SKEWED, 2.0, 1650, 40, marks=pytest.mark.system),
        pytest.param("counts", COUNTS, 3.0, 3000, 30, marks=pytest.mark.system),
    ],
)
def test_intervals_cover_where_the_models_do_not(
    kind: str, parameters: dict[str, Any], epsilon: float, n: int, runs: int
) -> None:
    """In every run they are told; the share that covers could not be so low by chance in .95, to 1e-9. Seeds are fixed."""
    truth = {"events": 0.30, "skewed": 2.0 / 30, "counts": math.log(5 / 3)}[kind]
    study, hits, ratios = compiled(parameters, epsilon), 0, list[float]()
    for seed in range(runs):
        summary = Cohort(kind, n, 100 + seed).run(study, seed)
        answer, model = answers(summary)[1], answers(summary, f" {MODEL_ERRORS}")[1]
        assert "not_estimable" not in answer
        hits += answer["low"] <= truth <= answer["high"]
        ratios.append((answer["high"] - answer["low"]) / (model["high"] - model["low"]))
    assert stats.binom.cdf(hits, runs, 0.95) > 1e-9
    assert hits >= 0.85 * runs
    assert np.median(ratios) > 1.05


@pytest.mark.parametrize(
    ("parameters", "default"),
    [(EVENT, "robust"), (COUNTS, "robust"), (SKEWED, "model"), (ODDS, "model"), ({**EVENT, "outcome": "stay > 10"}, "robust")],
)
def test_the_default_is_robust_where_the_familys_variance_is_not_the_outcomes(
    parameters: dict[str, Any], default: str
) -> None:
    """A study that states its errors is signed as it always was; the model's are not named."""
    study, stated = (agreed(requested({**parameters, **more}), SITES) for more in ({}, {"errors": default}))
    assert study.to_bytes() == stated.to_bytes()
    assert study.parameters.get("errors", "model") == default
    assert any(task.label == "score-products" for task in study.tasks) == (default == "robust")
    plain = agreed(requested({**parameters, "errors": "model"}), SITES)
    assert "errors" not in plain.parameters
    assert all(task.label != "score-products" for task in plain.tasks)


def test_a_derived_number_is_no_event() -> None:
    derive = {"long": {"number": "1 * (stay > 10)", "low": 0, "high": 1}}
    study = agreed(requested({**EVENT, "outcome": "long", "derive": derive}), SITES)
    assert all(task.label != "score-products" for task in study.tasks)


def test_the_test_of_all_slopes_holds_its_level_where_the_models_does_not() -> None:
    """A term of a fifth of the records, among which the outcome varies six times as much, of moments and products that are
    noised here."""
    rng, robustly, of_model = np.random.default_rng(5), list[bool](), list[bool]()
    for _ in range(600):
        x = np.column_stack([np.ones(1000), rng.random(1000) < 0.2, rng.uniform(-1.0, 1.0, 1000)])
        y = 0.1 + np.where(x[:, 1] > 0.0, 0.3, 0.05) * rng.standard_normal(1000)
        z = np.column_stack([x, y])

        def noised(matrix: Any, std: float) -> Any:
            above = np.triu(rng.normal(size=matrix.shape), 1) * std / math.sqrt(2.0)
            return matrix + above + above.T + np.diag(rng.normal(size=len(matrix)) * std)

        fit = LinearFit(noised(z.T @ z, 3.0), 3.0)
        scores = x * (y - x @ fit.coefficients)[:, None]
        found = RobustFit(fit, noised(scores.T @ scores, 0.3), 0.3, fit.inverse, 1000.0).all_slopes()
        plain = fit.all_slopes()
        assert isinstance(found, Wald)
        assert isinstance(plain, Wald)
        robustly.append(found.p_value < 0.05)
        of_model.append(plain.p_value < 0.05)
    most = 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 600)
    assert 0.01 <= np.mean(robustly) <= most < np.mean(of_model)


def test_a_variance_within_its_noise_is_not_told() -> None:
    fit = LinearFit(np.diag([1000.0, 1000.0, 300.0]), 0.1)
    whole = RobustFit(fit, 300.0 * np.eye(2), 10.0, np.eye(2) / 1000.0, 1000.0)
    found = whole.combination(np.array([0.0, 1.0]))
    assert isinstance(found, Figure)
    assert found.sampling_error == pytest.approx(math.sqrt(310.0 * 1000 / 998) / 1000)
    assert found.noise_error == pytest.approx(math.sqrt(fit.covariances[0][1, 1]))
    lost = RobustFit(fit, 300.0 * np.eye(2), 400.0, np.eye(2) / 1000.0, 1000.0).combination(np.array([0.0, 1.0]))
    assert isinstance(lost, NotEstimable)
    assert "within its noise" in lost.reason
    noisy = LinearFit(fit.moments, 20.0)  # whose coefficient has as much noise as makes the other's the smaller half
    told = RobustFit(noisy, 300.0 * np.eye(2), 400.0, np.eye(2) / 1000.0, 1000.0).combination(np.array([0.0, 1.0]))
    assert isinstance(told, Figure)
    noise, sampling = stats.norm.ppf(0.975) ** 2 * noisy.covariances[0][1, 1], stats.t.ppf(0.975, 998) ** 2 * 0.7 / 998
    assert told.half_width == pytest.approx(math.sqrt(noise + sampling), rel=1e-6)
    negative = RobustFit(fit, -900.0 * np.eye(2), 400.0, np.eye(2) / 1000.0, 1000.0)
    assert isinstance(negative.combination(np.array([0.0, 1.0])), NotEstimable)
    assert np.all(np.linalg.eigvalsh(negative.covariances[1]) > 0)


def test_cox_has_none() -> None:
    hazards = {"family": "cox", "outcome": "stay", "event": "end", "censored": ["home"], "over": ["ward"]}
    with pytest.raises(ConfigurationError, match="Cox regression has no robust errors"):
        compiled(hazards, 1.0)


@pytest.mark.parametrize("errors", ["robust", "clustered"])
def test_counts_that_are_all_alike_have_no_errors_by_what_is_left_of_them(errors: str) -> None:
    """A rate ratio of 1 (1 to 1) with p = 0 was told; those of the model are statsmodels'."""
    cohort = Cohort("counts", 400, 1)
    cohort.records.features[:, 3] = 2.0 / 20.0 - 1.0
    summary = cohort.run(compiled(COUNTS, None, errors))
    assert all("vary about the fit" in row["log"]["not_estimable"] for row in summary["coefficients"])
    expected = sm.GLM(np.full(400, 2.0), sm.add_constant(cohort.ward), family=sm.families.Poisson()).fit()
    _, row = summary[f"coefficients {MODEL_ERRORS}"]
    assert row["log"]["sampling_error"] == pytest.approx(expected.bse[1], rel=1e-3)


def test_a_term_that_tells_all_events_has_no_robust_error() -> None:
    cohort = Cohort("events", 400, 2)
    cohort.records.features[:, 5], cohort.records.features[:, 6] = cohort.ward == 0, cohort.ward == 1
    summary = cohort.run(compiled(EVENT, None))
    assert all("vary about the fit" in row["coefficient"]["not_estimable"] for row in summary["coefficients"])


def of_events(one: tuple[int, int], others: tuple[int, int], cells: bool = True) -> tuple[Figure, Figure]:
    """The difference of risk between records of a level and others, each (number, with the event), by robust errors with and
    without a look at how few events there are."""
    (n, k), (m, j) = one, others
    total, of_one, of_all = n + m, 2.0 * k - n, 2.0 * (k + j) - n - m
    moments = np.array([[total, n, of_all], [n, n, of_one], [of_all, of_one, total]], dtype=np.float64)
    fit, (own, rest) = LinearFit(moments, 0.0), (number - (2.0 * of - number) ** 2 / number for number, of in (one, others))
    plain = RobustFit(fit, np.array([[own + rest, own], [own, own]]), 0.0, fit.inverse, float(total))
    rows = mean_terms(moments[:2, :2], ((1,),))
    leverages = np.sum((rows @ fit.inverse) * rows, axis=1)
    lopsided = 4.0 / (1.0 - (of_all / total) ** 2)
    found = [each.combination(np.array([0.0, 1.0])) for each in (
        replace(plain, cells=rows, leverages=leverages, known=np.zeros(3), lopsided=lopsided, largest=4.0), plain
    )]  # fmt: skip
    assert isinstance(found[0], Figure)
    assert isinstance(found[1], Figure)
    return found[0], found[1]


@pytest.mark.parametrize("risk", [0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("others", [0.01, 0.1, 0.3])
def test_a_level_of_few_records_or_events_is_covered(others: float, risk: float) -> None:
    """By the binomial distribution itself: HC1 covered .03 to .9 of these. It is HC1 again where there are many events."""
    quantiles = stats.binom.ppf(np.array([0.05, 0.25, 0.5, 0.75, 0.95]), 1000, others).astype(int)
    for n in (3, 5, 10, 20, 40, 100, 200, 400):
        chances = stats.binom.pmf(np.arange(n + 1), n, risk)
        covered, before = 0.0, 0.0
        for k in np.flatnonzero(chances > 1e-5):
            for j in quantiles:
                found, plain = of_events((n, int(k)), (1000, int(j)))
                covered += chances[k] / 5.0 * (found.low <= 2.0 * (risk - others) <= found.high)
                before += chances[k] / 5.0 * (plain.low <= 2.0 * (risk - others) <= plain.high)
                many = min(k, n - k) >= 40 and min(j, 1000 - j) >= 40
                assert found.half_width <= plain.half_width * (1.01 if many else math.inf)
                assert found.half_width >= plain.half_width
        assert covered >= 0.92, n
        assert n > 3 or before < 0.95


def rare(n: int, number: int, risks: tuple[float, float], seed: int) -> Cohort:
    """A cohort of whom so many are of the ward, with these risks there and elsewhere, and counts of means 5 and 3."""
    cohort, rng = Cohort("counts", n, seed), np.random.default_rng(seed)
    ward = (rng.permutation(n) < number).astype(int)
    died = rng.random(n) < np.where(ward == 1, *risks)
    stay = rng.poisson(np.where(ward == 1, 5.0, 3.0) * rng.gamma(2.0, 0.5, n)).clip(0, 40)
    features = cohort.records.features
    features[:, 1:3], features[:, 3], features[:, 5:] = np.eye(2)[ward], stay / 20 - 1, 0.0
    features[np.arange(n), 5 + died] = 1.0
    cohort.ward, cohort.died, cohort.stay = ward, died, stay.astype(float)
    return cohort


@pytest.mark.parametrize(("number", "least", "most"), [(3, 1.5, 8.0), (10, 1.15, 2.0), (200, 1.0, 1.01)])
def test_a_rare_level_of_counts_has_longer_intervals_than_hc1(number: int, least: float, most: float) -> None:
    cohort = rare(1200, number, (0.0, 0.1), 4)
    answer = answers(cohort.run(compiled(COUNTS, None)))[1]
    x = sm.add_constant(cohort.ward)
    expected = sm.GLM(cohort.stay, x, family=sm.families.Poisson()).fit(cov_type="HC1")
    assert answer["value"] == pytest.approx(expected.params[1], abs=0.02)
    assert least * 0.99 <= answer["sampling_error"] / expected.bse[1] <= most * 1.01


def test_a_level_of_three_records_that_nobody_died_of_tells_nothing() -> None:
    """A difference of -.19 (-.21 to -.16) was told."""
    answer = answers(rare(1003, 3, (0.0, 0.2), 4).run(compiled(EVENT, None)))[1]
    assert answer["low"] < -0.95
    assert answer["high"] > 0.5


def test_shortened_scores_do_not_shorten_a_rare_level_s_error() -> None:
    """The scores of events in a tenth of the records are longer than their bound at this epsilon: the error was .93 and .82 of
    what it is, and intervals covered .89."""
    study = compiled(EVENT, 3.0)
    for number in (100, 200):
        runs = [answers(rare(1650, number, (0.3, 0.03), seed).run(study, seed))[1]["sampling_error"] for seed in range(12)]
        true = math.sqrt(0.3 * 0.7 / number + 0.03 * 0.97 / (1650 - number))
        assert np.sqrt(np.mean(np.square(runs))) >= 0.95 * true


@pytest.mark.parametrize("top", [13.0, 27.0, 36.0])
def test_means_beyond_the_largest_that_is_allowed_are_told_of(top: float) -> None:
    """A slope lay up to 11 errors off, without a sign; where the largest is stated larger, it is statsmodels'."""
    cohort, rng = Cohort("counts", 3000, 1), np.random.default_rng(1)
    cohort.age = np.clip(rng.normal(0.0, 0.35, 3000), -1.0, 1.0)
    cohort.stay = rng.poisson(top * np.exp(1.5 * cohort.age - 1.5)).clip(0, 40)
    cohort.records.features[:, 0], cohort.records.features[:, 3] = cohort.age, cohort.stay / 20 - 1
    expected = sm.GLM(cohort.stay, sm.add_constant(cohort.age), family=sm.families.Poisson()).fit()
    asked = {"family": "poisson", "outcome": "stay", "over": ["age"], "errors": "model"}
    for more, epsilon in (({}, None), ({"most": 50.0}, None), ({}, 8.0)):
        summary = cohort.run(agreed(requested({**asked, **more}, epsilon), SITES))
        told = [row["note"] for row in summary["coefficients tests"]]
        assert all(("exceed 20 in about" in note) == (top > 20.0 and not more) for note in told)
        exact = epsilon is None and not told[0]
        assert not exact or abs(answers(summary)[1]["value"] * 30.0 - expected.params[1]) < 0.05 * expected.bse[1]
