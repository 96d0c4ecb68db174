"""Kill one hospital's process in the middle of a study, at a moment that is certain: with its keys, before its contribution.

The process is paused right after it has its keys. If its database shows that it had begun to contribute by then, the moment
was missed: it goes on, the study ends as any other, and the next study is tried.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from veilsum.remote import Remote, StudyInfo
from veilsum_deploy.demo.processes import POLL_SECONDS, Process
from veilsum_node.database import Database
from veilsum_node.errors import StateError
from veilsum_participant.store.attempts import AttemptState, attempts_in, find_attempt
from veilsum_participant.store.studies import StudyState, find_study

WAIT_SECONDS = 30.0
AFTER_KEYS_SECONDS = 0.02
"""Between a participant's keys being stored and the pause: time for it to say that it is ready."""

ROUND_SECONDS = 3.0
SAMPLE_BYTES = 32


@dataclass(frozen=True)
class Kill:
    """A killed process.

    Attributes:
        phase: of the round, or of the study before its first round, when the process was killed.
        sender: another hospital whose contribution had arrived by then, or "" for none.
        contribution: bytes from the middle of that contribution, as the coordinator received it.
    """

    phase: str
    sender: str
    contribution: bytes


def kill_before_contribution(
    remote: Remote, study: bytes, victim: Process, database: Database, others: Sequence[tuple[str, Database]]
) -> Kill | None:
    """Kill ``victim`` in a running study; None if it was too quick and goes on.

    Args:
        remote: the coordinator.
        study: the digest of a study just submitted.
        victim: the process.
        database: its own.
        others: the other hospitals' names and databases.
    """
    _wait_for_keys(study, victim, database)
    time.sleep(AFTER_KEYS_SECONDS)
    victim.signal(signal.SIGSTOP)
    if _attempts(database, study):
        victim.signal(signal.SIGCONT)
        return None
    deadline = time.monotonic() + ROUND_SECONDS
    sender, contribution = "", b""
    while not contribution and time.monotonic() < deadline:
        sender, contribution = _contribution(study, others)
        time.sleep(POLL_SECONDS)
    info = remote.show(study)
    victim.kill()
    return Kill(_phase(info), sender, contribution)


def _wait_for_keys(study: bytes, victim: Process, database: Database) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with database.engine.connect() as connection:
            row = find_study(connection, study)
        if row is not None and row.status is not StudyState.ENROLLED:
            return
        victim.check()
        time.sleep(POLL_SECONDS / 10)
    raise StateError(f"{victim.name} got no keys for its study within {WAIT_SECONDS:g} s.", f"See {victim.log}.")


def _attempts(database: Database, study: bytes) -> int:
    with database.engine.connect() as connection:
        return len(attempts_in(connection, tuple(AttemptState), study))


def _contribution(study: bytes, others: Sequence[tuple[str, Database]]) -> tuple[str, bytes]:
    """Some bytes of the first payload found in another hospital's database: exactly what it uploads."""
    for name, database in others:
        with database.engine.connect() as connection:
            for attempt in attempts_in(connection, (AttemptState.PAYLOAD,), study):
                row = find_attempt(connection, study, attempt.attempt)
                payload = (row.payload or b"") if row is not None else b""
                if payload:
                    middle = len(payload) // 2
                    return name, payload[middle : middle + SAMPLE_BYTES]
    return "", b""


def _phase(info: StudyInfo) -> str:
    return info.rounds[-1].phase if info.rounds else info.phase
