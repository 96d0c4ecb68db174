"""The ``veilsum coordinator`` commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilsum_node.identity import Role
from veilsum_node.process.console import ConfigOption, JsonOption, print_fields, print_line, print_rows
from veilsum_node.process.consoles import add_console
from veilsum_node.process.memory import loading
from veilsum_node.process.parties import DirectoryArgument, NameOption, init_party
from veilsum_privacy.backup.commands import add_operations, require_file, show_checks

if TYPE_CHECKING:
    from veilsum_coordinator.protocol.settings import CoordinatorConfig
    from veilsum_coordinator.results.retirement import HeldStudy
    from veilsum_node.database import Database
    from veilsum_node.overrides import Loaded
    from veilsum_node.process.check import Check
    from veilsum_node.web.looking import Look
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
    from veilsum_coordinator.results.reproduction import compute_reproducibly

    compute_reproducibly()  # before what computes is loaded

    with loading(serves=True):  # gRPC and the database, which init does without
        from veilsum_coordinator.service.server import serve
        from veilsum_node.process.hardening import harden
        from veilsum_node.telemetry.log_floods import start_bounded_logging

    harden()
    settings = _load(config)
    start_bounded_logging(settings.log)
    serve(settings)


@app.command()
def check(config: ConfigOption = Path("coordinator.toml"), as_json: JsonOption = False) -> None:
    """Test identity, certificates, mirror, disk and backup, beside the running coordinator; status 1 if a check failed."""
    from veilsum_deploy.coordinator.check import check_coordinator

    raise typer.Exit(show_checks(check_coordinator(_load(config)), f"Coordinator {config}", as_json=as_json))


StudyArgument = Annotated[str, typer.Argument(help="The study's ID or its first digits.", metavar="STUDY")]


@app.command()
def archive(
    study: StudyArgument,
    to: Annotated[Path, typer.Option("--to", help="Folder in which one is made for the study.")],
    config: ConfigOption = Path("coordinator.toml"),
    as_json: JsonOption = False,
) -> None:
    """Copy a study that is over, with its proof, beside the running coordinator; `study verify` takes the copy."""
    from veilsum_coordinator.results.retirement import archive_study

    with _held(config, study) as (database, results, found):
        place = archive_study(database, results, found, to)
    print_fields({"study": found.digest.hex(), "name": found.name, "archived": str(place)}, title="Archived", as_json=as_json)


@app.command()
def delete(
    study: StudyArgument,
    keep_proof: Annotated[bool, typer.Option("--keep-proof", help="Keep result and proof in the state's folder.")] = False,
    config: ConfigOption = Path("coordinator.toml"),
    as_json: JsonOption = False,
) -> None:
    """Delete a study that is over and has expired, with its sums and results; the mirror stays as it is."""
    from veilsum_coordinator.results.retirement import PROOFS, delete_study

    with _held(config, study) as (database, results, found):
        proofs = results.parent / PROOFS if keep_proof else None
        kept = delete_study(database, results, found, int(time.time()), proofs=proofs)
    fields = {
        "study": found.digest.hex(),
        "name": found.name,
        "bytes": found.size,
        "proof": "not kept" if kept is None else str(kept),
    }
    print_fields(fields, title="Deleted", as_json=as_json)


@app.command()
def retire(
    days: Annotated[int, typer.Option("--days", min=0, max=36500, help="Days since a study expired.")],
    keep_proofs: Annotated[bool, typer.Option("--keep-proofs", help="Keep results and proofs in the state's folder.")] = False,
    config: ConfigOption = Path("coordinator.toml"),
    as_json: JsonOption = False,
) -> None:
    """Delete every study that is over and expired so many days ago or earlier, as [retention] does by itself."""
    from veilsum_coordinator.results.retirement import PROOFS, open_holdings, retire

    with open_holdings(_load(config)) as (database, results):
        proofs = results.parent / PROOFS if keep_proofs else None
        gone = retire(database, results, int(time.time()), days, proofs=proofs)
    rows = [{"study": item.digest.hex(), "name": item.name, "bytes": item.size} for item in gone]
    print_rows(rows, title="Deleted", as_json=as_json, empty=f"No study expired {days} days ago or earlier.")


@app.command()
def mirror(
    out: Annotated[Path, typer.Option("--out", help="The file to write, in JSON Lines.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    config: ConfigOption = Path("coordinator.toml"),
    as_json: JsonOption = False,
) -> None:
    """Export the mirror of what sites spent, beside the running coordinator: sites compare or recover their ledgers by it."""
    from veilsum_node.process.new_files import new_file
    from veilsum_privacy.dossier.ledgers import open_source
    from veilsum_privacy.ledger import write_jsonl

    with open_source(_load(config).database_place) as reader, new_file(out, force=force) as file:
        entries = write_jsonl(reader, file)
    print_fields({"mirror": str(out), "entries": entries}, title="Exported", as_json=as_json)


@contextmanager
def _held(config: Path, wanted: str) -> Iterator[tuple[Database, Path, HeldStudy]]:
    """The coordinator's database, the folder of its results, and a study that it holds."""
    from veilsum_coordinator.results.retirement import find_study, held_studies, open_holdings

    with open_holdings(_load(config)) as (database, results):
        yield database, results, find_study(held_studies(database, results), wanted)


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
    from veilsum.access import resolve_access
    from veilsum.remote import Remote, connect
    from veilsum_coordinator.console.facts import Sources
    from veilsum_coordinator.console.run import run_operator_console
    from veilsum_deploy.coordinator.check import coordinator_checks

    @contextmanager
    def opened() -> Iterator[Remote]:
        """As the operator whose identity the access file names; it is read anew, for a log-in replaces it."""
        found, now = resolve_access(None, None, config.with_name(ACCESS)), int(time.time())
        with connect(found.route, found.credentials(now), found.identity, now) as remote:
            yield remote

    def checks() -> list[tuple[str, Look]]:
        """The rows of `coordinator check`."""
        found = coordinator_checks(_load(config), lambda: int(time.time()))

        def rows(look: Callable[[], list[Check]]) -> list[dict[str, str]]:
            return [item.row() for item in look()]

        return [(name, partial(rows, look)) for name, look in found]

    run_operator_console(Sources(config, settings, opened, checks), people, print_line)


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
