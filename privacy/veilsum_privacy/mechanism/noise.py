"""Discrete Gaussian noise, drawn exactly.

The discrete Gaussian N_Z(0, v) puts mass proportional to exp(-y^2 / 2v) on every integer y (Canonne, Kamath, Steinke 2020).
Here it is drawn around a real centre z, with mass proportional to exp(-(y - z)^2 / 2v), by rejection. A fair bit chooses a
side: y = floor(z) - a or floor(z) + 1 + a, a >= 0, at distance a + g from z, g = z - floor(z) or floor(z) + 1 - z. With
t = 2^r, at most a 64th of the standard deviation where that is 64 or more and 1 below, the proposal is a = t V + U, U uniform
below t, V = j with probability proportional to exp(-kappa j^2), kappa = t^2 / 2v. It is accepted with probability exp(-x),

    x = ((a + g)^2 - (t V)^2) / 2v = kappa (2 V w + w^2),    w = (U + g) / t,

which leaves exp(-(a + g)^2 / 2v) up to a constant. From a standard deviation of 64 on less than 1% are rejected. The chance of
a proposal is in proportion to the sum of exp(-(y - z)^2 / 2v) over all y, which for v >= 16 is the same for all z but for a
factor of 1 +- 1e-136: how many are rejected tells nothing about the centres.

No step uses floating point, and every decision is exact. V is the number of j >= 1 with a uniform number below P(V >= j). Its
first 16 bits mostly settle that, by a table; and 16 bits of another one mostly lie below a bound that no exp(-x) of these
blocks falls below. The rest, some percent, is looked at again: 31 bits against the edges of the blocks, and 31 against
exp(-x), enclosed between two integers in units of 2^-31. What that leaves open, once in millions of draws, is drawn on against
integers of any length. From that standard deviation on time does not depend on the variance, but it is not constant: it tells
how many proposals were looked at again or rejected.

Bits come from ChaCha20's keystream under a key that the source of randomness gives for each call and nothing keeps
(:class:`veilsum_node.keystream.Expanded`). The draws are exact where the keystream is uniform, and to whoever cannot tell it
from that, which masks and ciphertexts rest on too, the guarantee is the same.

This module does not decide how much noise a release needs (:mod:`.noise_plan`) and never adds noise to anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import Misuse
from veilsum_node.keystream import Expanded
from veilsum_node.randomness import RandomSource

Mask = NDArray[np.bool_]

ROUNDING_VARIANCE = 16
"""What a site adds to the variance of its share, in grid units squared, where its vector is not rounded before."""

CENTRE_BITS = 20
"""Binary places of the centre that unrounded vectors are drawn around."""

LARGEST_CENTRE = 2**30
"""Largest absolute value of an unrounded vector, in grid units."""

_SMALLEST_VARIANCE = Fraction(1, 4)
_LARGEST_VARIANCE = Fraction(2**96)
_CHUNK = 1 << 16
_FINE = 12  # kappa is at most 2^-13: t^2 <= v / 2^12
_WORD = 31  # bits of the uniform number that chooses V, before more are drawn
_CELL = 15  # of these, how many the table leaves out
OPEN_CELL = 0xFFFF
"""In the table of a law: a cell with an edge in it."""

_POINT = 28  # binary places of x
_UNIT = 31  # binary places of exp(-x)
_TOP = 24  # beyond x = 24, exp(-x) is below 2^-31


def discrete_gaussian(variance: Fraction, size: int, source: RandomSource) -> Integers:
    """Draw independent discrete Gaussians of mean 0 and parameter ``variance`` (about 1e6 in 0.04 s on one core).

    Returns:
        (size,) int64.

    Raises:
        Misuse: ``variance`` outside [1/4, 2^96] or a negative ``size``.
    """
    if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE:
        raise Misuse("The variance of a discrete Gaussian must lie between 1/4 and 2^96 grid units squared.")
    if size < 0:
        raise Misuse("A number of draws cannot be negative.")
    return Sampler(Fraction(variance), source).draw(size)


def gaussian_around(centres: Integers, variance: Fraction, source: RandomSource) -> Integers:
    """Draw an integer y around each real centre z with probability in proportion to exp(-(y - z)^2 / 2v), independently.

    Shares. Let m sites draw around z_1 .. z_m with v = w + t^2, t^2 = :data:`ROUNDING_VARIANCE`, w >= 16. For every integer y
    the probability that their sum is y is the density of N(z_1 + .. + z_m, m v) at y, but for a factor of 1 +- 4 m 1e-136.
    Proof: exp(-(k - a)^2 / 2p - (y - k - b)^2 / 2q) is exp(-(y - a - b)^2 / 2(p + q)) times a Gaussian in k of variance
    s = pq / (p + q) >= v / 2 >= 16. By Poisson's formula the sum of that over all integers k is sqrt(2 pi s) (1 +- e) wherever
    its centre lies, e < 2.1 exp(-2 pi^2 s) < 1e-136. So is the sum over y that normalises a share. Adding share after share
    leaves no other factors.

    Privacy. With an integral in place of the sum over k the same computation shows: a value drawn around x with variance t^2,
    where x was drawn from N(z, W), has the density of N(z, W + t^2) at y as its probability, but for such a factor. So the sum
    of m shares is what post-processing makes of N(z_1 + .. + z_m, W), W = m v - t^2 >= m w: the Gaussian mechanism on the real
    sum, with the sensitivity of the real sum. Whatever holds of that mechanism at variance m w holds here, sampled or not,
    composed or not; d values change probabilities by a factor of 1 +- 5 d m 1e-136 in all.

    Args:
        centres: (size,) int64, z in units of 2^-:data:`CENTRE_BITS`.
        variance: v in [16, 2^62].
        source: where randomness comes from.

    Returns:
        (size,) int64.

    Raises:
        Misuse: a variance out of range.
    """
    if not ROUNDING_VARIANCE <= variance <= 2**62:
        raise Misuse("The variance around a real centre must lie between 16 and 2^62 grid units squared.")
    sampler = Sampler(Fraction(variance), source, CENTRE_BITS)
    found = sampler.draw(len(centres), centres)
    for start in range(0, len(centres), _CHUNK):
        found[start : start + _CHUNK] += centres[start : start + _CHUNK] >> CENTRE_BITS
    return found


class Sampler:
    """Rejection sampler of one variance, for one call; names as in the module's docstring.

    Args:
        variance: v.
        source: where the key of the bits comes from.
        places: binary places of the distances from the centre.
    """

    def __init__(self, variance: Fraction, source: RandomSource, places: int = 0) -> None:
        self._random, self._places = Expanded(source), places
        self._law = self.law(variance)

    @staticmethod
    def law(variance: Fraction) -> Law:
        """What all draws of one variance share."""
        return _law(variance)

    def draw(self, size: int, fraction: Integers | None = None) -> Integers:
        """Draw y - floor(z) for each of (size,) centres z, ``fraction`` in units of the last binary place."""
        out, rejected = np.empty(size, dtype=np.int64), [np.empty(0, dtype=np.int64)]
        for start in range(0, size, _CHUNK):
            part = slice(start, min(start + _CHUNK, size))
            out[part], again = self._propose(part.stop - start, None if fraction is None else fraction[part])
            rejected.append(again + start)
        left = np.concatenate(rejected)
        if left.size:
            out[left] = self.draw(len(left), None if fraction is None else fraction[left])
        return out

    def _propose(self, count: int, fraction: Integers | None) -> tuple[Integers, Integers]:
        """Make one proposal for each centre: how far it lies from the integer below the centre, and which are rejected."""
        law = self._law
        head, tail, accept = np.frombuffer(self._random.bytes(6 * count), dtype="<u2").reshape(3, count)
        block = law.table[head]
        again = np.flatnonzero((accept >= law.sure) | (block == OPEN_CELL))
        step = block.astype(np.int64)
        step <<= law.r
        if law.r:
            step |= self._low(count)
        below = -(tail & 1).astype(np.int64)

        low = step[again] & ((1 << law.r) - 1)
        offset = low << self._places
        if fraction is None:
            offset += 1 + below[again]
        else:
            beyond = fraction[again] & ((1 << self._places) - 1)
            offset += np.where(below[again] < 0, beyond, (1 << self._places) - beyond)
        bits = (head[again].astype(np.int64) << _CELL) | (tail[again] >> 1)
        found, accepted = self._settle(
            bits, accept[again], offset, lambda index: Fraction(int(offset[index]), 1 << (law.r + self._places))
        )
        step[again] = (found << law.r) | low

        step ^= below
        step += 1
        return step, again[~accepted]

    def _settle(
        self, bits: Integers, accept: NDArray[np.uint16], offset: Integers, exact: Callable[[int], Fraction]
    ) -> tuple[Integers, Mask]:
        """Find the block of each proposal and whether it is accepted, whatever that takes.

        Args:
            bits: (n,) the first 31 of the uniform number that chooses V.
            accept: (n,) the first 16 of the one that decides.
            offset: (n,) w in units of 1 / t and of the distances' last binary place, cut off there.
            exact: w of the proposal with this index.
        """
        law = self._law
        further = np.frombuffer(self._random.bytes(2 * len(bits)), dtype="<u2") >> 1
        accept_bits = (accept.astype(np.int64) << 15) | further
        passed = np.searchsorted(law.edges, bits, side="right")
        found = len(law.edges) - passed
        floor = self._enclose(offset, found)
        accepted = accept_bits < floor - law.width
        unsure = (law.edges[passed - 1] == bits) | (~accepted & (accept_bits < floor + 7))
        for index in np.flatnonzero(unsure):
            found[index] = block = self._exact_block(int(bits[index]))
            w = exact(int(index))
            accepted[index] = self._exact_accept(int(accept_bits[index]), law.kappa * (2 * block + w) * w)
        return found, accepted

    def _low(self, count: int) -> Integers:
        """(count,) uniform integers U below t."""
        r = self._law.r
        low: Integers = (np.frombuffer(self._random.bytes(2 * count), dtype="<u2") & ((1 << min(r, 16)) - 1)).astype(np.int64)
        if r > 16:
            more = np.frombuffer(self._random.bytes(4 * count), dtype="<u4") & np.uint32((1 << (r - 16)) - 1)
            low |= more.astype(np.int64) << 16
        return low

    def _enclose(self, offset: Integers, block: Integers) -> Integers:
        """Enclose 2^31 exp(-x): it lies between what is returned, less the law's width, and what is returned + 7.

        With w at 24 binary places and kappa at 23 significant bits, cutting off takes from x less than 2^-24 b through w,
        2^-22 b through kappa and 3 units of 2^-28 after that, where b = kappa (2 V + 2) bounds x and its derivative. exp(-x)
        grows by no more than x falls. The product of three factors loses less than 7 units of 2^-31.

        Args:
            offset: (n,) w in units of 1 / t and of the distances' last binary place.
            block: (n,) V.
        """
        places = self._law.r + self._places
        w = offset << (24 - places) if places <= 24 else offset >> (places - 24)
        x = (((((block << 25) + w) * w) >> (48 - _POINT)) * self._law.kappa_fixed) >> self._law.kappa_places
        coarse, fine = _exp_tables()
        part = coarse[np.minimum(x >> 20, _TOP << 8)] * fine[(x >> 12) & 0xFF] >> _UNIT
        floor: Integers = part * ((1 << _UNIT) - ((x & 0xFFF) << 3)) >> _UNIT
        return floor

    def _exact_block(self, bits: int) -> int:
        """The V of a uniform number that begins with these 31 bits."""
        known = _WORD
        while True:
            for block, edge in enumerate(_edges(self._law.kappa, known)):
                if bits > edge:
                    return block
                if bits == edge:
                    break
            bits, known = self._extend(bits, known)

    def _exact_accept(self, bits: int, x: Fraction) -> bool:
        """Whether a uniform number that begins with these 31 bits lies below exp(-x)."""
        known = _UNIT
        while True:
            low, high = exp_bracket(x, known)
            if bits + 1 <= low:
                return True
            if bits >= high:
                return False
            bits, known = self._extend(bits, known)

    def _extend(self, bits: int, known: int) -> tuple[int, int]:
        return bits << 64 | int.from_bytes(self._random.bytes(8), "little"), known + 64


@dataclass(frozen=True)
class Law:
    """What all draws of one variance share.

    Attributes:
        r: t = 2^r.
        kappa: t^2 / 2v, exactly; floor(kappa 2^``kappa_places``) is ``kappa_fixed``, below 2^23.
        edges: (n,) int64, floor(2^31 P(V >= j)) for j = n .. 1, ascending; the first is 0.
        table: (65536,) uint16, the V of the numbers that begin with these 16 bits; 65535 where these do not settle it.
        sure: 16 bits below it begin a number below exp(-x), for any block of the table.
        width: what cutting off may take from exp(-x), in units of 2^-31, for any block of the edges.
    """

    r: int
    kappa: Fraction
    kappa_fixed: int
    kappa_places: int
    edges: Integers
    table: NDArray[np.uint16]
    sure: int
    width: int


@lru_cache(maxsize=64)
def _law(variance: Fraction) -> Law:
    """Tables of a variance, made in a millisecond and remembered: a step of training draws few values of the same one."""
    r = max(0, (math.floor(variance / 2**_FINE).bit_length() - 1) // 2)
    kappa = Fraction(4**r) / (2 * variance)
    places = 22
    while math.floor(kappa * 2**places) >> 22 == 0:
        places += 1
    while math.floor(kappa * 2**places) >> 23:
        places -= 1
    edges = np.array(_edges(kappa, _WORD)[::-1], dtype=np.int64)
    inside = np.bincount(edges >> _CELL, minlength=1 << 16)
    table = (len(edges) - np.cumsum(inside)).astype(np.uint16)
    table[inside > 0] = OPEN_CELL
    last = int(table[inside == 0].max())
    sure, _ = exp_bracket(kappa * (2 * last + 1), 16)
    width = math.ceil(kappa * (2 * len(edges) + 2) * (2**9 + 2**7)) + 24
    return Law(r, kappa, math.floor(kappa * 2**places), places, edges, table, sure, width)


@lru_cache(maxsize=8)
def _edges(kappa: Fraction, bits: int) -> tuple[int, ...]:
    """floor(2^bits P(V >= j)) for j = 1, 2, .. up to the first that is 0.

    Weights exp(-kappa i^2) are products of factors exp(-kappa (2i + 1)), all of them cut off: weight i lacks less than
    2 (i + 4)^2 units of the last place. The last one, I, is below 2^33 with that; all that follow it are less than
    exp(-y) / (1 - exp(-y)) <= 1 / y times as much, y = 2 kappa I, and 1 / y <= I since kappa I^2 is above 1. So every sum of
    weights lacks less than (I + 5) 2^35.
    """
    places = bits + 96
    while True:
        ratio, step = (exp_bracket(times * kappa, places)[0] for times in (1, 2))
        weights = [1 << places]
        while weights[-1] >> 32:
            weights.append(weights[-1] * ratio >> places)
            ratio = ratio * step >> places
        lacking = (len(weights) + 4) << 35
        *tails, whole = accumulate(reversed(weights))
        edges: list[int] = []
        for tail in reversed(tails):
            edges.append((tail << bits) // (whole + lacking))
            if ((tail + lacking) << bits) // whole != edges[-1]:
                break  # more places tell on which side of an integer it lies
            if not edges[-1]:
                return tuple(edges)
        places += 64


def exp_bracket(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers (low, high), at most 2 apart, with low <= 2^bits exp(-x) <= high, for x >= 0; equal where x = 0."""
    if x == 0:
        return 1 << bits, 1 << bits
    whole = math.floor(x)
    places = bits + 64 + whole.bit_length()
    low, high = _exp_of_fraction(x - whole, places)
    if whole:
        e_low, e_high = _exp_of_fraction(Fraction(1), places)
        low, high = low * e_low**whole, high * e_high**whole
    top = 1 << (bits + places * (whole + 1))
    return top // high, -(-top // low)


