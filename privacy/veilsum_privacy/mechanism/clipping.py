"""Clip each record's vector to a public L2 norm and truncate it onto the integer grid, then sum exactly.

One grid unit is clip / grid. Every record's integer vector has an L2 norm of at most ``grid``, checked in integers, and does
not depend on any other record, to the bit: so adding or removing one record changes a site's sum by at most ``grid``. That is
the sensitivity, exactly. Where the unit of privacy is a subject with several records, the same holds for the sum of its
records' vectors. What is not finite contributes zero; nothing here raises because of what a record holds. This module adds no
noise.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse

MAX_GRID = 2**26
"""Largest grid: squares of a record's values then sum below 2^63."""

MAX_BOUND = 2**62
MAX_VALUES = 2**36
"""Most records of one site's sum: with the largest grid it stays below 2^62."""


class SiteSum(NamedTuple):
    """A site's exact sum, before noise.

    Attributes:
        total: (size,) int64 in grid units, clamped to [-bound, bound].
        clipped: records, and sums of a subject's records, that were scaled down; stays at the site.
        invalid: records that were not finite and contributed zero; stays at the site.
    """

    total: Integers
    clipped: int
    invalid: int


def row_norms(rows: Floats, spare: Floats | None = None) -> Floats:
    """L2 norm of each row of (b, d), as (b,); the same to the last bit whatever rows stand beside it.

    numpy may add a row's squares in another order where the rows are laid out by columns, or where there is but one of them.
    ``spare`` (b, d), contiguous by rows, is written over where it is given, in place of a new array.
    """
    squares = np.square(np.ascontiguousarray(rows), out=spare)
    return cast(Floats, np.sqrt(row_totals(squares)))


_CARRIED, _FULL = 32, 2**61
"""Bits of a subject's sum below those that are carried, and the values from which they are: a batch's are at most 2^62."""

FEW = 8
"""Columns up to which rows are reduced column by column, which is several times as fast as row by row."""


def row_totals(rows: Floats, out: Floats | None = None) -> Floats:
    """The sum of each row of contiguous (b, d), as (b,): what ``np.add.reduce`` gives, to the last bit.

    Of up to eight values numpy adds all but the first, one after another, and then that sum to the first.
    """
    if not 2 <= rows.shape[1] <= FEW:
        return cast(Floats, np.add.reduce(rows, axis=1, out=out))
    found: Floats = np.zeros(len(rows)) if out is None else out
    np.copyto(found, rows[:, 1])
    for place in range(2, rows.shape[1]):
        np.add(found, rows[:, place], out=found)
    return np.add(rows[:, 0], found, out=found)


