"""From released sums to means and covariances, with what the noise does to them.

Everything here is post-processing of released sums: it reads no record and costs no privacy. Standard errors are of the noise
alone; how much a statistic would vary between samples of patients is not in them. All arithmetic is in float64.
"""

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
