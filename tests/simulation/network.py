"""The network between a participant and the hub: each call can lose its request or its response, come late or twice.

A call that gets no answer raises :class:`LostError`, as gRPC's errors end a session; what the coordinator
rejects comes back as :class:`RejectedError`, which a participant only logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from simulation.disks import Died
from simulation.parties import Process
from veilsum_coordinator.protocol.accumulator import OutOfOrder
from veilsum_coordinator.service.hub import Hub
from veilsum_node.errors import RefusalCode, VeilsumError
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import federation_pb2 as pb

if TYPE_CHECKING:
    from simulation.turns import Turns

Result = TypeVar("Result")

FATES = ("lose-request", "lose-response", "twice", "late", "held", "slow")
"""What can happen to a call: the last two let the history go on before its request, or its response, arrives."""

UPLOAD_TRIES = 5


class LostError(Exception):
    """A call got no answer."""


class RejectedError(Exception):
    """The coordinator answered that it does not want that."""


class Link:
    """Implements :class:`~veilsum_participant.protocol.core.Channel` for one turn of one participant.

    Args:
        fates: what happens to the call of a number, from 0.
        echo: where the coordinator has an object no longer, what the participant got of the same round before comes again.
    """

    def __init__(self, world: Turns, process: Process, fates: dict[int, str], *, echo: bool = False) -> None:
        self._world, self._process, self._fates, self._count = world, process, fates, 0
        self._echo = echo
        identity = world.coordinator.credentials.identity
        self.coordinator, self.coordinator_certificate = identity.name, identity.certificate

    def greet_again(self) -> bool:
        self._call(lambda _: None)
        return False

    def fetch(self, kind: pb.ObjectKind.ValueType, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        kept = self._process.fetched
        try:
            found = self._call(lambda hub: hub.objects.fetch(self._process.name, kind, study, number, attempt))
        except RejectedError:
            if self._echo and (kind, study, number) in kept:
                return kept[kind, study, number]
            raise
        kept.setdefault((kind, study, number), found)  # of a mirror the next one shows more
        return found

    def enrol(self, study: bytes, enrolment: Enrolment) -> None:
        self._call(lambda hub: hub.enrol(self._process.name, study, enrolment))

    def refuse(
        self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: pb.DirectiveKind.ValueType
    ) -> None:
        self._process.answered += 1
        self._world.checks.refused(self._process, codes)
        code, *more = (item.value for item in codes)
        self._call(lambda hub: hub.refuse(self._process.name, study, code, number, attempt, more, answers))

    def seal(self, study: bytes, boxes: Sequence[Box]) -> None:
        self._call(lambda hub: hub.seal(self._process.name, study, boxes))

    def ready(self, study: bytes) -> None:
        self._call(lambda hub: hub.ready(self._process.name, study))

    def upload(self, study: bytes, payload: Payload) -> None:
        self._process.answered += 1
        self._world.checks.uploading(self._process, study, payload)
        for left in reversed(range(UPLOAD_TRIES)):
            try:
                self._upload(study, payload, asks=payload.resumed or left < UPLOAD_TRIES - 1)
            except (LostError, OutOfOrder) as error:
                if not left:
                    raise LostError from error
            else:
                return

    def _upload(self, study: bytes, payload: Payload, *, asks: bool) -> None:
        name, attempt, start = self._process.name, payload.attempt, 0
        if asks:
            start, complete = self._call(lambda hub: hub.upload_status(name, study, attempt))
            if complete:
                return
        for index in range(start, len(payload.pieces)):
            self._call(lambda hub, index=index: hub.upload(name, study, attempt, index, bytes(payload.pieces[index])))
        self._call(lambda hub: hub.receipt(name, study, attempt, part_of_receipt(payload.receipt)))

    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        self._world.checks.checked(self._process, study, attempt, words, signature)
        self._call(lambda hub: hub.answer(self._process.name, study, attempt, words, signature))

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        self._world.checks.consenting(self._process, study, number, attempt, consent, signature)
        self._call(lambda hub: hub.consent(self._process.name, study, attempt, consent, signature))

    def confirm(self, study: bytes, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        self._call(lambda hub: hub.confirm(self._process.name, study, kind, number, attempt))

    def connect(self, nonce: bytes) -> int:
        """Open the session."""
        serial: int = self._call(lambda hub: hub.connect(self._process.name, nonce))
        return serial

    def directives(self) -> list[pb.Directive]:
        """What the session's stream brings now."""
        name = self._process.name

        def ask(hub: Hub) -> list[pb.Directive]:
            return [hub.objects.enclose(name, directive) for directive in hub.directives(name)]

        found: list[pb.Directive] = self._call(ask)
        for directive in found:  # every second one is fetched: both ways must lead to the same
            if directive.HasField("object") and (directive.attempt + len(name) + len(self._fates)) % 2:
                directive.ClearField("object")
        return found

    def _call(self, send: Callable[..., Any]) -> Any:
        world, process = self._world, self._process
        fate, self._count = self._fates.get(self._count, ""), self._count + 1
        process.disk.point()
        if fate == "held":
            world.meanwhile()
        if process.cut or fate == "lose-request":
            raise LostError
        if fate == "late":
            world.late.append(send)
            raise LostError
        answer = self._deliver(send)
        if fate == "twice":
            self._again(send)
        if fate == "lose-response":
            raise LostError
        if fate == "slow":
            world.meanwhile()
        process.disk.point()
        return answer

    def _deliver(self, send: Callable[[Hub], Result]) -> Result:
        world = self._world
        if world.coordinator.hub is None:
            raise LostError
        try:
            return send(world.coordinator.hub)
        except Died as death:
            if world.coordinator.disk.dead and world.coordinator.hub is not None:
                world.coordinator.die()
                raise LostError from death
            raise
        except OutOfOrder:
            raise
        except VeilsumError as error:
            raise RejectedError(str(error)) from error

    def _again(self, send: Callable[[Hub], object]) -> None:
        try:
            self._deliver(send)
        except (LostError, RejectedError, VeilsumError):
            return
