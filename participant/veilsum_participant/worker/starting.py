"""How a guard gets a worker: a connected socket, and the means to end the process at its other end.

A worker is a program of its own, never a fork of a process that has held a key.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from veilsum_node.errors import Unavailable
from veilsum_node.process.confinement import Bounds
from veilsum_participant.boundary.framing import pair

MODULES: dict[str, str] = {
    "reader": "veilsum_participant.worker.reader_main",
    "maps": "veilsum_participant.worker.maps_main",
    "compiler": "veilsum_participant.worker.compiler_main",
    "metrics": "veilsum_participant.worker.metrics_main",
}


class StartedWorker(Protocol):
    """A worker that was started."""

    @property
    def socket(self) -> socket.socket:
        """The guard's end."""

    @property
    def end(self) -> Callable[[], None]:
        """Ends the process, whatever it does; idempotent."""


class WorkerStarter(Protocol):
    """Starts workers."""

    def start(self, role: str, of: str = "") -> StartedWorker:
        """Start one, of a dataset.

        Raises:
            Unavailable: it cannot be started.
        """


@dataclass
class Child:
    """A worker that is this process's own child."""

    socket: socket.socket
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """See :class:`StartedWorker`."""
        self.process.kill()
        self.process.wait()


class ProcessStarter:
    """Starts workers as children of this process, by executing the interpreter anew: for tests and measurements; a participant
    has its launcher start them (:mod:`veilsum_participant.session.launcher`).

    Args:
        bounds: of a role and a dataset; None to confine nothing.
    """

    def __init__(self, bounds: Callable[[str, str], Bounds] | None = None) -> None:
        self._bounds = bounds

    def start(self, role: str, of: str = "") -> Child:
        """See :class:`WorkerStarter`."""
        own, other = pair()
        command = [sys.executable, "-P", "-m", MODULES[role], str(other.fileno())]
        command += [] if self._bounds is None else [self._bounds(role, of).to_text(), of]
        try:
            process = subprocess.Popen(command, pass_fds=(other.fileno(),), stdin=subprocess.DEVNULL, env=_environment())  # noqa: S603
        except OSError as error:
            own.close()
            raise Unavailable(f"A worker cannot be started: {type(error).__name__}.") from error
        finally:
            other.close()
        return Child(own, process)


def _environment() -> dict[str, str]:
    """The environment without what overrides the configuration, which may hold a secret of another dataset."""
    return {name: value for name, value in os.environ.items() if not name.startswith("VEILSUM_")}
