"""Quantiles from noised prefix sums.

A record in interval j adds column j of the lower Toeplitz matrix A with A A = L, the lower triangle of ones (Fichtenberger,
Henzinger and Upadhyay 2023): prefix sums C = A Y then have a noise that grows with the logarithm of the number of intervals,
where sums of noised counts would have its root. A is rounded to integers; the same integers decode, so nothing is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.figures import Z95, Answer, Drowned, Figure
from veilsum_aggregation.moments import NOISE_FLOOR

Floats = NDArray[np.float64]

POINTS = 16
"""Places in an interval of numbers where the end of a quantile's interval may lie."""


def toeplitz_column(bins: int, scale: int = 64) -> NDArray[np.int64]:
    """The first column (bins,) of A places ``scale``, rounded: f_0 = 1, f_k = f_k-1 (2k - 1) / (2k)."""
    k = np.arange(1, bins)
    factors = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return np.asarray(np.rint(scale * factors), dtype=np.int64)


def prefix_matrix(column: NDArray[np.int64]) -> Floats:
    """W (bins, bins) with C = W Y: L places the inverse of the integer matrix."""
    bins = len(column)
    places = np.subtract.outer(np.arange(bins), np.arange(bins))
    matrix = np.where(places >= 0, column[np.maximum(places, 0)], 0).astype(np.float64)
    return np.asarray(np.linalg.solve(matrix.T, np.tril(np.ones((bins, bins))).T).T, dtype=np.float64)


def quantiles(
    sums: Floats, column: NDArray[np.int64], noise_std: float, edges: Sequence[float], at: Sequence[float]
) -> list[Answer]:
    """Quantiles of a number from the released sums (bins,) of its columns, with Woodruff's intervals.

    Within an interval C is the parabola through its ends whose second difference is the mean of those there. With
    G(t) = C(t) - q N the interval spans where |G(t)| <= z sqrt(v_t + N q (1 - q)) + b_t: v_t is the exact noise variance of
    the linear C, and b_t, what the parabola may miss, is w (1 - w) / 2 of the difference of both second differences. It is
    open where it touches a bound. The point is where the isotonic C, linear within intervals, reaches q N. Errors are those of
    C at the point, by the density there.

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
        return [Drowned("the released count is within its noise", "more records, or more epsilon") for _ in at]
    rising = np.clip(isotonic(prefix), 0.0, None)
    whole, ends = np.concatenate([[0.0], rising]), np.asarray(edges, dtype=np.float64)
    rows, counts = np.vstack([np.zeros(len(weights)), weights]), np.concatenate([[0.0], prefix])
    within = np.arange(POINTS) / POINTS
    bent, missed = _bends(counts, noise_std**2 * (np.diff(rows, 2, axis=0) ** 2).sum(axis=1))
    places, lost = _between(ends, within), np.append(np.outer(missed, within * (1.0 - within) / 2.0).ravel(), 0.0)
    smooth = _between(counts, within) - np.append(np.outer(bent, within * (1.0 - within) / 2.0).ravel(), 0.0)
    found: list[Answer] = []
    for q in at:
        value = float(np.interp(q * whole[-1], _strictly(whole), ends))
        spread = total * q * (1.0 - q)
        noise = noise_std**2 * _squares(rows - q * weights[-1], within)
        near = np.flatnonzero(np.abs(smooth - q * total) <= Z95 * np.sqrt(noise + spread) + lost)
        crossing = int(np.searchsorted(places, value))
        first, last = (max(int(near[0]) - 1, 0), int(near[-1]) + 1) if near.size else (max(crossing - 1, 0), crossing + 1)
        last = min(last, len(places) - 1)
        low_end = -math.inf if first == 0 else float(places[first])
        high_end = math.inf if last == len(places) - 1 else float(places[last])
        width = max(float(places[last] - places[first]), 1e-300)
        density = max(float(np.interp(places[last], ends, whole) - np.interp(places[first], ends, whole)), 1.0) / width
        errors = math.sqrt(float(noise[min(crossing, len(noise) - 1)])) / density, math.sqrt(spread) / density
        found.append(Figure(value, *errors, min(low_end, value), max(high_end, value)))
    return found


def _bends(counts: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """The second difference of each interval, the mean of those at its ends, and by how much they differ, beyond their noise.

    Args:
        counts: at the edges.
        noise: variance of the noise in each second difference.
    """
    if len(counts) < 3:
        return np.zeros(len(counts) - 1), np.zeros(len(counts) - 1)
    second = np.diff(counts, 2)
    left, right = np.concatenate([second[:1], second]), np.concatenate([second, second[-1:]])
    apart = (right - left) ** 2 - np.concatenate([noise[:1], noise]) - np.concatenate([noise, noise[-1:]])
    return (left + right) / 2.0, np.sqrt(np.maximum(apart, 0.0))


def _between(values: Floats, within: Floats) -> Floats:
    """Values at edges, and linear ones between them."""
    return np.append((values[:-1, None] + np.diff(values)[:, None] * within).ravel(), values[-1])


def _squares(rows: Floats, within: Floats) -> Floats:
    """Squared norms of rows at edges, and of what is linear between them."""
    square = (rows**2).sum(axis=1)
    both = (rows[:-1] * rows[1:]).sum(axis=1)
    first, second = square[:-1, None] * (1.0 - within) ** 2, square[1:, None] * within**2
    return np.append((first + second + 2.0 * both[:, None] * within * (1.0 - within)).ravel(), square[-1])


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


def _strictly(values: Floats) -> Floats:
    """Values that never fall, made to rise by next to nothing, so that an inverse is unique."""
    return np.asarray(values + np.arange(len(values)) * 1e-9 * max(1.0, float(values[-1])), dtype=np.float64)
