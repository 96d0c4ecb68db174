"""Persons with several records, where persons are counted: which of their records count, and how they become one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_privacy.mechanism.clipping import row_extremes
from veilsum_privacy.mechanism.records import Records

Reduction = Literal["first", "last", "max", "mean"]


@dataclass(frozen=True)
class Persons:
    """How a subject's records count.

    Attributes:
        person: how they become one, that stands for all of them; None where each counts.
        at_most: of each subject the first so many count; 0 for all.
        categories: places of each category's indicators among the features.
        valued: whether a record counts only with finite features; not where they are mapped first, and the map says so.

    A subject's rows beyond the first ``at_most`` m are zeros, so its sum is at most m times as long as a row; where its
    records become one, one row stands for all of them, at the place of the first, and the others are zeros.
    """

    person: Reduction | None = None
    at_most: int = 0
    categories: tuple[slice, ...] = ()
    valued: bool = True

    def counted(self, records: Records) -> tuple[Records, NDArray[np.bool_]]:
        """The records to take rows of, and whose rows count (n,)."""
        counted: NDArray[np.bool_] = np.ones(len(records), dtype=np.bool_)
        if self.valued:
            counted = row_extremes(np.logical_and, np.isfinite(records.features))  # no reader gives others
        if records.subjects is None:
            return records, counted
        place = _places(records.subjects)
        if self.person is not None:
            return join_records(records, self.person, self.categories), counted & (place == 0)
        return records, counted & (place < self.at_most) if self.at_most else counted


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
        if labels is not None:  # the most frequent one that there is, of several the first
            whose = np.cumsum(_places(records.subjects) == 0) - 1
            order = np.lexsort((labels, whose))
            order = order[labels[order] >= 0]
            own, of = labels[order], whose[order]
            runs = np.flatnonzero((np.diff(of, prepend=-1) != 0) | (np.diff(own, prepend=-1) != 0))
            best = runs[np.lexsort((-np.diff(np.append(runs, len(own))), of[runs]))][::-1]
            labels[starts] = -1
            labels[starts[of[best]]] = own[best]  # of a person's runs the last one written stands
    joined = np.where(some > 0, joined, 0.0)
    for place in categories if how == "max" else ():
        width = place.stop - place.start
        last = width - 1 - np.argmax(joined[:, place][:, ::-1] > 0, axis=1)
        joined[:, place] = (last[:, None] == np.arange(width)) & (some[:, place] > 0)
    features[starts], present[starts] = joined, some > 0
    return Records(features, present, labels, records.subjects)
