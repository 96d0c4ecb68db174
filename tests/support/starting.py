"""Workers of a site as children of the process that asks for them, without a launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from veilsum_node.process.confinement import Bounds
from veilsum_participant.boundary.framing import pair
from veilsum_participant.worker.starting import MODULES


@dataclass
class Child:
    """A worker that is this process's own child."""

    socket: socket.socket
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """See :class:`~veilsum_participant.worker.starting.StartedWorker`."""
        self.process.kill()
        self.process.wait()


class ProcessStarter:
    """Starts workers as children of this process, by executing the interpreter anew.

    Args:
        bounds: of a role and a dataset; None to confine nothing.
    """

    def __init__(self, bounds: Callable[[str, str], Bounds] | None = None) -> None:
        self._bounds = bounds

    def start(self, role: str, of: str = "") -> Child:
        """See :class:`~veilsum_participant.worker.starting.WorkerStarter`."""
        own, other = pair()
        command = [sys.executable, "-P", "-m", MODULES[role], str(other.fileno())]
        command += [] if self._bounds is None else [self._bounds(role, of).to_text(), of]
        process = subprocess.Popen(command, pass_fds=(other.fileno(),), stdin=subprocess.DEVNULL, env=_environment())
        other.close()
        return Child(own, process)


def _environment() -> dict[str, str]:
    """The environment without what overrides the configuration, which may hold a secret of another dataset."""
    return {name: value for name, value in os.environ.items() if not name.startswith("VEILSUM_")}
