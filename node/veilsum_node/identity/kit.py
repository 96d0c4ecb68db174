"""A whole federation's identities for trying out.

A kit makes every private key on one machine, which a real federation must not: there each site makes its own and sends the
request only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from veilsum_node.errors import Misuse
from veilsum_node.identity.authority import Authority, host_names
from veilsum_node.identity.certificate import Role
from veilsum_node.identity.files import read_file
from veilsum_node.identity.provision import Party, install, prepare
from veilsum_node.identity.requests import check_name
from veilsum_node.identity.tls import REQUEST_FILE, TRANSPORT_FOLDER

TRIAL_HOSTS = ("localhost", "127.0.0.1")


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

    Raises:
        Misuse: a name or host is not valid, a name stands twice, or there are fewer than two participants.
        StateError: the directory holds a kit already, or cannot be written.
    """
    roles = {role.value: role for role in (Role.COORDINATOR, Role.ANALYST, Role.OPERATOR)}
    if len(participants) < 2:
        raise Misuse("A federation needs at least two participants.", "Name more, for example: north,south,west.")
    names = [*roles, *participants]
    host_names(Role.COORDINATOR, hosts)  # all that may be wrong, before anything is made that would be in the next try's way
    for name in names:
        check_name(name, "name")
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
