"""A boundary within one process."""

from typing import TypeVar, cast

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary.calls import BrokenError, CallFailedError, Handler, Told
from veilsum_participant.boundary.encoding import Inquiry, Message

R = TypeVar("R", bound=Message)


class Direct:
    """What answers is in this process.

    Args:
        handler: answers.
        told: what of its exceptions is said.
    """

    def __init__(self, handler: Handler, told: Told) -> None:
        self._handler, self._told = handler, told

    def call(self, request: Inquiry[R], seconds: float | None = None) -> R:
        """See :class:`~veilsum_participant.boundary.calls.Peer`."""
        request.check()
        try:
            answer = self._handler(request)
        except CallFailedError:
            raise
        except Exception as error:
            raise CallFailedError(self._told(error)) from error
        if type(answer) is not request.answer:
            raise BrokenError(f"{type(request).__name__} was answered by {type(answer).__name__}.")
        try:
            answer.check()
        except HostileInput as error:
            raise BrokenError(str(error)) from error
        return cast(R, answer)

    def close(self) -> None:
        """See :class:`~veilsum_participant.boundary.calls.Peer`; there is nothing to let go of."""
