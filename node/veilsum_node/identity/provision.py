"""Setting up a party's identity.

A party's directory holds ``identity/key.pem``, ``identity/certificate.pem`` and ``identity/authority.pem``; a participant's
holds the same three once more beneath ``identity/transport``, for its connections.
"""

from dataclasses import dataclass
from pathlib import Path

from veilsum_node.errors import Misuse
from veilsum_node.identity import Role, new_key_and_csr
from veilsum_node.identity.files import read_file, replace_file, write_new
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, REQUEST_FILE, TRANSPORT_FOLDER


@dataclass(frozen=True)
class Party:
    """A party's directory."""

    name: str
    role: Role
    directory: Path

    @property
    def identity(self) -> Path:
        """The directory of key and certificates, as ``load_credentials`` takes it."""
        return self.directory / "identity"

    @property
    def request(self) -> Path:
        """The certificate signing request, for the authority."""
        return self.identity / REQUEST_FILE


def prepare(directory: Path, name: str, role: Role) -> Party:
    """Make a private key and a certificate signing request in a party's directory.

    Raises:
        Misuse: the name is not valid.
        StateError: the directory holds a key already, or cannot be written.
    """
    party = Party(name, role, directory)
    _make_key(party.identity, name, role)
    if role is Role.PARTICIPANT:
        prepare_transport(party.identity, name)
    return party


def prepare_transport(identity: Path, name: str) -> Path:
    """Make the key of a participant's connections and a request beside it; returns the request's path.

    Args:
        identity: the participant's ``identity`` directory.

    Raises:
        StateError: there is such a key already, or the directory cannot be written.
    """
    return _make_key(identity / TRANSPORT_FOLDER, name, Role.TRANSPORT)


def _make_key(directory: Path, name: str, role: Role) -> Path:
    key, csr = new_key_and_csr(name, role)
    write_new(directory / KEY_FILE, key, mode=0o600)
    replace_file(directory / REQUEST_FILE, csr)
    return directory / REQUEST_FILE


def install(directory: Path, certificate: bytes, authority: bytes) -> None:
    """Put a signed certificate and the authority's own into an identity directory; a renewed certificate replaces the old one.

    Raises:
        StateError: the directory cannot be written.
        Misuse: it holds another authority's certificate.
    """
    path = directory / AUTHORITY_FILE
    if path.exists() and read_file(path, "authority's certificate") != authority:
        raise Misuse(f"{path} is the certificate of another authority.", "Use one directory for each federation.")
    replace_file(path, authority)
    replace_file(directory / CERTIFICATE_FILE, certificate)
