"""Histories from seeds: mostly steps forward, with losses, deaths, delays, partitions and pauses in between."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.ground import KINDS, MOST_ROUNDS, NAMES
from simulation.network import FATES
from simulation.world import History, Operation

SLEEPS = (1, 10, 31, 31, 61, 601, 3601, 90_000)
SKEWS = (-3600, -90, -5, 5, 90, 3600, 7200)
MOST_POINTS = 40
"""A turn has fewer points of death than this."""

HABITS = (0.0, 0.3, 1.0, 3.0)
"""By one of these the share of each kind of operation differs from the usual."""

SCENES = 0.15
"""Share of the histories in which a second attempt is brought about, for most happens in the first one otherwise."""

ECHOES = 0.15
"""Share of the histories in which everybody hears an old directive again at one moment."""

RESTORED = 0.15
"""Share of those that are not gentle in which a site loses its disk and is restored from a backup."""

SHARES = (0.5, 0.25, 0.1, 0.15)
"""Of the kinds of studies."""

MEAN_LENGTH = 22
ONE_IN_WHOLE = 8
"""In one of so many histories the ledgers are proven whole at the end; in the others entry by entry as they grow."""


def make_history(seed: int) -> History:
    """The history of a seed: the same for the same seed, whatever ran before."""
    rng = np.random.default_rng(seed)
    gentle, stormy = rng.random() < 0.3, rng.random() < 0.2
    length = int(rng.integers(4, 2 * MEAN_LENGTH - 4))
    draw = _Draw(rng, gentle=gentle, stormy=stormy)
    drawn = [draw.operation() for _ in range(length)]
    if rng.random() < SCENES:
        place = int(rng.integers(len(drawn)))
        drawn[place:place] = draw.second_attempt()
    if rng.random() < ECHOES:
        turns = int(rng.integers(len(drawn)))
        drawn[:0] = draw.echoes(turns % 10)
    if not gentle and rng.random() < RESTORED:
        _insert(rng, drawn, draw.restored())
    operations = tuple(drawn)
    kind = KINDS[int(rng.choice(len(KINDS), p=SHARES))]
    rounds = MOST_ROUNDS if rng.random() < 0.2 and kind != "rivals" else 1
    return History(kind, bool(rng.random() < 0.92), rounds, operations, seed, seed % ONE_IN_WHOLE == 0)


def _insert(rng: np.random.Generator, operations: list[Operation], scene: list[Operation]) -> None:
    """Put a scene's operations between others, in their order."""
    places = sorted(int(place) for place in rng.integers(len(operations) + 1, size=len(scene)))
    for place, operation in reversed(list(zip(places, scene, strict=True))):
        operations.insert(place, operation)


class _Draw:
    """Draws operations.

    Args:
        gentle: nothing that excuses a failure of the study.
        stormy: losses are frequent.
    """

    def __init__(self, rng: np.random.Generator, *, gentle: bool, stormy: bool) -> None:
        self._rng, self._stormy = rng, stormy
        weights: dict[str, float] = {
            "go": 60, "hear": 3, "doomed": 3, "kill": 3, "again": 3, "late": 4, "cut": 1, "join": 2, "notice": 1, "tick": 6,
            "expire": 1, "sleep": 3, "skew": 0.7, "fall": 1.2, "rise": 3, "abort": 0.15, "leave": 0.3, "full": 0.7,
            "away": 0.7,
        }  # fmt: skip
        if gentle:
            for name in ("cut", "skew", "fall", "rise", "abort", "leave"):
                del weights[name]
        for name in weights:
            if name != "go":  # each history has its own habits, so that rare things come together in some
                weights[name] *= float(rng.choice(HABITS))
        self._gentle = gentle
        self._kinds = list(weights)
        total = sum(weights.values())
        self._shares = [weight / total for weight in weights.values()]

    def operation(self) -> Operation:
        """The next operation."""
        rng = self._rng
        kind = self._kinds[int(rng.choice(len(self._kinds), p=self._shares))]
        match kind:
            case "go":
                lossy = rng.random() < (0.7 if self._stormy else 0.25)
                return (kind, self._name(), self._fates()) if lossy else (kind, self._name())
            case "doomed":
                return (kind, self._name(), int(rng.integers(1, MOST_POINTS)))
            case "again":
                return (kind, self._name(), int(rng.integers(64)))
            case "late":
                return (kind, int(rng.integers(16)))
            case "sleep":
                return (kind, int(rng.integers(1, 8)) if self._gentle else self._pick(SLEEPS))
            case "skew":
                return (kind, self._pick((*NAMES, "coordinator")), self._pick(SKEWS))
            case "fall":
                return (kind, int(rng.integers(0, 30)))
            case "tick" | "rise":
                return (kind,)
            case "abort":
                return (kind, int(rng.integers(2)))
            case "leave":
                return (kind, self._name(), int(rng.integers(2)))
            case "full":
                return (kind, self._name(), int(rng.integers(1, 5)))
            case "away":
                return (kind, int(rng.integers(1, 5)), bool(rng.random() < 0.4))
            case _:
                return (kind, self._name())

    def second_attempt(self) -> list[Operation]:
        """One participant knows the first assignment, another one is started anew and refuses it; then both go on."""
        knows, anew = (NAMES[int(index)] for index in self._rng.permutation(len(NAMES))[:2])
        scene: list[Operation] = [("hear", knows), ("kill", anew), ("go", anew), ("go", anew)]
        scene += [("go", knows)] * 3
        return [*scene, ("again", knows, 1)] if self._rng.random() < 0.5 else scene

    def echoes(self, turns: int) -> list[Operation]:
        """So many turns forward, by one participant after the other; then everybody hears an old directive once more."""
        forward: list[Operation] = [("go", NAMES[place % len(NAMES)]) for place in range(turns)]
        return [*forward, *(("again", name, int(self._rng.integers(64))) for name in NAMES)]

    def restored(self) -> list[Operation]:
        """A site is backed up, restored later, and somebody vouches for it at last."""
        name, other = (NAMES[int(index)] for index in self._rng.permutation(len(NAMES))[:2])
        word: Operation = ("trust", name) if self._rng.random() < 0.5 else ("vouch", name, other)
        return [("backup", name), ("restore", name), word, *([("go", name)] * 3)]

    def _fates(self) -> tuple[tuple[int, str], ...]:
        number = 1 + int(self._rng.random() < 0.3)
        return tuple((int(self._rng.integers(0, 7)), self._pick(FATES)) for _ in range(number))

    def _name(self) -> str:
        return str(self._pick(NAMES))

    def _pick(self, items: Any) -> Any:
        return items[int(self._rng.integers(len(items)))]
