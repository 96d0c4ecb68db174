"""A study that is stopped in a phase: honest participants, the real servicers without a network, and what is sent next."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate
from google.protobuf.message import Message

from support.channels import OpenChannel
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from veilsum.local.federation import as_directive
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.coordination import Coordination
from veilsum_coordinator.service.guard import Guard
from veilsum_coordinator.service.metrics import Metrics
from veilsum_coordinator.service.runner import run_study
from veilsum_coordinator.service.studies import Studies
from veilsum_node.identity import Credentials
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.session.channel import UndeliveredError
from veilsum_proto import federation_pb2 as pb

PHASES = ("enrolling", "sealing", "contributing", "checking", "consenting", "over")
NAMES = "abc"


class Refused(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that the coordinator ended with a status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text


class _Context:
    """What a handler sees of a call."""

    def __init__(self, certificate: bytes) -> None:
        self._shown = load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._shown]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise Refused(code, text)


@dataclass(frozen=True)
class Call:
    """One call: who, which method, which messages."""

    caller: str
    method: str
    messages: tuple[Message, ...]


class Stub:
    """A participant's stub whose calls go straight into the servicers, or are only written down."""

    def __init__(self, stage: Stage, caller: str) -> None:
        self._stage, self._caller = stage, caller
        self.recorded: list[Call] | None = None

    def __getattr__(self, method: str) -> Any:
        def call(request: Any, timeout: float | None = None) -> Any:
            messages = tuple(request) if isinstance(request, Iterator) else (request,)
            if self.recorded is not None and method not in ("Fetch", "UploadStatus"):
                self.recorded.append(Call(self._caller, method, messages))
                return pb.Ack()
            answers = self._stage.call(Call(self._caller, method, messages))
            return iter(answers) if method == "Fetch" else answers[0]

        return call


class Stage:
    """A federation of three whose study can be brought to any phase.

    Attributes:
        key: of the present study.
        phase: in which it was stopped.
    """

    def __init__(self, directory: Path, width: int = 3) -> None:
        data = make_data(NAMES, 4, width)
        self.directory, self.width = directory, width
        self.bed: TestBed = make_bed(directory, data, max_lost=100)
        self.loop = asyncio.new_event_loop()
        self.metrics = Metrics(self.bed.clock)
        self.hub = self.bed.hub
        guard = self._guard = Guard(self.hub.credentials, self.bed.clock, self.metrics)
        self._services: list[Any] = []

        async def make() -> None:
            self._services += [Coordination(self.hub, guard, self.bed.clock)]
            self._services += [Studies(self.hub, guard, directory / "results", self.bed.clock)]

        self.loop.run_until_complete(make())
        self.cores = {name: ParticipantCore(site) for name, site in self.bed.sites.items()}
        self.credentials: dict[str, Credentials] = {name: site.credentials for name, site in self.bed.sites.items()}
        self.credentials |= {"analyst": self.bed.analyst, "coordinator": self.hub.credentials}
        self.channels: dict[str, OpenChannel] = {}
        for name, core in self.cores.items():
            channel = OpenChannel(grpc.insecure_channel("localhost:1"), core.site.credentials, self.bed.clock)
            channel.stub = Stub(self, name)  # type: ignore[assignment]
            channel.coordinator = self.hub.credentials.identity.name
            channel.coordinator_certificate = self.hub.credentials.identity.certificate
            self.channels[name] = channel
            self.hub.connect(name, core.site.nonce)
        self.key, self.phase = b"", ""

    def close(self) -> None:
        self.loop.close()
        for site in self.bed.sites.values():
            site.database.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def internal_errors(self) -> float:
        """How often a call met what no typed error says."""
        return float(self.metrics.registry.get_sample_value("veilsum_rejected_messages_total", {"reason": "internal"}) or 0)

    def call(self, call: Call) -> list[Any]:
        """Make a call; returns the answers, some of them for a stream that does not end.

        Raises:
            Refused: with a status.
        """
        service = next(item for item in self._services if hasattr(type(item), call.method))
        context = _Context(self.credentials[call.caller].identity.certificate)
        streams = call.method in ("Seal", "Upload")
        request = _stream(call.messages) if streams else call.messages[0]

        async def run() -> list[Any]:
            given = getattr(service, call.method)(request, context)
            if not hasattr(given, "__aiter__"):
                return [await self._guard.unary(context, lambda: given)]
            answer, found = self._guard.stream(context, lambda: given), list[Any]()
            try:
                while len(found) < 100:
                    message = await asyncio.wait_for(anext(answer), 0.02 if call.method in ("Work", "Watch") else 10)
                    found.append(pb.Chunk.FromString(message) if isinstance(message, bytes) else message)
            except (StopAsyncIteration, TimeoutError):
                pass
            await answer.aclose()
            return found

        return self.loop.run_until_complete(run())

    def bring_to(self, phase: str) -> None:
        """Abort the present study, and bring a new one to a phase with honest answers only."""
        if self.key:
            self.hub.abort(self.key, "next")
        for name, core in self.cores.items():  # who was pushed out of its session is back
            self.hub.connect(name, core.site.nonce)
        self._drive(lambda: False)
        signed = self.bed.signed(self.bed.compile(make_request(schema_of(self.width), epsilon=None)))
        self.key, self.phase = self.hub.submit("analyst", signed), phase
        machine = self.hub.studies[self.key].machine
        if phase == "enrolling":
            return
        self._drive(lambda: machine.phase is not StudyPhase.ENROLLING)
        if phase == "sealing":
            return
        self._drive(lambda: machine.phase is not StudyPhase.SEALING)
        if phase == "over":
            self.finish()
            return
        with self.hub.changing(self.key):
            machine.start_round("statistics", ())
        wanted = RoundPhase(phase)
        self._drive(lambda: machine.round is None or machine.round.phase is wanted)

    def finish(self) -> None:
        """Run the present study's method to its end with honest answers."""
        federation = self.bed.local.prepare(self.key)
        run_study(self.hub, self.key, federation, self.directory / "results")
        self._drive(lambda: False)

    def _drive(self, done: Any) -> None:
        for _ in range(30):
            worked = False
            for name, core in self.cores.items():
                for directive in self.hub.directives(name):
                    if done():
                        return
                    worked = True
                    try:
                        core.handle(as_directive(directive), self.channels[name])
                    except UndeliveredError:
                        continue
            self.hub.tick()
            if done() or not worked:
                return

    def next_calls(self) -> list[Call]:
        """What the honest participants would say next."""
        found: list[Call] = []
        for name, core in self.cores.items():
            stub: Any = self.channels[name].stub
            stub.recorded = found
            try:
                for directive in self.hub.directives(name):
                    core.handle(as_directive(directive), self.channels[name])
            except UndeliveredError:
                continue
            finally:
                stub.recorded = None
        return found


async def _stream(messages: Iterable[Message]) -> AsyncIterator[Message]:
    for message in messages:
        yield message
