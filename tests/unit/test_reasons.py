"""What is said of a coefficient that is not estimable is true of the records: on degenerate data, by any family, with noise or
without."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.edges import SITES, records_of
from support.studies import agreed, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

BOUNDS = {"dose": (0.0, 100.0), "lag": (-5.0, 45.0), "stay": (0.0, 20.0), "visits": (0.0, 20.0), "time": (0.0, 10.0)}
LEVELS = {"arm": ("a", "b", "c"), "died": ("no", "yes"), "end": ("alive", "dead")}
SCHEMA = DatasetSchema(
    columns=(
        *(NumberColumn(name=name, low=low, high=high) for name, (low, high) in BOUNDS.items()),
        *(CategoryColumn(name=name, categories=levels) for name, levels in LEVELS.items()),
    ),
    max_records=1000,
)
TERMS = ["dose", "lag", "arm"]
FAMILIES: Mapping[str, dict[str, Any]] = {
    "linear": {"outcome": "stay"},
    "logistic": {"outcome": "died = 'yes'"},
    "poisson": {"outcome": "visits", "most": 20},
    "cox": {"outcome": "time", "event": "end", "censored": ["alive"]},
}
N = 800


def drawn() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    dose, time = rng.normal(50, 15, N).clip(0, 100), rng.exponential(6, N).clip(0.01, 10)
    return pd.DataFrame(
        {
            "dose": dose,
            "lag": rng.normal(15, 7, N).clip(-5, 45),
            "stay": (dose / 10 + rng.normal(0, 1, N)).clip(0, 20),
            "visits": rng.poisson(2, N) * 1.0,
            "time": time,
            "arm": rng.choice(list("abc"), N),
            "died": np.where(rng.random(N) < 0.3, "yes", "no"),
            "end": np.where(time < 10, rng.choice(["alive", "dead"], N), "alive"),
        }
    )


def _few(frame: pd.DataFrame, number: int) -> pd.Series:
    return pd.Series(np.where(np.arange(len(frame)) < number, "c", frame["arm"].replace("c", "a")), index=frame.index)


DATA: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "as drawn": lambda frame: frame,
    "all in the middle": lambda frame: frame.assign(dose=50.0),
    "all near the middle": lambda frame: frame.assign(dose=50 + 1e-3 * np.sin(np.arange(N))),
    "all but one in the middle": lambda frame: frame.assign(dose=np.where(np.arange(N) == 3, 80.0, 50.0)),
    "most in the middle": lambda frame: frame.assign(dose=np.where(np.arange(N) % 40 == 3, 80.0, 50.0)),
    "all beside the middle": lambda frame: frame.assign(dose=54.0),
    "all at a bound": lambda frame: frame.assign(dose=0.0),
    "all alike": lambda frame: frame.assign(dose=20.0, lag=30.0),
    "two terms in one": lambda frame: frame.assign(lag=frame["dose"] / 2 - 5),
    "a level that nobody has": lambda frame: frame.assign(arm=_few(frame, 0)),
    "a level of one": lambda frame: frame.assign(arm=_few(frame, 1)),
    "a level of six": lambda frame: frame.assign(arm=_few(frame, 6)),
    "no first level": lambda frame: frame.assign(arm=frame["arm"].replace("a", "b")),
    "a level without events": lambda frame: frame.assign(
        died=frame["died"].where(frame["arm"] != "b", "no"),
        end=frame["end"].where(frame["arm"] != "b", "alive"),
        visits=frame["visits"].where(frame["arm"] != "b", 0.0),
    ),
    "a level of events": lambda frame: frame.assign(died=frame["died"].where(frame["arm"] != "b", "yes")),
    "no events": lambda frame: frame.assign(stay=10.0, visits=0.0, died="no", end="alive"),
    "events alone": lambda frame: frame.assign(died="yes", end="dead", time=frame["time"].clip(0, 9.9)),
    "all missing": lambda frame: frame.assign(dose=np.nan),
    "three records": lambda frame: frame.head(3),
}


@cache
def fitted(name: str, family: str, epsilon: float | None) -> dict[str, str]:
    """By term, why it has no figure."""
    frame = DATA[name](drawn())
    asked = {"family": family, "over": TERMS, **FAMILIES[family]}
    request = StudyRequest.model_validate(
        {
            "name": "reasons", "method": "regression", "dataset": "d", "data": SCHEMA, "expected_records": 200,
            "privacy": demand(epsilon), "parameters": asked,
        }
    )  # fmt: skip
    study = agreed(request, list(SITES))
    result = METHODS["regression"].run(federation(study, split_records(records_of(frame, SCHEMA), 4), 0, {}))
    rows = {row["term"]: row.get("log", row.get("coefficient")) for row in result.summary["coefficients"]}
    return {term: figure["not_estimable"] for term, figure in rows.items() if "not_estimable" in figure}


def design(frame: pd.DataFrame) -> pd.DataFrame:
    """(1, terms) of the complete records, numbers in [-1, 1]."""
    frame = frame.dropna()
    scaled = {name: (frame[name] - sum(BOUNDS[name]) / 2) / ((BOUNDS[name][1] - BOUNDS[name][0]) / 2) for name in TERMS[:2]}
    levels = {f"arm {level}": (frame["arm"] == level) * 1.0 for level in LEVELS["arm"]}
    return pd.DataFrame({"constant": pd.Series(1.0, frame.index), **scaled, **levels})


def untrue(reason: str, frame: pd.DataFrame, family: str, few: float) -> str | None:
    """Why a reason is not true of the records; None where it is, as far as it speaks of them. Noise hides ``few``
    records at most, and as little as those would vary."""
    terms, frame = design(frame), frame.dropna()
    happened = {
        "linear": frame["stay"] > 0, "logistic": frame["died"] == "yes", "poisson": frame["visits"] > 0,
        "cox": frame["end"] == "dead",
    }[family]  # fmt: skip
    if found := re.match("no record has the (?:event|count above 0)", reason):
        return None if happened.sum() <= few else "some have it"
    if found := re.match("every record has the event", reason):
        return None if (~happened).sum() <= few else "some do not have it"
    if found := re.match("no record has all the terms", reason):
        return None if len(frame) == 0 else "some have them"
    if found := re.match("no record has (.+?)(?:,|$)", reason):
        named = found[1]
        if not named.startswith("arm "):
            return "it is no level"
        return None if terms[named].sum() <= few else "some have it"
    if found := re.match("(nobody has .+|everybody has the event) among those with (arm .)", reason):
        own = happened[terms[found[2]] > 0]
        if not len(own):
            return "nobody is there"
        left = own.sum() if found[1].startswith("nobody") else (~own).sum()
        return None if left <= few else "it is not so"
    if found := re.match("(dose|lag) varies too little", reason):
        return None if terms[found[1]].std() ** 2 * len(terms) <= max(few, 1e-4) else "it varies"
    if found := re.match("the records do not tell (.+) apart", reason):
        own = terms[["constant", *(name for name in found[1].split(", ") if name != "constant")]]
        flat = len(own.columns) - np.linalg.matrix_rank(own.to_numpy(), tol=1e-4)
        return None if flat else "they are apart"
    if reason.startswith("there are not more records"):
        return None if len(frame) <= 5 + few / 10 else "there are"
    if reason == "the outcome does not vary":
        return None if frame["stay"].std() == 0 else "it varies"
    return None  # it speaks of the fit


@pytest.mark.parametrize("epsilon", [None, 3.0, 30.0])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", DATA)
def test_a_reason_is_true_of_the_records(name: str, family: str, epsilon: float | None) -> None:
    frame = DATA[name](drawn())
    told = fitted(name, family, epsilon)
    few = 0.0 if epsilon is None else 240.0 / epsilon
    wrong = [(term, why, found) for term, why in told.items() if (found := untrue(why, frame, family, few))]
    assert not wrong
    if name == "as drawn" and epsilon != 3.0:
        assert not told
