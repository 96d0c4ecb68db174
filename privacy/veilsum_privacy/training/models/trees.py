"""Gradient-boosted trees, "trees": a model that a method releases, and that no gradient trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from veilsum_node.errors import Misuse
from veilsum_node.fields import Frozen
from veilsum_privacy.training.models.base import Architecture, Shapes

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network

FEATURES, THRESHOLDS, LEAVES, BASE = "features", "thresholds", "leaves", "base"
"""Arrays: of K complete trees of depth D the feature (K, 2^D - 1) and the threshold of each inner node, level by level, the
leaves (K, 2^D) from left to right, and what every sum of leaves begins with (1,)."""


class TreesOptions(Frozen):
    """Options of :class:`Trees`.

    Attributes:
        trees: K.
        depth: D; a tree has 2^D leaves.
    """

    trees: int = Field(ge=1, le=100_000)
    depth: int = Field(ge=1, le=8)


class Trees(Architecture):
    """Two classes whose scores are 0 and the sum of the leaves that a record reaches (:mod:`veilsum_privacy.training.trees`).

    A record goes left at a node where its feature is below the threshold.
    """

    name = "trees"
    Options: ClassVar[type[Frozen]] = TreesOptions
    options: TreesOptions

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        if classes != 2:
            raise Misuse(f"Trees tell two classes apart, not {classes}.", "Use another method, such as fedsgd or fedcgs.")

    @property
    def nodes(self) -> int:
        """Inner nodes of a tree."""
        return int(2**self.options.depth - 1)

    def shapes(self) -> Shapes:
        trees = self.options.trees
        return {
            FEATURES: (trees, self.nodes),
            THRESHOLDS: (trees, self.nodes),
            LEAVES: (trees, self.nodes + 1),
            BASE: (1,),
        }

    def network(self) -> Network:
        raise Misuse("Trees have no gradient by which they could be trained.", "Use the method gbdt.")
