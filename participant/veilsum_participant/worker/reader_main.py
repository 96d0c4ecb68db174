"""The main of a reader's process: ``python -P -m veilsum_participant.worker.reader_main DESCRIPTOR [BOUNDS]``."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent


def main(descriptor: int, bounds: str = "") -> None:
    """Serve the guard at the other end of a connected socket until it ends, and end with it, whatever is being read."""
    if bounds:
        end_with_parent(only=True)
        confine(Bounds.from_text(bounds), keep=(descriptor,))
    with contextlib.suppress(BaseException):
        from veilsum_node.telemetry.logs import start_logging
        from veilsum_participant.boundary.framing import Line, serve
        from veilsum_participant.boundary.reader import REQUESTS
        from veilsum_participant.data.local import LocalDatasets
        from veilsum_participant.worker.reader import Reader, told

        start_logging()
        line = Line(socket.socket(fileno=descriptor))
        serve(line, REQUESTS, Reader(LocalDatasets()).answer, told, threads=1)
    os._exit(0)  # threads that still read, or hang, hold nobody up


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
