"""Federated evaluations of regressions: measures of scikit-learn, statsmodels and lifelines, and intervals that cover."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import (
    brier_score_loss,
    d2_tweedie_score,
    log_loss,
    mean_poisson_deviance,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

from support.studies import agreed, drafted, federation, split_records
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum.plan import plan_study
from veilsum.request import with_model
from veilsum_aggregation.figures import Figure
from veilsum_aggregation.prediction_levels import OutcomeRange, event_levels, number_levels, rate_levels
from veilsum_aggregation.prediction_quality import _mean_loss as mean_loss
from veilsum_aggregation.prediction_quality import event_measures, expit, hazard_measures, number_measures, rate_measures
from veilsum_coordinator.methods import METHODS
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.results.result import Result, load_result, save_result
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

pytestmark = pytest.mark.usefixtures("few_rehearsals", "plans_without_search")

SITES = [f"site-{index}" for index in range(4)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        NumberColumn(name="weight kg", low=0, high=10),
        NumberColumn(name="visits", low=0, high=20),
        NumberColumn(name="time", low=0, high=5),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=20_000,
)
DERIVE = {"older": {"number": "above(age, 60)", "low": 0, "high": 30}}
FITS: dict[str, dict[str, Any]] = {
    "linear": {"outcome": "weight kg"},
    "logistic": {"outcome": "end = 'died'"},
    "poisson": {"outcome": "visits"},
    "cox": {"outcome": "time", "event": "end", "censored": ["alive"], "edges": {"from": 0, "to": 5, "steps": 20}},
}


def cohort(n: int, seed: int = 0) -> tuple[Records, dict[str, np.ndarray]]:
    """Records whose outcomes all depend on age and arm; some ages and some counts of visits are missing."""
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 12, n).clip(20, 90), rng.integers(0, 2, n)
    h = (age - 60) / 15 + 0.5 * arm
    weight = (5 + 0.6 * h + rng.normal(size=n)).clip(0, 10)
    visits = rng.poisson(np.exp(0.2 + 0.5 * h)).clip(0, 20)
    died, left = rng.exponential(size=n) / (0.12 * np.exp(0.7 * h)), rng.uniform(1, 8, n)
    event, time = (died <= left) & (died < 5), np.minimum(np.minimum(died, left), 5)
    features, present = np.zeros((n, SCHEMA.width)), np.ones((n, SCHEMA.width), dtype=np.bool_)
    features[:, :4] = np.column_stack([(age - 20) / 35 - 1, weight / 5 - 1, visits / 10 - 1, time / 2.5 - 1])
    features[np.arange(n), 4 + arm] = features[np.arange(n), 6 + event] = 1.0
    present[:, 0], present[:, 2] = rng.random(n) > 0.03, rng.random(n) > 0.02
    features[~present] = 0.0
    return Records(features, present, None), {
        "age": age, "arm": arm, "weight": weight, "visits": visits, "event": event, "time": time,
        "known": present[:, 0], "counted": present[:, 0] & present[:, 2],
    }  # fmt: skip


def request_of(method: str, parameters: dict[str, Any], epsilon: float | None, **privacy: Any) -> StudyRequest:
    asked = PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon, **privacy)
    return StudyRequest(
        name="s", method=method, dataset="records", data=SCHEMA, parameters=parameters, privacy=asked, expected_records=2500,
    )  # fmt: skip


def run(study: Study, records: Records, seed: int = 0) -> Result:
    return METHODS[study.method].run(federation(study, split_records(records, 4), seed))


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of regressions' results: on a linear spline of age, without noise."""
    folder, (records, _) = tmp_path_factory.mktemp("fits"), cohort(4000, 1)
    for family, about in FITS.items():
        study = agreed(
            request_of("regression", {"family": family, "over": ["age", "older", "arm"], "derive": DERIVE, **about}, None),
            SITES,
        )
        save_result(folder / family, run(study, records))
    return folder


def evaluation(fits: Path, family: str, epsilon: float | None, **more: Any) -> StudyRequest:
    return with_model(request_of("federated-evaluation", {"result": family, **more}, epsilon), fits)


def predictor(fits: Path, family: str, truth: dict[str, np.ndarray]) -> np.ndarray:
    """The score, by Python's own arithmetic, clamped to its bounds."""
    (score,) = load_result(fits / family).summary["score"]
    names = {"age": truth["age"], "older": np.maximum(truth["age"] - 60, 0), "b": truth["arm"] == 1}
    value = eval(score["number"].replace("(arm = 'b')", "b"), {"__builtins__": {}}, names)  # noqa: S307
    return np.clip(value, score["low"], score["high"])


