"""From one site's moments to its alignment map: the same function for a coordinator with per-site releases and for the site.

Moments come as the blocks of the tasks gaussian-moments and class-moments, in their own units, with the noise of each block.
What is built from them is post-processing of these blocks. Where the blocks are noised, clear moments must not be given
instead: a map from clear local moments would break the sensitivity of all that follows. A site whose count is within its noise
gets the identity.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from veilsum_aggregation import moments
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap, Gaussian, transport_map
from veilsum_aggregation.shrinkage import noise_ridge, shrink_noised, shrink_oas, shrink_ridge
from veilsum_aggregation.two_way import (
    ClassStatistics,
    Effects,
    TwoWay,
    effective_counts,
    two_way_local,
    two_way_map,
    whitening,
)

Kind = Literal["barycenter", "two-way", "slopes"]
Shrinkage = Literal["auto", "oas", "noised", "ridge"]

MEAN, COVARIANCE = "reference.mean", "reference.covariance"
CLASS_MEANS, WITHIN, SCALARS = "reference.class_means", "reference.within", "reference.scalars"


def site_gaussian(
    blocks: Mapping[str, Floats], noise: Mapping[str, float], *, shrinkage: Shrinkage = "auto"
) -> tuple[float, Gaussian] | None:
    """Count and shrunk Gaussian proxy of one site from ``count`` (1,), ``sum`` (m,), ``squares`` (m,) and ``products``.

    Class moments will do as well: ``counts`` and ``sums`` are then added over the classes. Noise of std s on the sum makes
    its outer product too large by s^2 on the diagonal in expectation; that is given back.

    Args:
        blocks: released or kept blocks of one site; ``products`` (m (m - 1) / 2,) may be absent where m is 1.
        noise: standard deviation of one entry of each block; an absent name is 0.
        shrinkage: "auto" is OAS without noise, :func:`shrink_noised` with it.

    Returns:
        None where the count is within its noise.
    """
    if "count" in blocks:
        number, total = float(blocks["count"].sum()), blocks["sum"]
        number_std, total_std = noise.get("count", 0.0), noise.get("sum", 0.0)
    else:
        number, total = float(blocks["counts"].sum()), blocks["sums"].sum(axis=0)
        root = len(blocks["counts"]) ** 0.5
        number_std, total_std = noise.get("counts", 0.0) * root, noise.get("sums", 0.0) * root
    if moments.within_noise(number, number_std):
        return None
    second, square_std, product_std = _second(blocks, noise)
    matrix = moments.covariance(number, total, second) + (total_std / number) ** 2 * np.eye(len(total))
    if float(np.trace(matrix)) <= 1e-12 * float(np.trace(second)) / number:
        matrix = np.zeros_like(matrix)  # what cancellation leaves of one record, or of equal ones, is not spread
    return number, Gaussian(total / number, _shrunk(matrix, number, square_std, product_std, shrinkage))


def class_statistics(
    blocks: Mapping[str, Floats], noise: Mapping[str, float], *, shrinkage: Shrinkage = "auto"
) -> ClassStatistics | None:
    """Class means and within-class covariance of one site from ``counts`` (K,), ``sums`` (K, m) and second moments.

    Second moments are pooled (``squares`` (m,), ``products``) or per class ((K, m) and (K, m (m - 1) / 2), added up here). A
    class within its noise is left out of the means; what it put into pooled second moments stays, as a little extra spread.
    Without noise the covariance is not shrunk, since :func:`two_way_map` shrinks it to the pooled one; with noise it is.

    Returns:
        None where all records together, or each class, are within the noise.
    """
    counts, sums = blocks["counts"], blocks["sums"]
    counts_std, sums_std = noise.get("counts", 0.0), noise.get("sums", 0.0)
    present = np.array([not moments.within_noise(float(n), counts_std) for n in counts])
    total = float(counts.sum())
    if not present.any() or moments.within_noise(total, counts_std * len(counts) ** 0.5):
        return None
    known: Floats = np.where(present, counts, 0.0)
    means: Floats = np.where(present[:, None], sums, 0.0) / np.where(present, counts, 1.0)[:, None]
    second, square_std, product_std = _second(blocks, noise)
    number = float(known.sum())
    degrees = max(number - float(present.sum()), 0.0)
    within = moments.within_covariance(counts[present], sums[present], second, sums_std)
    if degrees > 0.0:
        within *= number / degrees  # unbiased: small classes would look narrower than they are
    noised = square_std > 0.0 or product_std > 0.0
    if noised or shrinkage != "auto":
        within = _shrunk(within, max(degrees, 1.0), square_std, product_std, shrinkage)
    else:
        within = moments.project_psd(within)
    return ClassStatistics(known, means, within, degrees, sums_std)


def stack(sites: Sequence[ClassStatistics]) -> ClassStatistics:
    """Several sites' moments for :func:`veilsum_aggregation.two_way.fit_two_way`, in order; of their noise the largest."""
    return ClassStatistics(
        np.array([site.counts for site in sites]),
        np.array([site.means for site in sites]),
        np.array([site.within for site in sites]),
        np.array([site.degrees for site in sites]),
        max(site.sums_std for site in sites),
    )


