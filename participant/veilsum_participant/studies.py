"""A site's studies as its guard asks for them: terms and graphs of tasks, and nothing here knows the tasks' code.

What traces them is handed to a site: :class:`veilsum_participant.local_studies.LocalStudies` in the same process, or
:class:`veilsum_participant.worker.compiling.WorkerStudies` in one of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veilsum_aggregation.arrays import Floats
    from veilsum_privacy.computation.contribution import Evaluations, Graphs
    from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask
    from veilsum_privacy.computation.following import Following
    from veilsum_privacy.study.study import Study

MOST_STUDIES = 32
"""Studies that a site remembers with all that follows from them; another one is worked out again."""


class Studies(ABC):
    """What a site asks of its studies."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, DeclaredStudy] = OrderedDict()
        self._lock = Lock()

    @cached_property
    def graphs(self) -> Graphs:
        """Of their rows, and of the last round's."""
        from veilsum_privacy.computation.contribution import Graphs

        return Graphs()

    def agreed(self, data: bytes) -> DeclaredStudy:
        """The study of signed bytes; remembered, for every message of a study needs it.

        Raises:
            HostileInput: as :func:`~veilsum_privacy.study.study.parse_study`. Its tasks are verified when they are asked for.
        """
        with self._lock:
            found = self._known.get(data)
        if found is None:
            found = self.parsed(data)
        with self._lock:
            found = self._known.setdefault(data, found)
            self._known.move_to_end(data)
            while len(self._known) > MOST_STUDIES:
                self._known.popitem(last=False)
        return found

    @abstractmethod
    def parsed(self, data: bytes) -> DeclaredStudy:
        """As :meth:`agreed`, anew."""

    def forget(self, digest: bytes) -> None:
        """Let go of a study that is over."""
        with self._lock:
            self._known = OrderedDict((data, found) for data, found in self._known.items() if found.digest != digest)
        self.graphs.forget(digest)

    def evaluations(self, task: DeclaredTask) -> Evaluations:
        """What keeps a round's graph ready, for as long as the round takes."""
        from veilsum_privacy.computation.contribution import Evaluations

        return Evaluations(self.graphs, task)

    @abstractmethod
    def rehearse(self, task: DeclaredTask, arrays: Mapping[str, Floats] | None) -> None:
        """Try a task without records: on what a round broadcasts, or on something made up where that is None.

        Raises:
            HostileInput: it fails; no record had a part in that.
            Unavailable: what traces it is away.
        """

    @abstractmethod
    def follow(self, agreed: DeclaredStudy, kept: bytes) -> Following:
        """The model of a study that declares its steps, from what was kept of it.

        Raises:
            Misuse: it declares none, or its tasks are not traced here.
            HostileInput: a declaration contradicts its task.
            Damage: what was kept cannot be read.
        """

    @abstractmethod
    def asked(self, study: Study) -> Mapping[str, str]:
        """What a study asks, each fact by its name; in words, for who decides on it."""

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of everything."""
