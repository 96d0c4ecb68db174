"""Units of privacy among a site's records, and computations over them in which what fails on one unit stays with it.

A unit is a record, or a subject with all its records, which stand together. Where a computation over many units raises, it
is repeated on halves of them, each half with whole units, down to single ones. A unit that raises alone is left out. All
others are computed on by the same code, each with all its records, so that nothing that bounds a unit is lost.

Time. One unit that raises costs at most four times what all units take together, and some 2 log2(n) calls beside; every
further one as many calls at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import Misuse

Mask = NDArray[np.bool_]
Rows = slice | Mask
"""Which records, as a slice or (n,) bool; with each record all others of its unit."""

T = TypeVar("T")


class Faults:
    """What failed on single units; stays at the site.

    Attributes:
        first: the first exception; None where nothing failed.
        records: how many records the units have that failed.
    """

    def __init__(self) -> None:
        self.first: Exception | None = None
        self.records = 0

    def add(self, error: Exception, records: int) -> None:
        """Take note of an exception, and of the records that it costs."""
        if self.first is None:
            self.first = error
        self.records += records


def unit_edges(count: int, subjects: Integers | None) -> Integers:
    """Where the units of ``count`` records begin, in order, and ``count`` last: (units + 1,).

    Args:
        count: number of records.
        subjects: (count,) whose record each one is, never descending; None where each record is a unit of its own.

    Raises:
        Misuse: the records of a subject do not stand together.
    """
    if subjects is None:
        return np.arange(count + 1)
    if subjects.shape != (count,) or (subjects[1:] < subjects[:-1]).any():
        raise Misuse("The records of one subject must stand together, in ascending order of subjects.")
    if not count:
        return np.zeros(1, dtype=np.int64)
    begins = np.flatnonzero(np.concatenate([[True], subjects[1:] != subjects[:-1]]))
    return np.append(begins, count).astype(np.int64)


def in_parts(
    compute: Callable[[slice], T], count: int, subjects: Integers | None, faults: Faults | None
) -> Iterator[tuple[slice, T]]:
    """Compute on all records at once; where that raises, on halves of their units, without those that raise alone.

    Args:
        compute: gives the same for a unit whatever other units it is given with, as summands do.
        count, subjects: of the records, as :func:`unit_edges` takes them.
        faults: takes note of the units that raise; None to raise what ``compute`` raises.

    Yields:
        Slices of the records, in order, and what was computed of each.
    """
    everyone = slice(0, count)
    try:
        found = compute(everyone)
    except Exception as error:
        if faults is None:
            raise
        whole = error
    else:
        yield everyone, found
        return
    yield from _halves(compute, unit_edges(count, subjects), faults, whole)


def _halves(compute: Callable[[slice], T], edges: Integers, faults: Faults, whole: Exception) -> Iterator[tuple[slice, T]]:
    """Compute on halves of units that raised together, in order."""
    left: list[tuple[int, int, Exception | None]] = [(0, len(edges) - 1, whole)]
    while left:
        first, last, error = left.pop()
        place = slice(int(edges[first]), int(edges[last]))
        if error is None:
            try:
                found = compute(place)
            except Exception as raised:  # noqa: BLE001  whatever it is, it must not be seen
                error = raised
            else:
                yield place, found
                continue
        if last - first <= 1:
            faults.add(error, place.stop - place.start)
        else:
            middle = (first + last) // 2
            left += [(middle, last, None), (first, middle, None)]
    faults.add(whole, 0)  # also where nothing raises alone
