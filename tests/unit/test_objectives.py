"""Objectives of local training: each loss against its text's formula written out, and what leaves the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax, softmax

from support.gradient_sums import engine_sum
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.training.arrays import flatten, load, unflatten
from veilsum_privacy.training.batches import compute_module
from veilsum_privacy.training.descent import Descended
from veilsum_privacy.training.epochs import descend, mean_gradient
from veilsum_privacy.training.mlp import Descent
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture
from veilsum_privacy.training.objectives import OBJECTIVES, ObjectiveSpec, build_objective, resolve_objective
from veilsum_privacy.training.objectives.base import Done, LocalObjective, LocalOutcome, Objective, Received
from veilsum_privacy.training.objectives.sr import SMALLEST_STD, own_normals
from veilsum_privacy.training.per_record import PerRecordGradients
from veilsum_privacy.training.predict import representations, scores

N, D, K, H = 24, 3, 4, 5


def mlp() -> Architecture:
    return build_architecture(ModelSpec(name="mlp", options={"hidden": H, "scale": 1.3}), D, K)


def objective(name: str, architecture: Architecture | None = None, **options: Any) -> Objective[Any]:
    spec = resolve_objective(ObjectiveSpec(name=name, options=options))
    return build_objective(spec, architecture or mlp())


def vector(own: Objective, seed: int, spread: float = 0.3) -> Floats:
    shapes = own.trained().shapes()
    start = flatten(own.trained().initial(seed), shapes)
    return start + spread * np.random.default_rng(seed).normal(size=start.shape)


def data(seed: int = 0, n: int = N) -> tuple[Floats, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), rng.integers(0, K, n)


def losses(own: Objective, local: LocalObjective, theta: Floats, x: Floats, y: np.ndarray) -> Floats:
    assert local.loss is not None
    module = compute_module(own.trained())
    load(module, unflatten(theta, own.trained().shapes()))
    found = local.loss(module, torch.from_numpy(x), torch.from_numpy(y))
    assert found.shape == (len(x),)
    return found.detach().numpy()


def entropies(z: Floats, y: np.ndarray) -> Floats:
    result: Floats = -log_softmax(z, axis=1)[np.arange(len(y)), y]
    return result


def plain_sum(own: Objective, local: LocalObjective, end: Floats, x: Floats, y: np.ndarray) -> Floats:
    """The sum of the objective's rows at a model; zeros where it has none."""
    return np.zeros(own.row_size()) if local.rows is None else local.rows(end)(x, y).sum(axis=0)


def trained(own: Objective, received: Received, descent: Descent, x: Floats, y: np.ndarray) -> tuple[Descended, LocalOutcome]:
    local = own.begin(received)
    gradient = mean_gradient(own.trained(), local)
    found = descend(received.start, x, y, gradient, local, descent, np.random.default_rng(received.seed))
    return found, local.finish(Done(found.end, found.gradient, plain_sum(own, local, found.end, x, y), x, y))


