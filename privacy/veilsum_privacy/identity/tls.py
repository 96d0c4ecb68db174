"""A party's identity directory: private key, certificate and the authority's certificate, checked before use.

The PEM bytes are what mutual TLS takes. Nothing here opens a connection or knows a transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilsum_privacy.errors import ConfigurationError, HostileInput
from veilsum_privacy.identity.certificate import Identity, Role, federation_id, load_authority_certificate, verify_certificate
from veilsum_privacy.identity.files import read_file, read_private
from veilsum_privacy.identity.signing import SigningKey

KEY_FILE = "key.pem"
REQUEST_FILE = "request.csr"
CERTIFICATE_FILE = "certificate.pem"
AUTHORITY_FILE = "authority.pem"


@dataclass(frozen=True)
class Credentials:
    """What a party proves itself with, over TLS and in signatures.

    Attributes:
        identity: what its certificate says.
        signing_key: its private key.
        authority: the federation's authority.
        key_pem: private key, certificate and authority's certificate in PEM, as TLS libraries take them: a server
            presents ``key_pem`` and ``certificate_pem`` and demands a client certificate under ``authority_pem``; a
            client does the same the other way round.
    """

    identity: Identity
    signing_key: SigningKey
    authority: x509.Certificate = field(repr=False)
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    authority_pem: bytes = field(repr=False)

    @property
    def federation_id(self) -> str:
        """SHA-256 of the authority's certificate, 64 hexadecimal digits."""
        return federation_id(self.authority)


def load_credentials(directory: Path, at: int, role: Role | None = None) -> Credentials:
    """Load and check ``key.pem``, ``certificate.pem`` and ``authority.pem`` of an identity directory.

    Args:
        directory: the party's ``identity`` directory.
        at: the time to judge validity by, Unix seconds.
        role: the role that the certificate must have, or None for any.

    Raises:
        ConfigurationError: a file is missing, malformed or readable by others; the certificate is not the authority's, not
            valid at ``at``, of another role, or belongs to another key.
    """
    key_path, certificate_path, authority_path = (directory / name for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))
    key = read_private(key_path, "private key", advice="Make an identity first with `veilsum participant init` or its like.")
    advice = f"Let the authority sign {directory / REQUEST_FILE} and put what it answers there."
    certificate = read_file(certificate_path, "certificate", advice=advice)
    authority = read_file(authority_path, "authority's certificate", advice=advice)
    try:
        signing_key = SigningKey.from_pem(key)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key_path}: {error.message}", error.advice) from error
    try:
        ca = load_authority_certificate(authority)
    except HostileInput as error:
        raise ConfigurationError(f"{authority_path}: {error.message}", error.advice or advice) from error
    try:
        identity = verify_certificate(certificate, ca, at, role)
    except HostileInput as error:
        raise ConfigurationError(f"{certificate_path}: {error.message}", error.advice or advice) from error
    if identity.fingerprint != signing_key.fingerprint:
        raise ConfigurationError(f"{certificate_path} does not belong to {key_path}.", advice)
    return Credentials(identity, signing_key, ca, key, certificate, ca.public_bytes(Encoding.PEM))
