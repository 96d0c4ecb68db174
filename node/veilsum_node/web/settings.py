"""``console.toml``, and the one place where a console listens: loopback, or a Unix socket. Every key has a default."""

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from veilsum_node.addresses import is_loopback, join_host_port, split_host_port
from veilsum_node.config import load_toml, located
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen
from veilsum_node.listening import cannot_listen
from veilsum_node.oidc.provider import ProviderSettings
from veilsum_node.telemetry.log_writing import LogSettings

UNIX = "unix:"


def _place(value: str) -> str:
    if value.startswith(UNIX):
        if not Path(value.removeprefix(UNIX)).is_absolute():
            raise ValueError("names a Unix socket by its whole path, as in unix:/run/veilsum/console.sock")
        return value
    host, _ = split_host_port(value, lowest_port=0)
    if not is_loopback(host):
        raise ValueError(
            "a console listens on loopback or a Unix socket only, such as 127.0.0.1:8470 or unix:/run/veilsum/console.sock;"
            " for people elsewhere a proxy with TLS stands before it (docs/console.md)"
        )
    return value


def _origin(value: str) -> str:
    parts = urlsplit(value)
    plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if (
        not parts.netloc
        or "@" in value
        or parts.path not in ("", "/")
        or parts.query
        or not (plain or parts.scheme == "https")
    ):
        raise ValueError("must be https://host, without a path; http:// on loopback only")
    return f"{parts.scheme}://{parts.netloc}"


class RoleGroups(Frozen):
    """The table ``[roles]``: the provider's groups whose members have a role; nobody has one by a login without it."""

    reader: tuple[StrictStr, ...] = ()
    officer: tuple[StrictStr, ...] = ()
    operator: tuple[StrictStr, ...] = ()


class ConsoleSettings(Frozen):
    """A console's own configuration file.

    Attributes:
        listen: ``host:port`` of loopback, or ``unix:/path``; port 0 lets the system choose.
        url: what people's browsers call it, where a proxy stands before it; by default the address that it listens on.
        idle_minutes, hours: after which a session ends: without a click, and whatever is done.
        links: file of the one-time links; by default beside the party's state.
        grafana: address of a Grafana, whose dashboards pages link to.
        record: the authority's directory, or one with a copy of its ``issued/index.jsonl``: who is certified until when, and
            who logged in. The authority's key is neither needed nor wanted there. For a coordinator's console, as is the next.
        requests: folder of the requests to sign that parties sent.
        archive: folder for copies of studies; by default ``archive`` in the coordinator's state.
        provider: an OpenID Connect provider that people log in with; needs the extra ``login``.
        roles: who may what, by the provider's groups.
        log: where the log goes and in which form.
    """

    listen: Annotated[StrictStr, AfterValidator(_place)] = "127.0.0.1:8470"
    url: Annotated[StrictStr, AfterValidator(_origin)] | None = None
    idle_minutes: StrictInt = Field(default=15, ge=1, le=8 * 60)
    hours: StrictInt = Field(default=8, ge=1, le=24)
    links: Path | None = None
    grafana: Annotated[StrictStr, AfterValidator(_origin)] | None = None
    record: Path | None = None
    requests: Path | None = None
    archive: Path | None = None
    provider: ProviderSettings | None = None
    roles: RoleGroups = RoleGroups()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _a_name_for_a_socket(self) -> Self:
        if self.listen.startswith(UNIX) and self.url is None:
            raise ValueError("url is needed beside a Unix socket: the https:// address that the proxy before it answers to")
        return self


def load_console(path: Path, *, demanded: bool) -> ConsoleSettings:
    """Read ``console.toml``; paths in it are relative to it. Without the file every default holds.

    Raises:
        ConfigurationError: it is wrong, or missing and ``demanded``.
    """
    if not demanded and not path.exists():
        return ConsoleSettings()
    return located(load_toml(path, ConsoleSettings), path)


@dataclass(frozen=True)
class Listening:
    """An open socket, and the origin that browsers know it by."""

    socket: socket.socket
    url: str


def open_socket(settings: ConsoleSettings) -> Listening:
    """Listen where the settings say.

    Raises:
        ConfigurationError: the address cannot be listened on, or resolves to another one than loopback.
    """
    try:
        if settings.listen.startswith(UNIX):
            return Listening(_unix(Path(settings.listen.removeprefix(UNIX))), str(settings.url))
        host, port = split_host_port(settings.listen, lowest_port=0)
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not is_loopback(str(address[0])):
            raise ConfigurationError(f"{host} is not this machine's loopback.", "Listen on 127.0.0.1 or a Unix socket.")
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        raise cannot_listen("The console cannot listen", settings.listen, error) from error
    return Listening(opened, settings.url or f"http://{join_host_port(host, opened.getsockname()[1])}")


def _unix(path: Path) -> socket.socket:
    """A socket for its user and group, in the place of one that a killed console left."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    former = os.umask(0o117)
    try:
        opened.bind(str(path))
    finally:
        os.umask(former)
    return opened
