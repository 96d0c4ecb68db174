"""The method "o-fedavg": scikit-learn's regressions averaged, without noise; the noise that is stated, with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from support.studies import SITES, WIDTH, compiled, complete, federation, run, shifted_sites
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import DerivedTask, Records, RowTask

RIDGE, BIAS = 0.05, 0.5


def sklearn_heads(sites: dict[str, Records]) -> tuple[np.ndarray, np.ndarray]:
    """Weights (S, K, d) and biases (S, K) of scikit-learn's ridge regression on the indicators of classes."""
    weights, bias = [], []
    for own in sites.values():
        assert own.labels is not None
        x = np.column_stack([own.features, np.full(len(own), BIAS)])
        fit = Ridge(alpha=RIDGE * len(own), fit_intercept=False, solver="svd").fit(x, 3.0 * np.eye(3)[own.labels] - 1.0)
        weights.append(fit.coef_[:, :WIDTH])
        share = np.bincount(own.labels, minlength=3) / len(own)
        bias.append(0.5 * (3 * share - 1) - fit.coef_[:, :WIDTH] @ own.features.mean(axis=0))
    return np.array(weights), np.array(bias)


def lacking_a_class() -> dict[str, Records]:
    sites = shifted_sites(150)
    for own in sites.values():
        assert own.labels is not None
        own.labels[own.labels == 2] = 1
        break
    return sites


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_without_noise_it_is_the_mean_of_scikit_learns_heads(disclosure: str) -> None:
    sites = lacking_a_class()
    result = run("o-fedavg", {"ridge": RIDGE, "bias": BIAS, "disclosure": disclosure}, sites)
    weights, bias = sklearn_heads(sites)
    np.testing.assert_allclose(result.arrays["weights"], weights.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(result.arrays["bias"], bias.mean(axis=0), atol=1e-5)
    if disclosure == "per-site":
        np.testing.assert_allclose(result.arrays["heads.weights"], weights, atol=1e-5)
        np.testing.assert_allclose(result.arrays["heads.bias"], bias, atol=1e-5)
    else:
        assert "heads.weights" not in result.arrays
    assert result.application["classes"] == ["p", "q", "r"]
    x = np.vstack([own.features for own in sites.values()])
    scores = Model.from_result(result).scores(complete(x))
    np.testing.assert_allclose(scores, x @ weights.mean(axis=0).T + bias.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("reference", ["two-way", "slopes", "barycenter"])
def test_heads_after_an_alignment_are_the_same_whoever_maps(reference: str) -> None:
    """One-shot, where the coordinator has each site's moments, and iterated, where each site makes its map and its head."""
    sites, found = lacking_a_class(), {}
    for mode in ("one-shot", "iterated"):
        asked = {"ridge": RIDGE, "bias": BIAS, "alignment": {"reference": reference, "mode": mode, "rounds": 20}}
        study = compiled("o-fedavg", asked)
        assert sum(task.variance > 0 or not task.derived for task in study.tasks) == 1, "one release of records"
        found[mode] = get_method("o-fedavg").run(federation(study, sites)).arrays
    for name in ("weights", "bias"):
        np.testing.assert_allclose(found["one-shot"][name], found["iterated"][name], atol=1e-4)


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_noise_is_as_large_as_stated(disclosure: str) -> None:
    """To first order, which holds where noise is small beside second moments."""
    sites = shifted_sites(4000)
    parameters = {"bias": BIAS, "disclosure": disclosure, "split": {"counts": 5, "sums": 75, "second": 20}}
    study = compiled("o-fedavg", parameters, epsilon=20.0)
    drawn, stated = [], []
    for seed in range(40):
        result = get_method("o-fedavg").run(federation(study, sites, seed))
        drawn.append(result.arrays["weights"])
        stated.append(result.summary["weights"]["norm_of_noise"])
    spread = np.sqrt(np.var(drawn, axis=0, ddof=1).sum())
    assert spread == pytest.approx(np.mean(stated), rel=0.35)


def test_swallowed_heads_are_said_and_an_empty_federation_too() -> None:
    few = shifted_sites(3)
    lost = 0
    for seed in range(20):
        result = run("o-fedavg", {}, few, seed, epsilon=0.05)
        lost += "cannot be told from its noise" in result.summary.get("not_estimable", "")
        assert bool(result.arrays) is ("not_estimable" not in result.summary)
    assert lost >= 17
    empty = {
        site: Records(np.zeros((0, WIDTH)), np.zeros((0, WIDTH), dtype=bool), np.zeros(0, dtype=np.int64)) for site in SITES
    }
    assert "no site has a usable record" in run("o-fedavg", {}, empty).summary["not_estimable"]


def test_defaults_follow_from_public_values() -> None:
    def parameters(**options: Any) -> dict[str, Any]:
        return compiled("o-fedavg", **options).parameters

    exact, noised = parameters(expected=100), parameters(expected=100, epsilon=1.0)
    assert float.fromhex(exact["ridge"]) == pytest.approx(0.01 * 2.0)
    assert float.fromhex(noised["ridge"]) == pytest.approx(0.001 * 2.0)
    assert float.fromhex(exact["bias"]) == pytest.approx(0.2 * math.sqrt(2.0))
    assert float.fromhex(exact["clip"]) == pytest.approx(math.sqrt(6.0))


def test_no_task_of_it_computes_a_head_of_records() -> None:
    """What reads records are sums of rows, which the kernel clips; heads are made of what a site kept of them."""
    for parameters in ({}, {"disclosure": "per-site"}, {"alignment": {"reference": "slopes", "mode": "iterated"}}):
        study = compiled("o-fedavg", parameters, epsilon=1.0)
        kinds = {task.label: type(AgreedTask(AgreedStudy(study), task).task) for task in study.tasks}
        assert all(issubclass(kind, RowTask | DerivedTask) for kind in kinds.values())
        assert issubclass(kinds["heads"], DerivedTask)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["single-domain", "multi-domain"])
@pytest.mark.parametrize("method", ["o-fedavg", "fedcgs"])
@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_generation_in_front(method: str, mode: str, epsilon: float | None) -> None:
    sites = shifted_sites(apart=0.3, shift=0.02)
    privacy: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
    result = run(method, {"generation": {"mode": mode, "target": 300}}, sites, **privacy)
    model = Model.from_result(result)
    accuracy = np.mean([np.mean(model.predict(own) == own.labels) for own in sites.values()])
    assert accuracy > 0.95
    aligned = {"generation": {"mode": mode, "target": 300}, "alignment": {"reference": "slopes", "mode": "iterated"}}
    own = federation(compiled(method, aligned, **privacy), sites)
    again = Model.from_result(get_method(method).run(own))
    hits = [
        np.mean(again.predict(part, site=name, kept=own.kept_blocks(name, "alignment")) == part.labels)
        for name, part in sites.items()
    ]
    assert np.mean(hits) > 0.9


def test_generation_leaves_no_head_to_disclose() -> None:
    with pytest.raises(ConfigurationError, match="no site sends a head"):
        compiled("o-fedavg", {"generation": {}, "disclosure": "per-site"})
    with pytest.raises(ConfigurationError, match="ridge"):
        compiled("o-fedavg", {"ridge": -1.0})
