"""What a TLS server presents where that is not the federation's own certificate."""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.certificate import moment
from veilsum_node.identity.files import read_file, read_private


@dataclass(frozen=True)
class ServerPair:
    """What a TLS server presents where that is not the federation's own certificate.

    Attributes:
        key_pem: the private key.
        chain_pem: its certificate, and those of intermediate authorities after it.
        name: the certificate's subject, for people.
        not_after: last valid second of the certificate, Unix time.
    """

    key_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    name: str
    not_after: int


def load_server_pair(certificate: Path, key: Path, at: int) -> ServerPair:
    """Load a key and a certificate chain of any authority, for a TLS server.

    Raises:
        ConfigurationError: a file is missing, malformed or readable by others; the certificate belongs to another key or is
            not valid at ``at``.
    """
    key_pem = read_private(key, "TLS server's private key")
    chain = read_file(certificate, "TLS server's certificate")
    try:
        first = x509.load_pem_x509_certificates(chain)[0]
        private = load_pem_private_key(key_pem, None)
        mine = private.public_key() == first.public_key()
        name = first.subject.rfc4514_string() or "without a subject"
    except Exception as error:  # the parsers' faults are many and undocumented
        raise ConfigurationError(
            f"{certificate} and {key} are not a certificate chain and an unencrypted private key in PEM.",
            "The server's own certificate comes first. Keep both files until right ones are there.",
        ) from error
    if not mine:
        raise ConfigurationError(f"{certificate} does not belong to {key}.", "Replace both, the key first.")
    begin, end = int(first.not_valid_before_utc.timestamp()), int(first.not_valid_after_utc.timestamp())
    if at < begin:
        raise ConfigurationError(f"{certificate}: the certificate of {name} is not valid yet: it begins on {moment(begin)}.")
    if at > end:
        raise ConfigurationError(
            f"{certificate}: the certificate of {name} has expired: it ended on {moment(end)}.", "Have it renewed."
        )
    return ServerPair(key_pem, chain, name, end)
