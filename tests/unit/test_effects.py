"""Weighted comparisons of treatments: numpy without noise, intervals that cover with it, and a confounded study put right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.studies import agreed, complete, demand, federation, split_records
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_aggregation.figures import Figure, NotEstimable
from veilsum_aggregation.weighted_means import WeightedSums, difference, ratio
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

Values = NDArray[np.float64]
SITES = [f"site-{index}" for index in range(4)]
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90),
        NumberColumn(name="stay", low=0, high=40, unit="days"),
        CategoryColumn(name="arm", categories=("usual", "new")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=40_000,
)
ODDS = {"number": "0.06 * age - 3.3", "low": -2.0, "high": 2.0}
STAY = {"kind": "effect", "name": "stay", "outcome": "stay", "by": "arm", "over": "propensity"}
DEATH = {"kind": "effect", "name": "death", "outcome": "end = 'died'", "by": "arm", "over": "propensity"}


def ward(n: int, seed: int = 0) -> tuple[Records, Values, Values, NDArray[np.bool_], NDArray[np.bool_]]:
    """The old get the new treatment, stay longer and die more; it takes off three days, and a death of ten patients.

    Returns:
        Records, log odds of the new treatment, stays, who is treated, and who died.
    """
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 90, n)
    odds = np.clip(0.06 * age - 3.3, -2, 2)
    treated = rng.random(n) < 1 / (1 + np.exp(-odds))
    stay = np.clip(4 + 0.2 * age - 3 * treated + rng.normal(0, 4, n), 0, 40)
    died = rng.random(n) < 0.15 + 0.004 * (age - 20) - 0.1 * treated
    features = np.zeros((n, SCHEMA.width))
    features[:, 0], features[:, 1] = (age - 20) / 35 - 1, stay / 20 - 1
    features[np.arange(n), 2 + treated], features[np.arange(n), 4 + died] = 1.0, 1.0
    return complete(features), odds, stay, treated, died


def request_of(epsilon: float | None, *queries: object, derive: Any = ODDS, records: int = 1250) -> StudyRequest:
    fixed = {"name": "s", "method": "statistics", "dataset": "d", "data": SCHEMA, "privacy": demand(epsilon)}
    asked = {"query": queries, "derive": {"propensity": derive}, "expected_records": records}
    return StudyRequest.model_validate(fixed | asked)


def answers(records: Records, request: StudyRequest, seed: int = 0) -> dict[str, Any]:
    study = agreed(request, SITES)
    return dict(METHODS[request.method].run(federation(study, split_records(records, 4), seed)).summary)


@pytest.mark.parametrize("seed", range(12))
def test_under_noise_no_effect_is_beyond_the_outcomes_bounds(seed: int) -> None:
    summary = answers(ward(160, seed)[0], request_of(3.0, STAY, DEATH, records=40), seed)
    for name, most in (("stay", 40.0), ("death", 1.0)):
        row = summary[name][2]
        assert row["effect"] == "difference"
        if "value" in row["value"]:
            ends = [-most, *(row["value"][key] for key in ("low", "value", "high")), most]
            assert None not in ends
            assert ends == sorted(ends)


def test_without_noise_it_is_numpys() -> None:
    records, odds, stay, treated, died = ward(6000)
    summary = answers(records, request_of(None, STAY, DEATH))
    w = 1 + np.exp(np.where(treated, -odds, odds))
    for name, outcome in (("stay", stay), ("death", died.astype(float))):
        means = [np.average(outcome[who], weights=w[who]) for who in (~treated, treated)]
        errors = [
            np.sqrt((w[who] ** 2 * (outcome[who] - mean) ** 2).sum()) / w[who].sum()
            for who, mean in zip((~treated, treated), means, strict=True)
        ]
        rows = summary[name]
        assert [row["arm"] for row in rows[:3]] == ["usual", "new", "new against usual"]
        figures = [row["value"] for row in rows]
        assert [figure["value"] for figure in figures[:2]] == pytest.approx(means, rel=0.01)
        assert [figure["sampling_error"] for figure in figures[:2]] == pytest.approx(errors, rel=0.04)
        assert figures[2]["value"] == pytest.approx(means[1] - means[0], rel=0.03)
        assert figures[2]["sampling_error"] == pytest.approx(np.hypot(*errors), rel=0.04)
        effective = [w[who].sum() ** 2 / (w[who] ** 2).sum() for who in (~treated, treated)]
        assert [row["effective_records"] for row in rows[:2]] == pytest.approx(effective, rel=0.04)
    assert summary["death"][3]["effect"] == "risk ratio"
    assert summary["death"][3]["value"]["value"] == pytest.approx(means[1] / means[0], rel=0.05)
    assert [row["unit"] for row in summary["stay"]] == ["days"] * 3


def test_a_confounded_comparison_is_put_right_by_two_studies_in_a_row() -> None:
    """A regression's score is the propensity of the next study. The crude difference has the wrong sign."""
    records, _, stay, treated, _ = ward(20_000)
    model = {"family": "logistic", "outcome": "arm = 'new'", "over": ["age"]}
    first = StudyRequest.model_validate(
        {"name": "p", "method": "regression", "dataset": "d", "data": SCHEMA, "parameters": model, "expected_records": 5000}
        | {"privacy": PrivacyRequest(epsilon=3)}
    )
    (score,) = answers(records, first)["score"]
    bounded = score | {"low": max(score["low"], -2.5), "high": min(score["high"], 2.5)}
    summary = answers(records, request_of(3.0, STAY, DEATH, derive=bounded, records=5000))
    effects = {name: summary[name][2]["value"] for name in ("stay", "death")}
    assert stay[treated].mean() - stay[~treated].mean() > 0
    for name, truth in (("stay", -3.0), ("death", -0.1)):
        middle, half = effects[name]["value"], (effects[name]["high"] - effects[name]["low"]) / 2
        assert abs(middle - truth) < 2.5 * half
        assert half < abs(truth) / 2


