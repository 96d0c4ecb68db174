"""The task "class-moments": class counts, class sums and second moments, from which linear discriminants are computed.

It releases nothing of the records it does not use. Second moments are pooled over the classes unless a study asks for each
class's own, which costs no more privacy but many more values under the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Piece, Records, RecordTask, Task, batches
from veilsum_privacy.tasks.features import CENTRE, centre_of, clipped, products, second_moment_bound, usable, weighted
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

    centre: bool = False
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

    @model_serializer(mode="wrap")
    def _stated(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """In the form that it always had where nothing is centred."""
        return {name: value for name, value in dump(self).items() if name != "centre" or value}


class ClassMoments(RecordTask[ClassMomentsParameters]):
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
    Parameters: ClassVar[type[Frozen]] = ClassMomentsParameters

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

    def pieces(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Piece] | None:
        if self.parameters.second == "pooled" or records.labels is None:
            return None
        return self._by_class(records, records.labels, self._centre(broadcast))

    def _centre(self, broadcast: Mapping[str, Floats]) -> Floats | None:
        return centre_of(broadcast, self.dimension) if self.parameters.centre else None

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        centre = {CENTRE: np.zeros(self.dimension)} if self.parameters.centre else {}
        return {**super().example_broadcast(sites), **centre}

    def _by_class(self, records: Records, labels: NDArray[np.int64], centre: Floats | None) -> Iterator[Piece]:
        """The records of one class after another, whose values all belong into that class's part of each block."""
        layout = self.layout()
        starts = np.cumsum([0, *(block.size for block in layout.blocks)])
        for index in range(self._classes):
            own = labels == index
            mine = Records(records.features[own], records.present[own], labels[own])
            places = np.concatenate(
                [
                    start + index * (block.size // self._classes) + np.arange(block.size // self._classes)
                    for start, block in zip(starts, layout.blocks, strict=False)
                ]
            )
            for part in batches(len(mine), len(places)):
                used = usable(self.parameters, mine, part, self._classes)
                x = clipped(self.parameters, mine, part, used, centre)
                values = {"counts": used[:, None].astype(np.float64), "sums": x, "squares": x * x}
                if any(block.name == "products" for block in layout.blocks):
                    values["products"] = products(x)
                yield Piece(places, weighted(layout, values))

    def serves(self, reader: Task[Any]) -> bool:
        return self.parameters.second in ("pooled", "class") and not self.parameters.centre

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        if records.labels is None:
            raise Misuse(f"The task {self.name} needs labelled records.")
        layout = self.layout()
        names = {block.name for block in layout.blocks}
        each = self.parameters.second != "pooled"
        centre = self._centre(broadcast)
        for part in batches(len(records), layout.size):
            used = usable(self.parameters, records, part, self._classes)
            x = clipped(self.parameters, records, part, used, centre)
            member = (records.labels[part, None] == np.arange(self._classes)) & used[:, None]
            blocks = {"counts": member.astype(np.float64), "sums": _in_class(member, x)}
            if "squares" in names:
                blocks["squares"] = _in_class(member, x * x) if each else x * x
            if "products" in names:
                blocks["products"] = _in_class(member, products(x)) if each else products(x)
            yield weighted(layout, blocks)


def _in_class(member: NDArray[np.bool_], values: Floats) -> Floats:
    """Rows of values (b, p) in the place of the class that a record is a member (b, K) of: (b, K p)."""
    placed: Floats = (member[:, :, None] * values[:, None, :]).reshape(len(values), -1)
    return placed
