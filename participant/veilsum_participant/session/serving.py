"""How a participant's process begins that may be divided: in an interpreter of its own (:mod:`.whole` has the others).

A site that is divided starts anew without the command line, so that nothing of what reads an operator's words is beside keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from veilsum_node.errors import Unavailable

MODULE = "veilsum_participant.session"


class Installed:
    """The installation that a participant was started from, which may be replaced beneath it: what is loaded of another one
    would be mixed with what it has. Stands among the finders of modules, and finds none."""

    def __init__(self) -> None:
        self._first, self._told = self._now(), False

    @staticmethod
    def _now() -> tuple[int, ...]:
        with contextlib.suppress(OSError):  # in an archive, or an installer has taken it away
            found = os.stat(__file__)
            return found.st_size, found.st_mtime_ns  # some file systems number a file anew
        return ()

    def check(self) -> None:
        """Raise Unavailable, and log it once, if it is another one by now."""
        if self._now() == self._first:
            return
        fault = Unavailable("Another version was installed while the participant runs.", "Restart the participant.")
        if not self._told:
            logging.getLogger("veilsum.participant").error("%s", fault)
        self._told = True
        raise fault

    def find_spec(self, name: str, *_: object) -> None:
        """Nothing, or Unavailable."""
        if name.startswith("veilsum_"):
            self.check()


INSTALLED = Installed()


def serve(config: Path) -> None:
    """Run the participant in the processes that this one divides itself into, until SIGINT or SIGTERM; in this one where its
    configuration says so.

    Raises:
        VeilsumError: the configuration, the identity, the store or the ledger is not in order.
    """
    from veilsum_node.process.memory import loading

    with loading(serves=True):  # Arrow and the database
        from veilsum_node.process.hardening import harden
        from veilsum_participant.session.client import run_participant
        from veilsum_participant.session.launcher import Whole, divide

    harden()
    sys.meta_path.insert(0, INSTALLED)
    divided = divide(config)  # from here on this process is the guard
    if isinstance(divided, Whole):
        from veilsum_participant.session.whole import run_whole

        run_whole(*divided)
        return
    run_participant(*divided)