def torch_descent(start: Floats, loss: Callable[[torch.Tensor, np.ndarray], torch.Tensor], descent: Descent, n: int) -> Floats:
    """SGD by torch on a flat model; ``loss`` of the model and the rows of a batch."""
    theta = torch.tensor(start, requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.decay)
    rng = np.random.default_rng(7)
    for _ in range(descent.epochs):
        order = rng.permutation(n)
        for first in range(0, n, descent.batch):
            optimiser.zero_grad()
            loss(theta, order[first : first + descent.batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return theta.detach().numpy()


def mlp_entropy(theta: torch.Tensor, x: Floats, y: np.ndarray) -> torch.Tensor:
    """Mean cross-entropy of :func:`mlp`, written out."""
    w1, b1, w2, b2 = (
        part.reshape(shape)
        for part, shape in zip(theta.split([H * D, H, K * H, K]), ((H, D), (H,), (K, H), (K,)), strict=True)
    )
    hidden = torch.relu(1.3 * torch.from_numpy(x) @ w1.T + b1)
    return torch.nn.functional.cross_entropy(hidden @ w2.T + b2, torch.from_numpy(y))


DESCENT = Descent(epochs=2, batch=7, learning_rate=0.1, momentum=0.5, decay=0.01)


def test_plain_training_is_torchs() -> None:
    own, (x, y) = objective("none"), data()
    found, outcome = trained(own, Received(vector(own, 1), {}, {}, 7), DESCENT, x, y)
    expected = torch_descent(vector(own, 1), lambda theta, rows: mlp_entropy(theta, x[rows], y[rows]), DESCENT, N)
    np.testing.assert_allclose(found.end, expected, rtol=1e-9, atol=1e-11)
    assert found.steps == 2 * 4
    assert not outcome.blocks
    assert not outcome.state


def test_a_network_trains_as_its_closed_form_does() -> None:
    """The way by autograd, which other models take, on a model that has a closed form."""
    own, (x, y) = objective("none"), data()
    shapes = own.architecture.shapes()
    closed = mean_gradient(own.architecture, LocalObjective())(vector(own, 2), x, y)
    by_loss = LocalObjective(loss=lambda module, a, b: torch.nn.functional.cross_entropy(module(a), b, reduction="none"))
    np.testing.assert_allclose(mean_gradient(own.architecture, by_loss)(vector(own, 2), x, y), closed, rtol=1e-9, atol=1e-12)
    assert closed.shape == (sum(int(np.prod(shape)) for shape in shapes.values()),)


def test_prox_is_its_penalty() -> None:
    own, (x, y) = objective("prox", mu=0.7), data()
    start = vector(own, 1)
    found, _ = trained(own, Received(start, {}, {}, 7), DESCENT, x, y)
    given = torch.tensor(start)

    def loss(theta: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        return mlp_entropy(theta, x[rows], y[rows]) + 0.35 * ((theta - given) ** 2).sum()

    np.testing.assert_allclose(found.end, torch_descent(start, loss, DESCENT, N), rtol=1e-9, atol=1e-11)


def test_scaffold_is_option_two() -> None:
    own, (x, y) = objective("scaffold", control_norm=1e6), data()
    rng, start = np.random.default_rng(3), vector(own, 1)
    common, mine = rng.normal(size=(2, own.size)) * 0.1
    plain = Descent(epochs=3, batch=8, learning_rate=0.2)
    received = Received(start, {"scaffold.control": common}, {"control": mine}, 7)
    found, outcome = trained(own, received, plain, x, y)

    def loss(theta: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        return mlp_entropy(theta, x[rows], y[rows]) + theta @ torch.tensor(common - mine)

    np.testing.assert_allclose(found.end, torch_descent(start, loss, plain, N), rtol=1e-9, atol=1e-11)
    option_two = mine - common + (start - found.end) / (found.steps * plain.learning_rate)
    np.testing.assert_allclose(outcome.state["control"], option_two, atol=1e-10)
    np.testing.assert_allclose(outcome.blocks["scaffold.change"], option_two - mine, atol=1e-10)


def test_a_control_variate_keeps_to_its_norm() -> None:
    own, (x, y) = objective("scaffold", control_norm=1e-3), data()
    nothing = {"scaffold.control": np.zeros(own.size)}
    _, outcome = trained(own, Received(vector(own, 1), nothing, {}, 7), DESCENT, x, y)
    assert np.linalg.norm(outcome.state["control"]) <= 1e-3
    np.testing.assert_array_equal(outcome.blocks["scaffold.change"], outcome.state["control"])
    assert np.abs(outcome.blocks["scaffold.change"]).max() <= own.blocks()[0].bound
    with pytest.raises(HostileInput, match=r"scaffold\.control"):
        own.begin(Received(vector(own, 1), {}, {}))


def test_dyn_is_its_regulariser() -> None:
    own, (x, y) = objective("dyn", alpha=0.4), data()
    start = vector(own, 1)
    kept = 0.1 * np.random.default_rng(4).normal(size=own.size)
    found, outcome = trained(own, Received(start, {}, {"gradient": kept}, 7), DESCENT, x, y)

    def loss(theta: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        distance = 0.2 * ((theta - torch.tensor(start)) ** 2).sum()
        return mlp_entropy(theta, x[rows], y[rows]) - theta @ torch.tensor(kept) + distance

    np.testing.assert_allclose(found.end, torch_descent(start, loss, DESCENT, N), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(outcome.state["gradient"], kept - 0.4 * (found.end - start), atol=1e-12)


def test_moon_is_its_contrast() -> None:
    own, (x, y) = objective("moon", mu=2.0, temperature=0.3), data()
    theta, start, previous = (vector(own, seed) for seed in (1, 2, 3))
    got = losses(own, own.begin(Received(start, {}, {"previous": previous})), theta, x, y)
    shapes, architecture = own.architecture.shapes(), own.architecture
    z, near, far = (representations(architecture, unflatten(one, shapes), x) for one in (theta, start, previous))

    def cosine(a: Floats, b: Floats) -> Floats:
        norms = np.maximum(np.linalg.norm(a, axis=1), 1e-8) * np.maximum(np.linalg.norm(b, axis=1), 1e-8)
        result: Floats = (a * b).sum(axis=1) / norms
        return result

    a, b = np.exp(cosine(z, near) / 0.3), np.exp(cosine(z, far) / 0.3)
    expected = entropies(scores(architecture, unflatten(theta, shapes), x), y) - 2.0 * np.log(a / (a + b))
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    first = own.begin(Received(start, {}, {}))
    assert first.loss is None
    end = Done(theta, np.zeros_like(theta), np.zeros(0), x, y)
    np.testing.assert_array_equal(first.finish(end).state["previous"], theta)
    assert own.begin(Received(start, {}, {"previous": previous[:-1]})).loss is None  # of another model


def test_ntd_leaves_the_true_class_out() -> None:
    own, (x, y) = objective("ntd", beta=0.6, temperature=2.0), data()
    theta, start = vector(own, 1), vector(own, 2)
    got = losses(own, own.begin(Received(start, {}, {})), theta, x, y)
    shapes = own.architecture.shapes()
    z, said = (scores(own.architecture, unflatten(one, shapes), x) for one in (theta, start))
    for row in range(N):
        others = [c for c in range(K) if c != y[row]]
        p, q = softmax(said[row, others] / 2.0), softmax(z[row, others] / 2.0)
        expected = entropies(z[row : row + 1], y[row : row + 1])[0] + 0.6 * 4.0 * stats.entropy(p, q)
        assert got[row] == pytest.approx(expected, rel=1e-9)
    two = build_architecture(ModelSpec(name="linear", options={"scale": 1.0, "bias": 1.0}), D, 2)
    with pytest.raises(HostileInput, match="three classes"):
        objective("ntd", two)


def test_proto_draws_to_known_prototypes_and_gives_class_means() -> None:
    own, (x, y) = objective("proto", mu=0.8, radius=1e3), data()
    theta = vector(own, 1)
    prototypes, known = np.random.default_rng(5).normal(size=(K, H)), np.array([1.0, 0, 1, 1])
    given = {"proto.prototypes": prototypes, "proto.known": known}
    local = own.begin(Received(vector(own, 2), given, {}))
    shapes = own.architecture.shapes()
    z = representations(own.architecture, unflatten(theta, shapes), x)
    distance = ((z - prototypes[y]) ** 2).mean(axis=1) * known[y]
    expected = entropies(scores(own.architecture, unflatten(theta, shapes), x), y) + 0.8 * distance
    np.testing.assert_allclose(losses(own, local, theta, x, y), expected, rtol=1e-9)
    outcome = local.finish(Done(theta, np.zeros_like(theta), plain_sum(own, local, theta, x, y), x, y))
    for c in range(K):
        assert outcome.blocks["proto.counts"][c] == pytest.approx((y == c).sum())
        np.testing.assert_allclose(1e3 * outcome.blocks["proto.sums"][c], z[y == c].sum(axis=0), rtol=1e-9, atol=1e-9)
    assert own.begin(Received(theta, {**given, "proto.known": np.zeros(K)}, {})).loss is None


def test_rows_of_prototypes_are_as_long_as_one_at_most() -> None:
    own, (x, y) = objective("proto", radius=0.01), data()
    x = np.concatenate([x, [[1e8, 0, 0], [np.inf, 0, 0]]])
    y = np.concatenate([y, [0, 1]])
    given = {"proto.prototypes": np.zeros((K, H)), "proto.known": np.zeros(K)}
    rows = own.begin(Received(vector(own, 1), given, {})).rows
    assert rows is not None
    seen = rows(vector(own, 1))(x, y)
    norms = np.linalg.norm(seen, axis=1)
    assert norms.max() <= 1.0 + 1e-12
    assert norms.max() == pytest.approx(1.0)
    assert seen.shape == (len(x), own.row_size())


def test_sr_is_its_divergence_for_its_own_draw() -> None:
    own, (x, y) = objective("sr", l2=0.3, cmi=0.2), data()
    theta = vector(own, 1)
    got = losses(own, own.begin(Received(theta, {}, {}, 11)), theta, x, y)
    arrays = unflatten(theta, own.trained().shapes())
    mean = representations(own.architecture, {n: arrays[n] for n in own.architecture.shapes()}, x)
    std = np.logaddexp(0, mean @ arrays["spread.weight"].T + arrays["spread.bias"]) + SMALLEST_STD
    centre = arrays["centres.weight"].T[y]
    width = np.logaddexp(0, arrays["widths.weight"].T[y]) + SMALLEST_STD
    normal = torch.distributions.Normal
    ours, theirs = (normal(torch.tensor(m), torch.tensor(s)) for m, s in ((mean, std), (centre, width)))
    divergence = torch.distributions.kl_divergence(ours, theirs).sum(dim=1).numpy()
    z = mean + std * own_normals(x, arrays["head.weight"], H, 11)
    head = z @ arrays["head.weight"].T + arrays["head.bias"]
    np.testing.assert_allclose(got, entropies(head, y) + 0.3 * (z**2).sum(axis=1) + 0.2 * divergence, rtol=1e-8)


def test_a_draw_is_a_function_of_record_model_and_seed() -> None:
    x, model = np.random.default_rng(0).normal(size=(500, 3)), np.ones((2, 2))
    drawn = own_normals(x, model, 40, 5)
    order = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(own_normals(x[order][:100], model, 40, 5), drawn[order][:100])
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-3
    for other in (own_normals(x, model, 40, 6), own_normals(x, model + 1e-12, 40, 5), own_normals(x + 1e-12, model, 40, 5)):
        assert abs(np.corrcoef(other.ravel(), drawn.ravel())[0, 1]) < 0.03
    assert np.abs(np.corrcoef(drawn.T) - np.eye(40)).max() < 0.25


def test_iir_is_the_distance_of_head_gradients() -> None:
    own, (x, y) = objective("iir", penalty=0.5, gradient_norm=1e3), data()
    theta, shapes = vector(own, 1), own.architecture.shapes()
    mean = 0.1 * np.random.default_rng(2).normal(size=K * H + K)
    local = own.begin(Received(theta, {"iir.gradient": mean, "iir.known": np.ones(1)}, {}))

    def head_gradient(at: Floats) -> Floats:
        arrays = unflatten(at, shapes)
        z = representations(own.architecture, arrays, x)
        error = softmax(scores(own.architecture, arrays, x), axis=1) - np.eye(K)[y]
        return np.concatenate([(error.T @ z / N).ravel(), error.mean(axis=0)])

    def value(at: Floats) -> float:
        entropy = entropies(scores(own.architecture, unflatten(at, shapes), x), y).mean()
        return float(entropy + 0.5 * ((head_gradient(at) - mean) ** 2).sum())

    got = mean_gradient(own.architecture, local)(theta, x, y)
    for place in np.random.default_rng(3).choice(own.size, 20, replace=False):
        step = 1e-6 * (np.arange(own.size) == place)
        assert got[place] == pytest.approx((value(theta + step) - value(theta - step)) / 2e-6, abs=2e-7)
    outcome = local.finish(Done(theta, np.zeros_like(theta), plain_sum(own, local, theta, x, y), x, y))
    np.testing.assert_allclose(outcome.blocks["iir.gradient"], head_gradient(theta), atol=1e-10)
    assert own.begin(Received(theta, {"iir.gradient": mean, "iir.known": np.zeros(1)}, {})).penalty is None
    nobody = Done(theta, np.zeros_like(theta), plain_sum(own, local, theta, x, y), x[:0], y[:0])
    assert not local.finish(nobody).blocks["iir.gradient"].any()


def test_only_what_mixes_records_is_refused_under_noise() -> None:
    assert {name for name in OBJECTIVES if objective(name).only_without_noise() is not None} == {"iir"}


@pytest.mark.parametrize("name", ["moon", "ntd", "proto", "sr"])
def test_losses_by_record_have_clipped_sums(name: str) -> None:
    """The sum of gradients by record is autograd's for the sum of losses; one record moves it by the clip norm at most."""
    own, (x, y) = objective(name), data(1, 10)
    theta = vector(own, 1)
    arrays = {"proto.prototypes": np.ones((K, H)), "proto.known": np.ones(K)}
    local = own.begin(Received(vector(own, 2), arrays, {"previous": vector(own, 3)}, 3))
    loss, module = local.loss, compute_module(own.trained())
    assert loss is not None
    load(module, unflatten(theta, own.trained().shapes()))
    database = PerRecordGradients(module)

    def clipped(x: Floats, y: np.ndarray, clip: float) -> Floats:
        return engine_sum(database, lambda a, b: loss(module, a, b), x, y, clip).total

    np.testing.assert_allclose(clipped(x, y, 1e3), 10 * mean_gradient(own.trained(), local)(theta, x, y), atol=1e-6)
    long = np.concatenate([x, 1e4 * x[:1]])
    change = clipped(long, np.append(y, y[0]), 0.5) - clipped(x, y, 0.5)
    assert np.linalg.norm(change) <= 0.5 + 1e-9
    assert np.linalg.norm(change) > 0.4


def test_names_and_options_are_checked() -> None:
    with pytest.raises(HostileInput, match="Did you mean 'prox'"):
        resolve_objective(ObjectiveSpec(name="proxy"))
    with pytest.raises(HostileInput, match="mu"):
        resolve_objective(ObjectiveSpec(name="prox", options={"my": 1.0}))
    with pytest.raises(HostileInput, match="leaves options open: mu"):
        build_objective(ObjectiveSpec(name="prox"), mlp())
    for name in OBJECTIVES:
        resolved = resolve_objective(ObjectiveSpec(name=name))
        assert resolve_objective(resolved) == resolved
