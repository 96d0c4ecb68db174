"""What a site reports of itself to the coordinator: the groups that ``policy.share_metrics`` names, and nothing else.

A report goes out when a session opens and every minute after. What is not granted is never put together.

What a site's state file says of the site, as figures: for its own metrics, and for what it shares of them.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.refresh import Refreshed
from veilsum_participant.boundary.front import Sample, Status
from veilsum_participant.session.channel import UndeliveredError
from veilsum_participant.settings.config import ShareGroup
from veilsum_participant.site import Site, SiteStep
from veilsum_privacy.ledger.metrics import LedgerFigures
from veilsum_proto import SOFTWARE


@dataclass(frozen=True)
class SiteFigures:
    """What a site's database knows.

    Attributes:
        ledger: its ledger.
        enrolled: studies that it is enrolled in.
        waiting: studies that wait for the operator's word.
    """

    ledger: LedgerFigures
    enrolled: int
    waiting: int


class SharedMetric(IntEnum):
    """A metric that a site may share, numbered as on the wire."""

    EPSILON_SPENT = 1
    EPSILON_BUDGET = 2
    LEDGER_VERIFIED = 3
    STEP_SECONDS = 4
    CERTIFICATE_EXPIRY = 5
    SOFTWARE = 6


LOG = logging.getLogger("veilsum.participant")

REPORT_SECONDS = 60.0
"""Between two reports of a session."""

MOST_POPULATIONS = 16
"""Populations that a report names; more are not taken."""

SHORTEST = 0.125
"""The shortest time that a report tells, in seconds."""

SHARED: dict[ShareGroup, str] = {
    "software": "name and version of this software",
    "budget": "epsilon that each population spent, and its budget",
    "ledger": "whether the ledger's last verification succeeded",
    "timings": "mean time of each step of a round, rounded up to 1/8 s or a power of two of it",
    "certificate": "when this site's certificate expires",
}
"""What each group tells the coordinator, in words."""


class Known(Protocol):
    """What the site's own metrics know, of which a report is a part.

    Attributes:
        figures: the ledger's, refreshed.
        verified: how the last verification ended; None before the first.
    """

    figures: Refreshed[SiteFigures]
    verified: bool | None

    def means(self) -> dict[SiteStep, float]:
        """Mean time of each step that was done, in seconds."""


def samples(site: Site, metrics: Known) -> list[Sample]:
    """What the site's policy shares, as it is now. Figures that are not known or not finite are left out."""
    makers: dict[ShareGroup, Callable[[], Iterator[tuple[SharedMetric, str, float]]]] = {
        "software": lambda: iter([(SharedMetric.SOFTWARE, SOFTWARE, 1.0)]),
        "budget": lambda: _budget(metrics),
        "ledger": lambda: _ledger(metrics),
        "timings": lambda: (
            (SharedMetric.STEP_SECONDS, step.value, told_seconds(mean)) for step, mean in metrics.means().items()
        ),
        "certificate": lambda: iter([(SharedMetric.CERTIFICATE_EXPIRY, "", float(site.credentials.identity.not_after))]),
    }
    granted = site.config.policy.share_metrics
    found = [item for group in makers if group in granted for item in makers[group]()]
    return [Sample(metric=metric, label=label, value=value) for metric, label, value in found if math.isfinite(value)]


def told_seconds(seconds: float) -> float:
    """A time as it is told: as long as the next power of two of :data:`SHORTEST` seconds.

    How long a step takes follows the records, and the mean of one round is that round's time without the network's noise.
    """
    return SHORTEST * 2.0 ** max(0, math.ceil(math.log2(max(seconds, SHORTEST) / SHORTEST)))


def _budget(metrics: Known) -> Iterator[tuple[SharedMetric, str, float]]:
    figures = metrics.figures.get()
    if figures is None:
        return
    for name, found in list(figures.ledger.populations.items())[:MOST_POPULATIONS]:
        yield SharedMetric.EPSILON_SPENT, name, found.spent
        yield SharedMetric.EPSILON_BUDGET, name, math.inf if found.budget.epsilon is None else found.budget.epsilon


def _ledger(metrics: Known) -> Iterator[tuple[SharedMetric, str, float]]:
    if metrics.verified is not None:
        yield SharedMetric.LEDGER_VERIFIED, "", float(metrics.verified)


class Reporter:
    """Reports during one session, on a thread of its own; does nothing where the policy shares nothing.

    Args:
        site: whose policy decides.
        metrics: what there is to share.
    """

    def __init__(self, site: Site, metrics: Known, send: Callable[[list[Sample]], None]) -> None:
        self._site, self._metrics, self._send = site, metrics, send
        self._stopping = threading.Event()
        if site.config.policy.share_metrics:
            threading.Thread(target=self._loop, name="report", daemon=True).start()

    def stop(self) -> None:
        """Send no further report."""
        self._stopping.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                if found := samples(self._site, self._metrics):
                    self._send(found)
            except UndeliveredError as error:
                if self._stopping.is_set():
                    return
                if error.status is Status.UNIMPLEMENTED:
                    LOG.warning("the coordinator does not accept metrics: its version is older")
                    return
                LOG.warning("metrics cannot be reported: %s", error.status.name)
            except VeilsumError as error:
                LOG.warning("metrics cannot be reported: %s", error.message)
            self._stopping.wait(REPORT_SECONDS)
