"""One interface to whoever is on the other side of a boundary: the same code in this process, or another process.

:class:`~veilsum_participant.boundary.direct.Direct` calls what answers,
:class:`~veilsum_participant.boundary.framing.Caller` sends frames. Both hold requests and answers to the same table.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from veilsum_participant.boundary.encoding import Inquiry, Message

R = TypeVar("R", bound=Message)

Handler = Callable[[Inquiry[Any]], Message]
"""Answers a request, or raises."""

Told = Callable[[Exception], Message]
"""What is said across the boundary of an exception that a handler raised."""


class CallFailedError(Exception):
    """The other side said that it could not do what it was asked.

    Attributes:
        failure: by which message.
    """

    def __init__(self, failure: Message) -> None:
        super().__init__(repr(failure))
        self.failure = failure


class BrokenError(Exception):
    """The other side is gone, answered too late, or sent what the table does not allow; it is not spoken to again."""


class Peer(Protocol):
    """Who is on the other side."""

    def call(self, request: Inquiry[R], seconds: float | None = None) -> R:
        """Ask; from any thread.

        Args:
            request: what is asked.
            seconds: how long the answer is waited for, if that is less than the table says.

        Raises:
            CallFailedError: it says that it failed.
            BrokenError: it is out of order, and so is every later call.
            HostileInput: the request breaks the table's bounds; nothing was sent.
        """

    def close(self) -> None:
        """Let go of it; calls that wait end as broken."""
