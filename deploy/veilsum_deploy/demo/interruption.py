"""A hospital whose process is killed in the middle of a study and comes back: training goes on without it, then with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from veilsum.remote import StudyInfo
from veilsum_deploy.demo.processes import Process

KILL_AT, RETURN_AT = 0.3, 0.6
"""Parts of a study's rounds after which the hospital is killed, and started again."""

FEWEST_ROUNDS = 10
"""A study with fewer rounds is left alone: nothing of it would be left to come back to."""

AWAY_SECONDS, MOST_AWAY_SECONDS = 6.0, 12.0
"""After which it is started again if rounds went on without it, and in any case: a round that asked it for consent waits 20 s
for it."""

MOST_KILLS = 3
"""How often it is killed until a round misses it: one that was killed as it was asked for consent is waited for."""


class _State(StrEnum):
    BEFORE = "before"
    AWAY = "away"
    BACK = "back"


@dataclass
class Interruption:
    """Watches one study and interrupts one hospital in it.

    Attributes:
        hospital: its name.
        process: its present process.
        start: starts another in the place of one that was killed, with the same files.
        rounds: that the study may release at most.
    """

    hospital: str
    process: Process
    start: Callable[[Process], Process]
    rounds: int

    def __post_init__(self) -> None:
        self._state = _State.BEFORE
        self._victims: list[Process] = []
        self._killed = self._returned = self._seen = 0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def watch(self, info: StudyInfo) -> None:
        """Take notice of the study's state, and act if it is time."""
        self._seen = sum(item.phase == "released" for item in info.rounds)
        if self.rounds < FEWEST_ROUNDS:
            return
        if (
            self._state is _State.BACK
            and self._seen > self._returned
            and len(self._victims) < MOST_KILLS
            and not self._missed(info)
        ):
            self._state = _State.BEFORE
        if self._state is _State.BEFORE and self._seen >= KILL_AT * self.rounds:
            with self._lock:
                self._victims.append(self.process)  # first: who looks after the processes must not miss it
                self.process.kill()
                self._state, self._killed = _State.AWAY, self._seen
            self._wait(AWAY_SECONDS)
        elif self._state is _State.AWAY and self._seen >= max(RETURN_AT * self.rounds, self._killed + 1):
            self.come_back()

    def killed(self, process: Process) -> bool:
        """Whether it was killed here, so that its end is no fault."""
        return process in self._victims

    def _missed(self, info: StudyInfo) -> bool:
        """Whether a round was released without the hospital."""
        return any(self.hospital not in item.cohort for item in info.rounds if item.phase == "released")

    def _wait(self, seconds: float, left: float = MOST_AWAY_SECONDS) -> None:
        """Come back in ``seconds``, if a round was released meanwhile; later if not, for then nothing was missed yet."""

        def due() -> None:
            if self._seen > self._killed or left <= seconds:
                self.come_back()
            elif self._state is _State.AWAY:
                self._wait(1.0, left - seconds)

        self._timer = threading.Timer(seconds, due)
        self._timer.daemon = True
        self._timer.start()

    def come_back(self) -> None:
        """Start the hospital again if it is away."""
        with self._lock:
            if self._state is _State.AWAY:
                self.process = self.start(self.process)
                self._state, self._returned = _State.BACK, self._seen

    def end(self) -> None:
        """The study is over: nothing is left to wait for, and the hospital runs."""
        if self._timer is not None:
            self._timer.cancel()
        self.come_back()

    def found(self, info: StudyInfo) -> dict[str, Any] | None:
        """What happened: after how many releases the hospital was killed and was back, and how many it was part of; None
        where it was left alone."""
        if not self._victims:
            return None
        cohorts = [item.cohort for item in info.rounds if item.phase == "released"]
        took_part = [self.hospital in cohort for cohort in cohorts]
        return {
            "hospital": self.hospital,
            "killed_after": self._killed,
            "back_after": self._returned,
            "part_of": sum(took_part),
            "of": len(took_part),
            "part_of_last": bool(took_part and took_part[-1]),
        }
