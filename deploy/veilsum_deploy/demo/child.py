"""One of the demo's processes: a ``veilsum`` command that stops when the demo that started it is gone.

The demo holds the other end of standard input and never writes to it: the end of the stream means that the demo has died,
even if it was killed and could end nobody. A paused process notices when it goes on. One that is started ahead, before its
configuration is written, loads what its command needs and waits for the one byte that it is ever sent.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading

from veilsum_deploy.cli import main

AHEAD = "--ahead"


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == AHEAD:
        importlib.import_module(arguments[1])
        if not os.read(0, 1):
            sys.exit()
        arguments = arguments[2:]
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    main(arguments)
