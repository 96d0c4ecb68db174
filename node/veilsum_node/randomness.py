"""Where randomness comes from: an argument everywhere, the operating system's generator in every process that is started.

Where much of it is used at once, a source gives a key that :mod:`veilsum_node.keystream` expands. A seeded source exists only
under ``tests``; nothing installed can construct one.
"""

import os
from typing import Protocol


class RandomSource(Protocol):
    """A source of uniformly random bytes."""

    def bytes(self, count: int) -> bytes:
        """Return ``count`` fresh bytes."""


class SystemRandom:
    """The operating system's cryptographic generator."""

    def bytes(self, count: int) -> bytes:
        drawn = os.urandom(count)
        if len(drawn) != count:  # less would be a weak key, or an entry that breaks the ledger
            raise OSError("The operating system gave fewer random bytes than were asked for.")
        return drawn


SYSTEM_RANDOM = SystemRandom()


def spread(pause: float, random: RandomSource) -> float:
    """Between half of a pause and all of it, at random: not all that lost one coordinator dial it at once."""
    return pause * (0.5 + int.from_bytes(random.bytes(2), "big") / 2**17)
