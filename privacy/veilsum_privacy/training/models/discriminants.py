"""Linear discriminants of clipped features, "discriminant": a model that a method releases, and that no gradient trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.training.models.base import Architecture, Floats, Shapes
from veilsum_privacy.training.models.perceptrons import Linear, LinearOptions

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network

CENTRE = "features.centre"
"""Array (d,) that is taken off the features."""


class DiscriminantOptions(Frozen):
    """Options of :class:`Discriminant`.

    Attributes:
        clip: L2 norm that features about the centre are scaled down to.
    """

    clip: Real = Field(gt=0, le=1e6)


class Discriminant(Architecture):
    """Scores W c(x - m) + b, where c scales a vector down to a norm of ``clip``."""

    name = "discriminant"
    Options: ClassVar[type[Frozen]] = DiscriminantOptions
    options: DiscriminantOptions

    @property
    def linear(self) -> Linear:
        """What scores the clipped features; its arrays are the discriminant's."""
        return Linear(LinearOptions(), None, self.width, self.classes)

    def shapes(self) -> Shapes:
        return {CENTRE: (self.width,), **self.linear.shapes()}

    def initial(self, seed: int) -> dict[str, Floats]:
        """Zeros, whatever the seed."""
        return {name: np.zeros(shape) for name, shape in self.shapes().items()}

    def network(self) -> Network:
        raise Misuse("A discriminant of clipped features is not trained by gradients.", "Use the method fedcgs.")
