"""The ``veilsum participant`` commands.

How the ``participant`` commands show studies that wait for the operator's word.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_node.errors import Misuse
from veilsum_node.identity import Role
from veilsum_node.process.console import (
    ConfigOption,
    DialectOption,
    JsonOption,
    moment,
    print_fields,
    print_json,
    print_line,
    print_rows,
)
from veilsum_node.process.consoles import add_console
from veilsum_node.process.parties import AddressOption, DirectoryArgument, NameOption, init_party
from veilsum_node.process.starters import EXAMPLE_ADDRESS
from veilsum_participant.cli.directory import app as directory_app
from veilsum_privacy.backup.commands import add_operations, show_checks
from veilsum_privacy.dossier.figures import cost, plain

if TYPE_CHECKING:
    from veilsum_node.overrides import Loaded
    from veilsum_node.web.people import Links, Person
    from veilsum_node.web.settings import ConsoleSettings
    from veilsum_participant.checks import AskedStudy
    from veilsum_participant.cli.additions import Additions
    from veilsum_participant.protocol.decisions import Waiting
    from veilsum_participant.settings.config import ParticipantConfig
    from veilsum_participant.site import Site
    from veilsum_privacy.backup.backup import BackupOwner
    from veilsum_privacy.study.schema import DatasetSchema

app = typer.Typer(no_args_is_help=True, add_completion=False)

StudyArgument = Annotated[str, typer.Argument(help="The first digits of the study's ID.", metavar="ID")]
NewSiteOption = Annotated[
    bool, typer.Option("--new-site", help="This site took no part in the study: align it by these records.")
]
WeightsOption = Annotated[Path | None, typer.Option("--weights", help="File of the base weights of a result of adapters.")]
WhereNeeded = Annotated[Path | None, typer.Option("--config", help="The participant's configuration, where one is needed.")]
AsOption = Annotated[str, typer.Option("--as", help="Name of the person who decides, for the site's own ledger.")]
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


@app.command("transport-key")
def transport_key(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Make a key of its own for this site's connections, and the request for its certificate; the key that signs stays.

    Once the authority's answer lies beside the request, connections show it: also those of a participant that runs.
    """
    from veilsum_node.identity import load_credentials
    from veilsum_node.identity.provision import prepare_transport

    settings = _load(config)
    name = load_credentials(settings.identity, int(time.time()), Role.PARTICIPANT).identity.name
    request = prepare_transport(settings.identity, name)
    print_fields({"name": name, "role": Role.TRANSPORT.value, "request": str(request)}, title="New key", as_json=as_json)
    if not as_json:
        print_line(
            f"Send {request} to the federation's authority, who signs it with `veilsum federation sign --role transport"
            f" --name {name}`, and put its answer beside it."
        )


@app.command()
def start(config: ConfigOption = CONFIG) -> None:
    """Run the participant until SIGINT or SIGTERM; it continues where it stopped."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are made in small parts, over which threads mostly wait
    from veilsum_participant.session.whole import begin

    begin(config)


def _load(path: Path) -> ParticipantConfig:
    from veilsum_participant.settings.config import load_participant_config

    return load_participant_config(path)


def _read(path: Path) -> Loaded[ParticipantConfig]:
    from veilsum_participant.settings.config import read_participant_settings

    return read_participant_settings(path)


def _owner(settings: ParticipantConfig) -> BackupOwner:
    from veilsum_participant.settings.directory import confirmed_path
    from veilsum_privacy.backup.backup import BackupOwner

    return BackupOwner(Role.PARTICIPANT, settings.state, settings.identity, directory=confirmed_path(settings))


add_operations(
    app,
    Role.PARTICIPANT,
    _load,
    _read,
    _owner,
    {
        "health": "Ask the running participant's metrics endpoint whether its session is open: status 0 or 1.",
        "backup": "Back up ledger and protocol state into one file, even while the participant runs; the copy's ledger is"
        " verified.",
        "restore": "Restore a backup while the participant is stopped; what it has paid since is charged when it connects.",
    },
)


app.add_typer(directory_app, name="directory")


def _run_console(config: Path, settings: ConsoleSettings, people: list[Person], in_reach: bool) -> None:
    from veilsum_participant.console.run import run_site_console

    run_site_console(config, settings, people, print_line, in_reach=in_reach)


def _console_links(config: Path, settings: ConsoleSettings) -> Links:
    from veilsum_participant.console.run import site_links

    return site_links(_load(config), settings)


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="omop or fhir.", metavar="NAME")],
    directory: Annotated[Path, typer.Argument(help="Where the files go.", metavar="DIRECTORY")],
    as_json: JsonOption = False,
) -> None:
    """Write queries and schemas for a data model that many hospitals share, to adapt: OMOP CDM 5.4, or FHIR R4."""
    from veilsum_participant.recipes import write_recipe

    written = write_recipe(name, directory)
    print_rows([{"file": str(path)} for path in written], title=f"Recipe {name}", as_json=as_json)


@app.command()
def check(
    ctx: typer.Context,
    config: ConfigOption = CONFIG,
    schema: Annotated[Path | None, typer.Option("--schema", help="Check a dataset against this schema.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="The dataset that --schema describes.")] = None,
    study: Annotated[Path | None, typer.Option("--study", help="Check dataset and policy against this study.toml.")] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Show the columns of each dataset; of a CSV file that is its first line.")
    ] = False,
    texts: Annotated[
        bool, typer.Option("--texts", help="With --schema, show the most frequent texts that match nothing in it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Test identity, connection, clock, ledger, budgets, policy and data; status 1 if a check failed.

    With --study it says what the participant would say to that study, with every reason.
    """
    from veilsum_participant.checks import SiteCheck

    settings = _load(config)
    schemas, request = _subject(settings, schema, dataset, study, ctx.obj)
    checks = SiteCheck(
        settings, lambda: int(time.time()), schemas=schemas, study=request, show_columns=columns, show_texts=texts
    ).run()
    raise typer.Exit(show_checks(checks, f"Participant {config}", as_json=as_json))


