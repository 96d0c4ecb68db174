"""The endpoint that is scraped: who is let in, what is refused before anything listens, and what a caller cannot do to it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from support.network import PATIENCE, wait_for
from veilsum_node.config import validate
from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.telemetry import endpoint, listener
from veilsum_node.telemetry.endpoint import Heartbeat, MetricsServer, MetricsSettings
from veilsum_node.telemetry.refresh import Refreshed

TOKEN = "0123456789abcdef0123456789abcdef"


def write_pair(directory: Path, name: str = "metrics", *, encrypted: bool = False) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = builder.not_valid_after(now + timedelta(days=1)).add_extension(names, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    how: Any = serialization.BestAvailableEncryption(b"secret") if encrypted else serialization.NoEncryption()
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    paths[1].chmod(0o600)
    return paths


def write_token(directory: Path, token: str = TOKEN) -> Path:
    path = directory / "token"
    path.write_text(token + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    Gauge("veilsum_test_value", "A value.", registry=found).set(7)
    return found


@pytest.fixture
def serve(registry: CollectorRegistry) -> Iterator[Callable[..., str]]:
    servers: list[MetricsServer] = []

    def start(settings: MetricsSettings | None = None, ready: Callable[[], str] = str, **more: Any) -> str:
        server = MetricsServer(registry, settings or MetricsSettings(listen="127.0.0.1:0"), ready=ready, **more)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


def ask(
    url: str, token: str | None = None, trusted: Path | None = None, scheme: str = "Bearer", **headers: str
) -> tuple[int, bytes, Any]:
    if token is not None:
        headers["Authorization"] = f"{scheme} {token}"
    context = None if trusted is None else ssl.create_default_context(cafile=str(trusted))
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:  # noqa: S310
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_on_loopback_it_serves_without_tls_or_token(serve: Callable[..., str]) -> None:
    address = serve()
    status, body, headers = ask(f"http://{address}/metrics")
    assert status == 200
    assert b"veilsum_test_value 7.0\n" in body
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert ask(f"http://{address}/healthz")[:2] == ask(f"http://{address}/readyz?x=1")[:2] == (200, b"ok\n")
    assert ask(f"http://{address}/")[0] == 404
    assert ask(f"http://{address}/metrics/../healthz")[0] == 404


def test_it_answers_in_the_format_that_is_asked_for(serve: Callable[..., str], registry: CollectorRegistry) -> None:
    address = serve()
    status, body, headers = ask(f"http://{address}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, body[-6:]) == (200, b"# EOF\n")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    many = Gauge("veilsum_test_many", "Enough to be worth it.", ["number"], registry=registry)
    for number in range(100):
        many.labels(str(number))
    plain = ask(f"http://{address}/metrics")[1]
    _, packed, headers = ask(f"http://{address}/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert len(packed) < len(plain) / 2
    assert gzip.decompress(packed) == plain


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version==; charset=utf-8",
        "application/openmetrics-text; version=99999999999999999999",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2",
        "Application/OpenMetrics-Text",
        "text/plain; version=1.0.0; escaping=dots",
        "text/plain; version==;",
        "*/*",
        ";;=,,",
        "x" * 60000,
    ],
)
def test_no_header_chooses_more_than_one_of_two_formats(
    serve: Callable[..., str], caplog: pytest.LogCaptureFixture, accept: str
) -> None:
    status, body, headers = ask(f"http://{serve()}/metrics", Accept=accept)
    version = "application/openmetrics-text; version=1.0.0" if "openmetrics" in accept.lower() else "text/plain; version=0.0.4"
    assert (status, headers["Content-Type"].startswith(f"{version}; charset=utf-8")) == (200, True)
    assert b"veilsum_test_value 7.0\n" in body
    assert not caplog.records


def test_however_many_formats_are_asked_for_there_are_two_passes_in_a_second(
    serve: Callable[..., str], registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_KEPT_SECONDS", 600.0)
    passes = []

    class Counting(Collector):
        def collect(self) -> Iterator[Metric]:
            passes.append(1)
            yield from ()

    address = serve()
    counting = Counting()
    registry._collector_to_names[counting] = []  # register() would call it
    for number in range(4):
        ask(f"http://{address}/metrics", Accept=f"application/openmetrics-text; version={number}")
        ask(f"http://{address}/metrics", Accept=f"text/plain; version={number}; escaping=dots")
    assert len(passes) == 2


def test_health_and_readiness_tell_one_word(serve: Callable[..., str]) -> None:
    reasons, alive = ["database"], [False]
    address = serve(ready=lambda: reasons[0], alive=lambda: alive[0])
    assert ask(f"http://{address}/readyz")[:2] == (503, b"database\n")
    assert ask(f"http://{address}/healthz")[:2] == (503, b"stalled\n")
    reasons[0], alive[0] = "", True
    assert ask(f"http://{address}/readyz")[:2] == ask(f"http://{address}/healthz")[:2] == (200, b"ok\n")


@pytest.mark.parametrize(
    ("token", "scheme", "status"),
    [
        (TOKEN, "Bearer", 200),
        (TOKEN, "bearer", 200),
        (None, "Bearer", 401),
        ("", "Bearer", 401),
        (TOKEN[:-1], "Bearer", 401),
        (TOKEN + "0", "Bearer", 401),
        (TOKEN, "Basic", 401),
        ("\xe9" * 32, "Bearer", 401),
    ],
)
def test_a_token_opens_the_metrics_only(
    serve: Callable[..., str], tmp_path: Path, token: str | None, scheme: str, status: int
) -> None:
    address = serve(MetricsSettings(listen="127.0.0.1:0", token_file=write_token(tmp_path)))
    found, body, headers = ask(f"http://{address}/metrics", token, scheme=scheme)
    assert found == status
    assert (b"veilsum_test_value" in body) == (status == 200)
    assert headers["WWW-Authenticate"] == (None if status == 200 else "Bearer")
    assert ask(f"http://{address}/readyz")[0] == ask(f"http://{address}/healthz")[0] == 200


def test_tls_and_a_token_on_every_interface(serve: Callable[..., str], tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path)
    settings = MetricsSettings(listen="0.0.0.0:0", certificate=certificate, key=key, token_file=write_token(tmp_path))
    port = serve(settings).rpartition(":")[2]
    assert ask(f"https://127.0.0.1:{port}/metrics", TOKEN, certificate)[0] == 200
    assert ask(f"https://127.0.0.1:{port}/metrics", None, certificate)[0] == 401
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(f"https://127.0.0.1:{port}/metrics", TOKEN, write_pair(tmp_path, "other")[0])
    with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
        ask(f"http://127.0.0.1:{port}/metrics", TOKEN)
    context = ssl.create_default_context(cafile=str(certificate))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(
    serve: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_pair(tmp_path)
    first = tmp_path / "first.pem"
    first.write_bytes(certificate.read_bytes())
    address = serve(MetricsSettings(listen="127.0.0.1:0", certificate=certificate, key=key))
    assert ask(f"https://{address}/healthz", trusted=first)[0] == 200
    renewed, renewed_key = write_pair(tmp_path, "renewed")
    os.replace(renewed, certificate)  # its key is not there yet
    assert ask(f"https://{address}/healthz", trusted=first)[0] == 200
    assert "was not renewed" in caplog.text
    os.replace(renewed_key, key)
    assert ask(f"https://{address}/healthz", trusted=certificate)[0] == 200
    with pytest.raises(urllib.error.URLError):
        ask(f"https://{address}/healthz", trusted=first)


LISTENING = "not a loopback address"


@pytest.mark.parametrize("missing", ["certificate", "key", "token_file", "all"])
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_nothing_listens_without_tls_and_token(
    registry: CollectorRegistry, tmp_path: Path, missing: str, listen: str
) -> None:
    certificate, key = write_pair(tmp_path)
    files = {"certificate": certificate, "key": key, "token_file": write_token(tmp_path)}
    given = {} if missing == "all" else {name: path for name, path in files.items() if name != missing}
    with pytest.raises(ConfigurationError, match=LISTENING) as caught:
        MetricsServer(registry, MetricsSettings(listen=listen, **given), ready=str)
    for name in files:
        assert (f"metrics.{name}" in caught.value.message) == (missing in (name, "all"))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.9.10:0", "localhost:0", "[::1]:0"])
def test_loopback_has_many_names(serve: Callable[..., str], listen: str) -> None:
    try:
        address = serve(MetricsSettings(listen=listen))
    except ConfigurationError:
        if not listen.startswith("["):
            raise
        pytest.skip("IPv6 is switched off on this machine")
    assert ask(f"http://{address}/healthz")[0] == 200


def _spoil(directory: Path, fault: str) -> MetricsSettings:
    certificate, key = write_pair(directory)
    token = write_token(directory)
    match fault:
        case "no token":
            token.unlink()
        case "short token":
            token = write_token(directory, "0123456789abcde")
        case "spaced token":
            token = write_token(directory, "0123456789 0123456789")
        case "shown token":
            token.chmod(0o644)
        case "shown key":
            key.chmod(0o640)
        case "another key":
            key = write_pair(directory, "other")[1]
        case "encrypted key":
            certificate, key = write_pair(directory, encrypted=True)
        case "no certificate":
            certificate.unlink()
        case "certificate alone":
            return MetricsSettings(listen="127.0.0.1:0", certificate=certificate)
        case "unknown host":
            return MetricsSettings(listen="no-such-host.invalid:0")
    return MetricsSettings(listen="127.0.0.1:0", certificate=certificate, key=key, token_file=token)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no token", "does not exist"),
        ("short token", "shorter than 16 characters"),
        ("spaced token", "without spaces"),
        ("shown token", "can be read by others"),
        ("shown key", "can be read by others"),
        ("another key", "not a matching pair"),
        ("encrypted key", "not a matching pair"),
        ("no certificate", "does not exist"),
        ("certificate alone", "must be set together"),
        ("unknown host", "not known"),
    ],
)
def test_files_that_cannot_be_used_are_named_before_anything_listens(
    registry: CollectorRegistry, tmp_path: Path, fault: str, words: str
) -> None:
    settings = _spoil(tmp_path, fault)
    with pytest.raises(ConfigurationError, match=words) as caught:
        MetricsServer(registry, settings, ready=str)
    assert TOKEN not in str(caught.value)


def test_an_address_in_use_is_a_clear_error(serve: Callable[..., str], registry: CollectorRegistry) -> None:
    address = serve()
    with pytest.raises(ConfigurationError, match=f"cannot be served on {address}"):
        MetricsServer(registry, MetricsSettings(listen=address), ready=str).start()


def test_the_ready_file_holds_the_address(serve: Callable[..., str], registry: CollectorRegistry, tmp_path: Path) -> None:
    address = serve(MetricsSettings(listen="127.0.0.1:0", ready_file=tmp_path / "address"))
    assert (tmp_path / "address").read_text() == address
    assert not (tmp_path / "address.partial").exists()
    lost = MetricsSettings(listen="127.0.0.1:0", ready_file=tmp_path / "none" / "address")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        MetricsServer(registry, lost, ready=str).start()


@pytest.mark.parametrize("listen", ["", "9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "::1:9464", "a b:1", "h:-1"])
def test_addresses_that_are_none(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="listen: must be host:port"):
        validate({"listen": listen}, MetricsSettings, source="[metrics]")


def _send(address: str, data: bytes, seconds: float = 10.0) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as raw:
        raw.sendall(data)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"501"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /healthz HTTP/9.9\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200"),
    ],
    ids=["post", "long path", "many headers", "version", "tls", "head"],
)
def test_requests_of_other_kinds(serve: Callable[..., str], request_: bytes, status: bytes) -> None:
    address = serve()
    try:
        answer = _send(address, request_)
    except ConnectionError:  # closed with unread bytes in it
        answer = status
    assert status in answer.splitlines()[0]
    assert b"metrics" not in answer
    assert ask(f"http://{address}/healthz")[0] == 200


def test_callers_that_dawdle_are_cut_off_and_stop_nobody(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More callers than are served hold their connections open, one of them sending a byte now and then."""
    monkeypatch.setattr(listener, "REQUEST_SECONDS", 1.0)
    address = serve()
    host, _, port = address.rpartition(":")
    sources = [f"127.0.0.{2 + number // listener.MOST_OF_ONE}" for number in range(listener.MOST_REQUESTS)]
    held = [socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(source, 0)) for source in sources]
    with pytest.raises((urllib.error.URLError, OSError, http.client.HTTPException)):
        ask(f"http://{address}/healthz")
    ended = threading.Event()

    def dawdle() -> None:
        try:
            held[0].sendall(b"GET /healthz HTTP/1.1\r\nX: ")
            while not ended.is_set():
                held[0].sendall(b"y")
                time.sleep(0.1)
        except OSError:
            ended.set()

    thread = threading.Thread(target=dawdle, daemon=True)
    thread.start()
    try:
        assert ended.wait(PATIENCE)
        assert all(connection.recv(1) == b"" for connection in held[1:])
        assert ask(f"http://{address}/healthz")[0] == 200
    finally:
        ended.set()
        for connection in held:
            connection.close()


