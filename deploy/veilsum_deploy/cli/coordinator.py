"""The ``veilsum coordinator`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption, print_line
from veilsum_node.process.imports import loading
from veilsum_participant.cli.consoles import add_console
from veilsum_participant.cli.operations import ConfigOption, add_operations, require_file
from veilsum_participant.cli.places import DirectoryArgument, NameOption, init_party

if TYPE_CHECKING:
    from veilsum_coordinator.protocol.settings import CoordinatorConfig
    from veilsum_node.overrides import Loaded
    from veilsum_node.web.people import Links, Person
    from veilsum_node.web.settings import ConsoleSettings
    from veilsum_privacy.backup.backup import BackupOwner

ACCESS = "operator.toml"
"""Beside coordinator.toml: address and identity of the operator as whom the console asks, as in analyst.toml."""

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


def _run_console(config: Path, settings: ConsoleSettings, people: list[Person], in_reach: bool) -> None:
    import time
    from collections.abc import Iterator
    from contextlib import contextmanager

    from veilsum.access import resolve_access
    from veilsum.remote import Remote, connect
    from veilsum_coordinator.console.facts import Sources
    from veilsum_coordinator.console.run import run_operator_console

    @contextmanager
    def opened() -> Iterator[Remote]:
        """As the operator whose identity the access file names; it is read anew, for a log-in replaces it."""
        found, now = resolve_access(None, None, config.with_name(ACCESS)), int(time.time())
        with connect(found.route, found.credentials(now), found.identity, now) as remote:
            yield remote

    run_operator_console(Sources(config, settings, opened), people, print_line)


def _console_links(config: Path, settings: ConsoleSettings) -> Links:
    from veilsum_coordinator.console.run import operator_links

    return operator_links(_load(config), settings)


add_console(app, Role.COORDINATOR, _run_console, _console_links)


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
