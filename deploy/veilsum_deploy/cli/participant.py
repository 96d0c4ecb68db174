"""The ``veilsum participant`` commands."""

from __future__ import annotations

import typer

from veilsum_deploy.cli.identity import DirectoryArgument, NameOption, init_party
from veilsum_deploy.cli.output import JsonOption
from veilsum_privacy.identity import Role

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def participant() -> None:
    """Set up a participant."""


@app.command()
def init(directory: DirectoryArgument, name: NameOption, as_json: JsonOption = False) -> None:
    """Make a private key and a certificate signing request."""
    init_party(directory, name, Role.PARTICIPANT, as_json=as_json)
