"""A hospital of the demo that is killed as it is asked for consent misses no round: it is killed again, up to three times."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from veilsum.remote import RoundInfo, StudyInfo
from veilsum_deploy.demo import processes as child
from veilsum_deploy.demo import studies as module
from veilsum_deploy.demo.processes import Processes
from veilsum_deploy.demo.studies import Interruption

ROUNDS = 20


def shown(released: int, missed: int | None = None) -> StudyInfo:
    """A study with so many releases; ``missed``: number of the one that was made without the hospital."""
    rounds = [
        RoundInfo(
            round=number,
            label="step",
            attempts=1,
            cohort=("north", "west") if number == missed else ("north", "south", "west"),
            phase="released",
            bytes_received=0,
            seconds=0.0,
        )
        for number in range(1, released + 1)
    ]
    fields: dict[str, Any] = dict.fromkeys(StudyInfo.__dataclass_fields__)
    return StudyInfo(**{**fields, "rounds": tuple(rounds)})


def wait(arguments: Sequence[str], log: Path) -> None:
    signal.pause()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    # a process that only waits stands for a hospital: what is tested is who is killed and started again
    monkeypatch.setattr(child, "run_forked", wait)
    monkeypatch.setattr(module, "AWAY_SECONDS", 1000.0)
    with Processes() as made:
        yield made


def test_it_is_killed_again_until_a_round_misses_it(started: Processes, tmp_path: Path) -> None:
    other = started.start("north", (), tmp_path / "north.log")
    first = started.start("south", (), tmp_path / "south.log")
    watching = Interruption("south", first, started.restart, ROUNDS)
    released = 6
    victims = [first]
    for _ in range(3):
        watching.watch(shown(released))
        assert not victims[-1].running
        assert watching.killed(victims[-1])
        released += 7
        watching.watch(shown(released))  # it is back, and no round missed it
        assert watching.process.running
        assert watching.process in started.started
        assert not watching.killed(watching.process)
        victims.append(watching.process)
        released += 1
    watching.watch(shown(released))
    assert watching.process.running  # three times are enough
    assert other.running
    assert len(started.started) == 2
    watching.end()


def test_once_is_enough_where_a_round_missed_it(started: Processes, tmp_path: Path) -> None:
    first = started.start("south", (), tmp_path / "south.log")
    watching = Interruption("south", first, started.restart, ROUNDS)
    watching.watch(shown(6))
    watching.watch(shown(13, missed=8))
    watching.watch(shown(14, missed=8))
    assert watching.process.running
    watching.end()
    found = watching.found(shown(14, missed=8))
    assert found == {
        "hospital": "south", "killed_after": 6, "back_after": 13, "part_of": 13, "of": 14, "part_of_last": True,
    }  # fmt: skip
