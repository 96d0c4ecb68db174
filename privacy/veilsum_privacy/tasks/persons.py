"""Parameters of tasks that may be asked about persons, who have several records."""

from typing import Any, TypeVar

from pydantic import Field

from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen
from veilsum_privacy.mechanism.persons import Persons, Reduction
from veilsum_privacy.study.schema import CategoryColumn
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks.base import RowTask, Task


class PersonParameters(Frozen):
    """How a person's records count.

    Attributes:
        person: how they become one, that counts alone: the ``first`` or the ``last`` of them, in the order of the file, or one
            that has in each column the largest value (``max``; of a category the last of its levels that occurs) or the
            ``mean`` (the most frequent level). None where each record counts.
        at_most: each person's first so many records count, in a study whose unit is the subject; 0 for all of them, whose sum
            is then clipped to what one record may add.
    """

    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)


P = TypeVar("P", bound=PersonParameters)


class PersonTask(RowTask[P]):
    """A task of records that may be asked about persons: :class:`veilsum_privacy.mechanism.persons.Persons`."""

    @property
    def persons(self) -> Persons:
        categories = (place for column, place in self.schema.places() if isinstance(column, CategoryColumn))
        return Persons(self.parameters.person, self.parameters.at_most, tuple(categories))

    @property
    def most_rows(self) -> int:
        """How many rows of a person are added up."""
        return max(1, self.parameters.at_most)

    def check(self, declared: TaskDeclaration, study: Study, source: Task[Any] | None) -> None:
        """See the base; a task that joins a person's records needs the subject for its unit."""
        super().check(declared, study, source)
        if study.privacy.unit != "subject" and (self.parameters.person is not None or self.parameters.at_most):
            raise HostileInput(
                f"Task {declared.label!r} counts persons; one record changes more than its share of a person.",
                'State unit = "subject" under [privacy].',
            )
