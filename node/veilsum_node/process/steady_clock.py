"""What waits are measured by: seconds that pass, whatever happens to the system's clock.

A clock that is set an hour forward ends no round, and one that is set back makes none longer. Certificates, the end of a study
and what is written down go by the time of day.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable

SET_SECONDS = 5.0
"""A difference between time of day and elapsed time from which the clock was set rather than read to the second."""

RETURN_SECONDS = 30.0
"""How long everybody may take to dial again after a process stood still: a participant's longest pause between two tries."""

STILL_SECONDS = 10.0
"""A longer time between two looks is a process that stood still: on a suspended machine, on a paused one, or on a busy one."""


TICK_SECONDS = 1.0


def now() -> int:
    """The time of day, Unix seconds."""
    return int(time.time())


class SteadyClock:
    """Counts seconds from the time of day at which it was made, and tells in the log what happens to the clock. Thread-safe;
    what it tells it tells when it is asked, so let it :meth:`keep` itself.

    Args:
        clock: time of day, Unix seconds.
        log: where to tell.
        rest: seconds that do not count after the process stood still, nor does that: it could hear nobody meanwhile, and
            everybody may have to dial again. None: all of it counts.
        elapsed: seconds from some moment, which nobody can set.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        log: logging.Logger,
        *,
        rest: float | None = None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._log, self._rest, self._elapsed = clock, log, rest, elapsed
        self._lock = threading.Lock()
        self._day, self._last = clock(), elapsed()
        self._now, self._left = float(self._day), 0.0
        self._granted = self._now - (rest or 0.0)

    def keep(self) -> "SteadyClock":
        """Look every second from a thread of its own: who waits for a network, a disk or a lock does not stand still."""
        threading.Thread(target=_tick, args=(weakref.ref(self),), name="clock", daemon=True).start()
        return self

    def __call__(self) -> int:
        """The seconds; they never go back."""
        with self._lock:
            day, last = self._clock(), self._elapsed()
            step = max(0.0, last - self._last)
            change = day - self._day - step
            self._day, self._last = day, last
            if step > STILL_SECONDS and self._rest is not None:
                if self._now - self._granted >= self._rest:  # as much has counted since it was granted: it goes on in any case
                    self._left, self._granted = self._rest, self._now
            else:
                uncounted = min(step, self._left)
                self._left -= uncounted
                self._now += step - uncounted
            now = int(self._now)
        if abs(change) > SET_SECONDS:
            way = "forward" if change > 0 else "back"
            self._log.warning(
                "the clock jumped %s by %.0f s, or the machine slept; deadlines are not affected", way, abs(change)
            )
        if step > STILL_SECONDS:
            longer = "" if self._rest is None else f"; deadlines are extended by that and {self._rest:.0f} s"
            self._log.warning("this process was suspended for %.0f s%s", step, longer)
        return now


def _tick(clock: weakref.ref[SteadyClock]) -> None:
    while (found := clock()) is not None:
        found()
        del found
        time.sleep(TICK_SECONDS)
