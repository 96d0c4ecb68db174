"""What everyone has agreed to: a study, its tasks, and all that follows from them, each worked out once.

Whoever takes part in a study holds one :class:`AgreedStudy` as long as it does, and passes on its tasks and their plans. The
secure sum gets the shape of each task from here and knows no more of it (:mod:`veilsum_privacy.securesum.agreed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.agreed import SummedStudy, SummedTask, SumPlan, TaskShape, shared_ring
from veilsum_privacy.securesum.array_bytes import single
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.study.study import parse_study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Task


@dataclass(frozen=True)
class AgreedStudy(SummedStudy):
    """A study with its verified tasks and its encryption's parameters."""

    _tasks: dict[str, AgreedTask] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rings: dict[int, RingParameters] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def parse(data: bytes) -> AgreedStudy:
        """The study of signed bytes.

        Raises:
            HostileInput: as :func:`~veilsum_privacy.study.study.parse_study`. Its tasks are verified when they are asked for.
        """
        return AgreedStudy(parse_study(data))

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

    def ring(self, roster: int) -> RingParameters:
        """The encryption's parameters for so many members: those that every sum of the study fits.

        Raises:
            HostileInput: a declaration contradicts its task.
            Misuse: no parameters fit.
        """
        if roster not in self._rings:
            self._rings[roster] = shared_ring(self.tasks, roster)
        return self._rings[roster]


@dataclass(frozen=True)
class AgreedTask(SummedTask):
    """A task of a study, built and held against its declaration.

    Attributes:
        agreed: the study.
        task: with the parameters that the study declares.

    Raises:
        HostileInput: the task cannot be built, or the declaration contradicts it.
    """

    agreed: AgreedStudy = field(repr=False)
    shape: TaskShape = field(init=False, repr=False, compare=False)
    task: Task[Any] = field(init=False, repr=False, compare=False)
    _plans: dict[tuple[int, int], RoundPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        task = build_task(self.declaration.task, self.declaration.parameters, self.study.data)
        task.check(self.declaration, self.study, None if self.source is None else self.source.task)
        object.__setattr__(self, "task", task)
        object.__setattr__(self, "shape", TaskShape(task.layout().size, task.largest(self.declaration)))

    @cached_property
    def source(self) -> AgreedTask | None:
        """The earlier task whose kept statistic it computes from, if it does."""
        return None if self.declaration.source is None else self.agreed.task(self.declaration.source)

    @cached_property
    def unit(self) -> float:
        """What one grid unit is worth in the task's weighted vector."""
        return self.task.unit(self.declaration)

    def plan(self, roster: int, cohort: int) -> RoundPlan:
        """The plan of a round.

        Args:
            roster: how many members the study has.
            cohort: how many of them take part.

        Raises:
            Misuse: a noise share is below 4 grid units, or the sum does not fit.
        """
        if (roster, cohort) not in self._plans:
            noise, encoding = self.noise(cohort), self.encoding(self.agreed.ring(roster), cohort)
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

    def kept_blocks(self, vector: Integers) -> tuple[dict[str, Floats], dict[str, float]]:
        """Blocks of a kept vector in their own units, and the standard deviation of the site's own noise in each.

        Raises:
            HostileInput: the vector is not one of this task.
        """
        if vector.shape != (self.task.layout().size,):
            raise HostileInput("A kept vector has a different length than its task's.")
        return self.blocks(vector), self.block_std(self.noise(self.study.sites).share_std)


@dataclass(frozen=True)
class RoundPlan(SumPlan):
    """The plan of a round's sum with the task that is summed."""

    task: AgreedTask
