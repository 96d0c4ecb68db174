"""Tasks of one vector a site: the head against scikit-learn and its proof, the model update against torch and its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from support.neighbours import MAPPED, join, repeated, schema, take
from veilsum_privacy.errors import HostileInput
from veilsum_privacy.tasks import build_task, model_update
from veilsum_privacy.tasks.base import Floats, Records
from veilsum_privacy.tasks.local_head import LocalHead
from veilsum_privacy.tasks.model_update import DIRECTIONS, PROTOTYPES, SEEDS, USE, ModelUpdate
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
    return Records(x, np.ones((n, 2), dtype=np.bool_), y)


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
    change = task.vector(take(records, order), {}) - task.vector(records, {})
    assert np.linalg.norm(change) <= 2 * task.gamma / 0.5


def test_a_site_without_usable_records_gives_zeros_and_absent_classes_take_part() -> None:
    task = head()
    nobody = Records(np.ones((3, 2)), np.array([[True, False]] * 3), np.array([0, 1, 2]))
    for records in (take(drawn(0, 3), np.zeros(0, dtype=np.intp)), nobody):
        assert not task.vector(records, {}).any()
    found = drawn(3, 200)
    assert found.labels is not None
    two = as_matrix(task.vector(take(found, np.flatnonzero(found.labels < 2)), {}))
    assert (two[2] != 0).any(), "a class that the site lacks is made unlikely"
    np.testing.assert_allclose(two.sum(axis=0), 0, atol=1e-4)


def test_a_subjects_records_weigh_one_together() -> None:
    records, task = drawn(4, 60), head()
    subjects = np.sort(np.random.default_rng(1).integers(0, 20, 60))
    found = task.vector(Records(records.features, records.present, records.labels, subjects), {})
    weights = 1.0 / np.bincount(subjects)[subjects]
    assert np.linalg.norm(objective_gradient(as_matrix(found), records, weights)) <= task.gamma
    once = drawn(5, 30)
    thrice = take(once, np.repeat(np.arange(30), 3))
    by_subject = Records(thrice.features, thrice.present, thrice.labels, np.repeat(np.arange(30), 3))
    change = task.vector(by_subject, {}) - task.vector(once, {})
    assert np.linalg.norm(change) <= 2 * task.gamma / 0.5


def test_the_worst_record_comes_as_near_to_the_bound_as_one_likes() -> None:
    """Smaller companions, and more of them, hold the head back less."""
    near = []
    for number, size in ((2000, 1e-3), (20_000, 2e-4), (400_000, 2e-5)):
        task = head(clip=1.0, ridge=0.2, bias=1e-6)
        company = repeated(Records(np.array([[size, 0.0]]), np.ones((1, 2), dtype=np.bool_), np.array([1])), number)
        worst = Records(np.array([[1.0, 0.0]]), np.ones((1, 2), dtype=np.bool_), np.array([0]))
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
    without = take(with_it, np.arange(n))
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


UPDATE = {
    "clip": 100.0,
    "missing": "skip",
    **MAPPED,
    "hidden": 4,
    "epochs": 2,
    "batch": 16,
    "learning_rate": 0.1,
    "norm": 1e6,
    "weighting": "equal",
}


def updating(**changes: Any) -> ModelUpdate:
    task = build_task("model-update", {**UPDATE, **changes}, schema(2))
    assert isinstance(task, ModelUpdate)
    return task


def given_model(task: ModelUpdate, seed: int = 0) -> dict[str, Floats]:
    names = [block.name for block in task.layout().blocks[:-1]]
    model = random_model(seed, task.parameters.hidden)
    return {**dict(zip(names, model, strict=True)), SEEDS: np.array([5.0, 6.0])}


def test_an_update_is_what_training_changed() -> None:
    records, task = drawn(8, 40), updating()
    broadcast = given_model(task)
    got = task.layout().split(task.vector(records, broadcast))
    assert records.labels is not None
    model = [broadcast[name] for name in list(got)[:-1]]
    descent = Descent(2, 16, 0.1)
    trained = train(model, records.features, records.labels, descent, np.random.default_rng(5))
    for name, before, after in zip(list(got)[:-1], model, trained, strict=True):
        np.testing.assert_allclose(got[name], after - before, atol=1e-12)
    assert got["weight"] == pytest.approx(1)
    by_records = updating(weighting="records")
    weighed = by_records.layout().split(by_records.vector(records, broadcast))
    assert weighed["weight"] == pytest.approx(40)
    np.testing.assert_allclose(weighed["model.1.weight"], 40 * got["model.1.weight"], rtol=1e-12)


def test_an_update_is_no_longer_than_its_norm_and_what_is_not_finite_is_none() -> None:
    records = drawn(9, 40)
    for norm in (1e-3, 0.1):
        task = updating(norm=norm)
        vector = task.vector(records, given_model(task))
        assert np.linalg.norm(vector[:-1]) == pytest.approx(norm, rel=1e-9)
        assert np.linalg.norm(vector[:-1]) <= norm
        assert task.clip() == 2 * norm
    diverging = updating(learning_rate=1e6, epochs=50)
    found = diverging.vector(records, given_model(diverging))
    assert not found[:-1].any()
    nobody = diverging.vector(take(records, np.zeros(0, dtype=np.intp)), given_model(diverging))
    np.testing.assert_array_equal(nobody, found)


def generated(monkeypatch: pytest.MonkeyPatch, records: Records, broadcast: dict[str, Floats], **generation: Any) -> Any:
    """The samples and labels that a site trains on."""
    seen: list[Any] = []

    def spy(model: Any, x: Floats, labels: np.ndarray, *_: Any) -> Any:
        seen.append((x, labels))
        return model

    monkeypatch.setattr(model_update, "train", spy)
    task = updating(generation=generation)
    task.vector(records, {**given_model(task), **broadcast})
    return seen[0]


def directions(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(3, 2, 2))


def test_filling_gives_each_class_that_is_there_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(10, 90)
    assert found.labels is not None
    records = take(found, np.flatnonzero((found.labels < 1) | (np.arange(90) < 9) & (found.labels == 1)))
    assert records.labels is not None
    few = int((records.labels == 1).sum())
    repeats, labels = generated(monkeypatch, records, {DIRECTIONS: np.zeros((3, 2, 2))}, fill=20)
    many = int((records.labels == 0).sum())
    assert 0 < few < 20 < many
    np.testing.assert_array_equal(np.bincount(labels, minlength=3), [many, 20, 0])
    times = [(repeats == row).all(axis=1).sum() for row in records.features[records.labels == 1]]
    assert max(times) - min(times) <= 1, "every record is repeated about as often"
    assert sum(times) == 20


def test_copies_spread_as_the_directions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    records = take(drawn(11, 1), np.array([0]))
    assert records.labels is not None
    x, labels = generated(monkeypatch, records, {DIRECTIONS: directions()}, copies=10_000)
    assert len(x) == 10_001
    assert set(labels) == set(records.labels)
    a = directions()[records.labels[0]]
    np.testing.assert_allclose(np.cov(x[1:].T), a @ a.T, atol=6 * np.trace(a @ a.T) / 100)
    np.testing.assert_allclose(x[1:].mean(axis=0), records.features[0], atol=6 * np.sqrt(np.trace(a @ a.T)) / 100)


def test_prototypes_are_surrounded_where_the_site_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = np.random.default_rng(1).normal(size=(2, 3, 2))
    use = np.array([[1.0, 0, 0], [1, 1, 0]])
    broadcast = {DIRECTIONS: np.zeros((3, 2, 2)), PROTOTYPES: prototypes, USE: use}
    nobody = take(drawn(0, 1), np.zeros(0, dtype=np.intp))
    x, labels = generated(monkeypatch, nobody, broadcast, prototypes=5)
    np.testing.assert_array_equal(np.bincount(labels, minlength=3), [10, 5, 0])
    np.testing.assert_array_equal(x, np.repeat([prototypes[0, 0], prototypes[1, 0], prototypes[1, 1]], 5, axis=0))
    for missing in (DIRECTIONS, PROTOTYPES, USE):
        less = {name: array for name, array in broadcast.items() if name != missing}
        with pytest.raises(HostileInput, match=missing.replace(".", r"\.")):
            generated(monkeypatch, nobody, less, prototypes=5)


def test_no_site_generates_without_bound() -> None:
    """By what is public: running out of memory would tell of records."""
    limit = model_update.MOST_GENERATED // 2
    for excess in ({"copies": 10_000}, {"fill": 100_000, "prototypes": 100_000}):
        large = schema(2).model_copy(update={"max_records": limit // 10_000 + 1})
        wide = large.model_copy(update={"max_records": 1})
        values = {**UPDATE, "generation": excess, "width": 2 if "copies" in excess else 4096}
        with pytest.raises(HostileInput, match="would generate more"):
            build_task("model-update", values, large)
        build_task("model-update", {**values, "width": 2}, wide)
    task = updating(generation={"prototypes": 100_000})
    sets = limit // (3 * 100_000) + 1
    for prototypes in (np.zeros((sets, 3, 2)), np.array(1.0)):
        broadcast = {DIRECTIONS: np.zeros((3, 2, 2)), PROTOTYPES: prototypes, USE: np.zeros((sets, 3))}
        with pytest.raises(HostileInput, match=r"geometry\.prototypes"):
            task.vector(drawn(0, 3), {**given_model(task), **broadcast})


def test_generation_follows_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    records, arrays = drawn(12, 5), {DIRECTIONS: directions()}
    first, again, other = (
        generated(monkeypatch, records, {**arrays, SEEDS: np.array(seeds)}, copies=3)[0]
        for seeds in ([5.0, 6.0], [8.0, 6.0], [5.0, 7.0])
    )
    np.testing.assert_array_equal(first, again)
    assert (first[5:] != other[5:]).all()


@pytest.mark.parametrize("seeds", [np.array([0.5, 1]), np.array([-1.0, 1]), np.array([1.0]), np.array([np.nan, 1])])
def test_seeds_are_whole_numbers(seeds: Floats) -> None:
    task = updating()
    with pytest.raises(HostileInput, match="seeds"):
        task.vector(drawn(0, 3), {**given_model(task), SEEDS: seeds})
