"""Class geometries and what is generated from them: covariances by the law of total covariance, their eigenvectors, samples.

After GGEUR. A generated sample descends from the centre it stands around: where that is a record, the number of
copies must be a public constant, and whoever trains on the copies clips over all copies of one record together. Where centres
are noised prototypes, generation is post-processing and free. This module generates; it enforces neither.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers

Scale = Literal["eigenvalue", "std"]


@dataclass(frozen=True)
class ClassGeometry:
    """The eigen-decomposed covariance of each class.

    Attributes:
        counts: (K,) records of each class, 0 for a class that is absent.
        means: (K, d).
        values: (K, d) eigenvalues, descending, at least 0.
        vectors: (K, d, d) eigenvectors as columns, in the order of the values.
    """

    counts: Floats
    means: Floats
    values: Floats
    vectors: Floats

    def __post_init__(self) -> None:
        k, d = self.means.shape
        if self.counts.shape != (k,) or self.values.shape != (k, d) or self.vectors.shape != (k, d, d):
            raise ValueError(
                f"counts {self.counts.shape}, means {self.means.shape}, values {self.values.shape} and vectors "
                f"{self.vectors.shape} do not fit"
            )

    def covariances(self) -> Floats:
        """The covariances (K, d, d) that the geometries describe."""
        result: Floats = (self.vectors * self.values[:, None, :]) @ self.vectors.transpose(0, 2, 1)
        return result


def class_covariances(counts: Floats, sums: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Means (K, d) and population covariances (K, d, d) of classes, from moments summed over all sites.

    S_c = (sum x x^T) / n_c - m_c m_c^T: what the law of total covariance gives over the sites, without one site's figures.
    Exact but for cancellation, which grows with (|mean| / spread)^2. Not projected: under noise eigenvalues can be negative,
    and :func:`class_geometry` floors them. A class whose count is not positive gets zeros.

    Args:
        counts: (K,) records.
        sums: (K, d) sums of x.
        seconds: (K, d, d) sums of x x^T.
    """
    k, d = sums.shape
    if counts.shape != (k,) or seconds.shape != (k, d, d):
        raise ValueError(f"counts {counts.shape}, sums {sums.shape} and second moments {seconds.shape} do not fit")
    share = _inverse(counts)
    means: Floats = sums * share[:, None]
    covariances = seconds * share[:, None, None] - means[:, :, None] * means[:, None, :]
    return means, (covariances + covariances.transpose(0, 2, 1)) / 2.0


def class_geometry(counts: Floats, means: Floats, covariances: Floats) -> ClassGeometry:
    """The geometry of each class: eigenvalues floored at 0 and descending, of covariances (K, d, d)."""
    values, vectors = np.linalg.eigh((covariances + covariances.transpose(0, 2, 1)) / 2.0)
    return ClassGeometry(
        np.maximum(counts, 0.0), means, np.maximum(values[:, ::-1], 0.0), np.ascontiguousarray(vectors[:, :, ::-1])
    )


def directions(geometry: ClassGeometry, scale: Scale = "std") -> Floats:
    """Matrices (K, d, d) that turn e ~ N(0, I) into a class's deviation ``directions[c] @ e``.

    "std": sum_m e_m sqrt(lambda_m) xi_m, whose covariance is the class's. "eigenvalue": sum_m e_m lambda_m xi_m, as GGEUR
    states it, whose covariance is the square of the class's, in other units than the features'.
    """
    result: Floats = geometry.vectors * _lengths(geometry, scale)[:, None, :]
    return result


def generate(
    geometry: ClassGeometry, centres: Floats, classes: Integers, copies: int, scale: Scale, rng: np.random.Generator
) -> tuple[Floats, Integers]:
    """Samples around centres, each with its class's geometry: ``copies`` of the first centre, then of the second, and so on.

    Args:
        geometry: of K classes; only those that occur in ``classes`` are used.
        centres: (n, d) records, or prototypes.
        classes: (n,) class of each centre.
        copies: samples per centre; a public constant, never computed from the number of records.
        scale: see :func:`directions`.
        rng: source of the normal numbers.

    Returns:
        (samples (n * copies, d), labels (n * copies,)).

    Raises:
        ValueError: shapes do not fit, a class is unknown, or ``copies`` is negative.
    """
    n, d = centres.shape
    if classes.shape != (n,) or d != geometry.means.shape[1] or copies < 0:
        raise ValueError(f"{copies} copies of centres {centres.shape} with classes {classes.shape} cannot be generated")
    labels: Integers = np.repeat(classes.astype(np.int64), copies)
    if n and not (int(classes.min()) >= 0 and int(classes.max()) < len(geometry.means)):
        raise ValueError("a centre is of a class that the geometry does not hold")
    samples: Floats = np.repeat(centres.astype(np.float64), copies, axis=0)
    normal = rng.standard_normal((n * copies, d))
    lengths = _lengths(geometry, scale)
    for c in np.unique(classes):  # one product a class: no (K, d, d) of directions for classes that do not occur
        mine = np.flatnonzero(labels == c)
        samples[mine] += (normal[mine] * lengths[c]) @ geometry.vectors[c].T
    return samples, labels


def _lengths(geometry: ClassGeometry, scale: Scale) -> Floats:
    """Length (K, d) of the deviation along each eigenvector."""
    if scale not in ("std", "eigenvalue"):
        raise ValueError(f'scale must be "std" or "eigenvalue", not {scale!r}')
    lengths: Floats = np.sqrt(geometry.values) if scale == "std" else geometry.values
    return lengths


def _inverse(counts: Floats) -> Floats:
    """1 / n where n is positive, else 0."""
    positive = counts > 0.0
    result: Floats = np.where(positive, 1.0 / np.where(positive, counts, 1.0), 0.0)
    return result
