"""A site in processes: this one becomes the guard, and its parent only starts and ends the others.

The parent is what an operator started: it holds no key and no record, speaks to nobody, and hands signals on. It ends as the
guard ends; if it is killed, the kernel ends the others with it. Each of those is an interpreter of its own that inherits a
socket to the guard and nothing else (:data:`ROLES`), confined to what it is for (:mod:`veilsum_participant.settings.roles`).
The guard can start nothing itself: it asks for a process, and has one ended that it no longer trusts.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from veilsum_node.errors import Unavailable, VeilsumError
from veilsum_node.process.confinement import Bounds, confine, offered, reach_fault, unconfinable
from veilsum_node.process.hardening import end_with_parent
from veilsum_node.telemetry.endpoint import bound
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import Peer
from veilsum_participant.boundary.framing import Caller, FramedSocket, SealedMemory, pair
from veilsum_participant.boundary.front import Failed
from veilsum_participant.session.client import Parts
from veilsum_participant.session.hooks import Running, begin_here
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.roles import environment, front, guard, reader, torch_worker
from veilsum_participant.worker.remote import WorkerDatasets
from veilsum_participant.worker.starting import MODULES

LOG = logging.getLogger("veilsum.participant")

FRONT = "front"

ROLES = {FRONT: "veilsum_participant.front", **MODULES}
"""Module of each process that there can be; its arguments are a descriptor and its bounds."""

START_SECONDS = 60.0
"""How long the launcher may take to start a process."""

MOST_PROCESSES = 64
_LONGEST = 64 * 1024
_LONGEST_LINE = 2000
_LINE = re.compile(r"\S+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")  # of veilsum_node.telemetry.logs


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
        number, (line, words) = self._ask({"start": role, "of": of}, 2)
        threading.Thread(target=_repeat, args=(role, words), name=role, daemon=True).start()
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

    def _ask(self, what: dict[str, Any], count: int, passed: Sequence[int] = ()) -> tuple[int, list[int]]:
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(what).encode()], list(passed))
                said, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST, count)
        except OSError as error:
            raise Unavailable("The site's launcher does not answer.", "Start the participant again.") from error
        answer = json.loads(said or b"{}")
        if len(descriptors) != count:
            raise Unavailable(f"A process cannot be started: {answer.get('error', 'the launcher has ended')}.")
        return answer["number"], descriptors

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


class Fronts:
    """Gives the guard a front, another one where the one before is out of order.

    Args:
        starter: of processes.
    """

    def __init__(self, starter: LaunchStarter) -> None:
        self._starter, self._lock = starter, threading.Lock()
        self._front: Caller | None = None
        self._started: Launched | None = None

    def __call__(self) -> Peer:
        """The front that answers now.

        Raises:
            Unavailable: none can be started.
        """
        with self._lock:
            if self._front is None or self._front.broken:
                if self._front is not None and self._started is not None:
                    LOG.warning("the front is replaced: %s", self._front.broken)
                    self._started.end()
                self._started = self._starter.start(FRONT)
                self._front = Caller(FramedSocket(self._started.socket), Failed)
            return self._front


def divide(config: ParticipantConfig, path: Path) -> Parts:
    """Divide this process: its child returns from here and is the guard, the parent stays and never returns.

    Call it before a key is read or a thread started.

    Args:
        config: the site's.
        path: the file that it was read from.

    Raises:
        ConfigurationError: this machine cannot confine processes; what must be apart is not; or the metrics cannot be served.
    """
    if not (found := offered()).enough:
        raise unconfinable(found)
    own = guard(config, path)
    for bounds in (
        own,
        _bounds(config, FRONT, ""),
        _bounds(config, "maps", ""),
        *(_bounds(config, "reader", name) for name in config.datasets),
    ):
        if (fault := reach_fault(bounds)) is not None:
            raise fault
    listening = None if config.metrics is None else bound(config.metrics)
    ours, theirs = pair()
    gc.freeze()  # what both have in common stays in common
    child = os.fork()
    if child:
        theirs.close()
        if listening is not None:
            listening.close()
        _Launcher(config, child, ours).run()
    ours.close()
    end_with_parent()
    confine(own, keep=[theirs.fileno(), *(() if listening is None else (listening.fileno(),))])
    starter = LaunchStarter(theirs)
    return Parts(Fronts(starter), WorkerDatasets(starter), starter.begin, listening)


def _bounds(config: ParticipantConfig, role: str, of: str) -> Bounds:
    match role:
        case "front":
            return front(config, config.route)
        case "reader":
            return reader(config, of)
        case _:
            return torch_worker(config)


def _repeat(role: str, descriptor: int) -> None:
    """Log what a process writes to its standard error: its own log, and of a front a library's words or the trace of its end.

    Of what reads records only lines of the log are repeated, which hold no value of theirs.
    """
    with open(descriptor, "rb", buffering=0) as words:
        kept = b""
        while piece := words.read(4096):
            *lines, kept = (kept + piece).split(b"\n")
            if len(kept) > _LONGEST_LINE:
                lines, kept = [*lines, kept], b""
            for line in filter(bytes.strip, lines):
                text = printable(line[:_LONGEST_LINE].decode("utf-8", "replace"))
                if (own := _LINE.fullmatch(text)) is not None:
                    LOG.log(logging.getLevelNamesMapping()[own[1]], "%s: %s", role, own[2])
                elif role == FRONT:
                    LOG.warning("%s: %s", role, text)


@dataclass
class _Child:
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()

    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None


@dataclass
class _Command:
    running: Running
    told: int  # where its status goes

    def kill(self) -> None:
        self.running.kill()

    def over(self) -> bool:
        """Whether it has ended; its status is told then."""
        try:
            status = self.running.wait(0)
        except subprocess.TimeoutExpired:
            return False
        with contextlib.suppress(OSError), os.fdopen(self.told, "wb") as told:
            told.write(str(status).encode())
        return True


class _Launcher:
    """The parent's loop."""

    def __init__(self, config: ParticipantConfig, child: int, control: socket.socket) -> None:
        self._config, self._guard, self._control = config, child, control
        self._children: dict[int, _Child | _Command] = {}
        self._ready: tuple[int, socket.socket, int] | None = None
        self._last = 0

    def run(self) -> NoReturn:
        """Supervise until the guard has ended, then end as it did."""
        wake, awoken = os.pipe()
        for descriptor in (wake, awoken):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(awoken, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._forward)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        control = self._control.fileno()
        watched = [control, wake]
        with contextlib.suppress(OSError, VeilsumError):  # then the guard is told, when it asks
            self._ready = self._spawn(FRONT, "")  # while the guard still opens its ledger
        while (status := self._ended()) is None:
            readable, _, _ = select.select(watched, [], [])
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            if control in readable and not self._answered():
                watched = [wake]  # the guard has let go of it: it ends
        for child in self._children.values():
            child.kill()
        if status < 0:
            with contextlib.suppress(OSError):  # of SIGKILL
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(abs(status))

    def _forward(self, number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guard, number)

    def _ended(self) -> int | None:
        for number, child in list(self._children.items()):
            if child.over():
                del self._children[number]
        pid, status = os.waitpid(self._guard, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _answered(self) -> bool:
        """Do what the guard asks for; whether it asked for anything."""
        try:
            data, given, _, _ = socket.recv_fds(self._control, _LONGEST, 1)
        except OSError:
            return False
        if not data:
            return False
        asked = json.loads(data)
        if "end" in asked:
            if (child := self._children.get(asked["end"])) is not None:
                child.kill()
            return True
        passed: list[int] = []
        answer: dict[str, Any] = {}
        try:
            if "hook" in asked:
                answer["number"], passed = self._hook(asked["hook"], given)
            else:
                number, line, words = self._taken(asked["start"], asked["of"])
                answer["number"], passed = number, [line.detach(), words]
        except (OSError, VeilsumError) as error:
            answer["error"] = error.message if isinstance(error, VeilsumError) else type(error).__name__
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(answer).encode()], passed)
        for descriptor in (*passed, *given):
            os.close(descriptor)
        return True

    def _taken(self, role: str, of: str) -> tuple[int, socket.socket, int]:
        ready, self._ready = self._ready if role == FRONT else None, None if role == FRONT else self._ready
        return ready or self._spawn(role, of)

    def _spawn(self, role: str, of: str) -> tuple[int, socket.socket, int]:
        """Start a process: its number, the guard's end of the line to it, and where its standard error can be read.

        Raises:
            OSError, VeilsumError: it cannot be started.
        """
        if role not in ROLES or len(self._children) >= MOST_PROCESSES or (of and of not in self._config.datasets):
            raise Unavailable("The site has no such process, or has too many already")
        bounds = _bounds(self._config, role, of)
        offered = self._config.datasets.get(of)
        stores = offered is not None and (offered.source == "sql" or offered.s3 is not None)
        line, inherited = pair()
        words, written = os.pipe()
        try:
            with inherited, os.fdopen(written, "wb"):
                process = subprocess.Popen(  # noqa: S603  a module of this installation
                    [sys.executable, "-P", "-m", ROLES[role], str(inherited.fileno()), bounds.to_text()],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    pass_fds=[inherited.fileno()],
                    env=environment(stores=stores),
                )
        except OSError:
            line.close()
            os.close(words)
            raise
        self._last += 1
        self._children[self._last] = _Child(process)
        return self._last, line, words

    def _hook(self, variables: Mapping[str, str], given: Sequence[int]) -> tuple[int, list[int]]:
        """Run the site's own command, which is given a text; its number, and where its status comes."""
        command = self._config.hooks.waiting
        if not command or len(given) != 1 or any(isinstance(child, _Command) for child in self._children.values()):
            raise Unavailable("No command is configured, or one still runs")
        text = os.pread(given[0], os.fstat(given[0]).st_size, 0)
        running = begin_here(command, {str(name): str(value) for name, value in variables.items()}, text)
        ends, told = os.pipe()
        self._last += 1
        self._children[self._last] = _Command(running, told)
        return self._last, [ends]
