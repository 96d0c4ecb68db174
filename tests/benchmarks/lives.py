"""Long lives: what another study, or another step, costs parties that have seen many, in processor time and memory.

A coordinator and its participants live in one process, with their databases, ledgers and keys, and without a network.
Studies of one round follow one another, then one study makes many steps. Participants' time is what passes while they answer.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.step_process import resident
from benchmarks.steps import records_of
from support.calls import then
from support.federation import TestBed, make_bed, make_request, schema_of
from veilsum.compile import StudyRequest
from veilsum.local.federation import LocalChannel, LocalFederation, as_directive
from veilsum_coordinator.service.runner import run_study
from veilsum_node.errors import HostileInput

SITES, RECORDS, WIDTH = 3, 50, 30
MARKS, QUICK = (100, 1000, 10_000), (20, 100)
MEASURED = 10
"""A mark's figure for time is the mean of so many studies or steps before it; for memory, of all since the mark before."""


class Timed(LocalFederation):
    """Parties in this process, whose participants' processor time is counted apart.

    Attributes:
        participants: processor seconds that all participants have taken so far.
    """

    participants = 0.0

    def step(self) -> bool:
        worked = False
        for name, core in self.cores.items():
            channel = LocalChannel(self.hub, name)
            for directive in self.hub.directives(name):
                worked, begun = True, time.thread_time()
                try:
                    core.handle(as_directive(directive), channel)
                except HostileInput:  # stale
                    continue
                finally:
                    self.participants += time.thread_time() - begun
        before = self.hub.changes
        self.hub.tick()
        return worked or self.hub.changes != before


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of many studies and of one of many steps."""
    marks = QUICK if quick else MARKS
    return {"studies": of_studies(marks), "steps of one study": of_steps(marks)}


def of_studies(marks: Iterable[int]) -> dict[str, dict[str, float]]:
    """Of each mark, what a study costs after so many. Each is finished before the next is submitted."""
    with tempfile.TemporaryDirectory() as directory:
        bed, local = _parties(Path(directory))
        request = make_request(schema_of(WIDTH), epsilon=0.01)

        def run() -> None:
            local.run(bed.compile(request), bed.analyst, Path(directory) / "results")

        return _marked(marks, run, local)


def of_steps(marks: Iterable[int]) -> dict[str, dict[str, float]]:
    """Of each mark, what a step of ``fedsgd`` costs after so many of one study."""
    *_, most = marks = sorted(marks)
    with tempfile.TemporaryDirectory() as directory:
        bed, local = _parties(Path(directory))
        request = steps_request(most)
        key = local.submit(bed.compile(request), bed.analyst)
        federation = local.prepare(key)
        found: dict[str, dict[str, float]] = {}
        steps = Marks(marks, local, found)
        federation.sum = then(federation.sum, steps.passed)  # type: ignore[method-assign]
        run_study(local.hub, key, federation, Path(directory) / "results")
        assert local.hub.shown.status(key).phase == "finished", local.hub.shown.status(key).reason
        return found


def steps_request(steps: int) -> StudyRequest:
    """A study of so many steps of a small head."""
    request = make_request(schema_of(WIDTH), "fedsgd", epsilon=3.0)
    return request.model_copy(update={"parameters": {"steps": steps, "centre": False}})


def _parties(directory: Path) -> tuple[TestBed, Timed]:
    bed = make_bed(directory, records_of(WIDTH, 2, SITES, RECORDS))
    return bed, Timed(bed.hub, bed.local.cores, bed.clock)


class Marks:
    """Counts what is repeated, and takes figures near each mark."""

    def __init__(self, marks: Iterable[int], local: Timed, found: dict[str, dict[str, float]]) -> None:
        self._marks, self._local, self._found = sorted(marks), local, found
        self._count, self._known = 0, (0, 0)
        self._begun = (0.0, 0.0)

    def passed(self) -> None:
        """One more is over."""
        self._count += 1
        if self._count in [mark - MEASURED for mark in self._marks]:
            self._begun = time.process_time(), self._local.participants
            if not self._known[0]:  # what is made once is there by now
                self._known = self._count, _settled()
        if self._count in self._marks:
            spent, participants = time.process_time() - self._begun[0], self._local.participants - self._begun[1]
            count, before = self._known
            self._known = self._count, _settled()
            self._found[f"after {self._count}"] = {
                "coordinator's processor ms": 1e3 * (spent - participants) / MEASURED,
                "a participant's processor ms": 1e3 * participants / MEASURED / SITES,
                "memory of all that it adds, kB": (self._known[1] - before) / (self._count - count) / 1e3,
            }


def _marked(marks: Iterable[int], run: Callable[[], None], local: Timed) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    counted = Marks(marks, local, found)
    for _ in range(max(marks)):
        run()
        counted.passed()
    return found


def _settled() -> int:
    gc.collect()
    return resident()
