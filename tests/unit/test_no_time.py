"""Times of zero: of whoever is censored there nothing is known later. In an interval of its own such a time is lifelines'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test

from support.edges import SITES, records_of
from support.studies import agreed, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

HORIZON = 4
CAUSES = ("alive", "died", "moved")
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="time", low=0, high=HORIZON + 1),
        CategoryColumn(name="end", categories=CAUSES),
        CategoryColumn(name="arm", categories=("a", "b")),
    ),
    max_records=500,
)
APART = [0.0, 0.5, *(float(end) for end in range(1, HORIZON + 1))]
"""Edges by which time 0 has an interval of its own."""
ASKED = {"over": "time", "by": "arm", "event": "end", "censored": "alive", "edges": APART}

arms = st.tuples(
    st.sampled_from(["alive", "died", "none"]),  # who ends at time 0
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, HORIZON), st.sampled_from(CAUSES[1:])), min_size=6, max_size=25),
    st.integers(1, 10),  # past the horizon
)


def told(frame: pd.DataFrame) -> dict[str, Any]:
    queries = [{"name": kind, "kind": kind, **ASKED} for kind in ("survival", "logrank")]
    fixed = {"name": "zero", "method": "statistics", "dataset": "d", "data": SCHEMA, "expected_records": 20}
    study = agreed(StudyRequest.model_validate({**fixed, "privacy": demand(None), "query": queries}), list(SITES))
    sites = split_records(records_of(frame, SCHEMA), 4)
    return METHODS["statistics"].run(federation(study, sites, 0, {})).summary


def drawn(arm: str, ends: Any) -> pd.DataFrame:
    who, number, events, past = ends
    at_zero = [(0.0, who)] * (0 if who == "none" else number)
    rows = [*at_zero, *((float(time), cause) for time, cause in events), *[(HORIZON + 1.0, "alive")] * past]
    return pd.DataFrame(rows, columns=["time", "end"]).assign(arm=arm)


@given(a=arms, b=arms)
@settings(max_examples=30, deadline=None)
def test_who_ends_at_time_zero_is_at_risk_there_alone(a: Any, b: Any) -> None:
    frame = pd.concat([drawn("a", a), drawn("b", b)], ignore_index=True)
    died = frame["end"] != "alive"
    summary = told(frame)
    for row in summary["survival"]:
        own = frame[frame["arm"] == row["arm"]]
        if row["time"] is None or "value" not in row["value"] or row["figure"] == "restricted mean":
            continue
        if row["figure"] == "survival":
            expected = KaplanMeierFitter().fit(own["time"], died[own.index]).predict(row["time"])
        else:
            cause, expected, free = row["figure"].rpartition(" ")[2], 0.0, 1.0  # Aalen and Johansen's
            for time in np.unique(own["time"][own["time"] <= row["time"]]):
                now, at_risk = own[own["time"] == time], (own["time"] >= time).sum()
                expected += free * (now["end"] == cause).sum() / at_risk
                free *= 1.0 - (now["end"] != "alive").sum() / at_risk
        assert row["value"]["value"] == pytest.approx(float(expected), abs=1e-6), row
    (test,) = summary["logrank tests"]
    expected = multivariate_logrank_test(frame["time"], frame["arm"], died)
    if {a[0], b[0]} != {"alive", "died"} and np.isfinite(expected.p_value):
        assert test["p_value"] == pytest.approx(expected.p_value, abs=1e-4)
