"""Persons with several records, in tasks that count persons: which of their records count, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.base import Records, RecordTask, Task

Reduction = Literal["first", "last", "max", "mean"]


class PersonParameters(Frozen):
    """How a person's records count.

    Attributes:
        person: how they become one, that counts alone: the ``first`` or the ``last`` of them, in the order of the file, or one
            that has in each column the largest value (``max``; of a category the last of its levels that occurs) or the
            ``mean`` (the most frequent level). None where each record counts.
        at_most: each person's first so many records count, in a study whose unit is the subject; 0 for all of them, whose sum
            is then clipped to what one record may add.
    """

    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)


P = TypeVar("P", bound=PersonParameters)


class PersonTask(RecordTask[P]):
    """A task of records that may be asked about persons.

    A subject's rows beyond the first ``at_most`` m are zeros, so its sum is at most m times as long as a row; where its
    records become one first, one row stands for all of them, at the place of the first, and the others are zeros.
    """

    def __init__(self, parameters: P, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        offsets = np.cumsum([0, *(column.width for column in schema.columns)])
        self._categories = [
            slice(offset, offset + column.width)
            for offset, column in zip(offsets.tolist(), schema.columns, strict=False)
            if isinstance(column, CategoryColumn)
        ]

    @property
    def most_rows(self) -> int:
        """How many rows of a person are added up."""
        return max(1, self.parameters.at_most)

    def check(self, declared: TaskDeclaration, study: Study, source: Task[Any] | None) -> None:
        """See the base; a task that joins a person's records needs the subject for its unit."""
        super().check(declared, study, source)
        if study.privacy.unit != "subject" and (self.parameters.person is not None or self.parameters.at_most):
            raise HostileInput(
                f"Task {declared.label!r} counts persons; one record changes more than its share of a person.",
                'State unit = "subject" under [privacy].',
            )

    def counted(self, records: Records) -> tuple[Records, NDArray[np.bool_]]:
        """The records to take rows of, and whose rows count (n,)."""
        counted = np.asarray(np.isfinite(records.features).all(axis=1))  # no reader gives others: they are no records
        if records.subjects is None:
            return records, counted
        place = _places(records.subjects)
        if self.parameters.person is not None:
            return join_records(records, self.parameters.person, self._categories), counted & (place == 0)
        return records, counted & (place < self.parameters.at_most) if self.parameters.at_most else counted


def _places(subjects: Integers) -> Integers:
    """The place of each record among its subject's, from 0; subjects never descend."""
    starts = np.flatnonzero(np.concatenate([[True], subjects[1:] != subjects[:-1]])) if len(subjects) else np.zeros(0, np.intp)
    sizes = np.diff(np.append(starts, len(subjects)))
    return np.asarray(np.arange(len(subjects)) - np.repeat(starts, sizes), dtype=np.int64)


def join_records(records: Records, how: Reduction, categories: Sequence[slice]) -> Records:
    """Records in which the first one of each subject stands for all of them; the others are left as they are.

    A value is that of the record chosen, or is made of those records of the subject that have one; ``categories`` are the
    places of each category's indicators.
    """
    if records.subjects is None or not len(records):
        return records
    starts = np.flatnonzero(_places(records.subjects) == 0)
    ends = np.append(starts[1:], len(records)) - 1
    features, present = records.features.copy(), records.present.copy()
    labels = None if records.labels is None else records.labels.copy()
    if how in ("first", "last"):
        chosen = starts if how == "first" else ends
        features[starts], present[starts] = records.features[chosen], records.present[chosen]
        if labels is not None:
            labels[starts] = labels[chosen]
        return Records(features, present, labels, records.subjects)
    given = np.where(present & np.isfinite(features), np.clip(features, -1.0, 1.0), -np.inf if how == "max" else 0.0)
    some = np.add.reduceat(present & np.isfinite(features), starts, axis=0, dtype=np.int64)
    if how == "max":
        joined = np.maximum.reduceat(given, starts, axis=0)
        if labels is not None:
            labels[starts] = np.maximum.reduceat(labels, starts)
    else:
        joined = np.add.reduceat(given, starts, axis=0) / np.maximum(some, 1)
    joined = np.where(some > 0, joined, 0.0)
    for place in categories if how == "max" else ():
        width = place.stop - place.start
        last = width - 1 - np.argmax(joined[:, place][:, ::-1] > 0, axis=1)
        joined[:, place] = (last[:, None] == np.arange(width)) & (some[:, place] > 0)
    features[starts], present[starts] = joined, some > 0
    return Records(features, present, labels, records.subjects)
