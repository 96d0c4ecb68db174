"""The endpoint that a monitoring system scrapes: metrics, health and readiness over HTTP, on a thread of its own.

It answers ``GET /metrics``, ``/healthz`` and ``/readyz`` and nothing else, and reads nothing that a caller sends but the path
and a few headers. On loopback it may speak plain HTTP; on any other address it speaks TLS and demands a bearer token for the
metrics. Health and readiness show no value and need no token. Where no token is set, the metrics are for who asks this very
host by its own name: a web page that lets its name lead here (DNS rebinding) is refused.

A request holds one thread for 15 seconds at most; 8 are served at once, 4 of one address (:mod:`.listener`). However many ask,
there is one pass over the registry in a second for each of the two formats; its owner bounds its series.
"""

import gzip
import hmac
import ipaddress
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Self

from prometheus_client import CollectorRegistry

from veilsum_node.addresses import bare_host, split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.files import read_private
from veilsum_node.telemetry.binding import bound as bound
from veilsum_node.telemetry.binding import resolved, unbound
from veilsum_node.telemetry.binding import write_address as write_address
from veilsum_node.telemetry.endpoint_settings import MetricsSettings as MetricsSettings
from veilsum_node.telemetry.exposition import KINDS, OPENMETRICS, Page, page_of
from veilsum_node.telemetry.heartbeat import Heartbeat as Heartbeat
from veilsum_node.telemetry.listener import Answer, Listener, ServerTls

SHORTEST_TOKEN = 16
"""Characters."""

_FEW_BYTES = 1024  # below this an answer is not compressed
_KEPT_SECONDS = 1.0  # how long a page serves who asks next
_PORT = re.compile(r":\d+$", re.ASCII)
_POLL_SECONDS = 0.2  # how soon it stops when it is told to


class MetricsServer:
    """Serves a registry until it is stopped.

    Args:
        registry: what ``/metrics`` shows; collected in the endpoint's threads. Or what gives it, as bytes.
        settings: where to listen, and how to be let in.
        ready: for ``/readyz``: why the process is not ready, in one word; empty if it is.
        alive: for ``/healthz``: whether the process's loop turns.

    Raises:
        ConfigurationError: another host than loopback without TLS and token, or a file that cannot be used; nothing listens.
    """

    def __init__(
        self,
        registry: CollectorRegistry | Page,
        settings: MetricsSettings,
        *,
        ready: Callable[[], str],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._family, self._place = resolved(settings)
        host, _ = split_host_port(settings.listen, lowest_port=0)
        self._pages = _Pages(
            page_of(registry) if isinstance(registry, CollectorRegistry) else registry,
            _load_token(settings),
            host,
            ready,
            alive,
        )
        self._tls = _load_tls(settings)
        self._server: Listener | None = None
        self._thread: threading.Thread | None = None

    def start(self, listening: socket.socket | None = None) -> str:
        """Listen; returns the address, with the port that the system chose.

        Args:
            listening: a socket that :func:`bound` made for the same settings.

        Raises:
            ConfigurationError: the address cannot be listened on, or the ready file not be written.
        """
        settings = self._settings
        try:
            self._server = Listener(self._family, self._place, self._pages.answer, self._tls, listening=listening)
        except OSError as error:
            raise unbound(settings, error) from error
        address = f"{settings.listen.rpartition(':')[0]}:{self._server.server_address[1]}"
        if settings.ready_file is not None:
            try:
                write_address(settings.ready_file, address, "metrics.ready_file")
            except ConfigurationError:
                self._server.server_close()
                raise
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True)
        self._thread.start()
        return address

    def stop(self) -> None:
        """Stop listening; requests that are being served end with their connection."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(timeout=5)
            self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Pages:
    """What is answered to a path."""

    def __init__(
        self, page: Page, token: bytes | None, host: str, ready: Callable[[], str], alive: Callable[[], bool]
    ) -> None:
        self._page, self._token, self._ready, self._alive = page, token, ready, alive
        self._host = _bare(host)
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, bytes]] = {}  # when a page was made, and the page, by its format, of which are two

    def answer(self, path: str, headers: Any) -> Answer:
        """Status, headers and body."""
        match path.partition("?")[0]:
            case "/metrics":
                if self._token is None and not self._is_own(headers.get("Host", "")):
                    return HTTPStatus.FORBIDDEN, {}, b"this host has another name\n"
                if not self._admits(headers.get("Authorization", "")):
                    return HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"}, b"unauthorized\n"
                return self._metrics(headers)
            case "/healthz":
                return _word("" if self._alive() else "stalled")
            case "/readyz":
                return _word(self._ready())
            case _:
                return HTTPStatus.NOT_FOUND, {}, b"not found\n"

    def _metrics(self, headers: Any) -> Answer:
        wanted = OPENMETRICS in headers.get("Accept", "").lower()
        kind = KINDS[wanted]
        with self._lock:  # however many ask, one pass over the registry at a time
            made, body = self._kept.get(kind, (-math.inf, b""))
            if time.monotonic() - made > _KEPT_SECONDS:
                body = self._page(wanted)
                self._kept[kind] = time.monotonic(), body
        answer = {"Content-Type": kind}
        if len(body) > _FEW_BYTES and "gzip" in headers.get("Accept-Encoding", ""):
            body, answer["Content-Encoding"] = gzip.compress(body, compresslevel=1), "gzip"
        return HTTPStatus.OK, answer, body

    def _is_own(self, named: str) -> bool:
        """Whether a request names this host: as configured, as localhost, or by a loopback address; HTTP/1.0 names none."""
        name = _bare(_PORT.sub("", named.strip()))
        if name in ("", "localhost", self._host):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _admits(self, shown: str) -> bool:
        if self._token is None:
            return True
        scheme, _, token = shown.partition(" ")
        given = token.strip().encode("utf-8", "replace")
        return hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"


def _bare(host: str) -> str:
    """A host without the brackets of an address and the dot of a whole name."""
    return bare_host(host).removesuffix(".").lower()


def _word(reason: str) -> Answer:
    return HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, {}, f"{reason or 'ok'}\n".encode()


def _load_token(settings: MetricsSettings) -> bytes | None:
    if settings.token_file is None:
        return None
    path = settings.token_file
    token = read_private(path, "metrics token", advice=f"Make one: openssl rand -hex 32 > {path}; chmod 600 {path}").strip()
    if len(token) < SHORTEST_TOKEN or not all(0x21 <= byte <= 0x7E for byte in token):
        raise ConfigurationError(
            f"The metrics token {path} is shorter than {SHORTEST_TOKEN} characters, or not of printable ASCII without spaces.",
            f"Make one: openssl rand -hex 32 > {path}",
        )
    return token


def _load_tls(settings: MetricsSettings) -> ServerTls | None:
    if settings.certificate is None and settings.key is None:
        return None
    if settings.certificate is None or settings.key is None:
        raise ConfigurationError("metrics.certificate and metrics.key must be set together.", "Set both, or neither.")
    return ServerTls(settings.certificate, settings.key)
