"""A proxy before a server that counts what it carries, by the clock that all processes of a machine share."""

from __future__ import annotations

import bisect
import socket
import threading
import time


class Proxy:
    """Carries bytes between clients and a server at a port of this machine, both ways.

    Attributes:
        port: where clients connect.
        carried: bytes so far.
    """

    def __init__(self, target: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.carried = int(self._listener.getsockname()[1]), 0
        self._target, self._lock = target, threading.Lock()
        self._times, self._totals = [time.perf_counter()], [0]
        threading.Thread(target=self._accept, daemon=True).start()

    def carried_at(self, moment: float) -> int:
        """Bytes until a moment of :func:`time.perf_counter`, which on Linux every process reads from the same clock."""
        with self._lock:
            return self._totals[max(0, bisect.bisect_right(self._times, moment) - 1)]

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()
                continue  # the server does not listen yet; clients try again
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(1 << 16):
                other.sendall(piece)
                with self._lock:
                    self.carried += len(piece)
                    self._times.append(time.perf_counter())
                    self._totals.append(self.carried)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass
