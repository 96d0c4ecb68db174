"""What comes of a record depends on it alone: on neither its place in a batch nor its company."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from veilsum_node.fields import Frozen
from veilsum_privacy.training.layer_inputs import INPUTS, opaque_inputs
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.models.networks import Network
from veilsum_privacy.training.places import BATCH, records_at_once
from veilsum_privacy.training.predict import representations, scores

WIDTH = 6


class Options(Frozen):
    """None but how far the network goes astray."""

    kind: str


class Placed(nn.Module):
    """A Linear layer whose outputs move by a rounding with the place, or with the company, of a record."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        if self.kind == "place":
            out = out + 1e-12 * torch.arange(len(x), dtype=x.dtype)[:, None]
        if self.kind == "company":
            out = out + 1e-12 * x.mean()
        return out


class Astray(Architecture):
    """Like an installed model whose products depend on more than a record."""

    name = "astray"
    Options: ClassVar[type[Frozen]] = Options
    options: Options

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"features.inner.weight": (5, WIDTH), "features.inner.bias": (5,), "head.weight": (3, 5), "head.bias": (3,)}

    def network(self) -> Network:
        return Network(Placed(self.options.kind), nn.Linear(5, 3))


@pytest.mark.parametrize(("kind", "size"), [("none", BATCH), ("place", 1), ("company", 1)])
def test_records_go_one_by_one_where_their_place_or_company_matters(kind: str, size: int) -> None:
    architecture = Astray(Options(kind=kind), None, WIDTH, 3)
    assert records_at_once(architecture) == size
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape) for name, shape in architecture.shapes().items()}
    x = rng.standard_normal((70, WIDTH))
    order = rng.permutation(70)
    for found in (scores, representations):
        whole = found(architecture, arrays, x)
        np.testing.assert_array_equal(found(architecture, arrays, x[order]), whole[order])
        np.testing.assert_array_equal(found(architecture, arrays, x[:1]), whole[:1])
    inputs = opaque_inputs(architecture, arrays, ["head"])[INPUTS]
    given = {name: inputs(rows) for name, rows in (("all", x), ("turned", x[order]), ("one", x[3:4]))}
    np.testing.assert_array_equal(given["turned"], given["all"][order])
    np.testing.assert_array_equal(given["one"], given["all"][3:4])


@pytest.mark.parametrize(
    ("name", "inputs", "options"),
    [("lenet5", (1, 16, 16), {}), ("vgg11", (1, 8, 8), {"width": 0.0625, "groups": 2, "hidden": 8})],
)
def test_the_networks_own_are_independent_here_or_go_one_by_one(
    name: str, inputs: tuple[int, ...], options: dict[str, Any]
) -> None:
    width = int(np.prod(inputs))
    architecture = build_architecture(resolve_model(ModelSpec(name=name, inputs=inputs, options=options)), width, 3)
    assert records_at_once(architecture) in (1, BATCH)
    rng = np.random.default_rng(2)
    arrays = {name: 0.1 * rng.standard_normal(shape) for name, shape in architecture.shapes().items()}
    x = rng.standard_normal((9, width))
    np.testing.assert_array_equal(scores(architecture, arrays, x)[::-1], scores(architecture, arrays, x[::-1]))
