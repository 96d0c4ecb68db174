"""A site's records as readers give them and the kernel takes them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats


@dataclass(frozen=True)
class Records:
    """A site's records after its schema, ready for a task.

    Attributes:
        features: (n, width) float64 in [-1, 1], scaled by the public bounds; 0 where ``present`` is False.
        present: (n, width) bool; False where the value is missing or invalid.
        labels: (n,) int64 class indices, -1 where missing or invalid; None when the schema has no label.
        subjects: (n,) int64, whose record each one is, never descending: a subject's records stand together. None where the
            site's dataset does not tell. Local; no task reads it.
    """

    features: Floats
    present: NDArray[np.bool_]
    labels: NDArray[np.int64] | None
    subjects: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def take(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> "Records":
        """Some of the records: a slice, places, or (n,) bool."""
        labels = None if self.labels is None else self.labels[rows]
        subjects = None if self.subjects is None else self.subjects[rows]
        return Records(self.features[rows], self.present[rows], labels, subjects)


def join_batches(batches: Iterable[Records]) -> Records:
    """All records of one batch after another, of which there is one at least; each is let go once it is copied."""
    parts = list(batches)
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    first, rows = parts[0], ends[-1]
    features, present = np.empty((rows, first.features.shape[1])), np.empty((rows, first.features.shape[1]), dtype=np.bool_)
    labels = None if first.labels is None else np.empty(rows, dtype=np.int64)
    subjects = None if first.subjects is None else np.empty(rows, dtype=np.int64)
    del first
    while parts:
        part, end = parts.pop(), ends.pop()
        place = slice(end - len(part), end)
        features[place], present[place] = part.features, part.present
        if labels is not None:
            labels[place] = part.labels
        if subjects is not None:
            subjects[place] = part.subjects
    return Records(features, present, labels, subjects)
