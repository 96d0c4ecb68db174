"""Tasks of one vector a site: the head against scikit-learn and its proof; training of perceptrons against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from support.neighbours import MAPPED, join, repeated, schema
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.local_head import LocalHead
from veilsum_privacy.training.mlp import Descent, gradients, layer_shapes, scores, train

HEAD = {"clip": 1.5, "missing": "skip", "ridge": 0.5, "bias": 0.7, **MAPPED}


def head(**changes: Any) -> LocalHead:
    task = build_task("local-head", {**HEAD, **changes}, schema(2))
    assert isinstance(task, LocalHead)
    return task


def drawn(seed: int, n: int) -> Records:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = np.array([[1.0, 0], [-0.5, 0.8], [-0.5, -0.8]])[y] + 0.6 * rng.normal(size=(n, 2))
    return complete(x, y)


def objective_gradient(v: Floats, records: Records, weights: Floats) -> np.ndarray:
    """Gradient of the local head's objective at V (K, d + 1), in extended precision."""
    x = records.features.astype(np.longdouble)
    x = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    x = np.column_stack([x, np.full(len(x), np.longdouble(0.7))])
    error = softmax(x @ v.T.astype(np.longdouble), axis=1)
    assert records.labels is not None
    error[np.arange(len(x)), records.labels] -= 1
    return (error * weights[:, None]).T @ x + np.longdouble(0.5) * v


def as_matrix(vector: Floats) -> Floats:
    """V (K, d + 1) from a head's weighted vector."""
    return np.column_stack([vector[:6].reshape(3, 2), vector[6:]])


def test_the_local_head_is_scikit_learns() -> None:
    records = drawn(0, 400)
    blocks = head().layout().split(head().vector(records, {}))
    x = records.features * np.minimum(1, 1.5 / np.linalg.norm(records.features, axis=1))[:, None]
    other = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-12, max_iter=10_000)
    other.fit(np.column_stack([x, np.full(400, 0.7)]), records.labels)
    np.testing.assert_allclose(blocks["weights"], other.coef_[:, :2], atol=1e-5)
    np.testing.assert_allclose(blocks["bias"], 0.7 * other.coef_[:, 2], atol=1e-5)


def test_the_gradient_left_is_below_what_is_charged() -> None:
    records, task = drawn(1, 3000), head()
    left = np.linalg.norm(objective_gradient(as_matrix(task.vector(records, {})), records, np.ones(3000)))
    assert left <= task.gamma
    assert task.clip() == pytest.approx((np.sqrt(2 * (1.5**2 + 0.7**2)) + 2 * task.gamma) / 0.5, rel=1e-12)
    assert task.gamma < 1e-4


def test_the_order_of_records_changes_no_more_than_the_solver_may() -> None:
    records, task = drawn(2, 1000), head()
    order = np.random.default_rng(0).permutation(1000)
    change = task.vector(records.take(order), {}) - task.vector(records, {})
    assert np.linalg.norm(change) <= 2 * task.gamma / 0.5


def test_a_site_without_usable_records_gives_zeros_and_absent_classes_take_part() -> None:
    task = head()
    nobody = Records(np.ones((3, 2)), np.array([[True, False]] * 3), np.array([0, 1, 2]))
    for records in (drawn(0, 3).take(np.zeros(0, dtype=np.intp)), nobody):
        assert not task.vector(records, {}).any()
    found = drawn(3, 200)
    assert found.labels is not None
    two = as_matrix(task.vector(found.take(np.flatnonzero(found.labels < 2)), {}))
    assert (two[2] != 0).any(), "a class that the site lacks is made unlikely"
    np.testing.assert_allclose(two.sum(axis=0), 0, atol=1e-4)


def test_a_subjects_records_weigh_one_together() -> None:
    records, task = drawn(4, 60), head()
    subjects = np.sort(np.random.default_rng(1).integers(0, 20, 60))
    found = task.vector(Records(records.features, records.present, records.labels, subjects), {})
    weights = 1.0 / np.bincount(subjects)[subjects]
    assert np.linalg.norm(objective_gradient(as_matrix(found), records, weights)) <= task.gamma
    once = drawn(5, 30)
    thrice = once.take(np.repeat(np.arange(30), 3))
    by_subject = Records(thrice.features, thrice.present, thrice.labels, np.repeat(np.arange(30), 3))
    change = task.vector(by_subject, {}) - task.vector(once, {})
    assert np.linalg.norm(change) <= 2 * task.gamma / 0.5


