"""How a participant's process begins: divided or whole, in the interpreter of the command or in one of its own.

A site that is divided starts anew without the command line, so that nothing of what reads an operator's words is beside keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.errors import Unavailable

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig

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


def begin(config: Path) -> None:
    """Run the participant until it is told to stop; of a site that may be divided an interpreter of its own does.

    Raises:
        VeilsumError: as :func:`serve`.
    """
    if not _stays(config):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, str(config)])  # noqa: S606  this installation's
    _serve_whole(config)


def _stays(config: Path) -> bool:
    """Whether a configuration asks for one process, or cannot be read, or no other can be made; what serves reads it whole."""
    from veilsum_node.process.confinement import offered

    try:
        stated = tomllib.loads(config.read_text(encoding="utf-8")).get("isolation")
    except (OSError, ValueError):
        return True
    return os.environ.get("VEILSUM__ISOLATION", stated) == "none" or not offered().enough


def serve(config: Path) -> None:
    """Run the participant in the processes that this one divides itself into, until SIGINT or SIGTERM; in this one where its
    configuration says so.

    Raises:
        VeilsumError: the configuration, the identity, the store or the ledger is not in order.
    """
    from veilsum_node.process.imports import loading

    with loading(serves=True):  # Arrow and the database
        from veilsum_node.process.hardening import harden
        from veilsum_node.telemetry.logs import start_logging
        from veilsum_participant.session.client import run_participant
        from veilsum_participant.session.launcher import Whole, divide

    harden()
    sys.meta_path.insert(0, INSTALLED)
    divided = divide(config)  # from here on this process is the guard
    if isinstance(divided, Whole):
        _run_whole(*divided)
        return
    settings, parts = divided
    start_logging(settings.log)
    run_participant(settings, parts)


def _serve_whole(config: Path) -> None:
    """Run the participant in this process, until SIGINT or SIGTERM."""
    from veilsum_node.process.imports import loading

    with loading(serves=True):  # gRPC, Arrow and the database
        from veilsum_node.overrides import set_variables
        from veilsum_node.process.hardening import harden
        from veilsum_participant.session import client as client  # with what it needs
        from veilsum_participant.settings.config import load_participant_config
        from veilsum_participant.settings.roles import unconfined

    harden()
    settings = load_participant_config(config)
    if (why := unconfined(settings)) is None:  # which the kernel hinders
        serve(config)
    else:
        _run_whole(settings, why, set_variables())


def _run_whole(settings: ParticipantConfig, why: str, variables: Sequence[str]) -> None:
    """Run it in this process, and say so."""
    sys.meta_path.insert(0, INSTALLED)
    from veilsum_node.telemetry.logs import start_logging
    from veilsum_participant.front.answering import in_process
    from veilsum_participant.session.client import LOG, Parts, run_participant
    from veilsum_participant.settings.roles import UNCONFINED
    from veilsum_participant.settings.telling import cautions

    start_logging(settings.log)
    stated = f'isolation = "{settings.isolation}": {UNCONFINED}'
    LOG.warning("%s", f"{stated}. {why}" if why else stated)
    run_participant(settings, Parts(in_process, variables=variables, cautions=cautions(settings)))