def oracle(family: str, h: np.ndarray, truth: dict[str, np.ndarray]) -> dict[str, float]:
    """The measures by other packages, of the same predictions record by record."""
    import statsmodels.api as sm
    from lifelines import CoxPHFitter
    from lifelines.utils import concordance_index

    known = truth["counted" if family == "poisson" else "known"]
    h, own = h[known], {name: values[known] for name, values in truth.items()}
    with_constant = sm.add_constant(h)
    if family == "linear":
        y = own["weight"]
        return {
            "R squared": r2_score(y, h), "root mean squared error": math.sqrt(mean_squared_error(y, h)),
            "mean error": np.mean(y - h), "calibration slope": sm.OLS(y, with_constant).fit().params[1],
        }  # fmt: skip
    if family == "logistic":
        y, p = own["event"].astype(float), 1 / (1 + np.exp(-h))
        guess = np.full(len(y), y.mean())
        return {
            "area under the ROC curve": roc_auc_score(y, h), "Brier score": brier_score_loss(y, p),
            "Brier skill score": 1 - brier_score_loss(y, p) / brier_score_loss(y, guess), "log loss": log_loss(y, p),
            "deviance explained": 1 - log_loss(y, p) / log_loss(y, guess), "observed over expected": y.sum() / p.sum(),
            "calibration slope": sm.Logit(y, with_constant).fit(disp=0).params[1],
            "calibration intercept": sm.GLM(y, np.ones(len(y)), offset=h, family=sm.families.Binomial()).fit().params[0],
        }  # fmt: skip
    if family == "poisson":
        y, mean, poisson = own["visits"].astype(float), np.exp(h), sm.families.Poisson()
        return {
            "observed over expected": y.sum() / mean.sum(), "mean deviance": mean_poisson_deviance(y, mean),
            "deviance explained": d2_tweedie_score(y, mean, power=1),
            "calibration slope": sm.GLM(y, with_constant, family=poisson).fit().params[1],
            "calibration intercept": sm.GLM(y, np.ones(len(y)), offset=h, family=poisson).fit().params[0],
        }  # fmt: skip
    frame = pd.DataFrame({"time": own["time"], "event": own["event"], "h": h})
    return {
        "concordance": concordance_index(own["time"], -h, own["event"]),
        "calibration slope": float(CoxPHFitter().fit(frame, "time", "event").params_.iloc[0]),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", list(FITS))
def test_without_noise_measures_are_those_of_other_packages(fits: Path, family: str) -> None:
    """To a quarter of what sampling does to them, records being counted by level of the prediction."""
    records, truth = cohort(8000, 2)
    summary = run(agreed(evaluation(fits, family, None), SITES), records).summary
    wanted = oracle(family, predictor(fits, family, truth), truth)
    found = {row["measure"]: row["value"] for row in summary["measures"]}
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        near = 0.25 * found[name]["sampling_error"]
        if family == "cox":  # pairs within an interval of time; and records at the ends of the prediction
            near = 0.012 if name == "concordance" else 0.6 * found[name]["sampling_error"]
        assert found[name]["value"] == pytest.approx(value, abs=near), name
        assert found[name]["noise_error"] == 0.0
        assert found[name]["low"] < found[name]["value"] < found[name]["high"]
    levels = summary["levels"]
    assert len(levels) == 16
    assert sum(row["records"]["value"] for row in levels) == pytest.approx(
        truth["counted" if family == "poisson" else "known"].sum(), abs=1
    )
    if family != "cox":
        middle = levels[8]
        assert middle["observed"]["value"] == pytest.approx(middle["predicted"], abs=4 * middle["observed"]["sampling_error"])


@pytest.mark.system
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.system] * (name in ("cox", "poisson"))) for name in FITS]
)
def test_noise_is_in_the_errors_and_planned(fits: Path, family: str) -> None:
    """At epsilon 1 and 10,000 records: figures lie where their errors say, and are as wide as the plan told."""
    records, truth = cohort(10_000, 3)
    request = evaluation(fits, family, 1.0)
    study = agreed(request, SITES)
    exact = oracle(family, predictor(fits, family, truth), truth)
    plan = plan_study(drafted(request, SITES), study)
    told = {item.quantity: item for part in plan.parts for item in part.forecasts if item.part.endswith("measures")}
    assert set(told) == set(exact)
    assert any(item.main for item in told.values())
    apart: dict[str, list[float]] = {name: [] for name in exact}
    widths: dict[str, list[float]] = {name: [] for name in exact}
    for seed in range(8):
        for row in run(study, records, seed).summary["measures"]:
            value, name = row["value"], row["measure"]
            shift = 0.012 if name == "concordance" else 0.25 * value["sampling_error"]
            apart[name].append(max(abs(value["value"] - exact[name]) - shift, 0.0) / value["noise_error"])
            widths[name].append((value["high"] - value["low"]) / 2)
    for name, ratios in apart.items():
        assert np.sqrt(np.mean(np.square(ratios))) < 1.9, name  # of 8 standard normals
        if told[name].main:
            assert np.median(widths[name]) == pytest.approx(told[name].half_width, rel=2.0), name


