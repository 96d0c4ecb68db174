"""Cox regression of times as registers have them: whole months, entries at the end, edges beside the times; lifelines has the
figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.edges import SITES, records_of
from support.studies import agreed, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_aggregation.baselines import MOST_PERIODS, LifeTable, first_baseline
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

HORIZON = 24.0
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90),
        NumberColumn(name="time", low=0, high=HORIZON, unit="months"),
        NumberColumn(name="entry", low=0, high=HORIZON, unit="months"),
        NumberColumn(name="since", low=-7, high=31, unit="months"),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="end", categories=("alive", "died")),
    ),
    max_records=5000,
)
TRUTH = {"age": 0.025, "arm b": 0.4}


def drawn(n: int = 1500, seed: int = 0) -> pd.DataFrame:
    """Of every month's survivors about a tenth dies; entries are not related to what comes."""
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 12, n).clip(20, 90), rng.integers(0, 2, n)
    died = rng.exponential(9.0 * np.exp(-TRUTH["age"] * (age - 60) - TRUTH["arm b"] * arm))
    left = rng.exponential(14.0, n)
    return pd.DataFrame(
        {
            "age": age,
            "time": np.minimum(np.minimum(died, left), HORIZON),
            "entry": 0.0,
            "since": 0.0,
            "arm": np.array(["a", "b"])[arm],
            "end": np.where((died <= left) & (died < HORIZON), "died", "alive"),
        }
    )


def late(frame: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    """Half of them enter within six months."""
    rng = np.random.default_rng(seed)
    own = np.where(rng.random(len(frame)) < 0.5, rng.uniform(0, 6, len(frame)), 0.0)
    return frame.assign(entry=own, since=own)[own < frame["time"]].reset_index(drop=True)


def _every(frame: pd.DataFrame, step: int, **values: Any) -> pd.DataFrame:
    own = np.arange(len(frame)) % step == 0
    return frame.assign(**{name: np.where(own, value, frame[name]) for name, value in values.items()})


BETWEEN = [0.0, *(month + 0.5 for month in range(24))]
WHOLE = {"from": 0, "to": HORIZON, "steps": 24}
EXACT, TIED = 0.35, 0.75
"""Standard errors from lifelines, whose ties are Efron's, up to which rounding to 24 months of such hazards moves us."""

CASES: Mapping[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], dict[str, Any], float]] = {
    "as they are": (lambda frame: frame, {}, EXACT),
    "begun months": (lambda frame: frame.assign(time=np.ceil(frame["time"])), {}, TIED),
    "begun months, edges between": (lambda frame: frame.assign(time=np.ceil(frame["time"])), {"edges": BETWEEN}, EXACT),
    "whole months": (lambda frame: frame.assign(time=np.floor(frame["time"])), {}, TIED),
    "whole months, edges between": (lambda frame: frame.assign(time=np.floor(frame["time"])), {"edges": BETWEEN}, EXACT),
    "edges at whole months": (lambda frame: frame.assign(time=np.ceil(frame["time"])), {"edges": WHOLE}, 1.0),
    "a tenth at no time": (lambda frame: _every(frame, 10, time=0.0), {}, EXACT),
    "a tenth dies at no time": (lambda frame: _every(frame, 10, time=0.0, end="died"), {}, EXACT),
    "all in the first hundredth": (lambda frame: frame.assign(time=frame["time"] / 2400.0), {}, EXACT),
    "edges from the second month": (lambda frame: frame, {"edges": [2, 5, 8, 24]}, EXACT),
    "late": (late, {"entry": "entry"}, EXACT),
    "late, by other bounds": (late, {"entry": "since"}, EXACT),
    "late, edges from the first month": (late, {"entry": "entry", "edges": {"from": 1, "to": 24, "steps": 46}}, EXACT),
    "a third enters at the end": (
        lambda frame: _every(late(frame), 3, entry=late(frame)["time"], since=late(frame)["time"]),
        {"entry": "entry"},
        EXACT,
    ),
    "a third dies on entering, by other bounds": (
        lambda frame: _every(late(frame), 3, entry=late(frame)["time"], since=late(frame)["time"], end="died"),
        {"entry": "since"},
        EXACT,
    ),
    "a third enters after the end": (
        lambda frame: _every(late(frame), 3, entry=np.minimum(late(frame)["time"] + 1.0, HORIZON)),
        {"entry": "entry", "where": "age > 25"},
        EXACT,
    ),
    "a fifth of entries is missing": (lambda frame: _every(late(frame), 5, entry=np.nan), {"entry": "entry"}, EXACT),
}
"""What is made of records, what is asked beside, and how far lifelines may be."""


