"""The noised steps of a task that trains at a site: a Poisson sample and integer noise for each, so many and no more.

A task asks for a sum (:mod:`.factors`) over the records that :meth:`Steps.sample` picks and is given what :meth:`Steps.noised`
makes of it. Neither samples nor sums before noise come to it.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.factors import FineUnits, left_of
from veilsum_privacy.mechanism.noise import discrete_gaussian
from veilsum_privacy.mechanism.noise_plan import NoisePlan

Mask = NDArray[np.bool_]


def poisson_sample(rate: float, count: int, source: RandomSource, subjects: Integers | None = None) -> Mask:
    """Which of ``count`` records take part: each, or each subject with all its records, with probability ``rate`` by itself.

    A unit takes part if 62 random bits are below floor(rate 2^62), so never with a larger probability than ``rate``.

    Args:
        rate: q in (0, 1].
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


@dataclass(frozen=True)
class StepNoise:
    """What is public of a release's noised steps: all that a task that trains is told of them.

    Attributes:
        number: noised steps of this release.
        rate: public sampling rate of a step.
        clip: the bound C on what a unit changes in a step's sum, in the sum's own units.
        grid: the same bound in grid units.
        share_std: standard deviation of a step's noise, in grid units.
    """

    number: int
    rate: float
    clip: float
    grid: int
    share_std: float

    def std_of(self, values: int) -> float:
        """Standard deviation of the noise of a step's sum of P values, in its own units: C S / (c - sqrt(P))."""
        return self.clip * self.share_std / (self.grid - math.sqrt(values))


@dataclass
class Steps:
    """Samples and noise of the steps of one release.

    Attributes:
        number: noised steps of this release; 0 in a study without noise.
        rate: public sampling rate of a step.
        plan: noise of a step.
        grid: L2 bound on what a unit changes in a step's sum, in grid units.
        clip: the same bound C in the sum's own units.
        bound: clamp of each value of a sum, in grid units.
        source: of samples and noise.
        taken: how many noised steps were taken.
    """

    number: int
    rate: float
    plan: NoisePlan
    grid: int
    clip: float
    bound: int
    source: RandomSource = field(repr=False)
    taken: int = 0

    @property
    def course(self) -> StepNoise:
        """What is public of them."""
        return StepNoise(self.number, self.rate, self.clip, self.grid, self.plan.share_std)

    def sample(self, count: int, subjects: Integers | None = None) -> Mask:
        """A fresh Poisson sample of ``count`` records, by subject where ``subjects`` is given; see :func:`poisson_sample`."""
        return poisson_sample(self.rate, count, self.source, subjects)

    def units(self, size: int) -> FineUnits:
        """In which a step's sum of so many values is exact before it is rounded to the grid.

        Raises:
            Misuse: the grid is too coarse for so many values.
        """
        return FineUnits.of(self.clip, self.grid, size)

    def noised(self, total: Integers) -> Floats:
        """A step's sum (P,) in grid units, rounded, clamped, with discrete Gaussian noise of the site alone; in its own units.

        Raises:
            Misuse: more steps than declared, or a grid too coarse for so many values.
        """
        if self.taken >= self.number or self.plan.kind != "training":
            raise Misuse("The task takes more noised steps than the study declares.")
        self.taken += 1
        integers = np.clip(total, -self.bound, self.bound)
        integers += discrete_gaussian(self.plan.share_variance, total.size, self.source)
        noised: Floats = integers.astype(np.float64) * (self.clip / left_of(self.grid, total.size))
        return noised
