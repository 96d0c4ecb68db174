"""The task "within-moments": what a site adds to the mean of the sites' moments, from its own noised power sums.

It reads no record. A feature whose moments the site cannot tell from noise adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from veilsum_aggregation.feature_moments import moment_terms, moments_of_sums
from veilsum_node.fields import Frozen
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import DerivedTask, Floats
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import WidthParameters
from veilsum_privacy.tasks.power_moments import columns_of_moments

ROOM = 4.0
"""How far above the largest number of records a noised one may lie before it is clamped."""

LARGEST_SHAPE = 64.0
"""Absolute values of skewness and kurtosis beyond it are clamped: no map is made for these."""


class WithinMomentsParameters(WidthParameters):
    """Parameters of :class:`WithinMoments`.

    Attributes:
        width: features of the source; None for the schema's own.
        channels: of the source.
    """

    channels: int | None = Field(default=None, ge=1, le=4096)


class WithinMoments(DerivedTask[WithinMomentsParameters]):
    """A site's summands of :func:`veilsum_aggregation.feature_moments.mean_of_moments`.

    Blocks: ``spread`` (3, m): records n, n mean, n variance; ``shape`` (3, m): n, n skewness, n kurtosis. Rows of features
    that the site cannot tell hold zeros.

    Sensitivity. None: it computes from what the site has released already. Values are clamped at four times the schema's
    ``max_records``, for there is noise in them, those of shape at 64 times that.
    """

    name = "within-moments"
    sources = ("power-moments",)
    disclosures = ("joint",)
    Parameters: ClassVar[type[Frozen]] = WithinMomentsParameters

    def __init__(self, parameters: WithinMomentsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        columns = columns_of_moments(schema, parameters.width, parameters.channels)
        self._values = len(columns) if parameters.channels is None else parameters.channels
        self._records = schema.max_records

    def layout(self) -> Layout:
        shape = (3, self._values)
        return Layout((Block("spread", shape), Block("shape", shape, 1.0 / LARGEST_SHAPE)))

    def clip(self) -> float:
        return ROOM * self._records

    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        moments = moments_of_sums(kept, noise_std)
        if len(moments) != self._values:
            raise ValueError("the kept sums are of other features")
        terms = moment_terms(moments)
        return np.concatenate([terms[block.name].ravel() * block.weight for block in self.layout().blocks])
