"""The command ``veilsum ledger recover``: after a restored backup, what others hold of this site's spending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from veilsum_node.errors import Misuse
from veilsum_node.process.console import JsonOption, print_fields, print_json, print_line
from veilsum_participant.cli.places import OwnOption, load_participant
from veilsum_privacy.dossier.ledgers import open_source

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig


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
        raise Misuse("The source of the missing charges is not stated.", "Give exactly one of --from and --trust-coordinator.")
    settings = load_participant(config)
    if not settings.state.exists():
        raise Misuse(f"The ledger {settings.state} does not exist.", "Put the backup back first: veilsum participant restore.")
    if source is None:
        _trust(settings, reason.strip(), operator.strip(), as_json=as_json)
    else:
        _recover(settings, source, as_json=as_json)


def _recover(settings: ParticipantConfig, source: str, *, as_json: bool) -> None:
    from veilsum_participant.protocol.endorsement import vouch
    from veilsum_participant.protocol.recovery import recover_receipts
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


def _trust(settings: ParticipantConfig, reason: str, operator: str, *, as_json: bool) -> None:
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
