"""An OpenID Connect provider: what it says of itself, and whether it says a token.

A token counts for one key: its nonce is the fingerprint of the key that is to be certified, so whoever steals or repeats one
gets no certificate for a key of their own.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictStr

from veilsum_node.errors import ConfigurationError, HostileInput, Unavailable, raising
from veilsum_node.fields import Frozen
from veilsum_node.oidc.fetcher import Fetch, check_url
from veilsum_node.process.software import install_extra

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ("RS256", "PS256", "ES256")
"""Signatures that count: never ``none``, and none that is made with a secret."""

MOST_AGE = 600
"""Seconds after which a token does not count as a fresh login, however long its provider lets it live."""

LEEWAY = 60
"""Seconds that the provider's clock may differ."""

_MOST_TOKEN = 32 * 1024  # bytes
_KEEP_KEYS = 3600.0  # seconds
_KEYS_APART = 30.0  # seconds between two looks at the provider's keys, whatever tokens are shown and whatever came of them
_LONGEST_SUBJECT = 255  # OpenID Connect Core 1.0, section 2


def _url(value: str) -> str:
    try:
        return check_url(value, "issuer")
    except ConfigurationError as error:
        raise ValueError("must be https://, or http:// on loopback") from error


class ProviderSettings(Frozen):
    """The table ``[provider]``.

    Attributes:
        issuer: the provider's issuer identifier, to the letter.
        client_id: of the public client that the provider's operator made; its tokens' only audience.
        scopes: asked for at a login.
        name_claim: whose value becomes the certified name; one that people cannot change themselves.
        groups_claim: a list of groups.
        ca_bundle: PEM of further authorities, where the provider's TLS certificate is not of a public one.
    """

    issuer: Annotated[StrictStr, AfterValidator(_url)]
    client_id: StrictStr = Field(min_length=1, max_length=256)
    scopes: tuple[StrictStr, ...] = ("openid", "profile")
    name_claim: StrictStr = "preferred_username"
    groups_claim: StrictStr = "groups"
    ca_bundle: Path | None = None


@dataclass(frozen=True)
class Metadata:
    """What a provider publishes (OpenID Connect Discovery 1.0, section 3), as far as it is used here.

    Attributes:
        names_itself: whether its answers to a browser's visit always name it (RFC 9207).
    """

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    names_itself: bool


def discover(issuer: str, fetch: Fetch) -> Metadata:
    """Read a provider's metadata.

    Raises:
        ConfigurationError: authlib is not installed, or the issuer is not a URL.
        HostileInput: what is found there is another issuer's or incomplete.
        Unavailable: nobody answers.
    """
    with raising(missing_package(), on=ImportError):
        from authlib.oidc.discovery import OpenIDProviderMetadata
    found = OpenIDProviderMetadata(fetch(check_url(issuer, "issuer").rstrip("/") + "/.well-known/openid-configuration"))
    names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
    try:
        for name in names:
            getattr(found, f"validate_{name}")()
        values = [found[name] for name in names]
        if not all(isinstance(value, str) for value in values):
            raise ValueError("an address is not a text")
        if urlsplit(issuer).scheme == "https" and not all(value.startswith("https://") for value in values):
            raise ValueError("what TLS protects leads to where none does")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostileInput(f"{issuer} does not describe an OpenID provider.", "Check the issuer's URL.") from error
    names_itself = found.get("authorization_response_iss_parameter_supported") is True
    named, authorization, token, keys = values
    metadata = Metadata(named, authorization, token, keys, names_itself)
    if metadata.issuer != issuer:
        raise HostileInput(
            f"{issuer} describes another issuer: {metadata.issuer[:200]!r}.", "Write it as the provider does, to the letter."
        )
    return metadata


def missing_package() -> ConfigurationError:
    """That the extra is not installed."""
    return ConfigurationError("Logging in needs the package authlib.", install_extra("login"))


