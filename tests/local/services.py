"""The compose file's services on this machine: where their paths and addresses lie, and the commands that run them.

The file is read by Compose's own front end, a development tool. A volume becomes a directory, a mounted file a rewritten copy,
``service:port`` an address on loopback whose port the system chose; nothing else in a command, a variable or a file is
changed. Our images become this interpreter with the image's package, others the program of the same name.
"""

import graphlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from local.processes import Command
from local.tools import find_tool
from veilsum_node.errors import ConfigurationError, Misuse, StateError, raising

Service = Mapping[str, Any]

OURS = {"veilsum-coordinator": "veilsum_deploy.cli", "veilsum-participant": "veilsum_participant.cli"}
"""Our images, and the module of the command that each starts."""

TOOLS = {"prom/prometheus": "prometheus", "prom/alertmanager": "alertmanager"}
"""Others' images, and the program that each starts."""

POSTGRES = "postgres"
LEFT_OUT = frozenset({"grafana/grafana"})
"""Images whose programs a checkout does not fetch."""

LOOPBACK = "127.0.0.1"
READ_SECONDS = 60.0

_OWN_HOSTS = ("0.0.0.0", LOOPBACK, "localhost")  # noqa: S104  what services of one network call themselves
_ADDRESS = (r"(?<![\w.-])", r"(?!\d)")
_PATH = (r"(?<![\w./-])", r"(?![\w-]|\.\w)")
_SAFE = re.compile(r"[A-Za-z0-9._/-]+")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "TMPDIR")  # of our own environment