def row_extremes(reduce: np.ufunc, rows: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Each row of (b, d), reduced by what is exact in any order, as ``np.maximum``; d > 0."""
    if rows.shape[1] > FEW:
        return cast(NDArray[Any], reduce.reduce(rows, axis=1, out=out))
    found = np.empty(len(rows), dtype=rows.dtype) if out is None else out
    np.copyto(found, rows[:, 0])
    for place in range(1, rows.shape[1]):
        reduce(found, rows[:, place], out=found)
    return found


class UnitSums:
    """Sums rows by subject, batch after batch; the subject that a batch ends in is carried over to the next.

    A subject may be a whole site, whose sum is beyond 64 bits: what does not fit is kept in a second integer, and such a sum,
    which is far longer than any bound, is pulled in by its direction, to 2^-60 of its largest value.

    Args:
        subjects: (n,) whose record each one is, never descending.
        size: values of a row.
        pull: pulls in those of rows (b, size) that are longer than a subject's may be, in place, and says which.
    """

    def __init__(self, subjects: Integers, size: int, pull: Callable[[Integers], NDArray[np.bool_]]) -> None:
        if subjects.ndim != 1 or (subjects[1:] < subjects[:-1]).any():
            raise Misuse("The records of one subject must stand together, in ascending order of subjects.")
        self._subjects = subjects
        self._pull = pull
        self._open = np.zeros((1, size), dtype=np.int64)
        self._high: Integers | None = None  # of the open subject, in units of 2^_CARRIED
        self._done = 0
        self.clipped = 0

    def complete(self, rows: Integers) -> Integers:
        """Take the next records' rows (b, size); return the bounded vectors of the subjects that they complete."""
        begin, self._done = self._done, self._done + len(rows)
        if self._done > len(self._subjects):
            raise Misuse("There are more records than subjects were given for.")
        if not len(rows):
            return rows
        subjects = self._subjects[begin : self._done]
        starts = np.flatnonzero(np.concatenate([[True], subjects[1:] != subjects[:-1]]))
        sums = np.add.reduceat(rows, starts, axis=0)
        if begin and subjects[0] == self._subjects[begin - 1]:
            sums[0] += self._open[0]
        else:
            sums = np.concatenate([self._open, sums])
        if len(sums) > 1:
            sums[:1] = self._whole(sums[:1])
        self._open = sums[-1:].copy()
        if np.abs(self._open).max(initial=0) >= _FULL:
            carried = self._open >> _CARRIED
            self._high = carried if self._high is None else self._high + carried
            self._open -= carried << _CARRIED
        return self._bound(sums[:-1])

    def last(self) -> Integers:
        """Return the bounded vector (1, size) of the last subject."""
        if self._done != len(self._subjects):
            raise Misuse("There are fewer records than subjects were given for.")
        return self._bound(self._whole(self._open))

    def _whole(self, low: Integers) -> Integers:
        """The sum (1, size) of the subject that is over; of one that does not fit, divided by a power of two and cut off."""
        high, self._high = self._high, None
        if high is None and np.abs(low).max(initial=0) < _FULL:
            return low
        high, low = (low >> _CARRIED) + (0 if high is None else high), low & (2**_CARRIED - 1)
        over = max(0, int(np.abs(high).max()).bit_length() - (62 - _CARRIED))
        found: Integers = (high << (_CARRIED - over)) + (low >> over)
        return found

    def _bound(self, sums: Integers) -> Integers:
        self.clipped += int(self._pull(sums).sum())
        return sums


def pulled_to(rows: Integers, grid: int) -> NDArray[np.bool_]:
    """Clip the rows that are longer than the grid, in place, and say which; a row that is not stays as it is."""
    long = _longer(rows, grid)
    rows[long] = truncate_to_grid(rows[long].astype(np.float64), float(grid), grid)[0]
    return long


def _longer(rows: Integers, bound: int) -> NDArray[np.bool_]:
    """Which rows are longer than a bound of at most 2^26, exactly, whatever integers they hold.

    Sums of squares are exact in floating point up to 2^53, and rounding takes none that is larger below 2^52.
    """
    reals = rows.astype(np.float64)
    long: NDArray[np.bool_] = np.einsum("ij,ij->i", reals, reals) > bound**2
    return long


def truncate_to_grid(
    vectors: Floats | Integers, clip: float, grid: int
) -> tuple[Integers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Clip rows to an L2 norm of ``clip`` and truncate them toward zero onto the grid.

    Rows of integers whose bound C is an integer that divides ``grid`` are not truncated: they are multiplied by grid / C.

    Args:
        vectors: (b, d) float64, one record a row; rows that are not finite become zero. Or int64.
        clip: public norm bound C > 0, in the vectors' unit.
        grid: norm bound in grid units, 1 to 2^26.

    Returns:
        (b, d) int64, the squared norm of every row at most ``grid``^2; which rows were scaled down; and which were not finite.
    """
    if not (math.isfinite(clip) and clip > 0):
        raise Misuse("The clipping norm must be positive and finite.")
    if not 1 <= grid <= MAX_GRID:
        raise Misuse("The grid must lie between 1 and 2^26.")
    if vectors.ndim != 2:
        raise Misuse("Records come as the rows of a matrix.")
    if vectors.dtype == np.int64 and float(clip).is_integer() and grid % clip == 0:
        return _multiply_to_grid(cast(Integers, vectors), int(clip), grid)
    vectors = np.asarray(vectors, dtype=np.float64)
    # Norms relative to the largest value: no square overflows or vanishes. It is finite if all values are.
    if 0 < vectors.shape[1] <= FEW:
        peak = row_extremes(np.maximum, np.abs(vectors))
    else:
        peak = np.maximum(vectors.max(axis=1, initial=0.0), -vectors.min(axis=1, initial=0.0))
    invalid: NDArray[np.bool_] = np.logical_not(np.isfinite(peak))
    rows = vectors
    if invalid.any():
        rows, peak = np.where(invalid[:, None], 0.0, vectors), np.where(invalid, 0.0, peak)
    scaled = rows / np.where(peak > 0, peak, 1.0)[:, None]
    spare = np.empty(scaled.shape)  # rows are long: what is allocated anew costs as much as what is computed
    norm = row_norms(scaled, spare)
    with np.errstate(over="ignore"):
        clipped = peak * norm > clip
        if clipped.all():
            scaled /= norm[:, None]
        elif not clipped.any():
            np.divide(rows, clip, out=scaled)
        else:
            scaled[clipped] /= norm[clipped, None]
            scaled[~clipped] = rows[~clipped] / clip
    integers = np.multiply(scaled, grid, out=spare).astype(np.int64)  # toward zero
    shrink = 2.0**-52
    while (above := np.flatnonzero(np.einsum("ij,ij->i", integers, integers) > grid * grid)).size:
        # Rounding can leave a row a hair above the bound: pull it in, by twice as much each time.
        integers[above] = (scaled[above] * (1.0 - shrink) * grid).astype(np.int64)
        shrink *= 2
    return integers, clipped, invalid


def _multiply_to_grid(vectors: Integers, clip: int, grid: int) -> tuple[Integers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows of integers on the grid, exactly; one that is longer than the bound is clipped as a row of reals."""
    long = _longer(vectors, clip)
    integers = vectors * (grid // clip)  # which wraps around in long rows only
    integers[long] = truncate_to_grid(vectors[long].astype(np.float64), float(clip), grid)[0]
    return integers, long, np.zeros(len(vectors), dtype=np.bool_)
