"""Asks a party's own endpoint whether it is ready: what ``veilsum … health`` and a container's health check run.

The endpoint is asked where it listens on this machine, and over TLS it must show the very certificate that the configuration
names. No token is sent: readiness shows no value.
"""

import http.client
import ipaddress
import ssl
from dataclasses import asdict, dataclass
from typing import Any

from veilsum_node.addresses import join_host_port, split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.files import read_private
from veilsum_node.process.console import print_json, print_line
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.telemetry.logs import printable

SECONDS = 5.0
"""How long an answer may take."""

_LONGEST = 200  # bytes of an answer that are shown
_MOST_METRICS = 1 << 24


@dataclass(frozen=True)
class Health:
    """What a party said of itself.

    Attributes:
        ready: it serves, or its session is open.
        endpoint: what was asked.
        reason: why it is not ready; empty if it is.
    """

    ready: bool
    endpoint: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def ask_ready(settings: MetricsSettings | None) -> Health:
    """Ask ``/readyz`` of the endpoint that a configuration's ``[metrics]`` describes. A party that is away is not ready.

    Raises:
        ConfigurationError: no endpoint is configured, or its address or certificate cannot be read.
    """
    if settings is None:
        raise ConfigurationError(
            "No endpoint can be asked: the configuration has no [metrics].", "Add the table, with the key listen."
        )
    host, port = _address(settings)
    scheme = "http" if settings.certificate is None else "https"
    endpoint = f"{scheme}://{join_host_port(host, port)}/readyz"
    connection = _connection(host, port, settings)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        word = printable(answer.read(_LONGEST).decode("utf-8", "replace").strip())
    except ssl.SSLCertVerificationError as error:
        return Health(False, endpoint, f"its certificate is not {settings.certificate} ({error.verify_message})")
    except TimeoutError:
        return Health(False, endpoint, f"no answer within {SECONDS:g} s")
    except OSError as error:
        return Health(False, endpoint, f"it cannot be reached ({error.strerror or type(error).__name__})")
    except http.client.HTTPException:
        return Health(False, endpoint, "what listens there does not speak HTTP")
    finally:
        connection.close()
    ready = answer.status == http.client.OK
    return Health(ready, endpoint, "" if ready else word or f"status {answer.status}")


def ask_metrics(settings: MetricsSettings | None) -> str:
    """The metrics that a party's own endpoint shows, as Prometheus reads them; empty where nobody answers.

    Raises:
        ConfigurationError: no endpoint is configured, or its address, token or certificate cannot be read.
    """
    if settings is None:
        raise ConfigurationError("The configuration has no [metrics].", "Add the table, with the key listen.")
    host, port = _address(settings)
    token = None if settings.token_file is None else read_private(settings.token_file, "metrics token").strip().decode()
    connection = _connection(host, port, settings)
    try:
        connection.request("GET", "/metrics", headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        data = answer.read(_MOST_METRICS) if answer.status == http.client.OK else b""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return data.decode("utf-8", "replace")


def show_health(health: Health, *, as_json: bool) -> int:
    """Print it; returns the exit status, 0 if ready and else 1."""
    if as_json:
        print_json(health.to_json())
    else:
        print_line(f"ready: {health.endpoint}" if health.ready else f"not ready: {health.endpoint}: {health.reason}")
    return 0 if health.ready else 1


def _address(settings: MetricsSettings) -> tuple[str, int]:
    """Host and port at which the endpoint can be asked; by its ready file where the system chose the port."""
    host, port = split_host_port(settings.listen, lowest_port=0)
    if port:
        return _asked(host), port
    if settings.ready_file is None:
        raise ConfigurationError(
            "The system chooses the endpoint's port, and no file records it.",
            "Set metrics.ready_file, or a fixed port in metrics.listen.",
        )
    try:
        host, port = split_host_port(settings.ready_file.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        advice = "The endpoint writes it when it starts."
        raise ConfigurationError(f"{settings.ready_file} does not hold the address of an endpoint.", advice) from error
    return _asked(host), port


def _asked(host: str) -> str:
    """Every interface is asked on loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return ("127.0.0.1" if address.version == 4 else "::1") if address.is_unspecified else host


def _connection(host: str, port: int, settings: MetricsSettings) -> http.client.HTTPConnection:
    if settings.certificate is None:
        return http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        context = ssl.create_default_context(cafile=str(settings.certificate))
    except (OSError, ssl.SSLError) as error:
        advice = "Check metrics.certificate and its permissions."
        raise ConfigurationError(f"The metrics certificate {settings.certificate} cannot be read.", advice) from error
    # The certificate itself is trusted, and no authority: it need not be certified for a loopback address.
    context.check_hostname = False
    context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
