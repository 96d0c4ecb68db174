"""`make deploy-local`: the services of a compose file as processes on loopback, a study, and where to look.

What runs is what containers would run: the same commands, variables and files, with paths and addresses of this machine.
What a container engine adds (users, read-only roots, networks) is not tried here.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from veilsum_deploy.native import postgres
from veilsum_deploy.native.compose import Compose
from veilsum_deploy.native.places import Places, lay_out
from veilsum_deploy.native.processes import Command, Processes, run
from veilsum_deploy.native.programs import (
    POSTGRES,
    health_command,
    health_words,
    image_name,
    runnable,
    service_command,
)
from veilsum_node.errors import StateError

POLL_SECONDS = 0.25
HEALTH_SECONDS = 20.0
"""How long one health check may take here, where all services share the machine."""

START_SECONDS = 120.0
TASK_SECONDS = 300.0
"""How long a service that ends by itself may take."""

Progress = Callable[[str], None]


@dataclass
class Deployment:
    """Services that run.

    Attributes:
        places: where they lie.
        processes: what was started.
        left_out: services without a program on this machine.
        clusters: of the services that are PostgreSQL.
    """

    places: Places
    processes: Processes
    left_out: tuple[str, ...] = ()
    clusters: dict[str, postgres.Cluster] = field(default_factory=dict)

    def log(self, name: str) -> Path:
        """A service's output."""
        return self.places.directory / "logs" / f"{name}.log"

    def task(self, name: str) -> None:
        """Run a service that ends by itself.

        Raises:
            StateError: it failed, or another service ended meanwhile.
        """
        status = run(service_command(self.places, name), self.log(name), TASK_SECONDS)
        self.processes.check()
        if status != 0:
            tail = "".join(f"\n  {line}" for line in self.log(name).read_text(errors="replace").splitlines()[-10:])
            raise StateError(f"{name} failed (status {status}).{tail}", f"See {self.log(name)}.")

    def wait_healthy(self, name: str) -> None:
        """Wait until a service's own health check passes.

        Raises:
            StateError: it or another service ended, or time is up.
        """
        deadline = time.monotonic() + START_SECONDS
        process = self.processes.running[name]
        while not self._healthy(name):
            self.processes.check()
            if time.monotonic() > deadline:
                raise StateError(f"{name} is not healthy after {START_SECONDS:g} s.{process.tail()}", f"See {process.log}.")
            time.sleep(POLL_SECONDS)

    def _healthy(self, name: str) -> bool:
        words = health_words(self.places, name)
        if not words:
            return True
        if words[0] == "wget":  # of the image; this machine may have none
            return answers(words[-1])
        if name in self.clusters:
            (port,) = self.places.compose.services[name].container_ports()
            command = postgres.ready(self.clusters[name], words, self.places.ports[name, port])
        else:
            command = health_command(self.places, name)
        return run(command, self.places.directory / "logs" / f"{name}.health.log", HEALTH_SECONDS) == 0


@contextmanager
def deployed(compose: Compose, directory: Path, progress: Progress) -> Iterator[Deployment]:
    """Run all services but those of a profile, healthy; they stop with the context.

    Args:
        compose: whose services.
        directory: new or empty; state, configurations and logs go there.
        progress: told what is being done.

    Raises:
        StateError: a program is missing, or a service failed.
    """
    here, out = runnable(compose)
    places = lay_out(compose, directory, here)
    places.furnish()
    (directory / "logs").mkdir()
    with ExitStack() as stack, Processes() as processes:
        deployment = Deployment(places, processes, tuple(out))
        starter = _Starter(deployment, stack)
        for name in here:
            if not compose.services[name].profiles:
                progress(f"Starting {name}")
                starter.start(name)
        for name in deployment.processes.running:
            progress(f"Waiting for {name}")
            deployment.wait_healthy(name)
        yield deployment


class _Starter:
    """Starts one service after the other; ``stack`` removes what lies elsewhere, after all processes have ended."""

    def __init__(self, deployment: Deployment, stack: ExitStack) -> None:
        self._deployment, self._stack = deployment, stack
        self._healthy: set[str] = set()

    def start(self, name: str) -> None:
        deployment, compose = self._deployment, self._deployment.places.compose
        service = compose.services[name]
        for other, dependency in service.depends_on.items():
            if dependency.condition == "service_healthy" and other not in self._healthy:
                deployment.wait_healthy(other)
                self._healthy.add(other)
        if _ends(compose, name):
            deployment.task(name)
            return
        command = self._postgres(name) if image_name(service) == POSTGRES else service_command(deployment.places, name)
        deployment.processes.start(name, command, deployment.log(name), service.stop_grace_period)

    def _postgres(self, name: str) -> Command:
        """Make the database; returns its server's command."""
        deployment = self._deployment
        places, service = deployment.places, deployment.places.compose.services[name]
        rewrite = places.rewriter(name)
        environment = {key: rewrite(value) for key, value in service.environment.items()}
        cluster = postgres.make_place(Path(environment["PGDATA"]))
        self._stack.callback(postgres.remove, cluster)
        deployment.clusters[name] = cluster
        postgres.initialise(cluster, environment, deployment.log(name))
        (port,) = service.container_ports()
        return postgres.server(cluster, service.command, places.ports[name, port])


def _ends(compose: Compose, name: str) -> bool:
    """Whether a service is one that others wait for to end."""
    return any(
        needed.condition == "service_completed_successfully"
        for service in compose.services.values()
        for other, needed in service.depends_on.items()
        if other == name
    )


def answers(url: str) -> bool:
    """Whether a page of a service on loopback is there."""
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS) as answer:  # noqa: S310  an http address of our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
