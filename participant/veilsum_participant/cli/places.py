"""Which ledger a command means: a file or URL that is named, or that of a configuration; and the site's own, to write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilsum_node.database import Database
from veilsum_node.errors import Misuse
from veilsum_node.identity.certificate import load_authority
from veilsum_node.identity.tls import AUTHORITY_FILE
from veilsum_node.overrides import overridden_tables
from veilsum_node.process.steady_clock import now
from veilsum_privacy.dossier.ledgers import Checked, check

if TYPE_CHECKING:
    from veilsum_participant.cli.additions import Additions
    from veilsum_participant.settings.config import ParticipantConfig
    from veilsum_privacy.ledger import Ledger, LedgerReader


CONFIG = Path("participant.toml")

LedgerArgument = Annotated[
    str | None,
    typer.Argument(help="A state file or an export; default: the ledger of --config.", metavar="[LEDGER]", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The participant's configuration, or the coordinator's.", show_default=str(CONFIG)),
]
OwnOption = Annotated[Path | None, typer.Option("--config", help="The participant's configuration.", show_default=str(CONFIG))]

_COORDINATOR_KEYS = {"listen", "database", "waits", "ready_file", "max_peer_streams"}


@dataclass(frozen=True)
class LedgerPlace:
    """Where a ledger lies.

    Attributes:
        text: a path or a URL, which may hold a password.
        authority: the certificate that the owner's configuration names, if one was used.
        policy: of that configuration, as plain values; a participant's only.
        retention: days by what is kept, of that configuration.
    """

    text: str = field(repr=False)
    authority: Path | None = None
    policy: Mapping[str, Any] | None = field(default=None, repr=False)
    retention: Mapping[str, int | None] | None = None

    @property
    def name(self) -> str:
        """The place as it may be shown."""
        if "://" not in self.text:
            return "the database" if "@" in self.text and ":" in self.text else self.text  # a URL that lost its scheme
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.text).render_as_string(hide_password=True)
        except (ArgumentError, ValueError):
            return "the database"


def find_ledger(place: str | None, config: Path | None, additions: Additions | None = None) -> LedgerPlace:
    """The ledger that is named, or else that of a configuration; ``additions`` read a coordinator's.

    Raises:
        Misuse: both are given, or the configuration is wrong.
    """
    if place is not None:
        if config is not None:
            raise Misuse("LEDGER and --config both name a ledger.", "Give one of them.")
        return LedgerPlace(place)
    path = _existing(config)
    keys = overridden_tables(path)
    if "coordinator" not in keys:  # the one key that a participant's configuration always has
        if keys and not keys & (_COORDINATOR_KEYS | {"state", "identity", "log"}):
            advice = "Name participant.toml or coordinator.toml with --config, a state file or an export without it."
            raise Misuse(f"{path} is not a configuration of a participant or coordinator.", advice)
        if additions is None:
            raise Misuse(f"{path} is a coordinator's configuration.", "This installation is a participant's; use veilsum.")
        return LedgerPlace(*additions.coordinator_ledger(path))
    settings = load_participant(path)
    policy = settings.policy.model_dump(mode="json")
    retention = {**settings.retention.model_dump(), "log_days": settings.log.days}
    return LedgerPlace(str(settings.state), settings.identity / AUTHORITY_FILE, policy, retention)


def load_participant(config: Path | None) -> ParticipantConfig:
    """The participant's configuration.

    Raises:
        Misuse: missing, wrong, or a coordinator's.
    """
    from veilsum_participant.settings.config import load_participant_config

    path = _existing(config)
    keys = overridden_tables(path)
    if "coordinator" not in keys and keys & _COORDINATOR_KEYS:
        raise Misuse(f"{path} is a coordinator's configuration.", "Its mirror is only read: give --config a participant's.")
    return load_participant_config(path)


def _existing(config: Path | None) -> Path:
    if config is None and not CONFIG.exists():
        advice = "Run this in the participant's directory, or name its configuration with --config, or a ledger."
        raise Misuse(f"This directory has no {CONFIG}.", advice)
    return CONFIG if config is None else config


def verify_place(
    opened: LedgerReader, place: LedgerPlace, authority: Path | None, head: str | None, against: Sequence[str] | None
) -> Checked:
    """Verify a ledger by what the command line gives; by the configured authority where it names none.

    Raises:
        Misuse: the head is not a hash, or a file cannot be read.
    """
    trusted = authority if authority is not None or place.authority is None else place.authority
    return check(
        opened,
        authority=None if trusted is None else load_authority(trusted),
        head=None if head is None else _hash(head),
        against=against or (),
    )


@contextmanager
def open_own(settings: ParticipantConfig) -> Iterator[tuple[Ledger, Database]]:
    """The site's ledger to write to, signing with the site's key, and its database."""
    from veilsum_node.database import open_database
    from veilsum_node.identity import Role, load_credentials
    from veilsum_participant.session.client import open_ledger

    credentials = load_credentials(settings.identity, now(), Role.PARTICIPANT)
    with open_database(settings.state) as database:
        yield open_ledger(database, credentials, now, same_key=True), database


def _hash(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise Misuse("--head is not a hash of 64 hexadecimal digits.", "`veilsum ledger verify` and every dossier show it.")
    return value
