"""Discrete Gaussian noise, drawn exactly, and the plan of how much of it each site adds.

The discrete Gaussian N_Z(0, v) puts mass proportional to exp(-y^2 / 2v) on every integer y (Canonne, Kamath, Steinke 2020).
It is drawn by rejection. With t = 2^r near its standard deviation, the proposal is y = t V + U, P(V >= j) = exp(-j), U uniform
below t, with a random sign; it is accepted with probability exp(-x),

    x = kappa (y / t)^2 - V + m,    kappa = t^2 / 2v,    m = max_j (j - kappa j^2),

which leaves exp(-y^2 / 2v) up to a constant; a negative zero is rejected. No step uses floating point. exp(-x) is enclosed
between two integers in units of 2^-31, and a uniform integer that falls outside the enclosure decides at once. One that falls
inside (once in millions of proposals) is drawn on, bit by bit, against exp(-x) in integers of any length: every decision is
exact. Time does not depend on the variance, but it is not constant: it tells how many proposals were rejected.

Around a real centre z the same is drawn on either side of it: y = floor(z) - a or floor(z) + 1 + a, with a >= 0 proposed as
above and a + g in place of y, g = z - floor(z) or floor(z) + 1 - z being the distance of a = 0. A proposal is accepted with a
probability in proportion to the sum of exp(-(y - z)^2 / 2v) over all y, which for v >= 16 is the same for all z but for a
factor of 1 +- 1e-136: how many are rejected tells nothing about the centres.

This module does not decide how much noise a release needs (accounting) and never adds noise to anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.study.study import NoiseKind, Study, TaskDeclaration

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

SMALLEST_SHARE_STD = 4
"""Below this standard deviation of one share, in grid units, a sum of shares is not close enough to a discrete Gaussian."""

ROUNDING_VARIANCE = 16
"""What a site adds to the variance of its share, in grid units squared, where its vector is not rounded before."""

CENTRE_BITS = 20
"""Binary places of the centre that unrounded vectors are drawn around."""

LARGEST_CENTRE = 2**30
"""Largest absolute value of an unrounded vector, in grid units."""

_SMALLEST_VARIANCE = Fraction(1, 4)
_LARGEST_VARIANCE = Fraction(2**96)
_CHUNK = 1 << 16
_BLOCKS = 22  # blocks V below this are decided without integers of any length; P(V >= 22) = 3e-10
_POINT = 28  # binary places of x
_UNIT = 31  # binary places of exp(-x)
_TOP = 24  # beyond x = 24, exp(-x) is below 2^-31


@dataclass(frozen=True)
class NoisePlan:
    """How the noise of a sum is made up; part of the round's context.

    Attributes:
        kind: ``distributed`` over the honest shares, ``local`` (every site reaches S alone), ``none``, ``kept``: nothing is
            added, for the sum is made of noised statistics that the sites kept and paid for; or ``training``: nothing is
            added, for every site added noise of variance S^2 in each step of its training.
        variance: S^2 in grid units squared, what the honest shares reach together; 0 for ``none`` and ``kept``.
        honest: h, the shares that are counted; 1 unless distributed.
        colluders: k >= 1, participants whose shares are not counted.
    """

    kind: NoiseKind | Literal["kept", "training"]
    variance: int
    honest: int
    colluders: int

    def __post_init__(self) -> None:
        if self.kind not in ("distributed", "local", "none", "kept", "training"):
            raise Misuse(f"Unknown kind of noise {self.kind!r}.", "Use distributed, local or none.")
        if self.honest < 1 or self.colluders < 1:
            raise Misuse("Honest shares and assumed colluders must be at least 1.")
        if self.kind != "distributed" and self.honest != 1:
            raise Misuse("Only distributed noise counts more than one share.")
        if (self.variance == 0) == self.protects or self.variance < 0:
            raise Misuse(f"Noise of kind {self.kind!r} contradicts variance {self.variance}.")
        if self.protects and self.share_variance < SMALLEST_SHARE_STD**2:
            raise Misuse(
                f"One share's noise has a standard deviation of {self.share_std:.3g} grid units; "
                f"at least {SMALLEST_SHARE_STD} are needed.",
                "Choose a finer grid.",
            )

    @property
    def drawn(self) -> bool:
        """Whether every site adds noise to its vector."""
        return self.kind in ("distributed", "local")

    @property
    def protects(self) -> bool:
        """Whether the release has an epsilon: noise is in it that the records were not in before."""
        return self.drawn or self.kind == "training"

    @property
    def share_variance(self) -> Fraction:
        """Variance of one site's noise, in grid units squared."""
        return Fraction(self.variance, self.honest)

    @property
    def share_std(self) -> float:
        """Standard deviation of one site's noise, in grid units."""
        return math.sqrt(self.share_variance)

    def total_variance(self, cohort_size: int) -> Fraction:
        """Variance of the noise that is added to ``cohort_size`` contributions, in grid units squared."""
        return cohort_size * self.share_variance if self.drawn else Fraction(0)

    def draw(self, size: int, source: RandomSource) -> Integers:
        """Draw one site's share: (size,) int64, in grid units."""
        if not self.drawn:
            return np.zeros(size, dtype=np.int64)
        return discrete_gaussian(self.share_variance, size, source)

    def to_context(self) -> dict[str, Any]:
        """The plan as it enters the context's canonical JSON."""
        return {"kind": self.kind, "variance": self.variance, "honest": self.honest, "colluders": self.colluders}


