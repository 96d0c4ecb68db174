"""Studies whose tasks are traced in this process: for simulation, tests, commands and a site that is one process."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_participant.studies import Studies
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.computation.tried import Tried
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask


class LocalStudies(Studies):
    """See :class:`veilsum_participant.studies.Studies`."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = Tried()
        self.graphs = self.tried.graphs

    def parsed(self, data: bytes) -> AgreedStudy:
        return AgreedStudy.parse(data)

    def rehearse(self, task: DeclaredTask, arrays: Mapping[str, Floats] | None) -> None:
        if not isinstance(task, AgreedTask):
            raise Misuse("A task is tried where it is traced.")
        self.tried.rehearse(task, arrays)

    def asked(self, study: Study) -> Mapping[str, str]:
        return asked_facts(study)
