"""Watches a running site: its metrics, the endpoint that serves them, and the verification of its ledger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from veilsum_node.database import open_readonly
from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.endpoint import MetricsServer
from veilsum_node.telemetry.logs import about
from veilsum_participant.site import Site
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_privacy.ledger import LedgerFault, LedgerReader

LOG = logging.getLogger("veilsum.participant")

MOST_SHOWN = 20
"""Entries that a warning names."""


@contextmanager
def monitored(site: Site) -> Iterator[SiteMetrics]:
    """Watch a site: serve its metrics where it is configured, and verify its ledger now and every ``verify_hours``.

    Raises:
        ConfigurationError: the endpoint cannot be served as configured.
    """
    metrics = SiteMetrics(site)
    settings = site.config.metrics
    with ExitStack() as stack:
        if settings is not None:
            server = MetricsServer(metrics.registry, settings, ready=metrics.not_ready, alive=metrics.alive)
            stack.callback(server.stop)
            LOG.info("metrics are served on %s", server.start())
        site.observer = metrics
        verifier = Verifier(site, metrics)
        stack.callback(verifier.stop)
        yield metrics


class Verifier:
    """Verifies a site's ledger again and again, on a thread of its own and in a connection that can only read.

    Args:
        site: whose.
        metrics: told of every result.
    """

    def __init__(self, site: Site, metrics: SiteMetrics) -> None:
        self._site, self._metrics = site, metrics
        self._stopping = threading.Event()
        site.ledger_known.clear()
        threading.Thread(target=self._loop, name="verify", daemon=True).start()

    def stop(self) -> None:
        """Start no further verification."""
        self._stopping.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self.verify()
            finally:
                self._site.ledger_known.set()
            self._stopping.wait(3600.0 * self._site.config.verify_hours)

    def verify(self) -> None:
        """Verify the ledger now, and tell the result."""
        site = self._site
        try:
            with open_readonly(site.config.state) as database:
                found = LedgerReader(database).verify(authority=site.credentials.authority)
        except LedgerFault as error:
            LOG.error("the ledger does not verify: %s", error, extra=about("verified", reason="fault"))
            site.ledger_fault = str(error)
            self._metrics.verification(False)
        except VeilsumError as error:  # unread is not wrong: the result before stands, and grows old
            LOG.error("the ledger cannot be verified: %s", error, extra=about("verified", reason="unreadable"))
        except Exception as error:
            LOG.error("the ledger cannot be verified: internal error", exc_info=error)
        else:
            LOG.info("ledger verified: %d entries, %d receipts", found.entries, found.receipts, extra=about("verified"))
            if found.set_back:
                numbers = ", ".join(map(str, found.set_back[:MOST_SHOWN]))
                LOG.warning(
                    "ledger entries %s have earlier times than the entries before them: the clock was set back", numbers
                )
            site.ledger_fault = ""
            self._metrics.verification(True)
