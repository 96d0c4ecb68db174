"""A model that follows from a study's releases, as a site goes on with it; its own code may run in another process."""

from typing import Protocol

from veilsum_aggregation.arrays import Integers
from veilsum_privacy.securesum.context import Pieces
from veilsum_privacy.study.study import Study, TaskDeclaration

GRADIENT, STEPS = "gradient", "steps"
"""The task that may declare its steps, and the parameter that does."""


def followed(study: Study) -> TaskDeclaration | None:
    """The declaration of the task whose broadcasts every member works out itself; None if the study declares no steps."""
    for declaration in study.tasks:
        if declaration.task == GRADIENT and declaration.parameters.get(STEPS) is not None:
            return declaration
    return None


class Following(Protocol):
    """A study's model from release to release; see :class:`veilsum_privacy.tasks.followed.FollowedModel`."""

    @property
    def label(self) -> str:
        """Label of the task that broadcasts the model."""

    @property
    def taken(self) -> int:
        """How many steps were taken."""

    def broadcast(self, label: str) -> Pieces:
        """What the next round, of the task of that label, broadcasts, encoded, in pieces.

        Raises:
            HostileInput: the study's rounds have another order.
        """

    def begin_with(self, broadcast: bytes) -> None:
        """Take the first values from the first broadcast of the model, as far as they are the seed's but for rounding.

        Raises:
            HostileInput: they are others, or the model is on its way.
        """

    def take(self, label: str, values: Integers, cohort: int) -> None:
        """Go on by one release that was verified: values (size,) in grid units of a cohort of so many members.

        Raises:
            HostileInput: they are not what the task releases.
        """

    def to_pieces(self) -> Pieces:
        """All that another object goes on with, in pieces."""
