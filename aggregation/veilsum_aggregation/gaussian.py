"""Bures-Wasserstein geometry of Gaussians: distances, maps and barycenters, all in polar form; factors from polar.py.

With S = L L^T and S' = R R^T, the Bures-Wasserstein distance is the least Frobenius distance between L U and R over
orthogonal U; the best U is polar(L^T R). The textbook form tr(S + S' - 2 (S^1/2 S' S^1/2)^1/2) is the same number, but as a
difference of traces it cannot be smaller than about 1e-8 of them.

The barycenter minimises sum_k w_k W2^2(G, G_k) over Gaussians G (Agueh and Carlier 2011). The fixed point of Alvarez-Esteban
et al. (2016) is iterated on a factor Q of S = Q^T Q instead of on S: Q <- sum_k w_k polar(Q L_k) L_k^T with S_k = L_k L_k^T.
These are their iterates without a square root or an inverse; covariances that commute are done in one step from Q = I.
Steps are accelerated, and polar factors followed from step to step instead of computed anew. A fixed point has
sum_k w_k A_k = I for the optimal maps A_k from the barycenter, the condition of first order.
"""

import math
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.polar import Followed, check_symmetric, factor, polar, spectrum

_REACH = 0.5
_PATIENCE = 25  # steps without a new least residual, once it is small, that tell the rounding error
_SMALL = 1e-9

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
    def identity(cls, dimension: int) -> "AffineMap":
        """The map that leaves everything where it is."""
        return cls(np.eye(dimension), np.zeros(dimension))

    def apply(self, x: Floats) -> Floats:
        """Images (n, m) of points (n, m)."""
        result: Floats = x @ self.matrix.T + self.offset
        return result

    def interpolate(self, tau: float) -> "AffineMap":
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


def _same_dimension(a: Gaussian, b: Gaussian) -> None:
    if a.dimension != b.dimension:
        raise ValueError(f"Gaussians of dimensions {a.dimension} and {b.dimension}")


class WeightsError(ValueError):
    """Weights that are not one for each Gaussian, finite, non-negative, and positive for one at least."""


@dataclass(frozen=True)
class Barycenter:
    """A barycenter and how well it was reached.

    Attributes:
        gaussian: the barycenter.
        factor: Q (m, m) with covariance Q^T Q.
        iterations: steps of the fixed point, one polar factor a site each.
        residual: |Q_new - Q|_F / |Q_new|_F of the last plain step, however Q was chosen.
        converged: whether the residual met the tolerance.
        decompositions: eigenvalue or singular value decompositions spent on polar factors.
    """

    gaussian: Gaussian
    factor: Floats
    iterations: int
    residual: float
    converged: bool
    decompositions: int = 0


def barycenter_term(q: Floats, factor_k: Floats, weight: float) -> Floats:
    """What one site adds to the next factor: weight times polar(Q L_k) L_k^T (m, m) for Q and L_k (m, m)."""
    result: Floats = weight * (polar(q @ factor_k) @ factor_k.T)
    return result


def barycenter_residual(q_old: Floats, q_new: Floats) -> float:
    """|Q_new - Q_old|_F / |Q_new|_F; 0 where both are 0."""
    change = float(np.linalg.norm(q_new - q_old))
    return 0.0 if change == 0.0 else change / max(float(np.linalg.norm(q_new)), math.ulp(0.0))


DEPTH = 5
"""Earlier steps that an accelerated one is made of."""


class Acceleration:
    """Anderson's acceleration of Q <- F(Q) over the last steps (Walker and Ni 2011).

    The next Q is sum_j c_j F(Q_j), sum_j c_j = 1, with c minimising |sum_j c_j (F(Q_j) - Q_j)|_F. It stands still only where
    F(Q) = Q, so it has the fixed points of F and no others. Two guards. A combination may come near singular matrices, where
    the iteration crawls; the plain step never does, as F(Q) = Q T with T positive definite. So the next Q is F(Q) (I + E) with
    E at most 1/2 in spectral norm, shortened if need be. And after a step that left the residual above four times the least
    so far, it forgets all and goes on from the plain image of the best Q.
    """

    def __init__(self) -> None:
        self._images: list[Floats] = []
        self._changes: list[Floats] = []
        self._best: tuple[float, Floats] | None = None

    def next(self, q: Floats, image: Floats) -> Floats:
        """The next Q (m, m) from the last one and its image F(Q)."""
        residual = barycenter_residual(q, image)
        if self._best is not None and residual > 4.0 * self._best[0]:
            best = self._best[1]
            self._images, self._changes, self._best = [], [], None
            return best
        if self._best is None or residual < self._best[0]:
            self._best = (residual, image)
        self._images = [*self._images, image][-DEPTH - 1 :]
        self._changes = [*self._changes, image - q][-DEPTH - 1 :]
        return image if len(self._images) == 1 else _within_reach(image, self._combination())

    def _combination(self) -> Floats:
        """What to add to the newest image: differences to it, scaled to unit length so that rank is told from noise."""
        image, change = self._images[-1], self._changes[-1]
        steps = [(earlier - change).ravel() for earlier in self._changes[:-1]]
        lengths = np.array([max(float(np.linalg.norm(step)), math.ulp(0.0)) for step in steps])
        units = np.array([step / length for step, length in zip(steps, lengths, strict=True)])
        share = np.linalg.lstsq(units @ units.T, -units @ change.ravel(), rcond=1e-12)[0] / lengths
        total = np.zeros_like(image)
        for part, earlier in zip(share, self._images[:-1], strict=True):
            total += part * (earlier - image)
        return total


