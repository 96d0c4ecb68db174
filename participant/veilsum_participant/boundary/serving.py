"""The side of a boundary that answers: what the others of a site run, and its guard does not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary.calls import BrokenError, CallFailedError, Handler, Told
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import FAILED, MOST_CALLS, FramedSocket, Lane


def serve(
    line: FramedSocket,
    requests: Sequence[type[Inquiry[Any]]],
    handler: Handler,
    told: Told,
    *,
    threads: int = MOST_CALLS,
    at_once: Sequence[type[Inquiry[Any]]] = (),
) -> None:
    """Answer what comes, until the other side ends.

    Args:
        line: to who asks.
        requests: what may be asked.
        handler: answers, from one of the threads.
        told: what of its exceptions is said.
        threads: calls that are answered at a time.
        at_once: requests that are answered in the thread that reads, before whatever comes after them.

    Raises:
        HostileInput: something else than a request comes.
    """
    known = {each.code: each for each in requests}

    def answer(request: Inquiry[Any], call: int, lane: Lane | None) -> None:
        message: Message
        code = FAILED
        try:
            message = handler(request)
            code = request.code
        except CallFailedError as error:
            message = error.failure
        except Exception as error:  # noqa: BLE001 - said across the boundary
            message = told(error)
        with contextlib.suppress(BrokenError):  # who asked is gone, and so will this process be
            try:
                line.send(code, call, message, lane)
            except HostileInput as error:  # the answer itself is beyond its bounds: say that it failed
                line.send(FAILED, call, told(error))

    with ThreadPoolExecutor(threads, thread_name_prefix="call") as pool:
        try:
            while (frame := line.receive()) is not None:
                if frame.code not in known:
                    raise HostileInput("A request is none that there is.")
                request = frame.read(known[frame.code], known[frame.code].most, frame.lane)
                if type(request) in at_once:
                    answer(request, frame.call, frame.lane)
                else:
                    pool.submit(answer, request, frame.call, frame.lane)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            line.close()
