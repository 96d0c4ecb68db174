"""The task "barycenter-step": one step of the Bures-Wasserstein barycenter as a sum over sites, from noised Gaussian proxies.

It reads no record. A site whose count is within its noise adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.alignment import site_gaussian
from veilsum_aggregation.gaussian import barycenter_term, factor
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import DerivedTask, Floats
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import WidthParameters

FACTOR = "barycenter.factor"
"""Broadcast array Q (m, m) of the last step; absent in the first, which starts from the identity."""

TOTAL = "reference.count"
"""Broadcast array (1,) of the released number of records of all sites; not read where sites weigh alike."""


class BarycenterStepParameters(WidthParameters):
    """Parameters of :class:`BarycenterStep`.

    Attributes:
        width: m, features of the source; None for as many as the schema has.
        bound: largest absolute value of an entry of a site's term; the source's clip norm will do.
        shrinkage: of the site's covariance; ``auto`` is OAS without noise and fits the noise otherwise.
        weights: of the sites: by their noised ``counts`` over the released total, or ``equal``.
    """

    bound: Real = Field(gt=0, le=1e9)
    shrinkage: Literal["auto", "oas", "noised", "ridge"] = "auto"
    weights: Literal["counts", "equal"] = "counts"


class BarycenterStep(DerivedTask[BarycenterStepParameters]):
    """What a site adds to the next factor Q of the barycenter's covariance Q^T Q: w_k polar(Q L_k) L_k^T, S_k = L_k L_k^T.

    Blocks: ``term`` (m, m), whose sum over the sum of ``weight`` (1,) is the next factor. S_k is the site's noised covariance,
    projected and shrunk. w_k is its noised count over the released total, cut to [0, 1], or 1.

    Sensitivity. None: it computes from what the site has released already. The entries of a term are at most the root of the
    largest eigenvalue of S_k, which is at most the clip norm but for noise; beyond ``bound`` they are clamped. The weight is
    carried at ``bound`` a unit.
    """

    name = "barycenter-step"
    sources = ("gaussian-moments", "class-moments")
    Parameters: ClassVar[type[Frozen]] = BarycenterStepParameters

    def __init__(self, parameters: BarycenterStepParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)

    def layout(self) -> Layout:
        m = self.dimension
        return Layout((Block("term", (m, m)), Block("weight", (1,), self.parameters.bound)))

    def clip(self) -> float:
        return self.parameters.bound

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {FACTOR: np.eye(self.dimension), TOTAL: np.ones(1)}

    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        m, p = self.dimension, self.parameters
        q = broadcast.get(FACTOR, np.eye(m))
        if q.shape != (m, m) or not np.isfinite(q).all():
            raise HostileInput(f"The broadcast's {FACTOR} must be finite and of shape {(m, m)}.")
        total = np.ones(1) if p.weights == "equal" else broadcast.get(TOTAL)
        if total is None or total.shape != (1,) or not (np.isfinite(total).all() and float(total[0]) > 0.0):
            raise HostileInput(f"The broadcast must hold {TOTAL} of shape (1,), positive.")
        found = site_gaussian(kept, noise_std, shrinkage=p.shrinkage)
        if found is None:
            return np.zeros(m * m + 1)
        number, proxy = found
        weight = 1.0 if p.weights == "equal" else min(number / float(total[0]), 1.0)
        term = barycenter_term(q, factor(proxy.covariance), weight)
        return np.append(term.ravel(), weight * p.bound)
