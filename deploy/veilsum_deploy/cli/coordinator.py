"""The ``veilsum coordinator`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption
from veilsum_node.process.imports import loading
from veilsum_participant.cli.operations import ConfigOption, add_operations, require_file
from veilsum_participant.cli.places import DirectoryArgument, NameOption, init_party

if TYPE_CHECKING:
    from veilsum_coordinator.protocol.settings import CoordinatorConfig
    from veilsum_node.overrides import Loaded
    from veilsum_privacy.backup.backup import BackupOwner

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def coordinator() -> None:
    """Set up and run a coordinator."""


@app.command()
def init(directory: DirectoryArgument, name: NameOption, as_json: JsonOption = False) -> None:
    """Make a private key, a certificate signing request and a coordinator.toml to edit."""
    init_party(directory, name, Role.COORDINATOR, as_json=as_json)


@app.command()
def start(config: ConfigOption = Path("coordinator.toml")) -> None:
    """Run the coordinator until SIGINT or SIGTERM; it continues where it stopped."""
    from veilsum_coordinator.results.reproduction import compute_on_one_thread

    compute_on_one_thread()  # before what computes is loaded

    with loading(serves=True):  # gRPC and the database, which init does without
        from veilsum_coordinator.service.server import serve
        from veilsum_node.process.hardening import harden
        from veilsum_node.telemetry.logs import start_logging

    harden()
    settings = _load(config)
    start_logging(settings.log)
    serve(settings)


def _load(path: Path) -> CoordinatorConfig:
    from veilsum_coordinator.protocol.settings import load_coordinator_config

    return load_coordinator_config(path)


def _read(path: Path) -> Loaded[CoordinatorConfig]:
    from veilsum_coordinator.protocol.settings import read_coordinator_settings

    return read_coordinator_settings(path)


def _owner(settings: CoordinatorConfig) -> BackupOwner:
    from veilsum_privacy.backup.backup import BackupOwner

    place = require_file(settings.database_place)
    return BackupOwner(Role.COORDINATOR, place, settings.identity, settings.state / "results")


add_operations(
    app,
    Role.COORDINATOR,
    _load,
    _read,
    _owner,
    {
        "health": "Ask the running coordinator's metrics endpoint whether it serves and its database answers: status 0 or 1.",
        "backup": "Back up journal, mirror and results into one file, even while the coordinator runs; the copy's mirror is"
        " verified.",
        "restore": "Restore a backup while the coordinator is stopped; existing results are kept.",
    },
)
