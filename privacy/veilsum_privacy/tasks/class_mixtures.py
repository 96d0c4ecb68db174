"""The task "class-mixtures": counts, sums and squares of the components of each class, from which mixtures are computed.

A record belongs to the nearest of its class's public centres. There are no soft responsibilities: these would spread a record
over components, and every round of them would be a release.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    joined,
    length,
    lookup,
    place_of_smallest,
    placed,
    symbol,
    where,
)
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.features import second_moment_bound
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters

CENTRES = "mixture.centres"
"""Broadcast array (K, G, d) of the centres; (sites, K, G, d) where each site has its own. Not read where G is 1."""


class ClassMixturesParameters(FeatureParameters):
    """Parameters of :class:`ClassMixtures`; all public and independent of the data.

    Attributes:
        components: G, components of each class.
        centres: ``joint`` centres for all sites, or each ``site`` its own.
        count_weight: weight a of the counts.
        sum_weight: weight b of the sums.
        square_weight: weight c of the squares x_i^2.
    """

    components: int = Field(ge=1, le=64)
    centres: Literal["joint", "site"] = "joint"
    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)
    square_weight: Real = Field(gt=0, le=1e6)


class ClassMixtures(RowTask[ClassMixturesParameters]):
    """Per class and component the count, the sum of x and the sums of x_i^2, with |x|_2 <= C.

    Blocks: ``counts`` (K, G); ``sums`` (K, G, d); ``squares`` (K, G, d). The centres are public, made of what was released
    before, and a record goes to the one nearest to its clipped features, the first of several equally near: its component
    depends on the record alone. A record without a valid class, or one that ``missing`` leaves out, contributes zeros.

    Sensitivity. A record touches one component of one class, wherever the centres are: a^2 + b^2 |x|^2 + c^2 sum x_i^4, at
    most a^2 + b^2 R^2 and what :func:`veilsum_privacy.tasks.features.second_moment_bound` proves of the squares alone. It is
    reached by a record of the largest norm with as much in few coordinates as fits.
    """

    name = "class-mixtures"

    def __init__(self, parameters: ClassMixturesParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if schema.label is None:
            raise Misuse("The task class-mixtures needs a label in the schema.", "Add a [label] table with classes.")
        self._shape = (len(schema.classes), parameters.components, self.dimension)

    def layout(self) -> Layout:
        p = self.parameters
        return Layout(
            (
                Block("counts", self._shape[:2], p.count_weight),
                Block("sums", self._shape, p.sum_weight),
                Block("squares", self._shape, p.square_weight),
            )
        )

    def clip(self) -> float:
        p = self.parameters
        second = second_moment_bound(p, self.schema, p.square_weight, None)
        return math.sqrt(p.count_weight**2 + p.sum_weight**2 * p.largest_square(self.schema) + second)

    def site_arrays(self) -> tuple[str, ...]:
        own = self.parameters.centres == "site" and self.parameters.components > 1
        return (CENTRES,) if own else ()

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        if self.parameters.components == 1:
            return {}
        own = self.parameters.centres == "site"
        return {CENTRES: np.zeros((sites, *self._shape) if own else self._shape)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        k, g, _ = self._shape
        centres = np.zeros(self._shape) if g == 1 else broadcast.get(CENTRES)
        if centres is None or centres.shape != self._shape or not np.isfinite(centres).all():
            raise HostileInput(f"The broadcast must hold {CENTRES} of shape {self._shape}, finite.")
        used = usable(self.parameters, record, k)
        x = clipped(self.parameters, record, used)
        label = where(used, symbol(-1) if record.label is None else record.label, 0)
        nearest = place_of_smallest(length(x - lookup(centres, label)))  # the first of several equally near
        place = where(used, g * label + nearest, -1)
        values = {"counts": symbol(1.0), "sums": x, "squares": x * x}
        return joined(*(placed(block.weight * values[block.name], place, k * g) for block in self.layout().blocks))
