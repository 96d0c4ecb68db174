"""How a worker begins and ends: with its guard, and without a word that could quote a record."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from veilsum_node.process.hardening import end_with_parent, go_first


@contextmanager
def ends_with_it() -> Iterator[None]:
    """This process is over when the block is, whatever it raised and whatever still works; signals are its guard's to take."""
    try:
        end_with_parent()
        go_first()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        yield
    except BaseException as error:  # noqa: BLE001  whatever it is, its words may quote a record
        traceback.print_tb(error.__traceback__, limit=-4)
        print(type(error).__name__, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # threads that still work, or hang, hold nobody up