def test_with_few_records_nothing_is_told(fits: Path) -> None:
    records, _ = cohort(40, 4)
    for family in FITS:
        summary = run(agreed(evaluation(fits, family, 0.1), SITES), records).summary
        assert all("not_estimable" in row["value"] for row in summary["measures"]), family


@pytest.mark.sampled(1)
def test_calibration_of_few_events_covers_and_their_ratio_to_what_was_expected_is_never_below_0() -> None:
    """Of some 4 events among 150 records, which were expected to be 36: the truth is that of 400,000."""
    rng = np.random.default_rng(1)
    width = 0.375
    centres = -4.0 + width * (np.arange(16) + 0.5)

    def measured(n: int) -> dict[str, Any]:
        h = rng.normal(-1.5, 1.0, n).clip(-4.0, 1.999)
        y = rng.random(n) < 1.0 / (1.0 + np.exp(2.5 - 1.5 * h))
        level = ((h + 4.0) / width).astype(int)
        table = np.column_stack([np.bincount(level, each, 16) for each in (~y, y)])
        return dict(event_measures(event_levels(centres, width, table, 0.0)))

    truth, told = measured(400_000), [measured(150) for _ in range(60)]
    for name in ("calibration slope", "calibration intercept", "observed over expected"):
        found = [each[name] for each in told if isinstance(each[name], Figure)]
        assert len(found) > 40
        assert np.mean([each.low <= truth[name].value <= each.high for each in found]) >= 0.88, name
    assert (
        min(each["observed over expected"].low for each in told if isinstance(each["observed over expected"], Figure)) == 0.0
    )


@pytest.mark.parametrize("share", [0.005, 0.01, 0.03, 0.1, 0.3, 0.7, 0.97, 0.99])
@pytest.mark.parametrize("records", [60, 300, 1500])
def test_the_mean_loss_of_a_rare_event_covers_exactly(share: float, records: int) -> None:
    """By the binomial distribution, of all studies that tell it: everybody has the same prediction, right or not.
    Of the log loss those without the event have a good part, and it is less of a count."""
    counts = np.arange(1, records)
    chance = stats.binom.pmf(counts, records, share)
    kept = chance > 1e-7
    for odds in (0.5, 1.0, 2.0):
        h = math.log(odds * share / (1.0 - share))
        risk = 1.0 / (1.0 + math.exp(-h))
        truths = {
            "Brier score": share * (1.0 - risk) ** 2 + (1.0 - share) * risk**2,
            "log loss": -share * math.log(risk) - (1.0 - share) * math.log(1.0 - risk),
        }
        inside = dict.fromkeys(truths, 0.0)
        for events, weight in zip(counts[kept], chance[kept], strict=True):
            levels = event_levels(np.array([h]), 1e-6, np.array([[records - events, events]], dtype=float), 0.0)
            square, loss = (
                np.stack([levels.smooth(lambda x, f=f: f(x)), levels.smooth(lambda x, f=f: f(-x))], axis=1)
                for f in (lambda x: expit(x) ** 2, lambda x: np.logaddexp(0.0, x))
            )
            for name, each in (("Brier score", square), ("log loss", loss)):
                found = mean_loss(levels, each)
                assert isinstance(found, Figure)
                inside[name] += weight * (found.low <= truths[name] <= found.high)
        for name, covered in inside.items():
            assert covered / chance[kept].sum() > 0.92, (name, odds, covered / chance[kept].sum())


