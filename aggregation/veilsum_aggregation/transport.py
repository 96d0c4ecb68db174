"""Gaussians, the Wasserstein distance between them, optimal maps and geodesics, all in polar form.

With S = L L^T and S' = R R^T, the Bures-Wasserstein distance is the least Frobenius distance between L U and R over
orthogonal U; the best U is polar(L^T R). The textbook form tr(S + S' - 2 (S^1/2 S' S^1/2)^1/2) is the same number, but as a
difference of traces it cannot be smaller than about 1e-8 of them. Barycenters are in gaussian.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.polar import check_symmetric, factor, polar, spectrum

SOURCE_FLOOR = 1e-12
"""A source's variances below this share of its largest are raised to it before a map divides by them."""


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution, possibly on a subspace.

    Attributes:
        mean: (m,).
        covariance: (m, m), symmetric; that it is not indefinite is checked where it is decomposed.

    Raises:
        CovarianceError: the covariance is not square, finite and symmetric.
        ValueError: the mean does not fit it, or is not finite.
    """

    mean: Floats
    covariance: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", np.asarray(self.mean, dtype=np.float64))
        object.__setattr__(self, "covariance", np.asarray(self.covariance, dtype=np.float64))
        check_symmetric(self.covariance)
        if self.covariance.ndim != 2 or self.mean.shape != (len(self.covariance),):
            raise ValueError(f"a mean {self.mean.shape} and a covariance {self.covariance.shape} do not fit")
        if not np.isfinite(self.mean).all():
            raise ValueError("a mean must be finite")

    @property
    def dimension(self) -> int:
        """m."""
        return len(self.mean)


@dataclass(frozen=True)
class AffineMap:
    """x -> matrix @ x + offset.

    Attributes:
        matrix: (m, m).
        offset: (m,).

    Raises:
        ValueError: the shapes do not fit, or an entry is not finite.
    """

    matrix: Floats
    offset: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", np.asarray(self.matrix, dtype=np.float64))
        object.__setattr__(self, "offset", np.asarray(self.offset, dtype=np.float64))
        if self.offset.ndim != 1 or self.matrix.shape != (len(self.offset), len(self.offset)):
            raise ValueError(f"a matrix {self.matrix.shape} and an offset {self.offset.shape} do not fit")
        if not (np.isfinite(self.matrix).all() and np.isfinite(self.offset).all()):
            raise ValueError("a map must be finite")

    @classmethod
    def identity(cls, dimension: int) -> AffineMap:
        """The map that leaves everything where it is."""
        return cls(np.eye(dimension), np.zeros(dimension))

    def apply(self, x: Floats) -> Floats:
        """Images (n, m) of points (n, m)."""
        result: Floats = x @ self.matrix.T + self.offset
        return result

    def interpolate(self, tau: float) -> AffineMap:
        """(1 - tau) Id + tau T: for an optimal map T, the geodesic from its source at tau = 0 to its target at tau = 1."""
        matrix = tau * self.matrix
        matrix[np.diag_indices_from(matrix)] += 1.0 - tau
        return AffineMap(matrix, tau * self.offset)


def wasserstein2(a: Gaussian, b: Gaussian) -> float:
    """W2 distance, in the units of x: (|mu - mu'|^2 + |L U - R|_F^2)^1/2 with U = polar(L^T R).

    Raises:
        CovarianceError: a covariance is indefinite.
        ValueError: the dimensions differ.
    """
    _same_dimension(a, b)
    left, right = factor(a.covariance), factor(b.covariance)
    apart = float(np.linalg.norm(a.mean - b.mean))
    if np.array_equal(left, right):  # U is the identity, without the polar factor's rounding
        return apart
    return math.hypot(apart, float(np.linalg.norm(left @ polar(left.T @ right) - right)))


def transport_map(source: Gaussian, target: Gaussian) -> AffineMap:
    """The optimal map from source to target: T(x) = mu' + A (x - mu), A = R polar(L^T R)^T L^-1, symmetric.

    This side of L^-1 makes A S A^T = R R^T whatever error the polar factor has; A and A^T are equal but for rounding. The
    target may be singular. Variances of the source below 1e-12 of its largest are raised to that: no map spreads a direction
    that has no variance, and the limit is right where the target has none to spread either. A source that is a single point is
    translated.

    Raises:
        CovarianceError: a covariance is indefinite.
        ValueError: the dimensions differ.
    """
    _same_dimension(source, target)
    values, vectors = spectrum(source.covariance)
    if values[-1] == 0.0:
        return AffineMap(np.eye(source.dimension), target.mean - source.mean)
    root = np.sqrt(np.maximum(values, SOURCE_FLOOR * values[-1]))
    right = factor(target.covariance)
    turned = right @ polar((vectors * root).T @ right).T
    matrix: Floats = (turned / root) @ vectors.T
    return AffineMap(matrix, target.mean - matrix @ source.mean)


def push(transport: AffineMap, g: Gaussian) -> Gaussian:
    """The distribution of T(x) for x from g: mean A mu + b and covariance (A L) (A L)^T.

    Through the factor, because a map may be large where its source is small, and A S A^T cancels there.

    Raises:
        CovarianceError: the covariance is indefinite.
        ValueError: the dimensions differ.
    """
    if len(transport.offset) != g.dimension:
        raise ValueError(f"a map of dimension {len(transport.offset)} and a Gaussian of dimension {g.dimension}")
    pushed = transport.matrix @ factor(g.covariance)
    return Gaussian(transport.matrix @ g.mean + transport.offset, pushed @ pushed.T)


def geodesic(source: Gaussian, target: Gaussian, tau: float) -> Gaussian:
    """The Gaussian at tau in [0, 1] on the shortest path, with W2 to the target (1 - tau) times that of the source.

    Raises:
        CovarianceError: a covariance is indefinite.
        ValueError: the dimensions differ, or tau lies outside [0, 1].
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau must lie in [0, 1], not {tau}")
    return push(transport_map(source, target).interpolate(tau), source)


def _same_dimension(a: Gaussian, b: Gaussian) -> None:
    if a.dimension != b.dimension:
        raise ValueError(f"Gaussians of dimensions {a.dimension} and {b.dimension}")
