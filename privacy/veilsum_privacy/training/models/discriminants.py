"""Linear discriminants of clipped features, "discriminant": a model that a method releases, and that no gradient trains."""

from typing import ClassVar

from pydantic import Field

from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import ReleasedArchitecture, Shapes
from veilsum_privacy.training.models.perceptrons import Linear, LinearOptions

CENTRE = "features.centre"
"""Array (d,) that is taken off the features."""


class DiscriminantOptions(Frozen):
    """Options of :class:`Discriminant`.

    Attributes:
        clip: L2 norm that features about the centre are scaled down to.
    """

    clip: Real = Field(gt=0, le=1e6)


class Discriminant(ReleasedArchitecture):
    """Scores W c(x - m) + b, where c scales a vector down to a norm of ``clip``."""

    name = "discriminant"
    method = "fedcgs"
    Options: ClassVar[type[Frozen]] = DiscriminantOptions
    options: DiscriminantOptions

    @property
    def linear(self) -> Linear:
        """What scores the clipped features; its arrays are the discriminant's."""
        return Linear(LinearOptions(), None, self.width, self.classes)

    def shapes(self) -> Shapes:
        return {CENTRE: (self.width,), **self.linear.shapes()}
