"""What a method is: it declares its tasks before it runs, then is an ordinary function of a federation.

A method sees released sums only. What it declares is all that will ever be computed for it. What it expects of them it says
from public values, before a study is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from veilsum_coordinator.federation import Federation
from veilsum_coordinator.methods.expectations import Expectation, block_expectations
from veilsum_coordinator.results import Result
from veilsum_privacy.schema import DatasetSchema, Frozen
from veilsum_privacy.study import Study, TaskDeclaration


@dataclass(frozen=True)
class TaskPlan:
    """A task that a method will ask for; the study's grid and noise are added when it is compiled.

    Attributes:
        label: unique within the method.
        task: the registered task's name.
        parameters: the task's parameters, as its own model.
        releases: the largest number of rounds of it.
    """

    label: str
    task: str
    parameters: Frozen
    releases: int = 1

    def declaration(self, *, disclosure: str, grid: int, variance: int) -> TaskDeclaration:
        """The plan as a study states it; parameters in their JSON form, floats in hexadecimal, as in the signed bytes."""
        return TaskDeclaration.model_validate(
            {
                "label": self.label,
                "task": self.task,
                "parameters": self.parameters.model_dump(mode="json"),
                "disclosure": disclosure,
                "releases": self.releases,
                "grid": grid,
                "variance": variance,
            }
        )


class Method(ABC):
    """Base of all methods. ``Parameters`` may have defaults; a compiled study states them all."""

    name: ClassVar[str]
    Parameters: ClassVar[type[Frozen]]

    def resolve(self, parameters: Frozen, schema: DatasetSchema) -> Frozen:
        """Fill in the defaults that depend on the schema; the result leaves nothing open."""
        return parameters

    @abstractmethod
    def declare(self, parameters: Frozen, schema: DatasetSchema) -> tuple[TaskPlan, ...]:
        """The tasks for resolved parameters, from public values alone.

        Raises:
            ConfigurationError: the schema does not suit the method.
        """

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """How well the released quantities will be known, by what the noise alone does; at least one of them is a main one.

        A method says it in its users' words; unless it does, this tells of each block of its tasks what can be told of any.

        Args:
            study: compiled for this method.
            cohort: participants in each sum.
            records: expected records of all of them together.
        """
        return block_expectations(study, cohort, records)

    @abstractmethod
    def run(self, federation: Federation) -> Result:
        """Run the study and return its result; the federation's study names this method."""
