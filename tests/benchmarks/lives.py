"""Long lives: what another study, or another step, costs parties that have seen many, in processor time and memory.

A coordinator and its participants live in one process, with their databases, ledgers and keys, and without a network.
Studies of one round follow one another, then one study makes many steps. Participants' time is what passes while they answer.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.step_process import resident
from benchmarks.steps import records_of
from support.calls import then
from support.federation import TestBed, make_bed, make_request, schema_of
from veilsum.compile import StudyRequest
from veilsum.local.federation import LocalChannel, LocalFederation, as_directive
from veilsum_coordinator.service.runner import run_study
from veilsum_node.errors import HostileInput

SITES, RECORDS, WIDTH = 3, 50, 30
COUNT, QUICK = 10_000, 100
BLOCKS = 20
"""A life is looked at in so many blocks; the first, in which what is made once is made, is in no trend."""


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
    count = QUICK if quick else COUNT
    return {"studies": of_studies(count), "steps of one study": of_steps(count)}


def of_studies(count: int) -> dict[str, Any]:
    """What another study costs, and how that changes over so many. Each is finished before the next is submitted."""
    with tempfile.TemporaryDirectory() as directory:
        bed, local = _parties(Path(directory))
        request = make_request(schema_of(WIDTH), epsilon=0.01)
        life = Life(count, local, Path(directory))
        for _ in range(count):
            local.run(bed.compile(request), bed.analyst, Path(directory) / "results")
            life.passed()
        return life.figures()


def of_steps(count: int) -> dict[str, Any]:
    """What another step of ``fedsgd`` costs, and how that changes over so many of one study."""
    with tempfile.TemporaryDirectory() as directory:
        bed, local = _parties(Path(directory))
        key = local.submit(bed.compile(steps_request(count)), bed.analyst)
        federation = local.prepare(key)
        life = Life(count, local, Path(directory))
        federation.sum = then(federation.sum, life.passed)  # type: ignore[method-assign]
        run_study(local.hub, key, federation, Path(directory) / "results")
        assert local.hub.shown.status(key).phase == "finished", local.hub.shown.status(key).reason
        return life.figures()


def steps_request(steps: int) -> StudyRequest:
    """A study of so many steps of a small head."""
    request = make_request(schema_of(WIDTH), "fedsgd", epsilon=3.0)
    return request.model_copy(update={"parameters": {"steps": steps, "centre": False}})


def _parties(directory: Path) -> tuple[TestBed, Timed]:
    bed = make_bed(directory, records_of(WIDTH, 2, SITES, RECORDS))
    return bed, Timed(bed.hub, bed.local.cores, bed.clock)


class Life:
    """Counts what is repeated, ``count`` times in all, and looks at every block's end.

    Attributes:
        blocks: of each block that is over, processor milliseconds of the coordinator and of a participant for one repetition,
            their means; then, at its end, bytes in the memory of all parties together and in their databases.
    """

    def __init__(self, count: int, local: Timed, directory: Path) -> None:
        self._length, self._local, self._directory = max(1, count // BLOCKS), local, directory
        self.blocks: list[tuple[float, float, int, int]] = []
        self._count = 0
        self._begun = self._now()

    def passed(self) -> None:
        """One more is over."""
        self._count += 1
        if self._count % self._length == 0:
            everybody, participants = (
                1e3 * (now - then) / self._length for now, then in zip(self._now(), self._begun, strict=True)
            )
            gc.collect()
            stored = sum(file.stat().st_size for file in self._directory.rglob("*.db"))
            self.blocks.append((everybody - participants, participants / SITES, resident(), stored))
            self._begun = self._now()

    def figures(self) -> dict[str, Any]:
        """Means of the second and last block, and what each figure grows by, with its standard error.

        A trend is the slope of the least squares line through the blocks, for times in milliseconds after a thousand
        repetitions more, for bytes in kB a repetition. It needs four blocks.
        """
        late = np.array(self.blocks[1:])
        at = self._length * np.arange(len(late))
        names = ("coordinator, processor ms", "a participant, processor ms", "memory of all, kB", "databases of all, kB")
        found: dict[str, Any] = {"repetitions": self._count}
        for name, series, unit in zip(names, late.T, (1.0, 1.0, 1e3, 1e3), strict=True):
            slope, error = trend(at, series / unit)
            if unit == 1.0:
                found[name] = {"second block": series[0], "last block": series[-1]}
                slope, error = 1e3 * slope, 1e3 * error
            found[name] = found.get(name, {}) | {"trend": slope, "its standard error": error}
        return found

    def _now(self) -> tuple[float, float]:
        return time.process_time(), self._local.participants


def trend(at: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Slope of the least squares line, and its standard error."""
    (slope, _), covariance = np.polyfit(at, values, 1, cov="unscaled")
    line = np.polyfit(at, values, 1)
    spread = float(np.sum((values - np.polyval(line, at)) ** 2)) / (len(at) - 2)
    return float(slope), float(np.sqrt(covariance[0, 0] * spread))