@app.command()
def audit(
    ctx: typer.Context,
    config: ConfigOption = CONFIG,
    study: Annotated[
        str | None,
        typer.Option("--study", help="A study that this site knows, by its ID's first digits; or a study.toml.", metavar="ID"),
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Only this task or label; may be repeated.")] = None,
    trials: Annotated[int, typer.Option("--trials", help="Coins for each release, at least.", min=100, max=100_000)] = 1000,
    out: Annotated[Path, typer.Option("--out", help="The signed report to write.")] = Path("audit.json"),
    force: Annotated[bool, typer.Option("--force", help="Replace the report if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on made-up records how much this site's releases tell; status 1 if it is more than the ledger books.

    Without --study it audits a release of every kind that the policy allows. No record is read, nothing is charged, nothing
    leaves. `veilsum ledger report --audit` takes the report into the dossier.
    """
    from veilsum_participant.cli.audit import audit_site

    found = audit_site(_load(config), study, task or [], out, ctx.obj, trials=trials, force=force, as_json=as_json)
    raise typer.Exit(1 if found.flagged else 0)


@app.command()
def studies(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """List studies that wait for your word, with what each costs by this site's own ledger."""
    from veilsum_participant.protocol.decisions import waiting_studies

    with _site(config) as site:
        found = [waiting_fields(item) for item in waiting_studies(site)]
    if as_json:
        print_json(found)
        return
    print_rows([waiting_row(item) for item in found], title="Studies", as_json=False, empty="No study waits.")
    if any(item["state"] == "waiting" for item in found):
        print_line("Read one with `veilsum participant show ID`.")
        print_line("Decide with `veilsum participant approve ID --as NAME` or `decline ID --as NAME --reason TEXT`.")


@app.command()
def show(study: StudyArgument, config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Show a waiting study in plain words: who asks, why, what it computes, what it costs this site, until when it waits.

    The ledger's entry of a decision holds the SHA-256 of this text.
    """
    from veilsum_participant.protocol.decisions import shown_study
    from veilsum_participant.protocol.shown import shown_text

    with _site(config) as site:
        found = shown_study(site, study)
    text = shown_text(found)
    if as_json:
        print_json(waiting_fields(found) | {"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    else:
        for line in text.splitlines():
            print_line(line)


@app.command()
def approve(
    study: StudyArgument,
    operator: AsOption,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the site's own ledger.")] = "",
    config: ConfigOption = CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Let a waiting study in; the participant enrols at once if it runs, else at its next start.

    The ledger keeps who approved it, why, and the digest of what was shown.
    """
    from veilsum_participant.protocol.decisions import approve as decide

    with _site(config) as site:
        fields = waiting_fields(decide(site, study, operator, reason))
    print_fields(fields if as_json else waiting_row(fields), title="Approved", as_json=as_json)
    if fields["state"] == "waiting" and not as_json:
        print_line(f"It needs {fields['approvals_needed']} people: let somebody else approve it, too.")


@app.command()
def decline(
    study: StudyArgument,
    operator: AsOption,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the site's own ledger; the coordinator hears a code.")],
    config: ConfigOption = CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Refuse a waiting study for good."""
    from veilsum_participant.protocol.decisions import decline as decide

    with _site(config) as site:
        fields = waiting_fields(decide(site, study, operator, reason))
    print_fields(fields if as_json else waiting_row(fields), title="Declined", as_json=as_json)


add_console(app, Role.PARTICIPANT, _run_console, _console_links)


@app.command()
def leave(study: StudyArgument, config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """End this site's part in a study that it is enrolled in, for good: open attempts are given up, its keys are erased."""
    from veilsum_participant.protocol.decisions import leave_study

    with _site(config, same_key=False) as site:
        digest = leave_study(site, study)
    print_fields({"id": digest.hex(), "state": "left"}, title="Left", as_json=as_json)


@app.command()
def snapshots(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Say which releases were computed from the records that the site's queries yield now; status 1 if one was not."""
    from veilsum_participant.checks.snapshots import compare_snapshots

    with _site(config) as site:
        found = [(item.entry.seq, item.entry.reservation, item.same, item.why) for item in compare_snapshots(site)]
    rows: list[dict[str, Any]] = []
    for number, release, same, why in found:
        said = {True: "the records of now", False: "other records", None: f"cannot be told: {why}"}[same]
        where = {"no.": number, "study": release.study.hex()[: None if as_json else 12], "round": release.round}
        told = {"same": same, "why": why} if as_json else {"computed from": said}
        rows.append({**where, "dataset": release.dataset, **told})
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, title="Snapshots", as_json=False, empty="No release was computed from a query.")
    raise typer.Exit(1 if any(same is False for _, _, same, _ in found) else 0)


@app.command()
def apply(
    result: Annotated[Path, typer.Argument(help="Directory of the result: manifest.json and its arrays.", metavar="RESULT")],
    data: Annotated[Path, typer.Option("--data", help="File of records: CSV, Parquet or npz.")],
    dialect: DialectOption = None,
    site: Annotated[str | None, typer.Option("--site", help="Site whose alignment is used; default: the identity's.")] = None,
    new_site: NewSiteOption = False,
    config: WhereNeeded = None,
    out: Annotated[Path, typer.Option("--out", help="Where the predictions go.")] = Path("predictions.csv"),
    encoder: Annotated[Path | None, typer.Option("--encoder", help="File of the result's frozen program.")] = None,
    weights: WeightsOption = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="Read the file as this schema says.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of predictions.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply a study's result to a file of records, offline: one line a record, and accuracy where the classes are known."""
    from veilsum_participant.cli.apply import Own, apply_result
    from veilsum_participant.settings.declared_files import declared

    source = declared(data, dialect or ())
    apply_result(
        result, source, Own(config, site, encoder, new_site, weights), schema=schema, out=out, force=force, as_json=as_json
    )


@app.command()
def evaluate(
    result: Annotated[Path, typer.Argument(help="Directory of the result, or of a checkpoint.", metavar="RESULT")],
    data: Annotated[Path | None, typer.Option("--data", help="File of labelled records: CSV, Parquet or npz.")] = None,
    dialect: DialectOption = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Dataset of the configuration, in place of --data.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Site whose alignment is used; default: the identity's.")] = None,
    new_site: NewSiteOption = False,
    config: WhereNeeded = None,
    encoder: Annotated[Path | None, typer.Option("--encoder", help="File of the result's frozen program.")] = None,
    weights: WeightsOption = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="Read the file as this schema says.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a study's result on labelled records of your own: exact figures, which stay here."""
    from veilsum_participant.cli.apply import Own
    from veilsum_participant.cli.evaluate import evaluate_result
    from veilsum_participant.settings.declared_files import declared

    own = Own(config, site, encoder, new_site, weights)
    source = None if data is None else declared(data, dialect or ())
    evaluate_result(result, own, data=source, dataset=dataset, schema=schema, as_json=as_json)


@app.command(name="personalise")
def personalise_command(
    result: Annotated[Path, typer.Argument(help="Directory of the result: manifest.json and its arrays.", metavar="RESULT")],
    data: Annotated[Path, typer.Option("--data", help="File of the site's own labelled records: CSV, Parquet or npz.")],
    dialect: DialectOption = None,
    site: Annotated[str | None, typer.Option("--site", help="Site whose alignment is used; default: the identity's.")] = None,
    new_site: NewSiteOption = False,
    config: WhereNeeded = None,
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")] = Path("personal"),
    encoder: Annotated[Path | None, typer.Option("--encoder", help="File of the result's frozen program.")] = None,
    weights: WeightsOption = None,
    schema: Annotated[Path | None, typer.Option("--schema", help="Read the file as this schema says.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a model of your own from a released one and your records, which are used exactly: nothing of it leaves."""
    from veilsum_participant.cli.apply import Own
    from veilsum_participant.cli.personalise import personalise_result
    from veilsum_participant.settings.declared_files import declared

    own = Own(config, site, encoder, new_site, weights)
    personalise_result(result, declared(data, dialect or ()), own, schema=schema, out=out, as_json=as_json)


@contextmanager
def _site(config: Path, *, same_key: bool = True) -> Iterator[Site]:
    """The site's own store and ledger, beside the participant that may be running on them."""
    from veilsum_participant.session.beside import open_beside

    with open_beside(_load(config), same_key=same_key) as site:
        yield site


def _subject(
    config: ParticipantConfig, schema: Path | None, dataset: str | None, study: Path | None, additions: Additions | None
) -> tuple[dict[str, DatasetSchema], AskedStudy | None]:
    """The schemas to check datasets against, and a study to hold against the policy."""
    from veilsum_privacy.study.schema_file import load_schema

    if study is not None:
        if schema is not None or dataset is not None:
            raise Misuse("--study brings its own dataset and schema.", "Leave out --schema and --dataset.")
        if additions is None:
            raise Misuse("This installation cannot read a study.toml.", "Use the command of the whole platform: veilsum.")
        asked = additions.load_study(study)
        return ({} if asked.schema is None else {asked.dataset: asked.schema}), asked
    if schema is None:
        if dataset is not None:
            raise Misuse("--dataset needs --schema.", "Name the schema to check it against.")
        own = {name: offered.schema_file for name, offered in config.datasets.items()}
        return {name: load_schema(path) for name, path in own.items() if path is not None}, None
    offered = list(config.datasets)
    if dataset is None and len(offered) > 1:
        raise Misuse("This site offers several datasets.", f"Add --dataset with one of: {', '.join(offered)}.")
    name = dataset or offered[0]
    if name not in config.datasets:
        raise Misuse(f"Dataset {name!r} is not offered here.", f"Offered: {', '.join(offered)}.")
    return {name: load_schema(schema)}, None


def waiting_fields(item: Waiting) -> dict[str, Any]:
    """A waiting study, with what it costs here, as plain values."""
    from veilsum_privacy.accounting.deltas import delta_warning

    study, privacy = item.study, item.study.privacy
    reasons = () if item.obstacle is None else item.obstacle.reasons
    return {
        "id": item.digest.hex(),
        "state": item.state,
        "since": item.time,
        "deadline": item.deadline,
        "studies_left": item.leaves,
        "approved_by": list(item.approved_by),
        "approvals_needed": item.needs,
        "expires": study.expires,
        "name": study.name,
        "analyst": item.analyst,
        "stated": study.statements,
        "method": study.method,
        "disclosures": {task.label: task.disclosure for task in study.tasks},
        "dataset": study.dataset,
        "unit": privacy.unit,
        "epsilon": _plain(item.epsilon),
        "spent_before": _plain(item.before),
        "spent_after": _plain(item.after),
        "noise": privacy.noise,
        "assumed_colluders": privacy.assumed_colluders,
        "participants": list(study.participants),
        "min_cohort": privacy.min_cohort,
        "warnings": [warning] if (warning := delta_warning(study)) else [],
        "obstacles": [{"code": item.code.value, "message": item.message, "advice": item.advice} for item in reasons],
    }


def waiting_row(fields: dict[str, Any]) -> dict[str, Any]:
    """What :func:`waiting_fields` returns, for people."""
    before, after = fields["spent_before"], fields["spent_after"]
    least, most = fields["min_cohort"], len(fields["participants"])
    row = {
        "id": fields["id"][:12],
        "state": "\n".join([fields["state"], *(f"yes: {name}" for name in fields["approved_by"])]),
        "until": moment(fields["deadline"] or fields["expires"]),
        "study": f"{fields['name']} by {fields['analyst']}",
        "method": fields["method"] + ("\nper site" if "per-site" in fields["disclosures"].values() else ""),
        "dataset": fields["dataset"],
        "unit": fields["unit"],
        "epsilon": cost(fields["epsilon"]),
        "spent": "no budget" if before is None else f"{cost(before)} -> {cost(after)}",
        "noise": fields["noise"],
        "cohort": str(most) if least == most else f"{least} to {most}",
    }
    for name, text in fields["stated"].items():
        row["study"] += f"\n{name.replace('_', ' ')}: {text}"
    for warning in fields["warnings"]:
        row["study"] += f"\n{warning}"
    for item in fields["obstacles"]:
        row["study"] += f"\n{item['code']}: {item['message']}"
    return row


def _plain(epsilon: float | None) -> float | str | None:
    return None if epsilon is None else plain(epsilon)
