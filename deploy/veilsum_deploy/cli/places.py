"""Which ledger a command means: a file or URL that is named, or that of a configuration; and the site's own, to write to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_deploy.ledgers import Checked, check, load_authority
from veilsum_privacy.config import read_toml
from veilsum_privacy.errors import Misuse
from veilsum_privacy.identity.tls import AUTHORITY_FILE

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from veilsum_participant.config import ParticipantConfig
    from veilsum_privacy.ledger import Ledger, LedgerReader

CONFIG = Path("participant.toml")


@dataclass(frozen=True)
class Place:
    """Where a ledger lies.

    Attributes:
        text: a path or a URL, which may hold a password.
        authority: the certificate that the owner's configuration names, if one was used.
    """

    text: str
    authority: Path | None = None

    @property
    def name(self) -> str:
        """The place as it may be shown."""
        if "://" not in self.text:
            return self.text
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.text).render_as_string(hide_password=True)
        except (ArgumentError, ValueError):
            return "the database"


def find_ledger(place: str | None, config: Path | None) -> Place:
    """The ledger that is named, or else that of a participant's or coordinator's configuration.

    Raises:
        Misuse: both are given, or the configuration is wrong.
    """
    if place is not None:
        if config is not None:
            raise Misuse("LEDGER and --config both name a ledger.", "Give one of them.")
        return Place(place)
    path = CONFIG if config is None else config
    if "coordinator" not in read_toml(path):  # the one key that a participant's configuration always has
        from veilsum_coordinator.settings import load_coordinator_config

        own = load_coordinator_config(path)
        return Place(own.database_place, own.identity / AUTHORITY_FILE)
    settings = load_participant(path)
    return Place(str(settings.state), settings.identity / AUTHORITY_FILE)


def load_participant(config: Path | None) -> ParticipantConfig:
    """The participant's configuration.

    Raises:
        ConfigurationError: missing or wrong.
    """
    from veilsum_participant.config import load_participant_config

    return load_participant_config(CONFIG if config is None else config)


def verify_place(
    opened: LedgerReader, place: Place, authority: Path | None, head: str | None, against: Sequence[str] | None
) -> Checked:
    """Verify a ledger by what the command line gives; by the configured authority where it names none.

    Raises:
        Misuse: the head is no hash, or a file cannot be read.
    """
    trusted = authority if authority is not None or place.authority is None else place.authority
    return check(
        opened,
        authority=None if trusted is None else load_authority(trusted),
        head=None if head is None else _hash(head),
        against=against or (),
    )


@contextmanager
def open_own(settings: ParticipantConfig) -> Iterator[tuple[Ledger, Engine]]:
    """The site's ledger to write to, signing with the site's key, and its database."""
    from veilsum_participant.client import open_ledger
    from veilsum_privacy.database import open_database
    from veilsum_privacy.identity import Role, load_credentials

    credentials = load_credentials(settings.identity, _now(), Role.PARTICIPANT)
    engine = open_database(settings.state)
    try:
        yield open_ledger(engine, credentials, _now), engine
    finally:
        engine.dispose()


def _hash(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise Misuse("--head is not a hash of 64 hexadecimal digits.", "Copy it from `veilsum ledger show --json`.")
    return value


def _now() -> int:
    return int(time.time())
