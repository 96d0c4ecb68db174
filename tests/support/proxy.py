"""A TCP proxy on loopback for tests: counts what clients send, and stalls or cuts their connections after so many bytes."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

PIECE = 4096
POLL_SECONDS = 0.02

BEFORE_CONSENT = 450
"""Bytes of a member whose contribution is in: its answer passes, its consent does not."""


class Proxy:
    """Forwards connections to a target; limits apply to what clients send, over all connections together.

    Attributes:
        target: (host, port) of new connections; may be changed.
    """

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self.target, self._host = target, host
        self.stalled = threading.Event()
        self._changed = threading.Condition()
        self._sent = 0
        self._limit: int | None = None
        self._cut = self._deaf = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._closed = False
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """host:port to dial."""
        return f"{self._host}:{self.port}"

    def limit(self, count: int, *, cut: bool = False) -> None:
        """Let ``count`` more bytes through, then stall, or cut every connection once and go on."""
        with self._changed:
            self._sent, self._limit, self._cut = 0, count, cut
            self.stalled.clear()

    def deafen(self) -> None:
        """Let nothing more through to clients, who go on being heard, until released."""
        with self._changed:
            self._deaf = True

    def release(self) -> None:
        """Lift the limit; what was held, either way, goes on."""
        with self._changed:
            self._limit, self._deaf = None, False
            self.stalled.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Close everything."""
        self._closed = True
        self._listener.close()
        self.release()
        self._drop()

    def _drop(self) -> None:
        for pair in list(self._pairs):
            self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            self._pairs.add(pair)
            threading.Thread(target=self._pump, args=(pair, client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, server, client, False), daemon=True).start()

    def _pump(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if not up:
                    with self._changed:
                        self._changed.wait_for(lambda: not self._deaf)
                    sink.sendall(data)
                    continue
                allowed = self._allowed(len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    if not self._hold(source):
                        break
                    sink.sendall(data[allowed:])
        self._end(pair)

    def _allowed(self, size: int) -> int:
        with self._changed:
            allowed = size if self._limit is None else max(0, min(size, self._limit - self._sent))
            self._sent += allowed
            return allowed

    def _hold(self, client: socket.socket) -> bool:
        """Wait at the limit; False when the connection is over: cut, or hung up by the client."""
        with self._changed:
            if self._cut:
                self._limit = None
                self.stalled.set()
                self._drop()
                return False
        self.stalled.set()
        poll = select.poll()
        poll.register(client, select.POLLRDHUP)
        while True:
            with self._changed:
                if self._limit is None:
                    return not self._closed
                self._changed.wait(POLL_SECONDS)
            if poll.poll(0):
                return False