def test_the_worst_record_comes_as_near_to_the_bound_as_one_likes() -> None:
    """Smaller companions, and more of them, hold the head back less."""
    near = []
    for number, size in ((2000, 1e-3), (20_000, 2e-4), (400_000, 2e-5)):
        task = head(clip=1.0, ridge=0.2, bias=1e-6)
        company = repeated(complete(np.array([[size, 0.0]]), np.array([1])), number)
        worst = complete(np.array([[1.0, 0.0]]), np.array([0]))
        change = task.vector(join(company, worst), {}) - task.vector(company, {})
        near.append(float(np.linalg.norm(change)) / task.clip())
    assert near == sorted(near)
    assert 0.999 < near[-1] <= 1.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.floats(0.05, 20), st.floats(0.1, 5), st.integers(1, 5))
def test_a_unit_moves_the_head_within_the_bound(seed: int, n: int, ridge: float, clip: float, added: int) -> None:
    rng = np.random.default_rng(seed)
    task = head(ridge=ridge, clip=clip)
    both = drawn(seed, n + added)
    both = Records(both.features * rng.choice([0.01, 1, 100], (n + added, 1)), both.present, both.labels)
    subjects = np.concatenate([np.arange(n), np.full(added, n)])
    with_it = Records(both.features, both.present, both.labels, subjects)
    without = with_it.take(np.arange(n))
    assert np.linalg.norm(task.vector(with_it, {}) - task.vector(without, {})) <= task.clip()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_no_record_keeps_the_solver_from_converging(seed: int) -> None:
    """At the smallest ridge that is taken, with records of all sizes, repeated, and all alike."""
    rng = np.random.default_rng(seed)
    clip, bias = 10.0 ** rng.uniform(-2, 4), 10.0 ** rng.uniform(-2, 4)
    task = head(clip=clip, bias=bias, ridge=(clip**2 + bias**2) / 0.99e6)
    records = drawn(seed, 300)
    features = records.features * clip * 10.0 ** rng.uniform(-6, 1, (300, 1))
    if seed % 3 == 0:
        features[:, 1] = features[:, 0]
    if seed % 5 == 0:
        features[:] = features[0]
    assert np.isfinite(task.vector(Records(features, records.present, records.labels), {})).all()
    with pytest.raises(HostileInput, match="so small a ridge"):
        head(clip=clip, bias=bias, ridge=(clip**2 + bias**2) / 1.01e6)


def test_a_ridge_too_small_to_solve_for_is_refused() -> None:
    with pytest.raises(HostileInput, match="so small a ridge"):
        build_task("local-head", {**HEAD, "clip": 1e6, "ridge": 1e-9}, schema(2))
    with pytest.raises(HostileInput, match="two classes"):
        build_task("local-head", HEAD, schema(2, label=False))


# Training.


def torch_layers(layers: list[Floats]) -> list[torch.Tensor]:
    return [torch.tensor(values, requires_grad=True) for values in layers]


def torch_loss(layers: list[torch.Tensor], x: Floats, y: np.ndarray) -> torch.Tensor:
    z = torch.tensor(x)
    for i in range(0, len(layers), 2):
        z = torch.nn.functional.linear(torch.relu(z) if i else z, layers[i], layers[i + 1])
    return torch.nn.functional.cross_entropy(z, torch.tensor(y))


def random_model(seed: int, hidden: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in layer_shapes(2, hidden, 3)]


@pytest.mark.parametrize("hidden", [0, 7])
def test_gradients_are_torchs(hidden: int) -> None:
    records, model = drawn(6, 50), random_model(0, hidden)
    assert records.labels is not None
    loss, found = gradients(model, records.features, records.labels)
    tensors = torch_layers(model)
    expected = torch_loss(tensors, records.features, records.labels)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(found, tensors, strict=True):
        assert theirs.grad is not None
        np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-10, atol=1e-14)
    assert scores(model, records.features).shape == (50, 3)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_training_is_torchs(momentum: float, decay: float) -> None:
    records, model = drawn(7, 30), random_model(1, 5)
    assert records.labels is not None
    descent = Descent(epochs=3, batch=8, learning_rate=0.1, momentum=momentum, decay=decay)
    found = train(model, records.features, records.labels, descent, np.random.default_rng(9))
    rng, tensors = np.random.default_rng(9), torch_layers(model)
    optimiser = torch.optim.SGD(tensors, lr=0.1, momentum=momentum, weight_decay=decay)
    for _ in range(3):
        order = rng.permutation(30)
        for start in range(0, 30, 8):
            rows = order[start : start + 8]
            optimiser.zero_grad()
            torch_loss(tensors, records.features[rows], records.labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    for ours, theirs in zip(found, tensors, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-12)
