"""Sees from outside, in files and databases, that the moment of a strike has come."""

from __future__ import annotations

import time
from collections.abc import Callable

from chaos.federation import Federation
from chaos.plans import COORDINATOR, Moment
from chaos.reading import glimpse

RANKS = ("reserved", "payload", "consented", "released")
ATTEMPTS = "SELECT state FROM participant_attempt WHERE study = ?"
ENTRIES = "SELECT max(seq) AS n FROM ledger"
TABLES = {
    "begin": "SELECT count(*) AS n FROM coordinator_round WHERE study = ?",
    "sum": "SELECT count(*) AS n FROM coordinator_sum WHERE study = ?",
    "release": "SELECT count(*) AS n FROM coordinator_release WHERE study = ?",
}
LOOK_SECONDS = 0.012
"""Pause between two looks into one database: a round takes some tenths of a second."""


def watch(federation: Federation, moment: Moment, key: bytes, begin: float) -> Callable[[], bool]:
    """A function that tells whether the moment has come, to be called again and again.

    Args:
        key: the study's digest.
        begin: when it was submitted, by :func:`time.monotonic`.
    """
    if moment.kind == "time":
        return lambda: time.monotonic() - begin >= moment.seconds
    if moment.kind == "log":
        return _Lines(federation, moment).come
    if moment.kind == "start":
        return _Start(federation, moment).come
    if moment.kind == "sent":
        proxy = federation.proxies[moment.party]
        proxy.limit(moment.number)
        return proxy.stalled.is_set
    if moment.kind == "result":
        return federation.results(key).exists
    return _Slow(_query(federation, moment, key))


def _query(federation: Federation, moment: Moment, key: bytes) -> Callable[[], bool]:
    if moment.kind == "round":
        return lambda: _number(federation, COORDINATOR, TABLES[moment.state], key) >= moment.number
    if moment.kind == "entry":
        first = _number(federation, moment.party, ENTRIES)
        return lambda: _number(federation, moment.party, ENTRIES) >= first + moment.number
    states, place = RANKS[RANKS.index(moment.state) :], federation.state(moment.party)
    return lambda: sum(row["state"] in states for row in glimpse(place, ATTEMPTS, key)) >= moment.number


def _number(federation: Federation, party: str, query: str, *arguments: object) -> int:
    found = glimpse(federation.journal if party == COORDINATOR else federation.state(party), query, *arguments)
    return int(found[0]["n"] or 0) if found else 0


class _Slow:
    """Looks only now and then."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition, self._next = condition, 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        return self._condition()


class _Lines:
    """Counts lines of a log from now on."""

    def __init__(self, federation: Federation, moment: Moment) -> None:
        self._log, self._number = federation.parties[moment.party].log, moment.number
        self._offset = self._log.stat().st_size if self._log.exists() else 0
        self._lines = 0

    def come(self) -> bool:
        if self._log.exists() and self._log.stat().st_size > self._offset:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            self._offset += len(data)
            self._lines += data.count(b"\n")
        return self._lines >= self._number


class _Start:
    """Waits for a party's next start, and then some time."""

    def __init__(self, federation: Federation, moment: Moment) -> None:
        self._party, self._seconds = federation.parties[moment.party], moment.seconds
        self._starts = self._party.starts + 1

    def come(self) -> bool:
        party = self._party
        started = party.process is not None and party.starts >= self._starts
        return started and time.monotonic() - party.started >= self._seconds
