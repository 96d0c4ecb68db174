"""What stays of a site in processes when its guard has begun: it starts the others, hands signals on, and ends as that ends.

It holds no key and no record, and speaks to nobody. It writes the log of all of them. A guard does not load it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from veilsum_node.errors import ConfigurationError, Unavailable, VeilsumError
from veilsum_node.overrides import set_variables
from veilsum_node.process.confinement import Bounds
from veilsum_node.process.system_calls import packed_filter
from veilsum_node.telemetry.binding import bound, write_address
from veilsum_node.telemetry.endpoint_settings import MetricsSettings
from veilsum_node.telemetry.log_writing import start_logging
from veilsum_node.telemetry.logs import heard, printable
from veilsum_participant.boundary.framing import SealedMemory, pair
from veilsum_participant.session import launcher
from veilsum_participant.session.hooks import STUDIES
from veilsum_participant.session.launcher import FRONT, LONGEST, Given, Whole
from veilsum_participant.session.own_commands import OwnChild, begin_here
from veilsum_participant.session.serving import INSTALLED
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config
from veilsum_participant.settings.roles import (
    compiler,
    confinement_faults,
    environment,
    front,
    guard,
    metrics,
    reader,
    torch_worker,
    unconfined,
    verifier,
)
from veilsum_participant.settings.telling import dialling, say_start

LOG = logging.getLogger("veilsum.participant")

MOST_PROCESSES = 64
LONGEST_END = 5
"""Seconds that a killed process may take to end, as while it waits for a disk, before the site ends without it."""

GUARD = "guard"
_LONGEST_LINE = 2000
_LINE = re.compile(r"\S+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")  # of veilsum_node.telemetry.log_writing


def supervise(path: Path, child: int, control: socket.socket, told: int, words: int) -> Whole:
    """Read the configuration, tell the guard what it says, and supervise; where it says that the site is one process, let the
    guard go and return.

    Args:
        path: of the configuration.
        child: the guard's number.
        control: to the guard.
        told: a pipe to the guard, which ends if nothing comes.
        words: a pipe from it, of what it logs.

    Raises:
        ConfigurationError: as of :func:`~veilsum_participant.session.launcher.divide`.
    """
    try:
        with os.fdopen(told, "wb") as telling:
            config, variables = load_participant_config(path), tuple(set_variables())
            if (why := unconfined(config)) is None:
                for fault in confinement_faults(config):
                    raise fault
                start_logging(config.log)
                say_start(config, variables)
                listening, address = (None, "") if config.metrics is None else _listening(config.metrics)
                bounds = guard(config)
                given = Given(config, bounds, address, packed_filter(bounds, child))
                with contextlib.suppress(BrokenPipeError):
                    telling.write(given.to_bytes())
        if why is None:
            Supervisor(config, child, control, listening, words).run()
    except ConfigurationError:
        os.waitpid(child, 0)
        raise
    control.close()
    os.close(words)
    os.waitpid(child, 0)
    return Whole(config, why, variables)


def _listening(settings: MetricsSettings) -> tuple[socket.socket, str]:
    """The socket that metrics are served on, and its address, which is told where others wait for it."""
    made = bound(settings)
    address = f"{settings.listen.rpartition(':')[0]}:{made.getsockname()[1]}"
    if settings.ready_file is not None:
        try:
            write_address(settings.ready_file, address, "metrics.ready_file")
        except ConfigurationError:
            made.close()
            raise
    return made, address


def bounds_of(config: ParticipantConfig, role: str, of: str) -> Bounds:
    """Bounds of a process by its role, and what it is for."""
    match role:
        case "front":
            return front(config, config.route)
        case "reader":
            return reader(config, of)
        case "compiler":
            return compiler(config)
        case "metrics":
            return metrics(config)
        case _:
            return torch_worker(config)


class _Child(subprocess.Popen[bytes]):
    def over(self) -> bool:
        """Whether it has ended."""
        return self.poll() is not None


@dataclass
class _Fork:
    pid: int
    _ended: bool = False

    def kill(self) -> None:
        if not self._ended:  # its number may be somebody else's since
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.over() and time.monotonic() < end:
            time.sleep(0.01)

    def over(self) -> bool:
        """Whether it has ended."""
        self._ended = self._ended or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self._ended


@dataclass
class _Command:
    running: OwnChild
    told: int  # where its status goes

    @property
    def pid(self) -> int:
        return self.running.pid

    def kill(self) -> None:
        self.running.kill()

    def wait(self, seconds: float) -> None:
        self.running.wait(seconds)

    def over(self) -> bool:
        """Whether it has ended; its status is told then."""
        try:
            status = self.running.wait(0)
        except subprocess.TimeoutExpired:
            return False
        with contextlib.suppress(OSError), os.fdopen(self.told, "wb") as told:
            told.write(str(status).encode())
        return True


class Supervisor:
    """The parent's loop."""

    def __init__(
        self, config: ParticipantConfig, child: int, control: socket.socket, listening: socket.socket | None, words: int
    ) -> None:
        self._config, self._guard, self._control, self._listening = config, child, control, listening
        self._children: dict[int, _Child | _Command | _Fork] = {}
        self._words = {words: (GUARD, b"")}  # of processes: what they are, and the line that each has begun
        self._ready: tuple[int, socket.socket] | None = None
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
            readable, _, _ = select.select([*watched, *self._words], [], [])
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            for descriptor in self._words.keys() & set(readable):
                self._hear(descriptor)
            if control in readable and not self._answered():
                watched = [wake]  # the guard has let go of it: it ends
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # its number may be somebody else's now
        for descriptor in [of for of, (role, _) in self._words.items() if role == GUARD]:
            while self._hear(descriptor):  # its last words
                pass
        for child in self._children.values():
            child.kill()
        for child in self._children.values():  # whoever starts the site again then meets nobody of it
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LONGEST_END)
        if status < 0:
            with contextlib.suppress(OSError):  # of SIGKILL
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(abs(status))

    def _hear(self, descriptor: int) -> bool:
        """Write down what a process says next; whether it may say more."""
        (role, kept), piece = self._words[descriptor], os.read(descriptor, LONGEST)
        *lines, kept = (kept + piece).split(b"\n")
        if role != GUARD and len(kept) > _LONGEST_LINE:
            lines, kept = [*lines, kept], b""
        for line in filter(bytes.strip, lines):
            _write(role, line)
        self._words[descriptor] = role, kept
        if not piece:
            os.close(descriptor)
            del self._words[descriptor]
        return bool(piece)

    def _forward(self, number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guard, number)

    def _ended(self) -> int | None:
        for number, child in list(self._children.items()):
            if child.over():
                del self._children[number]
        pid, status = os.waitpid(self._guard, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        self._reap_orphans()
        return None

    def _reap_orphans(self) -> None:
        """Take away what a container's first process is left with, as a decoder whose reader has ended."""
        own = {self._guard, *(child.pid for child in self._children.values())}
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)

    def _answered(self) -> bool:
        """Do what the guard asks for; whether it asked for anything."""
        try:
            data, given, _, _ = socket.recv_fds(self._control, LONGEST, 1)
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
            elif "way" in asked:
                way = SealedMemory.of(dialling(self._config.route).to_bytes())
                passed = [os.dup(way.descriptor)]
            elif "verify" in asked:
                answer["number"], passed = self._verify(bytes.fromhex(asked["verify"]))
            else:
                answer["number"], line = self._taken(asked["start"], asked["of"])
                passed = [line.detach()]
        except (OSError, VeilsumError) as error:
            answer["error"] = error.message if isinstance(error, VeilsumError) else type(error).__name__
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(answer).encode()], passed)
        for descriptor in (*passed, *given):
            os.close(descriptor)
        return True

    def _taken(self, role: str, of: str) -> tuple[int, socket.socket]:
        ready, self._ready = self._ready if role == FRONT else None, None if role == FRONT else self._ready
        return ready or self._spawn(role, of)

    def _spawn(self, role: str, of: str) -> tuple[int, socket.socket]:
        """Start a process: its number, and the guard's end of the line to it.

        Raises:
            OSError, VeilsumError: it cannot be started.
        """
        if role not in launcher.ROLES or len(self._children) >= MOST_PROCESSES or (of and of not in self._config.datasets):
            raise Unavailable("The site has no such process, or has too many already")
        INSTALLED.check()
        bounds = bounds_of(self._config, role, of)
        offered = self._config.datasets.get(of)
        stores = offered is not None and (offered.source == "sql" or offered.s3 is not None)
        more, arguments = self._given(role)
        line, inherited = pair()
        words, written = os.pipe()
        try:
            with inherited, os.fdopen(written, "wb"):
                process = _Child(  # a module of this installation
                    [sys.executable, "-P", "-m", launcher.ROLES[role], str(inherited.fileno()), bounds.to_text(), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    pass_fds=[inherited.fileno(), *more],
                    env=environment(stores=stores),
                )
        except OSError:
            line.close()
            os.close(words)
            raise
        self._last += 1
        self._children[self._last] = process
        self._words[words] = role, b""
        return self._last, line

    def _given(self, role: str) -> tuple[list[int], list[str]]:
        """Descriptors and arguments that a process is started with beside its line and bounds."""
        if role != "metrics":
            return [], []
        if self._listening is None or self._config.metrics is None:
            raise Unavailable("The site serves no metrics")
        return [self._listening.fileno()], [str(self._listening.fileno()), self._config.metrics.model_dump_json()]

    def _verify(self, authority: bytes) -> tuple[int, list[int]]:
        """Verify the ledger in a fork of this process; its number, and where its message comes."""
        if any(isinstance(child, _Fork) for child in self._children.values()):
            raise Unavailable("The ledger is being verified")
        from veilsum_participant.worker.verifying import examine_apart

        says, told = os.pipe()
        if not (child := os.fork()):
            examine_apart(told, verifier(self._config), self._config.state, authority)
        os.close(told)
        self._last += 1
        self._children[self._last] = _Fork(child)
        return self._last, [says]

    def _hook(self, variables: Mapping[str, str], given: Sequence[int]) -> tuple[int, list[int]]:
        """Run the site's own command, which is given a text; its number, and where its status comes."""
        command = self._config.hooks.waiting
        if not command or len(given) != 1 or any(isinstance(child, _Command) for child in self._children.values()):
            raise Unavailable("No command is configured, or one still runs")
        text = os.pread(given[0], os.fstat(given[0]).st_size, 0)
        running = begin_here(command, {STUDIES: str(variables.get(STUDIES, ""))}, text)  # others could make it load anything
        ends, told = os.pipe()
        self._last += 1
        self._children[self._last] = _Command(running, told)
        return self._last, [ends]


def _write(role: str, line: bytes) -> None:
    """Write a line down: what the guard logs; of the others their own log, and of a front a library's words or the trace of
    its end. Of what meets records only lines of the log are written, which hold no value of theirs."""
    if role == GUARD:
        record = heard(*json.loads(line))
        logging.getLogger(record.name).handle(record)
        return
    text = printable(line[:_LONGEST_LINE].decode("utf-8", "replace"))
    if (own := _LINE.fullmatch(text)) is not None:
        LOG.log(logging.getLevelNamesMapping()[own[1]], "%s: %s", role, own[2])
    elif role in (FRONT, "compiler"):
        LOG.warning("%s: %s", role, text)
