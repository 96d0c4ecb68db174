"""Quantiles from noised prefix sums.

A record in interval j adds column j of the lower Toeplitz matrix A with A A = L, the lower triangle of ones (Fichtenberger,
Henzinger and Upadhyay 2023): prefix sums C = A Y then have a noise that grows with the logarithm of the number of intervals,
where sums of noised counts would have its root. A is rounded to integers; the same integers decode, so nothing is lost.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.figures import Z95, Answer, Figure, NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR


def toeplitz_column(bins: int, scale: int = 64) -> Integers:
    """The first column (bins,) of A places ``scale``, rounded: f_0 = 1, f_k = f_k-1 (2k - 1) / (2k)."""
    k = np.arange(1, bins)
    factors = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return np.asarray(np.rint(scale * factors), dtype=np.int64)


def prefix_matrix(column: Integers) -> Floats:
    """W (bins, bins) with C = W Y: L places the inverse of the integer matrix."""
    return _prefix_matrix(tuple(column.tolist()))


@lru_cache(maxsize=16)
def _prefix_matrix(column: tuple[int, ...]) -> Floats:
    """Not to be written to: every caller gets the same."""
    bins = len(column)
    places = np.subtract.outer(np.arange(bins), np.arange(bins))
    matrix = np.where(places >= 0, np.array(column)[np.maximum(places, 0)], 0).astype(np.float64)
    found = np.asarray(np.linalg.solve(matrix.T, np.tril(np.ones((bins, bins))).T).T, dtype=np.float64)
    found.flags.writeable = False
    return found


def quantiles(sums: Floats, column: Integers, noise_std: float, edges: Sequence[float], at: Sequence[float]) -> list[Answer]:
    """Quantiles of a number from the released sums (bins,) of its columns, with Woodruff's intervals.

    With G(t) = C(t) - q N the interval reaches from the edge before the first one at which G(t) may be 0 to the edge after the
    last one, C the nearest sums that never fall. It may be as far from 0 as the order statistics by the binomial distribution
    (Conover 1999) and z sqrt(v_t), added as standard errors are, v_t the exact noise variance of those before, which are
    linear: at edges C is known whatever lies between them, be it a whole number that many records have. It is open where it
    touches a bound. The point is where C, linear within intervals, reaches q N. Errors are those of C at the point, by the
    density there.

    Args:
        sums: released, in the units of the integer columns.
        column: of :func:`toeplitz_column`.
        noise_std: of each released value.
        edges: (bins + 1,) in the number's unit, ascending.
        at: quantiles in (0, 1).
    """
    weights = prefix_matrix(column)
    prefix = weights @ sums
    total, total_std = float(prefix[-1]), noise_std * float(np.linalg.norm(weights[-1]))
    if not total > max(NOISE_FLOOR * total_std, 0.0):
        return [NotEstimable("the released count is within its noise", "more records, or more epsilon") for _ in at]
    whole, ends = np.concatenate([[0.0], np.clip(isotonic(prefix), 0.0, None)]), np.asarray(edges, dtype=np.float64)
    rising = whole + np.arange(len(whole)) * 1e-9 * max(1.0, float(whole[-1]))  # by next to nothing: its inverse is unique
    rows = np.vstack([np.zeros(len(weights)), weights])
    found: list[Answer] = []
    for q in at:
        value = float(np.interp(q * whole[-1], rising, ends))
        spread = total * q * (1.0 - q)
        noise = noise_std**2 * ((rows - q * weights[-1]) ** 2).sum(axis=1)
        least, most = (rank - q * round(total) for rank in _ranks(round(total), q))
        off, reach = whole - q * whole[-1], Z95 * np.sqrt(noise)
        half = np.maximum(0.5 - reach, 0.0)  # between whole numbers, as far as the noise leaves counts these
        near = np.flatnonzero((off >= -np.hypot(least - half, reach)) & (off <= np.hypot(most + half, reach)))
        crossing = min(max(int(np.searchsorted(ends, value)), 1), len(ends) - 1)
        first = max(min(int(near[0]), crossing) - 1, 0) if near.size else crossing - 1
        last = min(max(int(near[-1]) + 1, crossing), len(ends) - 1) if near.size else crossing
        low_end = -math.inf if first == 0 else float(ends[first])
        high_end = math.inf if last == len(ends) - 1 else float(ends[last])
        density = max(float(whole[last] - whole[first]), 1.0) / float(ends[last] - ends[first])
        errors = math.sqrt(float(noise[crossing])) / density, math.sqrt(spread) / density
        found.append(Figure(value, *errors, min(low_end, value), max(high_end, value)))
    return found


def _ranks(n: int, q: float) -> tuple[int, int]:
    """Fewest and most of n values that can lie below their q-quantile: with tails of 2.5% at most on both sides.

    The binomial probabilities follow from one another; beyond twelve standard deviations they are none.
    """
    reach = 12.0 * math.sqrt(n * q * (1.0 - q)) + 12.0
    first, last = max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))
    k = np.arange(first + 1, last + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1.0) / k) + math.log(q / (1.0 - q)))])
    below = np.cumsum(np.exp(logs - logs.max()))
    below /= below[-1]
    return first + int(np.searchsorted(below, 0.025, "right")), first + int(np.searchsorted(below, 0.975, "left"))


def isotonic(values: Floats) -> Floats:
    """The nearest sequence that never falls (pool adjacent violators)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            means[-2:] = [(means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size]
            sizes[-2:] = [size]
    return np.repeat(means, sizes)
