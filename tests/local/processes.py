"""Services as processes: each in a process group of its own, its output in a file, all ended however this program ends.

If this program is killed, the kernel ends its children (PR_SET_PDEATHSIG). Only what was started here is ever signalled.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from veilsum_node.errors import StateError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)
_TAIL = 2000  # characters of a log that an error shows


class StoppedError(StateError):
    """A signal asked this program to stop."""


@dataclass(frozen=True)
class Command:
    """What is run, and as whom.

    Attributes:
        environment: the whole of it.
        input: file of its standard input; without one it has none.
        ending: the signal that it stops by, also when this program dies.
        uid, gid: another user, where a program does not run as root; None for our own.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = Path("/")
    input: Path = Path(os.devnull)
    ending: signal.Signals = signal.SIGTERM
    uid: int | None = None
    gid: int | None = None

    def start(self, output: int) -> subprocess.Popen[bytes]:
        """Start it; standard output and error go to a descriptor."""
        owner = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PARENT_DEATH, int(self.ending))
            if os.getppid() != owner:
                os._exit(1)

        with self.input.open("rb") as source:
            return subprocess.Popen(
                self.arguments,
                cwd=self.directory,
                env=dict(self.environment),
                stdin=source,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
            )


class LocalProcess:
    """A command that runs."""

    def __init__(self, name: str, command: Command, log: Path, grace: float) -> None:
        self.name, self.log, self.ending, self._grace = name, log, command.ending, grace
        with log.open("ab") as output:
            self._popen = command.start(output.fileno())

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._popen.poll()

    def check(self) -> None:
        """Raise if it ended.

        Raises:
            StateError: it did; the message ends with the last lines of its log.
        """
        if self.status is not None:
            raise StateError(
                f"{self.name} exited unexpectedly (status {self.status}).{tail(self.log)}", f"Its log is {self.log}."
            )

    def ask_to_stop(self) -> None:
        """Send the signal that its service stops by."""
        if self.status is None:
            os.kill(self.pid, self.ending)

    def end(self) -> int:
        """Wait as long as its service may take to stop, then kill what is left of its group; returns the exit status."""
        try:
            self._popen.wait(self._grace)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()


class LocalProcesses:
    """What runs; leaving the context stops it, the last that was started first.

    Attributes:
        running: by name, in the order of their start.
        statuses: exit statuses of those that were stopped; 0 also for one that has no handler and died of the signal.

    Inside the context SIGINT, SIGTERM and SIGHUP raise :class:`StoppedError`; while processes are being stopped, nothing
    interrupts.
    """

    def __init__(self) -> None:
        self.running: dict[str, LocalProcess] = {}
        self.statuses: dict[str, int] = {}
        self._former: dict[signal.Signals, Any] = {}

    def start(self, name: str, command: Command, log: Path, grace: float) -> LocalProcess:
        """Start a service, which may take ``grace`` seconds to stop."""
        process = LocalProcess(name, command, log, grace)
        self.running[name] = process
        return process

    def check(self) -> None:
        """Raise if one of them ended.

        Raises:
            StateError: one did.
        """
        for process in self.running.values():
            process.check()

    def __enter__(self) -> "LocalProcesses":
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, _stop) for number in _ENDING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in self._former:
            signal.signal(number, signal.SIG_IGN)
        for process in reversed(self.running.values()):
            ended = process.status is not None
            process.ask_to_stop()
            status = process.end()
            if not ended:
                self.statuses[process.name] = 0 if status == -process.ending else status
        for number, former in self._former.items():
            signal.signal(number, former)


def tail(log: Path) -> str:
    """The end of a log, for an error's message."""
    return "".join(f"\n  {line}" for line in log.read_text(errors="replace")[-_TAIL:].strip().splitlines()[-10:])


def run(command: Command, log: Path, seconds: float) -> int:
    """Run a command to its end; its output goes to ``log``. Returns its exit status.

    Raises:
        StateError: it takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    with log.open("ab") as output:
        process = command.start(output.fileno())
    try:
        return process.wait(deadline - time.monotonic())
    except subprocess.TimeoutExpired as error:
        raise StateError(f"{Path(command.arguments[0]).name} takes longer than {seconds:g} s.", f"See {log}.") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError(f"Stopped by {signal.Signals(number).name}.")
