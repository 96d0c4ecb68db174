"""A participant in a process of its own that is killed at a chosen write, beside a hub and other participants in this process.

The child is forked from a clean server that has loaded the code once, so hundreds of deaths take seconds. It speaks to the hub
over a pipe: each message of the protocol is one call that this process makes for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.reduction import ForkingPickler
from typing import Any

from sqlalchemy import event

from support.federation import Clock, open_test_site
from support.forked import FORKS
from veilsum.local.federation import LocalChannel, LocalFederation, as_directive
from veilsum_node.errors import HostileInput
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.front import Directive
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.openings import Openings
from veilsum_participant.protocol.recovery import begin_restored
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.store.attempts import is_mixed
from veilsum_proto import federation_pb2 as pb

WRITES = ("INSERT", "UPDATE", "DELETE")

EXPIRE, CATCH_UP = None, True
"""Work beside directives: the site's own deadlines, and what begins a session."""


class _Reaper:
    """Counts points at which a power cut would differ, and ends the process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.passed, self._fatal = 0, fatal

    def point(self) -> None:
        self.passed += 1
        if self.passed == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, database: Any) -> None:
        """Before each statement that writes, before and after each commit; after a statement comes one of these."""

        def statement(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
            if text.lstrip().upper().startswith(WRITES):
                self.point()

        event.listen(database.engine, "before_cursor_execute", statement)
        event.listen(database.engine, "commit", lambda _: self.point())
        commit = database.engine.dialect.do_commit

        def committed(connection: Any) -> None:
            commit(connection)
            self.point()

        database.engine.dialect.do_commit = committed


def _as_bytes(view: memoryview) -> tuple[type[bytes], tuple[bytes]]:
    """How a piece of a payload, which is a part of it that nobody copied, goes through a pipe."""
    return bytes, (bytes(view),)


ForkingPickler.register(memoryview, _as_bytes)


class _PipeChannel:
    """Implements the participant's channel by asking the parent process."""

    def __init__(self, pipe: Pipe, coordinator: str, certificate: bytes, reaper: _Reaper) -> None:
        self._pipe, self._reaper = pipe, reaper
        self.coordinator, self.coordinator_certificate = coordinator, certificate

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._reaper.point()
            self._pipe.send(("call", method, arguments, keywords))
            outcome, value = self._pipe.recv()
            self._reaper.point()
            if outcome == "raised":
                raise value
            return value

        return call


def charge_afterwards() -> None:
    """A fault to plant: a consent is durable before its charge, for which no later process looks."""
    charge = Openings._charge

    def later(self: Openings, connection: Any, row: Any, witness: Any) -> None:
        def make() -> None:
            with self._site.database.transaction() as another:
                charge(self, another, row, witness)

        event.listen(connection.engine, "checkin", lambda *_: make(), once=True)

    Openings._charge = later  # type: ignore[method-assign]
    globals()["is_mixed"] = lambda _: False


def _main(
    pipe: Pipe,
    config: ParticipantConfig,
    now: int,
    fatal: int,
    coordinator: str,
    certificate: bytes,
    plant: Callable[[], None] | None,
) -> None:
    if plant is not None:
        plant()
    clock = Clock()
    clock.now = now
    reaper = _Reaper(fatal)
    site = open_test_site(config, clock, SYSTEM_RANDOM)
    reaper.watch(site.database)
    with site.database.reading() as connection:
        mixed = is_mixed(connection)
    if mixed or site.restored() is not None:  # as a process of the product begins
        begin_restored(site)
    core = ParticipantCore(site)
    channel = _PipeChannel(pipe, coordinator, certificate, reaper)
    pipe.send(("nonce", site.nonce))
    while True:
        kind, value = pipe.recv()
        if kind == "stop":
            pipe.send(("passed", reaper.passed))
            return
        clock.now, work = value
        try:
            if work is EXPIRE:
                core.expire()
            elif work is CATCH_UP:
                core.catch_up(channel)  # type: ignore[arg-type]
            else:
                core.handle(read(work, Directive), channel)  # type: ignore[arg-type]
        except HostileInput:
            pass  # another answer made the directive stale, as a reconnect would show
        pipe.send(("done", None))


class MortalFederation(LocalFederation):
    """A federation in which a death ends the dead participant's session: it is told anew what is open for it."""

    def step(self) -> bool:
        worked = False
        for name, core in self.cores.items():
            channel = LocalChannel(self.hub, name)
            nonce = core.site.nonce
            for directive in self.hub.directives(name):
                worked = True
                with contextlib.suppress(HostileInput):  # another answer of this step made the directive stale
                    core.handle(as_directive(directive), channel)
                if core.site.nonce != nonce:
                    break
        self.hub.tick()
        return worked


class MortalProcess:
    """A participant's process that dies at its ``fatal``-th point (0: never), and is started again where that is known.

    ``plant`` puts a fault into it.

    Attributes:
        deaths: how often it died.
        nonce: of the present process.
    """

    nonce: bytes

    def __init__(
        self,
        config: ParticipantConfig,
        clock: Clock,
        coordinator: str,
        certificate: bytes,
        fatal: int,
        plant: Callable[[], None] | None = None,
    ) -> None:
        self._config, self._clock, self._coordinator, self._certificate = config, clock, coordinator, certificate
        self._plant = plant
        self.deaths = 0
        self.start(fatal)

    @property
    def site(self) -> MortalProcess:
        """What a core calls its site: it has the session's nonce."""
        return self

    def work(self, work: bytes | bool | None, channel: Any) -> bool:
        """Let it do a piece of work, :data:`EXPIRE`, :data:`CATCH_UP` or a directive; returns whether it died of it."""
        try:
            self._pipe.send(("work", (self._clock.now, work)))
            self._serve(channel)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._bury()
            return True
        return False

    def stop(self) -> int:
        """End the process; returns how many points it passed."""
        self._pipe.send(("stop", None))
        _, passed = self._pipe.recv()
        self._process.join()
        return int(passed)

    def start(self, fatal: int) -> None:
        """Begin anew on the same files; if it dies of that, once more."""
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(
            target=_main,
            args=(theirs, self._config, self._clock.now, fatal, self._coordinator, self._certificate, self._plant),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        try:
            _, self.nonce = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._bury()
            self.start(0)

    def _bury(self) -> None:
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL, f"the participant ended with {self._process.exitcode}"
        self.deaths += 1

    def _serve(self, channel: Any) -> None:
        while True:
            kind, *rest = self._pipe.recv()
            if kind == "done":
                return
            method, arguments, keywords = rest
            try:
                reply = ("value", getattr(channel, method)(*arguments, **keywords))
            except HostileInput as error:
                reply = ("raised", HostileInput(error.message, error.advice))
            self._pipe.send(reply)


class KillableSite(MortalProcess):
    """Such a process before a hub, to which it comes back by itself.

    It stands in for a core in :class:`~veilsum.local.federation.LocalFederation`.
    """

    def __init__(self, hub: Any, config: ParticipantConfig, name: str, clock: Clock, fatal: int) -> None:
        self._hub, self._name = hub, name
        super().__init__(config, clock, hub.credentials.identity.name, hub.credentials.identity.certificate, fatal)

    def handle(self, work: pb.Directive | Directive | None, _channel: object = None) -> None:
        """Let the participant act on a directive, or on its own deadlines; if it dies of it, start it anew."""
        if self.work(EXPIRE if work is None else as_directive(work).to_bytes(), LocalChannel(self._hub, self._name)):
            self.start(0)

    def start(self, fatal: int) -> None:
        super().start(fatal)
        self._hub.connect(self._name, self.nonce)
