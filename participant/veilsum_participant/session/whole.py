"""How a participant's process begins in the interpreter of an operator's command, and how a site is served whole, in one.

Of a divided site's guard nothing of this is a part: that starts anew without the command line, so that nothing of what reads
an operator's words is beside keys.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_participant.session.serving import INSTALLED, MODULE, serve

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig


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


def _serve_whole(config: Path) -> None:
    """Run the participant in this process, until SIGINT or SIGTERM."""
    from veilsum_node.process.memory import loading

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
        run_whole(settings, why, set_variables())


def run_whole(settings: ParticipantConfig, why: str, variables: Sequence[str]) -> None:
    """Run it in this process, and say so."""
    sys.meta_path.insert(0, INSTALLED)
    from veilsum_node.telemetry.log_floods import start_bounded_logging
    from veilsum_participant.front.answering import in_process
    from veilsum_participant.session.client import LOG, Parts, run_participant
    from veilsum_participant.settings.roles import UNCONFINED
    from veilsum_participant.settings.telling import say_start

    start_bounded_logging(settings.log)
    stated = f'isolation = "{settings.isolation}": {UNCONFINED}'
    LOG.warning("%s", f"{stated}. {why}" if why else stated)
    say_start(settings, variables)
    run_participant(settings, Parts(in_process))
