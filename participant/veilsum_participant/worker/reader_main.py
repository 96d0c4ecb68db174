"""The main of a reader: ``python -P -m veilsum_participant.worker.reader_main DESCRIPTOR [BOUNDS [OF]]``."""

import socket
import sys

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.memory import loading
from veilsum_participant.worker.decoding import Decoders, start_nursery
from veilsum_participant.worker.ending import ends_with_it


def main(descriptor: int, bounds: Bounds | None) -> None:
    """Serve the guard at the other end of a connected socket until it ends, and end with it, whatever is being done.

    Without bounds it is not confined.
    """
    with ends_with_it():
        nursery = start_nursery(bounds)
        if bounds is not None:
            confine(bounds, keep=(descriptor, nursery.fileno()))
        with loading(serves=True):
            from veilsum_node.telemetry.log_writing import start_logging
            from veilsum_participant.boundary.framing import FramedSocket
            from veilsum_participant.boundary.reader import REQUESTS
            from veilsum_participant.boundary.serving import serve
            from veilsum_participant.data.images import decode_by
            from veilsum_participant.data.local import LocalDatasets
            from veilsum_participant.worker.reader import DatasetReader, told

        start_logging()
        decode_by(Decoders(nursery).read_image)
        serve(FramedSocket(socket.socket(fileno=descriptor)), REQUESTS, DatasetReader(LocalDatasets()).answer, told, threads=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]) if len(sys.argv) > 2 else None)