@pytest.mark.parametrize("shift", [0.0, *(pytest.param(each, marks=pytest.mark.system) for each in (0.8, -0.8))])
def test_the_skill_of_few_events_covers(shift: float) -> None:
    """Some 12 events among 1,000 records; predictions are right on average, of twice and of half the odds."""
    rng, width = np.random.default_rng(7), 0.5
    centres = -9.0 + width * (np.arange(18) + 0.5)

    def measured(n: int) -> dict[str, Any]:
        h = rng.normal(-5.25, 0.96, n).clip(-8.1, -0.9)
        y = rng.random(n) < expit(1.25 * (h + 5.25) - 5.25)
        level = ((h + shift + 9.0) / width).astype(int)
        table = np.column_stack([np.bincount(level, each, 18) for each in (~y, y)])
        return dict(event_measures(event_levels(centres, width, table, 0.0)))

    truth = measured(2_000_000)["Brier skill score"].value
    told = [each for each in (measured(1000)["Brier skill score"] for _ in range(200)) if isinstance(each, Figure)]
    assert len(told) > 195
    assert np.mean([each.low <= truth <= each.high for each in told]) > 0.92


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["event", "number", "rate", pytest.param("hazard", marks=pytest.mark.system)])
def test_intervals_cover(kind: str) -> None:
    """The population's values, of 400,000 records, at about the noise of epsilon 1."""
    rng = np.random.default_rng(5)

    def measured(n: int, std: float) -> dict[str, Any]:
        h = rng.normal(size=n)
        level, centres, width = np.clip(((h + 3) / 6 * 16).astype(int), 0, 15), -3 + 6 / 16 * (np.arange(16) + 0.5), 6 / 16

        def sums(*values: np.ndarray) -> np.ndarray:
            return np.column_stack([np.bincount(level, each, 16) for each in values])

        if kind == "event":
            y = rng.random(n) < 1 / (1 + np.exp(1 - 0.8 * h))
            return dict(event_measures(event_levels(centres, width, sums(~y, y) + std * rng.normal(size=(16, 2)), std)))
        if kind == "hazard":
            died, left = rng.exponential(size=n) / np.exp(0.7 * h), rng.exponential(2.0, n)
            table = np.zeros((16, 11, 2))
            np.add.at(
                table, (level, np.minimum((np.minimum(died, left) / 0.2).astype(int), 10), (died <= left).astype(int)), 1
            )
            ends = table[:, :10] + std * rng.normal(size=(16, 10, 2))
            return dict(hazard_measures(centres, width, ends, table[:, 10].sum(axis=1) + std * rng.normal(size=16), std))
        rate = kind == "rate"
        outcome, of_log, scale = (
            OutcomeRange(10.0, 10.0) if rate else OutcomeRange(0.0, 8.0),
            OutcomeRange(30.0, 30.5),
            0.4 if rate else 1.0,
        )
        y = rng.poisson(np.exp(0.4 * h)).clip(0, 20) if rate else np.clip(0.9 * h + rng.standard_t(8, n), -8, 8)
        x = (y - outcome.middle) / outcome.half
        noised = sums(np.ones(n), x, x * x - 0.7) + std * rng.normal(size=(16, 3))
        levels = number_levels(scale * centres, scale * width, noised, np.full(3, std), 0.7)
        if not rate:
            return dict(number_measures(levels, outcome))
        products = float(((y * np.log(np.maximum(y, 1)) - 30.0) / 30.5).sum() + std * rng.normal())
        return dict(rate_measures(rate_levels(levels, products, std, outcome, of_log), outcome, of_log))

    truth, covered = measured(400_000, 0.0), dict[str, list[bool]]()
    for _ in range(50):
        for name, answer in measured(*((20_000, 3.0) if kind == "hazard" else (4000, 4.0))).items():
            if isinstance(answer, Figure):
                covered.setdefault(name, []).append(answer.low <= truth[name].value <= answer.high)
    assert set(covered) == set(truth)
    assert all(len(each) >= 45 for each in covered.values())
    assert all(np.mean(each) >= 0.86 for each in covered.values()), {name: np.mean(each) for name, each in covered.items()}


def test_what_cannot_be_evaluated_is_said(fits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no bins"):
        agreed(evaluation(fits, "logistic", 1.0, bins=10), SITES)
    with pytest.raises(HostileInput, match="counts persons"):
        agreed(evaluation(fits, "logistic", 1.0, person="first"), SITES)
    other = evaluation(fits, "logistic", 1.0).model_copy(
        update={"data": DatasetSchema(columns=SCHEMA.columns[1:], max_records=20_000)}
    )
    with pytest.raises(ConfigurationError, match="'age'"):
        agreed(other, SITES)
    result = load_result(fits / "logistic")
    save_result(tmp_path / "flat", Result("regression", {**result.summary, "score": []}))
    with pytest.raises(ConfigurationError, match="predicts nothing"):
        with_model(request_of("federated-evaluation", {"result": "flat"}, 1.0), tmp_path)


def test_persons_count_as_the_study_says(fits: Path) -> None:
    study = agreed(
        with_model(request_of("federated-evaluation", {"result": "linear", "person": "first"}, 1.0, unit="subject"), fits),
        SITES,
    )
    assert study.tasks[0].parameters["person"] == "first"
