"""Bytes on a socket: requests to the endpoint of metrics, and a proxy's answers to CONNECT."""

from __future__ import annotations

import socket
import threading

from prometheus_client import CollectorRegistry, Counter

from fuzzing.driver import Unexpected
from fuzzing.targets.base import Corpus
from veilsum_node.telemetry.endpoint import MetricsServer, MetricsSettings
from veilsum_node.transport.dialling import connect
from veilsum_node.transport.route import Proxy, Route


class MetricsEndpoint(Corpus):
    """Raw requests; the endpoint answers an honest one after each hundred."""

    name = "metrics"

    def __init__(self) -> None:
        super().__init__()
        registry = CollectorRegistry()
        Counter("trial", "A counter.", registry=registry).inc()
        self.server = MetricsServer(registry, MetricsSettings(listen="127.0.0.1:0"), ready=lambda: "")
        host, _, port = self.server.start().rpartition(":")
        self.place = host, int(port)
        self.seeds = [[
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n", b"HEAD /healthz HTTP/1.0\r\n\r\n",
            b"GET /readyz?x=1 HTTP/1.1\r\nAccept-Encoding: gzip\r\nAuthorization: Bearer \xff\r\n\r\n", b"GET /metrics\r\n",
            b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\nx",
            b"GET " + b"/" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        ]]  # fmt: skip
        self.count = 0

    def close(self) -> None:
        self.server.stop()
        super().close()

    def keep(self, data: bytes) -> None:
        """What it answers says nothing of the way that it took."""

    def read(self, reader: int, data: bytes) -> None:
        answer = self._ask(data)
        bodies = (b"HTTP/1.0 ", b"4", b"5", b"ok", b"#", b"not", b"this host has another name")
        if answer and not answer.startswith(bodies):  # old requests get no head
            raise Unexpected(f"answered {answer[:60]!r}")
        if b"Traceback" in answer:
            raise Unexpected("a traceback leaves")
        self.count += 1
        if self.count % 100 == 0 and not self._ask(b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 200"):
            raise Unexpected("an honest request is not answered")

    def _ask(self, data: bytes) -> bytes:
        with socket.create_connection(self.place, timeout=8) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                pieces = []
                while piece := connection.recv(65536):
                    pieces.append(piece)
                return b"".join(pieces)
            except TimeoutError:
                raise
            except OSError:  # it closed the connection already
                return b""


class ProxyAnswers(Corpus):
    """What a proxy answers before a tunnel; the participant reads nothing past its head."""

    name = "proxy"

    def __init__(self) -> None:
        super().__init__()
        self.seeds = [[
            b"HTTP/1.1 200 Connection established\r\n\r\n\x16\x03\x01", b"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n",
            b"HTTP/1.1 407 Authentication\r\nProxy-Authenticate: Basic\r\n\r\n", b"HTTP/1.1 503 no\r\n\r\n", b"SSH-2.0-x\r\n",
            b"HTTP/1.1 200 " + b"x" * 20000,
        ]]  # fmt: skip
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answer = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.listener.close()
        super().close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(4096)
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except OSError:
                    continue

    def read(self, reader: int, data: bytes) -> None:
        self.answer = data
        place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        with connect(Route("coordinator.example:8461", Proxy(place, "user", "word"))) as tunnel:
            head, _, rest = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.") or not head.split(b" ")[1].startswith(b"2"):
                raise Unexpected("a tunnel where none was granted")
            received = b""
            while piece := tunnel.recv(65536):
                received += piece
            if received != rest:
                raise Unexpected("bytes of the tunnel were lost")
