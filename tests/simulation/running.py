"""Many histories by ranges of seeds, in one process or several side by side."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulation.histories import make_history
from simulation.playing import Player, playing
from simulation.shrinking import as_text, shrink
from simulation.world import History

MOST_FAILURES = 3
"""Failing seeds of one range that are shrunk; a fault that is everywhere need not be found a thousand times."""


@dataclass
class Played:
    """What came of a range of seeds.

    Attributes:
        histories: how many were played.
        steps: of all of them.
        phases: how many studies ended in which phase.
        failures: shrunk histories as text.
    """

    histories: int = 0
    steps: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Played) -> None:
        """Count another range in."""
        self.histories += other.histories
        self.steps += other.steps
        self.phases += other.phases
        self.failures += other.failures


def play_range(
    player: Player, seed: int, count: int, until: float | None = None, clock: Callable[[], float] = time.monotonic
) -> Played:
    """Play the histories of ``count`` seeds from ``seed`` on; none begins after ``until`` by the clock."""
    played = Played()
    for each in range(seed, seed + count):
        if until is not None and clock() >= until:
            break
        history = make_history(each)
        outcome = player.play(history)
        played.histories += 1
        played.steps += outcome.steps
        played.phases[outcome.phase or "violated"] += 1
        if outcome.violation:
            played.failures.append(shrunk(player, history, outcome.violation))
            if len(played.failures) >= MOST_FAILURES:
                break
    return played


def shrunk(player: Player, history: History, violation: str) -> str:
    """The short form of a failing history, as text."""
    short = shrink(history, lambda candidate: bool(player.play(candidate).violation))
    last = player.play(short).violation
    return as_text(short, f"seed {history.seed}: {violation}" if last == violation else f"seed {history.seed}: {last}")


PART = 250
"""Histories that a process plays before it tells."""


@contextmanager
def several(processes: int) -> Iterator[Callable[[int, int], Iterator[Played]]]:
    """The same over several processes that load the product once, whatever becomes of its files: a function of the first seed
    and of how many, which gives what came of each part as it is done."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(processes) as pool:

        def play(seed: int, count: int) -> Iterator[Played]:
            parts = [(seed + start, min(PART, count - start)) for start in range(0, count, PART)]
            return pool.imap_unordered(_part, parts)

        yield play


def _part(part: tuple[int, int]) -> Played:
    with playing() as player:
        return play_range(player, *part)
