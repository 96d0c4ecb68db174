"""The task "gaussian-moments": count, sum and second moments of all records pooled, from which a Gaussian proxy is computed.

No label is read. Principal components, barycenters and alignment maps are made of what it releases.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined, pairs, real, square, total
from veilsum_privacy.tasks.base import RowTask, Task
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.features import second_moment_bound
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters


class GaussianMomentsParameters(FeatureParameters):
    """Parameters of :class:`GaussianMoments`; all public and independent of the data.

    Attributes:
        count_weight: weight a of the count.
        sum_weight: weight b of the sum.
        square_weight: weight c of the squares x_i^2.
        product_weight: weight e of the products x_i x_j, i < j, each taken sqrt 2 times.
        fourth: also the sums of |x|^2 x and |x|^4, which Ledoit-Wolf shrinkage needs; without noise only.
    """

    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)
    square_weight: Real = Field(gt=0, le=1e6)
    product_weight: Real = Field(gt=0, le=1e6)
    fourth: bool = False


class GaussianMoments(RowTask[GaussianMomentsParameters]):
    """The count, the sum and the second moments of x over all records, with |x|_2 <= C.

    Blocks: ``count`` (1,); ``sum`` (d,); ``squares`` (d,), the sums of x_i^2; ``products`` (d (d - 1) / 2,), the sums of
    x_i x_j for i < j, row by row, absent when d = 1; with ``fourth`` also ``cubic`` (d,) and ``quartic`` (1,), the sums of
    |x|^2 x and |x|^4. A record that ``missing`` leaves out contributes zeros.

    Sensitivity. A record adds a^2 + b^2 |x|^2, and its second moments at most what
    :func:`veilsum_privacy.tasks.features.second_moment_bound` proves; all are largest at the largest |x|, R, at once, so the
    bound is reached. Fourth moments would add R^6 + R^8; they are refused in a study with noise.
    """

    name = "gaussian-moments"

    def layout(self) -> Layout:
        p, d = self.parameters, self.dimension
        blocks = [
            Block("count", (1,), p.count_weight),
            Block("sum", (d,), p.sum_weight),
            Block("squares", (d,), p.square_weight),
        ]
        if d > 1:
            blocks.append(Block("products", (d * (d - 1) // 2,), math.sqrt(2.0) * p.product_weight))
        if p.fourth:
            blocks += [Block("cubic", (d,)), Block("quartic", (1,))]
        return Layout(tuple(blocks))

    def clip(self) -> float:
        p = self.parameters
        r2 = p.largest_square(self.schema)
        second = second_moment_bound(p, self.schema, p.square_weight, p.product_weight)
        fourth = r2**3 + r2**4 if p.fourth else 0.0
        return math.sqrt(p.count_weight**2 + p.sum_weight**2 * r2 + second + fourth)

    def only_without_noise(self) -> str | None:
        return "releases fourth moments, for Ledoit-Wolf shrinkage" if self.parameters.fourth else None

    def serves(self, reader: Task[Any]) -> bool:
        return True

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        used = usable(self.parameters, record)
        x = clipped(self.parameters, record, used)
        blocks = {"count": real(used), "sum": x, "squares": x * x, "products": pairs(x)}
        if self.parameters.fourth:
            squared = total(square(x))
            blocks |= {"cubic": squared * x, "quartic": squared * squared}
        return joined(*(blocks[block.name] * block.weight for block in self.layout().blocks))
