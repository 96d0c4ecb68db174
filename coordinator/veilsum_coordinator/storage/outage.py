"""What becomes of writes and reads while the database's server is away: restarting, failing over, out of reach.

Who may wait waits, in growing pauses and for a bounded time; who holds a lock that others need is answered at once, and comes
again with the next tick or the participant's next try. Nothing here repeats a transaction that does not first read what is
there: a commit whose answer was lost may have been done.

Transactions of callers that hold a lock which others need: done in a thread beside them, and waited for a bounded time.

A server that is silent answers nothing for as long as the network lets it: 5 s for a connection, 30 s for one that was open.
A caller that waited it out would hold up the coordinator's lock, and with it the loop that serves every session. What takes
longer than its caller may wait goes on; the caller is told that nothing is known, and comes again. Until it has ended nothing
else is begun, so that no later decision is overtaken by an earlier one.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

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


@dataclass
class _Job:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    left: bool = False
    value: Any = None
    error: BaseException | None = None


class Writer:
    """One thread that does what it is given, in order.

    Args:
        late: called, from the thread, when something that its caller no longer waits for was done after all.
    """

    def __init__(self, late: Callable[[], object]) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._busy, self._thread = False, threading.Thread(target=self._loop, name="journal", daemon=True)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """Do ``work`` and return what it returns, or raises.

        Raises:
            DatabaseAwayError: it has not ended within ``seconds``, or an earlier one has not; nothing is known to be done.
        """
        with self._lock:
            if self._busy:
                raise DatabaseAwayError("The database has not answered yet.", "Try again.")
            self._busy = True
            if not self._thread.is_alive():
                self._thread.start()
        job = _Job(work)
        self._jobs.put(job)
        job.done.wait(seconds)
        with self._lock:
            if not job.done.is_set():
                job.left = True
                raise DatabaseAwayError(f"The database has not answered for {seconds:.1f} s.", "Try again.")
        if job.error is not None:
            raise job.error
        result: Result = job.value
        return result

    def _loop(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.value = job.work()
            except BaseException as error:  # noqa: BLE001 - raised again at the caller
                job.error = error
            with self._lock:
                self._busy = False
                job.done.set()
                left = job.left
            if left and job.error is None:
                self._late()
