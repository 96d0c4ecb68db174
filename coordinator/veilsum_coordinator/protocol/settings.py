"""``coordinator.toml``: where the coordinator listens and keeps its state, and how long it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, model_validator

from veilsum_node.addresses import address_to_listen_on
from veilsum_node.config import located
from veilsum_node.fields import Frozen
from veilsum_node.overrides import Loaded, load_settings
from veilsum_node.telemetry.endpoint_settings import MetricsSettings
from veilsum_node.telemetry.log_writing import LogSettings

DATABASE_VARIABLE = "VEILSUM_DATABASE"
"""Overrides the key ``database`` as ``VEILSUM__DATABASE`` does: a URL with a password belongs into no configuration file."""


class Waits(Frozen):
    """How long the coordinator waits in each phase, in seconds.

    Attributes:
        enrol: for participants to enrol or refuse.
        seal: for boxes, and again for everyone to open them.
        contribute: for an attempt's uploads.
        check: for the answers about a complete sum, before anybody is charged.
        consent: for the consents once all have answered.
        grace: for a participant whose connection broke, before a running attempt goes on without it; and for the answers of
            the others once so many refused a study that it cannot begin.
        database: for a database server that is away, before what needs it fails.
    """

    enrol: int = Field(default=3600, ge=1)
    seal: int = Field(default=600, ge=1)
    contribute: int = Field(default=3600, ge=1)
    check: int = Field(default=600, ge=1)
    consent: int = Field(default=600, ge=1)
    grace: int = Field(default=30, ge=0)
    database: int = Field(default=600, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, value: Any) -> Any:
        """Files that version 0.2 wrote hold ``decrypt``: nothing waits for that any more."""
        return {key: item for key, item in value.items() if key != "decrypt"} if isinstance(value, dict) else value


class TlsConfig(Frozen):
    """A TLS certificate that is not the federation's: of a hospital's authority, or a public one.

    Who the coordinator is, it proves by the federation's certificate all the same, and so do its callers.

    Attributes:
        certificate: PEM; certificates of intermediate authorities follow the server's own.
        key: its private key in PEM, not encrypted, mode 0600.
    """

    certificate: Path
    key: Path


class Retention(Frozen):
    """The table ``[retention]``: what is deleted by itself. The mirror never is.

    Attributes:
        studies: days after a study has expired when the coordinator deletes it, with its sums and results; None to keep all.
        keep_proofs: whether the proofs of these stay, in ``state/proofs``.
    """

    studies: int | None = Field(default=None, ge=0, le=36500)
    keep_proofs: bool = True


class CoordinatorConfig(Frozen):
    """A coordinator's configuration file.

    Attributes:
        listen: host:port; port 0 lets the system choose.
        identity: directory of key, certificate and authority.
        state: directory of the results, and of the journal where no database is named.
        database: URL of a PostgreSQL database for journal and mirror, postgresql://user@host/name; by default a file in
            ``state``.
        ready_file: where the chosen address is written once the server listens.
        log: where the log goes and in which form.
        metrics: where metrics, health and readiness are served; nowhere without it.
        tls: a TLS certificate of another authority, whose clients need ``ca_bundle``; the federation's own by default.
        retention: what is deleted by itself, and when.
        max_peer_streams: open calls one peer may hold at once.
    """

    listen: Annotated[str, AfterValidator(address_to_listen_on)] = "127.0.0.1:8461"
    identity: Path = Path("identity")
    state: Path = Path("state")
    database: SecretStr | None = None
    ready_file: Path | None = None
    log: LogSettings = LogSettings()
    metrics: MetricsSettings | None = None
    tls: TlsConfig | None = None
    waits: Waits = Waits()
    retention: Retention = Retention()
    max_peer_streams: int = Field(default=16, ge=4, le=1024)

    @property
    def database_place(self) -> str:
        """Where journal and mirror lie: a URL, or a file's path. May hold a password: never log it."""
        return self.database.get_secret_value() if self.database is not None else str(self.state / "coordinator.db")


def read_coordinator_settings(path: Path) -> Loaded[CoordinatorConfig]:
    """Read ``coordinator.toml`` and the environment, paths as they are written, with where each value came from.

    Raises:
        ConfigurationError: missing, malformed, or a key or variable is unknown or out of range.
    """
    return load_settings(path, CoordinatorConfig, aliases={DATABASE_VARIABLE: ("database",)})


def load_coordinator_config(path: Path) -> CoordinatorConfig:
    """Load ``coordinator.toml`` and what the environment overrides; relative paths are taken from the file's directory.

    Raises:
        ConfigurationError: missing, malformed, or a key or variable is unknown or out of range.
    """
    return located(read_coordinator_settings(path).config, path)
