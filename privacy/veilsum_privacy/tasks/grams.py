"""The task "grams": second moments of what the Linear layers of a broadcast model are given by a site's records.

For each layer the sum over records of u u^T, where u holds the layer's inputs and, last, what its bias is multiplied by. It is
what the fusion of layers by RegMean needs (:mod:`veilsum_aggregation.regmean`). No label is read.
"""

import math
from collections.abc import Mapping, Sequence

from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.fields import Name, Real
from veilsum_privacy.mechanism.factors import Gram, Products
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, every, finite, joined, only, scaled_down, where
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import FactorTask
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.layout import Block, Layout, balanced_weights
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.arrays import from_broadcast, to_broadcast
from veilsum_privacy.training.layer_inputs import opaque_inputs, traced_inputs
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved

LARGEST_VECTOR = 2**20
"""Most values of all layers' Grams together."""

DIAGONAL, PRODUCTS = "diagonal.", "products."
"""Names of a layer's blocks begin with these: (m,) the Gram's diagonal, (m (m - 1) / 2,) what stands above it, row by row."""

SLACK = 2.0 * 2**24 * (unit := (64 + 1024 + 2**14 + 4) * 2.0**-53) / (1.0 - unit)
"""A share of the bound that ``clip()`` is above it; see :data:`.gradient.SLACK`."""


class GramsParameters(FeatureParameters):
    """Parameters of :class:`Grams`; all public and independent of the data.

    Attributes:
        model: whose layers are looked at; every option stated.
        layers: names of Linear layers of it.
        gram_clip: L2 norm C that a record's inputs of a layer, with the constant of the bias, are scaled down to. At 1, which
            they exceed wherever that constant is 1, every record counts alike.
    """

    model: ModelSpec
    layers: tuple[Name, ...] = Field(min_length=1, max_length=256)
    gram_clip: Real = Field(ge=1e-6, le=1e6)


class Grams(FactorTask[GramsParameters]):
    """Sum over records of v v^T for each layer, with v the layer's inputs u scaled down to a norm of C.

    Scaling u and the constant of the bias together leaves the layer's outputs in proportion: a long record counts less in the
    fit that the Grams are for, and is not bent. A record that does not count, by a missing feature or inputs that are not
    finite, adds zero. Blocks: :data:`DIAGONAL` and :data:`PRODUCTS` of each layer. Products have sqrt 2 times the weight of
    squares.

    With weight a of a layer, a record's values are a v_i^2 and sqrt 2 a v_i v_j, i < j, whose squares add up to
    a^2 |v|^4 <= a^2 C^4. All layers together: C^2 sqrt(sum of a^2), reached by a record that is C long or longer in each
    layer. Where the unit is the subject, each subject's sum is pulled in to that norm once more. Weights are those of
    :func:`veilsum_privacy.tasks.layout.balanced_weights`, from the layers' sizes alone.
    """

    name = "grams"
    architecture: Architecture

    def __init__(self, parameters: GramsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        with told_as(Misuse, HostileInput):
            check_resolved(parameters.model)
            self.architecture = build_architecture(parameters.model, self.dimension, max(2, len(schema.classes)))
        self.sizes = checked_sizes(self.architecture, parameters.layers)
        counts = [size * (size + 1) // 2 for size in self.sizes.values()]
        norms = [float(parameters.gram_clip) ** 2] * len(counts)
        self._weights = dict(zip(self.sizes, balanced_weights(norms, counts, [1.0] * len(counts)), strict=True))

    def layout(self) -> Layout:
        blocks: list[Block] = []
        for name, size in self.sizes.items():
            weight = self._weights[name]
            blocks.append(Block(DIAGONAL + name, (size,), weight))
            blocks.append(Block(PRODUCTS + name, (size * (size - 1) // 2,), math.sqrt(2.0) * weight))
        return Layout(tuple(blocks))

    def clip(self) -> float:
        return self._bound() * (1.0 + SLACK)

    def _bound(self) -> float:
        """C^2 sqrt(sum of a^2)."""
        return float(self.parameters.gram_clip) ** 2 * math.sqrt(math.fsum(a * a for a in self._weights.values()))

    def products(self) -> Products:
        return Products(tuple(Gram(size, self._weights[name]) for name, size in self.sizes.items()), self._bound())

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self.architecture.initial(0))

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p = self.parameters
        used = usable(p, record)
        x = clipped(p, record, used)
        used = used & every(finite(x))
        given = traced_inputs(self.architecture, self._arrays(broadcast), where(used, x, 0.0), p.layers)
        return only(joined(*(scaled_down(values, float(p.gram_clip)) for values in given)), used)

    def maps(self, broadcast: Mapping[str, Floats]) -> Mapping[str, OpaqueMap]:
        return opaque_inputs(self.architecture, self._arrays(broadcast), self.parameters.layers)

    def _arrays(self, broadcast: Mapping[str, Floats]) -> dict[str, Floats]:
        return from_broadcast(broadcast, self.architecture.shapes())


def checked_sizes(architecture: Architecture, layers: Sequence[str]) -> dict[str, int]:
    """The rows m of each layer's Gram: its inputs and one.

    Raises:
        Misuse: a layer is none of the model's, or named twice, or all Grams together have more than 2^20 values.
    """
    known, shapes = architecture.linear_layers(), architecture.shapes()
    if odd := [layer for layer in layers if layer not in known]:
        raise Misuse(f"The model {architecture.name!r} has no Linear layer {odd[0]!r}.", f"It has {', '.join(known)}.")
    if len(set(layers)) != len(layers):
        raise Misuse("A layer is named twice.", "Name each layer once.")
    sizes = {layer: shapes[f"{layer}.weight"][1] + 1 for layer in layers}
    if (whole := sum(size * (size + 1) // 2 for size in sizes.values())) > LARGEST_VECTOR:
        widest = max(sizes, key=lambda layer: sizes[layer])
        raise Misuse(
            f"Grams of {', '.join(layers)} have {whole} values, more than {LARGEST_VECTOR}.",
            f"Leave {widest!r} with its {sizes[widest] - 1} inputs out of the layers: it is averaged then.",
        )
    return sizes
