"""One process that hosts many participants: each the product's client with its own certificate, store, ledger and connection.

``python -m load.host SPEC``: a JSON file (:class:`Spec`). It runs until its standard input ends, and writes what its
participants do as lines of JSON: ``[time, end, name, kind, study, round, attempt, error]``, where the kind is a directive's,
or ``dial``, ``open``, ``lost`` of a session.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from cryptography import x509
from grpc import _common
from sqlalchemy import event
from sqlalchemy.util import LRUCache

from veilsum_node.errors import HostileInput
from veilsum_node.process.hardening import allow_files
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.front import Directive, DirectiveKind, ObjectKind, StudyObject
from veilsum_participant.front import channel as wire
from veilsum_participant.front.answering import Front, told
from veilsum_participant.protocol import membership, open_studies
from veilsum_participant.protocol.payloads import Payload
from veilsum_participant.session import client as sessions
from veilsum_participant.session.channel import SiteChannel, UndeliveredError
from veilsum_participant.session.client import Client, open_site
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.telling import dialling
from veilsum_participant.site import SiteObserver
from veilsum_privacy.securesum.roster import Roster
from veilsum_proto import federation_pb2 as pb

SILENT = {
    "never enrols": (DirectiveKind.ENROL,),
    "never seals": (DirectiveKind.SEAL,),
    "never contributes": (DirectiveKind.CONTRIBUTE,),
}
"""Roles that do not answer a directive of these kinds, nor any that comes after."""

IDLE_SECONDS = 5.0
"""How often a participant that waits looks around."""

FLOODS = 12
"""Calls that a greedy participant keeps open at once, beside its honest ones."""


@dataclass(frozen=True)
class Spec:
    """What a process hosts.

    Attributes:
        participants: their configurations, as JSON values, by name.
        events: file that lines are added to.
        roles: what else than honest one is: of :data:`SILENT`, or "greedy".
        stalled: names of studies whose uploads everyone here begins and never ends.
    """

    participants: dict[str, dict[str, Any]]
    events: str
    roles: dict[str, str] = field(default_factory=dict)
    stalled: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it for a process to read."""
        path.write_text(json.dumps(asdict(self)))


class Record(SiteObserver):
    """Writes down what one participant does."""

    def __init__(self, name: str, output: TextIO) -> None:
        self._name, self._output = name, output

    def line(self, start: float, kind: str, study: str = "", number: int = 0, attempt: int = 0, error: str = "") -> None:
        """Add a line; one ``write`` each, so that threads do not mix them."""
        self._output.write(json.dumps([start, time.time(), self._name, kind, study, number, attempt, error]) + "\n")

    def session_opened(self, send: object) -> None:
        self.line(time.time(), "open")

    def session_ended(self) -> None:
        self.line(time.time(), "lost")


_TURNS = threading.Semaphore(2)

_STATEMENTS: Any = LRUCache(1000)
"""Statements as all of a process's participants compile them: each would do so once in a process of its own."""


def _in_turn(work: Callable[..., Any]) -> Callable[..., Any]:
    """Let few of a process's participants compute at a time; each of them has a machine of its own, in truth.

    Calls are not held back: whoever has computed talks to the coordinator beside all others.
    """

    def turn(*arguments: Any, **named: Any) -> Any:
        with _TURNS:
            return work(*arguments, **named)

    return turn


@lru_cache(maxsize=64)
def _verified(data: bytes, study: bytes, digest: bytes, authority: x509.Certificate, hour: int) -> Roster:
    return open_studies.verify_roster(
        open_studies.load_enrolments(data), open_studies.parse_study(study), digest, authority, 3600 * hour
    )


