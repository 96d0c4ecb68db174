"""A participant whose front has nothing to say, and says so as soon as it is asked for the next directive.

``python -P -m support.restless_front CONFIG`` runs the participant, whose log tells how long many requests took. With a
descriptor and bounds in the place of the configuration it is the front.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from veilsum_node.process.confinement import Bounds

ASKED = 40
"""Requests after which it tells how long they took."""

TOLD = f"ASKED {ASKED} TIMES IN "
"""Before the seconds, in the participant's log."""


def restless() -> Any:
    """The front's module, which answers :class:`Next` by nothing and by pings in turn."""
    answering = importlib.import_module("veilsum_participant.front.answering")
    says = importlib.import_module("veilsum_participant.boundary.front")
    ping = says.Directive(kind=says.DirectiveKind.PING).to_bytes()
    real, times = answering.Front.answer, list[float]()

    def answer(front: Any, request: Any) -> Any:
        if type(request) is not says.Next:
            return real(front, request)
        times.append(time.monotonic())
        if len(times) == ASKED:
            print(f"2026-01-01T00:00:00Z WARNING {TOLD}{times[-1] - times[0]:.6f}", file=sys.stderr, flush=True)
        return says.Came(directive=ping) if len(times) % 2 else says.Came()

    answering.Front.answer = answer
    return importlib.import_module("veilsum_participant.front.__main__")


def main() -> None:
    first, *bounds = sys.argv[1:]
    if bounds:
        status = restless().main(int(first), Bounds.from_text(*bounds))
        sys.stderr.flush()
        os._exit(status)
    from veilsum_participant.session import launcher
    from veilsum_participant.session.__main__ import main as serve

    launcher.ROLES["front"] = "support.restless_front"
    serve(Path(first))


if __name__ == "__main__":
    main()
