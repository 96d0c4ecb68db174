"""One of the demo's processes: a ``veilsum`` command, forked from a server that has loaded the code once.

Five interpreters of their own would each spend a second on loading the same modules. A fork does what an interpreter does from
its arguments on, with files, keys, connections and randomness of its own: the server opens nothing, draws nothing and starts
no thread. What it loads is :mod:`.loaded`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from veilsum_coordinator.results.reproduction import set_to_one

_FORKS = multiprocessing.get_context("forkserver")


def load() -> None:
    """Start the server if it does not run. It loads the code beside whatever the caller does next."""
    _FORKS.set_forkserver_preload(["veilsum_deploy.demo.loaded"])
    with set_to_one(["PYTHONSAFEPATH"]):  # nothing is loaded from the directory that the demo is started in
        forkserver.ensure_running()


def fork(arguments: Sequence[str], log: Path) -> ForkServerProcess:
    """Start a command in this process's directory, with output and errors to the end of ``log``.

    It leads a process group of its own, and stops when this process is gone, however that ended.
    """
    load()
    process = _FORKS.Process(target=run, args=(tuple(arguments), log.absolute()))
    process.start()
    return process


def run(arguments: Sequence[str], log: Path) -> None:
    """What the forked process does: the command, with files and signals set up as for a service."""
    os.setsid()
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for own, other in ((0, nothing), (1, output), (2, output)):
            os.dup2(other.fileno(), own)
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    from veilsum_deploy.cli import main

    try:
        main(list(arguments))
    finally:
        atexit._run_exitfuncs()  # a fork ends without them, an interpreter does not


def _stop_with_parent() -> None:
    """Wait for the end of the demo's process, even if it was killed and could end nobody. A paused process notices when it
    goes on."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
