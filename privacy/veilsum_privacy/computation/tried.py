"""What a process has tried without records, so that it does not try all of it again each round."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.computation.contribution import Evaluations, Graphs
from veilsum_privacy.computation.rehearsal import few_records, rehearse
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.tasks.agreed import AgreedTask

MOST_TRIED = 1024

MOST_KEPT = 64
"""Tasks whose few made-up records are kept."""


class Tried:
    """Tasks that were computed without records, each with the names and shapes of the arrays that it took beside them.

    Attributes:
        graphs: of their rows, and of the last round's.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._few: dict[tuple[object, ...], Records] = {}
        self.graphs = Graphs()

    def __len__(self) -> int:
        return len(self._seen)

    def rehearse(self, task: AgreedTask, arrays: Mapping[str, Floats] | None, evaluations: Evaluations | None = None) -> None:
        """Compute a task without records: on all made-up ones for a set of arrays of other names or shapes, on a few for the
        values of every round; or, where no arrays are given, on made-up ones.

        Args:
            evaluations: of the round that brings the arrays, which keep its graph ready; None where there is no such round.

        Raises:
            HostileInput: it fails.
        """
        if arrays is None:
            if not rehearse(task, graphs=self.graphs):  # nothing was made up but records, so its rounds would try the same
                self._add(task, {})
            return
        known = self._key(task, arrays) in self._seen
        if known and not arrays:
            return
        rehearse(task, arrays, again=self._of_few(task) if known else None, graphs=self.graphs, evaluations=evaluations)
        if not known:
            self._add(task, arrays)

    def _add(self, task: AgreedTask, arrays: Mapping[str, Floats]) -> None:
        """Remember that they were; whoever chooses their shapes fills no memory."""
        if len(self._seen) >= MOST_TRIED:
            self._seen.clear()
        self._seen.add(self._key(task, arrays))

    def _of_few(self, task: AgreedTask) -> Records:
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
