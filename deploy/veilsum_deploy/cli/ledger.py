"""``veilsum ledger``: the site's commands, which here also find a coordinator's mirror by its configuration."""

from __future__ import annotations

from pathlib import Path

from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_participant.cli.additions import ADDITIONS
from veilsum_participant.cli.ledger import app

__all__ = ["app"]


def coordinator_ledger(path: Path) -> tuple[str, Path]:
    """Where the mirror of a ``coordinator.toml`` lies, and its authority's certificate.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    from veilsum_coordinator.protocol.settings import load_coordinator_config

    own = load_coordinator_config(path)
    return own.database_place, own.identity / AUTHORITY_FILE


ADDITIONS.coordinator_ledger = coordinator_ledger
