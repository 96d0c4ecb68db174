"""Transactions of callers that hold a lock which others need: done in a thread beside them, and waited for a bounded time.

A server that is silent answers nothing for as long as the network lets it: 5 s for a connection, 30 s for one that was open.
A caller that waited it out would hold up the coordinator's lock, and with it the loop that serves every session. What takes
longer than its caller may wait goes on; the caller is told that nothing is known, and comes again. Until it has ended nothing
else is begun, so that no later decision is overtaken by an earlier one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from veilsum_node.driver_faults import DatabaseAwayError

Result = TypeVar("Result")


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
