"""What a site's process has tried without records, so that it does not try all of it again each round."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.computation.rehearsal import few_records
from veilsum_privacy.securesum.agreed import AgreedTask
from veilsum_privacy.tasks.base import Records

MOST_TRIED = 1024

MOST_KEPT = 64
"""Tasks whose few made-up records are kept."""


class Tried:
    """Tasks that were computed without records, each with the names and shapes of the arrays that it took beside them."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._few: dict[tuple[object, ...], Records] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def knows(self, task: AgreedTask, arrays: Mapping[str, Floats]) -> bool:
        """Whether such arrays were tried."""
        return self._key(task, arrays) in self._seen

    def add(self, task: AgreedTask, arrays: Mapping[str, Floats]) -> None:
        """Remember that they were; whoever chooses their shapes fills no memory."""
        if len(self._seen) >= MOST_TRIED:
            self._seen.clear()
        self._seen.add(self._key(task, arrays))

    def few(self, task: AgreedTask) -> Records:
        """The made-up records that a task is tried on again, made once."""
        key = (task.agreed.digest, task.label)
        if key not in self._few:
            if len(self._few) >= MOST_KEPT:
                self._few.clear()
            self._few[key] = few_records(task)
        return self._few[key]

    @staticmethod
    def _key(task: AgreedTask, arrays: Mapping[str, Floats]) -> tuple[object, ...]:
        return (task.agreed.digest, task.label, *sorted((name, array.shape) for name, array in arrays.items()))
