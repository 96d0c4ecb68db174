"""A Prometheus of its own beside a federation of processes: for checks and pictures, on loopback, gone with the context."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from veilsum_deploy.dashboards.prometheus import Prometheus
from veilsum_deploy.native.tools import find_tool
from veilsum_node.errors import StateError

START_SECONDS = 30.0
STOP_SECONDS = 10.0
_POLL = 0.05
_LISTENING = re.compile(r'msg="Listening on".* address=(\S+)')


@contextmanager
def scraping(folder: Path, coordinator: str, participants: Mapping[str, str], seconds: float) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these endpoints, and stop it afterwards.

    Args:
        folder: a new one, for its configuration, data and log.
        coordinator: host:port of the coordinator's metrics.
        participants: the same by the site's name.
        seconds: between two scrapes.

    Raises:
        StateError: there is no Prometheus on this machine, or it does not start.
    """
    binary = find_tool("prometheus")
    if binary is None:
        raise StateError("There is no Prometheus on this machine.", "Run make tools, or install it.")
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text(json.dumps(_configuration(coordinator, participants, seconds)))
    command = [
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603  our own
    try:
        yield _await(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configuration(coordinator: str, participants: Mapping[str, str], seconds: float) -> dict[str, object]:
    """As in deploy/prometheus/prometheus.yml; JSON is YAML."""
    interval = f"{round(1000 * seconds)}ms"
    sites = [{"targets": [address], "labels": {"site": site}} for site, address in participants.items()]
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "scrape_configs": [
            {"job_name": "veilsum-coordinator", "static_configs": [{"targets": [coordinator]}]},
            {"job_name": "veilsum-participant", "static_configs": sites},
        ],
    }


def _await(process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        listening = _LISTENING.search(log.read_text(errors="replace"))
        if listening is not None:
            prometheus = Prometheus(f"http://{listening[1]}")
            if prometheus.ready():
                return prometheus
        time.sleep(_POLL)
    raise StateError("Prometheus does not start.", f"See {log}.")
