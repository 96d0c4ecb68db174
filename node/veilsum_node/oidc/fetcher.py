"""JSON over HTTPS, as logging in needs it: small, without redirections, and over plain HTTP on loopback only."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from veilsum_node.addresses import is_loopback
from veilsum_node.errors import ConfigurationError, HostileInput, Unavailable

SECONDS = 15.0
MOST_BYTES = 256 * 1024
"""The most bytes of an answer."""


class AnsweredError(HostileInput):
    """The server answered with another status than success.

    Attributes:
        status: of HTTP.
        body: the answer's JSON object; empty if it was none.
    """

    def __init__(self, url: str, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"{urlsplit(url).netloc} answered with status {status}.")
        self.status, self.body = status, body


class Fetch(Protocol):
    """Gets a JSON object, or posts a form or JSON for one; see :class:`Fetcher`."""

    def __call__(
        self, url: str, *, form: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]: ...


def check_url(url: str, what: str) -> str:
    """Return a URL whose answers nobody on the way can change.

    Raises:
        ConfigurationError: it is not https, or http on loopback, or carries user, password or fragment.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("https", "http") or "@" in parts.netloc or parts.fragment:
        shown = "" if "@" in url else f" {url!r}"  # it may hold a password
        raise ConfigurationError(f"The {what}{shown} is not a URL.", "Give it as https://host/path.")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigurationError(f"The {what} {url!r} is not https.", "Plain HTTP is for this machine's loopback only.")
    return url


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """What is asked is asked of the server that was named."""


class Fetcher:
    """Fetches JSON objects.

    Args:
        ca_bundle: PEM file of authorities that are trusted beside the system's.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(self, ca_bundle: Path | None = None) -> None:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if ca_bundle is not None:
                context.load_verify_locations(ca_bundle)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"The CA bundle {ca_bundle} cannot be used.", "Check `ca_bundle`.") from error
        handlers = (_NoRedirect(), urllib.request.HTTPSHandler(context=context))
        self._straight = urllib.request.build_opener(*handlers, urllib.request.ProxyHandler({}))
        self._environments = urllib.request.build_opener(*handlers)

    def __call__(
        self, url: str, *, form: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Fetch one object; a proxy of the environment is used, but not for this machine.

        Raises:
            ConfigurationError: the URL's answers could be changed on the way.
            Unavailable: nobody answers, or TLS fails.
            AnsweredError: the answer is not a success.
            HostileInput: it is not a JSON object, or too large.
        """
        check_url(url, "address")
        headers, data = {"Accept": "application/json"}, None
        if form is not None:
            data, headers["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        opener = self._straight if is_loopback(urlsplit(url).hostname or "") else self._environments
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - the scheme is checked above
        try:
            with opener.open(request, timeout=SECONDS) as reply:
                return _object(url, reply.read(MOST_BYTES + 1))
        except urllib.error.HTTPError as error:
            with error:
                raise AnsweredError(url, error.code, _maybe_object(url, error)) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unavailable(
                f"{urlsplit(url).netloc} cannot be reached ({reason}).", "Check the address, the proxy and `ca_bundle`."
            ) from error


def _object(url: str, data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise HostileInput(f"The answer of {urlsplit(url).netloc} is larger than {MOST_BYTES} bytes.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HostileInput(f"The answer of {urlsplit(url).netloc} is not a JSON object.", "Check the address.")
    return found


def _maybe_object(url: str, error: urllib.error.HTTPError) -> dict[str, Any]:
    try:
        return _object(url, error.read(MOST_BYTES + 1))
    except (HostileInput, OSError, HTTPException):
        return {}
