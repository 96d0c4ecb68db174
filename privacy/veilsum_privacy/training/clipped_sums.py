"""Sums of clipped per-record gradients, and a proven bound on what one unit of privacy changes in them.

A batch of gradients comes as parts, one or more for the whole model: rows that hold each record's gradient, or, for a Linear
layer, the two factors whose outer product it is. Factors are enough for norms and sums ("ghost clipping"), so that the
gradients themselves are never formed. Everything here is float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_privacy.mechanism.clipping import row_norms

Mask = NDArray[np.bool_]

MARGIN = 2.0**-26
"""Norms are clipped to C (1 - margin). A computed norm of at most 2^26 values is off by less than half of that, whatever the
order of its sum, so that the true norm stays below C."""

_INNER = 256  # terms that are added up before they go to the outer sum
_SMALLEST, _LARGEST = 1e-100, 1e100
_LARGEST_FACTOR = 2.0**500


class ClippedSum(NamedTuple):
    """A sum of clipped gradients; the counts stay at the site.

    Attributes:
        total: (P,) in the order of the model's shapes.
        clipped: records, and sums of a subject's records, that were scaled down.
        invalid: records that contributed zero, because they or their gradients were not finite, or their label is none.
    """

    total: Floats
    clipped: int
    invalid: int


class Rows(NamedTuple):
    """Gradients by one array: ``values`` (b, size), float32 or float64.

    They are the bulk of a network's gradients, so they are widened to float64 row by row, within a cache.
    """

    name: str
    values: NDArray[np.floating]

    def squares(self) -> Floats:
        """Squared norm of each record's part; not finite if a value is not."""
        found, row = np.empty(len(self.values)), np.empty(self.values.shape[1])
        for i, values in enumerate(self.values):
            np.copyto(row, values)
            found[i] = np.einsum("i,i", row, row)
        return found

    def weighted(self, weights: Floats) -> dict[str, Floats]:
        """Weighted sum over the records, by array."""
        found, row = np.zeros(self.values.shape[1]), np.empty(self.values.shape[1])
        for weight, values in zip(weights, self.values, strict=True):
            np.copyto(row, values)
            row *= weight
            found += row
        return {self.name: found}

    def each(self) -> dict[str, Floats]:
        """Every record's gradient (b, size), by array."""
        return {self.name: self.values.astype(np.float64)}

    def without(self, invalid: Mask) -> Rows:
        """Zeros for these records."""
        return self._replace(values=np.where(invalid[:, None], 0.0, self.values))


class Factors(NamedTuple):
    """Gradients of a Linear layer: delta a^T by ``weight``, and constant * delta by ``bias`` where it has one.

    Attributes:
        delta: (b, outputs), gradient by the layer's outputs.
        entering: (b, inputs), what the layer was given.
    """

    weight: str
    bias: str | None
    constant: float
    delta: Floats
    entering: Floats

    def squares(self) -> Floats:
        # The norms are multiplied before they are squared: the square of a factor may vanish while the other is huge.
        constant = self.constant if self.bias is not None else 0.0
        norms = _long_norms(self.delta) * np.hypot(_long_norms(self.entering), constant)
        squares: Floats = norms**2
        return squares

    def weighted(self, weights: Floats) -> dict[str, Floats]:
        delta = weights[:, None] * self.delta
        found = {self.weight: (delta.T @ self.entering).ravel()}
        if self.bias is not None:
            found[self.bias] = self.constant * delta.sum(axis=0)
        return found

    def each(self) -> dict[str, Floats]:
        found = {self.weight: (self.delta[:, :, None] * self.entering[:, None, :]).reshape(len(self.delta), -1)}
        if self.bias is not None:
            found[self.bias] = self.constant * self.delta
        return found

    def without(self, invalid: Mask) -> Factors:
        kept = ~invalid[:, None]
        return self._replace(delta=np.where(kept, self.delta, 0.0), entering=np.where(kept, self.entering, 0.0))


Part = Rows | Factors