class TokenVerifier:
    """Verifies ID tokens of one provider for one client.

    Args:
        issuer: the provider's, as it writes it.
        client_id: this federation's at the provider; a token's only audience.
        fetch: fetches metadata and keys.
        clock: Unix seconds.
    """

    def __init__(self, issuer: str, client_id: str, fetch: Fetch, clock: Callable[[], int]) -> None:
        self._issuer, self._client, self._fetch, self._clock = issuer, client_id, fetch, clock
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._looked = self._read = -math.inf

    def verify(self, token: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token (OpenID Connect Core 1.0, section 3.1.3.7).

        1. Its signature is one of :data:`ALGORITHMS` by a public key that the provider published within the last hour.
        2. Issuer, and the client as the only audience.
        3. It is neither expired, nor from the future, nor issued more than :data:`MOST_AGE` seconds ago.
        4. Its nonce is ``nonce``.
        5. Its subject is 1 to 255 printable ASCII characters.

        Raises:
            HostileInput: a step fails; the words tell which, and nothing of the token.
            Unavailable: the provider's keys cannot be fetched.
            ConfigurationError: authlib is not installed.
        """
        with raising(missing_package(), on=ImportError):
            from authlib.oidc.core import CodeIDToken
            from joserfc.errors import JoseError
        if not token.isascii() or len(token) > _MOST_TOKEN:
            raise HostileInput("The token is too long, or no token.")
        header, claims = self._signed(token)
        found = CodeIDToken(
            claims,
            header,
            options={"iss": {"essential": True, "value": self._issuer}},
            params={"nonce": nonce, "client_id": self._client},
        )
        try:
            found.validate(now=self._clock(), leeway=LEEWAY)
        except JoseError as error:
            raise HostileInput(f"The token does not hold: {_words(error)}.", "Log in again.") from error
        if claims["aud"] not in (self._client, [self._client]):
            raise HostileInput("The token does not hold: it is for another audience.", "Log in again.")
        if claims["iat"] < self._clock() - MOST_AGE - LEEWAY:
            raise HostileInput("The token does not hold: the login was too long ago.", "Log in again.")
        subject = claims["sub"]
        if not 0 < len(subject) <= _LONGEST_SUBJECT or not all(0x21 <= ord(letter) <= 0x7E for letter in subject):
            raise HostileInput("The token does not hold: its subject is not valid.", "Ask the provider's operator.")
        return claims

    def _signed(self, token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        keys = self._current(refresh=False)
        for last in (False, True):
            try:
                decoded = jwt.decode(token, keys, algorithms=list(ALGORITHMS))
            except (JoseError, ValueError, TypeError, RecursionError) as error:
                newer = keys if last else self._current(refresh=True)
                if newer is keys:  # what is shown may be signed with a key that is newer than ours
                    raise HostileInput(
                        "The token is not signed by the identity provider with an accepted algorithm.", "Log in again."
                    ) from error
                keys = newer
            else:
                return decoded.header, decoded.claims
        raise AssertionError("not reached")

    def _current(self, *, refresh: bool) -> "KeySet":
        with self._lock:
            now = time.monotonic()
            ended = self._keys is None or now - self._read > _KEEP_KEYS
            if (ended or refresh) and now - self._looked > _KEYS_APART:
                self._looked = now
                self._keys, self._read, ended = self._load(), now, False
            if self._keys is None or ended:  # a key that was withdrawn must not count for as long as the provider is away
                raise Unavailable("The identity provider's keys could not be read a moment ago.", "Try again in a minute.")
            return self._keys

    def _load(self) -> "KeySet":
        from joserfc.jwk import KeySet

        listed = self._fetch(discover(self._issuer, self._fetch).jwks_uri).get("keys")
        usable = [key for key in listed if _verifies(key)] if isinstance(listed, list) else []
        try:
            if usable:
                return KeySet.import_key_set({"keys": usable})
        except Exception as error:  # the parser's faults are many and undocumented
            raise HostileInput("The identity provider's keys cannot be read.") from error
        raise HostileInput("The identity provider publishes no key that signs tokens.")


def _verifies(key: object) -> bool:
    """Whether a published key is a public one for signatures: a symmetric key would let its readers sign."""
    return isinstance(key, dict) and key.get("kty") in ("RSA", "EC") and key.get("use", "sig") == "sig"


def _words(error: Exception) -> str:
    claim = getattr(error, "claim", None)
    kind = type(error).__name__.removesuffix("Error")
    words = {"ExpiredToken": "it has expired", "MissingClaim": "a claim is missing", "InvalidClaim": "a claim is wrong"}
    text = words.get(kind, "a claim is wrong")
    return f"{text} ({claim})" if isinstance(claim, str) and claim.isidentifier() else text
