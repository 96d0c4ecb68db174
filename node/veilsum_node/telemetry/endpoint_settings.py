"""Where a party's metrics are served, and whether it lives: what a process has to know that serves none itself."""

import ipaddress
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from veilsum_node.addresses import address_to_listen_on, split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen
from veilsum_node.phrases import unwritable

QUEUE = 16
"""Connections that may wait to be taken."""


class MetricsSettings(Frozen):
    """The table ``[metrics]`` of a configuration file; without it the endpoint does not start.

    Attributes:
        listen: host:port; port 0 lets the system choose. On another host than loopback the three files below are demanded.
        ready_file: where the chosen address is written once the endpoint listens.
        certificate: PEM file of the endpoint's certificate and what leads to its authority; a renewed one is taken up.
        key: PEM file of its private key, readable by its owner only.
        token_file: file of one token of at least 16 characters, readable by its owner only; who asks for the metrics shows it
            as ``Authorization: Bearer``.
    """

    listen: Annotated[str, AfterValidator(address_to_listen_on)] = "127.0.0.1:9464"
    ready_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None


class Heartbeat:
    """Tells whether a loop still turns: the loop calls :meth:`beat`, the endpoint asks :meth:`alive`.

    Args:
        seconds: how long the loop may take for one turn.
    """

    def __init__(self, seconds: float = 120.0) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def beat(self) -> None:
        """The loop has turned."""
        self._last = time.monotonic()

    def alive(self) -> bool:
        """Whether it turned lately."""
        return time.monotonic() - self._last <= self._seconds


def write_address(path: Path, address: str, key: str) -> None:
    """Write a listener's address where others wait for it, whole or not at all.

    Raises:
        ConfigurationError: the file that the configuration's ``key`` names cannot be written.
    """
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(address)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigurationError(f"{path} {unwritable(error)}.", f"Check {key}.") from error


def bound(settings: MetricsSettings) -> socket.socket:
    """A socket that listens where the metrics are to be served, for a process that may not make one.

    Raises:
        ConfigurationError: the address is not safe as configured, or cannot be listened on.
    """
    family, place = resolved(settings)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(QUEUE)
    except OSError as error:
        made.close()
        raise unbound(settings, error) from error
    return made


def unbound(settings: MetricsSettings, error: OSError) -> ConfigurationError:
    advice = "Choose a free port, or 0 to let the system choose."
    return ConfigurationError(f"The metrics cannot be served on {settings.listen} ({error.strerror}).", advice)


def resolved(settings: MetricsSettings) -> tuple[socket.AddressFamily, Any]:
    """The address to bind, and a refusal where it is not safe as configured."""
    host, port = split_host_port(settings.listen, lowest_port=0)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"The host of metrics.listen is not known: {settings.listen}.", "Name an address.") from error
    family, _, _, _, place = found[0]
    if not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
        missing = [name for name in ("certificate", "key", "token_file") if getattr(settings, name) is None]
        if missing:
            raise ConfigurationError(
                f"metrics.listen {settings.listen} is not a loopback address; {_names(missing)} missing.",
                "Set metrics.certificate, metrics.key and metrics.token_file, or listen on 127.0.0.1.",
            )
    return family, place


def _names(missing: list[str]) -> str:
    keys = [f"metrics.{name}" for name in missing]
    return f"{', '.join(keys)} {'is' if len(keys) == 1 else 'are'}"
