"""Watches a running site: verifies its ledger, and counts what it does where somebody asks for its metrics."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from veilsum_node.database import open_readonly
from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.logs import about
from veilsum_participant.site import Site
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.ledger import LedgerFault, LedgerReader

LOG = logging.getLogger("veilsum.participant")

MOST_SHOWN = 20
"""Entries that a warning names."""


@contextmanager
def watched(site: Site, starter: WorkerStarter | None = None, address: str = "") -> Iterator[None]:
    """Watch a site: its metrics where it serves or shares any, and its ledger now and every ``verify_hours``.

    Args:
        starter: of the process that serves them; None for this one.
        address: where that process serves them.

    Raises:
        ConfigurationError: the endpoint cannot be served as configured.
        Unavailable: its process cannot be started.
    """
    with ExitStack() as stack:
        if site.config.metrics is not None or site.config.policy.share_metrics:
            from veilsum_participant.telemetry.metrics import monitored  # a thousand lines and a library, for these sites

            stack.enter_context(monitored(site, starter, address))
        stack.callback(Verifier(site).stop)
        yield


class Verifier:
    """Verifies a site's ledger again and again, on a thread of its own and in a connection that can only read.

    Args:
        site: whose; its observer is told of every result.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
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
            site.observer.verification(False)
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
            site.observer.verification(True)
