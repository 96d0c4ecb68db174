"""The main of a compiler: ``python -P -m veilsum_participant.worker.compiler_main DESCRIPTOR [BOUNDS [OF]]``."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent


def main(descriptor: int, bounds: Bounds | None) -> None:
    """Serve the guard at the other end of a connected socket until it ends, and end with it, whatever is being done.

    Without bounds it is not confined.
    """
    try:
        end_with_parent()
        if bounds is not None:
            confine(bounds, keep=(descriptor,))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        from veilsum_node.telemetry.logs import start_logging
        from veilsum_participant.boundary.compiler import REQUESTS
        from veilsum_participant.boundary.framing import FramedSocket, serve
        from veilsum_participant.worker.compiler import Compiler, told

        start_logging()
        serve(FramedSocket(socket.socket(fileno=descriptor)), REQUESTS, Compiler().answer, told, threads=1)
    except BaseException as error:  # noqa: BLE001  whatever it is, its words may quote a record
        traceback.print_tb(error.__traceback__, limit=-4)
        print(type(error).__name__, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # threads that still work, or hang, hold nobody up


if __name__ == "__main__":
    main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]) if len(sys.argv) > 2 else None)
