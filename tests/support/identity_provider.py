"""A small OpenID Connect provider over HTTPS on loopback: discovery, authorization with PKCE, tokens, keys.

It follows OpenID Connect Core 1.0 and RFC 7636 as far as public native clients go, and is strict in what it takes. Tokens are
made with the cryptographic library alone, so that whoever verifies them is held against another implementation. Whoever opens
the address of authorization is :attr:`IdentityProvider.person`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from veilsum_deploy.provision import EndpointAuthority

CLIENT = "veilsum-trial"


def encoded(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, size: int) -> str:
    return encoded(value.to_bytes(size, "big"))


class Keys:
    """A provider's signing keys, one RSA and one P-256, under names that begin with ``prefix``."""

    def __init__(self, prefix: str, rsa_key: rsa.RSAPrivateKey | None = None) -> None:
        self._prefix = prefix
        self._rsa = rsa_key or rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._ec = ec.generate_private_key(ec.SECP256R1())

    @property
    def public(self) -> list[dict[str, str]]:
        """As JSON Web Keys."""
        numbers, point = self._rsa.public_key().public_numbers(), self._ec.public_key().public_numbers()
        return [
            {"kty": "RSA", "kid": f"{self._prefix}-RS256", "use": "sig", "n": _number(numbers.n, 256), "e": "AQAB"},
            {
                "kty": "EC", "kid": f"{self._prefix}-ES256", "use": "sig", "crv": "P-256",
                "x": _number(point.x, 32), "y": _number(point.y, 32),
            },
        ]  # fmt: skip

    @property
    def rsa_pem(self) -> bytes:
        """The public RSA key, which the classic confusion takes for a secret."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._rsa.public_key().public_bytes(serialization.Encoding.PEM, form)

    def sign(self, claims: Mapping[str, Any], algorithm: str, kid: str | None = None) -> str:
        """A token in compact form: RS256, ES256, HS256 with the public RSA key as secret, or none."""
        kid = f"{self._prefix}-{algorithm}" if kid is None else kid
        header = {"alg": algorithm, "typ": "JWT", "kid": kid}
        text = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
        data, signature = text.encode(), b""
        if algorithm == "RS256":
            signature = self._rsa.sign(data, padding.PKCS1v15(), hashes.SHA256())
        elif algorithm == "ES256":
            r, s = decode_dss_signature(self._ec.sign(data, ec.ECDSA(hashes.SHA256())))
            signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        elif algorithm == "HS256":
            signature = hmac.new(self.rsa_pem, data, "sha256").digest()
        return f"{text}.{encoded(signature)}"


@cache
def _first_rsa() -> rsa.RSAPrivateKey:
    """The key that every provider of this process has at first: making one takes longer than most tests."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class IdentityProvider:
    """Serves until it leaves its context.

    Args:
        directory: for its certificate.

    Attributes:
        person: claims of whoever logs in.
        algorithm: of its tokens.
        keys: replaced where a test rotates them.
        denies: answers ``access_denied``.
        client: an origin beside loopback that people are sent back to.
        ca_bundle: PEM file of the authority of its TLS certificate, which signs others of a test as well.
    """

    def __init__(self, directory: Path) -> None:
        self.person: dict[str, Any] = {"sub": "0a1b", "preferred_username": "ada", "groups": ["research"]}
        self.algorithm, self.keys, self.denies = "RS256", Keys("first", _first_rsa()), False
        self.client = ""
        self._codes: dict[str, dict[str, str]] = {}
        authority = EndpointAuthority(int(time.time()))
        self.ca_bundle = directory / "tls-authority.pem"
        self.ca_bundle.write_bytes(authority.certificate_pem)
        self.key_file, self.certificate_file = directory / "tls-key.pem", directory / "tls-certificate.pem"
        key, certificate = authority.issue(["localhost", "127.0.0.1"])
        self.key_file.write_bytes(key)
        self.key_file.chmod(0o600)
        self.certificate_file.write_bytes(certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                found = provider.get(parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()})
                if isinstance(found, str):
                    self.send_response(302)
                    self.send_header("Location", found)
                    self.end_headers()
                else:
                    self._send(*found)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                right = self.path == "/token" and self.headers["Content-Type"] == "application/x-www-form-urlencoded"
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._send(*(provider.token(form) if right else (404, {})))

            def _send(self, status: int, body: Mapping[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.issuer = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()

    def claims(self, nonce: str, **changes: Any) -> dict[str, Any]:
        """Claims of a fresh token; None leaves one out."""
        now = int(time.time())
        whole = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce, **self.person, **changes}
        return {name: value for name, value in whole.items() if value is not None}

    def get(self, path: str, query: Mapping[str, str]) -> str | tuple[int, Mapping[str, Any]]:
        """Answer GET: where to redirect to, or status and JSON."""
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "ES256"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
        if path == "/keys":
            return 200, {"keys": self.keys.public}
        if path != "/authorize":
            return 404, {}
        redirect = urlsplit(query.get("redirect_uri", ""))
        known = (redirect.scheme, redirect.hostname) == ("http", "127.0.0.1")
        if query.get("client_id") != CLIENT or not (known or f"{redirect.scheme}://{redirect.netloc}" == self.client):
            return 400, {"error": "invalid_request"}  # nobody is sent to an address that is not the client's
        code = secrets.token_urlsafe(16)
        answer = {"state": query.get("state", ""), "iss": self.issuer}
        wanted = (query.get("response_type"), query.get("code_challenge_method"), "openid" in query["scope"].split())
        if self.denies:
            answer["error"] = "access_denied"
        elif wanted != ("code", "S256", True) or len(query.get("code_challenge", "")) != 43 or not query.get("nonce"):
            answer["error"] = "invalid_request"
        else:
            self._codes[code] = dict(query)
            answer["code"] = code
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def token(self, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """Answer the token endpoint: a code counts once, for its client, address and verifier."""
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None or form.get("grant_type") != "authorization_code":
            return 400, {"error": "invalid_grant"}
        challenge = encoded(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        same = all(form.get(name) == asked[name] for name in ("client_id", "redirect_uri"))
        if not same or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        token = self.keys.sign(self.claims(asked["nonce"]), self.algorithm)
        return 200, {"access_token": secrets.token_urlsafe(16), "token_type": "Bearer", "id_token": token}

    def browse(self, url: str) -> None:
        """Open an address as a browser does: follow redirections, to the end."""
        context = ssl.create_default_context(cafile=self.ca_bundle)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=30) as answer:
            answer.read()
