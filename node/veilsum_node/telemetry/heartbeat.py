"""Whether a process that serves metrics, or has them served, still lives."""

import time


class Heartbeat:
    """Tells whether a loop still turns: the loop calls :meth:`beat`, the endpoint asks :meth:`alive`.

    Args:
        seconds: how long the loop may take for one turn.
    """

    def __init__(self, seconds: float = 120.0) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def beat(self) -> None:
        """The loop has turned."""
        self._last = time.monotonic()

    def alive(self) -> bool:
        """Whether it turned lately."""
        return time.monotonic() - self._last <= self._seconds
