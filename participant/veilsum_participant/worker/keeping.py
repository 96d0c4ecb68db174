"""Processes that a guard keeps: each is started where it is asked, anew where it is out of order, and ended without work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from veilsum_participant.boundary.calls import BrokenError
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import Caller, FramedSocket
from veilsum_participant.worker.starting import StartedWorker, WorkerStarter

IDLE = 600.0
"""Seconds that a process of a pool waits for more work."""

MOST = 4
"""Processes of a pool that wait at a time."""

_R = TypeVar("_R", bound=Message)
_Key = TypeVar("_Key")


class Kept:
    """A process that is kept.

    Args:
        starter: of processes.
        role, of: as of :meth:`.WorkerStarter.start`.
        failure: the class of messages by which it says that it failed.

    Attributes:
        lock: held by whoever has it work, and by who ends it for want of work.
        used: when it last had work, of the monotonic clock.
    """

    def __init__(self, starter: WorkerStarter, role: str, failure: type[Message], of: str = "") -> None:
        self._starter, self._role, self._of, self._failure = starter, role, of, failure
        self._running: tuple[StartedWorker, Caller] | None = None
        self.lock, self.used = threading.RLock(), time.monotonic()

    @property
    def broken(self) -> str:
        """Why nobody can ask it; empty while it runs."""
        return "It does not run." if self._running is None else self._running[1].broken

    def begin(self) -> Caller | None:
        """Have it run: who asks it, if it was started now.

        Raises:
            Unavailable: it cannot be.
        """
        if not self.broken:
            return None
        self.end()
        started = self._starter.start(self._role, self._of)
        self._running = started, Caller(FramedSocket(started.socket), self._failure)
        return self._running[1]

    def call(self, request: Inquiry[_R], seconds: float | None = None) -> _R:
        """See :class:`~veilsum_participant.boundary.calls.Peer`; one that was not begun is broken."""
        if (running := self._running) is None:
            raise BrokenError(self.broken)
        try:
            return running[1].call(request, seconds)
        finally:
            self.used = time.monotonic()

    def end(self) -> None:
        """End it, whatever it does."""
        running, self._running = self._running, None
        if running is not None:
            running[1].close()
            running[0].end()


_P = TypeVar("_P", bound=Kept)


class Pool(Generic[_Key, _P]):
    """Processes of one kind, by what they are for.

    Args:
        make: one, which does not run yet.
        wait: whether one more than :data:`MOST` waits for another's work to end; else it runs beside it.
    """

    def __init__(self, make: Callable[[_Key], _P], *, wait: bool) -> None:
        self._make, self._wait = make, wait
        self._known: dict[_Key, _P] = {}
        self._guarding = threading.Lock()
        self._timer: threading.Timer | None = None

    def of(self, key: _Key) -> _P:
        """The process for this."""
        with self._guarding:
            if (found := self._known.get(key)) is None:
                found = self._known[key] = self._make(key)
            if self._timer is None:
                self._watch()
            found.used = time.monotonic()
        self._end_idle()
        return found

    def drop(self, over: Callable[[_Key], bool]) -> None:
        """End the processes that there is no more work for; one that works ends later, for want of it."""
        with self._guarding:
            dropped = [(key, kept) for key, kept in self._known.items() if over(key)]
        for key, kept in dropped:
            self._end(key, kept, wait=False, forget=True)

    def close(self) -> None:
        """End all of them."""
        with self._guarding:
            known, self._known = self._known, {}
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        for kept in known.values():
            with kept.lock:
                kept.end()

    def _watch(self) -> None:
        self._timer = threading.Timer(IDLE / 4, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        self._end_idle()
        with self._guarding:
            self._timer = None
            if self._known:
                self._watch()

    def _end_idle(self) -> None:
        """End those that had no work for long, and of those that wait all but the last few."""
        now = time.monotonic()
        with self._guarding:
            latest = sorted(self._known.items(), key=lambda item: item[1].used, reverse=True)
        for place, (key, kept) in enumerate(latest):
            idle = now - kept.used >= IDLE
            if place >= MOST or idle:
                self._end(key, kept, wait=self._wait, forget=idle)

    def _end(self, key: _Key, kept: _P, *, wait: bool, forget: bool) -> None:
        """End one, unless it works and is not waited for."""
        if kept.lock.acquire(blocking=wait):
            try:
                kept.end()
                with self._guarding:
                    if forget and self._known.get(key) is kept:
                        del self._known[key]
            finally:
                kept.lock.release()
