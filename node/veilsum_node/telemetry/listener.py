"""A small HTTP server on a thread: bounded in what a caller may hold, and in how long.

It serves GET and HEAD, reads nothing of a request but its path and a few headers, and closes the connection after each answer.
Where its owner takes POST, it reads a body of bounded length as well. What is answered is the caller's business.
"""

import ipaddress
import logging
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.files import read_file, read_private
from veilsum_node.telemetry.binding import QUEUE
from veilsum_node.telemetry.log_floods import caused_by

LOG = logging.getLogger("veilsum.monitoring")

REQUEST_SECONDS = 15.0
"""A connection that is older is closed, whatever it does."""

MOST_REQUESTS = 8
"""Connections that are served at once; further ones are closed."""

MOST_OF_ONE = 4
"""The same from one address: one caller cannot take a health check's place, whose failure may restart the process."""

MOST_BYTES = 64 * 1024
"""The most bytes of a body that is sent here."""

_READ_SECONDS = 5.0  # without a byte from the caller

Answer = tuple[HTTPStatus, Mapping[str, str], bytes]
"""Status, headers and body."""

Answerer = Callable[[str, Any], Answer]
"""Answers a path and a request's headers."""

Taker = Callable[[str, bytes, str], Answer]
"""Answers a path, a request's body, and the address that it comes from."""


class ServerTls:
    """A server's certificate and key, read again when the files change; TLS 1.2 or newer.

    Args:
        certificate, key: PEM files.
        what: names them in messages.

    Raises:
        ConfigurationError: a file is missing, the key can be read by others, or they do not belong together.
    """

    def __init__(self, certificate: Path, key: Path, what: str = "metrics") -> None:
        self._certificate, self._key, self._what = certificate, key, what
        self._marks = self._look()
        self._context = self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection. A pair that cannot be used is logged once, and the one before serves on."""
        if (marks := self._look()) != self._marks:
            self._marks = marks
            try:
                self._context = self._load()
            except ConfigurationError as error:
                LOG.warning("the %s certificate was not renewed: %s", self._what, error)
        return self._context

    def _look(self) -> list[tuple[int, int]]:
        marks = []
        for path in (self._certificate, self._key):
            with suppress(OSError):
                status = path.stat()
                marks.append((status.st_mtime_ns, status.st_ino))
        return marks

    def _load(self) -> ssl.SSLContext:
        read_file(self._certificate, f"{self._what} certificate")
        read_private(self._key, f"{self._what} key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")  # never asks on a terminal
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"The {self._what} certificate {self._certificate} and key {self._key} are not a matching pair of PEM files.",
                "Check both; the key must not be encrypted.",
            ) from error
        return context


class Listener(socketserver.ThreadingTCPServer):
    """Accepts connections, and answers each in a thread of its own.

    Args:
        family: of the address.
        place: to bind.
        answer: called in the connection's thread.
        tls: speaks TLS with every caller; None for plain HTTP.
        take: answers POST; None to refuse it.
        proxies: addresses of proxies whose ``X-Forwarded-For`` is believed: whom they name is counted in their place.
        listening: a socket that listens at ``place`` already, of who may not make one.

    Raises:
        OSError: the address cannot be listened on.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = QUEUE

    def __init__(
        self,
        family: socket.AddressFamily,
        place: Any,
        answer: Answerer,
        tls: ServerTls | None,
        take: Taker | None = None,
        proxies: Collection[str] = (),
        listening: socket.socket | None = None,
    ) -> None:
        self.address_family = family
        self.proxies = frozenset(proxies)
        self.answer, self.take, self._tls = answer, take, tls
        self._lock = threading.Lock()
        self._callers: Counter[str] = Counter()
        self._forwarded: Counter[str] = Counter()
        self._since: dict[socket.socket, tuple[str, float]] = {}
        if listening is None:
            super().__init__(place, _Handler)
            return
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket = listening

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its handshake is its own thread's, so that nobody waits for a slow caller."""
        connection, caller = self.socket.accept()
        if self._tls is not None:
            connection = self._tls.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, caller

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for it."""
        with self._lock:
            held = self._callers[client_address[0]]
            return len(self._since) < MOST_REQUESTS and (client_address[0] in self.proxies or held < MOST_OF_ONE)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread."""
        with self._lock:
            self._callers[client_address[0]] += 1
            self._since[request] = client_address[0], time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close it, and free its place if it had one."""
        with self._lock:
            if (held := self._since.pop(request, None)) is not None:
                self._callers.subtract((held[0],))
                self._callers = +self._callers  # no entry for who has left
        super().shutdown_request(request)

    @contextmanager
    def room_for(self, caller: str, peer: str) -> Iterator[bool]:
        """Whether there is room for whom a proxy names; it holds a place of its own while the block lasts."""
        if caller == peer:
            yield True
            return
        with self._lock:
            room = self._forwarded[caller] < MOST_OF_ONE
            self._forwarded[caller] += room
        try:
            yield room
        finally:
            with self._lock:
                self._forwarded.subtract({caller: int(room)})
                self._forwarded = +self._forwarded

    def service_actions(self) -> None:
        """Between requests: cut off who takes too long."""
        limit = time.monotonic() - REQUEST_SECONDS
        with self._lock:
            late = [request for request, (_, since) in self._since.items() if since < limit]
        for request in late:
            with suppress(OSError):
                socket.socket.shutdown(request, socket.SHUT_RDWR)  # its thread then fails in what it does, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away or speaks no TLS is not logged; what failed in here is."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            LOG.error("internal error at an endpoint", exc_info=error, extra=caused_by("internal errors", client_address[0]))


class _Handler(BaseHTTPRequestHandler):
    server: Listener
    timeout = _READ_SECONDS
    server_version, sys_version = "veilsum", ""
    error_message_format, error_content_type = "%(code)d %(explain)s\n", "text/plain; charset=utf-8"

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(_READ_SECONDS)
            self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        self._send(self.server.answer(self.path, self.headers))

    def do_POST(self) -> None:
        if self.server.take is None:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 9):
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > MOST_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif len(body := self.rfile.read(int(length))) == int(length):
            caller = self._caller()
            with self.server.room_for(caller, self.client_address[0]) as room:
                if room:
                    self._send(self.server.take(self.path, body, caller))
                else:
                    self.send_error(HTTPStatus.TOO_MANY_REQUESTS)

    def _caller(self) -> str:
        """Who asks: the peer, or of whom a trusted proxy names the last that is none of the trusted ones itself."""
        caller = str(self.client_address[0])
        hops = ",".join(self.headers.get_all("X-Forwarded-For", [])).split(",")
        while caller in self.server.proxies and hops:
            try:
                caller = str(ipaddress.ip_address(hops.pop().strip()))
            except ValueError:  # what no proxy writes is nobody's address
                break
        return caller

    def _send(self, answer: Answer) -> None:
        status, headers, body = answer
        self.send_response(status)
        for name, value in ({"Content-Type": "text/plain; charset=utf-8", **headers}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Scrapes are not logged."""
