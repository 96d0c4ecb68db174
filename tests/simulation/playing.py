"""Plays histories in one process: makes the ground once, plays, and tells what came of each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import inspect

from simulation import ground, histories, world
from simulation.books import Violation
from simulation.checks import Checks
from simulation.disks import quick_after_commit
from simulation.ground import KINDS, Ground, Keyed, Kind
from simulation.memory import inspect_quickly
from simulation.toy import stand_ins
from simulation.world import History, World
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service import runner
from veilsum_node.database import after_commit
from veilsum_participant.data import load_records
from veilsum_privacy.securesum.data_masks import mask_values
from veilsum_privacy.securesum.graph import least_separators, reach
from veilsum_privacy.securesum.opening import open_words


@dataclass(frozen=True)
class Outcome:
    """What came of a history.

    Attributes:
        phase: the study's last, empty where something did not hold.
        steps: how many were carried out.
        violation: what did not hold.
    """

    phase: str
    steps: int
    violation: str = ""


class Player:
    """Plays histories, one at a time."""

    def __init__(self, directory: Path) -> None:
        self.ground = Ground(directory)
        self._checks: Checks | None = None

    def prepare(self) -> None:
        """Let the keys of each study be exchanged, for histories that begin after it."""
        for kind in KINDS:
            self.ground.keyed[kind] = self._exchange(kind)

    def play(self, history: History) -> Outcome:
        """Carry a history out and check it."""
        world = World(self.ground, history)
        self._checks = world.checks
        try:
            return Outcome(world.run(), world.steps)
        except Violation as violation:
            return Outcome("", world.steps, str(violation))
        except Exception as error:  # noqa: BLE001 - told like any other violation, and shrunk
            return Outcome("", world.steps, f"internal error: {type(error).__name__}: {error}")

    def watched(self, values: Any, plan: Any, masks: Any) -> Any:
        """In the place of ``mask_values``: the checks see a vector before its masks."""
        if self._checks is not None:
            self._checks.encoded(masks.own, masks.context, values)
        return mask_values(values, plan, masks)

    def opening(self, total: Any, plan: Any, context: bytes, consents: Any, into: Any = None) -> Any:
        """In the place of ``open_words``: the checks see who has consented when a sum opens."""
        if self._checks is not None:
            self._checks.opening(total, plan, context, consents)
        return open_words(total, plan, context, consents, into)

    def _exchange(self, kind: Kind) -> Keyed:
        world = World(self.ground, History(kind, keyed=False, rounds=1, operations=()), loose=True)
        world.waiting = True
        hub = world.coordinator.hub
        assert hub is not None
        machines = [hub.studies[item.key].machine for item in world.studies]
        while any(machine.phase is not StudyPhase.RUNNING for machine in machines):
            world.step()
        for process in world.processes.values():
            if kind == "rivals":  # lowered now, for a site does not enrol in what its budget cannot bear
                assert process.core is not None
                self.ground.lower(process.disk, process.core.site.ledger)
        images = {name: process.disk.image() for name, process in world.processes.items()}
        return Keyed(images, world.coordinator.disk.image())


FOUR = ("a", "b", "c", "d")

IN_A_CIRCLE: tuple[tuple[object, object], ...] = ((reach, lambda *_: 1), (least_separators, lambda _: 1))
"""Four sites in a circle, each sharing masks with two others; a cohort passes that one of them can take apart."""


@contextmanager
def playing(*, neighbours: bool = False) -> Iterator[Player]:
    """A player, with the stand-ins in place; files lie in memory where there is such a place.

    Args:
        neighbours: whether there is a fourth site, and masks are shared by neighbours only.
    """
    place = Path("/dev/shm")
    players: list[Player] = []

    def watched(*arguments: Any) -> Any:
        return players[0].watched(*arguments)

    def opening(*arguments: Any) -> Any:
        return players[0].opening(*arguments)

    with (
        tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as directory,
        stand_ins(
            (after_commit, quick_after_commit),
            (inspect, inspect_quickly),
            (mask_values, watched),
            (open_words, opening),
            (load_records, lru_cache(maxsize=16)(load_records)),  # the same files for every start of a site
            *(IN_A_CIRCLE if neighbours else ()),
        ),
        ExitStack() as stack,
    ):
        for module in (ground, histories, world) if neighbours else ():
            stack.callback(setattr, module, "NAMES", module.NAMES)
            module.NAMES = FOUR
        player = Player(Path(directory))
        players.append(player)
        stack.callback(setattr, runner, "get_method", vars(runner)["get_method"])
        setattr(runner, "get_method", player.ground.method)  # noqa: B010 - compilation goes on with the real one
        player.prepare()
        yield player
