"""Answering over HTTP on a thread of its own, for as long as a context lasts."""

import threading
from typing import Self

from veilsum_node.telemetry.listener import Listener

_POLL_SECONDS = 0.1


class Served:
    """A listener that answers while its context lasts, and is closed behind it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._thread = threading.Thread(target=listener.serve_forever, args=(_POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._thread.join(timeout=5)
        self._listener.server_close()
