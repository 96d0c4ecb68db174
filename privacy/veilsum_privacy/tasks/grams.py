"""The task "grams": second moments of what the Linear layers of a broadcast model are given by a site's records.

For each layer the sum over records of u u^T, where u holds the layer's inputs and, last, what its bias is multiplied by. It is
what the fusion of layers by RegMean needs (:mod:`veilsum_aggregation.regmean`). No label is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, SiteTask
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.tasks.gradient import LARGEST_SITE
from veilsum_privacy.tasks.layout import Block, Layout, balanced_weights
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.arrays import from_broadcast, to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved

LARGEST_VECTOR = 2**20
"""Most values of all layers' Grams together."""

DIAGONAL, PRODUCTS = "diagonal.", "products."
"""Names of a layer's blocks begin with these: (m,) the Gram's diagonal, (m (m - 1) / 2,) what stands above it, row by row."""

_BATCH, _INNER = 64, 1024  # records of a batch of inputs, and terms of the inner sum

MARGIN = 2.0**-26
"""Norms are clipped to C (1 - margin), so that rounding cannot lift a record's vector above its bound."""


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


class Grams(SiteTask[GramsParameters]):
    """Sum over records of v v^T for each layer, with v the layer's inputs u scaled down to a norm of C.

    Scaling u and the constant of the bias together leaves the layer's outputs in proportion: a long record counts less in the
    fit that the Grams are for, and is not bent. A record that does not count, by a missing feature or inputs that are not
    finite, adds zero. Blocks: :data:`DIAGONAL` and :data:`PRODUCTS` of each layer. Products have sqrt 2 times the weight of
    squares.

    Sensitivity. With weight a of a layer, a record's values are a v_i^2 and sqrt 2 a v_i v_j, i < j, whose squares add up to
    a^2 |v|^4 <= a^2 C^4. All layers together: C^2 sqrt(sum of a^2), reached by a record that is C long or longer in each
    layer. Where the unit is the subject, each subject's sum is scaled down to that norm once more. Weights are those of
    :func:`veilsum_privacy.tasks.layout.balanced_weights`, from the layers' sizes alone.

    A record's u depends on the record and the broadcast alone (:func:`veilsum_privacy.training.layer_inputs.layer_inputs`),
    so v does, and a subject's sum depends on its own records alone. Rounding: a value of the sum is a product, rounded, that
    goes through at most 64 additions in its batch, 1024 in the inner sum and n / 1024 in the outer one, and is multiplied by
    a weight; with k for all of these and t = 2^-53 it is off by at most g = k t / (1 - k t) times the sum of absolute values
    (Higham 2002, section 4.2), so that two neighbouring data sets of n records or fewer come to differ by at most
    C^2 sqrt(sum of a^2) (1 + 2 g n). n is 2^24.
    """

    name = "grams"
    additive = True
    Parameters: ClassVar[type[Frozen]] = GramsParameters

    def __init__(self, parameters: GramsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        try:
            check_resolved(parameters.model)
            self._architecture = build_architecture(parameters.model, self.dimension, max(2, len(schema.classes)))
        except HostileInput as error:
            raise Misuse(error.message, error.advice) from error
        self.sizes = checked_sizes(self._architecture, parameters.layers)
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
        operations = (_BATCH + _INNER + math.ceil(LARGEST_SITE / _INNER) + 4) * 2.0**-53
        return self._bound() * (1.0 + 2.0 * LARGEST_SITE * operations / (1.0 - operations))

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return to_broadcast(self._architecture.initial(0))

    def vector(self, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
        from veilsum_privacy.training.layer_inputs import layer_inputs

        p, every = self.parameters, slice(0, len(records))
        arrays = from_broadcast(broadcast, self._architecture.shapes())
        used = usable(p, records, every)
        x = clipped(p, records, every, used)
        used &= np.isfinite(x).all(axis=1)
        total, subjects = _Sum(self.sizes), records.subjects
        whose: dict[str, Floats] | None = None  # the open subject's sum
        for place, inputs in layer_inputs(self._architecture, arrays, x, p.layers):
            rows = self._bounded(inputs, used[place])
            if subjects is None:
                total.add({name: values.T @ values for name, values in rows.items()})
                continue
            for index in range(place.start, place.stop):  # one by one: a subject's sum depends on its own records alone
                if whose is not None and subjects[index] != subjects[index - 1]:
                    total.add(self._shrunk(whose))
                    whose = None
                one = {
                    name: np.outer(values[index - place.start], values[index - place.start]) for name, values in rows.items()
                }
                whose = one if whose is None else {name: whose[name] + gram for name, gram in one.items()}
        if whose is not None:
            total.add(self._shrunk(whose))
        return self._flat(total.result())

    def _bound(self) -> float:
        """C^2 sqrt(sum of a^2)."""
        return float(self.parameters.gram_clip) ** 2 * math.sqrt(math.fsum(a * a for a in self._weights.values()))

    def _bounded(self, inputs: Mapping[str, Floats], used: NDArray[np.bool_]) -> dict[str, Floats]:
        """Rows (b, m) by layer with a norm of C at most; zeros for a record that does not count."""
        clip = float(self.parameters.gram_clip)
        peaks = {name: np.abs(values).max(axis=1) for name, values in inputs.items()}
        whole = used.copy()
        for peak in peaks.values():
            whole &= np.isfinite(peak)
        found: dict[str, Floats] = {}
        for name, values in inputs.items():
            # Relative to the largest value, so that no square overflows.
            peak = np.where(whole & (peaks[name] > 0.0), peaks[name], 1.0)
            unit = np.where(whole[:, None], values, 0.0) / peak[:, None]
            norm, most = row_norms(unit), clip * (1.0 - MARGIN)
            with np.errstate(over="ignore"):
                factor = np.where(peak * norm > most, most / np.where(norm > 0.0, norm, 1.0), peak)
            found[name] = unit * factor[:, None]
        return found

    def _shrunk(self, sums: dict[str, Floats]) -> dict[str, Floats]:
        """A subject's Grams, scaled down to the bound of one record."""
        norms = [self._weights[name] * float(row_norms(gram.reshape(1, -1))[0]) for name, gram in sums.items()]
        norm, most = math.sqrt(math.fsum(n * n for n in norms)), self._bound() * (1.0 - MARGIN)
        return sums if norm <= most else {name: gram * (most / norm) for name, gram in sums.items()}

    def _flat(self, total: Mapping[str, Floats]) -> Floats:
        parts: list[Floats] = []
        for name, gram in total.items():
            weight = self._weights[name]
            parts += [weight * np.diag(gram), math.sqrt(2.0) * weight * gram[np.triu_indices(len(gram), 1)]]
        return np.concatenate(parts)


class _Sum:
    """Adds up Grams by layer in two steps, so that none goes through many additions."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._outer = {name: np.zeros((size, size)) for name, size in sizes.items()}
        self._inner = {name: np.zeros((size, size)) for name, size in sizes.items()}
        self._terms = 0

    def add(self, grams: Mapping[str, Floats]) -> None:
        """Add one Gram to each layer's sum."""
        for name, gram in grams.items():
            self._inner[name] += gram
        self._terms += 1
        if self._terms == _INNER:
            self._close()

    def result(self) -> dict[str, Floats]:
        """The sums."""
        self._close()
        return self._outer

    def _close(self) -> None:
        for name, inner in self._inner.items():
            self._outer[name] += inner
            inner[:] = 0.0
        self._terms = 0


def checked_sizes(architecture: Architecture, layers: Sequence[str]) -> dict[str, int]:
    """By layer, the rows m of its Gram: its inputs and one.

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
