"""Weights of classes: what a study may state, and what frequencies make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.gradient_sums import clipped_gradient_sum
from support.studies import SCHEMA, Watched, compiled, shifted_sites
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedsgd import FedSGDParameters
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_privacy.tasks.features import CLASS_WEIGHTS, class_weights
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.server_steps import RARITY, rarity_weights, stated_weights


@pytest.mark.parametrize("name", sorted(RARITY))
def test_weights_follow_from_frequencies(name: str) -> None:
    """Without noise: scikit-learn's balanced weights in proportion, to the power."""
    found = rarity_weights(np.array([800.0, 150.0, 50.0]), 0.0, RARITY[name])
    balanced = 1000.0 / (3.0 * np.array([800.0, 150.0, 50.0]))
    np.testing.assert_allclose(found, (balanced / balanced.max()) ** RARITY[name])


def test_classes_that_may_well_be_alike_weigh_alike() -> None:
    assert rarity_weights(np.array([110.0, 90.0, 100.0]), 10.0, 0.5).tolist() == [1.0, 1.0, 1.0]
    drowned = rarity_weights(np.array([-40.0, 900.0]), 20.0, 1.0)  # the count is taken to be its noise
    np.testing.assert_allclose(drowned, [1.0, 60.0 / 900.0])


def test_of_a_table_only_proportions_count() -> None:
    names = SCHEMA.classes
    table = {name: 2.0 * (place + 1) for place, name in enumerate(names)}
    expected = tuple((place + 1) / len(names) for place in range(len(names)))
    assert stated_weights(table, names, "fedsgd") == pytest.approx(expected)
    study = compiled("fedavg", {"class_weights": table})
    told = study.task("local-training").parameters["class_weights"]
    assert [float.fromhex(value) for value in told] == pytest.approx(expected)
    study = compiled("fedsgd", {"class_weights": table, "steps": 1}, epsilon=2.0)
    assert "classes" not in study.task("means").parameters  # a table needs no frequencies
    sites = Watched(study, shifted_sites())
    shown = METHODS["fedsgd"].run(sites).summary["class_weights"]
    assert shown == pytest.approx(dict(zip(names, expected, strict=True)))
    np.testing.assert_allclose(sites.broadcasts[-1][CLASS_WEIGHTS], expected)


def test_rare_classes_weigh_more_by_default_where_a_centre_counts_them() -> None:
    chosen: dict[str, Any] = {"centred": {}, "not": {"centre": False}}
    found = {
        name: FedSGDParameters.model_validate(compiled("fedsgd", own, epsilon=2.0).parameters).class_weights
        for name, own in chosen.items()
    }
    assert found == {"centred": "sqrt", "not": "none"}
    asked = compiled("fedsgd", {"class_weights": "none"}, epsilon=2.0)
    assert "class_weights" not in asked.task("gradient").parameters
    assert "classes" not in asked.task("means").parameters


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("fedsgd", {"class_weights": "balanced", "centre": False}, "come with a centre"),
        ("fedsgd", {"class_weights": {"c0": 1.0}}, "each class of the label a weight"),
        ("fedavg", {"class_weights": {"other": 1.0}}, "each class of the label a weight"),
    ],
)
def test_what_is_refused(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled(method, parameters, epsilon=2.0)


@pytest.mark.parametrize(
    "weights", [None, np.ones(2), np.array([1.0, 2.0, 0.0]), np.array([1.0, -0.1, 0.0]), np.full(3, np.nan)]
)
def test_a_broadcast_of_other_weights_is_refused(weights: np.ndarray | None) -> None:
    broadcast = {} if weights is None else {CLASS_WEIGHTS: weights}
    with pytest.raises(HostileInput, match="from 0 to 1"):
        class_weights(broadcast, 3)


def test_a_record_without_a_class_weighs_nothing() -> None:
    """And each of the others its class's weight, after its gradient is clipped."""
    architecture = build_architecture(ModelSpec(name="linear", options={"scale": 1.0, "bias": 1.0}), 2, 2)
    arrays, rng = architecture.initial(0), np.random.default_rng(0)
    x, labels, weights = 9.0 * rng.normal(size=(4, 2)), np.array([1, -1, 0, 2]), np.array([0.2, 1.0])
    found = clipped_gradient_sum(architecture, arrays, x, labels, 0.5, weights=weights).total
    one = [clipped_gradient_sum(architecture, arrays, x[k : k + 1], labels[k : k + 1], 0.5).total for k in range(4)]
    assert np.linalg.norm(one[0]) > 0.49
    np.testing.assert_allclose(found, one[0] + 0.2 * one[2], rtol=0, atol=1e-7)
    assert not one[1].any()
    assert not one[3].any()
