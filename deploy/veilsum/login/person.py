"""Logging in: a fresh key, a visit to the identity provider, and a certificate of some hours for the key.

Authorization code with PKCE and a redirection to this machine's loopback (RFC 8252, RFC 7636). The device flow is not used:
whoever can talk a person into typing a code would be certified in the person's name. The private key stays on this machine.
"""

import hmac
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

from veilsum.access import LoginSettings
from veilsum.login.served import Served
from veilsum_node.errors import ConfigurationError, HostileInput, StateError, Unavailable
from veilsum_node.identity import Identity, Role, federation_id, load_authority_certificate, verify_certificate
from veilsum_node.identity.certificate import load_certificate
from veilsum_node.identity.files import read_file, replace_file
from veilsum_node.identity.provision import install
from veilsum_node.identity.requests import BACKDATE, LONGEST_LOGIN, login_request
from veilsum_node.identity.tls import CERTIFICATE_FILE, KEY_FILE, REQUEST_FILE
from veilsum_node.oidc.code_flow import Visit
from veilsum_node.oidc.fetcher import AnsweredError, Fetch, Fetcher, check_url
from veilsum_node.oidc.provider import Metadata, discover
from veilsum_node.telemetry.listener import Answer, Listener
from veilsum_node.telemetry.logs import printable

PATH = "/login"
"""Path at the service that certifies."""

PATIENCE_SECONDS = 300.0
"""How long the person may take at the identity provider."""

CALLBACK = "/callback"


@dataclass(frozen=True)
class _Service:
    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    federation: str


def log_in(
    settings: LoginSettings,
    identity: Path,
    role: Role,
    visit: Callable[[str], None],
    clock: Callable[[], int],
    *,
    patience: float = PATIENCE_SECONDS,
) -> Identity:
    """Log in and write key, certificate and authority's certificate into an identity directory; returns who that is.

    Args:
        settings: where the authority's service is.
        identity: the directory; what an earlier login left there is replaced.
        role: analyst or operator.
        visit: is given the address that the person's browser must open.
        clock: Unix seconds.
        patience: seconds to wait for the browser.

    Raises:
        StateError: the directory holds a key that no login made.
        Unavailable: the service or the provider is away, or nobody logged in in time.
        HostileInput: the provider or the service refused, or answered with something else than was asked for.
        ConfigurationError: authlib is not installed, or an address or file is wrong.
    """
    _check_replaceable(identity)
    fetch = Fetcher(settings.ca_bundle)
    url = check_url(settings.url, "login service").rstrip("/") + PATH
    service = _ask(fetch, url)
    if settings.federation not in (None, service.federation):
        raise HostileInput(
            f"The login service is federation {service.federation}'s, not {settings.federation}'s.", "Check analyst.toml."
        )
    key, request = login_request(role)
    token = _authorize(fetch, service, discover(service.issuer, fetch), key.fingerprint, visit, patience)
    try:
        answer = fetch(url, body={"token": token, "request": request.decode()})
    except AnsweredError as error:
        raise _refusal(error) from error
    certificate, authority = (str(answer.get(name, "")).encode() for name in ("certificate", "authority"))
    ca = load_authority_certificate(authority)
    found = verify_certificate(certificate, ca, clock(), role)
    if found.fingerprint != key.fingerprint or federation_id(ca) != service.federation:
        raise HostileInput("The login service answered with another's certificate.", "Ask the authority's operator.")
    install(identity, certificate, authority)
    replace_file(identity / KEY_FILE, key.to_pem(), mode=0o600)
    return found


def _check_replaceable(identity: Path) -> None:
    """Check that no key is lost that may be certified for years and cannot be made again."""
    advice = "Name another `identity` in analyst.toml."
    if (identity / REQUEST_FILE).exists():
        raise StateError(f"{identity} was made by `veilsum analyst init`, not by a login.", advice)
    if not (identity / KEY_FILE).exists():
        return
    made = False
    with suppress(ConfigurationError, HostileInput):
        certificate = load_certificate(read_file(identity / CERTIFICATE_FILE, "certificate"))
        made = certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(
            seconds=LONGEST_LOGIN + BACKDATE
        )
    if not made:
        raise StateError(f"{identity} holds a key that no login made.", advice)


def _ask(fetch: Fetch, url: str) -> _Service:
    told = fetch(url)
    scopes = told.get("scopes")
    values = [told.get(name) for name in ("issuer", "client_id", "federation")]
    if not all(isinstance(value, str) for value in values) or not isinstance(scopes, list):
        raise HostileInput("This is not a login service of a federation.", "Check `login.url`.")
    issuer, client, federation = map(str, values)
    if url.startswith("https:") and not issuer.startswith("https:"):  # or it could have this machine's own services asked
        raise HostileInput("The login service's identity provider is not https.", "Ask the authority's operator.")
    return _Service(issuer, client, tuple(map(str, scopes)), federation)


def _authorize(
    fetch: Fetch, service: _Service, provider: Metadata, nonce: str, visit: Callable[[str], None], patience: float
) -> str:
    """Have the person log in, and return the ID token."""
    with _Callback() as callback:
        asked = Visit(service.issuer, service.client_id, callback.url, nonce)
        callback.state = asked.state
        visit(asked.address(provider, service.scopes))
        answer = callback.wait(patience)
    return asked.token(provider, answer, fetch)


class _Callback(Served):
    """Waits on a port of loopback for the browser that comes back; whoever does not know ``state`` is not heard."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(32)  # nobody's, until the visit's own is known
        self._answers: Queue[dict[str, str]] = Queue()
        listener = Listener(socket.AF_INET, ("127.0.0.1", 0), self._answer, None)
        super().__init__(listener)
        self.url = f"http://127.0.0.1:{listener.server_address[1]}{CALLBACK}"

    def wait(self, seconds: float) -> dict[str, str]:
        """The parameters that the provider sent the browser back with.

        Raises:
            Unavailable: nobody came in time.
        """
        try:
            return self._answers.get(timeout=seconds)
        except Empty:
            raise Unavailable("Nobody logged in in time.", "Run `veilsum login` again.") from None

    def _answer(self, path: str, _: Any) -> Answer:
        parts = urlsplit(path)
        found = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
        if parts.path != CALLBACK or not hmac.compare_digest(found.get("state", "").encode(), self.state.encode()):
            return HTTPStatus.NOT_FOUND, {}, b"There is nothing here.\n"
        self._answers.put(found)
        return HTTPStatus.OK, {"Cache-Control": "no-store"}, b"Done. You can close this window.\n"


def _refusal(error: AnsweredError) -> HostileInput:
    message, advice = (printable(str(error.body.get(name, ""))[:500]) for name in ("message", "advice"))
    return HostileInput(f"The login service refused: {message or error.message}", advice)
