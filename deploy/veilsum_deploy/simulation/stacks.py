"""Perceptrons of many sites at once: a model for each, and the gradient of each on records of its own.

Sites have different numbers of records, so rows that are missing are filled up and weigh nothing. Products are made site by
site by one call of the linear algebra library, in floating point: results are those of
:mod:`veilsum_privacy.training.descent` up to rounding, not to the bit, and no bound on what a record changes holds to the bit
either. They are for simulation only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.training.clipped_sums import MARGIN
from veilsum_privacy.training.models.perceptrons import Layer, Perceptron

Mask = NDArray[np.bool_]


class Batches(NamedTuple):
    """One batch of each of g sites, filled up to r rows.

    Attributes:
        x: (g, r, width), finite.
        labels: (g, r) from 0 to K - 1.
        present: (g, r), False for a row that fills up.
    """

    x: Floats
    labels: Integers
    present: Mask


class _Factor(NamedTuple):
    """A layer's gradient of every record: delta (g, r, outputs) times what entered (g, r, inputs)."""

    layer: Layer
    delta: Floats
    entering: Floats


class PerceptronStack:
    """One perceptron for each of g sites, as rows of an array (g, P) in the order of the model's shapes."""

    def __init__(self, architecture: Perceptron) -> None:
        self.size = architecture.size
        self._layers, self._scale = architecture.layers(), architecture.scale
        self._places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        place = 0
        for name, shape in architecture.shapes().items():
            self._places[name] = slice(place, place + math.prod(shape)), shape
            place += math.prod(shape)

    def mean_gradients(self, models: Floats, batches: Batches) -> Floats:
        """Gradients (g, P) of the mean cross-entropy of each site's batch, which has a record or more."""
        counts = batches.present.sum(axis=1)
        return self._sums(self._factors(models, batches), batches.present / counts[:, None])

    def clipped_sums(self, models: Floats, batches: Batches, clip: float) -> Floats:
        """Sums (g, P) over each site's batch of its records' gradients, each clipped to an L2 norm of ``clip``.

        A record whose gradient is not finite adds zero.
        """
        factors, bound = self._factors(models, batches), clip * (1.0 - MARGIN)
        squares = np.zeros(batches.labels.shape)
        for layer, delta, entering in factors:
            squares += _squares(delta) * (_squares(entering) + layer.constant**2)
        norms = np.sqrt(squares)
        usable = batches.present & np.isfinite(norms)
        if not (usable | ~batches.present).all():
            kept = usable[:, :, None]
            factors = [_Factor(one.layer, *(np.where(kept, part, 0.0) for part in one[1:])) for one in factors]
        long = usable & (norms > bound)
        weights = np.where(long, bound / np.where(long, norms, 1.0), usable)
        return self._sums(factors, weights)

    def _array(self, models: Floats, name: str) -> Floats:
        """An array of every model (g, *shape), as a view."""
        place, shape = self._places[name]
        return models[:, place].reshape(len(models), *shape)

    def _factors(self, models: Floats, batches: Batches) -> list[_Factor]:
        inputs: list[Floats] = []
        entering = batches.x if self._scale == 1.0 else batches.x * self._scale
        z = entering
        for index, layer in enumerate(self._layers):
            entering = np.maximum(z, 0.0) if index else entering
            inputs.append(entering)
            z = entering @ self._array(models, layer.weight).transpose(0, 2, 1)
            z += (layer.constant * self._array(models, layer.bias))[:, None, :]
        z -= z.max(axis=2, keepdims=True)
        delta = np.exp(z, out=z)
        delta /= delta.sum(axis=2, keepdims=True)
        rows = delta.reshape(-1, delta.shape[2])
        rows[np.arange(len(rows)), batches.labels.ravel()] -= 1.0
        found: list[_Factor] = []
        for index in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[index]
            found.append(_Factor(layer, delta, inputs[index]))
            if index:
                delta = delta @ self._array(models, layer.weight)
                delta *= inputs[index] > 0.0
        return found

    def _sums(self, factors: list[_Factor], weights: Floats) -> Floats:
        """Weighted sums (g, P) of the records' gradients; weights (g, r)."""
        found = np.empty((len(weights), self.size))
        for layer, delta, entering in factors:
            weighted = delta * weights[:, :, None]
            self._array(found, layer.weight)[:] = weighted.transpose(0, 2, 1) @ entering
            self._array(found, layer.bias)[:] = layer.constant * weighted.sum(axis=1)
        return found


def _squares(rows: Floats) -> Floats:
    """Squared norms (g, r) of rows (g, r, n)."""
    found: Floats = np.einsum("grn,grn->gr", rows, rows)
    return found
