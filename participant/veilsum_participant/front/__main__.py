"""A front in a process of its own: ``python -m veilsum_participant.front FD BOUNDS``; the descriptor leads to the guard.

It ends when the guard closes its end, whatever signals it is sent before: the guard may still have something to say.
"""

import os
import socket
import sys
from contextlib import suppress

from veilsum_node.process.confinement import Bounds, confine
from veilsum_node.process.hardening import end_with_parent, go_first
from veilsum_node.process.memory import loading


def main(descriptor: int, bounds: Bounds) -> int:
    """Answer the guard at the other end of a socket until it ends; returns the exit status."""
    end_with_parent(only=True)
    go_first()
    confine(bounds, keep=(descriptor,))
    with loading(serves=True):
        from veilsum_node.errors import HostileInput
        from veilsum_participant.boundary.framing import FramedSocket
        from veilsum_participant.boundary.front import REQUESTS, Hang
        from veilsum_participant.boundary.serving import serve
        from veilsum_participant.front.answering import Front, told

    front = Front()
    try:
        serve(FramedSocket(socket.socket(fileno=descriptor)), REQUESTS, front.answer, told, at_once=(Hang,))
    except HostileInput as error:
        print(f"the guard's requests are malformed: {error}", file=sys.stderr)
        return 1
    finally:
        front.hang()
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]), Bounds.from_text(sys.argv[2]))
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)  # calls that a thread still waits for are nobody's any more
