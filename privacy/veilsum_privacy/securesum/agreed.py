"""What a secure sum is of: a study, the shape of each of its tasks, and all that follows from them, each worked out once.

What a task computes is not known here: whoever builds it hands over its shape (:mod:`veilsum_privacy.tasks.agreed`). Every
party computes the same numbers from the same signed bytes; nothing here depends on records or on who asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import canonical, digest
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import ROUNDING_VARIANCE, gaussian_around
from veilsum_privacy.mechanism.noise_plan import NoisePlan, task_noise
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.sum_plan import OneTimePlan, choose_ring, plan_sum
from veilsum_privacy.study.study import Study, TaskDeclaration, study_digest


@dataclass(frozen=True)
class TaskShape:
    """All that a secure sum has to know of a task beside its declaration.

    Attributes:
        size: length of one site's vector.
        largest: largest absolute value of it before noise, in grid units.
    """

    size: int
    largest: int


@dataclass(frozen=True)
class SummedStudy:
    """A study whose tasks are summed.

    Attributes:
        study: as its analyst signed it.
    """

    study: Study

    @cached_property
    def digest(self) -> bytes:
        """The study's name in the protocol (32 bytes)."""
        return study_digest(self.study.to_bytes())


@dataclass(frozen=True)
class SummedTask:
    """A task of a study, as far as its sum goes.

    Attributes:
        agreed: the study.
        declaration: what the study says of it.
        shape: as whoever built the task found it.
    """

    agreed: SummedStudy = field(repr=False)
    declaration: TaskDeclaration
    shape: TaskShape = field(repr=False, compare=False)

    @property
    def study(self) -> Study:
        """The study that declares it."""
        return self.agreed.study

    @property
    def label(self) -> str:
        """Its name in the study."""
        return self.declaration.label

    @property
    def per_site(self) -> bool:
        """Whether its vector has a block for each of the study's participants."""
        return self.declaration.disclosure == "per-site"

    @property
    def size(self) -> int:
        """Length of the summed vector."""
        return self.shape.size * (self.study.sites if self.per_site else 1)

    @property
    def largest(self) -> int:
        """Largest absolute value of a site's vector before noise, in grid units."""
        return self.shape.largest

    def noise(self, cohort: int) -> NoisePlan:
        """The noise of a round of so many members.

        Raises:
            Misuse: a noise share is below 4 grid units.
        """
        return task_noise(self.study, self.declaration, cohort)

    def released_variance(self, cohort: int) -> Fraction:
        """Variance of the noise in each value of a sum over so many members, in grid units squared.

        Raises:
            Misuse: a noise share is below 4 grid units.
        """
        noise, shares = self.noise(cohort), 1 if self.declaration.own_noise else cohort
        return noise.total_variance(shares) + (shares * ROUNDING_VARIANCE if self.declaration.unrounded else 0)

    def encoding(self, ring: RingParameters, cohort: int) -> OneTimePlan:
        """How its sum over so many members is encoded.

        Raises:
            Misuse: a noise share is below 4 grid units, or the sum does not fit.
        """
        return plan_sum(self.size, self.largest, self.released_variance(cohort), cohort, ring)

    def kept_part(self, noised: Integers, index: int) -> Integers:
        """What the site at a place among the participants keeps of its noised vector: its own block."""
        if not self.per_site:
            return noised
        own: Integers = noised.reshape(self.study.sites, -1)[index].copy()
        return own

    # -- digests -----------------------------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> bytes:
        """Digest (32 bytes) of what the study says of the task: the declaration, the weights of all and the schema."""
        study, declared = self.study, self.declaration.model_dump(mode="json")
        said = {"task": declared, "weights": dict(study.weights), "schema": study.data.model_dump(mode="json")}
        return digest("veilsum/1/task", canonical(said))

    def kept_origin(self, broadcast: bytes) -> bytes:
        """Digest (32 bytes) of all that a kept vector was computed from beside the records; it may go out for nothing else.

        Args:
            broadcast: the broadcast's digest.
        """
        return digest("veilsum/1/kept", self.digest, broadcast)


def shared_ring(tasks: Iterable[SummedTask], roster: int) -> RingParameters:
    """The encryption's parameters for so many members: those that the sums of all these tasks fit.

    Raises:
        Misuse: no parameters fit.
    """
    return choose_ring([(task.size, task.largest, task.released_variance(roster)) for task in tasks], roster)


Task_co = TypeVar("Task_co", bound=SummedTask, covariant=True)


@dataclass(frozen=True)
class SumPlan(Generic[Task_co]):
    """All that follows from study, cohort size and task: the same for every party.

    Attributes:
        task: of the round.
        encoding: of its sum.
        noise: that its members add.
    """

    task: Task_co
    encoding: OneTimePlan
    noise: NoisePlan

    @property
    def declaration(self) -> TaskDeclaration:
        """What the study says of the round's task."""
        return self.task.declaration

    @property
    def spread(self) -> Fraction:
        """Variance of what a site draws for a value, in grid units squared."""
        return self.noise.share_variance + (ROUNDING_VARIANCE if self.declaration.unrounded else 0)

    def noised(self, total: Integers, index: int, source: RandomSource) -> Integers:
        """A site's part of the sum with its noise: (size,) int64, in grid units.

        Args:
            total: :attr:`~veilsum_privacy.computation.contribution.SitePart.total` of the site.
            index: its place among the study's participants.
            source: where its noise comes from.
        """
        if not self.declaration.unrounded:
            return total + self.draw_noise(index, source)
        if not self.declaration.own_noise:
            return gaussian_around(total, self.spread, source)
        whole = np.zeros((self.task.study.sites, self.encoding.size // self.task.study.sites), dtype=np.int64)
        whole[index] = gaussian_around(total.reshape(whole.shape)[index], self.spread, source)
        return whole.ravel()

    def draw_noise(self, index: int, source: RandomSource) -> Integers:
        """Draw what the site at a place among the participants adds to its vector: (size,) int64, in grid units.

        Where the noise is for its own block alone it is 0 elsewhere, as the vector itself is whatever the records: another
        site's block shows nothing of this site, and this site's block is hidden by its own noise, whoever works together.
        """
        if not self.declaration.own_noise:
            return self.noise.draw(self.encoding.size, source)
        whole = np.zeros((self.task.study.sites, self.encoding.size // self.task.study.sites), dtype=np.int64)
        whole[index] = self.noise.draw(whole.shape[1], source)
        return whole.ravel()
