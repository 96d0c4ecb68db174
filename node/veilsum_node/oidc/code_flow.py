"""The authorization code flow with PKCE (RFC 7636) of a public client: where a person is sent, and what comes back."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from veilsum_node.errors import HostileInput, raising
from veilsum_node.oidc.fetcher import AnsweredError, Fetch
from veilsum_node.oidc.provider import Metadata, missing_package
from veilsum_node.telemetry.logs import printable


@dataclass(frozen=True)
class Visit:
    """One visit to the provider.

    Attributes:
        state: by which the answer is known; 32 random bytes.
        verifier: of PKCE; never leaves before the code is exchanged.
    """

    issuer: str
    client_id: str
    redirect_uri: str
    nonce: str = field(repr=False)
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)

    def address(self, provider: Metadata, scopes: Sequence[str]) -> str:
        """What the person's browser opens.

        Raises:
            ConfigurationError: authlib is not installed.
        """
        with raising(missing_package(), on=ImportError):
            from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
            from authlib.oauth2.rfc7636 import create_s256_code_challenge
        return str(
            prepare_grant_uri(
                provider.authorization_endpoint,
                self.client_id,
                "code",
                redirect_uri=self.redirect_uri,
                scope=" ".join(scopes),
                state=self.state,
                nonce=self.nonce,
                code_challenge=create_s256_code_challenge(self.verifier),
                code_challenge_method="S256",
            )
        )

    def token(self, provider: Metadata, answer: Mapping[str, str], fetch: Fetch) -> str:
        """The ID token for the parameters that the browser came back with; it is not verified yet.

        Raises:
            HostileInput: the provider refused, or another one answered (RFC 9207).
            Unavailable: it cannot be reached.
        """
        if answer.get("iss", "" if provider.names_itself else self.issuer) != self.issuer:
            raise HostileInput("Another identity provider answered than was asked.", "Log in again.")
        if "code" not in answer:
            raise HostileInput(f"The identity provider refused: {printable(answer.get('error', 'no code')[:80])}.")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": self.redirect_uri,
            "client_id": self.client_id,
            "code_verifier": self.verifier,
        }
        try:
            token = fetch(provider.token_endpoint, form=form).get("id_token")
        except AnsweredError as error:
            raise HostileInput(
                f"The identity provider gave no token: {printable(str(error.body.get('error', error.status))[:80])}.",
                "Log in again; if it stays, ask its operator whether the client is public, with PKCE.",
            ) from error
        if not isinstance(token, str):
            raise HostileInput("The identity provider's answer has no ID token.", "The scope openid must be asked for.")
        return token
