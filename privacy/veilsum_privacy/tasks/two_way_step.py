"""The task "two-way-step": what a site adds to a round of the two-way reference, from its noised class moments.

It reads no record. A site whose counts are within their noise adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.alignment import CLASS_MEANS, SCALARS, WITHIN, class_statistics, local_step
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import DerivedTask, Floats
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import WidthParameters

ROOM = 4.0
"""How far above the largest number of records degrees of freedom may lie before they are clamped."""

CENTRE = "reference.centre"
"""Broadcast array (m,) that class means, also those of the broadcast, are taken from; the origin where it is absent.

A feature that hardly varies lies far from the origin in whitened space, but near any centre of the records.
"""


class TwoWayStepParameters(WidthParameters):
    """Parameters of :class:`TwoWayStep`.

    Attributes:
        step: ``within``: the degrees of freedom and the within-class covariance times them, whose sums are the pooled one.
            ``effects``: the summands of one round of expectation maximisation.
        width: m, features of the source; None for as many as the schema has.
        bound: for ``within``, the largest absolute value of an entry of a site's covariance; the square of the source's clip
            norm will do. For ``effects``, the largest coordinate in space whitened by the pooled covariance.
        shrinkage: of the site's covariance; ``auto`` is none without noise and fits the noise otherwise.
    """

    step: Literal["within", "effects"]
    bound: Real = Field(gt=0, le=1e12)
    shrinkage: Literal["auto", "oas", "noised", "ridge"] = "auto"


class TwoWayStep(DerivedTask[TwoWayStepParameters]):
    """A site's summands of the two-way reference (:mod:`veilsum_aggregation.two_way`).

    ``within`` has the blocks ``degrees`` (1,) and ``within`` (m, m), the degrees times the within-class covariance.
    ``effects`` has those of :func:`veilsum_aggregation.two_way.two_way_local`: ``weights`` (K,) and ``weighted`` (K, m), both
    times v_e, by which weights are at most 1 and which cancels in the class means; ``shift`` (2,) and ``residual`` (2,). It
    reads the broadcast ``reference.within``, ``reference.scalars``, after the first round ``reference.class_means``, and
    ``reference.centre`` if there is one. The scalars are v_d and v_e (2,), and v_b (3,) where sites have slopes.

    Sensitivity. None: it computes from what the site has released already. Values beyond the ``bound`` are clamped:
    degrees at four times the schema's ``max_records``, for there is noise in them, covariances at the bound times that,
    whitened coordinates at the bound, their squares at its square.
    """

    name = "two-way-step"
    sources = ("class-moments",)
    Parameters: ClassVar[type[Frozen]] = TwoWayStepParameters

    def __init__(self, parameters: TwoWayStepParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if schema.label is None:
            raise Misuse("The task two-way-step needs a label in the schema.", "Add a [label] table with classes.")
        self._classes, self._records = len(schema.classes), schema.max_records

    def layout(self) -> Layout:
        m, k, bound = self.dimension, self._classes, self.parameters.bound
        if self.parameters.step == "within":
            return Layout((Block("degrees", (1,), bound), Block("within", (m, m))))
        return Layout(
            (
                Block("weights", (k,), bound),
                Block("weighted", (k, m)),
                Block("shift", (2,), 1.0 / bound),
                Block("residual", (2,), 1.0 / bound),
            )
        )

    def clip(self) -> float:
        return self.parameters.bound * (ROOM * self._records if self.parameters.step == "within" else 1.0)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        m, k = self.dimension, self._classes
        return {WITHIN: np.eye(m), CLASS_MEANS: np.zeros((k, m)), CENTRE: np.zeros(m), SCALARS: np.ones(2)}

    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        layout = self.layout()
        statistics = class_statistics(kept, noise_std, shrinkage=self.parameters.shrinkage)
        if self.parameters.step == "effects":
            self._check(broadcast)
        if statistics is None:
            return np.zeros(layout.size)
        if self.parameters.step == "within":
            degrees = np.array([statistics.degrees])
            blocks = {"degrees": degrees, "within": degrees * statistics.within}
        else:
            centred = replace(statistics, means=statistics.means - broadcast.get(CENTRE, np.zeros(self.dimension)))
            _, blocks = local_step(centred, broadcast)
            residual = float(broadcast[SCALARS][1])
            blocks |= {name: residual * blocks[name] for name in ("weights", "weighted")}
        return np.concatenate([blocks[block.name].ravel() * block.weight for block in layout.blocks])

    def _check(self, broadcast: Mapping[str, Floats]) -> None:
        m, k = self.dimension, self._classes
        for name, shape in ((WITHIN, (m, m)), (CLASS_MEANS, (k, m)), (CENTRE, (m,))):
            array = broadcast.get(name)
            if array is None and name in (CLASS_MEANS, CENTRE):
                continue
            if array is None or array.shape != shape or not np.isfinite(array).all():
                raise HostileInput(f"The broadcast must hold {name} of shape {shape}, finite.")
        scalars = broadcast.get(SCALARS, np.zeros(0))
        if scalars.shape not in ((2,), (3,)) or not np.isfinite(scalars).all():
            raise HostileInput(f"The broadcast must hold two or three finite numbers as {SCALARS}.")
        positive = bool((scalars[:2] > 0.0).all() and (scalars[2:] >= 0.0).all())
        if not positive or not float(np.trace(broadcast[WITHIN])) > 0.0:
            raise HostileInput("The variances of the broadcast reference must be positive.")