def result(frame: pd.DataFrame, asked: Mapping[str, Any], epsilon: float | None = None, seed: int = 0) -> dict[str, Any]:
    parameters = {"family": "cox", "outcome": "time", "event": "end", "censored": ["alive"], "over": ["age", "arm"], **asked}
    request = StudyRequest(
        name="times", method="regression", dataset="d", data=SCHEMA, parameters=parameters, privacy=demand(epsilon),
        expected_records=len(frame) // 4,
    )  # fmt: skip
    study = agreed(request, list(SITES))
    return dict(METHODS["regression"].run(federation(study, split_records(records_of(frame, SCHEMA), 4), seed)).summary)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_without_noise_it_is_lifelines_whatever_times_are_like(name: str) -> None:
    """And the test tells of how many records the fit is."""
    from lifelines import CoxPHFitter

    change, asked, far = CASES[name]
    frame = change(drawn())
    summary = result(frame, asked)
    fitted = pd.DataFrame({"age": frame["age"], "arm b": (frame["arm"] == "b") * 1.0, "time": frame["time"]})
    fitted = fitted.assign(died=(frame["end"] == "died") & (frame["time"] < HORIZON))
    more = {}
    if "entry" in asked:
        fitted, more = fitted.assign(entry=frame[asked["entry"]]), {"entry_col": "entry"}
        fitted = fitted[fitted["entry"] < fitted["time"]]
    if "where" in asked:
        fitted = fitted[fitted["age"] > 25]
    model = CoxPHFitter().fit(fitted, "time", "died", **more)
    for row in summary["coefficients"]:
        value, error = model.params_[row["term"]], model.standard_errors_[row["term"]]
        assert row["log"]["value"] == pytest.approx(value, abs=far * error), row["term"]
        assert row["log"]["sampling_error"] == pytest.approx(error, rel=0.04), row["term"]
    (test,) = summary["coefficients tests"]
    assert (test["records"]["value"], test["events"]["value"]) == (len(fitted), (fitted["died"]).sum())
    assert summary["queries"][0]["where"] == asked.get("where", "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rounded", [np.ceil, np.floor])
@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_with_noise_ratios_of_whole_months_are_told_and_near(rounded: Callable[[Any], Any], epsilon: float) -> None:
    """Where periods ended within months, parts of them had no event: at 8 no ratio was told, at 3 of a coverage of .75."""
    off = []
    for seed in range(4):
        frame = drawn(3000, seed)
        for row in result(frame.assign(time=rounded(frame["time"])), {"edges": BETWEEN}, epsilon, seed)["coefficients"]:
            error = np.hypot(row["log"]["noise_error"], row["log"]["sampling_error"])
            off.append((row["log"]["value"] - TRUTH[row["term"]]) / error)
    assert abs(np.mean(off)) < 1.2  # of 8 figures of four studies
    assert np.abs(off).max() < 3.5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 17, 400]), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_every_period_without_noise_has_an_event_and_ends_where_intervals_do(died: list[int], seed: int) -> None:
    rng, number = np.random.default_rng(seed), len(died)
    ends = np.concatenate([[0.0], np.sort(rng.choice(np.arange(1, 1000), number, replace=False)) / 1000.0])
    table = LifeTable(np.array(died, dtype=float), rng.integers(0, 5, number).astype(float), 7.0, ends)
    found = first_baseline(table, 0.0)
    assert set(found.ends) <= set(ends)
    assert (found.ends[0], found.ends[-1]) == (ends[0], ends[-1])
    assert found.periods <= MOST_PERIODS
    events = table.between(table.died, found.ends)
    assert sum(died) == 0 or (events > 0.5).all()
    spread = np.flatnonzero(died)
    if len(spread) <= MOST_PERIODS // 3 and len(set(np.array(died)[spread])) == 1:
        assert found.periods == len(spread)  # each interval with events of its own, where all have as many