def reference_arrays(reference: Gaussian | TwoWay) -> dict[str, Floats]:
    """The arrays by which a reference is broadcast, that :func:`local_map` reads.

    A barycenter: ``reference.mean`` (m,), ``reference.covariance`` (m, m). A two-way reference: ``reference.class_means``
    (K, m), ``reference.within`` (m, m), ``reference.scalars``: v_d and v_e (2,), and with slopes v_b (3,).
    """
    if isinstance(reference, Gaussian):
        return {MEAN: reference.mean, COVARIANCE: reference.covariance}
    scalars = [reference.shift_variance, reference.residual_variance]
    if reference.slope_variance is not None:
        scalars.append(reference.slope_variance)
    return {CLASS_MEANS: reference.class_means, WITHIN: reference.within, SCALARS: np.array(scalars)}


def example_reference(kind: Kind | str, m: int, classes: int) -> dict[str, Floats]:
    """The arrays of a reference for m standardised features; made of no data. Empty for a kind without a reference."""
    if kind == "barycenter":
        return {MEAN: np.zeros(m), COVARIANCE: np.eye(m)}
    if kind in ("two-way", "slopes"):
        scalars = np.ones(2 if kind == "two-way" else 3)
        return {CLASS_MEANS: np.zeros((classes, m)), WITHIN: np.eye(m), SCALARS: scalars}
    return {}


