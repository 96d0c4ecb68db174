"""Sites that train side by side: their records, their batches, their steps and the noise of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_deploy.simulation.stacks import Batches
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource, SystemRandom
from veilsum_privacy.mechanism.noise import NoisePlan, discrete_gaussian
from veilsum_privacy.mechanism.steps import poisson_sample
from veilsum_privacy.training.mlp import Descent

Pull = Callable[[Floats], Floats]
"""Models (g, P) to the gradients (g, P) of what reads no record."""


def of_system(source: RandomSource) -> bool:
    """Whether a source is the operating system's, whose numbers no one can tell apart by the call that they come from."""
    return isinstance(source, SystemRandom)


def sampled(rate: float, counts: Integers, sources: Sequence[RandomSource]) -> NDArray[np.bool_]:
    """Poisson samples of sites with ``counts`` records, one after the other; in one call from the system's source."""
    if all(map(of_system, sources)):
        return poisson_sample(rate, int(counts.sum()), sources[0])
    return np.concatenate([poisson_sample(rate, int(n), source) for n, source in zip(counts, sources, strict=True)])


@dataclass(frozen=True)
class NoisedSteps:
    """What :class:`veilsum_privacy.mechanism.steps.Steps` is at one site, for many.

    Attributes:
        number, rate, plan, grid, clip, bound: as there.
    """

    number: int
    rate: float
    plan: NoisePlan
    grid: int
    clip: float
    bound: int

    def std_of(self, values: int) -> float:
        """Standard deviation of the noise of a step's sum of so many values."""
        return self.clip * self.plan.share_std / (self.grid - float(np.sqrt(values)))

    def noised(self, totals: Floats, sources: Sequence[RandomSource]) -> Floats:
        """The sums (n, P) of n sites on the grid, clamped, each with noise of its own."""
        sites, size = totals.shape
        left = self.grid - np.sqrt(size)
        if left < self.grid / 2:
            raise Misuse(f"The grid is too coarse for a sum of {size} values.")
        unit, finite = self.clip / left, np.isfinite(totals).all(axis=1, keepdims=True)
        scaled = np.where(finite, totals, 0.0) / unit
        integers = np.rint(np.clip(scaled, -self.bound, self.bound)).astype(np.int64)
        if all(map(of_system, sources)):
            integers += discrete_gaussian(self.plan.share_variance, sites * size, sources[0]).reshape(sites, size)
        else:
            draws = [discrete_gaussian(self.plan.share_variance, size, source) for source in sources]
            integers += np.stack(draws)
        noised: Floats = integers.astype(np.float64) * unit
        return noised


class JoinedRecords(NamedTuple):
    """Records of sites, one after the other: site i has x[offsets[i]:offsets[i + 1]]; a row of zeros follows them all."""

    x: Floats
    labels: Integers
    offsets: Integers

    @property
    def counts(self) -> Integers:
        return np.diff(self.offsets)

    def batches(self, rows: Integers) -> Batches:
        """Rows (g, r) by their number; -1 for one that fills up."""
        return Batches(self.x[rows], self.labels[rows], rows >= 0)


class Walk:
    """Models (g, P) on their way, side by side; each with momentum, decay and pull."""

    def __init__(self, start: Floats, sites: int, descent: Descent, pull: Pull | None) -> None:
        self.models = np.tile(start, (sites, 1))
        self._speed = np.zeros_like(self.models)
        self._descent, self._pull = descent, pull

    def step(self, gradients: Floats) -> None:
        """One step of the first len(gradients) models; see :class:`veilsum_privacy.training.descent._Walk`."""
        models, speed = self.models[: len(gradients)], self._speed[: len(gradients)]
        if self._pull is not None:
            gradients = gradients + self._pull(models)
        if self._descent.decay:
            gradients = gradients + self._descent.decay * models
        speed *= self._descent.momentum
        speed += gradients
        models -= self._descent.learning_rate * speed


def filled_up(counts: Integers) -> Integers:
    """How many rows batches of so many are filled up to: a quarter more at most, or 7 rows; 0 for 0.

    A function of a site's own number alone, so that its products have the same shape whatever sites stand beside it.
    """
    step = 2 ** np.maximum(np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64) - 3, 3)
    return cast(Integers, -(-counts // step) * step)


def shuffled(into: Integers, first: int, order: Integers, batch: int) -> None:
    """Write an epoch of a site, whose rows are numbered from ``first``, by step (steps, height)."""
    into.fill(-1)
    whole = len(order) // batch
    rest = len(order) - whole * batch
    if whole:
        into[:whole, :batch] = first + order[: whole * batch].reshape(whole, batch)
    if rest:
        into[whole, :rest] = first + order[whole * batch :]


def by_owner(rows: Integers, owner: Integers, sites: int) -> Integers:
    """Rows (sites, r) by their owner, which never descends; -1 where one has fewer."""
    counts = np.bincount(owner, minlength=sites)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((sites, max(1, int(counts.max()))), -1, dtype=np.int64)
    found[owner, place] = rows
    return found
