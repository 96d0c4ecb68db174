"""A real federation under a real Prometheus: the demo's processes with their metrics served and scraped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from veilsum.remote import connect
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.prometheus import Prometheus
from veilsum_deploy.dashboards.scraping import scraping
from veilsum_deploy.demo.directory import Terms, configure_participants, furnish
from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_deploy.demo.processes import POLL_SECONDS, Process, Processes, wait_for_file
from veilsum_deploy.demo.run import START_SECONDS, Analyst
from veilsum_node.errors import StateError
from veilsum_node.identity import load_credentials

SCRAPE_SECONDS = 1.0
METRICS = '\n[metrics]\nlisten = "127.0.0.1:0"\nready_file = "metrics.address"\n'
SHARED = 'share_metrics = ["software", "budget", "ledger", "timings", "certificate"]\n'
TERMS = Terms(1000.0, 100.0, tuple(METHODS), ("distributed", "local"), ("joint", "per-site"))


@dataclass(frozen=True)
class Watched:
    """A federation that runs and is scraped.

    Attributes:
        analyst: submits studies.
        sites: the participants' processes.
        prometheus: answers queries.
        since: when the scraping began, Unix seconds.
    """

    analyst: Analyst
    sites: dict[str, Process]
    prometheus: Prometheus
    since: float

    def window(self, seconds: float = SCRAPE_SECONDS) -> Window:
        """From the first scrape until now, as if there were so many seconds between two scrapes."""
        return Window(self.since, time.time(), seconds)


@contextmanager
def watching(
    directory: Path,
    hospitals: Hospitals,
    clock: Callable[[], int],
    *,
    budgets: Mapping[str, float],
    sharing: tuple[str, ...],
) -> Iterator[Watched]:
    """Start a coordinator, all hospitals and a Prometheus in a claimed directory; they end with the context.

    Args:
        budgets: epsilon of each hospital's budget.
        sharing: hospitals that share their metrics with the coordinator.

    Raises:
        StateError: a process failed, or there is no Prometheus.
    """
    kit = furnish(directory, hospitals, clock)
    min_cohort = max(2, min(3, len(kit.participants) - 1))
    where = kit.coordinator.directory
    _append(where / "coordinator.toml", METRICS)
    with Processes() as processes:
        started = ["coordinator", "start", "--config", str(where / "coordinator.toml")]
        coordinator = processes.start("coordinator", started, where / "coordinator.log")
        address = wait_for_file(where / "address", coordinator, START_SECONDS)
        configure_participants(kit, hospitals, address, min_cohort, clock, TERMS)
        sites = {}
        for party in kit.participants:
            file = party.directory / "participant.toml"
            text = file.read_text().replace(f"epsilon = {TERMS.budget}\n", f"epsilon = {budgets[party.name]}\n")
            if party.name in sharing:
                text = text.replace("[policy]\n", f"[policy]\n{SHARED}")
            file.write_text(text)
            _append(file, METRICS)
            started = ["participant", "start", "--config", str(file)]
            sites[party.name] = processes.start(party.name, started, party.directory / "participant.log")
        shown = wait_for_file(where / "metrics.address", coordinator, START_SECONDS)
        endpoints = {
            party.name: wait_for_file(party.directory / "metrics.address", sites[party.name], START_SECONDS)
            for party in kit.participants
        }
        for party in kit.participants:  # one that is started again is scraped at the same address
            file = party.directory / "participant.toml"
            file.write_text(file.read_text().replace("127.0.0.1:0", endpoints[party.name]))
        credentials = load_credentials(kit.analyst.identity, clock())
        with (
            scraping(directory / "prometheus", shown, endpoints, SCRAPE_SECONDS) as prometheus,
            connect(address, credentials, kit.analyst.identity, clock()) as remote,
        ):
            analyst = Analyst(kit, hospitals, remote, credentials, min_cohort, processes, clock)
            _await(analyst, lambda: set(sites) <= set(remote.describe().connected), "connected")
            _await(analyst, lambda: _answering(prometheus) > len(sites), "scraped")
            yield Watched(analyst, sites, prometheus, time.time())


def _append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def _answering(prometheus: Prometheus) -> float:
    found = prometheus.instant("sum(up)", time.time())
    return found[0].last if found else 0.0


def _await(analyst: Analyst, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        for process in analyst.processes.started:
            process.check()
        if time.monotonic() > deadline:
            raise StateError(f"Not every process is {what} after {START_SECONDS:g} s.", "See the processes' logs.")
        time.sleep(POLL_SECONDS)
