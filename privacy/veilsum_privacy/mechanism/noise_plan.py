"""The plan of how much noise each site adds to a sum, for whoever counts releases too; how it is drawn is :mod:`.noise`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from veilsum_node.errors import Misuse

if TYPE_CHECKING:
    from veilsum_aggregation.arrays import Integers
    from veilsum_node.randomness import RandomSource
    from veilsum_privacy.study.study import NoiseKind, Study, TaskDeclaration

SMALLEST_SHARE_STD = 4
"""Below this standard deviation of one share, in grid units, a sum of shares is not close enough to a discrete Gaussian."""


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
        from veilsum_privacy.mechanism.noise import discrete_gaussian  # which whoever counts releases does without

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
