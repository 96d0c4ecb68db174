"""What a method sees of a federation: the study, and sums of declared tasks. Nothing else.

Over gRPC and in one process the behaviour is the same; methods, tasks and the mathematics cannot tell which they run on.

Arrays that a method keeps from step to step and goes through part by part.

A model, its running mean and an optimiser's memory are needed once a step, and each may be as long as a sum. Long ones
therefore lie on disk.
"""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.layout import Block, Layout

PIECE = 1 << 18
"""Values that a method works on at a time: 2 MiB."""

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
    def of(cls, arrays: Mapping[str, NDArray[Any]], dtype: DTypeLike) -> LongArrays:
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


class NoFurtherRoundError(ArithmeticError):
    """The study is over and this round of it was never run: what would follow from it is not estimable."""


class StoredBlocks(Mapping[str, Floats]):
    """Blocks of a long sum, read from where it is stored whenever they are asked for.

    Args:
        layout: of the sum.
        read: gives the weighted values from one place of the vector up to another.
    """

    def __init__(self, layout: Layout, read: Callable[[int, int], Floats]) -> None:
        self._read, self._layout = read, layout
        self._places: dict[str, tuple[int, Block]] = {}
        at = 0
        for block in layout.blocks:
            self._places[block.name] = at, block
            at += block.size

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Floats:
        block = self._places[name][1]
        whole = np.empty(block.size)
        for part in cut(block.size):
            whole[part] = self.part(name, part)
        return whole.reshape(block.shape)

    def part(self, name: str, part: slice) -> Floats:
        """Some of a block's values in its own units, which lie flat, row by row."""
        at, block = self._places[name]
        starts = [at + limb * self._layout.width for limb in range(self._layout.limbs)]
        values = self._layout.joined([self._read(start + part.start, start + part.stop) for start in starts])
        return values if block.weight == 1.0 else values / block.weight


@dataclass(frozen=True)
class Release:
    """One opened sum.

    Attributes:
        label: of the declared task.
        round: number of the round that yielded it.
        values: the sum's blocks in their own units, by name; those of a long sum are read when they are asked for. Where a
            task is disclosed per site, each has a leading axis: one row a member, in the cohort's order.
        noise_std: by block, the standard deviation of the noise of a value in the sum, in the block's units.
        cohort: ids of the participants whose vectors are in the sum.
        digest: of the release as journalled (:func:`veilsum_privacy.results.proof_files.release_digest`).
    """

    label: str
    round: int
    values: Mapping[str, NDArray[np.float64]]
    noise_std: dict[str, float]
    cohort: tuple[str, ...]
    digest: bytes

    def part(self, name: str, part: slice) -> Floats:
        """Some of a block's values, which lie flat, row by row; of a long sum nothing else is read."""
        return self.values.part(name, part) if isinstance(self.values, StoredBlocks) else self.values[name].reshape(-1)[part]


def read_release(task: AgreedTask, values: Integers, number: int, cohort: tuple[str, ...], digest: bytes) -> Release:
    """Turn an opened sum in grid units into the task's blocks in their own units."""
    if task.per_site:
        places = map(task.study.participants.index, cohort)
        own = [task.blocks(task.kept_part(values, place)) for place in places]
        blocks = {name: np.stack([part[name] for part in own]) for name in own[0]}
    else:
        blocks = task.blocks(values)
    std = math.sqrt(task.released_variance(len(cohort)))
    return Release(task.label, number, blocks, task.block_std(std), cohort, digest)


class Federation(ABC):
    """Runs rounds of one study.

    Attributes:
        study: that everyone agreed to.
        encoder: arrays of the study's projection, which every sum broadcasts and a result repeats; empty without one.
    """

    def __init__(self, study: Study, encoder: Mapping[str, Floats] | None = None) -> None:
        self.study, self.encoder = study, dict(encoder or {})

    @abstractmethod
    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round of the declared task ``label`` and return its sum.

        Args:
            label: a task of the study.
            broadcast: arrays that every participant's task receives, derived from earlier releases only.
            members: who may be in the cohort; None for all participants.

        Raises:
            VeilsumError: the round could not be completed; what it cost is in the ledgers.
        """

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:  # noqa: B027
        """Keep a model as it stands, with the epsilon that the rounds so far cost; a simulation passes it over."""


def released_noise(study: Study, label: str, cohort: int) -> dict[str, float]:
    """Standard deviation of the noise on a task's sum over ``cohort`` participants, by block, in the block's units.

    Raises:
        HostileInput: the study has no such task.
        Misuse: a noise share would be below 4 grid units.
    """
    task = AgreedStudy(study).task(label)
    return task.block_std(math.sqrt(task.released_variance(cohort)))
