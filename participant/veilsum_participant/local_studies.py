"""Studies whose tasks are traced in this process: for simulation, tests, commands and a site that is one process."""

from __future__ import annotations

from collections.abc import Mapping

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_participant.studies import Studies
from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask
from veilsum_privacy.computation.following import Following
from veilsum_privacy.computation.tried import Tried
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.followed import followed_model


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

    def _followed(self, agreed: DeclaredStudy, kept: bytes) -> Following | None:
        if not isinstance(agreed, AgreedStudy):
            raise Misuse("A study is followed where its tasks are traced.")
        return followed_model(agreed, kept)

    def asked(self, study: Study) -> Mapping[str, str]:
        return asked_facts(study)
