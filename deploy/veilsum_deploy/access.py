"""Which coordinator an analyst or operator means, and as whom: options and environment first, then ``analyst.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from veilsum_privacy.config import load_toml
from veilsum_privacy.errors import Misuse
from veilsum_privacy.schema import Frozen

SETTINGS = Path("analyst.toml")


class AnalystConfig(Frozen):
    """An analyst's or operator's settings.

    Attributes:
        coordinator: host:port of the coordinator.
        identity: directory of key, certificate and authority.
    """

    coordinator: str | None = Field(default=None, pattern=r"^[^\s:]+:\d{1,5}$")
    identity: Path = Path("identity")


@dataclass(frozen=True)
class Access:
    """A coordinator's address and the caller's identity directory."""

    address: str
    identity: Path


def resolve_access(address: str | None, identity: Path | None, settings: Path = SETTINGS) -> Access:
    """Fill in what is not given from the settings file, if there is one; its paths are taken from its directory.

    Raises:
        ConfigurationError: the settings file is wrong.
        Misuse: address or identity is named nowhere.
    """
    if (address is None or identity is None) and settings.is_file():
        config = load_toml(settings, AnalystConfig)
        address = address or config.coordinator
        identity = identity or settings.resolve().parent / config.identity
    if not address:
        raise Misuse("No coordinator is named.", f"Give --coordinator, set VEILSUM_COORDINATOR, or name it in {SETTINGS}.")
    if identity is None:
        raise Misuse("No identity is named.", f"Give --identity, set VEILSUM_IDENTITY, or name it in {SETTINGS}.")
    return Access(address, identity)
