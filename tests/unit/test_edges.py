"""The matrix of edges: every question on every degenerate data set equals its oracle, covers it, or says why it cannot."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.edges import DATA, typical
from support.questions import QUESTIONS, answer, figures, truths

RECORDS = typical()
NOISE = (None, 0.5, 8.0)
FAR = 7.0  # standard errors of the noise; seeds are fixed


def check(question: str, name: str, epsilon: float | None, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """It raises nothing, the net under formulas has nothing to catch, and every figure is a number in its interval."""
    with caplog.at_level(logging.ERROR, "veilsum.coordinator"), np.errstate(all="ignore"):
        result = answer(QUESTIONS[question], name, DATA[name](RECORDS), epsilon)
    assert not [record.getMessage() for record in caplog.records]
    assert all(np.isfinite(values).all() for values in result.arrays.values())
    summary: dict[str, Any] = json.loads(json.dumps(result.summary, allow_nan=False))
    for path, figure in figures(summary):
        if "not_estimable" in figure:
            assert figure["not_estimable"], path
            continue
        low = -math.inf if figure["low"] is None else figure["low"]
        high = math.inf if figure["high"] is None else figure["high"]
        assert low - 1e-9 <= figure["value"] <= high + 1e-9, (path, figure)
    return summary


def agrees(name: str, summary: dict[str, Any], epsilon: float | None) -> int:
    """How many figures of the statistics were held against an oracle."""
    held = 0
    with np.errstate(all="ignore"):
        for path, figure, truth in truths(DATA[name](RECORDS), summary):
            if "not_estimable" in figure:
                continue
            held += 1
            low = -math.inf if figure["low"] is None else figure["low"]
            high = math.inf if figure["high"] is None else figure["high"]
            reach = min(truth.tolerance, 0.0 if epsilon else truth.tolerance) if math.isfinite(truth.tolerance) else 0.0
            apart = FAR * figure["noise_error"] + (truth.tolerance if math.isfinite(truth.tolerance) else 0.0)
            covered = low - reach - 1e-9 <= truth.value <= high + reach + 1e-9
            assert covered or (math.isfinite(truth.tolerance) and abs(figure["value"] - truth.value) <= apart), (
                path,
                figure,
                truth,
            )
            if epsilon is None and math.isfinite(truth.tolerance):
                assert abs(figure["value"] - truth.value) <= truth.tolerance, (path, figure, truth)
    return held


@pytest.mark.parametrize("name", [name for name in DATA if name != "more than max_records"])
def test_statistics_without_noise(name: str, caplog: pytest.LogCaptureFixture) -> None:
    held = agrees(name, check("statistics", name, None, caplog), None)
    assert held >= 10


SOME = (
    ("statistics", "one interval", 8.0),
    ("statistics", "constant at the bounds", 8.0),
    ("linear", "collinear", None),
    ("linear", "constant", None),
    ("linear", "no record", None),
    ("linear, clustered", "one record", None),
    ("logistic", "separated", None),
    ("logistic", "quasi-separated", 8.0),
    ("poisson", "a level that nobody has", 8.0),
    ("cox", "all missing", None),
    ("cox", "all censored", None),
    ("cox, clustered", "constant", None),
    ("evaluation of a probability", "one class", 0.5),
    ("fedcgs", "a level that nobody has", 8.0),
    ("gbdt", "one class", None),
)


@pytest.mark.parametrize(("question", "name", "epsilon"), SOME)
def test_some_of_the_matrix(question: str, name: str, epsilon: float | None, caplog: pytest.LogCaptureFixture) -> None:
    check(question, name, epsilon, caplog)


@pytest.mark.system
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_whole_matrix(question: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in DATA:
        for epsilon in NOISE:
            summary = check(question, name, epsilon, caplog)
            if question == "statistics" and name != "more than max_records":
                agrees(name, summary, epsilon)


def terms(question: str, frame: pd.DataFrame, epsilon: float | None = None) -> dict[str, dict[str, Any]]:
    """A regression's coefficients by term, logarithms of ratios."""
    rows = answer(QUESTIONS[question], "typical", frame, epsilon).summary["coefficients"]
    return {row["term"]: row.get("log", row.get("coefficient")) for row in rows}
