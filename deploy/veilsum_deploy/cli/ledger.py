"""The ``veilsum ledger`` commands: what was spent, the proof of it, and budgets. They work while the participant runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_deploy.cli.output import JsonOption, moment, print_fields, print_json, print_line, print_rows
from veilsum_deploy.ledgers import entry_fields, existing_ledger, site_key, spending_fields, spending_row
from veilsum_privacy.config import did_you_mean
from veilsum_privacy.errors import HostileInput, Misuse
from veilsum_privacy.identity.tls import CERTIFICATE_FILE

if TYPE_CHECKING:
    from veilsum_privacy.ledger import SignatureCheck

app = typer.Typer(no_args_is_help=True, add_completion=False)
budget_app = typer.Typer(no_args_is_help=True, add_completion=False, help="Set or change budgets.")
app.add_typer(budget_app, name="budget")

CONFIG = Path("participant.toml")
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The participant's configuration.", show_default=str(CONFIG))
]
LedgerOption = Annotated[Path | None, typer.Option("--ledger", help="The ledger's file, in place of --config.")]


@app.callback()
def ledger() -> None:
    """What was spent: show it, verify it, set budgets."""


@app.command()
def show(
    config: ConfigOption = None,
    file: LedgerOption = None,
    population: Annotated[str | None, typer.Option("--population", help="This population only.")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Entries of the study whose digest begins so.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each population spent, and the entries.

    `spent` is the guarantee (RDP), `estimate` the tighter accountant's figure (PRV); `reserved` counts open releases too.
    """
    path = _ledger_path(config, file)
    with existing_ledger(path) as opened:
        populations = opened.populations()
        if population is not None and population not in populations:
            raise Misuse(f"The ledger knows no population {population!r}.", did_you_mean(population, populations))
        spending = [spending_fields(opened, name) for name in populations if population in (None, name)]
        entries = [
            entry_fields(entry)
            for entry in opened.entries(population=population)
            if study is None or (entry.study is not None and entry.study.hex().startswith(study.lower()))
        ]
        head = opened.head().hex()
    if as_json:
        print_json({"ledger": str(path), "head": head, "spending": spending, "entries": entries})
        return
    print_rows(
        [spending_row(item) for item in spending],
        title="Spending: epsilon at delta",
        as_json=False,
        empty="No population has a budget.",
    )
    print_rows([_entry_row(item) for item in entries], title="Entries", as_json=False, empty="No such entry.")


@app.command()
def verify(
    config: ConfigOption = None,
    file: LedgerOption = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="With --ledger: the site's certificate, to check signatures by.")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="Hash of the last entry, as a mirror or peer saw it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every entry: hashes, chain, signatures, budgets. Status 1 names the first entry that fails."""
    path = _ledger_path(config, file)
    site: str | None = None
    check: SignatureCheck | None = None
    if file is None:
        certificate = _config(config).identity / CERTIFICATE_FILE
    if certificate is not None:
        site, check = site_key(certificate)
    fields: dict[str, Any] = {"ledger": str(path), "valid": True, "signatures": "checked" if check else "not checked"}
    with existing_ledger(path, site=site) as opened:
        try:
            fields["entries"] = opened.verify(check, head=None if head is None else _hash(head))
            fields["head"] = opened.head().hex()
        except HostileInput as error:
            fields |= {"valid": False, "fault": error.message, "advice": error.advice}
    print_fields(fields, title="Ledger", as_json=as_json)
    if not fields["valid"]:
        raise typer.Exit(1)
    if check is None and not as_json:
        print_line("Signatures were not checked: give the site's --certificate.")


@budget_app.callback()
def budget() -> None:
    """Set or change budgets."""


@budget_app.command("set")
def set_budget(
    population: Annotated[str, typer.Argument(help="Whose budget.")],
    epsilon: Annotated[str, typer.Option("--epsilon", help='What may be lost in all, or "unlimited".')],
    delta: Annotated[float, typer.Option("--delta", help="Of the population, over every study.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    operator: Annotated[str, typer.Option("--operator", help="Who decided it, for the record.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append a budget to the ledger; it holds for everything released so far."""
    settings = _config(config)
    offered = {settings.population(name) for name in settings.datasets}
    with _writable(settings) as (opened, connection):
        known = offered | set(opened.populations(connection))
        if population not in known:
            raise Misuse(f"No dataset is of the population {population!r}.", did_you_mean(population, known))
        bound = _epsilon(epsilon)
        opened.set_budget(connection, population, bound, delta, reason=reason, operator=operator)
    with existing_ledger(settings.state) as reader:
        fields = spending_fields(reader, population)
    print_fields(fields if as_json else spending_row(fields), title=f"Budget of {population}", as_json=as_json)


@contextmanager
def _writable(settings: Any) -> Iterator[tuple[Any, Any]]:
    """The site's ledger, signing with the site's key, and a transaction on it."""
    from veilsum_participant.client import open_ledger
    from veilsum_privacy.database import open_database, transaction
    from veilsum_privacy.identity import Role, load_credentials

    credentials = load_credentials(settings.identity, _now(), Role.PARTICIPANT)
    engine = open_database(settings.state)
    try:
        opened = open_ledger(engine, credentials, _now)
        with transaction(engine) as connection:
            yield opened, connection
    finally:
        engine.dispose()


def _config(path: Path | None) -> Any:
    from veilsum_participant.config import load_participant_config

    return load_participant_config(CONFIG if path is None else path)


def _ledger_path(config: Path | None, file: Path | None) -> Path:
    if config is not None and file is not None:
        raise Misuse("--config and --ledger both name a ledger.", "Give one of them.")
    return file if file is not None else Path(_config(config).state)


def _epsilon(text: str) -> float | None:
    if text == "unlimited":
        return None
    try:
        epsilon = float(text)
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < math.inf:
        raise Misuse(f"{text!r} is no epsilon.", 'Give a positive number, or "unlimited".')
    return epsilon


def _hash(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise Misuse("--head is not a hash of 64 hexadecimal digits.", "Copy it from `veilsum ledger show --json`.")
    return value


def _entry_row(fields: dict[str, Any]) -> dict[str, Any]:
    mechanism, detail = fields["mechanism"], fields["detail"]
    if fields["kind"] == "budget":
        epsilon = detail.get("epsilon")
        what = (
            f"epsilon {'unlimited' if epsilon is None else float.fromhex(epsilon)}: {detail['reason']} ({detail['operator']})"
        )
    elif mechanism is None:
        what = ""
    elif mechanism["mechanism"] == "none":
        what = "no noise"
    else:
        ratio = int(mechanism["variance"][0]) ** 0.5 / int(mechanism["sensitivity"])
        what = f"{mechanism['mechanism']} ({mechanism['noise']}), noise multiplier {ratio:.4g}"
    if fields["kind"] == "refusal":
        what = f"{detail.get('code', '')} {what}".strip()
    return {
        "no.": fields["seq"],
        "time": moment(fields["time"]),
        "kind": fields["kind"],
        "population": fields["population"],
        "study": None if fields["study"] is None else fields["study"][:12],
        "round": fields["round"],
        "attempt": fields["attempt"],
        "cohort": fields["cohort_size"],
        "what": what,
    }


def _now() -> int:
    return int(time.time())
