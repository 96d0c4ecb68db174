"""The method "o-fedavg": scikit-learn's regressions averaged, without noise; the noise that is stated, with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from support.studies import SITES, WIDTH, compiled, complete, federation, run, shifted_sites
from veilsum_coordinator.methods import get_method
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_participant.applying.model import Model
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import Records

RIDGE, BIAS = 2.0, 0.5


def sklearn_heads(sites: dict[str, Records]) -> tuple[np.ndarray, np.ndarray]:
    """Weights (S, K, d) and biases (S, K) of scikit-learn, with the bias as a constant feature under the same ridge."""
    weights, bias = [], []
    for own in sites.values():
        x = np.column_stack([own.features, np.full(len(own), BIAS)])
        # a vanishing record of each class: absent ones take part in the softmax
        x, y = np.vstack([x, np.zeros((3, WIDTH + 1))]), np.concatenate([own.labels, np.arange(3)])
        weight = np.concatenate([np.ones(len(own)), np.full(3, 1e-9)])
        fit = LogisticRegression(C=1.0 / RIDGE, fit_intercept=False, tol=1e-10, max_iter=5000).fit(x, y, weight)
        weights.append(fit.coef_[:, :WIDTH])
        bias.append(fit.coef_[:, WIDTH] * BIAS)
    return np.array(weights), np.array(bias)


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_without_noise_it_is_the_mean_of_scikit_learns_heads(disclosure: str) -> None:
    sites = shifted_sites(150)
    for own in sites.values():  # a site that lacks a class
        own.labels[own.labels == 2] = 1
        break
    parameters = {"ridge": RIDGE, "ridge_per": "site", "bias": BIAS, "disclosure": disclosure}
    result = run("o-fedavg", parameters, sites)
    weights, bias = sklearn_heads(sites)
    np.testing.assert_allclose(result.arrays["weights"], weights.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(result.arrays["bias"], bias.mean(axis=0), atol=1e-4)
    if disclosure == "per-site":
        np.testing.assert_allclose(result.arrays["heads.weights"], weights, atol=1e-4)
        np.testing.assert_allclose(result.arrays["heads.bias"], bias, atol=1e-4)
    else:
        assert "heads.weights" not in result.arrays
    assert result.application["classes"] == ["p", "q", "r"]
    x = np.vstack([own.features for own in sites.values()])
    scores = Model.from_result(result).scores(complete(x))
    np.testing.assert_allclose(scores, x @ weights.mean(axis=0).T + bias.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_noise_is_as_large_as_stated(disclosure: str) -> None:
    sites = shifted_sites(150)
    parameters = {"ridge": 20.0, "ridge_per": "site", "bias": BIAS, "disclosure": disclosure}
    exact = run("o-fedavg", {**parameters, "clip": math.sqrt(2.0)}, sites).arrays["weights"]
    study = compiled("o-fedavg", parameters, epsilon=5.0)
    assert float.fromhex(study.parameters["clip"]) == pytest.approx(math.sqrt(2.0))
    drawn, stated = [], 0.0
    for seed in range(40):
        result = get_method("o-fedavg").run(federation(study, sites, seed))
        if "not_estimable" not in result.summary:
            drawn.append(result.arrays["weights"] - exact)
            stated = result.summary["weights"]["norm_of_noise"] / math.sqrt(exact.size)
    assert len(drawn) > 30
    assert np.sqrt(np.mean(np.square(drawn))) == pytest.approx(stated, rel=0.1)


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
    assert (exact["ridge_per"], noised["ridge_per"]) == ("record", "site")
    assert float.fromhex(exact["ridge"]) == pytest.approx(0.01 * 2.0)
    assert float.fromhex(noised["ridge"]) == pytest.approx(12 * 2.0)
    for epsilon, ridge in ((0.1, 16.0), (2.0, 6.0), (50.0, 2.0)):
        assert float.fromhex(parameters(epsilon=epsilon)["ridge"]) == pytest.approx(ridge * 2.0)
    assert float.fromhex(exact["bias"]) == pytest.approx(0.2 * math.sqrt(2.0))
    assert float.fromhex(exact["clip"]) == pytest.approx(math.sqrt(6.0))
    by_site = compiled("o-fedavg", {"ridge_per": "site"}, expected=100).parameters
    assert float.fromhex(by_site["ridge"]) == pytest.approx(0.01 * 100 * 2.0)


def test_a_ridge_of_each_record_is_that_of_the_mean_loss_and_refused_under_noise() -> None:
    sites = shifted_sites(150)
    result = run("o-fedavg", {"ridge": RIDGE / 150, "bias": BIAS}, sites)
    np.testing.assert_allclose(result.arrays["weights"], sklearn_heads(sites)[0].mean(axis=0), atol=1e-4)
    with pytest.raises(ConfigurationError, match="without noise"):
        compiled("o-fedavg", {"ridge_per": "record"}, epsilon=1.0)
    # and a site would refuse it, whatever a coordinator compiled
    study = compiled("o-fedavg", epsilon=1.0)
    (task,) = study.tasks
    forged = task.model_copy(update={"parameters": {**task.parameters, "per_record": True}})
    with pytest.raises(HostileInput, match="grows with a site's records"):
        AgreedTask(AgreedStudy(study), forged)


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
