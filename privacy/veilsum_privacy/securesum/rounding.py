"""Rounding by a discrete Gaussian: an integer about each rational centre, drawn exactly.

The errors of one-time encryption (:mod:`.one_time_keys`) are drawn about q y / t and not about the nearest integer, so that
the error of a sum has the same law whatever its summands were. Their standard deviation is a few units, where the general
sampler (:mod:`veilsum_privacy.mechanism.noise`) looks at most proposals twice. This one makes the same proposals and decides
them by a table of the block and of the first eight bits of the distance; what the table leaves open, three in a thousand, is
decided as there: 31 bits against the edges and against exp(-x), then integers of any length. No step uses floating point, and
the centre is never cut off: a draw has exactly the law of the discrete Gaussian about n / m.

How many proposals are rejected, about one in twelve at variance 42, says nothing about the centres, as there; the time says
how many were rejected or looked at again, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import OPEN_CELL, Sampler, exp_bracket

Numerators = NDArray[np.uint64]

_PARTS = 8  # bits of the distance that the table knows
_SLACK = 16  # the distance lies in its part of [0, 1] but for 2^-16
_PLACES = 24  # of a distance that is looked at again; the law's enclosure cuts off there
_LARGEST_MODULUS = 1 << 52


@dataclass(frozen=True)
class _Decisions:
    """What 16 bits decide, by 256 times the block and the part of the distance.

    Attributes:
        accepted: uint16; below it a proposal is accepted.
        refused: uint32; from it on a proposal is rejected.
        blocks: of the table; its row beyond them decides nothing.
    """

    accepted: NDArray[np.uint16]
    refused: NDArray[np.uint32]
    blocks: int


class _Rounding(Sampler):
    """Rejection sampler about n / m; the numerators take the place of the fraction."""

    def __init__(self, variance: Fraction, modulus: int, source: RandomSource) -> None:
        super().__init__(variance, source, _PLACES)
        self._modulus = modulus
        self._first = np.uint64(modulus.bit_length() - _PARTS)
        self._decisions = _decisions(variance)

    def _propose(self, count: int, fraction: Integers | None) -> tuple[Integers, Integers]:
        if fraction is None:
            raise Misuse("A rounding needs its centres.")
        law, decisions, numerators = self._law, self._decisions, fraction.view(np.uint64)
        head, tail, accept = np.frombuffer(self._random.bytes(6 * count), dtype="<u2").reshape(3, count)
        step = np.minimum(law.table[head], np.uint16(decisions.blocks)).astype(np.int64)
        above = 1 - (tail & 1).astype(np.int64)
        part = (numerators >> self._first).view(np.int64) ^ (above * ((1 << _PARTS) - 1))
        cell = (step << _PARTS) | part
        refused = accept >= decisions.refused[cell]
        again = np.flatnonzero((accept >= decisions.accepted[cell]) & ~refused)
        if again.size:
            refused[again] = ~self._decide(again, numerators[again], above[again], head, tail, accept, step)
        step ^= above - 1
        step += 1
        return step, np.flatnonzero(refused)

    def _decide(
        self,
        again: Integers,
        numerators: Numerators,
        above: Integers,
        head: NDArray[np.uint16],
        tail: NDArray[np.uint16],
        accept: NDArray[np.uint16],
        step: Integers,
    ) -> NDArray[np.bool_]:
        """Whether each proposal that the table left open is accepted; its block goes into ``step``."""
        modulus = np.uint64(self._modulus)
        distance = np.where(above == 1, modulus - numerators, numerators)  # w = distance / modulus
        bits = (head[again].astype(np.int64) << 15) | (tail[again] >> 1)
        found, accepted = self._settle(
            bits, accept[again], self._cut(distance), lambda index: Fraction(int(distance[index]), self._modulus)
        )
        step[again] = found
        return accepted

    def _cut(self, distance: Numerators) -> Integers:
        """floor(2^24 distance / m)."""
        modulus, half = np.uint64(self._modulus), np.uint64(_PLACES // 2)
        high, rest = np.divmod(distance << half, modulus)
        return ((high << half) | ((rest << half) // modulus)).astype(np.int64)


def gaussian_rounding(numerators: Numerators, modulus: int, variance: Fraction, source: RandomSource) -> Integers:
    """Draw an integer y about each centre n / m with probability in proportion to exp(-(y - n / m)^2 / 2v), independently.

    Args:
        numerators: (size,) uint64 n, each below m.
        modulus: m, below 2^52 and within one part in 2^17 of the power of two above it.
        variance: v in [16, 2^11]: for wider ones the general sampler has blocks of its own.
        source: where randomness comes from.

    Returns:
        (size,) int64.

    Raises:
        Misuse: a modulus or variance out of range.
    """
    if not 16 <= variance <= 2**11:
        raise Misuse("The variance of a rounding must lie between 16 and 2^11.")
    power = 1 << modulus.bit_length()
    if not 1 << 16 < modulus < _LARGEST_MODULUS or (power - modulus) << (_SLACK + 1) > power:
        raise Misuse("The modulus of a rounding must lie just below a power of two, from 2^17 to 2^52.")
    return _Rounding(Fraction(variance), modulus, source).draw(len(numerators), numerators.view(np.int64))


@lru_cache(maxsize=4)
def _decisions(variance: Fraction) -> _Decisions:
    """The table of one variance, from enclosures of exp(-kappa w^2) and exp(-2 kappa w) and products of them."""
    law = Sampler.law(variance)
    blocks = int(law.table[law.table != OPEN_CELL].max()) + 1
    parts, places = 1 << _PARTS, 128
    accepted = np.zeros((blocks + 1, parts), dtype=np.uint16)
    refused = np.full((blocks + 1, parts), 1 << 16, dtype=np.uint32)
    for part in range(parts):
        far = min(Fraction(1), Fraction(part + 1, parts) + Fraction(1, 1 << _SLACK))
        near = max(Fraction(0), Fraction(part, parts) - Fraction(1, 1 << _SLACK))
        least, below = (exp_bracket(law.kappa * x, places)[0] for x in (far * far, 2 * far))
        most, beyond = (exp_bracket(law.kappa * x, places)[1] for x in (near * near, 2 * near))
        for block in range(blocks):
            accepted[block, part] = min(least >> (places - 16), (1 << 16) - 1)
            refused[block, part] = -(-most >> (places - 16))
            least = least * below >> places
            most = -(-most * beyond >> places)
    return _Decisions(accepted.reshape(-1), refused.reshape(-1), blocks)
