"""Factors of covariances, orthogonal polar factors, and polar factors that are followed as their matrix moves.

The polar factor of M (m, n), n <= m, is the U with orthonormal columns in M = U H, H = (M^T M)^{1/2}. Among all such U it is
the one that maximises tr(U^T M), so that L polar(L^T R) is as near to R as a rotation brings L: what optimal transport between
Gaussians needs of a square root. No inverse and no square root of a product of covariances is formed, which would lose half
of the digits of an ill-conditioned one. What the geometry makes of it is in gaussian.py.
"""

import numpy as np

from veilsum_aggregation.arrays import Floats

EPSILON = float(np.finfo(np.float64).eps)
INDEFINITE = 1e-10
"""A negative eigenvalue below this share of the largest in magnitude is not a rounding error."""

_REFINE = 1e3  # condition above which the eigenvectors of M^T M leave digits to be won back
_SINGULAR = 1e5  # condition above which M^T M itself has lost them
_TRUSTED = 0.5  # largest rotation, and largest relative off-diagonal, that a first-order correction may meet


class CovarianceError(ValueError):
    """A matrix that is not a covariance: not square, not finite, not symmetric, or indefinite beyond rounding."""


def check_symmetric(matrix: Floats) -> None:
    """Check the shape (..., m, m), that all is finite, and symmetry within 1e-10 of the largest entry.

    Raises:
        CovarianceError: one of them fails.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or not matrix.shape[-1]:
        raise CovarianceError(f"a covariance must be square, not {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise CovarianceError("a covariance must be finite")
    largest = np.abs(matrix).max(axis=(-2, -1), initial=0.0)
    if np.any(np.abs(matrix - np.swapaxes(matrix, -2, -1)).max(axis=(-2, -1), initial=0.0) > 1e-10 * largest):
        raise CovarianceError("a covariance must be symmetric")


def spectrum(covariance: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues (..., m), ascending, and eigenvectors (..., m, m) of covariances (..., m, m).

    Eigenvalues up to m eps times the largest cannot be told from zero (the numerical rank); they become exactly 0.

    Raises:
        CovarianceError: not a covariance.
    """
    check_symmetric(covariance)
    values, vectors = np.linalg.eigh((covariance + np.swapaxes(covariance, -2, -1)) / 2.0)
    largest = np.abs(values).max(axis=-1, keepdims=True)
    if np.any(values < -INDEFINITE * largest):
        raise CovarianceError("a covariance must not be indefinite")
    return np.where(values > values.shape[-1] * EPSILON * largest, values, 0.0), vectors


def factor(covariance: Floats) -> Floats:
    """L (..., m, m) with S = L L^T for covariances S (..., m, m), singular ones too: eigenvectors times sqrt(eigenvalues).

    Raises:
        CovarianceError: not a covariance.
    """
    values, vectors = spectrum(np.asarray(covariance, dtype=np.float64))
    result: Floats = vectors * np.sqrt(values)[..., None, :]
    return result


def polar(matrix: Floats) -> Floats:
    """Orthogonal polar factors U (..., m, n) of matrices M (..., m, n), n <= m.

    By the eigendecomposition of M^T M up to condition 1e5, corrected above 1e3; by the singular value decomposition beyond.
    Where M is singular, U is one of the polar factors: its columns are orthonormal and U^T M is positive semidefinite still.

    Raises:
        ValueError: fewer rows than columns, or not finite.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim < 2 or matrix.shape[-2] < matrix.shape[-1]:
        raise ValueError(f"a matrix with fewer rows than columns, or none: {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("the matrix must be finite")
    result = np.empty_like(matrix)
    for place in np.ndindex(matrix.shape[:-2]):  # in a loop: LAPACK takes them one by one, and so do the caches
        turned, basis = polar_in_basis(matrix[place])
        result[place] = turned @ basis.T
    return result


def polar_in_basis(matrix: Floats) -> tuple[Floats, Floats]:
    """P (m, n) and an orthogonal V (n, n) with polar factor P V^T and P^T M V diagonal, but for rounding."""
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0.0:
        return np.eye(*matrix.shape), np.eye(matrix.shape[1])
    scaled = matrix / largest  # so that the squares neither overflow nor vanish
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    if not values[0] * _SINGULAR**2 > values[-1]:
        left, _, right = np.linalg.svd(scaled, full_matrices=False)
        return left, right.T
    turned = scaled @ vectors
    result: Floats = turned / np.sqrt(values)
    if values[0] * _REFINE**2 < values[-1]:
        for _ in range(2):
            better = corrected(_orthonormal(result), turned)
            result = result if better is None else better
    return result, vectors


def corrected(guess: Floats, matrix: Floats) -> Floats | None:
    """A better polar factor (m, n) of a matrix M from a guess P with P^T M nearly diagonal, or None if it is too far.

    P exp(W) is the polar factor when M' = exp(-W) P^T M is symmetric and M has no part outside the columns of P. To first
    order, with D the diagonal of P^T M, W_ij = (M_ij - M_ji) / (D_i + D_j) for P^T M = (M_ij), and the columns turn out of
    their span by R = (M - P P^T M) D^-1, which is 0 of a square M; one Newton-Schulz step brings P + P W + R back to
    orthonormal columns. The rest is of second order, so that repetition converges, to the polar factor and to nothing else: it
    is refused unless D is positive and the symmetric part, scaled to a unit diagonal, is within Frobenius distance 1/2 of I,
    hence positive definite. Five products instead of a decomposition, six where M is not square.
    """
    inner = guess.T @ matrix
    diagonal = np.diagonal(inner)
    if not np.all(diagonal > 0.0):
        return None
    twice = inner + inner.T
    root = np.sqrt(diagonal)
    apart = twice / (2.0 * np.multiply.outer(root, root))
    turn: Floats = (inner - inner.T) / np.add.outer(diagonal, diagonal)
    step = guess @ turn
    if len(guess) > len(turn):
        step += (matrix - guess @ inner) / diagonal
    size = float(np.linalg.norm(step))
    np.fill_diagonal(apart, 0.0)
    if not (size < _TRUSTED and float(np.linalg.norm(apart)) < _TRUSTED):
        return None
    result = _orthonormal(guess + step)
    return result if size < 0.03 else _orthonormal(result)  # what one step leaves is 3/8 size^4 or less


def _orthonormal(columns: Floats) -> Floats:
    """One Newton-Schulz step towards orthonormal columns: quadratic for singular values near 1."""
    result: Floats = 1.5 * columns - columns @ ((0.5 * columns).T @ columns)
    return result


class Followed:
    """U L^T for the polar factor U of Q L, as Q moves and L, a factor (m, r) of full column rank, stays.

    A factor L V with V orthogonal is as good as L, so the basis in which the last decomposition was diagonal is kept in L. A
    small move of Q then costs :func:`corrected`, a large one a new decomposition.

    Attributes:
        decompositions: number of them so far.
    """

    def __init__(self, factor: Floats) -> None:
        self._factor = factor
        self._polar: Floats | None = None
        self.decompositions = 0

    def term(self, q: Floats) -> Floats:
        """U L^T (m, m) for Q (m, m)."""
        matrix = q @ self._factor
        followed = None if self._polar is None else corrected(self._polar, matrix)
        if followed is None:
            followed, basis = polar_in_basis(matrix)
            self._factor = self._factor @ basis
            self.decompositions += 1
        self._polar = followed
        result: Floats = followed @ self._factor.T
        return result
