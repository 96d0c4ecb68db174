"""Metrics that another process serves: the guard's side, which reads nothing of who asks for them."""

import contextlib
import logging
import threading
from collections.abc import Callable

from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_node.telemetry.exposition import Page
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.metrics import Asked, AwaitQuestion, EndpointFault, GiveAnswer, Question
from veilsum_participant.worker.keeping import Kept
from veilsum_participant.worker.starting import WorkerStarter

LOG = logging.getLogger("veilsum.participant")

ROLE = "metrics"

PAUSE = 5.0
"""Seconds before a process that ended is started again."""


class EndpointElsewhere(Kept):
    """Answers what the endpoint's process is asked, on a thread of its own, until it is stopped.

    Args:
        page, ready, alive: as of :class:`veilsum_node.telemetry.endpoint.MetricsServer`.

    Raises:
        ConfigurationError: the process cannot serve as configured.
        Unavailable: it cannot be started.
    """

    def __init__(self, starter: WorkerStarter, page: Page, *, ready: Callable[[], str], alive: Callable[[], bool]) -> None:
        super().__init__(starter, ROLE, EndpointFault)
        self._page, self._ready, self._alive = page, ready, alive
        self._stopping = threading.Event()
        self._begun()
        threading.Thread(target=self._loop, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """End the process."""
        self._stopping.set()
        self.end()

    def _begun(self) -> None:
        self.begin()
        try:
            self.call(GiveAnswer())  # to nobody: it serves, or says why not
        except CallFailedError as error:
            fault = error.failure
            told = (fault.words, fault.advice) if isinstance(fault, EndpointFault) else ("", "")
            self.end()
            raise ConfigurationError(printable(told[0]) or "The metrics cannot be served.", printable(told[1])) from error
        except BrokenError as error:
            self.end()
            raise ConfigurationError(f"The metrics cannot be served: {error}") from error

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._answer(self.call(AwaitQuestion()))
            except (BrokenError, CallFailedError) as error:
                if self._stopping.is_set():
                    return
                LOG.warning("what serves the metrics is started again: %s", error)
                self.end()
                self._again()

    def _again(self) -> None:
        while not self._stopping.wait(PAUSE):
            with contextlib.suppress(VeilsumError):
                self._begun()
                if self._stopping.is_set():
                    self.end()
                return

    def _answer(self, question: Question) -> None:
        match question.what:
            case Asked.PAGE | Asked.OPENMETRICS:
                said = self._page(question.what == Asked.OPENMETRICS)
            case Asked.READY:
                said = self._ready().encode()
            case Asked.ALIVE:
                said = b"" if self._alive() else b"stalled"
            case _:
                return
        self.call(GiveAnswer(question.turn, said))
