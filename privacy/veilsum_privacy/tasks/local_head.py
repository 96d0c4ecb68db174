"""The task "local-head": a softmax head fitted to a site's own records, to be averaged with those of the others once.

Its privacy is output perturbation: the ridge bounds how far one record can move the minimiser, and the noise covers that. The
number of records is not released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.softmax import fit_softmax
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, SiteTask
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters

STOP = 1e-6
"""The solver stops at a gradient of this share of the Lipschitz constant L."""

STEEPEST = 1e6
"""Largest squared norm of (x, b) over the ridge. Far beyond it (at 1e9) records exist on which the solver does not converge,
and a site that gives up tells of them; noise in proportion to it would leave nothing of a head long before."""

_EPSILON = 2.0**-52


class LocalHeadParameters(FeatureParameters):
    """Parameters of :class:`LocalHead`; all public and independent of the data.

    Attributes:
        ridge: Lambda of the objective, against a sum over records: a larger one costs fit and takes less noise.
        bias: value b of the constant feature that the bias belongs to.
        per_record: Lambda is ``ridge`` for each record that counts, as against their mean loss; without noise only, since a
            site's number of records would then be part of what one record changes.
    """

    ridge: Real = Field(gt=0, le=1e9)
    bias: Real = Field(gt=0, le=1e6)
    per_record: bool = False


class LocalHead(SiteTask[LocalHeadParameters]):
    """The minimiser of F(V) = sum_i w_i CE(y_i, softmax(V x~_i)) + Lambda / 2 |V|^2 with x~ = (x, b) and |x|_2 <= C.

    Blocks: ``weights`` (K, d); ``bias`` (K,), the last column of V times b, so that scores are x weights^T + bias. All classes
    take part, also those that the site lacks. A record without a valid class, or one that ``missing`` leaves out, is left out;
    a site without any gives zeros, which is the minimiser. Every w_i is 1 where the unit is the record. Where it is the
    subject, each of its s records that count weighs 1 / s.

    Sensitivity. Let f be what a unit adds to F: one record's loss, or the mean of a subject's. |grad f| <= L with
    L = sqrt(2 (C^2 + b^2)), since the gradient of a record's loss is (p - e_y) x~^T with |p - e_y| <= sqrt 2. Let V minimise F
    and V' minimise F + f. F is Lambda-strongly convex: Lambda |V' - V|^2 <= <grad F(V') - grad F(V), V' - V>, and the
    right-hand side is <-grad f(V'), V' - V> <= L |V' - V|. So |V' - V| <= L / Lambda. The solver stops at a V^ with
    |grad F(V^)| <= gamma, which by the same convexity is within gamma / Lambda of V; both together are
    (L + 2 gamma) / Lambda. A worst case comes as near to L / Lambda as one likes: a record that the others make all but
    certain of a wrong class without holding V in its direction.

    gamma is the 1e-6 L at which the solver is told to stop, and as much again or, if that is more, what rounding can hide in
    a gradient that it computed. F(V^) <= F(0) = sum w_i log K, so |V^| is at most M = sqrt(2 n log K / Lambda). A score is
    then off by (d + 2) eps M X with X^2 = C^2 + b^2, a probability by twice that and (K + 4) eps, and so each of n terms whose
    sum takes n + 2 roundings: n X (2 (d + 2) M X + n + K + 6) eps, and Lambda M eps for the ridge, with n the schema's
    ``max_records``. That covers the order of records as well: it changes nothing but roundings. Of a site with more records it
    proves nothing; measured at 10^6 records, roundings change the gradient by 2e-12 L, far within the 1e-6 L of slack.

    Whether the solver converges must not depend on records, for a site that gives up is seen: see :data:`STEEPEST`.
    """

    name = "local-head"
    Parameters: ClassVar[type[Frozen]] = LocalHeadParameters

    def __init__(self, parameters: LocalHeadParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if len(schema.classes) < 2:
            raise Misuse("The task local-head needs a label with two classes or more.", "Add a [label] table with classes.")
        self._classes = len(schema.classes)
        largest = math.sqrt(parameters.largest_square(schema) + parameters.bias**2)
        self._lipschitz = math.sqrt(2.0) * largest
        self._gamma = STOP * self._lipschitz + max(STOP * self._lipschitz, self._rounding(schema.max_records, largest))
        if self._gamma > 0.01 * self._lipschitz or largest**2 > STEEPEST * parameters.ridge:
            raise Misuse(
                "The task local-head cannot be solved well enough with so small a ridge.",
                "Raise the ridge, or lower the schema's max_records.",
            )

    def _rounding(self, n: int, largest: float) -> float:
        """What rounding can add to the gradient's norm, by the docstring's bound."""
        p, k = self.parameters, self._classes
        size = math.sqrt(2.0 * n * math.log(k) / p.ridge)
        terms = n * largest * (2.0 * (self.dimension + 2) * size * largest + n + k + 6.0)
        return _EPSILON * (terms + p.ridge * size)

    @property
    def gamma(self) -> float:
        """The size of the gradient that the sensitivity allows for."""
        return self._gamma

    def only_without_noise(self) -> str | None:
        return "has a ridge that grows with a site's records" if self.parameters.per_record else None

    def layout(self) -> Layout:
        k, d = self._classes, self.dimension
        return Layout((Block("weights", (k, d)), Block("bias", (k,), 1.0 / self.parameters.bias)))

    def clip(self) -> float:
        return (self._lipschitz + 2.0 * self._gamma) / self.parameters.ridge

    def vector(self, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
        if records.labels is None:
            raise Misuse("The task local-head needs labelled records.")
        every = slice(0, len(records))
        used = usable(self.parameters, records, every, self._classes)
        x = clipped(self.parameters, records, every, used)
        used &= np.isfinite(x).all(axis=1)
        weights = None if records.subjects is None else _by_subject(records.subjects[used])
        p = self.parameters
        fit = fit_softmax(
            x[used],
            records.labels[used],
            weights,
            self._classes,
            p.ridge * max(float(used.sum()), 1.0) if p.per_record else p.ridge,
            bias_scale=p.bias,
            tolerance=STOP * self._lipschitz,
        )
        return np.concatenate([fit.weights.ravel(), fit.bias / p.bias])


def _by_subject(subjects: NDArray[np.int64]) -> Floats:
    """1 / s for each record of a subject with s records among these (n,)."""
    _, place, number = np.unique(subjects, return_inverse=True, return_counts=True)
    weights: Floats = 1.0 / number[place]
    return weights
