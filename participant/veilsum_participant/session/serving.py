"""How a participant's process begins: divided or whole, in the interpreter of the command or in one of its own.

A site that is divided starts anew without the command line, so that nothing of what reads an operator's words is beside keys.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

MODULE = "veilsum_participant.session"


def begin(config: Path) -> None:
    """Run the participant until it is told to stop; of a site that may be divided an interpreter of its own does.

    Raises:
        VeilsumError: as :func:`serve`.
    """
    if not _stays(config):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, str(config)])  # noqa: S606  this installation's
    serve(config)


def _stays(config: Path) -> bool:
    """Whether a configuration asks for one process, or cannot be read, or no other can be made; what serves reads it whole."""
    from veilsum_node.process.confinement import offered

    try:
        stated = tomllib.loads(config.read_text(encoding="utf-8")).get("isolation")
    except (OSError, ValueError):
        return True
    return os.environ.get("VEILSUM__ISOLATION", stated) == "none" or not offered().enough


def serve(config: Path) -> None:
    """Run the participant in this process, or in those that it divides itself into, until SIGINT or SIGTERM.

    Raises:
        VeilsumError: the configuration, the identity, the store or the ledger is not in order.
    """
    from veilsum_node.process.imports import loading

    with loading(serves=True):  # gRPC, Arrow and the database
        from veilsum_node.process.hardening import harden
        from veilsum_node.telemetry.logs import start_logging
        from veilsum_participant.session.client import LOG, Parts, run_participant
        from veilsum_participant.settings.config import load_participant_config
        from veilsum_participant.settings.roles import UNCONFINED, unconfined

    harden()
    settings = load_participant_config(config)
    if (why := unconfined(settings)) is None:
        from veilsum_participant.session.launcher import divide

        parts = divide(settings, config)  # from here on this process is the guard
        start_logging(settings.log)
    else:
        from veilsum_participant.front.answering import in_process

        parts = Parts(in_process)
        start_logging(settings.log)
        stated = f'isolation = "{settings.isolation}": {UNCONFINED}'
        LOG.warning("%s", f"{stated}. {why}" if why else stated)
    run_participant(settings, parts)
