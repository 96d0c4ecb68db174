"""What tests send to the workers of an engine: it must be importable there."""

from __future__ import annotations

import os
from pathlib import Path

from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput


class TravellingRandom:
    """A seeded source that can be sent to a worker: its seed, and how much of it is used."""

    def __init__(self, seed: str, used: int = 0) -> None:
        self._seed, self._used, self._stream = seed, used, SeededRandom(seed.encode())
        self._stream.bytes(used)

    def bytes(self, count: int) -> bytes:
        self._used += count
        return self._stream.bytes(count)

    def __reduce__(self) -> tuple[type[TravellingRandom], tuple[str, int]]:
        return TravellingRandom, (self._seed, self._used)


def square(value: int) -> int:
    if value == 13:
        raise HostileInput("thirteen", "Take twelve.")
    return value * value


def leave(marker: Path, value: int) -> int:
    """Ends its worker the first time."""
    if not marker.exists():
        marker.write_text("gone")
        os._exit(1)
    return value
