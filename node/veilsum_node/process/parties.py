"""What the ``init`` commands of all parties share: a private key, a certificate signing request, a configuration to edit."""

from pathlib import Path
from typing import Annotated

import typer

from veilsum_node.identity import Role, SigningKey
from veilsum_node.identity.files import read_private
from veilsum_node.identity.provision import prepare
from veilsum_node.identity.tls import KEY_FILE, REQUEST_FILE, TRANSPORT_FOLDER
from veilsum_node.process.console import print_fields, print_line
from veilsum_node.process.starters import EXAMPLE_ADDRESS, write_starter

DirectoryArgument = Annotated[Path, typer.Argument(help="The party's directory; made if it is missing.")]
NameOption = Annotated[str, typer.Option("--name", help="Name in the federation: a-z, 0-9, '.', '_', '-'.")]


def _address(value: str) -> str:
    from veilsum_node.transport.connection import split_address

    if value != EXAMPLE_ADDRESS:
        split_address(value)
    return value


AddressOption = Annotated[
    str, typer.Option("--coordinator", callback=_address, help="host:port of the coordinator, for the configuration.")
]


def init_party(directory: Path, name: str, role: Role, *, as_json: bool, address: str = EXAMPLE_ADDRESS) -> None:
    """Make key, request and a starter configuration beside them, and say what comes next."""
    party = prepare(directory, name, role)
    requests = str(party.request)
    if role is Role.PARTICIPANT:
        requests += f" and {party.identity / TRANSPORT_FOLDER / REQUEST_FILE}"
    config = write_starter(directory, role, address)
    fields = {
        "name": name,
        "role": role.value,
        "identity": str(party.identity),
        "request": str(party.request),
        "fingerprint": SigningKey.from_pem(read_private(party.identity / KEY_FILE, "private key")).fingerprint,
        "configuration": str(config),
    }
    print_fields(fields, title=f"New {role}", as_json=as_json)
    if not as_json:
        print_line(
            f"Send {requests} to the federation's authority and put the certificate.pem and authority.pem that it answers"
            f" beside each request. The private keys stay here. Edit {config}."
        )
