"""``coordinator.toml``: where the coordinator listens and keeps its state, and how long it waits."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, SecretStr

from veilsum_privacy.config import load_toml
from veilsum_privacy.schema import Frozen

DATABASE_VARIABLE = "VEILSUM_DATABASE"
"""Environment variable that overrides the key ``database``: a URL with a password belongs into no file."""


class Waits(Frozen):
    """How long the coordinator waits in each phase, in seconds.

    Attributes:
        enrol: for participants to enrol or refuse.
        seal: for boxes, and again for everyone to open them.
        contribute: for an attempt's uploads.
        consent: for the consents of a complete attempt.
        decrypt: for two decryptions.
        grace: for a participant whose connection broke, before a running attempt goes on without it.
    """

    enrol: int = Field(default=3600, ge=1)
    seal: int = Field(default=600, ge=1)
    contribute: int = Field(default=3600, ge=1)
    consent: int = Field(default=600, ge=1)
    decrypt: int = Field(default=600, ge=1)
    grace: int = Field(default=30, ge=0)


class CoordinatorConfig(Frozen):
    """A coordinator's configuration file.

    Attributes:
        listen: host:port; port 0 lets the system choose.
        identity: directory of key, certificate and authority.
        state: directory of the results, and of the journal where no database is named.
        database: URL of a PostgreSQL database for journal and mirror, postgresql://user@host/name; by default a file in
            ``state``.
        ready_file: where the chosen address is written once the server listens.
        max_peer_streams: open calls one peer may hold at once.
    """

    listen: str = Field(default="127.0.0.1:8461", pattern=r"^[^\s]+:\d{1,5}$")
    identity: Path = Path("identity")
    state: Path = Path("state")
    database: SecretStr | None = None
    ready_file: Path | None = None
    log: Path | None = None
    waits: Waits = Waits()
    max_peer_streams: int = Field(default=16, ge=4, le=1024)

    @property
    def database_place(self) -> str:
        """Where journal and mirror lie: a URL, or a file's path. May hold a password: never log it."""
        return self.database.get_secret_value() if self.database is not None else str(self.state / "coordinator.db")


def load_coordinator_config(path: Path) -> CoordinatorConfig:
    """Load ``coordinator.toml``; relative paths are taken from its directory, ``VEILSUM_DATABASE`` overrides ``database``.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    config = load_toml(path, CoordinatorConfig)
    base = path.resolve().parent
    override = os.environ.get(DATABASE_VARIABLE)
    return config.model_copy(
        update={
            "database": SecretStr(override) if override else config.database,
            "identity": base / config.identity,
            "state": base / config.state,
            "ready_file": base / config.ready_file if config.ready_file is not None else None,
            "log": base / config.log if config.log is not None else None,
        }
    )
