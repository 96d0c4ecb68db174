"""A federation in one process: the same hub, the same participants, the same rounds, without a network.

The channel hands a participant's messages straight to the hub under the participant's name; the wait between a round's
phases drives the participants. Nothing of the protocol is left out.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.results.released_models import find_released
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.runner import HubFederation, run_study
from veilsum_node.errors import HostileInput, RefusalCode, StateError
from veilsum_node.identity import Credentials, Label
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.front import Directive, ObjectKind
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

_STORED_SECONDS = 30.0
"""How long a finished study waits for a database that is away."""


def as_directive(sent: pb.Directive | Directive) -> Directive:
    """A directive as a participant reads it; one that it gave itself is that already."""
    return sent if isinstance(sent, Directive) else read(sent.SerializeToString(), Directive)


class LocalChannel:
    """Implements :class:`~veilsum_participant.protocol.core.Channel` on a hub in the same process."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub, self._name = hub, name
        self.coordinator = hub.credentials.identity.name
        self.coordinator_certificate = hub.credentials.identity.certificate

    def greet_again(self) -> bool:
        former, self.coordinator_certificate = self.coordinator_certificate, self._hub.credentials.identity.certificate
        return self.coordinator_certificate != former

    def fetch(self, kind: ObjectKind, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        return self._hub.objects.fetch(self._name, cast(pb.ObjectKind.ValueType, kind), study, number, attempt)

    def enrol(self, study: bytes, enrolment: Enrolment) -> None:
        self._hub.enrol(self._name, study, enrolment)

    def refuse(self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: int) -> None:
        code, *more = (item.value for item in codes)
        self._hub.refuse(self._name, study, code, number, attempt, more, cast(pb.DirectiveKind.ValueType, answers))

    def seal(self, study: bytes, boxes: Sequence[Box]) -> None:
        self._hub.seal(self._name, study, boxes)

    def ready(self, study: bytes) -> None:
        self._hub.ready(self._name, study)

    def upload(self, study: bytes, payload: Payload) -> None:
        start = 0
        if payload.resumed:
            start, complete = self._hub.upload_status(self._name, study, payload.attempt)
            if complete:
                return
        for index in range(start, len(payload.pieces)):
            self._hub.upload(self._name, study, payload.attempt, index, bytes(payload.pieces[index]))
        self._hub.receipt(self._name, study, payload.attempt, part_of_receipt(payload.receipt))

    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        self._hub.answer(self._name, study, attempt, words, signature)

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        self._hub.consent(self._name, study, attempt, consent, signature)

    def confirm(self, study: bytes, kind: int, number: int, attempt: int) -> None:
        self._hub.confirm(self._name, study, cast(pb.DirectiveKind.ValueType, kind), number, attempt)


class LocalFederation:
    """Participants of one process around a hub.

    Args:
        cores: participants by certified name.
        clock: unix seconds.
    """

    def __init__(self, hub: Hub, cores: dict[str, ParticipantCore], clock: Callable[[], int]) -> None:
        self.hub, self.cores, self._clock = hub, cores, clock
        for name, core in cores.items():
            hub.connect(name, core.site.nonce)

    def step(self) -> bool:
        """Let every participant answer what is open for it, once; returns whether anything was open or has changed."""
        worked = False
        for name, core in self.cores.items():
            channel = LocalChannel(self.hub, name)
            for directive in self.hub.directives(name):
                worked = True
                try:
                    core.handle(as_directive(directive), channel)
                except HostileInput:
                    # another answer of this step made the directive stale, as a reconnect would show
                    continue
        before = self.hub.changes
        self.hub.tick()
        return worked or self.hub.changes != before

    def submit(self, study: Study, analyst: Credentials) -> bytes:
        """Sign and submit a study; returns its digest."""
        data = study.to_bytes()
        signature = analyst.signing_key.sign(Label.STUDY, data)
        certificate = analyst.identity.certificate
        message = pb.StudyObject(study=data, signature=signature, certificate=certificate)
        return self.hub.submit(analyst.identity.name, message)

    def prepare(self, key: bytes, results: Path | None = None, *, checkpoints: bool = False) -> HubFederation:
        """Drive enrolment and the exchange of keys; returns the federation for the study's method.

        Args:
            results: where results lie, of which one released the projection of a study that has one.
            checkpoints: whether models in between are kept there.

        Raises:
            StateError: the study failed or cannot go on, or its projection is not found.
        """
        if (entry := self.hub.studies.get(key)) is None:
            status = self.hub.shown.status(key)
            raise StateError(f"The study is {status.phase}: {status.reason}.")
        machine = entry.machine
        while machine.phase in (StudyPhase.ENROLLING, StudyPhase.SEALING):
            self._advance()
        if machine.phase is not StudyPhase.RUNNING:
            raise StateError(f"The study is {machine.phase.value}: {machine.reason}.")
        encoder = {} if results is None else find_released(results, machine.study)
        kept = results if checkpoints else None
        return HubFederation(self.hub, key, self._advance, self._clock, encoder=encoder, results=kept)

    def run(self, study: Study, analyst: Credentials, results: Path) -> pb.StudyStatus:
        """Run a whole study: submit, exchange keys, run its method; the result lies in :func:`results_directory`.

        Returns:
            The finished study's status.

        Raises:
            StateError: the study failed; the message has its reason.
        """
        key = self.submit(study, analyst)
        run_study(self.hub, key, self.prepare(key, results), results)
        self.settle()
        until = time.monotonic() + _STORED_SECONDS
        while not self.hub.stored(key) and time.monotonic() < until:
            time.sleep(0.05)
            self.step()
        status = self.hub.shown.status(key)
        if status.phase != StudyPhase.FINISHED.value:
            raise StateError(f"The study {study.name!r} {status.phase}: {status.reason}.")
        return status

    def settle(self) -> None:
        """Drive the participants until nothing is open any more."""
        while self.step():
            pass

    def _advance(self) -> None:
        if not self.step():
            raise StateError("Deadlock: the study is unfinished and no directive is open.")


def results_directory(base: Path, key: bytes) -> Path:
    """Where a study's result lies."""
    return base / key.hex()
