"""What a peer does again and again takes some lines of the log a minute, and then a count: no peer can fill the disk so.

Only lines that a peer causes at will are bounded: those of a rejected call and of an internal error in one, and those of
sessions that open and end. Each peer has a share of its own, so that one cannot silence what is said of another.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from veilsum_node.telemetry.log_writing import LogSettings, start_logging

LOG = logging.getLogger("veilsum.log")

LINES = 30
"""Lines of one kind that one peer may cause in a window."""

SECONDS = 60.0
"""Length of a window, from the first line on."""

MOST_PEERS = 1024
"""Peers and kinds with a window of their own; all beyond share one."""

ATTRIBUTE = "veilsum_flood"
"""The record's attribute that names its kind and its peer: :func:`caused_by`."""

_OTHERS = ("calls", "others")


def caused_by(kind: str, peer: str) -> dict[str, tuple[str, str]]:
    """For ``extra=`` of a log call: a line that ``peer`` caused, one of many of its ``kind`` if it likes.

    Args:
        kind: what the lines that are left out are called when they are counted, in the plural.
        peer: a certified name or an address.
    """
    return {ATTRIBUTE: (kind, peer)}


def start_bounded_logging(settings: LogSettings | None = None) -> None:
    """:func:`.logs.start_logging`, and count what a peer causes beyond some lines a minute; what was counted last is told when
    the process ends.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    start_logging(settings)
    flood = FloodFilter(_left_out)
    for handler in logging.getLogger().handlers:
        handler.addFilter(flood)
    atexit.register(flood.flush)  # runs before the one of logging itself


def _left_out(kind: str, peer: str, count: int) -> None:
    LOG.warning("%d more %s of %s in the last minute were left out of the log", count, kind, peer)


@dataclass
class _Window:
    since: float
    lines: int = 0
    left_out: int = 0


class FloodFilter(logging.Filter):
    """Lets the first lines of each window pass and counts the others.

    Args:
        tell: called with kind, peer and how many lines were left out, once a window has passed; from a thread of its own.
        clock: monotonic seconds.
        wait: runs an action after so many seconds, for the count of a peer that has gone silent.
    """

    def __init__(
        self,
        tell: Callable[[str, str, int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__()
        self._tell, self._clock, self._wait = tell, clock, wait or _on_a_thread
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        key = getattr(record, ATTRIBUTE, None)
        if key is None:
            return True
        now = self._clock()
        with self._lock:
            over = self._passed(now)
            if key not in self._windows and len(self._windows) >= MOST_PEERS:
                key = _OTHERS
            window = self._windows.setdefault(key, _Window(now))
            window.lines += 1
            passes = window.lines <= LINES
            window.left_out += not passes
            first = window.left_out == 1
        for (kind, peer), count in over:
            self._tell(kind, peer, count)
        if first:
            self._wait(window.since + SECONDS - now, self.flush_passed)
        return passes

    def flush_passed(self) -> None:
        """Tell the counts of windows that have passed."""
        with self._lock:
            over = self._passed(self._clock())
        for (kind, peer), count in over:
            self._tell(kind, peer, count)

    def flush(self) -> None:
        """Tell every count now: the process ends."""
        with self._lock:
            over = [(key, window.left_out) for key, window in self._windows.items() if window.left_out]
            self._windows.clear()
        for (kind, peer), count in over:
            self._tell(kind, peer, count)

    def _passed(self, now: float) -> list[tuple[tuple[str, str], int]]:
        over = [key for key, window in self._windows.items() if now - window.since >= SECONDS]
        counts = [(key, self._windows.pop(key).left_out) for key in over]
        return [(key, count) for key, count in counts if count]


def _on_a_thread(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(max(seconds, 0.0) + 0.1, action)
    timer.daemon = True  # a process that ends tells its counts by itself
    timer.name = "log counts"
    timer.start()
