"""The main of a process that computes maps: ``python -P -m veilsum_participant.worker.maps_main DESCRIPTOR [BOUNDS [OF]]``."""

import socket
import sys

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.memory import loading
from veilsum_participant.worker.ending import ends_with_it


def main(descriptor: int, bounds: Bounds | None) -> None:
    """Serve the guard at the other end of a connected socket until it ends, and end with it, whatever is being done.

    Without bounds it is not confined.
    """
    with ends_with_it():
        if bounds is not None:
            confine(bounds, keep=(descriptor,))
        with loading(serves=True):
            from veilsum_node.telemetry.log_writing import start_logging
            from veilsum_participant.boundary.framing import FramedSocket
            from veilsum_participant.boundary.maps import REQUESTS
            from veilsum_participant.boundary.serving import serve
            from veilsum_participant.worker.maps import MapComputer
            from veilsum_participant.worker.reader import told

        start_logging()
        serve(FramedSocket(socket.socket(fileno=descriptor)), REQUESTS, MapComputer().answer, told, threads=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]) if len(sys.argv) > 2 else None)