@pytest.mark.parametrize("n", [500, 5000])
def test_intervals_cover(n: int) -> None:
    covered: dict[str, list[bool]] = {"difference": [], "ratio": []}
    rng = np.random.default_rng(4)
    for seed in range(200):
        _, odds, _, treated, died = ward(n, seed)
        w = (1 + np.exp(np.where(treated, -odds, odds))) / (1 + np.exp(2.0))
        arms = []
        for who in (treated, ~treated):
            own, y = w[who], died[who].astype(float)
            sums = np.array([own.sum(), own @ y]) + rng.normal(size=2) * 6.3
            squares = np.array([own @ own, own**2 @ y, own**2 @ y]) + rng.normal(size=3) * 16.0
            arms.append(WeightedSums(*sums.tolist(), tuple(squares.tolist()), 6.3).mean())
        for name, found, truth in (("difference", difference(*arms), -0.1), ("ratio", ratio(*arms), 0.19 / 0.29)):
            if isinstance(found, Figure):
                covered[name].append(found.low <= truth <= found.high)
    for each in covered.values():
        assert len(each) > 180
        assert np.mean(each) > 0.91


def test_what_noise_drowns_and_what_cannot_be_asked_say_so() -> None:
    records, *_ = ward(60)
    rows = answers(records, request_of(0.05, STAY))["stay"]
    assert all("not_estimable" in row["value"] for row in rows)
    assert rows[2]["p_value"] is None
    drowned = NotEstimable("no", "more")
    figure = Figure(0.2, 0.1, 0.1, 0.0, 0.4)
    assert difference(drowned, figure) is difference(figure, drowned) is drowned
    assert ratio(drowned, figure) is ratio(figure, drowned) is drowned
    assert isinstance(ratio(figure, Figure(-0.1, 0.1, 0.1, -0.3, 0.1)), NotEstimable)