def local_map(
    kind: Kind,
    blocks: Mapping[str, Floats],
    noise: Mapping[str, float],
    reference: Mapping[str, Floats],
    *,
    tau: float = 0.4,
    shrinkage: Shrinkage = "auto",
) -> AffineMap:
    """The alignment map of one site.

    Args:
        kind: "barycenter" moves the site's Gaussian the share ``tau`` of the way to the reference (SLOT-Align); "two-way"
            takes the site's shift out whole and moves its within-class covariance the share ``tau`` of the way; "slopes"
            takes the slope out as well.
        blocks: the site's moments: of all classes pooled, or class moments, which all but "barycenter" need.
        noise: standard deviation of one entry of each block; an absent name is 0.
        reference: see :func:`reference_arrays`.
        tau: in [0, 1].
        shrinkage: see :func:`site_gaussian`.

    Raises:
        ValueError: ``tau`` is outside [0, 1], the kind is unknown, or shapes do not fit.
        KeyError: a block or an array is missing.
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError("tau must be between 0 and 1")
    m = blocks["squares"].shape[-1]
    _check_shapes(kind, reference, m)
    if kind == "barycenter":
        target = Gaussian(reference[MEAN], reference[COVARIANCE])
        found = site_gaussian(blocks, noise, shrinkage=shrinkage)
        if found is None:
            return AffineMap.identity(target.dimension)
        return transport_map(found[1], target).interpolate(tau)
    statistics = class_statistics(blocks, noise, shrinkage=shrinkage)
    class_means, pooled = reference[CLASS_MEANS], reference[WITHIN]
    if statistics is None:
        return AffineMap.identity(len(pooled))
    effects, _ = local_step(statistics, reference)
    slope = None if kind == "two-way" else effects.slope
    centre = class_means.mean(axis=0)
    return two_way_map(effects.shift, centre, statistics.within, pooled, float(statistics.degrees), tau=tau, slope=slope)


def unlabelled_map(kind: Kind, x: Floats, reference: Mapping[str, Floats], *, tau: float = 0.4) -> AffineMap:
    """The alignment map of a site that the reference was made without, from features (n, m) whose classes nobody knows.

    A barycenter takes their mean and covariance. Of class means the site's shift is found by expectation maximisation: records
    belong to the classes in the shares that the model m_c + delta + N(0, (1 + v_e) W) gives them, the shift is that of
    :func:`veilsum_aggregation.two_way.two_way_local` for these shares, and the site's own mix of classes is fitted beside it,
    so that another mix is not taken for a shift. Spread and slope stay as they are: without classes nothing tells them apart.

    Raises:
        ValueError, KeyError: as of :func:`local_map`.
    """
    m = x.shape[1]
    _check_shapes(kind, reference, m)
    if kind == "barycenter":
        second = x.T @ x
        blocks = {"count": np.array([float(len(x))]), "sum": x.sum(axis=0), "squares": np.diag(second)}
        return local_map(kind, blocks | {"products": second[np.triu_indices(m, 1)]}, {}, reference, tau=tau)
    whiten, colour, _ = whitening(reference[WITHIN])
    shift_variance, residual = (float(value) for value in reference[SCALARS][:2])
    points, means = x @ whiten, reference[CLASS_MEANS] @ whiten
    starts = (np.zeros(m), points.mean(axis=0) - means.mean(axis=0))  # the second of a far shift, the first of another mix
    found = [_unlabelled_shift(points, means, start, shift_variance, residual) for start in starts]
    shift = max(found, key=lambda fit: fit[1])[0]
    return AffineMap(np.eye(m), -(shift @ colour))


def _unlabelled_shift(
    points: Floats, means: Floats, shift: Floats, shift_variance: float, residual: float
) -> tuple[Floats, float]:
    """The shift (m,) of records (n, m) in whitened space from a start, and its log density with theirs, up to a constant."""
    k = len(means)
    mix, density = np.full(k, 1.0 / k), -np.inf
    for _ in range(10):
        rest = points - shift
        distances = (rest**2).sum(axis=1)[:, None] - 2.0 * rest @ means.T + (means**2).sum(axis=1)
        logs = np.log(mix) - 0.5 * distances / (1.0 + residual)
        most = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - most)
        total = shares.sum(axis=1, keepdims=True)
        density = float((most + np.log(total)).sum()) - 0.5 * float(shift @ shift) / shift_variance
        shares /= total
        counts = shares.sum(axis=0)
        own = shares.T @ points / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
        shift = two_way_local(counts, own, means, shift_variance, residual)[0].shift
        mix = (counts + 1.0) / (counts.sum() + k)
    return shift, density


def mapped_moments(blocks: Mapping[str, Floats], mapped: AffineMap) -> dict[str, Floats]:
    """Class moments of a site after a map x -> A x + b, pooled over the classes where they are of each.

    From n_c, s_c, n, s and S they are n_c, A s_c + n_c b and A S A^T + A s b^T + b s^T A^T + n b b^T. Beside ``counts`` (K,),
    ``sums`` (K, m), ``squares`` (m,) and ``products`` (m (m - 1) / 2,) stands ``gain`` (1,), tr(A A^T) / m, by which the map
    multiplies the noise's variance on an average coordinate of a sum: b cancels in a mean and in central moments.
    """
    a, b = mapped.matrix, mapped.offset
    counts, sums = blocks["counts"], blocks["sums"]
    number, total = float(counts.sum()), a @ sums.sum(axis=0)
    second = a @ _second(blocks, {})[0] @ a.T + np.outer(total, b) + np.outer(b, total) + number * np.outer(b, b)
    return {
        "counts": counts,
        "sums": sums @ a.T + counts[:, None] * b,
        "squares": np.diag(second),
        "products": second[np.triu_indices(len(b), 1)],
        "gain": np.array([float(np.sum(a * a)) / len(b)]),
    }


def mapped_noise(noise: Mapping[str, float], gain: float) -> dict[str, float]:
    """Standard deviation of the noise in a mean's or a central moment's terms after a map with this ``gain``, on average."""
    factors = {"counts": 1.0, "sums": max(gain, 0.0) ** 0.5}
    return {name: std * factors.get(name, gain) for name, std in noise.items()}


def pooled_moments(blocks: Mapping[str, Floats]) -> dict[str, Floats]:
    """Class moments with second moments pooled over the classes, where they are of each."""
    second = {name: blocks[name] for name in ("squares", "products") if name in blocks}
    each = blocks["squares"].ndim == 2
    return {
        "counts": blocks["counts"],
        "sums": blocks["sums"],
        **{name: array.sum(axis=0) if each else array for name, array in second.items()},
    }


def _check_shapes(kind: Kind, reference: Mapping[str, Floats], m: int) -> None:
    """Insist on a reference for m features, before anything is made in its size."""
    if kind == "barycenter":
        shapes: dict[str, tuple[int, ...]] = {MEAN: (m,), COVARIANCE: (m, m)}
    elif kind in ("two-way", "slopes"):
        shapes = {WITHIN: (m, m), SCALARS: (2 if kind == "two-way" else 3,)}
        if reference[CLASS_MEANS].ndim != 2 or reference[CLASS_MEANS].shape[1] != m:
            raise ValueError(f"{CLASS_MEANS} must have {m} columns")
    else:
        raise ValueError(f'an alignment is "barycenter", "two-way" or "slopes", not {kind!r}')
    for name, shape in shapes.items():
        if reference[name].shape != shape:
            raise ValueError(f"{name} has shape {reference[name].shape}; a reference for {kind!r} has {shape}")


def local_step(statistics: ClassStatistics, reference: Mapping[str, Floats]) -> tuple[Effects, dict[str, Floats]]:
    """One site's effects in the features' units, and its summands of :func:`veilsum_aggregation.two_way.two_way_update`.

    The summands are in space whitened by ``reference.within``. Without ``reference.class_means`` it is the first step: no
    effects, and only what the first class means are made of. A third of ``reference.scalars`` is the variance of slopes.
    """
    pooled, scalars, class_means = reference[WITHIN], reference[SCALARS], reference.get(CLASS_MEANS)
    k, d = statistics.means.shape
    fits = class_means is None or class_means.shape == (k, d)
    if pooled.shape != (d, d) or scalars.shape not in ((2,), (3,)) or not fits:
        raise ValueError(f"class means of {k} classes and {d} features do not fit the reference")
    whiten, colour, _ = whitening(pooled)
    counts = effective_counts(statistics.counts, statistics.sums_std, whiten)
    whitened = None if class_means is None else class_means @ whiten
    effects, sums = two_way_local(counts, statistics.means @ whiten, whitened, *(float(value) for value in scalars))
    return effects.coloured(whiten, colour), sums


def _second(blocks: Mapping[str, Floats], noise: Mapping[str, float]) -> tuple[Floats, float, float]:
    """Pooled raw second moments (m, m), and the noise of its diagonal and of its other entries."""
    squares = blocks["squares"]
    m = squares.shape[-1]
    # Without products (one feature, or diagonal moments) covariances are taken as 0.
    products = blocks.get("products", np.zeros((*squares.shape[:-1], m * (m - 1) // 2)))
    square_std, product_std = noise.get("squares", 0.0), noise.get("products", 0.0)
    if squares.ndim == 2:
        root = len(squares) ** 0.5
        squares, products = squares.sum(axis=0), products.sum(axis=0)
        square_std, product_std = square_std * root, product_std * root
    return moments.symmetric(squares, products), square_std, product_std


def _shrunk(matrix: Floats, number: float, square_std: float, product_std: float, shrinkage: Shrinkage) -> Floats:
    noised = square_std > 0.0 or product_std > 0.0
    if shrinkage == "ridge":
        return shrink_ridge(matrix, noise_ridge(max(square_std, product_std), len(matrix), number))
    if shrinkage == "noised" or (shrinkage == "auto" and noised):
        return shrink_noised(matrix, number, square_std, product_std)
    return shrink_oas(moments.project_psd(matrix), number)
