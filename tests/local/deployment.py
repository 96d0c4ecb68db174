"""Starts the services in the order of their dependencies, healthy, and stops them with the context."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from local import postgres
from local.processes import Command, LocalProcesses, run, tail
from local.services import POSTGRES, Services, container_ports, image_name, seconds
from veilsum_node.errors import StateError

POLL_SECONDS = 0.25
HEALTH_SECONDS = 20.0
"""How long one health check may take here, where all services share the machine."""

START_SECONDS = 120.0
TASK_SECONDS = 300.0
"""How long a service that ends by itself may take."""

Progress = Callable[[str], None]


class Deployment:
    """Services that run.

    Args:
        services: where they lie.
        processes: will hold what is started.
        stack: removes what lies elsewhere, after all processes have ended.
    """

    def __init__(self, services: Services, processes: LocalProcesses, stack: ExitStack) -> None:
        self.services, self.processes, self._stack = services, processes, stack
        self._clusters: dict[str, postgres.Cluster] = {}
        self._tasks = {
            other
            for service in services.all.values()
            for other, needed in service.get("depends_on", {}).items()
            if needed["condition"] == "service_completed_successfully"
        }

    def start(self, name: str) -> None:
        """Start a service when what it needs is healthy; one that others wait for to end is run to its end.

        Raises:
            StateError: it, or another service, failed.
        """
        service = self.services.all[name]
        for other, needed in service.get("depends_on", {}).items():
            if needed["condition"] == "service_healthy":
                self.wait_healthy(other)
        if name in self._tasks:
            self.task(name)
            return
        command = self._database(name) if image_name(service) == POSTGRES else self.services.command(name)
        grace = seconds(service.get("stop_grace_period", "10s"))
        self.processes.start(name, command, self.services.log(name), grace)

    def task(self, name: str) -> None:
        """Run a service that ends by itself.

        Raises:
            StateError: it failed, or another service ended meanwhile.
        """
        log = self.services.log(name)
        status = run(self.services.command(name), log, TASK_SECONDS)
        self.processes.check()
        if status != 0:
            raise StateError(f"{name} failed (status {status}).{tail(log)}", f"See {log}.")

    def wait_healthy(self, name: str) -> None:
        """Wait until a service's own health check passes.

        Raises:
            StateError: it or another service ended, or time is up.
        """
        self.wait(f"{name} in good health", lambda: self._healthy(name), START_SECONDS)

    def wait(self, what: str, read: Callable[[], bool], limit: float) -> None:
        """Wait until ``read`` returns true.

        Raises:
            StateError: a service ended, or ``limit`` seconds are up.
        """
        deadline = time.monotonic() + limit
        while not read():
            self.processes.check()
            if time.monotonic() > deadline:
                raise StateError(f"{what} is not there after {limit:g} s.", f"See {self.services.directory / 'logs'}.")
            time.sleep(POLL_SECONDS)

    def _healthy(self, name: str) -> bool:
        words = self.services.health_words(name)
        if not words:
            return True
        if words[0] == "wget":  # of the image; this machine may have none
            return _answers(words[-1])
        if name in self._clusters:
            (port,) = container_ports(self.services.all[name])
            command = postgres.ready(self._clusters[name], words, self.services.ports[name, port])
        else:
            command = self.services.health_command(name)
        return run(command, self.services.log(f"{name}.health"), HEALTH_SECONDS) == 0

    def _database(self, name: str) -> Command:
        """Make the database; returns its server's command."""
        environment = self.services.environment(name)
        cluster = self._clusters[name] = postgres.make_place(Path(environment["PGDATA"]))
        self._stack.callback(postgres.remove, cluster)
        postgres.initialise(cluster, environment, self.services.log(name))
        (port,) = container_ports(self.services.all[name])
        return postgres.server(cluster, tuple(self.services.all[name]["command"] or ()), self.services.ports[name, port])


@contextmanager
def deployed(services: Services, progress: Progress) -> Iterator[Deployment]:
    """Run all services but those of a profile, healthy; they stop with the context.

    Args:
        services: in a new or empty directory.
        progress: told what is being done.

    Raises:
        StateError: a service failed.
    """
    services.furnish()
    with ExitStack() as stack, LocalProcesses() as processes:
        deployment = Deployment(services, processes, stack)
        for name in services.here:
            if not services.all[name].get("profiles"):
                progress(f"Starting {name}")
                deployment.start(name)
        for name in processes.running:
            progress(f"Waiting for {name}")
            deployment.wait_healthy(name)
        yield deployment


def samples(address: str, query: str, label: str) -> dict[str, float]:
    """What a Prometheus answers to an instant query, by a label; empty while it has nothing or does not answer."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS) as answer:
            found = json.load(answer)["data"]["result"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return {}
    return {item["metric"].get(label, ""): float(item["value"][1]) for item in found}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS) as answer:  # noqa: S310  an http address of our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
