"""A site in processes: this one becomes the guard, and its parent only starts and ends the others.

The parent is what an operator started: it holds no key and no record, speaks to nobody, and hands signals on. It ends as the
guard ends; if it is killed, the kernel ends the others with it. Each of those is an interpreter of its own that inherits a
socket to the guard and nothing else (:data:`ROLES`); the guard asks for one, and has one ended that it no longer trusts.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from veilsum_node.errors import ConfigurationError, Unavailable
from veilsum_node.process.confinement import Bounds, offered, reach_fault, unconfinable
from veilsum_node.process.hardening import end_with_parent
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import Peer
from veilsum_participant.boundary.framing import Caller, Line, pair
from veilsum_participant.boundary.front import Failed
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.roles import environment, front, reader, torch_worker

LOG = logging.getLogger("veilsum.participant")

FRONT = "front"

ROLES = {
    FRONT: "veilsum_participant.front",
    "reader": "veilsum_participant.worker.reader_main",
    "maps": "veilsum_participant.worker.maps_main",
}
"""Module of each process that there can be; its arguments are a descriptor, its bounds and what it is for."""

START_SECONDS = 60.0
"""How long the launcher may take to start a process."""

MOST_PROCESSES = 64
_LONGEST = 1024
_LONGEST_LINE = 2000


@dataclass(frozen=True)
class Started:
    """A process that was started for the guard.

    Attributes:
        socket: to it; frames go over it.
        end: ends the process at once, if it has not ended, and takes no exception.
    """

    socket: socket.socket
    end: Callable[[], None] = field(repr=False)


class Starter:
    """The guard's side: asks the launcher for processes; from any thread.

    Args:
        control: to the launcher.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control, self._lock = control, threading.Lock()
        control.settimeout(START_SECONDS)

    def start(self, role: str, of: str = "") -> Started:
        """Start a process.

        Args:
            role: of :data:`ROLES`.
            of: what it is for, as a dataset's name.

        Raises:
            Unavailable: it cannot be started.
        """
        away = Unavailable(f"No process for the role {role} can be started.", "Look for what the machine lacks.")
        try:
            with self._lock:
                self._control.send(json.dumps({"start": role, "of": of}).encode())
                said, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST, 2)
        except OSError as error:
            raise away from error
        if len(descriptors) != 2:
            raise away
        line, words = descriptors
        number = int(json.loads(said)["number"])
        threading.Thread(target=_repeat, args=(role, words), name=role, daemon=True).start()
        return Started(socket.socket(fileno=line), lambda: self._end(number))

    def _end(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._control.send(json.dumps({"end": number}).encode())


class Fronts:
    """Gives the guard a front, another one where the one before is out of order.

    Args:
        starter: of processes.
    """

    def __init__(self, starter: Starter) -> None:
        self._starter, self._lock = starter, threading.Lock()
        self._front: Caller | None = None
        self._end: Callable[[], None] = lambda: None

    def __call__(self) -> Peer:
        """The front that answers now.

        Raises:
            Unavailable: none can be started.
        """
        with self._lock:
            if self._front is None or self._front.broken:
                if self._front is not None:
                    LOG.warning("the front is replaced: %s", self._front.broken)
                    self._end()
                started = self._starter.start(FRONT)
                self._front, self._end = Caller(Line(started.socket), Failed), started.end
            return self._front


def divide(config: ParticipantConfig) -> Starter:
    """Divide this process: its child returns from here and is the guard, the parent stays and never returns.

    Call it before a key is read or a thread started.

    Raises:
        ConfigurationError: this machine cannot confine processes; or a file that the front's bounds follow from is missing.
    """
    if not (found := offered()).enough:
        raise unconfinable(found)
    bounds = front(config, config.route)
    if (fault := reach_fault(bounds)) is not None:
        raise fault
    ours, theirs = pair()
    gc.freeze()  # what both have in common stays in common
    guard = os.fork()
    if guard:
        theirs.close()

        def bounds_of(role: str, of: str) -> Bounds:
            if role == FRONT:
                return bounds
            return torch_worker(config) if role == "maps" else reader(config, of)

        _Launcher(guard, ours, bounds_of).run()
    ours.close()
    end_with_parent()
    return Starter(theirs)


def _repeat(role: str, descriptor: int) -> None:
    """Log what a process writes to its standard error: a library's own words, or the trace of its end."""
    with open(descriptor, "rb", buffering=0) as words:
        kept = b""
        while piece := words.read(4096):
            *lines, kept = (kept + piece).split(b"\n")
            if len(kept) > _LONGEST_LINE:
                lines, kept = [*lines, kept], b""
            for line in filter(bytes.strip, lines):
                LOG.warning("%s: %s", role, printable(line[:_LONGEST_LINE].decode("utf-8", "replace")))


class _Launcher:
    """The parent's loop."""

    def __init__(self, guard: int, control: socket.socket, bounds: Callable[[str, str], Bounds]) -> None:
        self._guard, self._control, self._bounds = guard, control, bounds
        self._children: dict[int, subprocess.Popen[bytes]] = {}
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
            if child.poll() is not None:
                del self._children[number]
        pid, status = os.waitpid(self._guard, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _answered(self) -> bool:
        """Do what the guard asks for; whether it asked for anything."""
        try:
            data = self._control.recv(_LONGEST)
        except OSError:
            data = b""
        if not data:
            return False
        asked = json.loads(data)
        if "end" in asked:
            if (child := self._children.get(asked["end"])) is not None:
                child.kill()
            return True
        role, ready = asked["start"], self._ready
        if role == FRONT and ready is not None:
            self._ready = None
        else:
            ready = self._spawn(role, asked["of"])
        with contextlib.suppress(OSError):
            if ready is None:
                self._control.send(b"{}")
                return True
            number, line, words = ready
            with line, os.fdopen(words):
                socket.send_fds(self._control, [json.dumps({"number": number}).encode()], [line.fileno(), words])
        return True

    def _spawn(self, role: str, of: str) -> tuple[int, socket.socket, int] | None:
        """Start a process: its number, the guard's end of the line to it, and where its standard error can be read."""
        if role not in ROLES or len(self._children) >= MOST_PROCESSES:
            return None
        try:
            bounds = self._bounds(role, of).to_text()
        except (ConfigurationError, KeyError):  # a file is gone since, or there is no such dataset
            return None
        line, inherited = pair()
        words, written = os.pipe()
        try:
            with inherited, os.fdopen(written, "wb"):
                child = subprocess.Popen(  # noqa: S603  a module of this installation
                    [sys.executable, "-P", "-m", ROLES[role], str(inherited.fileno()), bounds, of],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    pass_fds=[inherited.fileno()],
                    env=environment(stores=role == "reader"),
                )
        except OSError:
            line.close()
            os.close(words)
            return None
        self._last += 1
        self._children[self._last] = child
        return self._last, line, words
