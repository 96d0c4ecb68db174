"""The site's own command that is told when studies wait for the operator's word: a mail, a ticket, a message.

It gets what ``veilsum participant show`` prints, made of the signed study and the ledger, and so nothing of a record. It runs
without a shell and with few variables of the environment, one at a time and at most once a minute: whoever submits studies
could otherwise start programs as fast as they like. What it does is its own matter; that it failed is logged.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from veilsum_node.errors import VeilsumError
from veilsum_node.telemetry.logs import about
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.pending import PendingState, pending_studies

PAUSE_SECONDS = 60.0
LIMIT_SECONDS = 60.0
"""Between the starts of two commands; how long one may run."""

STUDIES = "VEILSUM_STUDIES"
"""The variable with the IDs of the studies, separated by spaces."""


class Running(Protocol):
    """A command that was started."""

    def wait(self, seconds: float) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: it has none after so many seconds.
        """

    def kill(self) -> None:
        """End it and what it started; does nothing once it has ended."""


Begin = Callable[[Sequence[str], Mapping[str, str], bytes], Running]
"""Starts a command: its words, variables of its own, and what it is given on standard input.

Raises:
    OSError, VeilsumError: it cannot be started.
"""


class WaitingHook:
    """Runs the command for studies that began to wait; the client's loop calls :meth:`look`.

    Args:
        site: whose ``hooks.waiting`` names the command; nothing happens without one.
        limit: seconds that a command may take.
        begin: how it is started; by default as a child of this process.
    """

    def __init__(self, site: Site, *, limit: float = LIMIT_SECONDS, begin: Begin | None = None) -> None:
        if begin is None:
            from veilsum_participant.session.own_commands import begin_here  # which a guard's launcher does

            begin = begin_here
        self._begin = begin
        self._site, self._command, self._limit = site, site.config.hooks.waiting, limit
        self._told: set[bytes] = set()
        self._last: float | None = None
        self._worker: threading.Thread | None = None
        self._process: Running | None = None
        self._stopped = False

    def look(self) -> None:
        """Start the command if studies wait of which it was not told.

        Raises:
            Unavailable, Damage: the store cannot be read.
        """
        if not self._command or (self._worker is not None and self._worker.is_alive()):
            return
        if self._last is not None and self._site.steady() - self._last < PAUSE_SECONDS:
            return
        with self._site.database.reading() as connection:
            waiting = [row.digest for row in pending_studies(connection) if row.state is PendingState.WAITING]
        new = [digest for digest in waiting if digest not in self._told]
        self._told = set(waiting)  # one that ended and comes again is told again
        if new:
            self._last = self._site.steady()
            self._worker = threading.Thread(target=self._run, args=(new,), daemon=True)
            self._worker.start()

    def stop(self) -> None:
        """End a command that still runs."""
        self._stopped = True
        self._kill()

    def wait(self, seconds: float) -> bool:
        """Whether no command runs any more, at the latest after so many seconds."""
        if self._worker is not None:
            self._worker.join(seconds)
        return self._worker is None or not self._worker.is_alive()

    def _run(self, digests: Sequence[bytes]) -> None:
        ids = [digest.hex() for digest in digests]
        try:
            self._tell(ids, "\n".join(self._texts(ids)))
        except (OSError, VeilsumError) as error:
            LOG.warning("the command hooks.waiting cannot be run: %s", error, extra=about("hook"))

    def _texts(self, ids: Sequence[str]) -> list[str]:
        from veilsum_participant.protocol.decisions import shown_study  # which a site without a command does without
        from veilsum_participant.protocol.shown import shown_text

        texts = []
        for name in ids:
            with contextlib.suppress(VeilsumError):  # decided on, or ended, meanwhile
                texts.append(shown_text(shown_study(self._site, name)))
        return texts

    def _tell(self, ids: Sequence[str], text: str) -> None:
        self._process = process = self._begin(self._command, {STUDIES: " ".join(ids)}, text.encode())
        if self._stopped:  # while it was started
            self._kill()
        try:
            status = process.wait(self._limit)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PAUSE_SECONDS)
            LOG.warning("the command hooks.waiting was ended after %.0f s", self._limit, extra=about("hook"))
            return
        if status and not self._stopped:
            LOG.warning("the command hooks.waiting failed: exit status %d", status, extra=about("hook"))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
