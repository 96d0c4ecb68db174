"""The ``veilsum participant`` commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilsum_deploy.cli.identity import AddressOption, DirectoryArgument, NameOption, init_party
from veilsum_deploy.cli.output import JsonOption, print_json, print_rows
from veilsum_deploy.starters import EXAMPLE_ADDRESS
from veilsum_privacy.errors import Misuse
from veilsum_privacy.identity import Role

if TYPE_CHECKING:
    from veilsum_deploy.checks import StudyTerms
    from veilsum_participant.config import ParticipantConfig
    from veilsum_privacy.schema import DatasetSchema

app = typer.Typer(no_args_is_help=True, add_completion=False)

ConfigOption = Annotated[Path, typer.Option("--config", help="The participant's configuration.")]
CONFIG = Path("participant.toml")


@app.callback()
def participant() -> None:
    """Set up, check and run a participant."""


@app.command()
def init(
    directory: DirectoryArgument, name: NameOption, coordinator: AddressOption = EXAMPLE_ADDRESS, as_json: JsonOption = False
) -> None:
    """Make a private key, a certificate signing request and a participant.toml to edit."""
    init_party(directory, name, Role.PARTICIPANT, as_json=as_json, address=coordinator)


@app.command()
def start(config: ConfigOption = CONFIG) -> None:
    """Run the participant until SIGINT or SIGTERM; it goes on where it was stopped."""
    from veilsum_deploy.logs import start_logging
    from veilsum_participant.client import run_participant  # loads gRPC and torch, which init does without
    from veilsum_participant.config import load_participant_config

    settings = load_participant_config(config)
    start_logging(settings.log)
    run_participant(settings)


@app.command()
def check(
    config: ConfigOption = CONFIG,
    schema: Annotated[Path | None, typer.Option("--schema", help="Check a dataset against this schema.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="The dataset that --schema describes.")] = None,
    study: Annotated[Path | None, typer.Option("--study", help="Check dataset and policy against this study.toml.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Test identity, connection, clock, ledger, budgets, policy and data; status 1 if a check failed."""
    from veilsum_deploy.checks import Outcome, SiteCheck
    from veilsum_participant.config import load_participant_config

    settings = load_participant_config(config)
    schemas, terms = _subject(settings, schema, dataset, study)
    checks = SiteCheck(settings, lambda: int(time.time()), schemas=schemas, study=terms).run()
    ok = all(item.status is not Outcome.FAILED for item in checks)
    if as_json:
        print_json({"ok": ok, "checks": [item.to_json() for item in checks]})
    else:
        rows = [
            {"status": item.status.value, "check": item.check, "found": item.detail, "what to do": item.advice}
            for item in checks
        ]
        print_rows(rows, title=f"Participant {config}", as_json=False)
    raise typer.Exit(0 if ok else 1)


def _subject(
    config: ParticipantConfig, schema: Path | None, dataset: str | None, study: Path | None
) -> tuple[dict[str, DatasetSchema], StudyTerms | None]:
    """The schemas to check datasets against, and a study's terms."""
    if study is not None:
        if schema is not None or dataset is not None:
            raise Misuse("--study brings its own dataset and schema.", "Leave out --schema and --dataset.")
        from veilsum_coordinator.methods.compile import load_study_request
        from veilsum_deploy.checks import StudyTerms

        request = load_study_request(study)
        terms = StudyTerms(request.method, request.dataset, request.privacy.noise, request.privacy.epsilon)
        return ({} if request.data is None else {request.dataset: request.data}), terms
    if schema is None:
        if dataset is not None:
            raise Misuse("--dataset needs --schema.", "Name the schema that it shall be checked against.")
        return {}, None
    from veilsum_privacy.schema_file import load_schema

    offered = list(config.datasets)
    if dataset is None and len(offered) > 1:
        raise Misuse("This site offers several datasets.", f"Add --dataset with one of: {', '.join(offered)}.")
    name = dataset or offered[0]
    if name not in config.datasets:
        raise Misuse(f"Dataset {name!r} is not offered here.", f"Offered: {', '.join(offered)}.")
    return {name: load_schema(schema)}, None
