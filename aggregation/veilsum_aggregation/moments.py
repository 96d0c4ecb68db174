"""From released sums to means and covariances, with what the noise does to them.

Everything here is post-processing of released sums: it reads no record and costs no privacy. Standard errors are of the noise
alone; how much a statistic would vary between samples of patients is not in them. All arithmetic is in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.shrinkage import project_psd as project_psd
from veilsum_aggregation.shrinkage import shrink_noised as shrink_noised
from veilsum_aggregation.shrinkage import shrink_oas as shrink_oas

Floats = NDArray[np.float64]

NOISE_FLOOR = 3.0
"""A denominator below this many standard deviations of its own noise is within the noise."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and the standard error that the noise gives it, by the delta method; 0 without noise."""

    value: float
    std_error: float


@dataclass(frozen=True)
class NotEstimable:
    """A statistic that the released sums cannot tell, and why."""

    reason: str


Statistic = Estimate | NotEstimable


def within_noise(denominator: float, std: float) -> bool:
    """Whether a released denominator cannot be told from zero: at most 0, or below :data:`NOISE_FLOOR` standard deviations."""
    return not denominator > max(NOISE_FLOOR * std, 0.0)


def _too_small(what: str) -> NotEstimable:
    return NotEstimable(f"the released {what} is within its noise")


def count(total: float, std: float) -> Estimate:
    """A released count, as it is: noise can leave it below 0, and cutting it off there would count too many on average."""
    return Estimate(total, std)


def mean(total: float, number: float, total_std: float, number_std: float, *, low: float, high: float) -> Statistic:
    """Mean ``total / number`` of values in [low, high], clamped to these bounds.

    Delta method for independent noise: Var = (sigma_t^2 + m^2 sigma_n^2) / n^2, m the mean before clamping.
    """
    if within_noise(number, number_std):
        return _too_small("count")
    value = total / number
    error = math.hypot(total_std, value * number_std) / number
    return Estimate(min(max(value, low), high), error)


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
