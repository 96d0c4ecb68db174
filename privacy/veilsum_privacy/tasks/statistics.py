"""The task "statistics": what means, variances, proportions and class balance are computed from.

Studies of version 0.1 declare it; those of today ask the same of :mod:`.tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from veilsum_node.fields import Frozen
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Floats, Records, RecordTask, batches
from veilsum_privacy.tasks.layout import Block, Layout


class StatisticsParameters(Frozen):
    """The task has none: its vector follows from the schema."""


class Statistics(RecordTask[StatisticsParameters]):
    """Sums over records of 1, presence, Chebyshev T1 = x and T2 = 2 x^2 - 1 of each number, category and class indicators.

    Blocks: ``records`` (1,); ``present`` (numbers without a public impute,); ``t1`` and ``t2`` (numbers,); ``categories``
    (indicators of all categorical columns,); ``classes`` (classes,). A block that would be empty is left out.

    Sensitivity. A record contributes 1 to ``records``. For a number x in [-1, 1], T1^2 + T2^2 = 4 u^2 - 3 u + 1 with
    u = x^2 in [0, 1], a convex function that is 1 at u = 0 and 2 at u = 1: at most 2, reached at x = 1 and x = -1.
    Presence adds 1 for each number that has no impute. The indicators of one categorical column hold at most a single 1, as
    do those of the classes. With m numbers, o of them without impute, and k categorical columns the columns' blocks therefore
    have a squared norm of at most r = o + 2 m + k, and with ``records`` and ``classes`` at weight w a record's is at most
    w^2 + r, plus w^2 with a label; a record that has every value and all numbers at a bound reaches it. A missing value
    contributes zeros.

    Weights. By :func:`veilsum_privacy.tasks.layout.balanced_weights` a block of m values whose norm is sqrt(m) has weight 1.
    The number of records and the class balance are few values that a study is read by first: w^2 = r / 8 (at least 1) gives
    each an eighth of what the columns have together, which costs the columns at most sqrt(5/4) in noise where w > 1.
    """

    name = "statistics"
    disclosures = ("joint",)
    Parameters: ClassVar[type[Frozen]] = StatisticsParameters

    def __init__(self, parameters: StatisticsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        numbers: list[int] = []
        open_numbers: list[int] = []
        indicators: list[int] = []
        offset = 0
        for column in schema.columns:
            features = range(offset, offset + column.width)
            offset += column.width
            if isinstance(column, NumberColumn):
                numbers.extend(features)
                open_numbers.extend(features if column.impute is None else ())
            else:
                indicators.extend(features)
        self._numbers = np.array(numbers, dtype=np.intp)
        self._open = np.array(open_numbers, dtype=np.intp)
        self._indicators = np.array(indicators, dtype=np.intp)
        self._classes = len(schema.classes)
        self._labelled = 1 if schema.classes else 0
        self._categorical = sum(isinstance(column, CategoryColumn) for column in schema.columns)

    @property
    def _columns(self) -> int:
        """r: squared norm of a record's column blocks at most."""
        return len(self._open) + 2 * len(self._numbers) + self._categorical

    @property
    def _weight(self) -> float:
        """w, of the number of records and of the class counts."""
        return math.sqrt(max(1.0, self._columns / 8))

    def layout(self) -> Layout:
        m = len(self._numbers)
        sizes = {
            "records": 1,
            "present": len(self._open),
            "t1": m,
            "t2": m,
            "categories": len(self._indicators),
            "classes": self._classes,
        }
        weights = {"records": self._weight, "classes": self._weight}
        return Layout(tuple(Block(name, (size,), weights.get(name, 1.0)) for name, size in sizes.items() if size))

    def clip(self) -> float:
        return math.sqrt((1 + self._labelled) * self._weight**2 + self._columns)

    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        classes = np.arange(self._classes)
        for part in batches(len(records), self.layout().size):
            present = records.present[part]
            x = np.where(present, np.clip(records.features[part], -1.0, 1.0), 0.0)
            numbers, given = x[:, self._numbers], present[:, self._numbers]
            blocks = [
                np.full((len(x), 1), self._weight),
                present[:, self._open].astype(np.float64),
                numbers,
                np.where(given, 2.0 * numbers * numbers - 1.0, 0.0),
                x[:, self._indicators],
            ]
            if records.labels is not None:
                blocks.append(self._weight * (records.labels[part, None] == classes))
            yield np.hstack(blocks)
