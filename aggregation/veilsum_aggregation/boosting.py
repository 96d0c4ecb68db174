"""Boosted trees whose splits are drawn at random, from noised sums of gradients and Hessians in their leaves.

Splits that depend on no record cost no privacy, so all of it is spent on leaves, which every tree of a round shares evenly
(totally random trees: Maddock et al., Federated boosted decision trees with differential privacy, CCS 2022). Choosing splits
by noised histograms was prototyped and lost everywhere (docs/decisions, 52).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from veilsum_aggregation.arrays import Floats

LONGEST_STEP = 4.0
"""The longest step of a leaf, before the trees of a round share it: more than a step towards certainty is noise."""

INDICATOR = 0.5
"""Threshold of an indicator that is 0 or 1."""

SMALLEST_MEAN = 1e-3
"""The smallest mean of counts to begin with, as a share of the largest mean."""

TRIES = 16
"""Draws of a column that has something left to split, before a node stays without effect."""


@dataclass(frozen=True)
class SplitColumn:
    """What trees may split.

    Attributes:
        feature: its first feature.
        categories: how many indicators it has; 0 of a number, which lies in [-1, 1].
    """

    feature: int
    categories: int = 0


@dataclass(frozen=True)
class LeafSums:
    """A round's sums.

    Attributes:
        gradients, hessians: (B, 2^D), or (B, 2^D, C) of C classes, noised.
        gradient_std, hessian_std: standard deviation of their noise.
    """

    gradients: Floats
    hessians: Floats
    gradient_std: float
    hessian_std: float

    def centred(self) -> "LeafSums":
        """Gradients of C classes less their mean over classes, which is noise alone, as each record's sum to 0."""
        if self.gradients.ndim < 3:
            return self
        left = self.gradients - self.gradients.mean(axis=2, keepdims=True)
        return replace(self, gradients=left, gradient_std=self.gradient_std * math.sqrt(among(self.gradients.shape[2])))


def among(classes: int) -> float:
    """1 - 1/C: the variance left of independent noise less its mean over C classes, and what a Newton step by the diagonal of
    the Hessian is shortened by, so that two classes take the step of their difference (Friedman 2001, algorithm 6)."""
    return 1.0 - 1.0 / classes


def random_trees(
    rng: np.random.Generator, columns: Sequence[SplitColumn], trees: int, depth: int, bins: int
) -> tuple[Floats, Floats]:
    """Features and thresholds (B, 2^D - 1) of complete trees, node by node from the root.

    A node takes a column at random: of a number one of the edges of ``bins`` equal bins of [-1, 1] within what the path from
    the root has left of it, of categories one that it has left. A column of which nothing is left is drawn again.
    """
    inner = 2**depth - 1
    features, thresholds = np.zeros((trees, inner)), np.zeros((trees, inner))
    for tree in range(trees):
        cells: dict[int, dict[int, tuple[int, ...]]] = {0: {}}
        for node in range(inner):
            cell = cells.pop(node)
            left, right = cell, cell
            for place in rng.integers(0, len(columns), TRIES).tolist():
                column = columns[place]
                if column.categories:
                    known = cell.get(place, tuple(range(column.categories)))
                    if len(known) < 2:
                        continue
                    chosen = known[int(rng.integers(len(known)))]
                    features[tree, node], thresholds[tree, node] = column.feature + chosen, INDICATOR
                    left, right = {**cell, place: tuple(k for k in known if k != chosen)}, {**cell, place: (chosen,)}
                    break
                low, high = cell.get(place, (0, bins))
                if high - low < 2:
                    continue
                edge = int(rng.integers(low + 1, high))
                features[tree, node], thresholds[tree, node] = column.feature, -1.0 + 2.0 * edge / bins
                left, right = {**cell, place: (low, edge)}, {**cell, place: (edge, high)}
                break
            else:
                features[tree, node], thresholds[tree, node] = columns[0].feature, 2.0  # every record goes left
            cells[2 * node + 1], cells[2 * node + 2] = left, right
    return features, thresholds


