"""Serves a site's metrics over HTTP, and asks its guard for them (:mod:`veilsum_participant.boundary.metrics`)."""

import queue
import socket
import threading
from collections.abc import Callable

from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_node.telemetry.endpoint import MetricsServer
from veilsum_node.telemetry.endpoint_settings import MetricsSettings
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.metrics import QUIET, Asked, AwaitQuestion, EndpointDone, EndpointFault, GiveAnswer, Question

PATIENCE = 10.0
"""Seconds that a caller waits for the guard."""

STALLED = "stalled"


class Endpoint:
    """Answers the guard, and callers by it.

    Args:
        settings: of the endpoint.
        listening: the socket that the launcher bound.

    Raises:
        ConfigurationError: a file of the settings cannot be used.
    """

    def __init__(self, settings: MetricsSettings, listening: socket.socket) -> None:
        self._questions: queue.Queue[Question] = queue.Queue()
        self._waiting: dict[int, tuple[threading.Event, list[bytes]]] = {}
        self._lock, self._turn = threading.Lock(), 0
        settings = settings.model_copy(update={"ready_file": None})  # the launcher's to write
        server = MetricsServer(self._page, settings, ready=self._ready, alive=self._alive)
        server.start(listening)

    def answer(self, request: Inquiry[Message]) -> Message:
        """Answer the guard."""
        match request:
            case AwaitQuestion():
                try:
                    return self._questions.get(timeout=QUIET)
                except queue.Empty:
                    return Question(Asked.NOTHING)
            case GiveAnswer(turn, said):
                with self._lock:
                    found = self._waiting.get(turn)
                if found is not None:  # whoever asked may have gone
                    found[1].append(said)
                    found[0].set()
                return EndpointDone()
        raise Misuse("An endpoint is asked for what there is not.")

    def _ask(self, what: Asked) -> bytes | None:
        """What the guard says; None if it says nothing in time."""
        arrived, said = threading.Event(), list[bytes]()
        with self._lock:
            self._turn += 1
            turn = self._turn
            self._waiting[turn] = arrived, said
        try:
            self._questions.put(Question(what, turn))
            return said[0] if arrived.wait(PATIENCE) else None
        finally:
            with self._lock:
                del self._waiting[turn]

    def _page(self, wanted: bool) -> bytes:
        found = self._ask(Asked.OPENMETRICS if wanted else Asked.PAGE)
        if found is None:
            raise TimeoutError("the site does not answer")  # the connection ends
        return found

    def _ready(self) -> str:
        found = self._ask(Asked.READY)
        return STALLED if found is None else found.decode("ascii", "replace")

    def _alive(self) -> bool:
        return self._ask(Asked.ALIVE) == b""


def unusable(error: ConfigurationError) -> Callable[[Inquiry[Message]], Message]:
    """What answers where the endpoint cannot serve."""

    def answer(_: Inquiry[Message]) -> Message:
        raise error

    return answer


def told(error: Exception) -> EndpointFault:
    """What is said of an exception across the boundary."""
    if isinstance(error, ConfigurationError):
        return EndpointFault(error.message[:1000], error.advice[:1000])
    return EndpointFault(type(error).__name__)
