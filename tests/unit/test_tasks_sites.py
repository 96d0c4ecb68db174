"""Training of perceptrons without torch, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.networks import scores
from support.studies import complete
from veilsum_aggregation.arrays import Floats
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.mlp import Descent, gradients, layer_shapes, train


def drawn(seed: int, n: int) -> Records:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = np.array([[1.0, 0], [-0.5, 0.8], [-0.5, -0.8]])[y] + 0.6 * rng.normal(size=(n, 2))
    return complete(x, y)


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
