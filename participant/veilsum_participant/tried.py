"""What a site's process has tried without records, so that it does not try it again each round."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_privacy.securesum.agreed import AgreedTask
from veilsum_privacy.tasks.base import Floats

MOST_TRIED = 1024


class Tried:
    """Tasks that were computed without records, each with the names and shapes of the arrays that it took beside them."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

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

    @staticmethod
    def _key(task: AgreedTask, arrays: Mapping[str, Floats]) -> tuple[object, ...]:
        return (task.agreed.digest, task.label, *sorted((name, array.shape) for name, array in arrays.items()))