def _exp_of_fraction(x: Fraction, places: int) -> tuple[int, int]:
    """Enclose 2^places exp(x), 0 <= x <= 1, by its Taylor series; each of the terms is cut by less than 2."""
    fixed = math.floor(x * 2**places)
    term = total = 1 << places
    count = 0
    while term:
        count += 1
        term = term * fixed // (count << places)
        total += term
    return total, total + 2 * count + 10


@cache
def _exp_tables() -> tuple[Integers, Integers]:
    """floor(2^31 exp(-j / 2^8)) for j = 0 .. 24 * 2^8 and floor(2^31 exp(-j / 2^16)) for j = 0 .. 255."""
    return _powers(Fraction(1, 1 << 8), (_TOP << 8) + 1), _powers(Fraction(1, 1 << 16), 1 << 8)


def _powers(step: Fraction, count: int) -> Integers:
    """floor(2^31 exp(-j step)) for j = 0 .. count - 1, by products that are cut off: the j-th lacks at most 4 j."""
    places = 128
    ratio, power, found = exp_bracket(step, places)[0], 1 << places, []
    for j in range(count):
        floor = power >> (places - _UNIT)
        certain = (power + 4 * j) >> (places - _UNIT) == floor
        found.append(floor if certain else exp_bracket(j * step, _UNIT)[0])
        power = power * ratio >> places
    return np.array(found, dtype=np.int64)
