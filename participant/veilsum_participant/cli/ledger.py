"""The ``veilsum ledger`` commands: what was spent, the proof of it, budgets. They work while the participant runs."""

import json
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse
from veilsum_node.identity import Role
from veilsum_node.process.console import JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_node.process.new_files import new_file, require_new
from veilsum_participant.checks.labels import study_labels
from veilsum_participant.cli import budgets
from veilsum_participant.cli.entries import entry_row, read_time, spending_row
from veilsum_participant.cli.places import (
    ConfigOption,
    LedgerArgument,
    OwnOption,
    find_ledger,
    load_participant,
    open_own,
    verify_place,
)
from veilsum_privacy.dossier import describe, proven, render, unproven
from veilsum_privacy.dossier.figures import cost, plain
from veilsum_privacy.dossier.ledgers import entry_fields, open_source, read_audit, readable_entries, spending_fields
from veilsum_privacy.dossier.protection import ANNEXES
from veilsum_privacy.ledger import Entry, Kind, LedgerFault, LedgerReader, write_csv, write_jsonl

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(budgets.app, name="budget")

AuthorityOption = Annotated[
    Path | None,
    typer.Option("--authority", help="The federation's certificate; with --config, that of the identity.", metavar="PEM"),
]
HeadOption = Annotated[str | None, typer.Option("--head", help="Hash of the last entry, as a mirror or peer saw it.")]
AgainstOption = Annotated[
    list[str] | None,
    typer.Option("--against", help="Another copy to compare with: a mirror, a peer's ledger, or an export of one."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]


@app.callback()
def ledger() -> None:
    """What was spent: show it, prove it, write it down for others, set budgets."""


@app.command()
def show(
    ctx: typer.Context,
    place: LedgerArgument = None,
    config: ConfigOption = None,
    population: Annotated[str | None, typer.Option("--population", help="This population only.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Entries about this dataset.")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Entries of the study of this name or first digits.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Entries of this kind, for example charge or refusal.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="From this date or time on, or for so long: 30d.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to and with this date, or before this time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each population spent in all, then the entries.

    `spent` is the guarantee, by the budget's rule, `estimate` the tighter accountant's figure (PRV), `against all others`
    counts the site's own noise alone, and `with open ones` open releases too; `left` is the budget less that.
    """
    where = find_ledger(place, config, ctx.obj)
    with open_source(where.text) as opened:
        entries = _chosen_entries(opened, kind, population, dataset, since, until)
        spending = [spending_fields(opened, name) for name in opened.populations() if population in (None, name)]
        site, role, head = opened.site, opened.role, opened.head().hex()
    names = {digest.hex(): label.name for digest, label in study_labels(where.text).items()}
    fields = [entry_fields(entry) for entry in entries]
    if study is not None:
        fields = [item for item in fields if item["study"] and _is_study(study, item["study"], names)]
        if not fields:
            _require_study(where.text, study, names)
    if as_json:
        about = {"ledger": where.name, "site": site, "role": role.value, "head": head}
        print_json(about | {"spending": spending, "entries": fields})
        return
    if role is Role.PARTICIPANT:
        title = f"Spending of {site}, as epsilon at the budget's delta"
        print_rows([spending_row(item) for item in spending], title=title, as_json=False, empty="No population has a budget.")
    rows = [entry_row(item, _study(item["study"], names)) for item in fields]
    title = "Entries" if role is Role.PARTICIPANT else f"Entries of the mirror of {site}"
    print_rows(rows, title=title, as_json=False, empty="No such entry.")


def _chosen_entries(
    opened: LedgerReader, kind: str | None, population: str | None, dataset: str | None, since: str | None, until: str | None
) -> list[Entry]:
    """Entries by what the command line says of them.

    Raises:
        Misuse: it names what the ledger does not know, or no time.
    """
    now, populations = int(time.time()), opened.populations()
    if population is not None and population not in populations:
        raise Misuse(f"The ledger knows no population {population!r}.", did_you_mean(population, populations))
    entries = opened.entries(
        kind=None if kind is None else _kind(kind),
        population=population,
        dataset=dataset,
        since=None if since is None else read_time(since, now),
        until=None if until is None else read_time(until, now, end=True),
    )
    if dataset is not None and not entries:
        _require_known("dataset", dataset, {entry.dataset for entry in opened.entries() if entry.dataset is not None})
    return entries


@app.command()
def verify(
    ctx: typer.Context,
    place: LedgerArgument = None,
    config: ConfigOption = None,
    against: AgainstOption = None,
    authority: AuthorityOption = None,
    head: HeadOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every entry: hashes, chain, signatures, receipts, budgets, totals. Status 1 names the first entry that fails.

    It works offline and needs no key: the certificates stand in the ledger.
    """
    where = find_ledger(place, config, ctx.obj)
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(open_source(where.text))
        except LedgerFault as fault:  # an export that cannot be read: it is not what somebody signed
            _print_fault(where.name, fault, as_json=as_json)
            raise typer.Exit(1) from fault
        checked = verify_place(opened, where, authority, head, against)
        proof = checked.proof(opened, int(time.time()))
    found = checked.verification
    if found is None:
        _print_fault(where.name, checked.fault, as_json=as_json)
        raise typer.Exit(1)
    mirror = found.role is Role.COORDINATOR
    fields: dict[str, Any] = {
        "ledger": where.name,
        "valid": True,
        "site": found.site,
        "role": found.role.value,
        "entries": found.entries,
        "receipts": found.receipts,
        "keys": list(found.keys),
        "federation": found.federation,
        "head": proof.head,
    }
    if found.set_back or as_json:
        fields["set_back"] = list(found.set_back)  # entries at which the clock had been set back
    if found.bare or as_json:
        fields["bare"] = found.bare  # entries of older versions, which hashes do not hide
    proves, left = proven(proof, found.site, mirror=mirror), unproven(proof, mirror=mirror)
    if as_json:
        spending = {name: {"spent": plain(spent), "estimate": estimate} for name, (spent, estimate) in found.spending.items()}
        print_json(fields | {"spending": spending, "proves": proves, "leaves_open": left})
        return
    print_fields(fields, title="Ledger", as_json=False)
    rows = [
        {"population": name, "spent": cost(spent), "estimate": "" if estimate is None else cost(estimate)}
        for name, (spent, estimate) in found.spending.items()
    ]
    if rows:
        print_rows(rows, title="Recomputed from the releases: epsilon", as_json=False)
    for title, items in (("This proves:", proves), ("This cannot prove:", left)):
        print_line(title)
        for item in items:
            print_line(f"  - {item}")


@app.command()
def export(
    ctx: typer.Context,
    place: LedgerArgument = None,
    config: ConfigOption = None,
    out: Annotated[str, typer.Option("--out", help="The file to write; - for standard output.")] = "-",
    form: Annotated[
        Literal["jsonl", "csv"], typer.Option("--format", help="jsonl can be verified by others; csv is for a spreadsheet.")
    ] = "jsonl",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the whole ledger for others: it can be verified from the export alone. It holds budgets, and no record."""
    if out == "-" and as_json:
        raise Misuse("Export and --json would both go to standard output.", "Name a file with --out.")
    where, write = find_ledger(place, config, ctx.obj), write_csv if form == "csv" else write_jsonl
    with open_source(where.text) as opened:
        if out == "-":
            sys.stdout.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]
            write(opened, sys.stdout)
            return
        with new_file(Path(out), force=force) as file:
            entries = write(opened, file)
        fields = {"ledger": where.name, "out": out, "format": form, "entries": entries}
    print_fields(fields, title="Export", as_json=as_json)


@app.command()
def report(
    ctx: typer.Context,
    place: LedgerArgument = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("dossier.html"),
    json_out: Annotated[Path | None, typer.Option("--json-out", help="Its machine-readable twin.")] = None,
    config: ConfigOption = None,
    title: Annotated[str, typer.Option("--title", help="The title, in place of the site's name.")] = "",
    contact: Annotated[str, typer.Option("--contact", help="Contact, shown on the first page.")] = "",
    audit: Annotated[
        list[Path] | None, typer.Option("--audit", help="A report of `veilsum participant audit` to take in.")
    ] = None,
    annex: Annotated[
        str,
        typer.Option(
            "--annex", help="Annexes, separated by commas: nist, dpia (impact assessment), art30 (record of processing)."
        ),
    ] = "nist",
    against: AgainstOption = None,
    authority: AuthorityOption = None,
    head: HeadOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the ledger and write a dossier of it, for a privacy officer to read and sign. Status 1 if it does not verify."""
    where, now = find_ledger(place, config, ctx.obj), int(time.time())
    annexes = [name.strip() for name in annex.split(",") if name.strip()]
    if unknown := sorted(set(annexes) - set(ANNEXES)):
        raise Misuse(f"No annex is called {unknown[0]!r}.", f"Name some of {', '.join(ANNEXES)}.")
    if json_out is not None and json_out.absolute() == out.absolute():
        raise Misuse("The page and its twin would be one file.", "Give --out and --json-out different names.")
    if str(out) == "-":
        raise Misuse("A dossier goes to a file, not to standard output.", "Name one with --out.")
    for file_name in (out, json_out):
        if file_name is not None:
            require_new(file_name, force=force)
    with open_source(where.text) as opened:
        checked = verify_place(opened, where, authority, head, against)
        proof, site = checked.proof(opened, now), checked.site
        if checked.mirror:
            raise Misuse("This is a coordinator's mirror: it knows no budgets.", "Make the dossier of a site's own ledger.")
        entries = readable_entries(opened, proof.entries)
    audits = [read_audit(path, checked) for path in audit or ()]
    dossier = describe(
        entries,
        proof,
        site=site,
        made=now,
        studies=study_labels(where.text, words=True),
        title=title,
        contact=contact,
        policy=where.policy,
        audits=audits,
        annexes=annexes,
        retention=where.retention,
    )
    if json_out is not None:
        with new_file(json_out, force=force) as file:
            json.dump(dossier, file, ensure_ascii=False, allow_nan=False, indent=1)
    with new_file(out, force=force) as file:
        file.write(render(dossier))
    fields = {"ledger": where.name, "out": out, "json_out": json_out, "valid": proof.valid, "entries": proof.entries}
    print_fields(fields | {"head": proof.head, "fault": proof.fault}, title=f"Dossier of {site}", as_json=as_json)
    if not proof.valid:
        raise typer.Exit(1)


@app.command()
def checkpoint(config: OwnOption = None, as_json: JsonOption = False) -> None:
    """Append what every population has spent by now to the ledger; give its head to somebody, and they can hold you to it."""
    settings = load_participant(config)
    with open_own(settings) as (opened, _):
        number = opened.checkpoint()
    with open_source(settings.state) as reader:
        (entry,) = reader.entries(kind=Kind.CHECKPOINT, first=number)[:1]
    fields = {"entry": entry.seq, "hash": entry.hash.hex(), "up to entry": entry.detail.get("upto")}
    print_fields(fields, title="Checkpoint", as_json=as_json)


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError as error:
        known = [kind.value for kind in Kind]
        raise Misuse(f"There are no entries of the kind {text!r}.", did_you_mean(text, known)) from error


def _require_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise Misuse(f"No entry of the ledger is about a {what} {name!r}.", did_you_mean(name, sorted(known)))


def _require_study(place: str, study: str, names: dict[str, str]) -> None:
    """Refuse a study that no entry is about, rather than one that the other filters leave nothing of."""
    with open_source(place) as opened:
        digests = {entry.study.hex() for entry in opened.entries() if entry.study is not None}
    if not any(_is_study(study, digest, names) for digest in digests):
        known = {names.get(digest, digest[:12]) for digest in digests}
        _require_known("study", study, known)


def _print_fault(name: str, fault: LedgerFault | None, *, as_json: bool) -> None:
    failed: dict[str, Any] = {"ledger": name, "valid": False}
    if fault is not None:
        failed |= {"entry": fault.entry, "fault": fault.message, "advice": fault.advice}
    print_fields(failed, title="Ledger", as_json=as_json)


def _is_study(wanted: str, digest: str, names: dict[str, str]) -> bool:
    return bool(wanted) and (digest.startswith(wanted.lower()) or names.get(digest) == wanted)


def _study(digest: str | None, names: dict[str, str]) -> str | None:
    if digest is None:
        return None
    return f"{digest[:12]} {names[digest]}" if digest in names else digest[:12]


@app.command()
def recover(
    source: Annotated[
        str | None, typer.Option("--from", help="Another copy: a peer's ledger, a mirror, or an export of one.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust-coordinator", help="Accept the coordinator's mirror as the full record of spending since the backup."
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why it is trusted, for the record.")] = "",
    operator: Annotated[str, typer.Option("--operator", help="Who decided that, for the record.")] = "",
    config: OwnOption = None,
    as_json: JsonOption = False,
) -> None:
    """After a restored backup: charge what this site's own receipts show and its ledger does not know.

    A restored site releases nothing before a peer's ledger was given with --from, or the coordinator is trusted.
    """
    if (source is None) is not trust:
        told = "The missing charges have two sources" if trust else "The source of the missing charges is not stated"
        raise Misuse(f"{told}.", "Give exactly one of --from and --trust-coordinator.")
    settings = load_participant(config)
    if not settings.state.exists():
        raise Misuse(f"The ledger {settings.state} does not exist.", "Put the backup back first: veilsum participant restore.")
    if source is None:
        _trust(settings, reason.strip(), operator.strip(), as_json=as_json)
    else:
        _recover(settings, source, as_json=as_json)


def _recover(settings: "ParticipantConfig", source: str, *, as_json: bool) -> None:
    from veilsum_participant.protocol.endorsement import recover_receipts, vouch
    from veilsum_participant.session.client import open_site

    with open_source(source) as others:
        site = open_site(settings)
        try:
            own = others.receipts(participant=site.name)
            entries = recover_receipts(site, own, lambda entry: others.receipts(entry=entry))
            waiting = site.restored() is not None
            obstacle = vouch(site, others)
        finally:
            site.database.close()
    if as_json:
        print_json({"receipts": len(own), "charged": entries, "completed": not obstacle, "obstacle": obstacle})
        return
    numbers = ", ".join(map(str, entries))
    charged = f"{len(entries)}, now ledger entries {numbers}" if entries else "nothing: the ledger knows them all"
    print_fields({"receipts": len(own), "charged": charged}, title="Recovered", as_json=False)
    if waiting:
        print_line(
            f"Still nothing is released. {obstacle}" if obstacle else "The restored ledger is complete: releases go on."
        )


def _trust(settings: "ParticipantConfig", reason: str, operator: str, *, as_json: bool) -> None:
    from veilsum_participant.protocol.endorsement import trust_coordinator
    from veilsum_participant.session.client import open_site

    if not reason or not operator:
        raise Misuse("A reason and an operator are missing.", "Say with --reason why, and with --operator who decided it.")
    site = open_site(settings)
    try:
        entries = trust_coordinator(site, reason, operator)
    finally:
        site.database.close()
    print_fields({"trusted": True, "entries": entries}, title="The coordinator is trusted", as_json=as_json)
    if not as_json:
        print_line("Releases go on once the running or next started participant has read the coordinator's mirror.")