def read_compose(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What Compose understands of a file, variables filled in from ``environment``, in the form of its ``config``.

    Raises:
        ConfigurationError: Compose refuses the file.
        StateError: Compose is not installed.
    """
    program = Path(sys.executable).with_name("docker-compose")
    words = [str(program), "--file", str(path), "--profile", "*", "config", "--format", "json"]
    clean = {"HOME": "/nonexistent", "PATH": os.defpath, **environment}
    with raising(StateError("Compose's front end is not installed.", "Run make venv: it is a development tool."), on=OSError):
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=READ_SECONDS, env=clean)
    if done.returncode != 0:
        raise ConfigurationError(f"{path} is not a compose file: {done.stderr.strip()}")
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def image_name(service: Service) -> str:
    """An image's name without tag and digest."""
    return str(service["image"]).partition("@")[0].partition(":")[0]


def container_ports(service: Service) -> Iterator[int]:
    """Ports that a service listens on."""
    yield from (int(port) for port in service.get("expose", ()))
    yield from (int(port["target"]) for port in service.get("ports", ()))


def seconds(text: str) -> float:
    """A duration as Compose writes it, such as 1m30s."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


class Services:
    """A compose file's services on this machine.

    Args:
        compose: the file, as :func:`read_compose` returns it.
        directory: will hold ``volumes``, ``configs`` and ``logs``.

    Attributes:
        all: what the file says of each service.
        here: names of those that run here, each after what it depends on.
        left_out: names of those that have no program here.
        ports: on loopback, by service and the port in its container.

    Raises:
        Misuse: the directory's path has characters that some program's configuration would read as its own.
        StateError: a program is missing, or an image is not known.
    """

    def __init__(self, compose: Mapping[str, Any], directory: Path) -> None:
        self.directory = directory.resolve()
        if not _SAFE.fullmatch(str(self.directory)):
            told = f"The path {self.directory} has characters other than letters, digits, '.', '_' and '-'."
            raise Misuse(told, "Name another.")
        self.all: dict[str, Service] = compose["services"]
        self._files = {name: Path(item["file"]) for name, item in compose.get("configs", {}).items()}
        order = graphlib.TopologicalSorter({name: service.get("depends_on", {}) for name, service in self.all.items()})
        self.here, self.left_out = list[str](), list[str]()
        for name in order.static_order():
            (self.here if self._runs(name) else self.left_out).append(name)
        wanted = [(name, port) for name in self.here for port in container_ports(self.all[name])]
        self.ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))

    def _runs(self, name: str) -> bool:
        image = image_name(self.all[name])
        if image in TOOLS and find_tool(TOOLS[image]) is None:
            raise StateError(f"The program {TOOLS[image]} is not on this machine.", "Run `make tools`.")
        if image not in {*OURS, *TOOLS, POSTGRES, *LEFT_OUT}:
            raise StateError(f"Nothing is known of the image {image} of the service {name}.", "Leave the service out.")
        return image not in LEFT_OUT

    def of_image(self, image: str) -> list[str]:
        """Names of the services of an image."""
        return [name for name, service in self.all.items() if image_name(service) == image]

    def address(self, service: str, port: int) -> str:
        """host:port of a service on this machine."""
        return f"{LOOPBACK}:{self.ports[service, port]}"

    def volume(self, name: str) -> Path:
        """Directory of a named volume."""
        return self.directory / "volumes" / name

    def config(self, service: str, source: str) -> Path:
        """A service's copy of a mounted file."""
        return self.directory / "configs" / service / self._files[source].name

    def log(self, name: str) -> Path:
        """A service's output."""
        return self.directory / "logs" / f"{name}.log"

    def furnish(self) -> None:
        """Make the directories and the rewritten copies."""
        (self.directory / "logs").mkdir()
        for name in self.here:
            service, rewrite = self.all[name], self.rewriter(name)
            for mount in service.get("volumes", ()):
                if mount["type"] == "volume":
                    self.volume(mount["source"]).mkdir(parents=True, exist_ok=True, mode=0o700)
            for use in service.get("configs", ()):
                copy = self.config(name, use["source"])
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(rewrite(self._files[use["source"]].read_text()))

    def rewriter(self, name: str) -> Callable[[str], str]:
        """What makes a service's texts ones of this machine."""
        service = self.all[name]
        volumes = service.get("volumes", ())
        paths = {item["target"]: str(self.volume(item["source"])) for item in volumes if item["type"] == "volume"}
        paths |= {item["target"]: item["source"] for item in volumes if item["type"] == "bind"}
        paths |= {use["target"]: str(self.config(name, use["source"])) for use in service.get("configs", ())}
        addresses = {f"{host}:{port}": self.address(host, port) for host, port in self.ports}
        for other in self._together(name):
            for port in container_ports(self.all[other]):
                addresses |= {f"{host}:{port}": self.address(other, port) for host in _OWN_HOSTS}
        return lambda text: _replace(_replace(text, addresses, *_ADDRESS), paths, *_PATH)

    def _together(self, name: str) -> list[str]:
        """Services that run here and share one loopback: this one, whose network it uses, and who uses its."""
        modes = {other: str(self.all[other].get("network_mode", "")).removeprefix("service:") for other in self.here}
        hosts = {other: mode if mode in self.all else other for other, mode in modes.items()}
        return [other for other, host in hosts.items() if host == hosts[name]]

    def command(self, name: str) -> Command:
        """What a service's container would run; not for the database, which its image prepares."""
        service, rewrite = self.all[name], self.rewriter(name)
        words = (rewrite(word) for word in (*(service["entrypoint"] or ()), *(service["command"] or ())))
        return Command((*self._program(service), *words), self._environment(name))

    def health_words(self, name: str) -> list[str]:
        """A service's health check; empty where it has none."""
        rewrite = self.rewriter(name)
        return [rewrite(word) for word in self.all[name].get("healthcheck", {}).get("test", ())[1:]]

    def health_command(self, name: str) -> Command:
        """The health check of a service of ours."""
        return Command((*self._program(self.all[name]), *self.health_words(name)[1:]), self._environment(name))

    def environment(self, name: str) -> dict[str, str]:
        """A service's own variables."""
        rewrite = self.rewriter(name)
        return {key: rewrite(value) for key, value in self.all[name].get("environment", {}).items()}

    def _environment(self, name: str) -> dict[str, str]:
        own = {key: value for key in _KEPT if (value := os.environ.get(key)) is not None}
        path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}"
        fixed = {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**own, **fixed, **self.environment(name)}

    @staticmethod
    def _program(service: Service) -> tuple[str, ...]:
        """What stands before a service's own words: the image's entrypoint, unless the service has one."""
        image = image_name(service)
        if image in TOOLS:
            return (str(find_tool(TOOLS[image])),)
        return () if service["entrypoint"] else (sys.executable, "-P", "-m", OURS[image])


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nothing listens on now; all different."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in held]


def _replace(text: str, known: Mapping[str, str], before: str, after: str) -> str:
    """Replace whole paths or addresses, the longest that fits first."""
    if not known:
        return text
    words = "|".join(re.escape(word) for word in sorted(known, key=len, reverse=True))
    return re.sub(f"{before}(?:{words}){after}", lambda found: known[found[0]], text)
