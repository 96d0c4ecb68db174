"""Figures that are expensive to compute, for whoever asks often and must not wait."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from veilsum_node.errors import VeilsumError

LOG = logging.getLogger("veilsum.monitoring")

Figure = TypeVar("Figure")

_SHARE = 20.0  # a figure that takes a second is computed every 20 seconds at most


class Refreshed(Generic[Figure]):
    """A figure, computed in a thread of its own when somebody asks and the last one is old.

    Who asks waits a little for the new one, and gets the last one if that takes longer. A computation that fails leaves the
    last one as it is.

    Args:
        what: its name, for the log.
        seconds: how long one holds; longer where it took more than a twentieth of that.
        patience: how long who asks waits, in seconds.
    """

    def __init__(self, compute: Callable[[], Figure], what: str, *, seconds: float = 5.0, patience: float = 2.0) -> None:
        self._compute, self._what, self._seconds, self._patience = compute, what, seconds, patience
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._due, self._began, self._busy, self._failed = 0.0, 0.0, False, False
        self._value: Figure | None = None

    def get(self) -> Figure | None:
        """The figure, None before the first."""
        with self._lock:
            if not self._busy and time.monotonic() >= self._due:
                self._began, self._busy, self._done = time.monotonic(), True, threading.Event()
                threading.Thread(target=self._refresh, name=f"refresh {self._what}", daemon=True).start()
            done, busy = self._done, self._busy
        if busy:
            done.wait(self._patience)
        return self._value

    @property
    def failed(self) -> bool:
        """Whether the last computation failed, none has ended yet, or one takes longer than anybody waits."""
        late = self._busy and time.monotonic() - self._began >= self._patience
        return self._failed or self._value is None or late

    def _refresh(self) -> None:
        start = time.monotonic()
        try:
            self._value = self._compute()
            self._failed = False
        except VeilsumError as error:
            if not self._failed:
                LOG.warning("%s cannot be read: %s", self._what, error.message)
            self._failed = True
        except Exception as error:
            if not self._failed:
                LOG.error("%s cannot be read: internal error", self._what, exc_info=error)
            self._failed = True
        finally:
            with self._lock:
                end = time.monotonic()
                self._due, self._busy = end + max(self._seconds, _SHARE * (end - start)), False
            self._done.set()
