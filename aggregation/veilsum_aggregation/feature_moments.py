"""The first four moments of features from released power sums, what the noise does to them, and how they are broadcast.

Sums come as the blocks of the task "power-moments", in their own units, with the noise of each block. Everything here is
post-processing of these: it reads no record and costs no privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.moments import NOISE_FLOOR, within_noise

REFERENCE_MEAN, REFERENCE_VARIANCE = "reference.mean", "reference.variance"
REFERENCE_SKEWNESS, REFERENCE_KURTOSIS = "reference.skewness", "reference.kurtosis"
REFERENCE_ORDER = "reference.order"
MOMENT_REFERENCE = (REFERENCE_MEAN, REFERENCE_VARIANCE, REFERENCE_SKEWNESS, REFERENCE_KURTOSIS, REFERENCE_ORDER)
"""Names of the arrays of a reference."""

CONSTANT = 1e-6
"""A variance below it is that of a constant; features lie in [-1, 1]."""

TWO_POINTS = 0.02
"""A kurtosis that exceeds skewness^2 + 1 by less is that of a feature with two values: all others lie above."""

AT_BOUNDS = 0.01
"""A feature in [-1, 1] whose mean square falls short of 1 by less has the values -1 and 1 (nearly) only."""

SHAPE_ERROR = (0.25, 0.75)
"""Largest standard errors of a skewness and a kurtosis, by the noise, at which they are still aligned by."""


@dataclass(frozen=True)
class FeatureMoments:
    """The first four moments of m features.

    Attributes:
        number: of records.
        mean, variance, skewness, kurtosis: (m,); skewness and kurtosis (3 for a normal) are 0 and 3 where not estimable.
        order: (m,) how many of them can be told: 4, 2, or 0 where the feature is constant, has two values, or its variance is
            within the noise.
        errors: (4, m) standard errors that the noise gives the four, by the delta method; infinite where not estimable.
    """

    number: float
    mean: Floats
    variance: Floats
    skewness: Floats
    kurtosis: Floats
    order: Integers
    errors: Floats

    def __len__(self) -> int:
        return len(self.mean)


def moments_of_sums(blocks: Mapping[str, Floats], noise: Mapping[str, float]) -> FeatureMoments:
    """Moments from the count (1,) and the sums of Chebyshev polynomials T_k of features in [-1, 1].

    With t_k = T_k / n the raw moments are r1 = t1, r2 = (t2 + 1) / 2, r3 = (t3 + 3 t1) / 4, r4 = (t4 + 8 r2 - 1) / 8, and
    the central ones m2 = r2 - r1^2, m3 = r3 - 3 r1 r2 + 2 r1^3, m4 = r4 - 4 r1 r3 + 6 r1^2 r2 - 3 r1^4. Sums over several
    sites give the moments of all their records, the spread between sites included. Noise of std s on T_1 makes r1^2 too large
    by s^2 / n^2 in expectation; the variance is given it back.

    A feature is told by 0, 2 or 4 moments: see :attr:`FeatureMoments.order`. A variance is within its noise below
    :data:`veilsum_aggregation.moments.NOISE_FLOOR` of its standard errors; skewness and kurtosis, which stand over its
    powers, are so too, or where their errors exceed :data:`SHAPE_ERROR`.

    Args:
        blocks: ``count`` (1,), ``t1`` and ``t2`` (m,), and for four moments ``t3`` and ``t4`` (m,).
        noise: standard deviation of one entry of each block; an absent name is 0.

    Raises:
        ValueError: the shapes do not fit together.
        KeyError: a block is missing.
    """
    names = ("t1", "t2", "t3", "t4") if "t3" in blocks else ("t1", "t2")
    number, m = float(blocks["count"].sum()), len(blocks["t1"])
    if any(blocks[name].shape != (m,) for name in names):
        raise ValueError("power sums have one value a feature")
    if within_noise(number, noise.get("count", 0.0)):
        return _untold(max(number, 0.0), m)
    t = np.zeros((4, m))
    t[: len(names)] = np.stack([blocks[name] for name in names]) / number
    # What the noise of each of the four sums and of the count does to t1, ..., t4: (5, m) each.
    errors = np.zeros((4, 5, m))
    for k, name in enumerate(names):
        errors[k, k] = noise.get(name, 0.0) / number
        errors[k, 4] = -t[k] * (noise.get("count", 0.0) / number)
    d1, d2, d3, d4 = errors
    r1, r2 = t[0], (t[1] + 1.0) / 2.0
    r3, r4 = (t[2] + 3.0 * r1) / 4.0, (t[3] + 8.0 * r2 - 1.0) / 8.0
    d2 = d2 / 2.0
    d3, d4 = (d3 + 3.0 * d1) / 4.0, (d4 + 8.0 * d2) / 8.0
    m2 = r2 - r1 * r1 + (noise.get("t1", 0.0) / number) ** 2
    m3 = r3 - 3.0 * r1 * r2 + 2.0 * r1**3
    m4 = r4 - 4.0 * r1 * r3 + 6.0 * r1 * r1 * r2 - 3.0 * r1**4
    e2 = d2 - 2.0 * r1 * d1
    e3 = d3 - 3.0 * r1 * d2 + (6.0 * r1 * r1 - 3.0 * r2) * d1
    e4 = d4 - 4.0 * r1 * d3 + 6.0 * r1 * r1 * d2 + (12.0 * r1 * r2 - 4.0 * r3 - 12.0 * r1**3) * d1
    mean_error, variance_error = _length(d1), _length(e2)
    known = (m2 > CONSTANT) & (m2 > NOISE_FLOOR * variance_error)
    safe = np.where(known, m2, 1.0)
    skewness, kurtosis = m3 / safe**1.5, m4 / safe**2
    skewness_error = _length(e3 / safe**1.5 - 1.5 * skewness / safe * e2)
    kurtosis_error = _length(e4 / safe**2 - 2.0 * kurtosis / safe * e2)
    shaped = known & (skewness_error <= SHAPE_ERROR[0]) & (kurtosis_error <= SHAPE_ERROR[1]) & (len(names) == 4)
    binary = (shaped & (kurtosis - skewness**2 - 1.0 < TWO_POINTS)) | (1.0 - r2 < AT_BOUNDS)
    return FeatureMoments(
        number,
        np.clip(r1, -1.0, 1.0),
        np.where(known, np.minimum(m2, 1.0), np.maximum(m2, 0.0)),
        np.where(shaped, skewness, 0.0),
        np.where(shaped, kurtosis, 3.0),
        np.where(binary | ~known, 0, np.where(shaped, 4, 2)).astype(np.int64),
        np.stack(
            [mean_error, variance_error, *(np.where(shaped, error, np.inf) for error in (skewness_error, kurtosis_error))]
        ),
    )


def _length(errors: Floats) -> Floats:
    length: Floats = np.sqrt(np.sum(errors**2, axis=0))
    return length


def _untold(number: float, m: int) -> FeatureMoments:
    errors = np.full((4, m), np.inf)
    return FeatureMoments(number, np.zeros(m), np.zeros(m), np.zeros(m), np.full(m, 3.0), np.zeros(m, dtype=np.int64), errors)


def reference_arrays(moments: FeatureMoments) -> dict[str, Floats]:
    """The arrays (m,) by which a reference is broadcast, that :func:`read_reference` reads."""
    return {
        REFERENCE_MEAN: moments.mean,
        REFERENCE_VARIANCE: moments.variance,
        REFERENCE_SKEWNESS: moments.skewness,
        REFERENCE_KURTOSIS: moments.kurtosis,
        REFERENCE_ORDER: moments.order.astype(np.float64),
    }


def read_reference(arrays: Mapping[str, Floats], m: int) -> FeatureMoments:
    """A reference as it was broadcast.

    Raises:
        KeyError: an array is missing.
        ValueError: an array has another shape than (m,), or values that no moments have.
    """
    given = [arrays[name] for name in MOMENT_REFERENCE]
    if any(array.shape != (m,) or not np.isfinite(array).all() for array in given):
        raise ValueError(f"a reference has {m} finite values in each of its arrays")
    mean, variance, skewness, kurtosis, order = given
    if not (np.isin(order, (0.0, 2.0, 4.0)).all() and (np.abs(mean) <= 1.0).all() and (variance >= 0.0).all()):
        raise ValueError("a reference holds values that no moments have")
    return FeatureMoments(0.0, mean, variance, skewness, kurtosis, order.astype(np.int64), np.zeros((4, m)))


def moment_terms(moments: FeatureMoments) -> dict[str, Floats]:
    """One site's summands of :func:`mean_of_moments`: its moments times its records, and the records, by feature.

    ``spread`` (3, m): records, mean and variance, zeros where the site cannot tell the variance; ``shape`` (3, m): records,
    skewness and kurtosis, zeros where it cannot tell these.
    """
    two, four = (moments.number * (moments.order >= order) for order in (2, 4))
    return {
        "spread": np.stack([two, two * moments.mean, two * moments.variance]),
        "shape": np.stack([four, four * moments.skewness, four * moments.kurtosis]),
    }


def mean_of_moments(terms: Mapping[str, Floats]) -> FeatureMoments:
    """The mean of the sites' moments by their records, from the sums of :func:`moment_terms` (FedAlign as printed).

    Unlike pooled moments its variance leaves out the spread of the sites' means. A feature has an order if half a record, at
    least, tells of it: what a site tells is its number of records times whether it can.
    """
    (two, means, variances), (four, skewness, kurtosis) = terms["spread"], terms["shape"]
    spread, shape = two > 0.5, (two > 0.5) & (four > 0.5)
    n2, n4 = np.where(spread, two, 1.0), np.where(shape, four, 1.0)
    variance = np.where(spread, variances / n2, 0.0)
    spread &= variance > CONSTANT
    shape &= spread
    return FeatureMoments(
        float(two.max(initial=0.0)),
        np.where(spread, np.clip(means / n2, -1.0, 1.0), 0.0),
        np.clip(variance, 0.0, 1.0),
        np.where(shape, skewness / n4, 0.0),
        np.where(shape, kurtosis / n4, 3.0),
        np.where(shape, 4, np.where(spread, 2, 0)).astype(np.int64),
        np.full((4, len(two)), np.nan),
    )
