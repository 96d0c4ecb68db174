"""Setting up a federation's identities: one party's directory, or a whole kit for trying out.

A party's directory holds ``identity/key.pem``, ``identity/certificate.pem`` and ``identity/authority.pem``; a participant's
holds the same three once more beneath ``identity/transport``, for its connections. A kit makes every private key on one
machine, which a real federation must not: there each site makes its own and sends the request only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from veilsum_node.errors import Misuse
from veilsum_node.identity import Authority, Role, new_key_and_csr
from veilsum_node.identity.files import read_file, replace_file, write_new
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, REQUEST_FILE, TRANSPORT_FOLDER

TRIAL_HOSTS = ("localhost", "127.0.0.1")


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


@dataclass(frozen=True)
class Kit:
    """A whole federation in one directory.

    Attributes:
        directory: holds ``authority``, ``coordinator``, ``analyst``, ``operator`` and ``participants/<name>``.
        federation_id: of the authority, 64 hexadecimal digits.
    """

    directory: Path
    federation_id: str
    coordinator: Party
    analyst: Party
    operator: Party
    participants: tuple[Party, ...]

    @property
    def authority(self) -> Path:
        """The authority's directory."""
        return self.directory / "authority"

    @property
    def parties(self) -> tuple[Party, ...]:
        """Everyone but the authority."""
        return (self.coordinator, self.analyst, self.operator, *self.participants)


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
        name: the participant's.

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


def make_kit(
    directory: Path,
    participants: Sequence[str],
    hosts: Sequence[str] = TRIAL_HOSTS,
    *,
    clock: Callable[[], int],
    federation: str = "trial",
) -> Kit:
    """Make an authority and identities for a coordinator, an analyst, an operator and the participants, for trying out.

    Args:
        directory: where; must not hold a kit yet.
        participants: their names; ``coordinator``, ``analyst`` and ``operator`` are taken.
        hosts: names and addresses under which the coordinator will be dialled.
        clock: Unix seconds.
        federation: the federation's name.

    Raises:
        Misuse: a name is not valid or stands twice, or there are fewer than two participants.
        StateError: the directory holds a kit already, or cannot be written.
    """
    roles = {role.value: role for role in (Role.COORDINATOR, Role.ANALYST, Role.OPERATOR)}
    if len(participants) < 2:
        raise Misuse("A federation needs at least two participants.", "Name more, for example: north,south,west.")
    names = [*roles, *participants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Misuse(f"The name {twice[0]!r} is used twice.", "Every party needs a name of its own.")

    authority = Authority.create(directory / "authority", federation, clock)

    def party(name: str, role: Role, place: Path) -> Party:
        made = prepare(place, name, role)
        asked = [(made.identity, role)]
        if role is Role.PARTICIPANT:
            asked.append((made.identity / TRANSPORT_FOLDER, Role.TRANSPORT))
        for folder, certified in asked:
            csr = read_file(folder / REQUEST_FILE, "request")
            certificate = authority.sign(csr, role=certified, name=name, hosts=hosts if role is Role.COORDINATOR else ())
            install(folder, certificate, authority.certificate_pem)
        return made

    return Kit(
        directory=directory,
        federation_id=authority.federation_id,
        coordinator=party("coordinator", Role.COORDINATOR, directory / "coordinator"),
        analyst=party("analyst", Role.ANALYST, directory / "analyst"),
        operator=party("operator", Role.OPERATOR, directory / "operator"),
        participants=tuple(party(name, Role.PARTICIPANT, directory / "participants" / name) for name in participants),
    )