class ClippedGradients:
    """Takes batches of per-record gradients in the order of the records; sums them, each clipped to a norm of C.

    Sensitivity. Let v_i be what record i adds: its gradient g_i times min(1, C (1 - margin) / |g_i|), times its weight of at
    most 1, or zero if it is invalid. The caller sees to it that g_i and the weight are functions of record i and public
    values, to the last bit. So |v_i| <= C, and without rounding one record would change the sum by C at most. With subjects,
    v_s is made of the v_i of the subject's records, added in their order, and clipped to C once more; it depends on the
    records of s alone, and the same holds.

    Rounding: :func:`relative_slack`.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], clip: float, groups: Integers | None = None) -> None:
        if not _SMALLEST <= clip <= _LARGEST:
            raise Misuse("The clipping norm must lie between 1e-100 and 1e100.")
        if groups is not None and (groups.ndim != 1 or (groups[1:] < groups[:-1]).any()):
            raise Misuse("The records of one subject must stand together, in ascending order of subjects.")
        self._sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self._clip = clip
        self._groups = groups
        self._outer = np.zeros(sum(self._sizes.values()))
        self._inner = np.zeros_like(self._outer)
        self._terms = 0
        self._records = 0
        self._open: Floats | None = None
        self._clipped = self._invalid = 0

    def add(self, parts: Sequence[Part], usable: Mask, weights: Floats | None = None) -> None:
        """Add a batch.

        Args:
            parts: each of b records; together they give every array of the model at most once. One that is left out has no
                gradient.
            usable: (b,) False where a record is invalid whatever its gradient is.
            weights: (b,) in [0, 1] of the records, after their gradients are clipped; 1 if None.

        Raises:
            Misuse: a weight is not in [0, 1].
        """
        if weights is not None and not ((weights >= 0.0) & (weights <= 1.0)).all():
            raise Misuse("Weights of records lie between 0 and 1.")
        with np.errstate(over="ignore", invalid="ignore"):
            squares = sum((part.squares() for part in parts), start=np.zeros(len(usable)))
            usable = usable & np.isfinite(squares)
        if not usable.all():
            parts = [part.without(~usable) for part in parts]
            squares = np.where(usable, squares, 0.0)
        factors, clipped = clip_weights(np.sqrt(squares), self._clip)
        if weights is not None:
            factors = factors * weights
        self._invalid += int((~usable).sum())
        self._clipped += int(clipped.sum())
        if self._groups is None:
            self._append(self._flat([part.weighted(factors) for part in parts], 1)[0])
        else:
            self._by_subject(self._flat([part.each() for part in parts], len(factors)) * factors[:, None])
        self._records += len(factors)

    def result(self) -> ClippedSum:
        """The sum of everything added; nothing may be added afterwards.

        Raises:
            Misuse: subjects were given for another number of records.
        """
        if self._groups is not None and len(self._groups) != self._records:
            raise Misuse("Subjects were given for a different number of records.")
        self._close()
        return ClippedSum(self._outer + self._inner, self._clipped, self._invalid)

    def _by_subject(self, rows: Floats) -> None:
        """Add rows (b, P) to their subjects' sums, one after the other."""
        groups = self._groups
        if groups is None or self._records + len(rows) > len(groups):
            raise Misuse("There are more records than subjects were given for.")
        for place, row in enumerate(rows, self._records):
            if place and groups[place] != groups[place - 1]:
                self._close()
            self._open = row.copy() if self._open is None else self._open + row

    def _close(self) -> None:
        """Bound the open subject's sum and add it."""
        if self._open is None:
            return
        weights, clipped = clip_weights(row_norms(self._open[None]), self._clip)
        self._clipped += int(clipped.sum())
        self._append(self._open * weights[0])
        self._open = None

    def _append(self, vector: Floats) -> None:
        self._inner += vector
        self._terms += 1
        if self._terms == _INNER:
            self._outer += self._inner
            self._inner[:] = 0.0
            self._terms = 0

    def _flat(self, found: Sequence[Mapping[str, Floats]], rows: int) -> Floats:
        """Values by array as (rows, P), zeros where an array has none."""
        by_name = {name: values for one in found for name, values in one.items()}
        parts = [by_name.get(name, np.zeros((rows, size))).reshape(rows, size) for name, size in self._sizes.items()]
        return np.concatenate(parts, axis=1)


def relative_slack(records: int, batch: int) -> float:
    """What rounding adds to the sensitivity C of :class:`ClippedGradients`, as a share of C.

    A term of the sum is rounded when it is weighted (up to three times, as a product of two factors and a constant), and in
    every addition that it goes through: at most ``batch`` in its batch, 256 in the inner sum, n / 256 in the outer one, and 1
    at the end, whatever the order within a batch. With k for all of these and u = 2^-53, the computed sum of v_1 ... v_n
    differs from the true one, in each value, by at most g = k u / (1 - k u) times the sum of absolute values (Higham 2002,
    section 4.2); in norm, by g n C. Two neighbouring data sets both carry such an error:

        |computed(D) - computed(D')| <= C + 2 g n C.

    With subjects, n counts subjects, of which there are no more than records.

    Args:
        records: most records of a sum, public.
        batch: most records whose gradients are added at once.
    """
    if records < 0 or batch < 1:
        raise Misuse("A bound on rounding needs a number of records and a batch.")
    operations = 3 + batch + _INNER + math.ceil(records / _INNER) + 1
    rounding = operations * 2.0**-53
    return 2.0 * records * rounding / (1.0 - rounding)


def _long_norms(rows: Floats) -> Floats:
    """L2 norm of each row, however short; not finite for values beyond 2^500, where a product with what underflowed would
    no longer be small beside C."""
    peak = np.abs(rows).max(axis=1, initial=0.0)
    norms = peak * row_norms(rows / np.where(peak > 0.0, peak, 1.0)[:, None])
    return np.where(peak <= _LARGEST_FACTOR, norms, np.nan)


def clip_weights(norms: Floats, clip: float) -> tuple[Floats, Mask]:
    """What (b,) vectors of these norms are multiplied by, and which of them were longer than C."""
    bound = clip * (1.0 - MARGIN)
    long = norms > bound
    weights = np.where(long, bound / np.where(long, norms, 1.0), 1.0)
    weights[weights * norms > clip] = 0.0  # checked again: nothing leaves that is longer
    return weights, norms > clip
