"""Random histories of a federation hold what is promised; every planted fault is found; what was found before stays fixed.

How long the random part runs in CI is bounded by time and not by number, for the machines differ; by hand:
``PYTHONPATH=tests python -m simulation --histories 10000``.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.bugs import BUGS, planted
from simulation.histories import make_history
from simulation.playing import Player, playing
from simulation.running import play_range, shrunk
from simulation.shrinking import shrink
from simulation.world import History

SECONDS = float(os.environ.get("VEILSUM_SIMULATION_SECONDS", "20"))
"""For each of two parts of the long run, which play side by side on two workers."""

FEW_SECONDS = 3.0

HISTORIES = int(os.environ.get("VEILSUM_SIMULATION_HISTORIES", "5000"))
"""At most so many in each part."""

FEWEST = 20
"""Each part plays at least so many, however slow the machine is."""

LIMIT = 1000
"""Histories within which a planted fault must be found."""

QUICK = ("consent before charge",)
"""Planted faults that every run finds; all others take longer."""

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.txt"))


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with playing() as made:
        yield made


def read_history(path: Path) -> History:
    """A history from its file: one call of ``History`` with literal arguments, as the simulation prints it."""
    (statement,) = ast.parse(path.read_text(), mode="exec").body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    return History(**{str(item.arg): ast.literal_eval(item.value) for item in statement.value.keywords})


@pytest.mark.parametrize(
    ("part", "seconds"), [(0, FEW_SECONDS), *(pytest.param(part, SECONDS, marks=pytest.mark.system) for part in (1, 2))]
)
def test_random_histories_hold(player: Player, part: int, seconds: float) -> None:
    first = 1_000_000 * part
    played = play_range(player, first, HISTORIES, until=time.monotonic() + seconds)
    if played.histories < FEWEST:
        played.add(play_range(player, first + played.histories, FEWEST - played.histories))
    assert not played.failures, "\n".join(played.failures)
    finished = sum(count for phase, count in played.phases.items() if "finished" in phase)
    assert finished > played.histories // 2  # histories in which nothing succeeds would show little


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.system) for name in BUGS])
def test_a_planted_fault_is_found(player: Player, name: str) -> None:
    with planted(name):
        found = next((seed for seed in range(LIMIT) if player.play(make_history(seed)).violation), None)
    assert found is not None, f"{LIMIT} histories pass with the fault: {name}"
    assert not player.play(make_history(found)).violation  # it is the fault that was found


def test_a_failing_history_shrinks_to_a_few_operations(player: Player) -> None:
    with planted("consent not durable (site)"):
        seed = next(seed for seed in range(LIMIT) if player.play(make_history(seed)).violation)
        history = make_history(seed)
        short = shrink(history, lambda candidate: bool(player.play(candidate).violation))
        assert player.play(short).violation
        assert len(short.operations) < len(history.operations)
        text = shrunk(player, history, player.play(history).violation)
    (statement,) = ast.parse(text).body
    assert isinstance(statement, ast.Expr)


def test_the_same_seed_is_the_same_history_with_the_same_end(player: Player) -> None:
    for seed in range(3):
        assert make_history(seed) == make_history(seed)
        first, second = player.play(make_history(seed)), player.play(make_history(seed))
        assert first == second


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_was_found_before_stays_fixed(player: Player, path: Path) -> None:
    outcome = player.play(read_history(path))
    assert not outcome.violation, outcome.violation
