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
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Self

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from pydantic import AfterValidator

from veilsum_node.addresses import address_to_listen_on, bare_host, split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen
from veilsum_node.identity.files import read_private
from veilsum_node.phrases import unwritable
from veilsum_node.telemetry.listener import Answer, Listener, ServerTls

SHORTEST_TOKEN = 16
"""Characters."""

_FEW_BYTES = 1024  # below this an answer is not compressed
_KEPT_SECONDS = 1.0  # how long a page serves who asks next
_PORT = re.compile(r":\d+$", re.ASCII)
_POLL_SECONDS = 0.2  # how soon it stops when it is told to

# The library's own negotiation fails on some headers and repeats a caller's version in its answer: it hears these two alone.
_OPENMETRICS = "application/openmetrics-text"
_ENCODERS = {wanted: choose_encoder(f"{_OPENMETRICS};version=1.0.0" if wanted else "text/plain") for wanted in (False, True)}

disable_created_metrics()  # type: ignore[no-untyped-call]  # the list of metrics is closed: no *_created beside every counter


class MetricsSettings(Frozen):
    """The table ``[metrics]`` of a configuration file; without it the endpoint does not start.

    Attributes:
        listen: host:port; port 0 lets the system choose. On another host than loopback the three files below are demanded.
        ready_file: where the chosen address is written once the endpoint listens.
        certificate: PEM file of the endpoint's certificate and what leads to its authority; a renewed one is taken up.
        key: PEM file of its private key, readable by its owner only.
        token_file: file of one token of at least 16 characters, readable by its owner only; who asks for the metrics shows it
            as ``Authorization: Bearer``.
    """

    listen: Annotated[str, AfterValidator(address_to_listen_on)] = "127.0.0.1:9464"
    ready_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None


class Heartbeat:
    """Tells whether a loop still turns: the loop calls :meth:`beat`, the endpoint asks :meth:`alive`.

    Args:
        seconds: how long the loop may take for one turn.
    """

    def __init__(self, seconds: float = 120.0) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def beat(self) -> None:
        """The loop has turned."""
        self._last = time.monotonic()

    def alive(self) -> bool:
        """Whether it turned lately."""
        return time.monotonic() - self._last <= self._seconds


def write_address(path: Path, address: str, key: str) -> None:
    """Write a listener's address where others wait for it, whole or not at all.

    Raises:
        ConfigurationError: the file that the configuration's ``key`` names cannot be written.
    """
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(address)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigurationError(f"{path} {unwritable(error)}.", f"Check {key}.") from error


def bound(settings: MetricsSettings) -> socket.socket:
    """A socket that listens where the metrics are to be served, for a process that may not make one.

    Raises:
        ConfigurationError: the address is not safe as configured, or cannot be listened on.
    """
    family, place = _resolve(settings)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(Listener.request_queue_size)
    except OSError as error:
        made.close()
        raise _unbound(settings, error) from error
    return made


def _unbound(settings: MetricsSettings, error: OSError) -> ConfigurationError:
    advice = "Choose a free port, or 0 to let the system choose."
    return ConfigurationError(f"The metrics cannot be served on {settings.listen} ({error.strerror}).", advice)


class MetricsServer:
    """Serves a registry until it is stopped.

    Args:
        registry: what ``/metrics`` shows; collected in the endpoint's threads.
        settings: where to listen, and how to be let in.
        ready: for ``/readyz``: why the process is not ready, in one word; empty if it is.
        alive: for ``/healthz``: whether the process's loop turns.

    Raises:
        ConfigurationError: another host than loopback without TLS and token, or a file that cannot be used; nothing listens.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        settings: MetricsSettings,
        *,
        ready: Callable[[], str],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._family, self._place = _resolve(settings)
        host, _ = split_host_port(settings.listen, lowest_port=0)
        self._pages = _Pages(registry, _load_token(settings), host, ready, alive)
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
            raise _unbound(settings, error) from error
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
        self, registry: CollectorRegistry, token: bytes | None, host: str, ready: Callable[[], str], alive: Callable[[], bool]
    ) -> None:
        self._registry, self._token, self._ready, self._alive = registry, token, ready, alive
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
        encode, kind = _ENCODERS[_OPENMETRICS in headers.get("Accept", "").lower()]
        with self._lock:  # however many ask, one pass over the registry at a time
            made, body = self._kept.get(kind, (-math.inf, b""))
            if time.monotonic() - made > _KEPT_SECONDS:
                body = encode(self._registry)
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


def _resolve(settings: MetricsSettings) -> tuple[socket.AddressFamily, Any]:
    """The address to bind, and a refusal where it is not safe as configured."""
    host, port = split_host_port(settings.listen, lowest_port=0)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"The host of metrics.listen is not known: {settings.listen}.", "Name an address.") from error
    family, _, _, _, place = found[0]
    if not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        missing = [name for name in ("certificate", "key", "token_file") if getattr(settings, name) is None]
        if missing:
            raise ConfigurationError(
                f"metrics.listen {settings.listen} is not a loopback address; {_names(missing)} missing.",
                "Set metrics.certificate, metrics.key and metrics.token_file, or listen on 127.0.0.1.",
            )
    return family, place


def _names(missing: list[str]) -> str:
    keys = [f"metrics.{name}" for name in missing]
    return f"{', '.join(keys)} {'is' if len(keys) == 1 else 'are'}"


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
