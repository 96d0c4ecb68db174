"""Tasks that another process traces: the guard's side, which imports no task; what a study needs of it is :mod:`.compiled`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from veilsum_node.errors import Misuse
from veilsum_participant.studies import Studies
from veilsum_participant.worker.keeping import Pool
from veilsum_participant.worker.starting import WorkerStarter

if TYPE_CHECKING:
    from veilsum_aggregation.arrays import Floats
    from veilsum_participant.worker.compiled import CompiledStudy, Compiling
    from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask
    from veilsum_privacy.computation.following import Following
    from veilsum_privacy.study.study import Study


class WorkerStudies(Studies):
    """Tasks are traced in processes of their own; see :class:`veilsum_participant.studies.Studies`."""

    def __init__(self, starter: WorkerStarter) -> None:
        super().__init__()
        self._starter = starter
        self._compilers: Pool[bytes, Compiling] = Pool(self._made, wait=False)

    def _made(self, data: bytes) -> Compiling:
        from veilsum_participant.worker.compiled import Compiling

        return Compiling(self._starter, data)

    def parsed(self, data: bytes) -> CompiledStudy:
        from veilsum_participant.worker.compiled import CompiledStudy
        from veilsum_privacy.study.study import parse_study

        return CompiledStudy(parse_study(data), lambda: self._compilers.of(data))

    def rehearse(self, task: DeclaredTask, arrays: Mapping[str, Floats] | None) -> None:
        from veilsum_participant.worker.compiled import CompiledTask

        if not isinstance(task, CompiledTask):
            raise Misuse("A task is tried where it is traced.")
        task.rehearse(arrays)

    def follow(self, agreed: DeclaredStudy, kept: bytes) -> Following:
        from veilsum_participant.worker.compiled import CompiledModel, CompiledStudy

        if not isinstance(agreed, CompiledStudy):
            raise Misuse("A study is followed where its tasks are traced.")
        return CompiledModel(agreed.compiler, kept)

    def asked(self, study: Study) -> Mapping[str, str]:
        data = study.to_bytes()
        return self._compilers.of(data).asked(data)

    def forget(self, digest: bytes) -> None:
        with self._lock:
            over = {data for data, found in self._known.items() if found.digest == digest}
        super().forget(digest)
        self._compilers.drop(over.__contains__)

    def close(self) -> None:
        """End all compilers."""
        self._compilers.close()
