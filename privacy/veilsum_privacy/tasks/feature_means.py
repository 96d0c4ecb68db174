"""The task "feature-means": how many records there are, by class if asked for, and the sum of their features."""

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined, placed, real, where
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters


class FeatureMeansParameters(FeatureParameters):
    """Parameters of :class:`FeatureMeans`; all public and independent of the data.

    Attributes:
        count_weight: weight a of the count.
        sum_weight: weight b of the sum.
        classes: whether records are counted by class; one without a class does not count.
    """

    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)
    classes: bool = Field(default=False, exclude_if=lambda asked: not asked)  # studies signed before do not state it


class FeatureMeans(RowTask[FeatureMeansParameters]):
    """The count and the sum of x over all records, with |x|_2 <= C.

    Blocks: ``count`` (1,), or (K,) by class, and ``sum`` (d,). A record that ``missing`` leaves out contributes zeros.

    Sensitivity: a record counts once, in one class, so it adds a^2 + b^2 |x|^2 to its squared norm, which is largest, and
    reached, at the largest |x|: sqrt(a^2 + b^2 R^2) with R^2 = min(C^2, d) for the schema's own features and C^2 otherwise.
    """

    name = "feature-means"

    def __init__(self, parameters: FeatureMeansParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if parameters.classes and len(schema.classes) < 2:
            advice = "Add a [label] table with classes."
            raise Misuse("The task feature-means counts by class only where there is a label.", advice)
        self._classes = len(schema.classes) if parameters.classes else None

    def layout(self) -> Layout:
        p = self.parameters
        return Layout((Block("count", (self._classes or 1,), p.count_weight), Block("sum", (self.dimension,), p.sum_weight)))

    def clip(self) -> float:
        p = self.parameters
        return math.sqrt(p.count_weight**2 + p.sum_weight**2 * p.largest_square(self.schema))

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p, used = self.parameters, usable(self.parameters, record, self._classes)
        counted = p.count_weight * real(used)
        if self._classes is not None and record.label is not None:
            counted = placed(p.count_weight, where(used, record.label, -1), self._classes)
        return joined(counted, clipped(p, record, used) * p.sum_weight)


def released_mean(counts: Floats, sums: Floats, noise: float, bound: float) -> Floats:
    """The noised mean (d,), within the bounds of what it is of.

    Args:
        counts: (1,) or (K,) of records, released.
        sums: (d,) of their features.
        noise: standard deviation of each count.
        bound: of a feature.
    """
    count = max(float(counts.sum()), noise * math.sqrt(len(counts)), 1e-9)
    centre: Floats = np.clip(sums / count, -bound, bound)
    return centre
