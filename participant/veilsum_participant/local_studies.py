"""Studies whose tasks are traced in this process: for simulation, tests, commands and a site that is one process."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import ReferenceType, ref

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_participant.studies import Studies
from veilsum_privacy.computation.contribution import Evaluations
from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask
from veilsum_privacy.computation.following import Following
from veilsum_privacy.computation.tried import Tried
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.followed import followed_model


class LocalStudies(Studies):
    """See :class:`veilsum_participant.studies.Studies`.

    Args:
        shared: whether it is of several sites, whose records are in this process and one thread anyway. What one of them has
            made of a round's public arrays serves the others, and stays until the next round's.
    """

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.tried = Tried()
        self.graphs = self.tried.graphs
        self._shared = shared
        self._held: Evaluations | None = None
        self._round: tuple[DeclaredTask, ReferenceType[Evaluations]] | None = None

    def parsed(self, data: bytes) -> AgreedStudy:
        return AgreedStudy.parse(data)

    def evaluations(self, task: DeclaredTask) -> Evaluations:
        if self._shared and (found := self._of_round(task)) is not None:
            return found
        made = super().evaluations(task)
        self._round, self._held = (task, ref(made)), made if self._shared else None
        return made

    def rehearse(self, task: DeclaredTask, arrays: Mapping[str, Floats] | None) -> None:
        if not isinstance(task, AgreedTask):
            raise Misuse("A task is tried where it is traced.")
        self.tried.rehearse(task, arrays, self._of_round(task))

    def _of_round(self, task: DeclaredTask) -> Evaluations | None:
        """What was made for a round of the task and is still held."""
        return self._round[1]() if self._round is not None and self._round[0] is task else None

    def follow(self, agreed: DeclaredStudy, kept: bytes) -> Following:
        model = followed_model(agreed, kept) if isinstance(agreed, AgreedStudy) else None
        if model is None:
            raise Misuse("A study that declares its steps is followed where its tasks are traced.")
        return model

    def asked(self, study: Study) -> Mapping[str, str]:
        return asked_facts(study)
