"""Random histories of a federation hold what is promised; every planted fault is found; what was found before stays fixed.

How long the random part runs in CI is bounded by time and not by number, for the machines differ; by hand:
``PYTHONPATH=tests python -m simulation --histories 10000``.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from simulation.bugs import BUGS, planted
from simulation.histories import make_history
from simulation.playing import Player, playing
from simulation.running import play_range, shrunk
from simulation.shrinking import shrink
from simulation.world import History, World
from veilsum_participant.store.attempts import ATTEMPTS
from veilsum_proto import federation_pb2 as pb

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


@dataclass(frozen=True)
class Moment:
    """A federation just before one operation of a history.

    Attributes:
        operation: the operation.
        states: of every site's attempts, in order.
        answered: of every site's attempts: whether it answered the challenge.
        heard: the kinds of the directives that every process came to hear, in order.
        up: whose processes run.
    """

    operation: tuple[object, ...]
    states: dict[str, list[str]]
    answered: dict[str, list[bool]]
    heard: dict[str, list[int]]
    up: set[str]


def followed(player: Player, history: History) -> list[Moment]:
    """The moments before each operation of a history, and one at its last operation's end."""
    moments: list[Moment] = []

    def look(world: World, operation: tuple[object, ...]) -> None:
        states, answered = {}, {}
        for name, process in world.processes.items():
            with process.disk.database.reading() as connection:
                rows = connection.execute(select(ATTEMPTS.c.state, ATTEMPTS.c.fixed).order_by(ATTEMPTS.c.round)).all()
            states[name], answered[name] = [row.state for row in rows], [row.fixed is not None for row in rows]
        heard = {name: [item.kind for item in process.heard] for name, process in world.processes.items()}
        up = {name for name, process in world.processes.items() if process.core is not None}
        moments.append(Moment(operation, states, answered, heard, up))

    def watched(world: World, operation: tuple[object, ...]) -> None:
        look(world, operation)
        carry_out(world, operation)
        if len(moments) == len(history.operations):
            look(world, ())

    carry_out = World._carry_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "_carry_out", watched)
        player.play(history)
    assert [moment.operation for moment in moments[:-1]] == list(history.operations)
    return moments


def _echo(moments: list[Moment], name: str, states: list[str], place: int = -2) -> bool:
    """Whether a site in these states hears its first assignment again at one of the moments."""
    moment = moments[place]
    again = moment.operation[:2] == ("again", name) and moment.heard[name][0] == pb.DIRECTIVE_KIND_CONTRIBUTE
    return again and moment.states[name] == states


SITUATIONS: dict[str, Callable[[list[Moment]], bool]] = {
    "a-session-that-the-coordinator-gave-up": lambda moments: moments[-1].up == {"a", "b"},
    "boxes-asked-for-too-late": lambda moments: not any(moments[-1].states.values()),
    "consent-after-a-first-look-at-the-mirror": lambda moments: (
        moments[4].states["b"] == ["payload"] and moments[-2].answered["b"] == [True] and not moments[4].answered["b"][0]
    ),
    "echo-after-consent": lambda moments: _echo(moments, "b", ["consented"]),
    "echo-after-last-release": lambda moments: _echo(moments, "c", ["released", "released"]),
    "echoes-while-consenting": lambda moments: (
        _echo(moments, "a", ["consented"], -3)
        and _echo(moments, "b", ["consented"])
        and moments[-1].states["c"] == ["payload"]
    ),
    "end-heard-before-the-release": lambda moments: (
        moments[-1].states == {"a": ["released"], "b": ["consented"], "c": ["released"]}
        and {pb.DIRECTIVE_KIND_RELEASED, pb.DIRECTIVE_KIND_END} <= set(moments[-1].heard["b"])
    ),
    "end-heard-late-by-a-new-coordinator": lambda moments: (
        moments[7].operation == ("fall", 3) and pb.DIRECTIVE_KIND_END in moments[7].heard["c"]
    ),
    "killed-before-upload": lambda moments: "b" not in moments[-1].up and moments[-1].states["b"] == ["payload"],
    "restored-before-the-roster": lambda moments: moments[-2].operation == ("restore", "a") and "a" not in moments[-1].up,
    "stale-assignment": lambda moments: moments[-2].operation == ("again", "b", 1) and moments[-2].states["b"] == ["payload"],
}
"""What each of them comes to, which the steps of another protocol may not."""


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_was_found_before_stays_fixed(player: Player, path: Path) -> None:
    history = read_history(path)
    outcome = player.play(history)
    assert not outcome.violation, outcome.violation
    assert SITUATIONS[path.stem](followed(player, history)), "the history does not come to what it is named for"
