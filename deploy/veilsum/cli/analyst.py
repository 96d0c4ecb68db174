"""The ``veilsum analyst`` commands."""

from typing import Annotated

import typer

from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption
from veilsum_node.process.parties import AddressOption, DirectoryArgument, NameOption, init_party
from veilsum_node.process.starters import EXAMPLE_ADDRESS

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def analyst() -> None:
    """Set up an analyst."""


@app.command()
def init(
    directory: DirectoryArgument,
    name: NameOption,
    coordinator: AddressOption = EXAMPLE_ADDRESS,
    operator: Annotated[
        bool, typer.Option("--operator", help="Set up an operator, who sees and stops everybody's studies and submits none.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a private key, a certificate signing request and an analyst.toml to edit."""
    init_party(directory, name, Role.OPERATOR if operator else Role.ANALYST, as_json=as_json, address=coordinator)
