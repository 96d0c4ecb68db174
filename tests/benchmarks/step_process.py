"""A coordinator or participant of :mod:`benchmarks.steps`: the product's own process, watched, with or without encryption.

Without encryption the secure sum's words travel as they are, only scaled: products, errors, masks and check words are left out
here, and only here. TLS, signatures, ledgers, receipts, consents and every other check stay.

    python -m benchmarks.step_process '{"report": "report.json", "plain": false, "profile": false}' coordinator start ...
"""

from __future__ import annotations

import cProfile
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the participant's command does before numpy is loaded

import numpy as np

IDLE = "before the study"

BEFORE = {
    "checking": "adding up and storing the sum",
    "consenting": "asking for answers",
    "opening": "asking for consents",
    "released": "opening and storing the release",
}
"""What a coordinator did before a round came to a phase."""

LINES = 12

WARM = 3
"""First steps, which are not counted."""


def peak() -> int:
    """Peak of this process's resident memory in bytes (Linux). ``ru_maxrss`` would begin at the parent's peak instead."""
    return next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmHWM:")
    )


def resident() -> int:
    """This process's resident memory in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


def without_encryption() -> None:
    """Let words pass in the clear, in this process only: no products, no errors, no masks, and check words of no words."""
    from veilsum_participant.protocol import payloads
    from veilsum_privacy.securesum import check_words, one_time_keys, opening, streams

    def vanished(key: Any, context: bytes, ring: Any, words: int, multiplier: Any) -> Any:
        yield slice(0, words), np.zeros(words, dtype=np.uint64)

    def taken(self: Any, count: int) -> Any:
        return np.zeros(count, dtype=np.uint64)

    def added(streams: Any, others: Any, count: int, bound: int) -> Any:
        return np.zeros(count, dtype=np.uint64)

    def no_key(ring: Any, source: Any) -> Any:
        return np.zeros(ring.degree, dtype=np.int64)

    def unasked(words: Any, context: bytes, rho: bytes) -> tuple[int, ...]:
        return (0,) * check_words.CHECKS

    def centred(values: Any, modulus: int, variance: Any, source: Any) -> Any:
        return np.zeros(len(values), dtype=np.int64)

    for module in (one_time_keys, opening):
        module.common_products = vanished  # type: ignore[attr-defined]
    streams.WordStream.take = taken  # type: ignore[method-assign]
    streams.WordStream.total = added  # type: ignore[method-assign,assignment]
    payloads.draw_key = no_key
    check_words.products = unasked
    one_time_keys.gaussian_rounding = centred  # type: ignore[attr-defined]


class Watch:
    """What a process did: the time of every step's end, bytes that participants fetched and sent, profiles by thread."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.bytes: Counter[str] = Counter()
        self.memory: list[tuple[str, int, int]] = []
        self._profiles: list[cProfile.Profile] = []
        self._before: dict[str, tuple[int, float]] = {}

    def follow(self) -> None:
        """Watch the ends of steps, and what a participant's channel carries."""
        from veilsum_coordinator.storage.journal import SqlJournal
        from veilsum_participant.protocol.core import ParticipantCore
        from veilsum_participant.protocol.openings import Openings
        from veilsum_participant.session.channel import SiteChannel

        after(SqlJournal, "release", lambda *_: self._mark())
        after(Openings, "on_released", lambda *_: self._mark())
        after(SiteChannel, "fetch", lambda found, *_: self._count("fetched", found))
        after(ParticipantCore, "handle", lambda _, directive, *__: self._count("fetched", directive.to_bytes()))
        after(SiteChannel, "upload", lambda _, __, payload: self._count("sent", *payload.pieces))

    def follow_memory(self) -> None:
        """Note a coordinator's peak memory in every part of a study, and what it holds at that part's end."""
        from veilsum_coordinator.protocol.machine import StudyMachine
        from veilsum_coordinator.service import runner
        from veilsum_coordinator.service.hub import Hub

        after(Hub, "submit", lambda *_: self._part(IDLE))
        after(StudyMachine, "start_round", lambda *_: self._part("between two rounds"))
        after(StudyMachine, "_move", lambda _, __, phase: self._part(BEFORE.get(phase.value, "start")))
        after(runner, "_save", lambda *_: self._part("writing the result"))

    def _part(self, ended: str) -> None:
        self.memory.append((ended, peak(), resident()))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew

    def profile(self) -> None:
        """Profile this thread and every later one."""
        run = threading.Thread.run

        def profiled(self_: threading.Thread) -> None:
            self._start_profile()
            run(self_)

        threading.Thread.run = profiled  # type: ignore[assignment,method-assign]
        self._start_profile()

    def report(self) -> dict[str, Any]:
        """Everything, for JSON; times are (elapsed, CPU) seconds, ``peak`` the most memory in bytes."""
        kept = {"marks": self.marks, "bytes": dict(self.bytes), "memory": self.memory}
        return {**kept, "profile": self._lines(), "peak": max([peak(), *(most for _, most, _ in self.memory)])}

    def _mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))
        if len(self.marks) == WARM:
            self._before = self._totals()

    def _count(self, name: str, *parts: bytes | memoryview) -> None:
        self.bytes[name] += sum(map(len, parts))

    def _start_profile(self) -> None:
        profile = cProfile.Profile(time.thread_time)  # what waits for others takes none
        self._profiles.append(profile)
        profile.enable()

    def _totals(self) -> dict[str, tuple[int, float]]:
        """Calls and own processor seconds of every function so far, over all threads."""
        calls: defaultdict[str, int] = defaultdict(int)
        seconds: defaultdict[str, float] = defaultdict(float)
        for profile in self._profiles:
            for entry in profile.getstats():
                code = entry.code
                name = code if isinstance(code, str) else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_qualname}"
                calls[name] += entry.callcount
                seconds[name] += entry.inlinetime
        return {name: (calls[name], seconds[name]) for name in calls}

    def _lines(self) -> list[tuple[str, int, float]]:
        """Functions by the time that they took themselves after the first steps: name, calls, seconds."""
        found = []
        for name, (calls, seconds) in self._totals().items():
            before = self._before.get(name, (0, 0.0))
            found.append((name, calls - before[0], seconds - before[1]))
        return sorted(found, key=lambda line: -line[2])[:LINES]


def after(owner: type | ModuleType, name: str, then: Callable[..., None]) -> None:
    """Call ``then`` with a method's result and arguments whenever it returns; of a module's function, without the first."""
    method = getattr(owner, name)

    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found = method(self, *arguments, **keywords)
        then(found, *arguments)
        return found

    setattr(owner, name, wrapped)


def main(options: dict[str, Any], command: list[str]) -> None:
    """Run a ``veilsum`` command until it is told to stop, then write what was watched."""
    watch = Watch()
    if options["plain"]:
        without_encryption()
    if not options.get("memory"):
        watch.follow()
    elif command[0] == "coordinator":  # and nothing else, which would load what a coordinator does not
        watch.follow_memory()
    from veilsum_deploy.cli import main as veilsum

    if options["profile"]:
        watch.profile()
    try:
        veilsum(command)
    finally:
        Path(options["report"]).write_text(json.dumps(watch.report()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
