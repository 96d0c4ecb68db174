"""The authority's service for people: a login at the organisation's identity provider for a certificate of some hours.

    GET  /login    whom to log in with: issuer, client, scopes, and the federation
    POST /login    {"token", "request"}: an ID token whose nonce is the requested key's fingerprint, and the request in PEM;
                   answers {"certificate", "authority"}

It speaks HTTPS, or plain HTTP on loopback behind a proxy that does. It certifies analysts and operators, never a site or a
coordinator, and logs every certificate: for whom, which role, number and end. Tokens are not logged or kept.
"""

import ipaddress
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import AfterValidator, Field, StrictInt, StrictStr, ValidationError

from veilsum.login.person import PATH
from veilsum.login.served import Served
from veilsum_node.addresses import address_to_listen_on, split_host_port
from veilsum_node.config import load_toml, located
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, StateError, Unavailable, VeilsumError, raising
from veilsum_node.fields import Frozen
from veilsum_node.identity import Authority, Role, key_fingerprint
from veilsum_node.identity.authority import parse_login_request
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.files import read_private
from veilsum_node.identity.record import Issued
from veilsum_node.identity.requests import LONGEST_LOGIN
from veilsum_node.listening import cannot_listen
from veilsum_node.oidc.fetcher import Fetch, Fetcher
from veilsum_node.oidc.provider import ProviderSettings, TokenVerifier
from veilsum_node.process.software import installed_version
from veilsum_node.telemetry.endpoint import MetricsServer, MetricsSettings, write_address
from veilsum_node.telemetry.listener import Answer, Listener, ServerTls
from veilsum_node.telemetry.log_floods import caused_by
from veilsum_node.telemetry.log_writing import LogSettings
from veilsum_node.telemetry.logs import printable

LOG = logging.getLogger("veilsum.logins")

OUTCOMES = ("certified", "refused", "unavailable", "failed")
"""Outcomes of a login: as asked; not admitted; the provider was away; the service itself is out of order."""

