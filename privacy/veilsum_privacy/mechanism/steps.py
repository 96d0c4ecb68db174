"""The noised steps of a task that trains at a site: a Poisson sample and integer noise for each, so many and no more.

A task adds up clipped gradients of the records that :meth:`Steps.sample` picks and hands the sum to :meth:`Steps.noised`. What
comes back is all that training may use of the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import NoisePlan, discrete_gaussian
from veilsum_privacy.mechanism.units import Faults, Rows, together

Mask = NDArray[np.bool_]


def poisson_sample(rate: float, count: int, source: RandomSource, subjects: Integers | None = None) -> Mask:
    """Which of ``count`` records take part: each, or each subject with all its records, with probability ``rate`` by itself.

    A unit takes part if 62 random bits are below floor(rate 2^62), so never with a larger probability than ``rate``.

    Args:
        rate: q in (0, 1].
        count: number of records.
        source: where randomness comes from.
        subjects: (count,) never descending; None where each record is a unit of its own.
    """
    if not 0.0 < rate <= 1.0:
        raise Misuse("A sampling rate must lie in (0, 1].")
    if rate == 1.0:
        return np.ones(count, dtype=np.bool_)
    unit = np.arange(count)
    if subjects is not None:
        if subjects.shape != (count,) or (subjects[1:] < subjects[:-1]).any():
            raise Misuse("The records of one subject must stand together, in ascending order of subjects.")
        unit = np.concatenate([[0], np.cumsum(subjects[1:] != subjects[:-1])]) if count else unit
    units = int(unit[-1]) + 1 if count else 0
    draws = np.frombuffer(source.bytes(8 * units), dtype="<u8") >> np.uint64(2)
    taken: Mask = draws < np.uint64(math.floor(math.ldexp(rate, 62)))
    return taken[unit]


@dataclass
class Steps:
    """What the framework hands to a task that trains.

    Attributes:
        number: noised steps of this release; 0 in a study without noise.
        rate: public sampling rate of a step.
        plan: noise of a step.
        grid: L2 bound on what a unit changes in a step's sum, in grid units.
        clip: the same bound C in the sum's own units.
        bound: clamp of each value of a sum, in grid units.
        source: of samples and noise.
        taken: how many noised steps were taken.
        faults: takes note of what fails on units; None to raise it.
    """

    number: int
    rate: float
    plan: NoisePlan
    grid: int
    clip: float
    bound: int
    source: RandomSource = field(repr=False)
    taken: int = 0
    faults: Faults | None = field(default=None, repr=False)

    @property
    def private(self) -> bool:
        """Whether steps have noise; without it a task trains as it likes."""
        return self.plan.kind == "training"

    def sample(self, count: int, subjects: Integers | None = None) -> Mask:
        """A fresh Poisson sample of ``count`` records, by subject where ``subjects`` is given; see :func:`poisson_sample`."""
        return poisson_sample(self.rate, count, self.source, subjects)

    def summed(self, compute: Callable[[Rows], Floats], count: int, subjects: Integers | None = None) -> Floats:
        """A sum over units, made of all but those that it fails on: :func:`veilsum_privacy.mechanism.units.together`."""
        return together(compute, count, subjects, self.faults, np.add)

    def noised(self, total: Floats) -> Floats:
        """A step's sum (P,) on the grid, clamped, with discrete Gaussian noise of the site alone.

        The sum is rounded, which moves each value by half a unit u at most: sums that differ by C come to differ by at most
        C / u + sqrt(P) units, the whole grid c for u = C / (c - sqrt(P)). A sum that is not finite counts as zeros.

        Raises:
            Misuse: more steps than declared, or a grid too coarse for so many values.
        """
        if self.taken >= self.number or not self.private:
            raise Misuse("The task takes more noised steps than the study declares.")
        self.taken += 1
        left = self.grid - math.sqrt(total.size)
        if left < self.grid / 2:
            raise Misuse(f"The grid is too coarse for a sum of {total.size} values.")
        unit = self.clip / left
        scaled = (total if np.isfinite(total).all() else np.zeros_like(total)) / unit
        integers = np.rint(np.clip(scaled, -self.bound, self.bound)).astype(np.int64)
        integers += discrete_gaussian(self.plan.share_variance, total.size, self.source).reshape(total.shape)
        noised: Floats = integers.astype(np.float64) * unit
        return noised

    @property
    def std(self) -> float:
        """Standard deviation of the noise of a step's sum of few values, in its own units; see :meth:`std_of`."""
        return self.std_of(0)

    def std_of(self, values: int) -> float:
        """Standard deviation of the noise of a step's sum of P values, in its own units: C S / (c - sqrt(P))."""
        return self.clip * self.plan.share_std / (self.grid - math.sqrt(values)) if self.private else 0.0
