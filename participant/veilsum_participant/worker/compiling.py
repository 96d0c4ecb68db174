"""Tasks that another process traces: the guard's side, which imports no task.

A compiler is of one study, and is ended after :data:`.keeping.IDLE` seconds without work. It meets no record, so that it
fails follows from what is public or noised. Whoever takes it over can have another question asked of a study's columns than
the study says, at the price that the study declares: what it says of a task is held to the declaration
(:func:`veilsum_privacy.computation.terms.check_terms`), its graphs are made anew of the kernel's primitives and name columns
of the study's schema alone, and rows are clipped and noised as any (:mod:`.compiled`, which is loaded with the first study).
One that ends, or breaks a bound, is started once more; a study whose tasks cannot be traced twice is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.compiler import AskWords, CompilerFault, TakeBroadcast, TakeStudy, TaskSaid, TryTask
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.studies import Studies
from veilsum_participant.worker.keeping import Kept, Pool
from veilsum_participant.worker.starting import WorkerStarter

if TYPE_CHECKING:
    from veilsum_aggregation.arrays import Floats
    from veilsum_participant.worker.compiled import CompiledStudy
    from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask
    from veilsum_privacy.computation.following import Following
    from veilsum_privacy.study.study import Study

LOG = logging.getLogger("veilsum.participant")

_R = TypeVar("_R", bound=Message)


class Compiling(Kept):
    """The compiler of one study; started when it is needed.

    Args:
        starter: of processes.
        study: its bytes.
    """

    def __init__(self, starter: WorkerStarter, study: bytes) -> None:
        super().__init__(starter, "compiler", CompilerFault)
        self._study = study
        self._said: tuple[TaskSaid, ...] | None = None
        self._meant: Mapping[str, Floats] | None = None

    def said(self, index: int) -> TaskSaid:
        """What was said of a task by its place in the study.

        Raises:
            HostileInput: the study's tasks cannot be traced.
            Unavailable: no compiler can be started.
        """
        with self.lock:
            if self._said is None:
                self._twice(lambda: None)
            if self._said is None or index >= len(self._said):
                raise HostileInput("The study's tasks cannot be traced.")
            return self._said[index]

    def ask(self, request: Inquiry[_R], broadcast: Mapping[str, Floats] | None = None) -> _R:
        """Ask about the study, and about these arrays.

        Raises:
            HostileInput, Misuse: it refuses, by what it is given; or it cannot do it.
            Unavailable: no compiler can be started.
        """
        with self.lock:
            return self._twice(lambda: self._asked(request, broadcast))

    def once(self, request: Inquiry[_R], broadcast: Mapping[str, Floats] | None = None) -> _R:
        """:meth:`ask` of a compiler that went on from what it was asked before: one that ends does not begin anew."""
        with self.lock:
            try:
                return self._asked(request, broadcast)
            except BrokenError as error:
                self.end()
                raise Misuse("What traces the study's tasks ended.") from error

    def _twice(self, work: Callable[[], _R | None]) -> _R:
        for last in (False, True):
            try:
                self._begin()
                return work()  # type: ignore[return-value]
            except BrokenError as error:
                self.end()
                if last:
                    raise HostileInput(
                        "The study's tasks cannot be traced: the process that does it ends each time."
                    ) from error
                LOG.warning("what traces a study's tasks ended and is started once more: %s", error)
        raise AssertionError

    def _begin(self) -> None:
        if self.begin() is None:
            return
        self._meant = None
        tasks = self._told(TakeStudy(self._study)).tasks
        if self._said is not None and tasks != self._said:
            raise BrokenError("A study's tasks are not what they were said to be.")
        self._said = tasks

    def _asked(self, request: Inquiry[_R], broadcast: Mapping[str, Floats] | None) -> _R:
        if broadcast is not None and not _same(broadcast, self._meant):
            from veilsum_privacy.securesum.context import encode_broadcast

            self._told(TakeBroadcast(encode_broadcast(broadcast)))
            self._meant = broadcast
        return self._told(request)

    def _told(self, request: Inquiry[_R]) -> _R:
        try:
            return self.call(request)
        except CallFailedError as error:
            if not isinstance(error.failure, CompilerFault):
                raise Misuse("What traces the study's tasks failed.") from error
            words, advice = printable(error.failure.words), printable(error.failure.advice)
            raise (HostileInput if error.failure.refused else Misuse)(words, advice) from error


class WorkerStudies(Studies):
    """Tasks are traced in processes of their own; see :class:`veilsum_participant.studies.Studies`."""

    def __init__(self, starter: WorkerStarter) -> None:
        super().__init__()
        self._compilers: Pool[bytes, Compiling] = Pool(lambda data: Compiling(starter, data), wait=False)

    def parsed(self, data: bytes) -> CompiledStudy:
        from veilsum_participant.worker.compiled import CompiledStudy
        from veilsum_privacy.study.study import parse_study

        return CompiledStudy(parse_study(data), lambda: self._compilers.of(data))

    def rehearse(self, task: DeclaredTask, arrays: Mapping[str, Floats] | None) -> None:
        from veilsum_participant.worker.compiled import CompiledTask

        if not isinstance(task, CompiledTask):
            raise Misuse("A task is tried where it is traced.")
        request = TryTask(task.label, int(arrays is None))
        with told_as(HostileInput, Misuse, what=f"Task {task.label!r}"):
            task.agreed.compiler().ask(request, arrays)

    def follow(self, agreed: DeclaredStudy, kept: bytes) -> Following:
        from veilsum_participant.worker.compiled import CompiledModel, CompiledStudy

        if not isinstance(agreed, CompiledStudy):
            raise Misuse("A study is followed where its tasks are traced.")
        return CompiledModel(agreed.compiler, kept)

    def asked(self, study: Study) -> Mapping[str, str]:
        data = study.to_bytes()
        return {fact.name: printable(fact.told) for fact in self._compilers.of(data).ask(AskWords(data)).facts}

    def close(self) -> None:
        """End all compilers."""
        self._compilers.close()


def _same(broadcast: Mapping[str, Floats], meant: Mapping[str, Floats] | None) -> bool:
    return meant is not None and meant.keys() == broadcast.keys() and all(meant[name] is broadcast[name] for name in meant)
