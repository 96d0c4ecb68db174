"""What is tried: a whole study, members that never answer, storms, many studies, one that floods, uploads that stall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load.figures import Phase
from load.ground import WAITS, Ground, ground
from load.host import SILENT
from veilsum_proto import federation_pb2 as pb

DOWN_SECONDS = 2.0
"""How long the coordinator stays away after it was killed."""


@dataclass
class Course:
    """How a study went.

    Attributes:
        count: participants.
        opening: seconds from the first dial to the last open session.
        seconds: from submission to the end.
        phases: with the coordinator's processor seconds in each.
        cohort: of the last round.
        cpu: the coordinator's processor seconds of the study.
        peak: its largest resident memory so far, MiB.
        hosts: the participants' processor seconds of the study.
        more: what else a scenario measured, by name.
    """

    count: int
    opening: float = 0.0
    seconds: float = 0.0
    phases: list[tuple[Phase, float]] = field(default_factory=list)
    cohort: int = 0
    cpu: float = 0.0
    peak: float = 0.0
    hosts: float = 0.0
    more: dict[str, float] = field(default_factory=dict)


def open_sessions(here: Ground, count: int) -> float:
    """Let everyone connect at once; seconds until all sessions are open."""
    began = here.connect()
    return here.await_sessions(count) - began


def run(here: Ground, name: str, min_cohort: int, **privacy: Any) -> Course:
    """One study from its submission to its end, by everyone that is connected."""
    cpu, hosts, began = here.samplers[-1].read(here.coordinator.pid)[0], here.host_cpu(), time.time()
    key = here.submit(here.study(name, min_cohort, **privacy))
    shown = here.finish(key)
    ended = time.time()
    here.settle(key)
    return describe(here, key, shown, began, ended, cpu, hosts)


def describe(
    here: Ground, key: bytes, shown: pb.StudyStatus, began: float, ended: float, cpu: float = 0.0, hosts: float = 0.0
) -> Course:
    """A study that ended, in figures; ``cpu`` and ``hosts`` are what was used before it."""
    sampler = here.samplers[-1]
    course = Course(len(here.names), seconds=ended - began, cohort=len(shown.rounds[-1].cohort) if shown.rounds else 0)
    course.cpu = sampler.read(here.coordinator.pid)[0] - cpu
    course.hosts = here.host_cpu() - hosts
    course.phases = [(phase, sampler.seconds(phase.start, phase.start + phase.seconds)) for phase in here.events().phases(key)]
    course.peak = sampler.peak
    return course


def growth(directory: Path, counts: Sequence[int], **options: Any) -> dict[int, Course]:
    """One study of each size, each in a federation of its own; everybody has to be in the cohort."""
    courses = {}
    for count in counts:
        with ground(directory / f"growth-{count}", count, **options) as here:
            here.prepare_hosts()
            opening = open_sessions(here, count)
            courses[count] = run(here, "load", count)
            courses[count].opening = opening
            assert courses[count].cohort == count
    return courses


def silent(directory: Path, count: int, **options: Any) -> Course:
    """One member of twenty never answers, from one phase on or another: deadlines go on without them."""
    waits = WAITS.model_copy(update={"enrol": 60, "seal": 90, "contribute": 60})
    with ground(directory / "silent", count, waits=waits, **options) as here:
        chosen = here.names[:: max(1, 20)]
        roles = {name: list(SILENT)[index % len(SILENT)] for index, name in enumerate(chosen)}
        here.prepare_hosts(roles)
        open_sessions(here, count)
        course = run(here, "silent", count - len(chosen), cohort_difference="allowed")
        assert course.cohort == count - len(chosen), course.cohort
        return course


def _half_way(here: Ground, key: bytes) -> None:
    """Wait until half of the participants have contributed to the study's round."""
    end = time.monotonic() + 900
    while sum(event.kind == "contribute" and event.study == key.hex() for event in here.events().all) < len(here.names) / 2:
        assert time.monotonic() < end, "nobody contributes"
        assert here.status(key).phase not in ("finished", "failed"), here.status(key).reason
        time.sleep(0.1)


