"""One-time keys: discrete Gaussians of variance 42 about 0, drawn exactly.

The first 16 bits of a uniform number U in [0, 1) look its value up: y if P(< y) <= U < P(<= y). Where they do not settle it,
one draw in a thousand, 48 more are compared with these probabilities, and where even those do not, as many as it takes. No
step uses floating point. How long a key takes says how many of its draws were looked at again, and nothing else. Any centre
and not just 0 is what :mod:`.rounding` is for, which takes five times as long.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.keystream import Expanded
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import exp_bracket
from veilsum_privacy.securesum.ring import KEY_VARIANCE, RingParameters

_HEAD = 16
_FIRST = 64
_OPEN = np.int8(-128)  # no value that the first bits settle is as far from 0


def draw_key(ring: RingParameters, source: RandomSource) -> Integers:
    """A fresh one-time key s: (N,) discrete Gaussians of variance 42. It serves one context and is never stored."""
    random = Expanded(source)
    heads = np.frombuffer(random.bytes(2 * ring.degree), dtype="<u2")
    key: Integers = _table()[heads].astype(np.int64)
    for place in np.flatnonzero(key == _OPEN):
        bits, known = (
            int(heads[place]) << _FIRST - _HEAD | int.from_bytes(random.bytes((_FIRST - _HEAD) // 8), "little"),
            _FIRST,
        )
        while (found := _settled(bits, known)) is None:
            bits, known = bits << 64 | int.from_bytes(random.bytes(8), "little"), known + 64
        key[place] = found
    return key


def _settled(bits: int, known: int) -> int | None:
    """The value of a uniform number that begins with so many known bits; None if they do not settle it."""
    edges, reach = _edges(known), _reach(known)
    place = bisect_left(edges, bits)
    return None if place < len(edges) and edges[place] == bits else place - reach


@cache
def _table() -> NDArray[np.int8]:
    """(65536,) the value of the numbers that begin with these 16 bits."""
    starts = [edge >> _FIRST - _HEAD for edge in _edges(_FIRST)]
    table = np.repeat(
        np.arange(-_reach(_FIRST), _reach(_FIRST) + 1, dtype=np.int8),
        np.diff([0, *(start + 1 for start in starts), 1 << _HEAD]),
    )
    table[starts] = _OPEN
    return table


def _reach(bits: int) -> int:
    """R: beyond it lies less than 2^-bits, and each weight exp(-j^2 / 84) is less than half the one before."""
    return 84 * (bits // _FIRST)


@cache
def _edges(bits: int) -> tuple[int, ...]:
    """floor(2^bits P(<= j)) for j = -R .. R - 1, exactly: by enclosures that are narrowed until both ends say the same."""
    reach, places = _reach(bits), bits + 64
    while True:
        brackets = [exp_bracket(Fraction(j * j, 2 * KEY_VARIANCE), places) for j in range(reach + 2)]
        low, high = ([bracket[end] for bracket in brackets] for end in (0, 1))
        beyond = 2 * high[reach + 1]  # at least all weights from there on
        least, most = (ends[0] + 2 * sum(ends[1 : reach + 1]) for ends in (low, high))
        most += 2 * beyond
        floors, ceilings, below, above = [], [], 0, beyond
        for j in range(-reach, reach):
            below, above = below + low[abs(j)], above + high[abs(j)]
            floors.append((below << bits) // most)
            ceilings.append((above << bits) // least)
        if floors == ceilings:
            return tuple(floors)
        places += 64