def plan_noise(kind: NoiseKind, variance: int, cohort_size: int, colluders: int) -> NoisePlan:
    """Plan the noise of a cohort: h = max(1, cohort - k) for distributed noise, 1 otherwise.

    Raises:
        Misuse: a cohort or number of colluders below 1, a variance that contradicts ``kind``, or too little noise a share.
    """
    if cohort_size < 1:
        raise Misuse("A cohort has at least one participant.")
    return NoisePlan(kind, variance, max(1, cohort_size - colluders) if kind == "distributed" else 1, colluders)


def task_noise(study: Study, declaration: TaskDeclaration, cohort_size: int) -> NoisePlan:
    """The noise of one of a study's tasks: that of the study's kind; always local where it is kept, or in the site's own
    block alone; a derived task's none, a training task's in its steps.

    Raises:
        Misuse: as :func:`plan_noise`.
    """
    privacy = study.privacy
    if cohort_size < 1:
        raise Misuse("A cohort has at least one participant.")
    if privacy.noise != "none" and declaration.derived:
        return NoisePlan("kept", 0, 1, privacy.assumed_colluders)
    if declaration.local_steps:
        return NoisePlan("training", declaration.variance, 1, privacy.assumed_colluders)
    alone = declaration.keep or declaration.own_noise
    kind = "local" if alone and privacy.noise == "distributed" else privacy.noise
    return plan_noise(kind, declaration.variance, cohort_size, privacy.assumed_colluders)


