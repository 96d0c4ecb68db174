"""An HTTP CONNECT proxy for tests: tunnels to allowed targets, asks for a password if it has one, remembers what was asked."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Mapping

HEAD_BYTES = 16 * 1024
PIECE = 65536


class ConnectProxy:
    """Speaks as much of RFC 9110, section 9.3.6, as a tunnel needs.

    Args:
        host: address to listen on.
        credentials: user and password that it demands (RFC 7617), if any.
        targets: host:port that it lets through, each with where it really is; None lets everything through.

    Attributes:
        requests: each request's target and status.
        tunnels: how many are open.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        credentials: tuple[str, str] | None = None,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        self.requests: list[tuple[str, int]] = []
        self.tunnels = 0
        self._lock = threading.Lock()
        self._targets = targets
        self._wanted = None
        if credentials is not None:
            self._wanted = "Basic " + base64.b64encode(":".join(credentials).encode()).decode()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening and end every tunnel."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every tunnel; new ones are let through."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _end(pair)

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.settimeout(30)
            head = b""
            while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
                piece = client.recv(4096)
                if not piece:
                    break
                head += piece
            head, _, early = head.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            method, target, _ = (*first.split(" "), "", "", "")[:3]
            status, server = self._open(method, target, fields)
            self.requests.append((target, status))
            if server is None:
                more = 'Proxy-Authenticate: Basic realm="test"\r\n' if status == 407 else ""
                client.sendall(f"HTTP/1.1 {status} No\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
                client.close()
                return
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            client.settimeout(None)
            server.sendall(early)
            self._tunnel(client, server)
        client.close()

    def _open(self, method: str, target: str, fields: Mapping[str, str]) -> tuple[int, socket.socket | None]:
        if method != "CONNECT":
            return 405, None
        if self._wanted is not None and fields.get("proxy-authorization") != self._wanted:
            return 407, None
        if self._targets is not None and target not in self._targets:
            return 403, None
        host, _, port = (self._targets[target] if self._targets is not None else target).rpartition(":")
        try:
            server = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
        except OSError:
            return 502, None
        server.settimeout(None)
        return 200, server

    def _tunnel(self, client: socket.socket, server: socket.socket) -> None:
        pair = (client, server)
        with self._lock:
            self._pairs.add(pair)
            self.tunnels += 1
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            self._pairs.discard(pair)
            self.tunnels -= 1
        server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            sink.sendall(data)
    _end((source, sink))


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for end in pair:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
