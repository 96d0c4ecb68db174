"""The native form of a service's commands: the same arguments and variables, rewritten to this machine's places.

Our images become this interpreter with the image's package, others the program of the same name. An image without a program
here is left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from veilsum_deploy.native.compose import Compose, Service
from veilsum_deploy.native.places import Places
from veilsum_deploy.native.processes import Command
from veilsum_deploy.native.tools import find_tool
from veilsum_node.errors import StateError

POSTGRES = "postgres"
OURS = {"veilsum-coordinator": "veilsum_deploy.cli", "veilsum-participant": "veilsum_participant.cli"}
"""Our images, and the module of the command that each starts."""

TOOLS = {"prom/prometheus": "prometheus", "prom/alertmanager": "alertmanager"}
"""Others' images, and the program that each starts."""

LEFT_OUT = frozenset({"grafana/grafana"})
"""Images whose programs a checkout does not fetch."""

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "TMPDIR")  # of our own environment


def image_name(service: Service) -> str:
    """An image's name without tag and digest."""
    return service.image.partition("@")[0].partition(":")[0]


def runnable(compose: Compose) -> tuple[list[str], list[str]]:
    """Names of the services that run here, in order of their start, and of those that are left out.

    Raises:
        StateError: a program is missing, or an image is not known.
    """
    here, out = [], []
    for name in compose.ordered():
        image = image_name(compose.services[name])
        if image in LEFT_OUT:
            out.append(name)
            continue
        if image in TOOLS and find_tool(TOOLS[image]) is None:
            raise StateError(f"The program {TOOLS[image]} is not on this machine.", "Run `make tools`.")
        if image not in OURS and image not in TOOLS and image != POSTGRES:
            raise StateError(f"Nothing is known of the image {image} of the service {name}.", "Leave the service out.")
        here.append(name)
    return here, out


def service_command(places: Places, name: str) -> Command:
    """What a service's container would run."""
    service = places.compose.services[name]
    rewrite = places.rewriter(name)
    words = tuple(rewrite(word) for word in (*service.entrypoint, *service.command))
    return Command((*_start(service), *words), _environment(places, name))


def health_words(places: Places, name: str) -> list[str]:
    """A service's health check; empty where it has none."""
    check = places.compose.services[name].healthcheck
    if check is None or check.disable:
        return []
    rewrite = places.rewriter(name)
    return [rewrite(word) for word in check.test[1:]]


def health_command(places: Places, name: str) -> Command:
    """The health check of a service of ours."""
    words = health_words(places, name)
    return Command((*_start(places.compose.services[name]), *words[1:]), _environment(places, name))


def _start(service: Service) -> Sequence[str]:
    """What stands before a service's own words: the image's entrypoint, unless the service has one."""
    image = image_name(service)
    if image in OURS:
        if service.entrypoint[:1] == ("python",):
            return ()
        return (sys.executable, "-P", "-m", OURS[image])
    tool = find_tool(TOOLS[image])
    return (str(tool),)


def _environment(places: Places, name: str) -> dict[str, str]:
    rewrite = places.rewriter(name)
    own = {key: value for key in _KEPT if (value := os.environ.get(key)) is not None}
    stated = {key: rewrite(value) for key, value in places.compose.services[name].environment.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}"
    return {**own, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **stated}
