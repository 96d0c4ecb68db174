"""Which coordinator an analyst or operator means, and as whom: options and environment first, then ``analyst.toml``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from veilsum_node.config import load_toml
from veilsum_node.errors import Misuse
from veilsum_node.transport.route import Route
from veilsum_node.transport.route_settings import RouteSettings

SETTINGS = Path("analyst.toml")


class AnalystConfig(RouteSettings):
    """An analyst's or operator's settings, with the keys of :class:`RouteSettings` beside these.

    Attributes:
        coordinator: host:port of the coordinator.
        identity: directory of key, certificate and authority.
    """

    coordinator: str | None = Field(default=None, pattern=r"^[^\s:]+:\d{1,5}$")
    identity: Path = Path("identity")


@dataclass(frozen=True)
class Access:
    """A coordinator's address, the way to it, and the caller's identity directory."""

    address: str
    identity: Path
    way: RouteSettings = field(default_factory=RouteSettings)

    @property
    def route(self) -> Route:
        """The way to the coordinator.

        Raises:
            ConfigurationError: a file that it needs is wrong.
        """
        return self.way.route_to(self.address)


def resolve_access(address: str | None, identity: Path | None, settings: Path = SETTINGS) -> Access:
    """Fill in what is not given from the settings file, if there is one; its paths are taken from its directory.

    Proxy and CA bundle are always those of the file: they belong to the place, not to one coordinator.

    Raises:
        ConfigurationError: the settings file is wrong.
        Misuse: address or identity is named nowhere.
    """
    way = RouteSettings()
    if settings.is_file():
        config, base = load_toml(settings, AnalystConfig), settings.resolve().parent
        address = address or config.coordinator
        identity = identity or base / config.identity
        way = config.model_copy(update=config.route_paths(base))
    if not address:
        raise Misuse("No coordinator is named.", f"Give --coordinator, set VEILSUM_COORDINATOR, or name it in {SETTINGS}.")
    if identity is None:
        raise Misuse("No identity is named.", f"Give --identity, set VEILSUM_IDENTITY, or name it in {SETTINGS}.")
    return Access(address, identity, way)


def resolve_identity(identity: Path | None, settings: Path = SETTINGS) -> Path:
    """The caller's identity directory: as given, or that of the settings file.

    Raises:
        ConfigurationError: the settings file is wrong.
        Misuse: it is named nowhere.
    """
    if identity is not None:
        return identity
    if not settings.is_file():
        raise Misuse("No authority is named.", f"Give --authority or --identity, or name your identity in {SETTINGS}.")
    return settings.resolve().parent / load_toml(settings, AnalystConfig).identity
