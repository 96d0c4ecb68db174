"""Waits that are measured by elapsed time: whatever is done to the clock, they end when they should."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.federation import Clock, make_bed, make_request, schema_of
from support.network import wait_for
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_node.process import steady_clock as steady_module
from veilsum_node.process.steady_clock import STILL_SECONDS, SteadyClock

LOG = logging.getLogger("veilsum.test")


class _Machine:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.day, self.elapsed = 1_800_000_000, 50.0

    def clock(self) -> int:
        return self.day

    def pass_seconds(self, seconds: float) -> None:
        self.elapsed += seconds
        self.day += int(seconds)

    def steady(self, **options: float) -> SteadyClock:
        return SteadyClock(self.clock, LOG, elapsed=lambda: self.elapsed, **options)


@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(-100_000, 100_000)), max_size=30))
def test_it_counts_what_passed_whatever_the_clock_says(steps: list[tuple[int, int]]) -> None:
    machine = _Machine()
    steady = machine.steady(rest=30)
    start, passed = steady(), 0
    for seconds, change in steps:
        machine.pass_seconds(seconds)
        machine.day += change
        passed += seconds
        assert steady() == start + passed


@pytest.mark.parametrize(("change", "said"), [(3600, "forward by 3600 s"), (-3600, "back by 3600 s"), (3, ""), (-3, "")])
def test_it_says_that_the_clock_was_set(caplog: pytest.LogCaptureFixture, change: int, said: str) -> None:
    machine = _Machine()
    steady = machine.steady()
    machine.pass_seconds(1)
    machine.day += change
    steady()
    machine.pass_seconds(1)
    steady()
    assert len(caplog.messages) == (1 if said else 0)  # once
    assert said in caplog.text


def test_who_stood_still_gives_the_time_back(caplog: pytest.LogCaptureFixture) -> None:
    machine = _Machine()
    steady, plain = machine.steady(rest=30), machine.steady()
    start = steady()
    machine.pass_seconds(500)
    assert steady() == start
    assert plain() == start + 500
    for seconds in (STILL_SECONDS, STILL_SECONDS, STILL_SECONDS - 1):
        machine.pass_seconds(seconds)
        plain()
        assert steady() == start
    machine.pass_seconds(5)
    assert steady() == start + 4
    assert caplog.messages == [
        "this process was suspended for 500 s; deadlines are extended by that and 30 s",
        "this process was suspended for 500 s",
    ]


def test_stalls_of_which_each_follows_the_last_do_not_stop_it() -> None:
    """A store that holds everything up for eleven seconds in every half a minute must not let a wait last for ever."""
    machine = _Machine()
    steady = machine.steady(rest=30)
    start = steady()
    for _ in range(80):
        machine.pass_seconds(STILL_SECONDS + 1)
        steady()
        for _ in range(24):
            machine.pass_seconds(1)
            steady()
    assert steady() - start >= 80 * 24 / 3


def test_who_waits_in_one_call_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own looks at the time, so that a long call of the one that asks is not taken for a pause."""
    monkeypatch.setattr(steady_module, "TICK_SECONDS", 0.005)
    machine = _Machine()
    steady = machine.steady(rest=30)
    assert steady.keep() is steady
    start = steady()
    for step in range(1, 6):
        machine.pass_seconds(STILL_SECONDS - 1)
        wait_for(lambda step=step: steady._now - start >= (STILL_SECONDS - 1) * step, "a look")  # type: ignore[misc]
    assert steady() == start + 5 * (STILL_SECONDS - 1)


@pytest.mark.parametrize("change", [-86_400, 80_000])
def test_the_coordinators_phases_wait_by_it(tmp_path: Path, change: int) -> None:
    """A site that does not enrol is waited for as long as the configuration says, by no other clock."""
    data = {name: (np.full((5, 1), 0.5), np.arange(5) % 2) for name in "abc"}
    bed = make_bed(tmp_path, data)
    elapsed = Clock()
    hub = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(enrol=60), clock=bed.clock, steady=elapsed)
    bed.hub = hub
    study = bed.compile(make_request(schema_of(1), epsilon=None))
    key = bed.local.submit(study, bed.analyst)
    machine = hub.studies[key].machine
    bed.clock.now += change
    elapsed.now += 59
    hub.tick()
    assert machine.phase is StudyPhase.ENROLLING
    elapsed.now += 1
    hub.tick()
    assert (machine.phase, machine.reason[:13]) == (StudyPhase.FAILED, "0 of 3 enroll")
