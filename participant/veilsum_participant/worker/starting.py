"""How a guard gets a worker: a connected socket, and the means to end the process at its other end.

A worker is a program of its own, never a fork of a process that has held a key.
"""

import socket
from collections.abc import Callable
from typing import Protocol

MODULES: dict[str, str] = {
    "reader": "veilsum_participant.worker.reader_main",
    "maps": "veilsum_participant.worker.maps_main",
    "compiler": "veilsum_participant.worker.compiler_main",
    "metrics": "veilsum_participant.worker.metrics_main",
}


class StartedWorker(Protocol):
    @property
    def socket(self) -> socket.socket:
        """The guard's end."""

    @property
    def end(self) -> Callable[[], None]:
        """Ends the process, whatever it does; idempotent."""


class WorkerStarter(Protocol):
    def start(self, role: str, of: str = "") -> StartedWorker:
        """Start one, of a dataset.

        Raises:
            Unavailable: it cannot be started.
        """