def coordinator_storm(here: Ground, name: str, **privacy: Any) -> Course:
    """The coordinator is killed in the middle of a round and comes back; everyone dials again, and the round completes."""
    count, began = len(here.names), time.time()
    key = here.submit(here.study(name, count, **privacy))
    _half_way(here, key)
    here.kill_coordinator()
    killed = time.time()
    time.sleep(DOWN_SECONDS)
    start = here.start_coordinator()
    listening = time.time()
    back = here.await_sessions(count)
    shown = here.finish(key)
    events = here.events().since(killed)
    course = describe(here, key, shown, began, time.time())
    opens = sorted(event.start - listening for event in events.all if event.kind == "open")
    course.more = {
        "seconds until it listened": start,
        "seconds until half of the sessions were open again": opens[count // 2 - 1] if len(opens) >= count // 2 else -1.0,
        "seconds until all sessions were open again": back - listening,
        "attempts at a session": float(events.count("dial")),
        "sessions opened": float(events.count("open")),
        "seconds until the study ended": time.time() - listening,
    }
    return course


def participants_storm(here: Ground, name: str) -> Course:
    """All participants are killed in the middle of a round and come back at once."""
    count, began = len(here.names), time.time()
    key = here.submit(here.study(name, count))
    _half_way(here, key)
    here.kill_hosts()
    here.prepare_hosts()
    dialled = time.time()
    here.connect()
    back = here.await_sessions(count)
    shown = here.finish(key)
    events = here.events().since(dialled)
    course = describe(here, key, shown, began, time.time())
    course.more = {
        "seconds until all sessions were open again": back - dialled,
        "attempts at a session": float(events.count("dial")),
        "seconds until the study ended": time.time() - dialled,
    }
    return course


def storms(directory: Path, count: int, **options: Any) -> dict[str, Course]:
    """Both storms, one after the other, in one federation."""
    with ground(directory / "storms", count, **options) as here:
        here.prepare_hosts()
        open_sessions(here, count)
        return {
            "coordinator killed": coordinator_storm(here, "storm-1"),
            "participants killed": participants_storm(here, "storm-2"),
        }


def leak(directory: Path, count: int, studies: int, tell: Callable[[str], object] = print, **options: Any) -> list[float]:
    """Resident memory of the coordinator in MiB, before the first study and after each."""
    with ground(directory / "leak", count, **options) as here:
        here.prepare_hosts()
        open_sessions(here, count)
        time.sleep(2)
        memory = [here.samplers[-1].now]
        for index in range(studies):
            run(here, f"leak-{index}", count)
            time.sleep(2)
            memory.append(here.samplers[-1].now)
            tell(f"after {index + 1} studies: {memory[-1]:.0f} MiB, peak {here.samplers[-1].peak:.0f}")
        return memory


def greedy(directory: Path, count: int, **options: Any) -> dict[str, Course]:
    """A study of all but one, and the same while that one floods the coordinator with calls and sessions."""
    found = {}
    flooding = "site-000"
    for kind, roles in (("undisturbed", {}), ("one floods", {flooding: "greedy"})):
        with ground(directory / f"greedy-{len(roles)}", count, **options) as here:
            here.prepare_hosts(roles)
            open_sessions(here, count - 1)
            found[kind] = run(here, "greedy", count - 1, without=[flooding])
            assert found[kind].cohort == count - 1
            here.leave()
            for event in here.events().all:
                if event.kind == "flood":
                    found[kind].more = {"calls answered": float(event.round), "calls refused": float(event.attempt)}
    return found


def loris(directory: Path, count: int, **options: Any) -> Course:
    """Everyone's upload of one study stalls after its first bytes; another study of the same sites finishes meanwhile."""
    waits = WAITS.model_copy(update={"contribute": 120})
    with ground(directory / "loris", count, waits=waits, **options) as here:
        here.prepare_hosts(stalled=["stalled"])
        open_sessions(here, count)
        stalled = here.submit(here.study("stalled", count))
        here.await_phase(stalled, "contributing")
        course = run(here, "honest", count)
        course.more = {"the stalled one is still contributing": float(here.status(stalled).rounds[-1].phase == "contributing")}
        shown = here.await_phase(stalled, "finished")
        assert shown.phase == "failed", shown.phase
        return course
