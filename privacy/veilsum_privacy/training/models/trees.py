"""Gradient-boosted trees, "trees": a model that a method releases, and that no gradient trains."""

from typing import ClassVar

from pydantic import Field

from veilsum_node.fields import Frozen
from veilsum_privacy.training.models.base import ReleasedArchitecture, Shapes

FEATURES, THRESHOLDS, LEAVES, BASE = "features", "thresholds", "leaves", "base"
"""Arrays: of K complete trees of depth D the feature (K, 2^D - 1) and the threshold of each inner node, level by level, the
leaves (K, 2^D) from left to right, and what every sum of leaves begins with (1,). With C classes, three or more, a leaf has a
value for each: (K, 2^D, C), and (C,). Of an outcome's one score they are as with two classes."""


class TreesOptions(Frozen):
    """Options of :class:`Trees`.

    Attributes:
        trees: K.
        depth: D; a tree has 2^D leaves.
    """

    trees: int = Field(ge=1, le=100_000)
    depth: int = Field(ge=1, le=8)


class Trees(ReleasedArchitecture):
    """Scores are sums of the leaves that a record reaches (:mod:`veilsum_privacy.training.predict`); of two classes the first
    scores 0, and leaves are of the second; of an outcome there is one score.

    A record goes left at a node where its feature is below the threshold.
    """

    name = "trees"
    method = "gbdt"
    Options: ClassVar[type[Frozen]] = TreesOptions
    options: TreesOptions

    def shapes(self) -> Shapes:
        return tree_shapes(self.options.trees, self.options.depth, self.classes)


def tree_shapes(trees: int, depth: int, classes: int) -> Shapes:
    """Shapes of a model's arrays."""
    nodes, each = 2**depth - 1, () if classes <= 2 else (classes,)
    return {FEATURES: (trees, nodes), THRESHOLDS: (trees, nodes), LEAVES: (trees, nodes + 1, *each), BASE: each or (1,)}
