"""What everyone has agreed to: a study, its tasks, and all that follows from them, each worked out once.

Whoever takes part in a study holds one :class:`AgreedStudy` as long as it does, and passes on its tasks and their plans. Every
party computes the same numbers from the same signed bytes; nothing here depends on records or on who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import ROUNDING_VARIANCE, NoisePlan, gaussian_around, task_noise
from veilsum_privacy.securesum.parameters import BfvParameters, EncodingPlan, choose_parameters, plan_encoding
from veilsum_privacy.study.study import Study, TaskDeclaration, parse_study, study_digest
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Task


@dataclass(frozen=True)
class AgreedStudy:
    """A study with its verified tasks and its encryption's parameters.

    Attributes:
        study: as its analyst signed it.
    """

    study: Study
    _tasks: dict[str, AgreedTask] = field(default_factory=dict, init=False, repr=False, compare=False)
    _parameters: dict[int, BfvParameters] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def parse(data: bytes) -> AgreedStudy:
        """The study of signed bytes.

        Raises:
            HostileInput: as :func:`~veilsum_privacy.study.study.parse_study`. Its tasks are verified when they are asked for.
        """
        return AgreedStudy(parse_study(data))

    @cached_property
    def digest(self) -> bytes:
        """The study's name in the protocol (32 bytes)."""
        return study_digest(self.study.to_bytes())

    def task(self, label: str) -> AgreedTask:
        """One of the study's tasks.

        Raises:
            HostileInput: the study declares none of that label, or the declaration contradicts its task.
        """
        if label not in self._tasks:
            try:
                declaration = self.study.task(label)
            except KeyError as error:
                raise HostileInput("The study declares no task with that label.") from error
            self._tasks[label] = AgreedTask(self, declaration)
        return self._tasks[label]

    @property
    def tasks(self) -> tuple[AgreedTask, ...]:
        """All tasks in the study's order.

        Raises:
            HostileInput: a declaration contradicts its task.
        """
        return tuple(self.task(declaration.label) for declaration in self.study.tasks)

    def parameters(self, roster: int) -> BfvParameters:
        """The encryption's parameters for so many members: those that every sum of the study fits.

        Raises:
            HostileInput: a declaration contradicts its task.
            Misuse: no parameters fit.
        """
        if roster not in self._parameters:
            sums = [(task.size, task.largest, task.released_variance(roster)) for task in self.tasks]
            self._parameters[roster] = choose_parameters(sums, roster)
        return self._parameters[roster]


@dataclass(frozen=True)
class AgreedTask:
    """A task of a study, built and held against its declaration.

    Attributes:
        agreed: the study.
        declaration: what the study says of it.
        task: with the parameters that it declares.

    Raises:
        HostileInput: the task cannot be built, or the declaration contradicts it.
    """

    agreed: AgreedStudy = field(repr=False)
    declaration: TaskDeclaration
    task: Task[Any] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[int, int], RoundPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        task = build_task(self.declaration.task, self.declaration.parameters, self.study.data)
        task.check(self.declaration, self.study, None if self.source is None else self.source.task)
        object.__setattr__(self, "task", task)

    @property
    def study(self) -> Study:
        """The study that declares it."""
        return self.agreed.study

    @property
    def label(self) -> str:
        """Its name in the study."""
        return self.declaration.label

    @cached_property
    def source(self) -> AgreedTask | None:
        """The earlier task whose kept statistic it computes from, if it does."""
        return None if self.declaration.source is None else self.agreed.task(self.declaration.source)

    @property
    def per_site(self) -> bool:
        """Whether its vector has a block for each of the study's participants."""
        return self.declaration.disclosure == "per-site"

    @cached_property
    def unit(self) -> float:
        """What one grid unit is worth in the task's weighted vector."""
        return self.task.unit(self.declaration)

    @cached_property
    def size(self) -> int:
        """Length of the summed vector."""
        return self.task.layout().size * (self.study.sites if self.per_site else 1)

    @property
    def largest(self) -> int:
        """Largest absolute value of a site's vector before noise, in grid units."""
        return self.task.largest(self.declaration)

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

    def plan(self, roster: int, cohort: int) -> RoundPlan:
        """The plan of a round.

        Args:
            roster: how many members the study has.
            cohort: how many of them take part.

        Raises:
            Misuse: a noise share is below 4 grid units, or the sum does not fit.
        """
        if (roster, cohort) not in self._plans:
            noise, parameters = self.noise(cohort), self.agreed.parameters(roster)
            encoding = plan_encoding(self.size, self.largest, self.released_variance(cohort), cohort, parameters)
            self._plans[roster, cohort] = RoundPlan(self, encoding, noise)
        return self._plans[roster, cohort]

    # -- what is broadcast -------------------------------------------------------------------------------------------------

    @cached_property
    def single(self) -> frozenset[str]:
        """Names of the arrays that are broadcast in single precision."""
        return self.task.single_arrays() if self.declaration.single_precision else frozenset()

    def as_broadcast(self, arrays: Mapping[str, Floats]) -> dict[str, Floats]:
        """Arrays of a broadcast with the values that everyone receives."""
        return {
            name: array.astype(np.float64) if name in self.single else array for name, array in self.as_sent(arrays).items()
        }

    def as_sent(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The same in the precision in which they are sent: float32 arrays where the study says so."""
        return {name: single(array) if name in self.single else array for name, array in arrays.items()}

    # -- vectors in grid units ---------------------------------------------------------------------------------------------

    def blocks(self, vector: Integers) -> dict[str, Floats]:
        """The blocks of a site's vector, or of a joint sum, (size of the layout,) in grid units, in their own units."""
        return self.task.layout().split(self.in_units(vector))

    def in_units(self, values: Integers) -> Floats:
        """Values of such a vector as they stand in the weighted vector."""
        return (values * self.unit).astype(np.float64, copy=False)

    def block_std(self, std: float) -> dict[str, float]:
        """Standard deviation in each block's own units of noise of ``std`` grid units."""
        return self.task.layout().noise_std(std * self.unit)

    def kept_part(self, noised: Integers, index: int) -> Integers:
        """What the site at a place among the participants keeps of its noised vector: its own block."""
        if not self.per_site:
            return noised
        own: Integers = noised.reshape(self.study.sites, -1)[index].copy()
        return own

    def kept_blocks(self, vector: Integers) -> tuple[dict[str, Floats], dict[str, float]]:
        """Blocks of a kept vector in their own units, and the standard deviation of the site's own noise in each.

        Raises:
            HostileInput: the vector is not one of this task.
        """
        if vector.shape != (self.task.layout().size,):
            raise HostileInput("A kept vector has a different length than its task's.")
        return self.blocks(vector), self.block_std(self.noise(self.study.sites).share_std)

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


def single(array: NDArray[Any]) -> NDArray[np.float32]:
    """An array in single precision, contiguous; what is beyond its range is infinite, which every site refuses."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


@dataclass(frozen=True)
class RoundPlan:
    """All that follows from study, cohort size and task: the same for every party.

    Attributes:
        task: of the round.
        encoding: of its sum.
        noise: that its members add.
    """

    task: AgreedTask
    encoding: EncodingPlan
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
