"""The demo's processes: each in a process group of its own, all ended when the demo ends, however it ends.

Their output goes to log files. A process that ends by itself is an error; only what was started here is ever signalled. If
the demo itself is killed, the processes stop.

One of the demo's processes: a ``veilsum`` command, forked from a server that has loaded the code once.

Five interpreters of their own would each spend a second on loading the same modules. A fork does what an interpreter does from
its arguments on, with files, keys, connections and randomness of its own: the server opens nothing, draws nothing and starts
no thread. What it loads is :mod:`.loaded`.
"""

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

from veilsum_coordinator.results.reproduction import set_to_one
from veilsum_node.errors import StateError

_FORKS = multiprocessing.get_context("forkserver")

STOP_SECONDS = 5.0
POLL_SECONDS = 0.02

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Process:
    """One ``veilsum`` command that runs in the background."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name, self.log, self.arguments = name, log, tuple(arguments)
        self._fork = fork(arguments, log)

    @property
    def pid(self) -> int:
        """The process's id, which is also its group's."""
        return cast("int", self._fork.pid)  # it was started

    @property
    def running(self) -> bool:
        """Whether it still runs (or is paused)."""
        return self._fork.exitcode is None

    def check(self) -> None:
        """Raise if the process ended.

        Raises:
            StateError: it did.
        """
        if not self.running:
            raise StateError(
                f"The process {self.name} exited unexpectedly (status {self._fork.exitcode}).", f"See {self.log}."
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process's group, if it still runs."""
        if self.running:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:  # it has just been forked and leads no group yet
                    os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once, as a power cut would."""
        self.signal(signal.SIGKILL)
        self._fork.join()

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic seconds) for a process that was asked to stop, then kill it."""
        self._fork.join(max(0.0, deadline - time.monotonic()))
        if self.running:
            self.kill()


class Processes:
    """All processes of the demo; leaving the context ends them.

    Inside the context SIGTERM and SIGHUP interrupt like Ctrl-C; while processes are being ended, nothing interrupts.
    """

    def __init__(self) -> None:
        self.started: list[Process] = []
        self._former: dict[signal.Signals, Any] = {}

    def start(self, name: str, arguments: Sequence[str], log: Path) -> Process:
        """Start a ``veilsum`` command."""
        process = Process(name, arguments, log)
        self.started.append(process)
        return process

    def restart(self, process: Process) -> Process:
        """Start the command of a process that was killed once more, in its place."""
        again = Process(process.name, process.arguments, process.log)
        self.started[self.started.index(process)] = again
        return again

    def __enter__(self) -> "Processes":
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, _interrupt) for number in _ENDING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in self._former:
            signal.signal(number, signal.SIG_IGN)
        for process in self.started:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.started:
            process.end(deadline)
        for number, former in self._former.items():
            signal.signal(number, former)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def wait_for_file(path: Path, process: Process, seconds: float) -> str:
    """Wait for a file that a process writes and return its text.

    Raises:
        StateError: the process ended, or time is up.
    """
    deadline = time.monotonic() + seconds
    while not path.exists():
        process.check()
        if time.monotonic() > deadline:
            raise StateError(f"The process {process.name} is not ready after {seconds:g} s.", f"See {process.log}.")
        time.sleep(POLL_SECONDS)
    return path.read_text()


def load() -> None:
    """Start the server if it does not run_forked. It loads the code beside whatever the caller does next."""
    _FORKS.set_forkserver_preload(["veilsum_deploy.demo.loaded"])
    with set_to_one(["PYTHONSAFEPATH"]):  # nothing is loaded from the directory that the demo is started in
        forkserver.ensure_running()


def fork(arguments: Sequence[str], log: Path) -> ForkServerProcess:
    """Start a command in this process's directory, with output and errors to the end of ``log``.

    It leads a process group of its own, and stops when this process is gone, however that ended.
    """
    load()
    process = _FORKS.Process(target=run_forked, args=(tuple(arguments), log.absolute()))
    process.start()
    return process


def run_forked(arguments: Sequence[str], log: Path) -> None:
    """What the forked process does: the command, with files and signals set up as for a service."""
    os.setsid()
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for own, other in ((0, nothing), (1, output), (2, output)):
            os.dup2(other.fileno(), own)
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    from veilsum_deploy.cli import main

    try:
        main(list(arguments))
    finally:
        atexit._run_exitfuncs()  # a fork ends without them, an interpreter does not


def _stop_with_parent() -> None:
    """Wait for the end of the demo's process, even if it was killed and could end nobody. A paused process notices when it
    goes on."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
