"""What privacy noise does to boosted trees, by boosting noise: later rounds take back errors of earlier ones, and random
splits fill leaves unevenly, which no simple formula knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.boosting import LeafSums, SplitColumn, first_base, newton_leaves, random_trees
from veilsum_aggregation.newton import mean_of
from veilsum_privacy.tasks.tree_gradients import Loss, softmax_derivatives
from veilsum_privacy.training.trees import leaves_of

Floats = NDArray[np.float64]

POINTS, NODES, MOST_TREES = 1024, 4096, 16
"""Made-up records that stand for all, nodes of all trees that rounds choose from, most trees of a round."""


def noise_of_scores(
    columns: Sequence[SplitColumn],
    loss: Loss,
    records: int,
    classes: int,
    most: float,
    trees: int,
    rounds: int,
    depth: int,
    bins: int,
    rate: float,
    ridge: float,
    stds: tuple[float, float],
    seed: int,
) -> float:
    """Standard deviation that noise gives a record's score: of its log odds between two classes where there are classes.

    Records are taken to lie evenly between all bounds, with every class equally frequent everywhere, numbers 0 and counts of
    mean M / 2.

    Args:
        loss: of the task.
        records: of all sites.
        classes: 0 for an outcome.
        most: M, in half ranges.
        trees: of a round.
        stds: of the noise in a leaf's gradient and Hessian.
    """
    rng = np.random.default_rng((seed, 0x6E6F697365))
    pool = min(rounds * trees, NODES // 2**depth)
    features, thresholds = random_trees(rng, columns, pool, depth, bins)
    leaves = leaves_of(_points(rng, columns), features, thresholds).T
    of_round = min(trees, pool, MOST_TREES)
    # Fewer trees of which each is less noisy have the same noise in their mean; the ridge stays as long.
    fewer = math.sqrt(of_round / trees)
    empty = LeafSums(np.zeros(0), np.zeros(0), *(std * fewer for std in stds))
    scores, outcome = np.zeros((POINTS, max(1, classes))), loss in ("squared", "poisson")
    for number in range(rounds):
        own = leaves[rng.choice(pool, of_round, replace=False)]
        gradient, hessian = (values * (records / POINTS) for values in _expected(loss, scores, most))
        shape = (of_round, 2**depth, scores.shape[1])
        sums = replace(
            empty,
            gradients=_by_leaf(own, gradient, shape) + empty.gradient_std * rng.normal(size=shape),
            hessians=_by_leaf(own, hessian, shape) + empty.hessian_std * rng.normal(size=shape),
        )
        sums = sums if loss == "softmax" else _one_score(sums)
        if number == 0 and outcome:
            base, sums = first_base(sums, "squared" if loss == "squared" else "poisson", most)
            scores += base
        steps = newton_leaves(sums, rate, ridge / fewer)
        if loss == "logistic":
            steps = np.stack([np.zeros_like(steps), steps], axis=2)
        scores += steps.reshape(shape)[np.arange(of_round)[:, None], own].sum(axis=0)
    truth = math.log(most / 2.0) if loss == "poisson" else 0.0
    error = scores[:, 0] - truth if outcome else scores[:, 1] - scores[:, 0]
    return math.sqrt(float(np.mean(error**2)))


def _points(rng: np.random.Generator, columns: Sequence[SplitColumn]) -> Floats:
    """Features (POINTS, d) between all bounds."""
    found = [
        np.eye(column.categories)[rng.integers(0, column.categories, POINTS)]
        if column.categories
        else rng.uniform(-1.0, 1.0, (POINTS, 1))
        for column in columns
    ]
    return np.hstack(found)


def _expected(loss: Loss, scores: Floats, most: float) -> tuple[Floats, Floats]:
    """What gradients and Hessians (POINTS, C) are on average where nothing predicts the outcome."""
    if loss == "squared":
        return np.clip(scores, -1.0, 1.0), np.ones_like(scores)
    if loss == "poisson":
        mean, variance = mean_of("poisson", scores, most)
        return mean - most / 2.0, variance
    gradient, hessian = softmax_derivatives(scores, np.zeros(len(scores), dtype=np.int64))
    gradient[:, 0] += 1.0
    return gradient - 1.0 / scores.shape[1], hessian


def _by_leaf(leaves: NDArray[np.int64], values: Floats, shape: tuple[int, int, int]) -> Floats:
    """Sums of values (POINTS, C) by tree and leaf."""
    trees, of_tree, classes = shape
    places = (leaves + of_tree * np.arange(trees)[:, None]).ravel()
    found = np.zeros((trees * of_tree, classes))
    for k in range(classes):
        found[:, k] = np.bincount(places, np.tile(values[:, k], trees), trees * of_tree)
    return found.reshape(shape)


def _one_score(sums: LeafSums) -> LeafSums:
    """Of two classes, the second's; or the only one."""
    return replace(sums, gradients=sums.gradients[:, :, -1], hessians=sums.hessians[:, :, -1])
