"""A party's identity directory: private key, certificate and the authority's certificate, checked before use.

The PEM bytes are what mutual TLS takes. Nothing here opens a connection or knows a transport.
"""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.identity.certificate import Identity, Role, federation_id, load_authority_certificate, verify_certificate
from veilsum_node.identity.files import file_advice, read_file, read_private
from veilsum_node.identity.signatures import SigningKey

KEY_FILE = "key.pem"
REQUEST_FILE = "request.csr"
TRANSPORT_FOLDER = "transport"
"""Beneath a participant's identity directory: key and certificate of its connections, in the same files."""

CERTIFICATE_FILE = "certificate.pem"
AUTHORITY_FILE = "authority.pem"

DAMAGED_KEY = (
    "Keep the file, and put the right one back from a backup: others know this party by its key. It must be an ECDSA P-256"
    " key in PEM without a passphrase."
)


@dataclass(frozen=True)
class Credentials:
    """What a party proves itself with, over TLS and in signatures.

    Attributes:
        signing_key: its private key.
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
    key = read_private(key_path, "private key", advice=key_advice(directory, FileNotFoundError()))
    advice = f"Have the authority sign {directory / REQUEST_FILE} and put its answer there."
    certificate = read_file(certificate_path, "certificate", advice=advice)
    authority = read_file(authority_path, "authority's certificate", advice=advice)
    try:
        signing_key = SigningKey.from_pem(key)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key_path}: {error.message}", DAMAGED_KEY) from error
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


def transport_folder(directory: Path) -> Path:
    """Where what a party shows in connections lies: in a folder of its own where one was certified, else its identity."""
    own = directory / TRANSPORT_FOLDER
    return own if (own / CERTIFICATE_FILE).exists() else directory


def load_transport(directory: Path, at: int, owner: Credentials) -> Credentials:
    """What a party shows in connections; ``owner`` itself where no key was certified for that alone.

    Args:
        directory: the party's ``identity`` directory.
        at: the time to judge validity by, Unix seconds.

    Raises:
        ConfigurationError: as :func:`load_credentials`, or the certificate is another party's or another federation's.
    """
    folder = transport_folder(directory)
    if folder == directory:
        return owner
    found = load_credentials(folder, at, Role.TRANSPORT)
    if (found.federation_id, found.identity.name) != (owner.federation_id, owner.identity.name):
        raise ConfigurationError(
            f"{folder / CERTIFICATE_FILE} is for connections of {found.identity.name}, not of {owner.identity.name}.",
            "Have the authority sign the request beside it under this party's name.",
        )
    return found


def key_advice(directory: Path, error: OSError) -> str:
    """What to do about a private key that cannot be read, by cause; nothing that loses a key.

    Args:
        directory: the party's identity directory; what lies beside a missing key shows whether there has been one.
        error: what reading it met.
    """
    if not isinstance(error, FileNotFoundError):
        return file_advice(directory / KEY_FILE, error)
    if any((directory / name).exists() for name in (CERTIFICATE_FILE, REQUEST_FILE)):
        return (
            "Put it back from where it was moved to, or from a backup (`restore --with-identity`): what is signed for this"
            " party belongs to that key, and others know the party by it. Only if it is lost for good, make a new one in a"
            " new directory and have that certified."
        )
    return "Make an identity first with `veilsum participant init` or its counterpart; if there was one, check the path."
