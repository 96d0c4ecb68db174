"""The ``veilsum coordinator`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption
from veilsum_participant.cli.identity import DirectoryArgument, NameOption, init_party
from veilsum_participant.cli.operations import (
    ArchiveArgument,
    ForceOption,
    ReplaceOption,
    RestoreIdentityOption,
    WithIdentityOption,
    require_file,
    run_backup,
    run_restore,
    show_configuration,
)

if TYPE_CHECKING:
    from veilsum_privacy.backup.backup import BackupOwner

app = typer.Typer(no_args_is_help=True, add_completion=False)

ConfigOption = Annotated[Path, typer.Option("--config", help="The coordinator's configuration.")]
CONFIG = Path("coordinator.toml")


@app.callback()
def coordinator() -> None:
    """Set up and run a coordinator."""


@app.command()
def init(directory: DirectoryArgument, name: NameOption, as_json: JsonOption = False) -> None:
    """Make a private key, a certificate signing request and a coordinator.toml to edit."""
    init_party(directory, name, Role.COORDINATOR, as_json=as_json)


@app.command()
def start(config: ConfigOption = CONFIG) -> None:
    """Run the coordinator until SIGINT or SIGTERM; it continues where it stopped."""
    from veilsum_coordinator.results.reproduction import compute_on_one_thread

    compute_on_one_thread()  # before what computes is loaded

    from veilsum_coordinator.protocol.settings import load_coordinator_config
    from veilsum_coordinator.service.server import serve  # loads gRPC and torch, which init does without
    from veilsum_node.process.hardening import harden
    from veilsum_node.telemetry.logs import start_logging

    harden()
    settings = load_coordinator_config(config)
    start_logging(settings.log)
    serve(settings)


@app.command()
def health(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Ask the running coordinator whether it serves and its database answers, by its metrics endpoint; status 1 if not."""
    from veilsum_coordinator.protocol.settings import load_coordinator_config
    from veilsum_node.telemetry.health import ask_ready, show_health

    raise typer.Exit(show_health(ask_ready(load_coordinator_config(config).metrics), as_json=as_json))


@app.command()
def config(path: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Show the effective configuration: file, environment and defaults, each value with its source; secrets hidden."""
    from veilsum_coordinator.protocol.settings import read_coordinator_settings

    show_configuration(read_coordinator_settings(path), path, as_json=as_json)


@app.command()
def backup(
    file: ArchiveArgument,
    config: ConfigOption = CONFIG,
    with_identity: WithIdentityOption = False,
    force: ReplaceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Back up journal, mirror and results into one file, even while the coordinator runs; the copy's mirror is verified."""
    run_backup(_party(config), file, with_identity=with_identity, force=force, as_json=as_json)


@app.command()
def restore(
    file: ArchiveArgument,
    config: ConfigOption = CONFIG,
    with_identity: RestoreIdentityOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup while the coordinator is stopped; existing results are kept."""
    run_restore(_party(config), file, with_identity=with_identity, force=force, as_json=as_json)


def _party(config: Path) -> BackupOwner:
    from veilsum_coordinator.protocol.settings import load_coordinator_config
    from veilsum_privacy.backup.backup import BackupOwner

    settings = load_coordinator_config(config)
    place = require_file(settings.database_place)
    return BackupOwner(Role.COORDINATOR, place, settings.identity, settings.state / "results")
