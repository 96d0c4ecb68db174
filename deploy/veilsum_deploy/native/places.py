"""Where a container's paths and addresses lie on this machine, and texts rewritten from one to the other.

A volume becomes a directory, a mounted file a rewritten copy, ``service:port`` an address on loopback whose port the system
chose. Nothing else in a command, a variable or a file is changed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from veilsum_deploy.native.compose import Compose, Service
from veilsum_node.errors import Misuse

LOOPBACK = "127.0.0.1"
_OWN_HOSTS = ("0.0.0.0", LOOPBACK, "localhost")  # noqa: S104  what services of one network call themselves
_ADDRESS = (r"(?<![\w.-])", r"(?!\d)")
_PATH = (r"(?<![\w./-])", r"(?![\w-]|\.\w)")
_SAFE = re.compile(r"[A-Za-z0-9._/-]+")


@dataclass(frozen=True)
class Places:
    """A compose file's services on this machine.

    Attributes:
        compose: the file.
        directory: holds ``volumes`` and ``configs``.
        services: those that run here.
        ports: by service and the port in its container.
    """

    compose: Compose
    directory: Path
    services: tuple[str, ...]
    ports: Mapping[tuple[str, int], int]

    def address(self, service: str, port: int) -> str:
        """host:port of a service on this machine."""
        return f"{LOOPBACK}:{self.ports[service, port]}"

    def volume(self, name: str) -> Path:
        """Directory of a named volume."""
        return self.directory / "volumes" / name

    def rewriter(self, name: str) -> Callable[[str], str]:
        """What makes a service's texts ones of this machine."""
        service = self.compose.services[name]
        paths = {mount.target: self._source(mount.type, mount.source) for mount in service.volumes}
        paths |= {use.target: self.config(name, use.source) for use in service.configs}
        addresses = {f"{host}:{port}": self.address(host, port) for host, port in self.ports}
        for other in self._together(name):
            for port in self.compose.services[other].container_ports():
                addresses |= {f"{host}:{port}": self.address(other, port) for host in _OWN_HOSTS}
        places = {target: str(path) for target, path in paths.items()}
        return lambda text: _replace(_replace(text, addresses, *_ADDRESS), places, *_PATH)

    def config(self, service: str, source: str) -> Path:
        """A service's copy of a mounted file."""
        return self.directory / "configs" / service / self.compose.configs[source].file.name

    def furnish(self) -> None:
        """Make the volumes and the rewritten copies."""
        for name in self.services:
            service, rewrite = self.compose.services[name], self.rewriter(name)
            for mount in service.volumes:
                if mount.type == "volume":
                    self.volume(mount.source).mkdir(parents=True, exist_ok=True, mode=0o700)
            for use in service.configs:
                copy = self.config(name, use.source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(rewrite((self.compose.directory / self.compose.configs[use.source].file).read_text()))

    def _together(self, name: str) -> list[str]:
        """Services that run here and share one loopback: this one, whose network it uses, and who uses its."""
        services = {other: self.compose.services[other].host() or other for other in self.services}
        return [other for other, host in services.items() if host == services[name]]

    def _source(self, kind: str, source: str) -> Path:
        return self.volume(source) if kind == "volume" else (self.compose.directory / source).resolve()


def lay_out(compose: Compose, directory: Path, services: Sequence[str]) -> Places:
    """Choose ports for the services and where everything lies.

    Raises:
        Misuse: the directory's path has characters that some program's configuration would read as its own.
    """
    place = directory.resolve()
    if not _SAFE.fullmatch(str(place)):
        raise Misuse(f"The path {place} has characters other than letters, digits, '.', '_' and '-'.", "Name another.")
    wanted = [(name, port) for name in services for port in compose.services[name].container_ports()]
    return Places(compose, place, tuple(services), dict(zip(wanted, free_ports(len(wanted)), strict=True)))


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nothing listens on now; all different."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in held]


def listening(address: str) -> bool:
    """Whether something listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


def mounted(service: Service, target: str) -> str:
    """Name of the volume that a service mounts at a path."""
    return next(mount.source for mount in service.volumes if mount.target == target)


def _replace(text: str, known: Mapping[str, str], before: str, after: str) -> str:
    """Replace whole paths or addresses, the longest that fits first."""
    if not known:
        return text
    words = "|".join(re.escape(word) for word in sorted(known, key=len, reverse=True))
    return re.sub(f"{before}(?:{words}){after}", lambda found: known[found[0]], text)
