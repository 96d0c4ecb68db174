"""What a method is: it declares its tasks before it runs, then is an ordinary function of a federation.

A method sees released sums only. What it declares is all that will ever be computed for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from veilsum_coordinator.parts.estimable import told_result
from veilsum_coordinator.parts.federation import Federation
from veilsum_node.fields import Frozen
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program, Projection
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Disclosure, Study, TaskDeclaration, Unit
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import DerivedTask, TrainingTask


@dataclass(frozen=True)
class TaskPlan:
    """A task that a method will ask for; the study's grid and noise are added when it is compiled.

    Attributes:
        label: unique within the method.
        task: the registered task's name.
        parameters: the task's parameters, as its own model.
        releases: the largest number of rounds of it.
        disclosure: joint or per site.
        keep: whether every site keeps its own noised vector.
        source: label of the kept task that it computes or aligns from.
        share: how much of the study's budget one release takes, against the shares of the other releases; its noise has
            1 / share of the variance. Of no meaning for a derived task.
        sampling_rate: public rate at which records take part in a release, or in each step of training.
        local_steps: steps of one release of a task that trains; taken with noise in a study that has it.
    """

    label: str
    task: str
    parameters: Frozen
    releases: int = 1
    disclosure: Disclosure = "joint"
    keep: bool = False
    source: str | None = None
    share: float = 1.0
    sampling_rate: float = 1.0
    local_steps: int = 0

    @property
    def steps(self) -> int:
        """Noised steps of all its releases together."""
        return self.releases * max(1, self.local_steps)

    @property
    def trains(self) -> bool:
        """Whether the task trains at the site and adds its noise itself."""
        return issubclass(TASKS[self.task], TrainingTask)

    @property
    def derived(self) -> bool:
        """Whether the task reads no record, and so costs nothing."""
        return issubclass(TASKS[self.task], DerivedTask)

    @property
    def own_noise(self) -> bool:
        """Whether a site adds noise to its own block alone, where there is noise to add."""
        return self.disclosure == "per-site" and not self.trains

    def declaration(
        self, *, grid: int, variance: int, resolution: int = 0, single_precision: bool = False, unrounded: bool = False,
        slack: float = 0.0,
    ) -> TaskDeclaration:  # fmt: skip
        """The plan as a study states it; parameters in their JSON form, floats in hexadecimal, as in the signed bytes.

        Only of a sampled task with noise is ``slack`` stated.
        """
        return TaskDeclaration.model_validate(
            {
                "label": self.label,
                "task": self.task,
                "parameters": self.parameters.model_dump(mode="json"),
                "disclosure": self.disclosure,
                "own_noise": self.own_noise and variance > 0,
                "releases": self.releases,
                "grid": grid,
                "variance": variance,
                "keep": self.keep,
                "source": self.source,
                "sampling_rate": self.sampling_rate,
                "local_steps": self.local_steps if variance else 0,
                "resolution": resolution,
                "single_precision": single_precision,
                "unrounded": unrounded,
                "slack": slack if variance and self.sampling_rate < 1 else 0.0,
            }
        )


@dataclass(frozen=True)
class Inputs:
    """What a method may know before it runs: public values only.

    Attributes:
        schema: the dataset's.
        encoder: what makes its features, None for the schema's own.
        sites: how many participants the study names.
        private: whether its releases have noise.
        records: that each site is expected to have.
        epsilon: that the study asks for; None without noise, and where it asks for an error instead.
        unit: whose records the study protects together: one record, or a subject's.
    """

    schema: DatasetSchema
    encoder: Projection | Program | None = None
    sites: int = 2
    private: bool = True
    records: int = 1000
    epsilon: float | None = None
    unit: Unit = "record"

    def exact_rows(self, persons: Mapping[str, Any]) -> int:
        """Number of rows that make a unit's exact sum; 0 where sums are not exact.

        They are not with noise, nor where a person's rows are scaled down together, which values in limbs do not bear.

        Args:
            persons: how a person's records count, as parameters of the task.
        """
        if self.private or (self.unit == "subject" and not any(persons.values())):
            return 0
        return max(1, int(persons.get("at_most", 0)))

    @property
    def width(self) -> int:
        """Number of features."""
        return self.schema.width if self.encoder is None else self.encoder.width

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in order."""
        return self.schema.classes


P = TypeVar("P", bound=Frozen)


class Method(ABC, Generic[P]):
    """Base of all methods, each for parameters of its own type, which may have defaults; a compiled study states
    them all."""

    name: ClassVar[str]
    Parameters: ClassVar[type[Frozen]]
    rehearsals: ClassVar[int] = 24
    """How often a plan runs it on typical records; fewer where a run is dear, 0 where it trains in many steps, of which too
    much depends on the records."""

    def resolve(self, parameters: P, inputs: Inputs) -> P:
        """Fill in the defaults that depend on the inputs; the result leaves nothing open."""
        return parameters

    @abstractmethod
    def declare(self, parameters: P, inputs: Inputs) -> tuple[TaskPlan, ...]:
        """The tasks for resolved parameters, from public values alone.

        Raises:
            ConfigurationError: the inputs do not suit the method.
        """

    def check(self, study: Study) -> None:
        """Look at a compiled study before anyone is asked to agree to it, in what its parts alone do not tell.

        Raises:
            ConfigurationError: the method could not run it.
        """
        return

    def check_federation(self, study: Study) -> None:
        """Look at a study that is to run on a federation: what sites would refuse although a simulation of it runs.

        Raises:
            ConfigurationError: they would.
        """
        return

    def run(self, federation: Federation) -> Result:
        """Run the study and return its result; the federation's study names this method.

        Once sites were charged no formula fails it: what cannot be computed is not estimable, and the rest is given.
        """
        return told_result(self.name, federation, self.compute)

    @abstractmethod
    def compute(self, federation: Federation) -> Result:
        """The result, for :meth:`run`."""