_STATUS: tuple[tuple[type[VeilsumError], HTTPStatus], ...] = (
    (HostileInput, HTTPStatus.FORBIDDEN),
    (StateError, HTTPStatus.CONFLICT),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError("must be an IP address") from error


class RoleSettings(Frozen):
    """The table ``[roles]``: the provider's groups whose members may ask for a role; nobody may where there are none."""

    analyst: tuple[StrictStr, ...] = ()
    operator: tuple[StrictStr, ...] = ()

    def groups(self, role: Role) -> tuple[str, ...]:
        """The groups of one role."""
        return {Role.ANALYST: self.analyst, Role.OPERATOR: self.operator}.get(role, ())


class LoginServiceConfig(Frozen):
    """The service's configuration file.

    Attributes:
        listen: host:port; port 0 lets the system choose.
        authority: the authority's directory.
        passphrase_file: file of mode 0600 whose first line is the passphrase of the authority's key.
        certificate, key: PEM files for TLS; demanded on another host than loopback.
        ready_file: where the address is written once the service listens.
        hours: how long a certificate is valid.
        metrics: where metrics and health are served; nowhere without it.
        trusted_proxies: addresses of reverse proxies in front of the service, whose ``X-Forwarded-For`` says who asks.
            Nobody's is believed by default, since whoever reaches the service itself could write one.
    """

    listen: Annotated[StrictStr, AfterValidator(address_to_listen_on)] = "127.0.0.1:8463"
    authority: Path = Path("authority")
    passphrase_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    ready_file: Path | None = None
    hours: StrictInt = Field(default=8, ge=1, le=LONGEST_LOGIN // 3600)
    provider: ProviderSettings
    roles: RoleSettings
    log: LogSettings = LogSettings()
    metrics: MetricsSettings | None = None
    trusted_proxies: tuple[Annotated[StrictStr, AfterValidator(_address)], ...] = ()


def load_login_service(path: Path) -> LoginServiceConfig:
    """Read the configuration; paths in it are relative to it.

    Raises:
        ConfigurationError: it is wrong.
    """
    return located(load_toml(path, LoginServiceConfig), path)


class _Submission(Frozen):
    token: StrictStr = Field(repr=False)
    request: StrictStr


class Issuer:
    """Certifies the keys of people who logged in.

    Args:
        authority: opened.
        clock: Unix seconds.
        fetch: fetches from the provider; by default over the network.

    Raises:
        ConfigurationError: a file is wrong.
    """

    def __init__(
        self, config: LoginServiceConfig, authority: Authority, clock: Callable[[], int], fetch: Fetch | None = None
    ) -> None:
        provider = config.provider
        self._config, self._authority = config, authority
        fetch = fetch or Fetcher(provider.ca_bundle)
        self._verifier = TokenVerifier(provider.issuer, provider.client_id, fetch, clock)

    def about(self) -> dict[str, Any]:
        """What anybody may know before logging in."""
        provider = self._config.provider
        return {
            "issuer": provider.issuer,
            "client_id": provider.client_id,
            "scopes": list(provider.scopes),
            "federation": self._authority.federation_id,
        }

    def issue(self, token: str, request: bytes) -> Issued:
        """Certify the key of a request for the person and role of a token.

        Raises:
            HostileInput: request or token does not hold, or the token does not admit to the role.
            StateError: the key was certified before, or the name is somebody else's.
            Unavailable: the provider cannot be asked for its keys.
        """
        role, key = parse_login_request(request)
        claims = self._verifier.verify(token, key_fingerprint(key))
        settings = self._config.provider
        subject = f"{settings.issuer} {claims['sub']}"
        try:
            self._require_role(claims.get(settings.groups_claim), role)
            name = claims.get(settings.name_claim)
            if not isinstance(name, str):
                raise HostileInput(f"The token has no name (claim {settings.name_claim}).", "Ask the provider's operator.")
            issued = self._authority.sign_login(request, name=name, subject=subject, seconds=self._config.hours * 3600)
        except VeilsumError as error:
            error.add_note(str(claims["sub"]))  # whom the provider vouches for: the log names them, the answer does not
            raise
        LOG.info(
            "certified %s %s until %s, serial number %s, for subject %s",
            issued.role, issued.name, moment(issued.expires), issued.serial, claims["sub"],
        )  # fmt: skip
        return issued

    def _require_role(self, groups: object, role: Role) -> None:
        claim = self._config.provider.groups_claim
        if groups is None:
            advice = "Ask the provider's operator to put the groups into the ID token, or correct provider.groups_claim."
            raise HostileInput(f"The token has no groups (claim {claim}).", advice)
        if not isinstance(groups, list):
            raise HostileInput(f"The token's groups (claim {claim}) are not a list.", "Ask the provider's operator.")
        if not set(self._config.roles.groups(role)) & {group for group in groups if isinstance(group, str)}:
            raise HostileInput(f"The login is in no group whose members are {role}s.", "Ask the authority's operator.")


class LoginMetrics:
    """The service's metrics in a registry of their own.

    Args:
        authority: whose certificate's end is shown.
    """

    def __init__(self, authority: Authority) -> None:
        registry = self.registry = CollectorRegistry()
        build = Gauge("veilsum_build_info", "The software; always 1.", ["role", "version"], registry=registry)
        build.labels("logins", installed_version()).set(1)
        self.logins = Counter("veilsum_logins_total", "Logins that were asked for.", ["outcome"], registry=registry)
        for outcome in OUTCOMES:
            self.logins.labels(outcome)
        Gauge(
            "veilsum_authority_expiry_timestamp_seconds", "When the authority's certificate expires.", registry=registry
        ).set(certificate_end(authority.certificate))


class LoginServer(Served):
    """Serves an :class:`Issuer` until it is stopped.

    Raises:
        ConfigurationError: another host than loopback without TLS, or an address that cannot be listened on.
    """

    def __init__(
        self, config: LoginServiceConfig, issuer: Issuer, authority_pem: bytes, metrics: LoginMetrics | None = None
    ) -> None:
        self._issuer, self._authority_pem, self._metrics = issuer, authority_pem, metrics
        family, place, tls = _place(config)
        try:
            listener = Listener(family, place, self._tell, tls, self._take, config.trusted_proxies)
        except OSError as error:
            raise cannot_listen("The service cannot listen", config.listen, error) from error
        super().__init__(listener)
        self.address = f"{config.listen.rpartition(':')[0]}:{listener.server_address[1]}"
        self.url = f"{'http' if tls is None else 'https'}://{self.address}"

    def _tell(self, path: str, _: Any) -> Answer:
        if path != PATH:
            return _json(HTTPStatus.NOT_FOUND, {"message": "There is nothing here."})
        return _json(HTTPStatus.OK, self._issuer.about())

    def alive(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.logins.labels(outcome).inc()

    def _take(self, path: str, body: bytes, caller: str) -> Answer:
        if path != PATH:
            return _json(HTTPStatus.NOT_FOUND, {"message": "There is nothing here."})
        try:
            submitted = _Submission.model_validate_json(body)
        except ValidationError:
            return _json(HTTPStatus.BAD_REQUEST, {"message": "This is not a token with a request."})
        try:
            issued = self._issuer.issue(submitted.token, submitted.request.encode("utf-8", "replace"))
        except VeilsumError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
            subject = printable("".join(getattr(error, "__notes__", [])[:1])) or "not proven"
            caused = caused_by("refused logins", caller)
            LOG.warning("refused a login from %s, subject %s: %s", caller, subject, error.message, extra=caused)
            self._count("failed" if status is None else "unavailable" if isinstance(error, Unavailable) else "refused")
            if status is None:
                return _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"message": "The service is out of order; see its log."})
            return _json(status, {"message": error.message, "advice": error.advice})
        self._count("certified")
        return _json(HTTPStatus.OK, {"certificate": issued.certificate, "authority": self._authority_pem.decode()})


def serve_logins(config: LoginServiceConfig, clock: Callable[[], int]) -> None:
    """Run the service until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the configuration, or a file that it names, is wrong.
    """
    passphrase = None
    if config.passphrase_file is not None:
        passphrase = read_private(config.passphrase_file, "passphrase file").splitlines()[0]
    authority = Authority.load(config.authority, clock, passphrase=passphrase)
    if not (config.roles.analyst or config.roles.operator):
        raise Misuse("No group may log in.", "Name groups of the provider under [roles].")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    metrics = LoginMetrics(authority)
    with ExitStack() as stack:
        server = LoginServer(config, Issuer(config, authority, clock), authority.certificate_pem, metrics)
        stack.enter_context(server)
        if config.metrics is not None:
            endpoint = MetricsServer(metrics.registry, config.metrics, ready=str, alive=server.alive)
            stack.callback(endpoint.stop)
            LOG.info("metrics are served on %s", endpoint.start())
        LOG.info("logins of %s are served on %s", config.provider.issuer, server.url)
        if config.ready_file is not None:
            write_address(config.ready_file, server.address, "ready_file")
        stop.wait()


def _place(config: LoginServiceConfig) -> tuple[socket.AddressFamily, Any, ServerTls | None]:
    host, port = split_host_port(config.listen, lowest_port=0)
    with raising(ConfigurationError(f"The host of `listen` is not known: {config.listen}.", "Name an address."), on=OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, place = found[0]
    if (config.certificate is None) != (config.key is None):
        raise ConfigurationError("certificate and key must be set together.", "Set both, or neither.")
    if config.certificate is not None and config.key is not None:
        return family, place, ServerTls(config.certificate, config.key, "login service's")
    if not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        raise ConfigurationError(
            f"listen {config.listen} is not a loopback address, and no certificate is configured.",
            "Set certificate and key, or listen on 127.0.0.1.",
        )
    return family, place, None


def _json(status: HTTPStatus, body: Mapping[str, Any]) -> Answer:
    return status, {"Content-Type": "application/json", "Cache-Control": "no-store"}, json.dumps(body).encode()
