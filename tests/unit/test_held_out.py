"""What a simulation tells of held-out records, against scikit-learn and lifelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, d2_tweedie_score, mean_squared_error, r2_score, roc_auc_score

from veilsum_deploy.simulation.run_store import RunStore
from veilsum_deploy.simulation.scores import NAMES, Scores
from veilsum_deploy.simulation.study import SimulatedRun
from veilsum_participant.applying.measurement import headline, outcome_headline
from veilsum_participant.applying.model import probabilities
from veilsum_privacy.results.result import Result


@pytest.mark.parametrize("classes", [2, 3])
def test_figures_of_classes_are_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(classes)
    y = rng.choice(classes, 300, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2))
    scores = rng.normal(size=(300, classes)) + np.eye(classes)[y]
    names = [f"c{place}" for place in range(classes)]
    found, p = headline(scores, y, names, names), probabilities(scores)
    area = roc_auc_score(y, p[:, 1]) if classes == 2 else roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert found["auc"] == pytest.approx(area, abs=1e-12)
    assert found["accuracy"] == pytest.approx(accuracy_score(y, scores.argmax(axis=1)))
    assert found["accuracy_of_constant_guess"] == pytest.approx(np.bincount(y).max() / 300)
    if classes == 2:
        assert (found["mean_predicted"], found["observed"]) == pytest.approx((p[:, 1].mean(), y.mean()))
    else:
        assert (found["mean_predicted"], found["observed"]) == pytest.approx((p.max(axis=1).mean(), found["accuracy"]))
    assert set(found) <= set(NAMES)


def test_the_models_classes_may_stand_in_another_order_and_records_go_without() -> None:
    scores, y = np.array([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0], [np.nan, np.nan]]), np.array([1, 0, 0, 1])
    found = headline(scores, y, ["no", "yes"], ["yes", "no"])
    assert found["accuracy"] == 0.5  # the third is wrong, the last has no prediction
    assert found["auc"] == 1.0  # of three records, for "no"
    assert found["observed"] == pytest.approx(2 / 3)
    assert headline(np.full((2, 2), np.nan), np.array([0, 0]), ["a", "b"], ["a", "b"]) == {
        "accuracy": 0.0, "accuracy_of_constant_guess": 1.0,
    }  # fmt: skip


def test_figures_of_numbers_and_counts_are_scikit_learns() -> None:
    rng = np.random.default_rng(5)
    mean = np.exp(rng.normal(size=400))
    y = rng.poisson(mean).astype(np.float64)
    number = outcome_headline("squared", mean, y)
    assert number["r_squared"] == pytest.approx(r2_score(y, mean))
    assert number["root_mean_squared_error"] == pytest.approx(mean_squared_error(y, mean) ** 0.5)
    count = outcome_headline("poisson", mean, y)
    assert count["deviance_explained"] == pytest.approx(d2_tweedie_score(y, mean, power=1))
    assert (count["mean_predicted"], count["observed"]) == pytest.approx((mean.mean(), y.mean()))
    assert "r_squared" not in outcome_headline("huber", mean, np.ones(400))
    assert "deviance_explained" not in outcome_headline("poisson", mean, np.zeros(400))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**16), ties=st.integers(2, 30))
def test_concordance_is_lifelines_with_ties(seed: int, ties: int) -> None:
    from lifelines.utils import concordance_index

    rng = np.random.default_rng(seed)
    times, risks, events = rng.integers(1, ties, 60) / 1.0, rng.integers(0, ties, 60) / 1.0, rng.random(60) < 0.6
    found = outcome_headline("hazard", risks, times, events)
    try:
        expected = concordance_index(times, -risks, events)
    except ZeroDivisionError:
        assert found == {}
        return
    assert found["concordance"] == pytest.approx(expected, abs=1e-12)


def test_a_run_that_is_taken_up_again_keeps_its_figures(tmp_path: Path) -> None:
    figures = {"auc": 0.9, "accuracy": 0.8}
    store = RunStore(tmp_path / "out", "who", False)
    store.open()
    from support.studies import compiled

    study, about = compiled("fedcgs"), dict[str, Any](name="trial", digest="0" * 64, method="fedcgs")
    store.save(1, study, SimulatedRun(Result("fedcgs", {}), about, 1.0, Scores({"one": 0.8}, figures, 0.8)))
    loaded = store.load(1)
    assert loaded is not None
    assert loaded[1].scores == Scores({"one": 0.8}, figures, 0.8)
