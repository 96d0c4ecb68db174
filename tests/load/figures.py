"""Reads what processes did: their memory and processor time from /proc, and the hosts' lines about their participants."""

from __future__ import annotations

import json
import math
import os
import statistics
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024.0 * 1024.0


class Sampler:
    """Samples a process's processor time and memory ten times a second."""

    SECONDS = 0.1

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.memory: list[float] = []
        self.peak = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    @staticmethod
    def read(pid: int) -> tuple[float, float]:
        """Processor seconds and resident MiB now; zeros once the process is gone."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return 0.0, 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE / MIB

    def stop(self) -> None:
        """Take no more samples."""
        self._look()
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return
        peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        if not peaks:  # it has ended, and waits to be reaped
            return
        self.peak = max(self.peak, int(peaks[0]) / 1024.0)
        cpu, memory = self.read(self.pid)
        self.times.append(time.time())
        self.cpu.append(cpu)
        self.memory.append(memory)

    def _loop(self) -> None:
        while not self._stopping.wait(self.SECONDS):
            self._look()

    def seconds(self, start: float, end: float) -> float:
        """Processor seconds between two times."""
        if not self.times:
            return 0.0
        last = len(self.times) - 1
        first, final = (min(bisect_left(self.times, at), last) for at in (start, end))
        return self.cpu[final] - self.cpu[first]

    @property
    def now(self) -> float:
        """Resident MiB now."""
        return self.read(self.pid)[1]


@dataclass(frozen=True)
class Event:
    """One line of a host."""

    start: float
    end: float
    name: str
    kind: str
    study: str
    round: int
    attempt: int
    error: str


@dataclass(frozen=True)
class Phase:
    """One kind of directive in one attempt of a study, over all participants that got it.

    Attributes:
        kind: of the directives.
        start: when the first participant got it.
        seconds: until the last one had answered.
        median: seconds until half of the participants had got it.
        slowest: until the last one had.
        count: how many got it.
    """

    kind: str
    attempt: int
    start: float
    seconds: float
    median: float
    slowest: float
    count: int


@dataclass(frozen=True)
class Events:
    """All lines, in order of their beginnings."""

    all: tuple[Event, ...]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Events:
        """Read the hosts' files; a line that is still being written is left out."""
        found = []
        for path in paths:
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    found.append(Event(*json.loads(line)))
                except (ValueError, TypeError):
                    continue
        return cls(tuple(sorted(found, key=lambda event: event.start)))

    def since(self, start: float) -> Events:
        """Only those that began at or after a time."""
        return Events(tuple(event for event in self.all if event.start >= start))

    def count(self, kind: str) -> int:
        """How many are of a kind."""
        return sum(event.kind == kind for event in self.all)

    def phases(self, study: bytes) -> list[Phase]:
        """A study's phases in order; of a directive that came twice the first counts."""
        groups: defaultdict[tuple[int, int, str], dict[str, Event]] = defaultdict(dict)
        for event in self.all:
            if event.study == study.hex():
                groups[event.round, event.attempt, event.kind].setdefault(event.name, event)
        phases = []
        for (_, attempt, kind), by_name in groups.items():
            begins = [event.start for event in by_name.values()]
            first = min(begins)
            waits = [begin - first for begin in begins]
            seconds = max(event.end for event in by_name.values()) - first
            phases.append(Phase(kind, attempt, first, seconds, statistics.median(waits), max(waits), len(waits)))
        return sorted(phases, key=lambda phase: phase.start)


def exponent(figures: Mapping[int, float]) -> float:
    """Growth exponent: slope of the least-squares line through (log size, log figure)."""
    points = [(math.log(size), math.log(figure)) for size, figure in figures.items() if figure > 0]
    if len(points) < 2:
        return math.nan
    x, y = [item[0] for item in points], [item[1] for item in points]
    return statistics.linear_regression(x, y).slope


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown; floats with three digits."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        shown = [
            f"{item:.3g}"
            if isinstance(item, float) and item < 100
            else f"{item:.0f}"
            if isinstance(item, float)
            else str(item)
            for item in row
        ]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)
