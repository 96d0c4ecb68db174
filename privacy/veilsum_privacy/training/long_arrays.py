"""Arrays that are kept from step to step and gone through part by part.

A model, its running mean and an optimiser's memory are needed once a step, and each may be as long as a sum. Long ones
therefore lie on disk.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from veilsum_aggregation.arrays import Floats

PIECE = 1 << 18
"""Values that are worked on at a time: 2 MiB."""

LONG = 1 << 20
"""From how many values on arrays lie in a file."""


def cut(size: int) -> Iterator[slice]:
    """Parts of so many values, of :data:`PIECE` each."""
    for start in range(0, size, PIECE):
        yield slice(start, min(start + PIECE, size))


class LongArrays:
    """Arrays by name, read and written in parts as their values lie flat, row by row.

    Long ones lie in a file without a name in the folder for temporary files (``TMPDIR``), which takes all its room at once;
    where there is none, they are in memory. Whoever starts anew computes them anew: they follow from what was released.

    Args:
        shapes: of the arrays.
        value: that all of them begin with.
        dtype: in which they are kept; what is written is rounded to it.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], value: float = 0.0, dtype: DTypeLike = np.float64) -> None:
        self._shapes, self._places, self._size = dict(shapes), dict[str, int](), 0
        for name, shape in shapes.items():
            self._places[name] = self._size
            self._size += math.prod(shape)
        self._dtype = np.dtype(dtype)
        self._file = self._in_file(value) if self._size >= LONG else None
        self._flat = np.full(self._size if self._file is None else 0, value, self._dtype)

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], dtype: DTypeLike) -> "LongArrays":
        """Arrays that begin with these values."""
        found = cls({name: array.shape for name, array in arrays.items()}, dtype=dtype)
        for name, array in arrays.items():
            for part in cut(array.size):
                found.write(name, part, array.reshape(-1)[part])
        return found

    def _in_file(self, value: float) -> IO[bytes] | None:
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115  it goes with this object
            for part in cut(self._size):
                np.full(part.stop - part.start, value, self._dtype).tofile(file)
        except OSError:
            return None
        return file

    def read(self, name: str, part: slice) -> Floats:
        """Some values of an array, in float64."""
        return self._values(name, part).astype(np.float64)

    def _values(self, name: str, part: slice) -> NDArray[Any]:
        start, count = self._places[name] + part.start, part.stop - part.start
        if self._file is None:
            return self._flat[start : start + count]
        self._file.seek(start * self._dtype.itemsize)
        return np.fromfile(self._file, self._dtype, count)

    def write(self, name: str, part: slice, values: NDArray[Any]) -> None:
        """Put others in their place; what is beyond the range of the arrays' type becomes infinite."""
        start = self._places[name] + part.start
        with np.errstate(over="ignore"):
            rounded = values.astype(self._dtype, copy=False)
        if self._file is None:
            self._flat[start : start + len(values)] = rounded
            return
        self._file.seek(start * self._dtype.itemsize)
        rounded.tofile(self._file)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of them as they are kept; copies."""
        found = {}
        for name, shape in self._shapes.items():
            found[name] = np.empty(shape, self._dtype)
            flat = found[name].reshape(-1)
            for part in cut(flat.size):
                flat[part] = self._values(name, part)
        return found
