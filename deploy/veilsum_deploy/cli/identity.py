"""What the ``init`` commands of the parties share: a private key and a certificate signing request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilsum_deploy.cli.output import print_fields, print_line
from veilsum_deploy.provision import prepare
from veilsum_privacy.identity import Role

DirectoryArgument = Annotated[Path, typer.Argument(help="The party's directory; made if it is missing.")]
NameOption = Annotated[str, typer.Option("--name", help="Name in the federation: a-z, 0-9, '.', '_', '-'.")]


def init_party(directory: Path, name: str, role: Role, *, as_json: bool) -> None:
    """Make key and request, and say what comes next."""
    party = prepare(directory, name, role)
    fields = {"name": name, "role": role.value, "identity": str(party.identity), "request": str(party.request)}
    print_fields(fields, title=f"New {role}", as_json=as_json)
    if not as_json:
        print_line(
            f"Send {party.request} to the federation's authority and put the certificate.pem and authority.pem that it answers"
            f" into {party.identity}. The private key stays here."
        )
