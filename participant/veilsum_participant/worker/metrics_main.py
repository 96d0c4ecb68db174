"""The main of the process that serves metrics: ``python -P -m veilsum_participant.worker.metrics_main``, with a descriptor of
a line to the guard, bounds, the descriptor of a socket that listens, and the table ``[metrics]`` as JSON."""

import os
import signal
import socket
import sys

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent, go_first


def main(descriptor: int, bounds: Bounds | None, listening: int, settings: str) -> None:
    """Serve metrics, by the guard at the other end of a connected socket, until that ends; without bounds, unconfined."""
    end_with_parent()
    go_first()
    if bounds is not None:
        confine(bounds, keep=(descriptor, listening))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from veilsum_node.errors import ConfigurationError
    from veilsum_node.telemetry.endpoint_settings import MetricsSettings
    from veilsum_node.telemetry.log_floods import start_bounded_logging
    from veilsum_participant.boundary.calls import Handler
    from veilsum_participant.boundary.framing import FramedSocket
    from veilsum_participant.boundary.metrics import REQUESTS
    from veilsum_participant.boundary.serving import serve
    from veilsum_participant.worker.metrics import Endpoint, told, unusable

    start_bounded_logging()
    answer: Handler
    try:
        answer = Endpoint(MetricsSettings.model_validate_json(settings), socket.socket(fileno=listening)).answer
    except ConfigurationError as error:
        answer = unusable(error)
    serve(FramedSocket(socket.socket(fileno=descriptor)), REQUESTS, answer, told, threads=2)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3]), sys.argv[4])
