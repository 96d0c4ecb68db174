"""A site in processes: this one becomes the guard, and its parent only starts and ends the others.

The parent is what an operator started: it holds no key and no record, speaks to nobody, and hands signals on. It ends as the
guard ends; if it is killed, the kernel ends the others with it. Each of those is an interpreter of its own that inherits a
socket to the guard and nothing else (:data:`ROLES`), confined to what it is for (:mod:`veilsum_participant.settings.roles`).
The guard can start nothing itself: it asks for a process, and has one ended that it no longer trusts. Nor does it open a file
for its log: the launcher writes down what it says, and what the others do.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from veilsum_node.errors import HostileInput, Unavailable
from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent
from veilsum_node.telemetry.logs import LOGGER, said
from veilsum_participant.boundary.calls import Peer
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.framing import Caller, SealedMemory, pair
from veilsum_participant.boundary.front import Dial, Failed
from veilsum_participant.boundary.verifying import MOST_SAID, SECONDS, LedgerSaid
from veilsum_participant.session.client import Parts
from veilsum_participant.settings.told import told_config
from veilsum_participant.worker.keeping import Kept
from veilsum_participant.worker.starting import MODULES

if TYPE_CHECKING:
    from veilsum_participant.datasets import Datasets
    from veilsum_participant.session.hooks import Running
    from veilsum_participant.settings.config import ParticipantConfig
    from veilsum_participant.studies import Studies

LOG = logging.getLogger("veilsum.participant")

FRONT = "front"

ROLES = {FRONT: "veilsum_participant.front", **MODULES}
"""Module of each process that there can be; its arguments are a descriptor and its bounds."""

START_SECONDS = 60.0
"""How long the launcher may take to start a process."""

LONGEST = 64 * 1024


@dataclass(frozen=True)
class Launched:
    """A process that was started for the guard; implements :class:`~veilsum_participant.worker.starting.Started`.

    Attributes:
        socket: to it; frames go over it.
        end: ends the process at once, if it has not ended.
    """

    socket: socket.socket
    end: Callable[[], None] = field(repr=False)


class LaunchStarter:
    """The guard's side: asks the launcher for processes, from any thread; implements
    :class:`~veilsum_participant.worker.starting.Starter`.

    Args:
        control: to the launcher.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control, self._lock = control, threading.Lock()
        control.settimeout(START_SECONDS)

    def start(self, role: str, of: str = "") -> Launched:
        """Start a process.

        Args:
            role: of :data:`ROLES`.
            of: what it is for, as a dataset's name.

        Raises:
            Unavailable: it cannot be started.
        """
        number, (line,) = self._ask({"start": role, "of": of}, 1)
        return Launched(socket.socket(fileno=line), lambda: self._end(number))

    def begin(self, command: Sequence[str], variables: Mapping[str, str], given: bytes) -> Running:
        """Have the site's own command run: the one that the launcher read of the configuration, whatever is asked for.

        Raises:
            Unavailable: it cannot be run.
        """
        text = SealedMemory.of(given)
        try:
            number, (ends,) = self._ask({"hook": dict(variables)}, 1, [text.descriptor])
        finally:
            text.close()
        return _Beside(ends, lambda: self._end(number))

    def verify(self, authority: bytes) -> LedgerSaid:
        """Have the site's ledger verified, by a process that holds no key.

        Args:
            authority: certificate of the federation's, DER.

        Raises:
            Unavailable: it cannot be started, does not end, or says nothing that there is to say.
        """
        number, (says,) = self._ask({"verify": authority.hex()}, 1)
        with os.fdopen(says, "rb", buffering=0) as words:
            said, end = b"", time.monotonic() + SECONDS
            while len(said) <= MOST_SAID and select.select([words], [], [], max(0.0, end - time.monotonic()))[0]:
                if not (piece := words.read(MOST_SAID)):
                    break
                said += piece
            else:
                self._end(number)
        found = LedgerSaid()
        with contextlib.suppress(HostileInput):
            found = read(said, LedgerSaid)
        if len(said) > MOST_SAID or not (found.entries or found.fault or found.unread):
            raise Unavailable("What verifies the ledger ended, or says nothing that there is to say.")
        return found

    def way(self) -> Dial:
        """The way to the coordinator, by files that the launcher reads.

        Raises:
            Unavailable: one of them is not in order.
        """
        _, (told,) = self._ask({"way": True}, 1)
        return read(SealedMemory.received(told).view(), Dial)

    def _ask(self, what: dict[str, Any], count: int, passed: Sequence[int] = ()) -> tuple[int, list[int]]:
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(what).encode()], list(passed))
                said, descriptors, _, _ = socket.recv_fds(self._control, LONGEST, count)
        except OSError as error:
            raise Unavailable("The site's launcher does not answer.", "Start the participant again.") from error
        answer = json.loads(said or b"{}")
        if len(descriptors) != count:
            told = str(answer.get("error", "it has ended"))
            raise Unavailable(f"The site's launcher cannot do what it is asked for: {told.rstrip('.')}.")
        return answer.get("number", 0), descriptors

    def _end(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._control.send(json.dumps({"end": number}).encode())


class _Beside:
    """A command that the launcher runs; its status comes over a pipe."""

    def __init__(self, ends: int, kill: Callable[[], None]) -> None:
        self._ends, self._kill = os.fdopen(ends, "rb", buffering=0), kill

    def wait(self, seconds: float) -> int:
        if not select.select([self._ends], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired("hooks.waiting", seconds)
        return int(self._ends.read(16) or b"-9")

    def kill(self) -> None:
        self._kill()


class Fronts(Kept):
    """Gives the guard a front, another one where the one before is out of order.

    Args:
        starter: of processes.
    """

    def __init__(self, starter: LaunchStarter) -> None:
        super().__init__(starter, FRONT, Failed)
        self._front: Caller | None = None

    def __call__(self) -> Peer:
        """The front that answers now.

        Raises:
            Unavailable: none can be started.
        """
        with self.lock:
            if self._front is not None and self.broken:
                LOG.warning("the front is replaced: %s", self.broken)
            self._front = self.begin() or self._front
            return self._front  # type: ignore[return-value]  # it runs, or that raised


class Given(NamedTuple):
    """What a guard is told by its launcher, which has read the configuration.

    Attributes:
        config: the site's.
        bounds: of the guard.
        served: where metrics are served.
        filter: of its system calls, as the kernel reads it.
    """

    config: ParticipantConfig
    bounds: Bounds
    served: str
    filter: bytes

    def to_bytes(self) -> bytes:
        """As :meth:`from_bytes` reads it: data, for what holds keys runs nothing that it is told."""
        from veilsum_participant.settings.telling import stated  # of the launcher

        return json.dumps([stated(self.config), self.bounds.to_text(), self.served, self.filter.hex()]).encode()

    @classmethod
    def from_bytes(cls, said: bytes) -> Self:
        """What :meth:`to_bytes` wrote; the launcher has checked it."""
        config, bounds, served, calls = json.loads(said)
        return cls(told_config(config), Bounds.from_text(bounds), served, bytes.fromhex(calls))


class Whole(NamedTuple):
    """A site that is one process after all.

    Attributes:
        config: the site's.
        why: it is not divided, in words; empty where its operator wants it so.
        variables: of the environment that set a key of the configuration.
    """

    config: ParticipantConfig
    why: str
    variables: tuple[str, ...]


def divide(path: Path) -> tuple[ParticipantConfig, Parts] | Whole:
    """Divide this process: its child returns from here and is the guard; the parent reads the configuration, stays and never
    returns, unless that says that the site is one process.

    Call it before a key is read or a thread started.

    Args:
        path: of the configuration.

    Raises:
        ConfigurationError: it is not in order; this machine cannot confine processes; what must be apart is not; or the
            metrics cannot be served.
    """
    ours, theirs = pair()
    heard, told = os.pipe()
    words, says = os.pipe()
    gc.freeze()  # what both have in common stays in common
    launcher = os.getpid()
    child = os.fork()
    if child:
        theirs.close()
        for descriptor in (heard, says):
            os.close(descriptor)
        from veilsum_participant.session.supervisor import supervise  # which the guard does without

        return supervise(path, child, ours, told, words)
    ours.close()
    for descriptor in (told, words):
        os.close(descriptor)
    end_with_parent(parent=launcher)
    with os.fdopen(heard, "rb") as telling:
        settings = telling.read()
    if not settings:  # the launcher ends, or is the whole site
        os._exit(0)
    given = Given.from_bytes(settings)
    confine(given.bounds, keep=[theirs.fileno(), says], program=given.filter)
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[_ToLauncher(says)], level=logging.WARNING, force=True)
    logging.getLogger(LOGGER).setLevel(given.config.log.level.upper())
    starter = LaunchStarter(theirs)
    parts = Parts(
        Fronts(starter), lambda: _reading(starter), lambda: _tracing(starter), starter.begin, starter, given.served,
        starter.verify, starter.way,
    )  # fmt: skip
    return given.config, parts


def _reading(starter: LaunchStarter) -> Datasets:
    from veilsum_participant.worker.remote import WorkerDatasets  # once there is a study

    return WorkerDatasets(starter)


def _tracing(starter: LaunchStarter) -> Studies:
    from veilsum_participant.worker.compiling import WorkerStudies

    return WorkerStudies(starter)


class _ToLauncher(logging.Handler):
    """Says to the launcher what the guard logs."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._words = os.fdopen(descriptor, "wb")

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._words.write(json.dumps([record.created, said(record)]).encode() + b"\n")
            self._words.flush()
