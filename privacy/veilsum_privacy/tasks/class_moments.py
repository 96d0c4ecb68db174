"""The tasks "class-moments" and "prototypes": class counts and class sums, with or without second moments.

They release nothing of the records they do not use. Linear discriminants are computed from second moments, which are pooled
over the classes unless a study asks for each class's own: that costs no more privacy, but many more values under that noise.
"""

import math
from collections.abc import Mapping
from operator import not_
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, joined, pairs, placed, symbol, where
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import RowTask, Task
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.features import CENTRE, centre_of, second_moment_bound
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters


class ClassMomentsParameters(FeatureParameters):
    """Parameters of :class:`ClassMoments`; all public and independent of the data.

    Attributes:
        centre: whether the broadcast array :data:`~veilsum_privacy.tasks.features.CENTRE` is taken off the features before
            they are clipped; it is stated only where it is.
        second: whose second moments are released: ``pooled`` over the classes, of each ``class``, of each class without
            products (``class-diagonal``), or ``none``.
        count_weight: weight a of the class counts.
        sum_weight: weight b of the class sums.
        square_weight: weight c of the squares x_i^2.
        product_weight: weight e of the products x_i x_j, i < j, each taken sqrt 2 times.
    """

    centre: bool = Field(default=False, exclude_if=not_)  # studies signed before do not state it
    second: Literal["pooled", "class", "class-diagonal", "none"] = "pooled"
    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)
    square_weight: Real = Field(gt=0, le=1e6)
    product_weight: Real = Field(gt=0, le=1e6)

    @property
    def boxed(self) -> bool:
        return self.width is None and not self.centre

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.centre and self.alignment is not None:
            raise ValueError("features are aligned or centred, not both")
        return self


class ClassMoments(RowTask[ClassMomentsParameters]):
    """Per class the count and the sum of x, and the second moments of x, with |x|_2 <= C; x may be of a broadcast centre.

    Blocks: ``counts`` (K,); ``sums`` (K, d); ``squares`` (d,), the sums of x_i^2; ``products`` (d (d - 1) / 2,), the sums of
    x_i x_j for i < j, row by row, absent when d = 1. Second moments of each class have a leading axis (K,). The factor sqrt 2
    of the products is part of their block's weight, so released values are in their own units. A record without a valid
    class, or one that ``missing`` leaves out, contributes zeros.

    Sensitivity. A record touches the count and the sum of one class: a^2 + b^2 |x|^2. Its second moments stand in one place,
    the pooled one or its class's, and add at most what :func:`veilsum_privacy.tasks.features.second_moment_bound` proves.
    All are largest at the largest |x|, at once, so the bound is reached. Where C is large this charges the squares of
    features in [-1, 1]^d about c C instead of c C^2.
    """

    name = "class-moments"

    def __init__(self, parameters: ClassMomentsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if schema.label is None:
            raise Misuse(f"The task {self.name} needs a label in the schema.", "Add a [label] table with classes.")
        self._classes = len(schema.classes)

    def layout(self) -> Layout:
        p, d, k = self.parameters, self.dimension, self._classes
        blocks = [Block("counts", (k,), p.count_weight), Block("sums", (k, d), p.sum_weight)]
        each = () if p.second == "pooled" else (k,)
        if p.second != "none":
            blocks.append(Block("squares", (*each, d), p.square_weight))
        if d > 1 and p.second in ("pooled", "class"):
            blocks.append(Block("products", (*each, d * (d - 1) // 2), math.sqrt(2.0) * p.product_weight))
        return Layout(tuple(blocks))

    def clip(self) -> float:
        p, second = self.parameters, 0.0
        if p.second != "none":
            product = None if p.second == "class-diagonal" else p.product_weight
            second = second_moment_bound(p, self.schema, p.square_weight, product)
        return math.sqrt(p.count_weight**2 + p.sum_weight**2 * p.largest_square(self.schema) + second)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        centre = {CENTRE: np.zeros(self.dimension)} if self.parameters.centre else {}
        return {**super().example_broadcast(sites), **centre}

    def serves(self, reader: Task[Any]) -> bool:
        return self.parameters.second in ("pooled", "class") and not self.parameters.centre

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p, layout = self.parameters, self.layout()
        used = usable(p, record, self._classes)
        x = clipped(p, record, used, centre_of(broadcast, self.dimension) if p.centre else None)
        label = where(used, symbol(-1) if record.label is None else record.label, -1)
        values = {"counts": symbol(1.0), "sums": x, "squares": x * x, "products": pairs(x)}
        parts = []
        for block in layout.blocks:
            value = values[block.name] * block.weight
            of_class = block.name in ("counts", "sums") or p.second != "pooled"
            parts.append(placed(value, label, self._classes) if of_class else value)
        return joined(*parts)


class PrototypesParameters(FeatureParameters):
    """Parameters of :class:`Prototypes`; all public and independent of the data.

    Attributes:
        count_weight: weight a of the class counts.
        sum_weight: weight b of the class sums.
    """

    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)


class Prototypes(ClassMoments):
    """Per class the count and the sum of x, with |x|_2 <= C.

    Blocks: ``counts`` (K,); ``sums`` (K, d).

    Sensitivity. A record touches the count and the sum of one class, so its squared norm is at most a^2 + b^2 R^2 with
    R^2 = min(C^2, d) for the schema's own features and C^2 otherwise; the longest record reaches it.
    """

    name = "prototypes"
    Parameters: ClassVar[type[Frozen]] = PrototypesParameters

    def __init__(self, parameters: PrototypesParameters, schema: DatasetSchema) -> None:
        same = parameters.model_dump()
        super().__init__(ClassMomentsParameters(**same, second="none", square_weight=1.0, product_weight=1.0), schema)
