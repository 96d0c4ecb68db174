"""The task "class-moments": class counts, class sums and pooled second moments, from which linear discriminants are computed.

It releases second moments pooled over the classes only, and nothing of the records it does not use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from veilsum_privacy.clipping import row_norms
from veilsum_privacy.errors import Misuse
from veilsum_privacy.schema import DatasetSchema, Frozen, Real
from veilsum_privacy.tasks.base import Block, Floats, Layout, Records, Task, batches


class ClassMomentsParameters(Frozen):
    """Parameters of :class:`ClassMoments`; all public and independent of the data.

    Attributes:
        clip: L2 norm C that a record's features are scaled down to if they exceed it.
        missing: ``skip`` leaves a record with an absent feature out; ``centre`` takes an absent feature as 0, the middle of
            its bounds.
        count_weight: weight a of the class counts.
        sum_weight: weight b of the class sums.
        square_weight: weight c of the squares x_i^2.
        product_weight: weight e of the products x_i x_j, i < j, each taken sqrt 2 times.
    """

    clip: Real = Field(gt=0, le=1e6)
    missing: Literal["skip", "centre"]
    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)
    square_weight: Real = Field(gt=0, le=1e6)
    product_weight: Real = Field(gt=0, le=1e6)


class ClassMoments(Task):
    """Per class the count and the sum of x, and over all classes the second moments of x, with |x|_2 <= C.

    Blocks: ``counts`` (K,); ``sums`` (K, d); ``squares`` (d,), the sums of x_i^2; ``products`` (d (d - 1) / 2,), the sums of
    x_i x_j for i < j, row by row, absent when d = 1. The factor sqrt 2 of the products is part of their block's weight, so
    released values are in their own units. A record without a valid class, or one that ``missing`` leaves out, contributes
    zeros.

    Sensitivity. A record touches the count and the sum of one class: a^2 + b^2 |x|^2. Its second moments give
    c^2 Q + 2 e^2 sum_{i<j} x_i^2 x_j^2 = c^2 Q + e^2 (|x|^4 - Q) with Q = sum x_i^4. Let R^2 = min(C^2, d), the largest
    |x|^2 in [-1, 1]^d. For fixed |x| = r, Q is at most q(r), reached with as many coordinates at a bound as fit
    (floor(r^2) of them, the rest in one more: Q is convex in the x_i^2), and at least r^4 / d, reached when all are equal.
    If c >= e the bound e^2 r^4 + (c^2 - e^2) q(r) rises with r, otherwise c^2 r^4 / d + e^2 (r^4 - r^4 / d) does, so both
    are largest at r = R; the bound is reached in either case. Where C is large this charges the squares about c C instead
    of c C^2.
    """

    name = "class-moments"
    Parameters: ClassVar[type[Frozen]] = ClassMomentsParameters

    def __init__(self, parameters: Frozen, schema: DatasetSchema) -> None:
        if not isinstance(parameters, ClassMomentsParameters):
            raise Misuse("The task class-moments takes its own parameters.")
        if schema.label is None:
            raise Misuse("The task class-moments needs a label in the schema.", "Add a [label] table with classes.")
        self.parameters = parameters
        self._classes = len(schema.classes)
        self._width = schema.width

    def layout(self) -> Layout:
        p, d = self.parameters, self._width
        blocks = [
            Block("counts", (self._classes,), p.count_weight),
            Block("sums", (self._classes, d), p.sum_weight),
            Block("squares", (d,), p.square_weight),
        ]
        if d > 1:
            blocks.append(Block("products", (d * (d - 1) // 2,), math.sqrt(2.0) * p.product_weight))
        return Layout(tuple(blocks))

    def clip(self) -> float:
        p = self.parameters
        r2 = min(p.clip**2, float(self._width))
        most = math.floor(r2) + (r2 - math.floor(r2)) ** 2
        q = most if p.square_weight >= p.product_weight else r2 * r2 / self._width
        second = p.square_weight**2 * q + p.product_weight**2 * (r2 * r2 - q)
        return math.sqrt(p.count_weight**2 + p.sum_weight**2 * r2 + second)

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        if records.labels is None:
            raise Misuse("The task class-moments needs labelled records.")
        layout = self.layout()
        upper = np.triu_indices(self._width, 1)
        for part in batches(len(records), layout.size):
            label, present = records.labels[part], records.present[part]
            used = (label >= 0) & (label < self._classes)
            if self.parameters.missing == "skip":
                used &= present.all(axis=1)
            x = np.where(present & used[:, None], np.clip(records.features[part], -1.0, 1.0), 0.0)
            x *= (self.parameters.clip / np.maximum(row_norms(x), self.parameters.clip))[:, None]
            member = (label[:, None] == np.arange(self._classes)) & used[:, None]
            blocks = {
                "counts": member.astype(np.float64),
                "sums": (member[:, :, None] * x[:, None, :]).reshape(len(x), -1),
                "squares": x * x,
                "products": x[:, upper[0]] * x[:, upper[1]],
            }
            yield np.hstack([blocks[block.name] * block.weight for block in layout.blocks])
