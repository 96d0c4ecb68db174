"""What a method sees of a federation: the study, and sums of declared tasks. Nothing else.

Over gRPC and in one process the behaviour is the same; methods, tasks and the mathematics cannot tell which they run on.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.training.long_arrays import cut


class NoFurtherRoundError(ArithmeticError):
    """The study is over and this round of it was never run: what would follow from it is not estimable."""


class StoredBlocks(Mapping[str, Floats]):
    """Blocks of a long sum, read from where it is stored whenever they are asked for.

    Args:
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