def _shared_roster(data: bytes, study: bytes, digest: bytes, authority: x509.Certificate, at: int) -> Roster:
    """A verified roster, once an hour: a site's process has this memory and time to itself, here many share them."""
    return _verified(data, study, digest, authority, -(-at // 3600))


class Hosted(Client):
    """A participant's client that tells what it does, and may have a role.

    The sessions, the channel, the workers and the core are the product's.
    """

    def __init__(self, config: ParticipantConfig, output: TextIO, role: str, stalled: frozenset[str]) -> None:
        opened = open_site(config, clock=lambda: int(time.time()), same_key=True)
        engine = opened.database.engine
        engine._compiled_cache = _STATEMENTS
        engine.dispose()
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA cache_size = -256"))
        self.front = Front()
        super().__init__(opened, lambda: Direct(self.front.answer, told))
        self.record = Record(opened.name, output)
        opened.observer = self.record
        for part, names in (
            (self.core.membership, ("on_study", "on_roster", "on_boxes")),
            (self.core.contributions, ("on_assignment",)),
            (self.core.openings, ("on_fixed", "on_answers")),
        ):
            for method in names:
                setattr(part, method, _in_turn(getattr(part, method)))
        self.core.handle = self._recorded(self.core.handle, SILENT.get(role, ()), stalled)  # type: ignore[method-assign]

    def _session(self) -> None:
        self.record.line(time.time(), "dial")
        super()._session()

    def _recorded(self, handle: Any, silent: tuple[int, ...], stalled: frozenset[str]) -> Any:
        gone: set[bytes] = set()
        stalls: set[bytes] = set()

        def noted(directive: Directive, channel: SiteChannel) -> None:
            start, fault, key = time.time(), "", bytes(directive.study)
            if directive.kind in silent:
                gone.add(key)
            if directive.kind == DirectiveKind.ENROL and stalled:
                sent = read(channel.fetch(ObjectKind.STUDY, key), StudyObject)
                if json.loads(sent.study)["name"] in stalled:
                    stalls.add(key)
            try:
                if key not in gone:
                    handle(directive, _Stalling(channel, self.front) if key in stalls else channel)
            except Exception as error:
                fault = error.status.name if isinstance(error, UndeliveredError) else type(error).__name__
                raise
            finally:
                kind = DirectiveKind(directive.kind).name.lower()
                self.record.line(start, kind, key.hex(), directive.round, directive.attempt, fault)

        return noted


class _Stalling:
    """A channel whose uploads begin and never end: the first chunk, then silence for as long as the coordinator lets them."""

    def __init__(self, channel: SiteChannel, front: Front) -> None:
        self._channel, self._front = channel, front

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def upload(self, study: bytes, payload: Payload) -> None:
        def first() -> Iterator[pb.UploadChunk]:
            chunk = pb.UploadChunk(index=0, data=bytes(payload.pieces[0]))
            chunk.study, chunk.round, chunk.attempt = study, payload.round, payload.attempt
            yield chunk
            time.sleep(wire.STREAM_SECONDS)

        self._front.wire.stub.Upload(first(), timeout=wire.STREAM_SECONDS)


def flood(client: Client, counts: list[int]) -> None:
    """Call as fast as the coordinator answers, on connections of one's own, with what costs it most and changes nothing."""
    own = client.core.site
    front = Front()
    channel = SiteChannel(Direct(front.answer, told), own.credentials, own.clock)
    channel.dial(dialling(own.config.route))
    turn = 0
    while True:
        turn += 1
        try:
            match turn % 4:
                case 0:
                    channel.hello()
                case 1:
                    channel.fetch(ObjectKind.MIRRORED, bytes(32))
                case 2:
                    channel.confirm(bytes(32), DirectiveKind.END, 0, 0)
                case 3:
                    channel.version = 1
                    next(channel.directives(bytes(16)), None)  # opened anew each time, in place of the one before
            counts[0] += 1
        except (UndeliveredError, HostileInput):
            counts[1] += 1


def main() -> None:
    """Host participants until the standard input ends."""
    logging.getLogger("veilsum").setLevel(logging.ERROR)
    logging.basicConfig(stream=sys.stderr)
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    allow_files(8192)
    # So many looking at their deadlines, files and sockets every second would leave their process busy with little else.
    sys.setswitchinterval(0.05)  # each of many waiting threads asks for its turn so often
    sessions.TICK_SECONDS, _common.MAXIMUM_WAIT_TIMEOUT = IDLE_SECONDS, IDLE_SECONDS
    open_studies.verified_roster = membership.verified_roster = _shared_roster
    output = open(spec.events, "a", buffering=1)  # noqa: SIM115 - open as long as the process lives
    clients = [
        Hosted(
            ParticipantConfig.model_validate_json(json.dumps(config)),
            output,
            spec.roles.get(name, ""),
            frozenset(spec.stalled),
        )
        for name, config in spec.participants.items()
    ]
    gc.freeze()  # with many participants a full collection takes long, and comes often
    print("ready", flush=True)
    sys.stdin.readline()  # told to connect, all at once
    for client in clients:
        threading.Thread(target=client.run, daemon=True).start()
    counts = [0, 0]
    for client in clients:
        if spec.roles.get(client.core.site.name) == "greedy":
            for _ in range(FLOODS):
                threading.Thread(target=flood, args=(client, counts), daemon=True).start()
    sys.stdin.read()
    if any(counts):
        Record("flood", output).line(time.time(), "flood", number=counts[0], attempt=counts[1])
    output.flush()
    import os

    os._exit(0)  # what is on its way is for the coordinator to get over: nothing here stops cleanly


if __name__ == "__main__":
    main()
