"""The task "power-moments": the first two or four moments of each feature, or of each channel, as sums over records.

A site that keeps its own noised vector aligns its features by it; the sum gives the moments of all. No label is read. What
becomes of the sums is :mod:`veilsum_aggregation.feature_moments`.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, clip, joined, only, total, where
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import RowTask, Task
from veilsum_privacy.tasks.feature_rows import usable
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import FeatureParameters, PartParameters


class PowerMomentsParameters(PartParameters):
    """Parameters of :class:`PowerMoments`; all public and independent of the data.

    Attributes:
        clip: here the bound B > 0 of the absolute value of each feature, to which it is cut; 1 for the schema's own features.
            Sums are of x / B.
        order: 2 or 4 moments.
        channels: features are so many channels, each with equally many features side by side; sums are of each channel, with
            a record's mean over its features. None for sums of each feature.
        count_weight: weight a of the count.
        power_weight: weight b of the sums.
    """

    order: Literal[2, 4]
    channels: int | None = Field(default=None, ge=1, le=4096)
    count_weight: Real = Field(gt=0, le=1e6)
    power_weight: Real = Field(gt=0, le=1e6)


class PowerMoments(RowTask[PowerMomentsParameters]):
    """The count, and sums over records of Chebyshev polynomials T_1, ..., T_4 of m features, or channels, in [-1, 1].

    Blocks: ``count`` (1,); ``t1``, ``t2``, and with order 4 ``t3`` and ``t4``, (m,) each: T_1 = u, T_2 = 2 u^2 - 1,
    T_3 = 4 u^3 - 3 u, T_4 = 8 u^4 - 8 u^2 + 1 of u = x / B cut to [-1, 1]. The features are those of
    :func:`columns_of_moments`: of the schema's own those of number columns, for an indicator has no moments worth aligning.
    With ``missing`` at ``centre`` an absent feature counts as 0, at ``skip`` its record contributes zeros. Powers u^k rebuilt
    from these sums carry less noise than sums of powers would at the same cost. Alignment does not apply: these are the
    moments of the features as they are.

    Sensitivity. Let c be the number of polynomials, 2 or 4. With u = cos(theta), T_k(u) = cos(k theta), so |T_k| <= 1, and all
    are 1 in absolute value at u = 1 and u = -1. A channel's values are means of such values, so they are at most 1 as well. A
    record's squared norm is therefore at most a^2 + m c b^2, reached where every feature is at a bound, and zeros are
    shorter. No norm of the whole record enters.

    With ``part`` at ``statistics`` only records that a public hash of their own content picks contribute
    (:mod:`veilsum_privacy.mechanism.parts`). A record's vector is a function of that record still, so the bound holds; the
    cost is that of a release on all records, for nobody can tell from outside which part a record is in.
    """

    name = "power-moments"

    def __init__(self, parameters: PowerMomentsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if parameters.width is None and parameters.clip != 1.0:
            raise Misuse("The schema's own features are bounded by 1; the task power-moments must state clip = 1 for them.")
        if parameters.alignment is not None:
            raise Misuse("The task power-moments takes features that are not aligned.")
        self.columns = columns_of_moments(schema, parameters.width, parameters.channels)
        self.values = len(self.columns) if parameters.channels is None else parameters.channels

    def layout(self) -> Layout:
        p = self.parameters
        powers = tuple(Block(f"t{k}", (self.values,), p.power_weight) for k in range(1, p.order + 1))
        return Layout((Block("count", (1,), p.count_weight), *powers))

    def clip(self) -> float:
        p = self.parameters
        return math.sqrt(p.count_weight**2 + self.values * p.order * p.power_weight**2)

    def serves(self, reader: Task[Any]) -> bool:
        own, its = self.parameters, reader.parameters
        if isinstance(its, FeatureParameters):  # it aligns its features by their moments
            use = None if its.alignment is None else its.alignment.moments
            if use is None or use.order > own.order or use.bound != own.clip:
                return False
            its_channels = use.channels
        else:
            its_channels = its.channels
        return bool(its_channels == own.channels and its.width == own.width)

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p, used = self.parameters, usable(self.parameters, record)
        # A value that is not a number stays one, for the sum to count its record as invalid.
        u = clip(where(record.present & used, record.features, 0.0)[self.columns] / p.clip, -1.0, 1.0)
        square = u * u
        powers = [u, 2.0 * square - 1.0, (4.0 * square - 3.0) * u, 8.0 * square * (square - 1.0) + 1.0][: p.order]
        return only(joined(p.count_weight, *(self._by_channel(power) * p.power_weight for power in powers)), used)

    def _by_channel(self, values: Symbol) -> Symbol:
        """Means (m,) over the features of each channel."""
        if self.parameters.channels is None:
            return values
        size = values.shape[0] // self.values
        # A mean of values that are at most 1 can round to a hair above it.
        return clip(total(values.reshape(self.values, size)) / size, -1.0, 1.0)


def columns_of_moments(schema: DatasetSchema, width: int | None, channels: int | None) -> NDArray[np.intp]:
    """Which features have moments: all ``width`` of an encoder's, of the schema's own those of number columns.

    Raises:
        Misuse: there is none, or channels do not divide the features, or the schema's own are not numbers alone.
    """
    if width is not None:
        columns = np.arange(width, dtype=np.intp)
    else:
        numbers = [at.start for column, at in schema.places() if isinstance(column, NumberColumn)]
        columns = np.array(numbers, dtype=np.intp)
        if channels is not None and len(columns) != schema.width:
            raise Misuse("Channels are of features that are numbers; the schema has categories as well.")
    if not len(columns):
        raise Misuse("Moments need numbers; the schema has categories only.")
    if channels is not None and len(columns) % channels:
        raise Misuse(f"{len(columns)} features are not {channels} channels of one size.")
    return columns
