"""What everyone has agreed to: a study, its tasks, and all that follows from them, each worked out once.

Whoever takes part in a study holds one :class:`AgreedStudy` as long as it does, and passes on its tasks and their plans. The
secure sum gets the shape of each task from here and knows no more of it (:mod:`veilsum_privacy.securesum.agreed`); the kernel
gets its terms and graphs (:mod:`veilsum_privacy.computation.declared`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask, Given, Note
from veilsum_privacy.computation.terms import TaskTerms
from veilsum_privacy.mechanism.requests import Trained, Training
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.rows.symbols import joined, record_of, traced
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.securesum.agreed import SumPlan
from veilsum_privacy.securesum.array_bytes import single
from veilsum_privacy.study.study import TaskDeclaration, parse_study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import DerivedTask, Records, RowTask, Task, TrainingTask
from veilsum_privacy.tasks.feature_maps import FeatureMap


@dataclass(frozen=True)
class AgreedStudy(DeclaredStudy):
    """A study with its verified tasks and its encryption's parameters."""

    @staticmethod
    def parse(data: bytes) -> AgreedStudy:
        """The study of signed bytes.

        Raises:
            HostileInput: as :func:`~veilsum_privacy.study.study.parse_study`. Its tasks are verified when they are asked for.
        """
        return AgreedStudy(parse_study(data))

    def _made(self, declaration: TaskDeclaration) -> AgreedTask:
        return AgreedTask(self, declaration)

    def task(self, label: str) -> AgreedTask:
        """As of :class:`.DeclaredStudy`."""
        return cast(AgreedTask, super().task(label))

    @property
    def tasks(self) -> tuple[AgreedTask, ...]:
        """As of :class:`.DeclaredStudy`."""
        return cast(tuple[AgreedTask, ...], super().tasks)


@dataclass(frozen=True)
class AgreedTask(DeclaredTask):
    """A task of a study, built and held against its declaration.

    Attributes:
        task: with the parameters that the study declares.

    Raises:
        HostileInput: the task cannot be built, or the declaration contradicts it.
    """

    agreed: AgreedStudy = field(repr=False)
    terms: TaskTerms = field(init=False, repr=False, compare=False)
    task: Task[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        task = build_task(self.declaration.task, self.declaration.parameters, self.study.data)
        task.check(self.declaration, self.study, None if self.source is None else self.source.task)
        object.__setattr__(self, "task", task)
        object.__setattr__(self, "terms", task.terms)
        super().__post_init__()

    @cached_property
    def source(self) -> AgreedTask | None:
        """The earlier task whose kept statistic it computes from, if it does."""
        return None if self.declaration.source is None else self.agreed.task(self.declaration.source)

    @cached_property
    def unit(self) -> float:
        """What one grid unit is worth in the task's weighted vector."""
        return self.task.unit(self.declaration)

    # -- what is broadcast -------------------------------------------------------------------------------------------------

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

    # -- what the task's code says ----------------------------------------------------------------------------------------

    def row_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        task = self._rows
        if (mapping := self._mapping(broadcast, given)) is None:
            return task.traced(broadcast)
        return task.traced(broadcast, mapping, mapping.width)

    def row_maps(self, broadcast: Mapping[str, Floats], graph: RowGraph) -> Mapping[str, OpaqueMap]:
        return self._rows.maps(broadcast)

    def mapped_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        if (mapping := self._mapping(broadcast, given)) is None:
            raise Misuse(f"The task {self.task.name} sees records as they are.")
        record, taken = mapping(record_of(mapping.width, labelled=self.study.data.label is not None))
        return traced(joined(record.features, record.present, taken))

    def derived(self, broadcast: Mapping[str, Floats], kept: Mapping[str, Integers]) -> Floats:
        task = self.task
        if self.source is None or not isinstance(task, DerivedTask):
            raise Misuse(f"The task {task.name} has no source.")
        blocks, std = source_blocks(self.source, kept)
        try:
            return task.vector(blocks, std, broadcast)
        except (ValueError, ArithmeticError) as error:  # what it computes from is noised, so that it fails tells no more
            raise HostileInput(f"The task {task.name} cannot use what was broadcast.") from error

    def train(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], course: StepNoise) -> Training:
        return self._training.train(broadcast, state, course)

    def train_plainly(
        self, records: Records, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], note: Note
    ) -> Trained:
        return self._training.train_plainly(records, broadcast, state, note)

    @property
    def _rows(self) -> RowTask[Any]:
        if not isinstance(self.task, RowTask):
            raise Misuse(f"The task {self.task.name} has no rows.")
        return self.task

    @property
    def _training(self) -> TrainingTask[Any]:
        if not isinstance(self.task, TrainingTask):
            raise Misuse(f"The task {self.task.name} does not train.")
        return self.task

    def _mapping(self, broadcast: Mapping[str, Floats], given: Given) -> FeatureMap | None:
        """What the site makes of a record before the task sees it; None where that is nothing."""
        features = self.task.features
        if features is None or not self.terms.mapped:
            return None
        kept, std = (None, None) if self.source is None else source_blocks(self.source, given.kept)
        return FeatureMap(self.study, features, broadcast, given.index, kept, std, given.encode)


def source_blocks(source: AgreedTask, kept: Mapping[str, Integers]) -> tuple[dict[str, Floats], dict[str, float]]:
    """Blocks of what the site kept of a task, and its noise in them.

    Raises:
        Misuse: it kept nothing.
    """
    if source.label not in kept:
        raise Misuse(f"This site kept no statistic of the task {source.label!r}.", "It has to take part in that task's round.")
    return source.kept_blocks(kept[source.label])


RoundPlan = SumPlan[AgreedTask]
"""The plan of a round's sum, with the task's code."""
