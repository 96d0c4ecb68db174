"""What becomes of writes and reads while the database's server is away: restarting, failing over, out of reach.

Who may wait waits, in growing pauses and for a bounded time; who holds a lock that others need is answered at once, and comes
again with the next tick or the participant's next try. Nothing here repeats a transaction that does not first read what is
there: a commit whose answer was lost may have been done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from veilsum_coordinator.storage.writer import Writer
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.telemetry.logs import about

LOG = logging.getLogger("veilsum.coordinator")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries of one who waits."""

REST_SECONDS = 0.5
"""After a failed try, others that cannot wait are answered without one for so long, or twice as long as it took."""

HOLD_SECONDS, HOLD_AWAY_SECONDS = 3.0, 0.05
"""How long one who holds a lock waits for an answer, at first and while the server is known to be away."""

REPEAT_SECONDS = 60.0
"""How often the log says that the server is still away."""

CALL_SECONDS = 45.0
"""How long a peer's call may wait: less than its own deadline of 60 s."""

Result = TypeVar("Result")


class Outage:
    """Knows whether the server answers; one for each database. Thread-safe.

    Args:
        seconds: how long to wait at most before what needs the database fails.

    Attributes:
        stopping: set when nobody shall wait any longer.
    """

    def __init__(self, seconds: float = 600.0) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._since: float | None = None
        self._rest, self._told = 0.0, 0.0
        self.stopping = threading.Event()
        self._writer = Writer(self._passed)

    @property
    def away(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def stop(self) -> None:
        """Let nobody wait any longer: the process is about to end."""
        self.stopping.set()

    def bounded(self, work: Callable[[], Result]) -> Result:
        """The same as :meth:`attempt`, for who holds a lock that others need: it waits three seconds at most.

        A silent server's transaction goes on beside it. What it then comes to is found when the caller comes again.

        Raises:
            DatabaseAwayError: the server is away, or silent.
        """
        return self.attempt(lambda: self._writer.run(work, HOLD_AWAY_SECONDS if self.away else HOLD_SECONDS))

    def attempt(self, work: Callable[[], Result], *, waiting: bool = False) -> Result:
        """Do ``work`` once; at once refused shortly after a failed try, so that a silent server holds up no lock.

        Args:
            work: of one transaction.
            waiting: the caller keeps its own pauses.

        Raises:
            DatabaseAwayError: the server is away.
        """
        start = time.monotonic()
        with self._lock:
            resting = not waiting and self._since is not None and start < self._rest
        if resting:
            raise DatabaseAwayError("The database is temporarily unreachable.", "Try again.")
        try:
            result = work()
        except DatabaseAwayError as error:
            self._failed(error, start)
            raise
        self._passed()
        return result

    def wait(self, work: Callable[[], Result], seconds: float | None = None) -> Result:
        """Do ``work``, again until the server is back; for threads that hold no lock.

        Args:
            work: of one transaction that reads what is there before it writes.
            seconds: how long at most, if not as long as this outage may last.

        Raises:
            DatabaseAwayError: it did not come back in time, or the process is stopping.
        """
        end, pause = time.monotonic() + min(self.seconds, seconds or self.seconds), FIRST_PAUSE
        while True:
            try:
                return self.attempt(work, waiting=True)
            except DatabaseAwayError:
                if time.monotonic() >= end or self.stopping.wait(pause):
                    raise
            pause = min(2 * pause, LONGEST_PAUSE)

    async def call(self, work: Callable[[], Result]) -> Result:
        """The same for a peer's call: ``work`` runs in a thread, and no thread is held between two tries.

        Raises:
            DatabaseAwayError: the server did not come back in time.
        """
        end, pause = time.monotonic() + min(self.seconds, CALL_SECONDS), FIRST_PAUSE
        while True:
            try:
                return await asyncio.to_thread(self.attempt, work, waiting=True)
            except DatabaseAwayError:
                if time.monotonic() >= end or self.stopping.is_set():
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _failed(self, error: DatabaseAwayError, start: float) -> None:
        now = time.monotonic()
        with self._lock:
            first = self._since is None
            since = self._since = start if self._since is None else self._since
            self._rest = now + max(REST_SECONDS, 2 * (now - start))
            again = not first and now - self._told >= REPEAT_SECONDS
            if first or again:
                self._told = now
        if first:
            LOG.warning("database unreachable; retrying for up to %.0f s: %s", self.seconds, error, extra=about("database"))
        elif again:
            LOG.warning("the database is still unreachable after %.0f s: %s", now - since, error, extra=about("database"))

    def _passed(self) -> None:
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            LOG.info("the database is reachable again after %.1f s", time.monotonic() - since, extra=about("database"))
