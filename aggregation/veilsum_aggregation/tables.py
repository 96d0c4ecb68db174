"""Counts, shares and tests of independence from noised tables of disjoint cells."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable, Test, chi_squared, ratio_figure
from veilsum_aggregation.figures import project as project
from veilsum_aggregation.moments import NOISE_FLOOR


def count(value: float, std: float) -> Figure:
    """A released count, for the records that there are: no sampling error. It is not cut off where noise leaves it below 0."""
    return Figure(value, std, 0.0, value - Z95 * std, value + Z95 * std)


def share(part: float, whole: float, cells: tuple[int, int] = (1, 1), std: float = 0.0) -> Answer:
    """The share of ``part`` in ``whole``, sums of so many ``cells`` and of these and so many others, by Fieller's rule.

    Noise of part - p whole, each of a and b cells having ``std``: sigma^2 (a (1 - p)^2 + b p^2). Sampling: N p (1 - p), at the
    p in question, so that without noise the interval is Wilson's (1927).
    """
    n = max(whole, 0.0)
    inside = min(max(part, 0.0), n)  # beyond, no share is left that the data do not reject
    own, others = cells
    noise = (own * std**2, -2.0 * own * std**2, (own + others) * std**2)
    return ratio_figure(inside, whole, noise, (0.0, n, -n), "fewer groups, more records, or more epsilon").within(0.0, 1.0)


def shares(counts: Floats, std: float) -> list[Answer]:
    """The share of each cell in the sum of all of them (k,), each with noise ``std``."""
    total = float(counts.sum())
    return [share(float(cell), total, (1, len(counts) - 1), std) for cell in counts]


def share_of(part: float, whole: float, part_std: float, whole_std: float) -> Answer:
    """The share of some records in all of them, both released, by Fieller's rule."""
    n = max(whole, 0.0)
    inside = min(max(part, 0.0), n)
    noise = (part_std**2, 0.0, whole_std**2)
    return ratio_figure(inside, whole, noise, (0.0, n, -n), "more records, or more epsilon").within(0.0, 1.0)


def independence(table: Floats, std: float) -> Test | NotEstimable:
    """The test that rows and columns (r, c) are independent, with the noise in its covariance (Kifer and Rogers 2017).

    D = (I - a 1') N (I - 1 b') with the noised margins' shares a and b; its covariance is M (n diag(a b') + sigma^2 I) M';
    the degrees of freedom are (r - 1) (c - 1). Pearson's statistic on a noised table would reject true independence. Rows and
    columns that are empty, which only a table without noise can tell, are left out.
    """
    if std == 0.0:
        table = table[table.any(axis=1)][:, table.any(axis=0)]
    if min(table.shape) < 2:
        return NotEstimable("all records are in one row or one column of the table")
    n = float(table.sum())
    if n < NOISE_FLOOR * std * math.sqrt(table.size):
        return NotEstimable("the table's total is within its noise", "fewer cells, more records, or more epsilon")
    a, b = np.maximum(table.sum(axis=1) / n, 1e-9), np.maximum(table.sum(axis=0) / n, 1e-9)
    a, b = a / a.sum(), b / b.sum()
    left = np.eye(len(a)) - np.outer(a, np.ones(len(a)))
    right = np.eye(len(b)) - np.outer(np.ones(len(b)), b)
    matrix = np.kron(left, right.T)
    u = (left @ table @ right).ravel()
    sampling = matrix * (n * np.outer(a, b).ravel()) @ matrix.T
    noise = std**2 * matrix @ matrix.T
    found = chi_squared(u, noise, sampling, (len(a) - 1) * (len(b) - 1))
    if std > 0.0 or isinstance(found, NotEstimable) or n * float(np.outer(a, b).min()) >= COCHRAN:
        return found
    few = f"fewer than {COCHRAN} records are expected in a cell"
    if table.shape != (2, 2):
        return replace(found, note=f"{few}: the p-value is approximate")
    return replace(found, p_value=_fisher(np.rint(table)), note=f"{few}: the p-value is of Fisher's exact test")


COCHRAN = 5
"""Records that are expected in a cell below which chi-squared is not the distribution of exact counts (Cochran 1954)."""


def _fisher(table: Floats) -> float:
    """The probability of a table (2, 2) as rare or rarer, of these margins (Fisher 1935)."""
    (first, second), left = table.sum(axis=1), float(table[:, 0].sum())
    k = np.arange(max(0.0, left - second), min(first, left) + 1.0)
    steps = (first - k[:-1]) * (left - k[:-1]) / ((k[:-1] + 1.0) * (second - left + k[:-1] + 1.0))
    logs = np.concatenate([[0.0], np.cumsum(np.log(steps))])
    shares = np.exp(logs - logs.max())
    return min(float(shares[logs <= logs[int(table[0, 0] - k[0])] + 1e-7].sum() / shares.sum()), 1.0)


def cramers_v(test: Test, total: float, table_shape: tuple[int, int]) -> float | None:
    """Cramér's V that the test would find with 80% power at this total: the smallest effect that it can show; None where no
    association is so large.

    Solves the noncentral chi-squared distribution for its noncentrality and divides out what noise takes of it.
    """
    needed = _noncentrality(test.degrees)
    v = math.sqrt(needed / (max(total, 1.0) * (min(table_shape) - 1) * max(1.0 - test.noise_share, 1e-6)))
    return v if v <= 1.0 else None


@lru_cache
def _noncentrality(degrees: float) -> float:
    """At which a chi-squared test at the 5% level has 80% power."""
    from scipy.optimize import brentq
    from scipy.special import chdtri, chndtr

    critical = chdtri(degrees, 0.05)
    return float(brentq(lambda lam: 0.2 - chndtr(critical, degrees, lam), 1e-6, 1e4))
