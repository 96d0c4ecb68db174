"""The socket on which a party's metrics are served, and the file that tells its address."""

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

from veilsum_node.addresses import split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.listening import cannot_listen
from veilsum_node.phrases import unwritable
from veilsum_node.telemetry.endpoint_settings import MetricsSettings

QUEUE = 16
"""Connections that may wait to be taken."""


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
    return cannot_listen("The metrics cannot be served", settings.listen, error)


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
