"""What a task is: declared once, for both sides.

A task names the vector that one record contributes, in blocks, with a proven bound on its L2 norm. The participant runs
:meth:`Task.vectors` on its records; the coordinator runs :meth:`Task.layout` and reads the blocks of the released sum.
Clipping, truncation to the grid, noise, masks and encryption come after, and no task can skip them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from veilsum_privacy.schema import DatasetSchema, Frozen
from veilsum_privacy.study import Disclosure

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class Block:
    """A named part of a task's vector.

    Attributes:
        name: unique in the layout.
        shape: the block's shape once read; its values lie flat, row-major, in the vector.
        weight: every value is multiplied by it before clipping and divided by it after release; a larger weight buys the
            block less noise at the others' cost.
    """

    name: str
    shape: tuple[int, ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The blocks of a vector, in order."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Number of values of the whole vector."""
        return sum(block.size for block in self.blocks)

    def split(self, vector: Floats) -> dict[str, Floats]:
        """Return the blocks of a released sum in their own units (weights divided out), by name."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} values, got shape {vector.shape}")
        blocks: dict[str, Floats] = {}
        offset = 0
        for block in self.blocks:
            blocks[block.name] = vector[offset : offset + block.size].reshape(block.shape) / block.weight
            offset += block.size
        return blocks

    def noise_std(self, std: float) -> dict[str, float]:
        """Standard deviation of each block's noise in its own units, for noise of ``std`` on the weighted vector."""
        return {block.name: std / block.weight for block in self.blocks}


class Task(ABC):
    """Base of all tasks. A subclass is pure: no file, clock, network or randomness.

    Subclasses set ``name`` and ``Parameters`` and are registered in :mod:`veilsum_privacy.tasks`.
    """

    name: ClassVar[str]
    disclosure: ClassVar[Disclosure] = "joint"
    Parameters: ClassVar[type[Frozen]]

    @abstractmethod
    def __init__(self, parameters: Frozen, schema: DatasetSchema) -> None:
        """Build the task.

        Raises:
            Misuse: parameters and schema do not fit together (no label for a task of classes).
        """

    @abstractmethod
    def layout(self) -> Layout:
        """The vector's blocks; depends on the parameters and the schema only."""

    @abstractmethod
    def clip(self) -> float:
        """L2 bound on one record's weighted vector, proven in the subclass's docstring."""

    @abstractmethod
    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        """Yield batches (b, size) of weighted per-record vectors, in the order of the records.

        A record that cannot contribute yields a row of zeros. A row depends on its own record alone, to the last bit: what
        sums over features keeps to :func:`veilsum_privacy.clipping.row_norms` or is exact in any order.
        """


def batches(records: int, size: int) -> Iterator[slice]:
    """Slices over ``records`` rows such that a batch of vectors of ``size`` values takes about 32 MiB at most."""
    step = max(1, min(4096, 2**22 // max(size, 1)))
    for start in range(0, records, step):
        yield slice(start, min(start + step, records))


def balanced_weights(norms: Sequence[float], sizes: Sequence[int], importances: Sequence[float]) -> tuple[float, ...]:
    """Block weights that minimise the summed, importance-weighted noise variance of a vector at a given cost.

    Block b with weight w_b costs w_b^2 s_b^2 and has noise variance d_b / w_b^2 in its own units, for norm s_b, size d_b and
    importance a_b. The sum of a_b d_b / w_b^2 under a fixed total cost is smallest at w_b^2 = sqrt(a_b d_b) / s_b, that is
    at a share of the budget in proportion to s_b sqrt(a_b d_b). Everything here is public.
    """
    triples = zip(norms, sizes, importances, strict=True)
    return tuple(math.sqrt(math.sqrt(importance * size) / norm) for norm, size, importance in triples)