def first_base(sums: LeafSums, loss: Literal["squared", "poisson"], most: float) -> tuple[float, LeafSums]:
    """The best constant prediction b that a first round tells, whose sums are of predictions 0, and these sums at b.

    Each tree's leaves add up to the sums G and H over all records; their mean over B trees has 2^D / B of a leaf's variance.
    Of the squared loss b = -G / H, and a leaf's gradient becomes G + b H, in which no record's is cut. Of counts, H is the
    number of records times mu = min(1, M), and H - G the sum of counts: b is the logarithm of their mean, H becomes
    H e^b / mu, and G grows as H does. What is within its noise is taken as large as the noise. b is rounded to float32.

    Args:
        sums: (B, 2^D).
        most: M, the largest mean of a count.
    """
    trees, leaves = sums.gradients.shape
    gradient, hessian = float(sums.gradients.sum()) / trees, float(sums.hessians.sum()) / trees
    gradient_std, hessian_std = (std * math.sqrt(leaves / trees) for std in (sums.gradient_std, sums.hessian_std))
    records = max(hessian, 2.0 * hessian_std, 1e-9)
    if loss == "squared":
        base = float(np.float32(min(max(-gradient / records, -1.0), 1.0)))
        growth, added = 1.0, base
    else:
        begin = min(1.0, most)
        counts = max(hessian - gradient, math.hypot(gradient_std, hessian_std))
        mean = min(max(begin * counts / records, SMALLEST_MEAN * most), most)
        base = float(np.float32(math.log(mean)))
        growth = math.exp(base) / begin
        added = growth - 1.0
    return base, LeafSums(
        gradients=sums.gradients + added * sums.hessians,
        hessians=growth * sums.hessians,
        gradient_std=math.hypot(sums.gradient_std, added * sums.hessian_std),
        hessian_std=growth * sums.hessian_std,
    )


def newton_leaves(sums: LeafSums, rate: float, ridge: float) -> Floats:
    """Leaves of a round, as its sums: each tree's Newton step, a B-th of ``rate`` times -G / (max(H, 0) + lambda).

    lambda is 1 + ``ridge`` times the noise of G: where the noise exceeds what the records say, the step is short. Of C classes
    it is times 1 - 1/C, of gradients less their mean over classes. Rounded to float32.
    """
    sums = sums.centred()
    shorter = among(sums.gradients.shape[2]) if sums.gradients.ndim > 2 else 1.0
    steps = -shorter * sums.gradients / (np.maximum(sums.hessians, 0.0) + 1.0 + ridge * sums.gradient_std)
    leaves = np.clip(steps, -LONGEST_STEP, LONGEST_STEP) * (rate / len(steps))
    return leaves.astype(np.float32).astype(np.float64)


def split_gains(features: Floats, sums: LeafSums, ridge: float, width: int) -> Floats:
    """How much each feature's splits lowered the loss to second order, less what noise alone would show (width,).

    A split's gain is G_l^2 / (H_l + lambda) + G_r^2 / (H_r + lambda) - G^2 / (H + lambda), of the sums below it; noise of
    variance s^2 in each of m leaves below adds m s^2 to the expected square of a sum. Gains of several classes are added up.
    """
    sums = sums.centred()
    gains, penalty, square = np.zeros(width), 1.0 + ridge * sums.gradient_std, sums.gradient_std**2
    gradient, hessian = sums.gradients, np.maximum(sums.hessians, 0.0)
    if gradient.ndim < 3:
        gradient, hessian = gradient[:, :, None], hessian[:, :, None]
    leaves, classes = 1, gradient.shape[2]
    depth = int(features.shape[1] + 1).bit_length() - 1
    for level in range(depth - 1, -1, -1):
        score = (gradient**2 - leaves * square) / (hessian + penalty)
        pairs, gradient, hessian = (
            array.reshape(len(array), -1, 2, classes).sum(axis=2) for array in (score, gradient, hessian)
        )
        leaves *= 2
        gain = (pairs - (gradient**2 - leaves * square) / (hessian + penalty)).sum(axis=2)
        np.add.at(gains, features[:, 2**level - 1 : 2 ** (level + 1) - 1].astype(np.int64), gain)
    return gains
