"""One of the demo's processes: a ``veilsum`` command that stops when the demo that started it is gone.

The demo holds the other end of standard input and never writes to it: the end of the stream means that the demo has died,
even if it was killed and could end nobody. A paused process notices when it goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from veilsum_deploy.cli import main


def _stop_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    main(sys.argv[1:])
