"""A study and its tasks as a site computes them: what the kernel knows of each, and who says its graphs.

A task's own code is asked before records are read and never given one. It may run in this process
(:class:`veilsum_privacy.tasks.agreed.AgreedTask`) or in another one
(:class:`veilsum_privacy.computation.compiled.CompiledTask`); what computes (:mod:`.contribution`) does not know which.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput
from veilsum_privacy.computation.terms import TaskTerms, check_terms
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.mechanism.requests import Trained, Training
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.securesum.agreed import SummedStudy, SummedTask, SumPlan, TaskShape, shared_ring
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.study import TaskDeclaration

Encode = Callable[[Floats], Floats]
"""A frozen program: (n, inputs) float64 in [-1, 1] to (n, width) float64, each row by itself; NaN of what it cannot take."""

ENCODER = "encoder"
"""Name of the opaque map that a program is."""

Note = Callable[[Exception], object]
"""Is told what was raised on single records, which count as none then."""


@dataclass(frozen=True)
class Given:
    """What a site's graphs depend on beside the broadcast.

    Attributes:
        index: the site's place among the study's participants.
        kept: noised vectors that it kept, in grid units, by label.
        encode: the study's program, where records are not encoded yet.
    """

    index: int = 0
    kept: Mapping[str, Integers] = field(default_factory=dict, repr=False)
    encode: Encode | None = field(default=None, repr=False)


@dataclass(frozen=True)
class DeclaredStudy(SummedStudy):
    """A study whose tasks are held against their declarations."""

    _tasks: dict[str, DeclaredTask] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rings: dict[int, RingParameters] = field(default_factory=dict, init=False, repr=False, compare=False)

    @abstractmethod
    def _made(self, declaration: TaskDeclaration) -> DeclaredTask:
        """One of its tasks.

        Raises:
            HostileInput: the declaration contradicts the task.
        """

    def task(self, label: str) -> DeclaredTask:
        """One of the study's tasks.

        Raises:
            HostileInput: the study declares none of that label, or the declaration contradicts its task.
        """
        if label not in self._tasks:
            try:
                declaration = self.study.task(label)
            except KeyError as error:
                raise HostileInput("The study declares no task with that label.") from error
            self._tasks[label] = self._made(declaration)
        return self._tasks[label]

    @property
    def tasks(self) -> tuple[DeclaredTask, ...]:
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
class DeclaredTask(SummedTask):
    """A task of a study, with all that the kernel knows of it.

    Attributes:
        terms: what the task says; held against the declaration here.

    Raises:
        HostileInput: the declaration contradicts them.
    """

    agreed: DeclaredStudy = field(repr=False)
    shape: TaskShape = field(init=False, repr=False, compare=False)
    terms: TaskTerms = field(repr=False, compare=False)
    _plans: dict[tuple[int, int], SumPlan[Self]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_terms(f"Task {self.label!r}", self.terms, self.declaration, self.study)
        object.__setattr__(self, "shape", TaskShape(self.terms.size, self.terms.largest(self.declaration, self.study)))

    @property
    def single(self) -> frozenset[str]:
        """Names of the arrays that are broadcast in single precision."""
        return frozenset(self.terms.single_arrays) if self.declaration.single_precision else frozenset()

    def plan(self, roster: int, cohort: int) -> SumPlan[Self]:
        """The plan of a round.

        Args:
            roster: how many members the study has.
            cohort: how many of them take part.

        Raises:
            Misuse: a noise share is below 4 grid units, or the sum does not fit.
        """
        if (roster, cohort) not in self._plans:
            noise, encoding = self.noise(cohort), self.encoding(self.agreed.ring(roster), cohort)
            self._plans[roster, cohort] = SumPlan(self, encoding, noise)
        return self._plans[roster, cohort]

    def width(self, given: Given) -> int:
        """Features of a record as it comes: the schema's, or what a program made of it before."""
        encoder = self.study.encoder
        coded = isinstance(encoder, Program) and given.encode is None and self.terms.mapped
        return encoder.width if coded and isinstance(encoder, Program) else self.study.data.width

    # -- what its code says, before a record is read ----------------------------------------------------------------------

    @abstractmethod
    def row_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        """The graph of a record's row or factors, of records as the site has them.

        Args:
            broadcast: arrays that everyone received, with the site's own row in place of those that have one for each.
            given: what else the site brings.

        Raises:
            HostileInput: the broadcast is not what the task needs.
        """

    @abstractmethod
    def row_maps(self, broadcast: Mapping[str, Floats], graph: RowGraph) -> Mapping[str, OpaqueMap]:
        """The graph's own opaque maps, by name; the program that encodes is not among them."""

    @abstractmethod
    def mapped_graph(self, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        """The graph of what training is given in place of a record: its features (w,), which are present (w,), and whether
        it takes part, one after another."""

    @abstractmethod
    def derived(self, broadcast: Mapping[str, Floats], kept: Mapping[str, Integers]) -> Floats:
        """The weighted vector (size,) that derives from what the site kept.

        Raises:
            HostileInput: what was broadcast gives none.
            Misuse: nothing was kept.
        """

    @abstractmethod
    def train(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], course: StepNoise) -> Training:
        """One round of training with noise: as :meth:`veilsum_privacy.tasks.base.TrainingTask.train`."""

    @abstractmethod
    def train_plainly(
        self, records: Records, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], note: Note
    ) -> Trained:
        """One round of training without noise: as :meth:`veilsum_privacy.tasks.base.TrainingTask.train_plainly`."""


DeclaredPlan = SumPlan[DeclaredTask]
"""The plan of a round's sum."""


def mapped_records(evaluation: Evaluation, records: Records, note: Note) -> Records:
    """The records that a graph of features (w,), presence (w,) and part maps records to, of the part that is taken.

    Args:
        evaluation: of :meth:`DeclaredTask.mapped_graph`.
        note: is told what an opaque map raised first.
    """
    width = (evaluation.size - 1) // 2
    rows = np.empty((len(records), 2 * width + 1))
    start = 0
    for batch in evaluation.rows(records):
        rows[start : start + len(batch)] = batch
        start += len(batch)
    if evaluation.fault is not None:
        note(evaluation.fault)
    taken = rows[:, -1] > 0.0
    found = replace(records, features=rows[:, :width].copy(), present=rows[:, width:-1] > 0.0)
    return found if taken.all() else found.take(taken)
