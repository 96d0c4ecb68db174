"""The ``veilsum coordinator`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilsum_participant.cli.identity import DirectoryArgument, NameOption, init_party
from veilsum_privacy.identity import Role
from veilsum_privacy.runtime.console import JsonOption

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def coordinator() -> None:
    """Set up and run a coordinator."""


@app.command()
def init(directory: DirectoryArgument, name: NameOption, as_json: JsonOption = False) -> None:
    """Make a private key, a certificate signing request and a coordinator.toml to edit."""
    init_party(directory, name, Role.COORDINATOR, as_json=as_json)


@app.command()
def start(
    config: Annotated[Path, typer.Option("--config", help="The coordinator's configuration.")] = Path("coordinator.toml"),
) -> None:
    """Run the coordinator until SIGINT or SIGTERM; it goes on where it was stopped."""
    from veilsum_coordinator.server import serve  # loads gRPC and torch, which init does without
    from veilsum_coordinator.settings import load_coordinator_config
    from veilsum_privacy.runtime.logs import start_logging

    settings = load_coordinator_config(config)
    start_logging(settings.log)
    serve(settings)