def test_one_address_cannot_hold_every_place(serve: Callable[..., str]) -> None:
    """Nor does it keep a place that it has left."""
    address = serve()
    host, _, port = address.rpartition(":")

    def open_many() -> list[socket.socket]:
        return [
            socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=("127.0.0.2", 0))
            for _ in range(2 * listener.MOST_REQUESTS)
        ]

    def answers() -> bool:
        with contextlib.suppress(urllib.error.URLError, OSError, http.client.HTTPException):
            return ask(f"http://{address}/healthz")[0] == 200
        return False

    for _ in range(3):
        held = open_many()
        try:
            assert all(connection.recv(1) == b"" for connection in held[listener.MOST_OF_ONE :])
            wait_for(answers, "an answer to another address")  # the places left before are free in a moment
        finally:
            for connection in held:
                connection.close()


def test_a_caller_that_begins_no_handshake_holds_nobody_up(serve: Callable[..., str], tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path)
    address = serve(MetricsSettings(listen="127.0.0.1:0", certificate=certificate, key=key))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))):
        assert ask(f"https://{address}/healthz", trusted=certificate)[0] == 200


def test_a_collector_that_fails_leaves_the_endpoint_standing(
    serve: Callable[..., str], registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise ArithmeticError("a value")

    address = serve()
    broken = Broken()
    registry._collector_to_names[broken] = []  # register() would call it
    with pytest.raises((urllib.error.URLError, OSError, http.client.HTTPException)):
        ask(f"http://{address}/metrics")
    assert "internal error at an endpoint" in caplog.text
    assert ask(f"http://{address}/healthz")[0] == 200


def test_a_stopped_endpoint_listens_no_more(registry: CollectorRegistry) -> None:
    server = MetricsServer(registry, MetricsSettings(listen="127.0.0.1:0"), ready=str)
    with server:
        pass
    server.stop()
    MetricsServer(registry, MetricsSettings(listen="127.0.0.1:0"), ready=str).stop()  # never started


def test_a_heartbeat_stops_when_its_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    beat = Heartbeat(seconds=5.0)
    now[0] += 5.0
    assert beat.alive()
    now[0] += 0.1
    assert not beat.alive()
    beat.beat()
    assert beat.alive()


def test_figures_are_computed_once_for_all_who_ask() -> None:
    calls = []
    figure = Refreshed(lambda: calls.append(1) or len(calls), "figure", seconds=60.0)
    assert [figure.get() for _ in range(5)] == [1] * 5
    assert not figure.failed


def test_a_slow_figure_holds_nobody_up() -> None:
    release = threading.Event()
    figure = Refreshed(lambda: release.wait(PATIENCE), "figure", patience=0.01)
    assert figure.get() is None
    assert figure.failed
    release.set()
    wait_for(lambda: figure.get() is True, "the figure")
    assert not figure.failed


def test_a_figure_that_fails_keeps_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[Exception | None] = [None, StateError("The database is away."), ZeroDivisionError("a value"), None]

    def compute() -> int:
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return len(faults)

    figure = Refreshed(compute, "ledger", seconds=0.0)

    def ask_again() -> tuple[int | None, bool]:
        left = len(faults)
        while (value := figure.get()) is None or len(faults) == left:
            time.sleep(0.005)
        return value, figure.failed

    assert ask_again() == (3, False)
    assert ask_again() == (3, True)
    assert ask_again() == (3, True)
    assert ask_again() == (0, False)
    assert caplog.text.count("ledger cannot be read") == 1
    assert "a value" not in caplog.text


# -- a web page whose name leads here (DNS rebinding) ----------------------------------------------------------------------


def ask_as(address: str, host: str | None, path: str = "/metrics", token: str = "") -> int:
    """The status where a request names this host; None: it names none."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.putrequest("GET", path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    if token:
        connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("host", [None, "localhost", "LocalHost.:9464", "127.0.0.1", "127.0.0.9:80", "[::1]", "[::1]:9464"])
def test_without_a_token_this_host_is_named(serve: Callable[..., str], host: str | None) -> None:
    assert ask_as(serve(), host) == 200


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:9464", "10.0.0.1", "127.0.0.1.attacker.example", "[::2]", ":"]
)
def test_without_a_token_another_name_is_refused(serve: Callable[..., str], host: str) -> None:
    address = serve()
    assert ask_as(address, host) == 403
    assert ask_as(address, host, "/healthz") == 200


def test_with_a_token_any_name_serves(serve: Callable[..., str], tmp_path: Path) -> None:
    address = serve(MetricsSettings(listen="127.0.0.1:0", token_file=write_token(tmp_path)))
    assert ask_as(address, "metrics.hospital.example", token=TOKEN) == 200
    assert ask_as(address, "metrics.hospital.example") == 401


def test_the_configured_name_serves(serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: str, *arguments: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == "Metrics.Here" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    address = serve(MetricsSettings(listen="Metrics.Here:0"))
    assert ask_as(address.replace("Metrics.Here", "127.0.0.1"), "metrics.here:9464") == 200
