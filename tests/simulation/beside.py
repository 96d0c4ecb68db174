"""A method that runs beside the driver: on a thread of its own, but never at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """Work that stops where it waits and goes on when it is told to.

    Args:
        work: what to do; called with the function by which it waits.
    """

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._work = work
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.over = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def resume(self) -> None:
        """Let it go on until it waits again, or ends.

        Raises:
            BaseException: what the work raised.
        """
        if self.over:
            return
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """For the work: wait to be told to go on."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work(self.wait)
        except BaseException as error:  # noqa: BLE001 - handed to whoever resumes
            self._error = error
        self.over = True
        self._back.release()
