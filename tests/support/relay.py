"""A relay in front of a Unix socket that can fall silent: connections stay open, and no byte passes in either direction."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

_BYTES = 65536


class Relay:
    """Listens on one path and forwards to another, until :meth:`close`."""

    def __init__(self, listen: Path, target: Path) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(listen))
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Let nothing pass; what comes is kept."""
        self._open.clear()

    def speak(self) -> None:
        """Let everything pass again."""
        self._open.set()

    def close(self) -> None:
        """End every connection."""
        self._closed = True
        self._open.set()
        for item in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                far.connect(str(self._target))
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BYTES):
                self._open.wait()
                if self._closed:
                    return
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
