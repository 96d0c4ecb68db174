"""What a site does while its own disk takes nothing, be it full, failing or mounted to be read only: it waits.

Nothing was decided then, so nothing is said to the coordinator, whose deadlines go on. Before its consent a site holds up the
others for a minute at most and then refuses; from there on others may have paid, so it answers as soon as it can.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from veilsum_node.database import Database
from veilsum_node.errors import Damage, Unavailable
from veilsum_node.telemetry.logs import about
from veilsum_participant.boundary.front import DirectiveKind

LOG = logging.getLogger("veilsum.participant")

REFUSING_SECONDS = 60.0
"""How long a site tries to answer what costs nobody anything yet, before it refuses."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
PROBE_SECONDS = 2.0

_BEFORE_CONSENT = (
    DirectiveKind.ENROL,
    DirectiveKind.SEAL,
    DirectiveKind.UNSEAL,
    DirectiveKind.CONTRIBUTE,
    DirectiveKind.CHECK,
)

Result = TypeVar("Result")


def patience(kind: int) -> float:
    """Seconds for which a directive of this kind is tried again."""
    return REFUSING_SECONDS if kind in _BEFORE_CONSENT else math.inf


def patiently(work: Callable[[], Result], seconds: float, over: threading.Event) -> Result:
    """Do ``work``, again with growing pauses while the site's disk takes nothing.

    Args:
        work: decides nothing, and says nothing, before what it writes is durable.
        seconds: how long at most.
        over: nobody waits for the answer any more.

    Raises:
        Unavailable: the disk took nothing within the time.
        Exception: what ``work`` raises besides.
    """
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    while True:
        try:
            return work()
        except Unavailable:
            if time.monotonic() + pause > end or over.wait(pause):
                raise
        pause = min(2 * pause, LONGEST_PAUSE)


class StoreWatch:
    """Tells in the log, once each, that the site's state cannot be written and that it can again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._since: float | None = None
        self._due = 0.0

    def look(self) -> None:
        """Look, and try to write where that failed before; call it every second or so."""
        now, fault = time.monotonic(), self._database.write_fault
        if fault and self._since is None:
            self._since, self._due = now, now + PROBE_SECONDS
            LOG.error("this site's state cannot be written; work that needs it waits: %s", fault, extra=about("database"))
        elif fault and now >= self._due:
            self._due = now + PROBE_SECONDS
            try:
                self._database.probe()
            except (Unavailable, Damage):
                return
        if self._since is not None and not self._database.write_fault:
            LOG.info("this site's state can be written again after %.1f s", now - self._since, extra=about("database"))
            self._since = None
