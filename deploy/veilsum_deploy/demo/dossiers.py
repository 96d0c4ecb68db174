"""What the demo hands to a third party: every hospital's dossier and export, the mirror's export, the authority's certificate.

The verification is then repeated from these files alone, as somebody would who has nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_node.identity.files import read_file, write_new
from veilsum_node.identity.provision import Kit, Party
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_participant.ledgers import check, load_authority, open_source, readable_entries, study_labels
from veilsum_participant.new_files import new_file
from veilsum_privacy.dossier import describe, render
from veilsum_privacy.ledger import write_jsonl

FOLDER = "dossiers"
MIRROR = "coordinator.jsonl"


def write_dossiers(kit: Kit, clock: Callable[[], int]) -> dict[str, dict[str, Any]]:
    """Write everything into a new folder, verify it there, and say for each hospital where its files lie.

    Raises:
        HostileInput: a ledger does not verify.
        StateError: a file cannot be written.
    """
    folder = kit.directory / FOLDER
    folder.mkdir()
    coordinator = kit.coordinator
    write_new(folder / AUTHORITY_FILE, read_file(coordinator.identity / AUTHORITY_FILE, "authority's certificate"))
    with open_source(coordinator.directory / "state" / "coordinator.db") as mirror, new_file(folder / MIRROR) as file:
        write_jsonl(mirror, file)
    return {party.name: _write_dossier(party, folder, clock()) for party in kit.participants}


def _write_dossier(party: Party, folder: Path, now: int) -> dict[str, Any]:
    state = party.directory / "participant.db"
    page, twin, export = (folder / f"{party.name}.{ending}" for ending in ("html", "json", "jsonl"))
    with open_source(state) as ledger, new_file(export) as file:
        write_jsonl(ledger, file)
    with open_source(export) as ledger:
        checked = check(ledger, authority=load_authority(folder / AUTHORITY_FILE), against=[folder / MIRROR])
        if checked.verification is None:
            raise checked.fault or HostileInput(f"The ledger of {party.name} does not verify.")
        proof = checked.proof(ledger, now)
        entries = readable_entries(ledger, proof.entries)
    dossier = describe(entries, proof, site=party.name, made=now, studies=study_labels(state))
    with new_file(twin) as file:
        json.dump(dossier, file, ensure_ascii=False, allow_nan=False, indent=1)
    with new_file(page) as file:
        file.write(render(dossier))
    return {
        "dossier": str(page),
        "twin": str(twin),
        "export": str(export),
        "head": proof.head,
        "entries": proof.entries,
        "receipts": proof.receipts,
    }