def _within_reach(image: Floats, step: Floats) -> Floats:
    """image + step, the step shortened to image E with |E|_2 of at most 1/2; no step where the image is singular."""
    try:
        relative = np.linalg.solve(image, step)
    except np.linalg.LinAlgError:
        return image
    if not np.isfinite(relative).all():
        return image
    size = float(np.linalg.norm(relative))  # bounds the spectral norm, and near the end is enough
    if size > _REACH:
        size = math.sqrt(float(np.linalg.eigvalsh(relative.T @ relative)[-1]))
    return image + min(1.0, _REACH / max(size, _REACH)) * step


def normalised_weights(weights: Floats, number: int) -> Floats:
    """Weights (number,) that sum to 1.

    Raises:
        WeightsError: not one for each, not finite, negative, or all zero.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (number,):
        raise WeightsError(f"{number} Gaussians need as many weights, not {weights.shape}")
    if not np.isfinite(weights).all() or np.any(weights < 0.0) or not np.any(weights > 0.0):
        raise WeightsError("weights must be finite and not negative, and one of them positive")
    scaled = weights / weights.max()
    result: Floats = scaled / scaled.sum()
    return result


def barycenter(
    means: Floats, covariances: Floats, weights: Floats, *, tolerance: float = 1e-12, max_iterations: int = 200
) -> Barycenter:
    """The Wasserstein barycenter of K Gaussians.

    Singular covariances may be among them. The barycenter is unique if one of positive weight is regular; otherwise this is
    the one that the iteration finds from the weighted mean of square roots, on the span of all. Convergence is linear, and
    slower the worse the condition; with singular ones that do not commute it is slow, and the result may be one of 200
    steps that is not converged, of residual 1e-7 to 2e-3, and finite. Shrink before.

    Args:
        means: (K, m).
        covariances: (K, m, m).
        weights: (K,) not negative; they are normalised, and a Gaussian of weight 0 plays no part.
        tolerance: on the residual, see :class:`Barycenter`. The error in S is a small multiple of it.
        max_iterations: after which the best so far is returned, not converged.

    Raises:
        CovarianceError: not covariances.
        WeightsError: weights that cannot be normalised.
        ValueError: shapes do not fit, a mean is not finite, or no iterations.
    """
    means, covariances = np.asarray(means, dtype=np.float64), np.asarray(covariances, dtype=np.float64)
    if covariances.ndim != 3 or not len(covariances) or means.shape != covariances.shape[:2]:
        raise ValueError(f"means {means.shape} and covariances {covariances.shape} do not fit")
    if not np.isfinite(means).all():
        raise ValueError("means must be finite")
    if max_iterations < 1 or not tolerance >= 0.0:
        raise ValueError("at least one iteration, and a tolerance that is not negative")
    share = normalised_weights(weights, len(means))
    scale = float(np.abs(covariances).max()) or 1.0  # so that no norm underflows, whatever the units
    start = np.zeros(covariances.shape[1:])
    columns: list[tuple[float, Floats]] = []
    for covariance, weight in zip(covariances, share, strict=True):
        values, vectors = spectrum(covariance / scale)
        if weight > 0.0 and values[-1] > 0.0:
            columns.append((float(weight), (vectors * np.sqrt(values))[:, values > 0.0]))
            quarter = vectors * (math.sqrt(weight) * values**0.25)
            start += quarter @ quarter.T  # the step from Q = I, whose polar factors are known: w S^1/2
    values, span = np.linalg.eigh(start)
    span = span[:, values > 1e-10 * values[-1]]  # square roots: kept eigenvalues are above 1e-8 of the largest
    sites = [(weight, Followed(span.T @ column)) for weight, column in columns]
    regular = any(column.shape[1] == span.shape[1] for _, column in columns)
    best, iterations, residual = _iterate(sites, span.T @ start @ span, tolerance, max_iterations, accelerated=regular)
    q = math.sqrt(scale) * (span @ best @ span.T)
    return Barycenter(
        Gaussian(share @ means, q.T @ q),
        q,
        iterations,
        residual,
        residual <= tolerance,
        sum(site.decompositions for _, site in sites),
    )


def _iterate(
    sites: list[tuple[float, Followed]], q: Floats, tolerance: float, max_iterations: int, *, accelerated: bool
) -> tuple[Floats, int, float]:
    """The image of least residual, the number of steps, and that residual.

    Steps are plain where every site is singular: the barycenter may be so too, and beside it an accelerated step can reach a
    fixed point that is no minimum, as of two lines the one with an axis turned round.
    """
    accelerate = Acceleration()
    best, least, since, iterations = q, math.inf, 0, 0
    while least > tolerance and iterations < max_iterations and not (since >= _PATIENCE and least < _SMALL):
        iterations += 1
        image = np.zeros_like(q)
        for weight, site in sites:
            image += weight * site.term(q)
        residual = barycenter_residual(q, image)
        since = 0 if residual < least else since + 1
        if residual < least:
            best, least = image, residual
        q = accelerate.next(q, image) if accelerated else image
    return best, iterations, least
