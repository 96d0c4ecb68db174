"""Reads ``compose.yaml`` into typed services: what our file uses of the Compose specification, and nothing else.

A key that is not known here is refused, so that a service never runs natively without what a container engine would give it.
Nothing is started here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from veilsum_node.config import validate
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
Words = tuple[StrictStr, ...]

MAX_BYTES = 1 << 20

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Z][A-Z0-9_]*)(?::-([^}]*))?\})")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> object:
    match = re.fullmatch(r"(\d+)([smh])", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a whole number of seconds, minutes or hours, for example 30s")
    return int(match[1]) * _UNITS[match[2]]


Seconds = Annotated[float, BeforeValidator(_seconds)]


class Build(Frozen):
    """How an image is made."""

    context: Path
    dockerfile: Path
    args: dict[str, StrictStr] = Field(default_factory=dict)


class Mount(Frozen):
    """A volume, or a file or directory of the host."""

    type: Literal["volume", "bind"]
    source: StrictStr
    target: StrictStr
    read_only: StrictBool = False


class ConfigUse(Frozen):
    """A file of the top-level ``configs``, and where a service sees it."""

    source: StrictStr
    target: StrictStr


class Dependency(Frozen):
    """What must hold of another service before this one starts."""

    condition: Condition


class Healthcheck(Frozen):
    """A command that tells by its status whether a service is ready, or none."""

    test: Words = ()
    disable: StrictBool = False
    interval: Seconds = 30.0
    timeout: Seconds = 30.0
    retries: StrictInt = 3
    start_period: Seconds = 0.0
    start_interval: Seconds = 5.0


class Logging(Frozen):
    """Where a container's output goes."""

    driver: StrictStr
    options: dict[str, StrictStr] = Field(default_factory=dict)


class Service(Frozen):
    """A service. Of its limits and rights only a container engine makes use."""

    image: StrictStr
    build: Build | None = None
    entrypoint: Words = ()
    command: Words = ()
    environment: dict[str, StrictStr] = Field(default_factory=dict)
    configs: tuple[ConfigUse, ...] = ()
    volumes: tuple[Mount, ...] = ()
    networks: Words = ()
    network_mode: Annotated[str, Field(pattern="^(none|service:.+)$")] | None = None
    ports: Words = ()
    expose: Words = ()
    depends_on: dict[str, Dependency] = Field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    profiles: Words = ()
    user: StrictStr
    read_only: StrictBool = False
    cap_drop: Words = ()
    cap_add: Words = ()
    security_opt: Words = ()
    tmpfs: Words = ()
    pids_limit: StrictInt | None = None
    mem_limit: StrictStr | None = None
    shm_size: StrictStr | None = None
    restart: Literal["no", "unless-stopped"] = "no"
    logging: Logging | None = None
    stop_grace_period: Seconds = 10.0
    stop_signal: Literal["SIGTERM", "SIGINT"] = "SIGTERM"

    def host(self) -> str | None:
        """The service whose network this one shares; None for its own."""
        kind, _, name = (self.network_mode or "").partition(":")
        return name if kind == "service" else None

    def container_ports(self) -> Iterator[int]:
        """Ports that it listens on."""
        for port in self.expose:
            yield int(port)
        for published in self.ports:
            yield int(published.rpartition(":")[2])


class ConfigFile(Frozen):
    """A file that services mount."""

    file: Path


class Network(Frozen):
    """A network; ``internal`` ones have no way out of the machine."""

    internal: StrictBool = False


class Volume(Frozen):
    """A named volume."""


class Compose(Frozen):
    """A ``compose.yaml``.

    Attributes:
        directory: that its relative paths start from.
    """

    name: StrictStr
    services: dict[str, Service] = Field(min_length=1)
    configs: dict[str, ConfigFile] = Field(default_factory=dict)
    networks: dict[str, Network] = Field(default_factory=dict)
    volumes: dict[str, Volume] = Field(default_factory=dict)
    directory: Path

    def ordered(self) -> list[str]:
        """Names of the services, each after all that it depends on.

        Raises:
            ConfigurationError: they wait for one another.
        """
        waiting = {name: set(service.depends_on) for name, service in self.services.items()}
        found: list[str] = []
        while waiting:
            free = [name for name, needed in waiting.items() if needed <= set(found)]
            if not free:
                raise ConfigurationError(f"The services {', '.join(waiting)} wait for one another.", "Look at depends_on.")
            found += free
            for name in free:
                del waiting[name]
        return found

    def faults(self) -> Iterator[str]:
        """What refers to something that is not there."""
        for name, service in self.services.items():
            for what, used, known in (
                ("service", [*service.depends_on, *filter(None, [service.host()])], self.services),
                ("network", service.networks, self.networks),
                ("config", [use.source for use in service.configs], self.configs),
                ("volume", [mount.source for mount in service.volumes if mount.type == "volume"], self.volumes),
            ):
                yield from (f"services.{name}: there is no {what} {item!r}" for item in used if item not in known)
            for mount in service.volumes:
                if mount.type == "bind" and not (self.directory / mount.source).exists():
                    yield f"services.{name}: there is no {mount.source}"
        for config, stated in self.configs.items():
            if not (self.directory / stated.file).is_file():
                yield f"configs.{config}: there is no file {stated.file}"


def load_compose(path: Path, environment: Mapping[str, str]) -> Compose:
    """Load a compose file; ``${NAME:-default}`` in it is filled in from ``environment``.

    Raises:
        ConfigurationError: missing, malformed, a key that is not known here, or a reference to what is not there.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}).", "Check the path.") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path}: larger than {MAX_BYTES} bytes.", "Is this a compose file?")
    try:
        raw = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: is not valid YAML.", "`docker compose config` says where.") from error
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: holds no services.", "Is this a compose file?")
    stated = {key: _fill(value, environment) for key, value in raw.items() if not str(key).startswith("x-")}
    compose = validate({**stated, "directory": path.resolve().parent}, Compose, source=str(path))
    if faults := list(compose.faults()):
        raise ConfigurationError(f"{path} has problems:" + "".join(f"\n  {fault}" for fault in faults))
    return compose


def _fill(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, environment) for item in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: "$" if found[0] == "$$" else environment.get(found[1]) or found[2] or "", value)
