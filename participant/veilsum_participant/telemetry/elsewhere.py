"""Metrics that another process serves: the guard's side, which reads nothing of who asks for them."""

import contextlib
import logging
import threading
from collections.abc import Callable

from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_node.telemetry.exposition import Page
from veilsum_node.telemetry.logs import printable
from veilsum_participant.boundary.calls import BrokenError, CallFailedError
from veilsum_participant.boundary.framing import Caller, FramedSocket
from veilsum_participant.boundary.metrics import Asked, AwaitQuestion, EndpointFault, GiveAnswer, Question
from veilsum_participant.worker.starting import StartedWorker, WorkerStarter

LOG = logging.getLogger("veilsum.participant")

ROLE = "metrics"

PAUSE = 5.0
"""Seconds before a process that ended is started again."""


class EndpointElsewhere:
    """Answers what the endpoint's process is asked, on a thread of its own, until it is stopped.

    Args:
        page, ready, alive: as of :class:`veilsum_node.telemetry.endpoint.MetricsServer`.

    Raises:
        ConfigurationError: the process cannot serve as configured.
        Unavailable: it cannot be started.
    """

    def __init__(self, starter: WorkerStarter, page: Page, *, ready: Callable[[], str], alive: Callable[[], bool]) -> None:
        self._starter, self._page, self._ready, self._alive = starter, page, ready, alive
        self._stopping = threading.Event()
        self._running = self._begun()
        threading.Thread(target=self._loop, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """End the process."""
        self._stopping.set()
        self._end()

    def _begun(self) -> tuple[StartedWorker, Caller]:
        started = self._starter.start(ROLE)
        caller = Caller(FramedSocket(started.socket), EndpointFault)
        try:
            caller.call(GiveAnswer())  # to nobody: it serves, or says why not
        except CallFailedError as error:
            fault = error.failure
            told = (fault.words, fault.advice) if isinstance(fault, EndpointFault) else ("", "")
            caller.close()
            started.end()
            raise ConfigurationError(printable(told[0]) or "The metrics cannot be served.", printable(told[1])) from error
        except BrokenError as error:
            started.end()
            raise ConfigurationError(f"The metrics cannot be served: {error}") from error
        return started, caller

    def _end(self) -> None:
        self._running[1].close()
        self._running[0].end()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            caller = self._running[1]
            try:
                self._answer(caller, caller.call(AwaitQuestion()))
            except (BrokenError, CallFailedError) as error:
                if self._stopping.is_set():
                    return
                LOG.warning("what serves the metrics is started again: %s", error)
                self._end()
                self._again()

    def _again(self) -> None:
        while not self._stopping.wait(PAUSE):
            with contextlib.suppress(VeilsumError):
                self._running = self._begun()
                if self._stopping.is_set():
                    self._end()
                return

    def _answer(self, caller: Caller, question: Question) -> None:
        match question.what:
            case Asked.PAGE | Asked.OPENMETRICS:
                said = self._page(question.what == Asked.OPENMETRICS)
            case Asked.READY:
                said = self._ready().encode()
            case Asked.ALIVE:
                said = b"" if self._alive() else b"stalled"
            case _:
                return
        caller.call(GiveAnswer(question.turn, said))