def discrete_gaussian(variance: Fraction, size: int, source: RandomSource) -> Integers:
    """Draw independent discrete Gaussians of mean 0 and parameter ``variance`` (about 1e6 in 0.2 s on one core).

    Returns:
        (size,) int64.

    Raises:
        Misuse: ``variance`` outside [1/4, 2^96] or a negative ``size``.
    """
    if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE:
        raise Misuse("The variance of a discrete Gaussian must lie between 1/4 and 2^96 grid units squared.")
    if size < 0:
        raise Misuse("A number of draws cannot be negative.")
    sampler = _Sampler(Fraction(variance), source)
    out = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        # Between 0.45 and 0.57 of the proposals are accepted: one chunk mostly fills what is left of a small request.
        accepted = sampler.propose(min(_CHUNK, (size - done) * 9 // 4 + 16))[: size - done]
        out[done : done + len(accepted)] = accepted
        done += len(accepted)
    return out


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
    sampler = _Sampler(Fraction(variance), source, CENTRE_BITS)
    whole, fraction = centres >> CENTRE_BITS, centres & ((1 << CENTRE_BITS) - 1)
    out = whole.copy()
    for start in range(0, len(centres), _CHUNK):
        left = np.arange(start, min(start + _CHUNK, len(centres)))
        while left.size:
            accepted, moved = sampler.propose_around(fraction[left])
            out[left[accepted]] += moved[accepted]
            left = left[~accepted]
    return out


class _Sampler:
    """Rejection sampler of one variance; names as in the module's docstring.

    Args:
        variance: v.
        source: where randomness comes from.
        places: binary places of the distances from the centre.
    """

    def __init__(self, variance: Fraction, source: RandomSource, places: int = 0) -> None:
        self._source, self._places = source, places
        self._r, self._kappa, self._m = _constants(variance)
        self._kappa_fixed = math.floor(self._kappa * 2**24)
        self._m_fixed = math.floor(self._m * 2**_POINT)

    def propose(self, count: int) -> Integers:
        """Make ``count`` proposals and return the accepted ones, signed, in order."""
        accepted, step, negative = self._try(count)
        accepted &= ~negative | (step != 0)
        chosen = step[accepted]
        return cast(Integers, np.where(negative[accepted], -chosen, chosen))

    def propose_around(self, fraction: Integers) -> tuple[Mask, Integers]:
        """Make one proposal for each centre: which are accepted, and how far each lies from the integer below its centre.

        Args:
            fraction: (n,) how far the centres lie above that integer, in units of the last binary place.
        """
        accepted, step, below = self._try(len(fraction), fraction)
        return accepted, np.where(below, -step, 1 + step)

    def _try(self, count: int, fraction: Integers | None = None) -> tuple[Mask, Integers, Mask]:
        """Make ``count`` proposals: which are accepted, their steps a >= 0, and which lie below the centre."""
        words = np.frombuffer(self._source.bytes(16 * count), dtype="<u4").reshape(4, count)
        block_bits, accept_bits = words[0].astype(np.int64), (words[1] >> 1).astype(np.int64)
        low = words[2].astype(np.int64) | (words[3].astype(np.int64) & 0x7FFFFFFF) << 32
        low &= (1 << self._r) - 1
        negative = (words[3] >> 31).astype(np.bool_)

        edges = _block_edges()
        passed = np.searchsorted(edges, block_bits, side="right")
        block = _BLOCKS - passed.astype(np.int64)
        # Equal to an edge, or below them all: the bits drawn so far do not settle the block.
        unsure = (edges[passed - 1] == block_bits) | (block_bits == 0)
        distance = (
            low if fraction is None else (low << self._places) + np.where(negative, fraction, (1 << self._places) - fraction)
        )
        floor, width = self._enclose(distance, block)
        accepted = accept_bits < floor - width
        unsure |= ~accepted & (accept_bits < floor + 7)

        value = low + (block << self._r)
        for index in np.flatnonzero(unsure):
            block_exact = self._exact_block(int(block_bits[index]))
            value[index] = int(low[index]) + (block_exact << self._r)
            exact = int(distance[index]) + (block_exact << (self._r + self._places))
            x = self._kappa * Fraction(exact, 1 << (self._r + self._places)) ** 2 - block_exact + self._m
            accepted[index] = self._exact_accept(int(accept_bits[index]), x)
        return accepted, value, negative

    def _enclose(self, low: Integers, block: Integers) -> tuple[Integers, Integers]:
        """Enclose 2^31 exp(-x) between ``floor - width`` and ``floor + 7``.

        With z = y / t at 26 binary places and kappa at 24, cutting off loses less than 16 (V+1)^2 + 16 (V+1) + 6 units of
        2^-28 of x, and exp(-x) falls by no more than x grows. The product of three factors loses less than 7 units of 2^-31.
        """
        places = self._r + self._places
        z = block << 26
        z += low << (26 - places) if places <= 26 else low >> (places - 26)
        x = (((z * z) >> 24) * self._kappa_fixed >> 24) + self._m_fixed - (block << _POINT)
        np.maximum(x, 0, out=x)
        coarse, fine = _exp_tables()
        part = coarse[np.minimum(x >> 20, _TOP << 8)] * fine[(x >> 12) & 0xFF] >> _UNIT
        floor = part * ((1 << _UNIT) - ((x & 0xFFF) << 3)) >> _UNIT
        after = block + 1
        return floor, (after * (after + 1) * 16 + 6) << 3

    def _exact_block(self, bits: int) -> int:
        """The V of a uniform number that begins with these 32 bits."""
        block = 0
        known = 32
        while True:
            low, high = exp_bracket(Fraction(block + 1), known)
            if bits + 1 <= low:
                block += 1
            elif bits >= high:
                return block
            else:
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
        return bits << 64 | int.from_bytes(self._source.bytes(8), "little"), known + 64


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


@lru_cache(maxsize=256)
def _constants(variance: Fraction) -> tuple[int, Fraction, Fraction]:
    """r, kappa and m of a variance; remembered, for a step of training draws few values of the same one."""
    # The largest power of two with t^2 <= 3v, so that 3/8 < kappa <= 3/2 (up to 2 where t = 1).
    r = max(0, (math.floor(3 * variance).bit_length() - 1) // 2)
    kappa = Fraction(4**r) / (2 * variance)
    return r, kappa, max(Fraction(0), 1 - kappa)  # the peak is at 0 or 1, for kappa is above 1/3


@cache
def _block_edges() -> Integers:
    """floor(2^32 exp(-j)) for j = 22 .. 1, ascending."""
    return np.array([exp_bracket(Fraction(j), 32)[0] for j in range(_BLOCKS, 0, -1)], dtype=np.int64)


@cache
def _exp_tables() -> tuple[Integers, Integers]:
    """floor(2^31 exp(-j / 2^8)) for j = 0 .. 24 * 2^8 and floor(2^31 exp(-j / 2^16)) for j = 0 .. 255."""
    coarse = [exp_bracket(Fraction(j, 1 << 8), _UNIT)[0] for j in range((_TOP << 8) + 1)]
    fine = [exp_bracket(Fraction(j, 1 << 16), _UNIT)[0] for j in range(1 << 8)]
    return np.array(coarse, dtype=np.int64), np.array(fine, dtype=np.int64)
