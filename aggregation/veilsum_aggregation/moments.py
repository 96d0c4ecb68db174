"""From released sums to means and covariances, with what the noise does to them.

Everything here is post-processing of released sums: it reads no record and costs no privacy. Standard errors are of the noise
alone; how much a statistic would vary between samples of patients is not in them. All arithmetic is in float64.
"""

from __future__ import annotations

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.shrinkage import project_psd as project_psd
from veilsum_aggregation.shrinkage import shrink_noised as shrink_noised
from veilsum_aggregation.shrinkage import shrink_oas as shrink_oas

NOISE_FLOOR = 3.0
"""A denominator below this many standard deviations of its own noise is within the noise."""


def within_noise(denominator: float, std: float) -> bool:
    """Whether a released denominator cannot be told from zero: at most 0, or below :data:`NOISE_FLOOR` standard deviations."""
    return not denominator > max(NOISE_FLOOR * std, 0.0)


def symmetric(diagonal: Floats, upper: Floats) -> Floats:
    """The symmetric (d, d) matrix with this diagonal (d,) and this strict upper triangle (d (d - 1) / 2,), row by row."""
    matrix = np.diag(diagonal)
    rows, columns = np.triu_indices(len(diagonal), 1)
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix


def covariance(number: float, total: Floats, second: Floats) -> Floats:
    """Population covariance (d, d) from a count, a sum (d,) and raw second moments (d, d); not projected."""
    m = total / number
    return second / number - np.outer(m, m)


def within_covariance(counts: Floats, sums: Floats, second: Floats, sums_std: float = 0.0) -> Floats:
    """Pooled within-class covariance (S2 - sum_c s_c s_c^T / n_c) / n for counts (K,), sums (K, d) and raw S2 (d, d).

    Noise of ``sums_std`` on the sums makes s_c s_c^T too large by sums_std^2 on the diagonal in expectation; that is given
    back. Not projected: noise can leave negative eigenvalues. Counts must be positive.
    """
    between = (sums / counts[:, None]).T @ sums
    excess = sums_std**2 * float(np.sum(1.0 / counts))
    return (second - between + excess * np.eye(len(second))) / float(counts.sum())


def within_covariance_error(
    number: float,
    classes: int,
    second_std: float,
    sums_std: float,
    counts_std: float,
    means: tuple[float, float],
    covariance: float,
    *,
    diagonal: bool,
) -> float:
    """Standard error that noise gives one entry of :func:`within_covariance`, for classes of one size and one mean.

    Delta method: the entry W = (S2 - sum_c s_ci s_cj / n_c) / n has dW/dS2 = 1 / n, dW/ds_ci = -m_j / n (-2 m_i / n on the
    diagonal) and dW/dn_c = (m_i m_j - W) / n. The noise of the two sums also enters as a product, e_ci e_cj / (n_c n), which
    matters where the means are near zero: its variance is sums_std^4 / (n_c n)^2, twice that on the diagonal.

    Args:
        number: records n, all classes together.
        classes: K, each of n / K records.
        second_std, sums_std, counts_std: noise of an entry of S2, of a class sum and of a class count.
        means: (m_i, m_j), of the two features.
        covariance: the entry's value W.
        diagonal: whether i = j.
    """
    mi, mj = means
    product = sums_std**2 * classes / number
    if diagonal:
        sums = math.hypot(2.0 * mi * sums_std, math.sqrt(2.0) * product)
    else:
        sums = math.hypot(mi * sums_std, mj * sums_std, product)
    return math.hypot(second_std, math.sqrt(classes) * math.hypot(sums, (mi * mj - covariance) * counts_std)) / number
