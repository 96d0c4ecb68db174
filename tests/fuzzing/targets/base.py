"""What targets share: a folder of their own, and corpora of valid inputs that grow with what ended anew."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from fuzzing.driver import Target
from fuzzing.mutation import mutate_bytes

MOST_KEPT = 400
LONGEST_KEPT = 200_000


class Corpus(Target):
    """Mutates valid inputs; the first byte of an input says which of several readers reads it."""

    readers = 1

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fuzzing-"))
        self.seeds: list[list[bytes]] = [[] for _ in range(self.readers)]

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def case(self, rng: random.Random) -> bytes:
        reader = rng.randrange(self.readers)
        seeds = self.seeds[reader]
        if rng.random() < 0.03:
            return bytes([reader]) + rng.randbytes(rng.choice((0, 1, 16, 200, 5000)))
        if (built := self.build(rng, reader)) is not None:
            return bytes([reader]) + built
        return bytes([reader]) + mutate_bytes(rng, rng.choice(seeds), seeds)

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        """An input along its structure; None for one that is spoilt as bytes."""
        return None

    def run(self, data: bytes) -> None:
        self.read(data[0] % self.readers if data else 0, data[1:])

    def read(self, reader: int, data: bytes) -> None:
        """Read one input."""
        raise NotImplementedError

    def keep(self, data: bytes) -> None:
        if data and len(data) <= LONGEST_KEPT and len(seeds := self.seeds[data[0] % self.readers]) < MOST_KEPT:
            seeds.append(data[1:])

    def file(self, name: str, data: bytes) -> Path:
        """A file that holds the input."""
        path = self.directory / name
        path.write_bytes(data)
        return path
