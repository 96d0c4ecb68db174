"""Tables of all pairs from one sum of contrasts, and synthetic records of a tree of them."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from veilsum_aggregation.contrasts import PairPlan, orthonormal_contrasts
from veilsum_aggregation.synthetic import pair_tree

SIGMA = 4.05


def every(levels: tuple[int, ...]) -> np.ndarray:
    return np.array(list(product(*(range(n) for n in levels))))


@pytest.mark.parametrize("levels", [(2, 2), (2, 3, 4), (5, 2, 3, 2)])
def test_tables_come_back_exactly(levels: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    plan = PairPlan(levels, 500)
    codes = np.stack([rng.integers(0, n, 3000) for n in levels], axis=1)
    total = plan.rows(codes).sum(axis=0).astype(np.float64)
    for i, j in combinations(range(len(levels)), 2):
        counts = np.zeros((levels[i], levels[j]))
        np.add.at(counts, (codes[:, i], codes[:, j]), 1)
        np.testing.assert_allclose(plan.table(total, i, j), counts, atol=1e-6)
    norms = (plan.rows(every(levels)) ** 2).sum(axis=1)
    assert 0.98 * plan.norm <= norms.max() <= plan.norm
    assert norms.min() >= 0.95 * norms.max()  # nearly all records use the whole norm


def test_contrasts_are_orthonormal() -> None:
    for n in (2, 3, 7):
        h = orthonormal_contrasts(n)
        np.testing.assert_allclose(h @ h.T, np.eye(n - 1), atol=1e-12)
        np.testing.assert_allclose(h.sum(axis=1), 0.0, atol=1e-12)
        np.testing.assert_allclose((h**2).sum(axis=0), 1.0 - 1.0 / n, atol=1e-12)


@pytest.mark.parametrize(("levels", "best", "plain"), [((4,) * 14, 6.42, 9.54), ((2,) * 20, 5.28, 13.78)])
def test_cells_have_less_noise_than_one_table_a_pair(levels: tuple[int, ...], best: float, plain: float) -> None:
    """The design's figures (section 2), in units of the noise of sensitivity 1; margins of their own cost a little."""
    plan = PairPlan(levels, 20_000)
    std = float(np.sqrt((plan.cell_std(0, 1, math.sqrt(plan.norm)) ** 2).mean()))
    assert math.sqrt(math.comb(len(levels), 2)) == pytest.approx(plain, abs=0.01)
    assert std <= 1.06 * best


def test_synthetic_records_have_the_released_pairs() -> None:
    """A chain of columns at epsilon 1: the rows' tables are near the true ones, and independence is found where it is."""
    rng = np.random.default_rng(1)
    n, levels = 5000, (3, 3, 2, 4)
    a = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 3, n))
    c = np.where(rng.random(n) < 0.7, (b > 0).astype(int), rng.integers(0, 2, n))
    codes = np.stack([a, b, c, rng.integers(0, 4, n)], axis=1)
    plan = PairPlan(levels, 1000)
    std = SIGMA * math.sqrt(plan.norm)
    released = plan.rows(codes).sum(axis=0) + rng.normal(size=plan.size) * std
    tree, strength = pair_tree(levels, lambda i, j: plan.table(released, i, j), lambda i, j: plan.cell_std(i, j, std))
    assert {frozenset((edge.parent, edge.child)) for edge in tree.edges} >= {frozenset((0, 1)), frozenset((1, 2))}
    assert strength[0, 1] > 20 * abs(strength[0, 3])
    rows = tree.sample(40_000, np.random.default_rng(2))
    distances = []
    for i, j in combinations(range(4), 2):
        true, made = np.zeros((levels[i], levels[j])), np.zeros((levels[i], levels[j]))
        np.add.at(true, (codes[:, i], codes[:, j]), 1 / n)
        np.add.at(made, (rows[:, i], rows[:, j]), 1 / len(rows))
        distances.append(np.abs(true - made).sum() / 2)
    assert np.mean(distances) <= 0.03
    for edge in tree.edges:
        made = np.zeros_like(edge.table)
        np.add.at(made, (rows[:, edge.parent], rows[:, edge.child]), 1 / len(rows))
        assert np.abs(made - edge.table).max() < 0.015
    assert (tree.sample(50, np.random.default_rng(3)) == tree.sample(50, np.random.default_rng(3))).all()


def test_nothing_but_noise_makes_independent_columns() -> None:
    rng = np.random.default_rng(4)
    plan = PairPlan((3, 3), 300)
    std = SIGMA * math.sqrt(plan.norm)
    released = plan.rows(rng.integers(0, 3, (20, 2))).sum(axis=0) + rng.normal(size=plan.size) * std
    tree, _ = pair_tree((3, 3), lambda i, j: plan.table(released, i, j), lambda i, j: plan.cell_std(i, j, std))
    assert np.isfinite(tree.edges[0].table).all()
    assert tree.edges[0].kept < 0.9
    assert tree.sample(10, rng).shape == (10, 2)
