"""How well scores rank: every pair counted one by one, scikit-learn and lifelines without noise, intervals with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from support.studies import agreed, complete, demand, federation, split_records
from veilsum.compile import StudyRequest
from veilsum_aggregation.concordance import area, concordance
from veilsum_aggregation.figures import Figure, NotEstimable
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

Cells = NDArray[np.float64]
SIGMA = 4.05  # of a release at epsilon 1

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90),
        NumberColumn(name="time", low=0, high=5),
        CategoryColumn(name="arm", categories=("a", "b")),
        CategoryColumn(name="end", categories=("alive", "died", "killed")),
    ),
    max_records=20_000,
)
RISK = {"risk": {"number": "0.05 * age - 3 + 0.8 * (arm = 'b')", "low": -2.0, "high": 2.5}}
EVENT = {"kind": "discrimination", "name": "auc", "over": "risk", "outcome": "end in ('died', 'killed')"}
TIME = {
    "kind": "discrimination", "name": "c", "over": "risk", "outcome": "time", "event": "end", "censored": "alive",
    "edges": {"from": 0, "to": 5, "steps": 10},
}  # fmt: skip


def cohort(n: int, seed: int = 0) -> tuple[Records, Cells, Cells, NDArray[np.bool_]]:
    """Records whose hazard grows with their risk; risk, time, and who had an event."""
    rng = np.random.default_rng(seed)
    age, arm = rng.uniform(20, 90, n), rng.integers(0, 2, n)
    risk = 0.05 * age - 3 + 0.8 * arm
    died, left = rng.exponential(size=n) / (0.15 * np.exp(0.7 * risk)), rng.uniform(0.5, 8, n)
    time, event = np.minimum(np.minimum(died, left), 5.0), (died <= left) & (died < 5.0)
    features = np.zeros((n, SCHEMA.width))
    features[:, 0], features[:, 1] = (age - 20) / 35 - 1, time / 2.5 - 1
    features[np.arange(n), 2 + arm] = 1.0
    features[np.arange(n), 4 + event * (1 + np.arange(n) % 2)] = 1.0
    return complete(features), risk, time, event


SITES = [f"site-{index}" for index in range(4)]


def request_of(epsilon: float | None, *queries: object) -> StudyRequest:
    fixed = {"name": "s", "method": "statistics", "dataset": "d", "data": SCHEMA, "expected_records": 1250}
    return StudyRequest.model_validate({**fixed, "privacy": demand(epsilon), "query": queries, "derive": RISK})


def answers(records: Records, epsilon: float | None, *queries: object, seed: int = 0) -> dict[str, list[dict[str, object]]]:
    study = agreed(request_of(epsilon, *queries), SITES)
    return dict(METHODS["statistics"].run(federation(study, split_records(records, 4), seed)).summary)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.randoms(use_true_random=False))
def test_it_is_the_share_of_all_pairs(levels: int, intervals: int, causes: int, random: object) -> None:
    rng = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    ends = rng.integers(0, 4, (levels, intervals, causes + 1)).astype(np.float64)
    beyond = rng.integers(0, 4, levels).astype(np.float64)
    people = [
        (level, interval, kind > 0) for (level, interval, kind), count in np.ndenumerate(ends) for _ in range(int(count))
    ] + [(level, intervals, False) for level, count in enumerate(beyond) for _ in range(int(count))]
    pairs = [(one, two) for one in people if one[2] for two in people if two[1] > one[1]]
    found = concordance(ends, beyond, 0.0)
    if not pairs:
        assert isinstance(found, NotEstimable)
        return
    concordant = sum((one[0] > two[0]) + 0.5 * (one[0] == two[0]) for one, two in pairs)
    assert isinstance(found, Figure)
    assert found.value == pytest.approx(concordant / len(pairs))
    assert found.noise_error == 0.0


def test_errors_are_those_of_small_changes() -> None:
    """The gradient against differences: noise of one in a cell moves the figure by its derivative there."""
    rng = np.random.default_rng(2)
    ends, beyond = rng.uniform(50, 90, (4, 3, 3)), rng.uniform(50, 90, 4)

    def value(shift: float, *place: int) -> float:
        moved, last = ends.copy(), beyond.copy()
        (moved if len(place) == 3 else last)[place] += shift
        found = concordance(moved, last, 1.0)
        assert isinstance(found, Figure)
        return found.value

    cells = [place for place, _ in np.ndenumerate(ends)] + [(level,) for level in range(4)]
    slopes = np.array([(value(1e-4, *place) - value(-1e-4, *place)) / 2e-4 for place in cells])
    counts = np.append(ends.ravel(), beyond)
    found = concordance(ends, beyond, 1.0)
    assert isinstance(found, Figure)
    assert found.noise_error == pytest.approx(np.sqrt((slopes**2).sum()), rel=1e-5)
    assert found.sampling_error == pytest.approx(np.sqrt((slopes**2 * counts).sum()), rel=1e-5)


def test_without_noise_it_is_scikit_learns_and_lifelines() -> None:
    from lifelines.utils import concordance_index

    records, risk, time, event = cohort(8000)
    summary = answers(records, None, EVENT, TIME)
    first, *shares = summary["auc"]
    assert first["figure"] == "area under the ROC curve"
    level = np.floor((np.clip(risk, -2.0, 2.5 - 1e-9) + 2.0) / 4.5 * 16)
    assert first["value"]["value"] == pytest.approx(roc_auc_score(event, level), abs=1e-9)  # type: ignore[index]
    assert shares[0]["level"] == "-2 to -1.71875"
    assert shares[10]["value"]["value"] == pytest.approx(event[level == 10].mean())  # type: ignore[index]
    (row,) = summary["c"]
    assert row["figure"] == "concordance"
    assert row["value"]["value"] == pytest.approx(concordance_index(time, -risk, event), abs=0.015)  # type: ignore[index]


@pytest.mark.parametrize("n", [1500, 10_000])
def test_intervals_cover(n: int) -> None:
    """Against the population's values, of 200,000 records."""
    rng = np.random.default_rng(3)

    def times(size: int, std: float) -> tuple[Cells, Cells]:
        risk = rng.normal(size=size)
        died, left = rng.exponential(size=size) / np.exp(0.7 * risk), rng.exponential(2.0, size)
        interval = np.minimum((np.minimum(died, left) / 0.2).astype(int), 10)
        table = np.zeros((16, 11, 2))
        np.add.at(table, (_level(risk), interval, (died <= left).astype(int)), 1)
        return table[:, :10] + rng.normal(size=(16, 10, 2)) * std, table[:, 10].sum(axis=1) + rng.normal(size=16) * std

    def events(size: int, std: float) -> tuple[Cells, Cells]:
        risk = rng.normal(size=size)
        table = np.zeros((16, 2))
        np.add.at(table, (_level(risk), (rng.random(size) < 1 / (1 + np.exp(2 - risk))).astype(int)), 1)
        return tuple((table + rng.normal(size=(16, 2)) * std).T)

    for draw, figure in ((times, concordance), (events, area)):
        truth = figure(*draw(200_000, 0.0), 0.0)
        told = [figure(*draw(n, SIGMA), SIGMA) for _ in range(150)]
        assert isinstance(truth, Figure)
        covered = [found.low <= truth.value <= found.high for found in told if isinstance(found, Figure)]
        assert len(covered) >= 140
        assert np.mean(covered) >= 0.90


def _level(risk: Cells) -> NDArray[np.int64]:
    return np.clip(((risk + 2.5) / 5 * 16).astype(int), 0, 15)


def test_what_noise_drowns_says_so() -> None:
    records, *_ = cohort(60)
    for name, query in (("auc", EVENT), ("c", TIME)):
        assert "not_estimable" in answers(records, 0.05, query)[name][0]["value"]  # type: ignore[operator]
