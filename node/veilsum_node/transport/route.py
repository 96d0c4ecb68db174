"""The way to a coordinator: straight or through an HTTP proxy, and which roots its TLS certificate may come from.

Everything that connects takes the same way: sessions, ``check``, an analyst's calls. No other way is taken when this one
fails, and the environment is read only where the operator says so: gRPC's own ideas about proxies are switched off.

With roots beside the federation's own, a connection is pinned: see
:func:`veilsum_node.transport.handshake.server_certificate`.
"""

import base64
import os
import ssl
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from veilsum_node.errors import ConfigurationError, Misuse, raising
from veilsum_node.identity.files import MAX_FILE_BYTES, read_private
from veilsum_node.phrases import unreadable

ENVIRONMENT = "environment"
"""Value of the key ``proxy`` that lets the variables https_proxy and no_proxy decide."""


def split_address(address: str) -> tuple[str, int]:
    """Host, an IPv6 address without its brackets, and port of ``host:port``.

    Raises:
        Misuse: it is not such an address.
    """
    from veilsum_node.addresses import split_host_port  # of who dials

    try:
        return split_host_port(address)
    except ValueError as error:
        raise Misuse(f"{address!r} is not HOST:PORT.", f"It {error}.") from None


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that tunnels by CONNECT (RFC 9110, section 9.3.6), with user and password (RFC 7617) if it wants them."""

    address: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def authorization(self) -> str:
        """The header field that carries user and password, empty without a user."""
        if not self.user:
            return ""
        return "Proxy-Authorization: Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True)
class Route:
    """How to reach one coordinator.

    Attributes:
        address: host:port, as its TLS certificate names it.
        proxy: tunnels to it; None for the straight way.
        roots: PEM of further authorities that may have issued the coordinator's TLS certificate; empty for none but the
            federation's. Who the coordinator is, it proves by the federation's certificate in any case.
    """

    address: str
    proxy: Proxy | None = None
    roots: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return self.address if self.proxy is None else f"{self.address} through the proxy {self.proxy.address}"


def plan_route(
    address: str,
    *,
    proxy: str | None = None,
    user: str | None = None,
    password_file: Path | None = None,
    ca_bundle: Path | None = None,
) -> Route:
    """The route that a configuration asks for; files are read anew at each call.

    Raises:
        ConfigurationError: a file is missing or malformed, or the environment's proxy is of a kind that is not spoken.
    """
    roots = b"" if ca_bundle is None else read_roots(ca_bundle)
    if proxy is None:
        return Route(address, None, roots)
    if proxy == ENVIRONMENT:
        return Route(address, _environment_proxy(address), roots)
    password = "" if password_file is None else _read_password(password_file)
    return Route(address, Proxy(proxy, user or "", password), roots)


def unused_proxy_variables() -> list[str]:
    """Names of proxy variables that are set; they are not used unless the configuration says so."""
    names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "grpc_proxy", "GRPC_ADDRESS_HTTP_PROXY")
    return [name for name in names if os.environ.get(name)]


def read_roots(path: Path) -> bytes:
    """Read a bundle of authorities' certificates.

    Raises:
        ConfigurationError: it cannot be read, or holds no certificate.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= 64 * MAX_FILE_BYTES else b""
    except OSError as error:
        raise ConfigurationError(f"The CA bundle {path} {unreadable(error)}.", "Check `ca_bundle`.") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode())
    except (ValueError, TypeError, ssl.SSLError) as error:
        raise ConfigurationError(f"The CA bundle {path} holds no certificates in PEM.", "Check `ca_bundle`.") from error
    return data


def _read_password(path: Path) -> str:
    data = read_private(path, "proxy's password")
    with raising(ConfigurationError(f"The proxy's password {path} is not UTF-8 text."), on=UnicodeDecodeError):
        password = data.decode().removesuffix("\n").removesuffix("\r")
    if not password or not password.isprintable():
        raise ConfigurationError(f"The proxy's password {path} must be one line of printable characters.")
    return password


def _environment_proxy(address: str) -> Proxy | None:
    """What https_proxy and no_proxy say of an address."""
    from veilsum_node.addresses import join_host_port

    host, port = split_address(address)
    found = urllib.request.getproxies_environment()
    value = found.get("https")
    if not value or urllib.request.proxy_bypass(f"{host}:{port}", found):
        return None
    try:
        parts = urllib.parse.urlsplit(value if "://" in value else f"http://{value}")
        place = join_host_port(parts.hostname or "", parts.port or 0)
        if parts.scheme != "http":
            raise Misuse("not HTTP")
        split_address(place)
    except (ValueError, Misuse) as error:
        raise ConfigurationError(
            "The variable https_proxy names no HTTP proxy with a port.", "For example: http://proxy.example:3128."
        ) from error
    return Proxy(place, urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.password or ""))
