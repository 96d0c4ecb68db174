"""Watches a running site: verifies its ledger, and counts what it does where somebody asks for its metrics."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from cryptography.hazmat.primitives.serialization import Encoding

from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.logs import about, printable
from veilsum_participant.boundary.verifying import LONGEST_WORDS, LedgerSaid
from veilsum_participant.site import Site
from veilsum_participant.worker.starting import WorkerStarter

LOG = logging.getLogger("veilsum.participant")

Verify = Callable[[bytes], LedgerSaid]
"""Has the site's ledger verified elsewhere, for an authority's certificate in DER."""


@contextmanager
def watched(
    site: Site, starter: WorkerStarter | None = None, address: str = "", verify: Verify | None = None
) -> Iterator[None]:
    """Watch a site: its metrics where it serves or shares any, and its ledger now and every ``verify_hours``.

    Args:
        starter: of the process that serves them; None for this one.
        address: where that process serves them.
        verify: as of :class:`Verifier`.

    Raises:
        ConfigurationError: the endpoint cannot be served as configured.
        Unavailable: its process cannot be started.
    """
    with ExitStack() as stack:
        if site.config.metrics is not None or site.config.policy.share_metrics:
            from veilsum_participant.telemetry.metrics import monitored  # a thousand lines and a library, for these sites

            stack.enter_context(monitored(site, starter, address))
        stack.callback(Verifier(site, verify).stop)
        yield


class Verifier:
    """Has a site's ledger verified again and again, on a thread of its own.

    Args:
        site: whose; its observer is told of every result.
        verify: how; None for this process, which loads what it takes.
    """

    def __init__(self, site: Site, verify: Verify | None = None) -> None:
        self._site, self._elsewhere = site, verify
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
        said = self._said()
        if said.fault:
            LOG.error("the ledger does not verify: %s", said.fault, extra=about("verified", reason="fault"))
            site.ledger_fault = printable(said.fault)
            site.observer.verification(False)
        elif said.unread:  # unread is not wrong: the result before stands, and grows old
            LOG.error("the ledger cannot be verified: %s", said.unread, extra=about("verified", reason="unreadable"))
        else:
            LOG.info("ledger verified: %d entries, %d receipts", said.entries, said.receipts, extra=about("verified"))
            if said.set_back:
                numbers = ", ".join(map(str, said.set_back))
                LOG.warning(
                    "ledger entries %s have earlier times than the entries before them: the clock was set back", numbers
                )
            site.ledger_fault = ""
            site.observer.verification(True)

    def _said(self) -> LedgerSaid:
        site = self._site
        if self._elsewhere is None:
            from veilsum_participant.worker.verifying import examined  # which a guard does without

            return examined(site.config.state, site.credentials.authority)
        try:
            return self._elsewhere(site.credentials.authority.public_bytes(Encoding.DER))
        except VeilsumError as error:
            return LedgerSaid(unread=str(error)[:LONGEST_WORDS])
