"""The two-way reference of alignment: class means and site shifts told apart, so that label shift does not enter a site's map.

In space whitened by the pooled within-class covariance the mean of class c at site k is mu_kc = m_c + delta_k + e_kc + noise,
with delta_k ~ N(0, v_d I), e_kc ~ N(0, v_e I) and sampling noise N(0, I / n_kc). The m_c are fitted by weighted least squares,
the shifts and the variances by expectation maximisation. A class that a site lacks has no weight there.

Every round splits into a local step (:func:`two_way_local`) and an update from sums over the sites (:func:`two_way_update`),
so that it runs over per-site releases (:func:`fit_two_way`) and over secure sums alike, with the same result. What is done
here is post-processing: under differential privacy the moments are noised before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.gaussian import AffineMap, Gaussian, transport_map

Floats = NDArray[np.float64]

_FLOOR = 1e-8
"""Eigenvalues of the within-class covariance below this share of their mean are raised to it before whitening."""


@dataclass(frozen=True)
class SiteMoments:
    """Class means and within-class covariances of S sites.

    Attributes:
        counts: (S, K) records; a class with no positive count is absent from the site, and its mean is not read.
        means: (S, K, d).
        within: (S, d, d) within-class covariances.
        degrees: (S,) degrees of freedom of ``within``, its weight in the pooled one; not negative.
        sums_std: noise of one coordinate of a class sum, 0 without noise.
    """

    counts: Floats
    means: Floats
    within: Floats
    degrees: Floats
    sums_std: float = 0.0

    def __post_init__(self) -> None:
        s, k, d = self.means.shape
        if self.counts.shape != (s, k) or self.within.shape != (s, d, d) or self.degrees.shape != (s,):
            raise ValueError(
                f"counts {self.counts.shape}, means {self.means.shape}, covariances {self.within.shape} and degrees "
                f"{self.degrees.shape} do not fit"
            )
        if not (np.any(self.counts > 0.0) and np.all(self.degrees >= 0.0) and np.any(self.degrees > 0.0)):
            raise ValueError("no site has a class with records, or no degrees of freedom are left within classes")


@dataclass(frozen=True)
class TwoWay:
    """The fitted reference, in the features' own units; the variances are per coordinate of whitened space.

    Attributes:
        class_means: (K, d); a class that no site has gets the centre.
        shifts: (S, d) shift of each site.
        within: (d, d) pooled within-class covariance, eigenvalues floored as for whitening.
        shift_variance: v_d.
        residual_variance: v_e.
        rounds: rounds that were run.
        counts: (K,) records of each class over all sites.
    """

    class_means: Floats
    shifts: Floats
    within: Floats
    shift_variance: float
    residual_variance: float
    rounds: int
    counts: Floats

    @property
    def centre(self) -> Floats:
        """(d,) unweighted mean of the class means, to which classes that no site has add nothing: maps scale about it."""
        result: Floats = self.class_means.mean(axis=0)
        return result


def pooled_within(within: Floats, degrees: Floats) -> Floats:
    """Mean (d, d) of covariances (S, d, d), weighted by their degrees of freedom (S,)."""
    result: Floats = np.einsum("s,sde->de", degrees / degrees.sum(), within)
    return result


def whitening(within: Floats) -> tuple[Floats, Floats, Floats]:
    """Symmetric roots of a covariance (d, d): (W^-1/2, W^1/2, W), after eigenvalues below 1e-8 of their mean are raised to it.

    Raises:
        ValueError: the covariance has no positive trace.
    """
    values, vectors = np.linalg.eigh((within + within.T) / 2.0)
    floor = _FLOOR * float(values.mean())
    if not floor > 0.0:
        raise ValueError("the within-class covariance has no spread to whiten by")
    values = np.maximum(values, floor)
    roots = np.sqrt(values)
    return (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T, (vectors * values) @ vectors.T


def effective_counts(counts: Floats, sums_std: float, whiten: Floats) -> Floats:
    """Counts of the shape given, at which sampling alone would err as much as sampling and noise do together.

    Noise of variance s^2 on each coordinate of a class sum adds s^2 / n^2 W^-1 to the mean in whitened space: on average
    per coordinate s^2 tr(W^-1) / (d n^2) beside the 1 / n of sampling. Counts that are not positive become 0.
    """
    noise = sums_std**2 * float(np.sum(whiten**2)) / len(whiten)
    present = np.maximum(counts, 0.0)
    result: Floats = present**2 / np.where(present > 0.0, present + noise, 1.0)
    return result


def two_way_local(
    counts: Floats, means: Floats, class_means: Floats | None, shift_variance: float, residual_variance: float
) -> tuple[Floats, dict[str, Floats]]:
    """One site's step: its shift (d,) given the reference, and what it adds to the sums that update the reference.

    With a_c = 1 / (v_e + 1 / n_c): shift = sum_c a_c (mu_c - m_c) / (1 / v_d + sum_c a_c), whose posterior variance is
    1 / (1 / v_d + sum_c a_c) a coordinate. The residual e_c has posterior mean v_e a_c (mu_c - m_c - shift).

    Args:
        counts: (K,) records or :func:`effective_counts`; 0 for an absent class.
        means: (K, d) in whitened space; those of absent classes are not read.
        class_means: (K, d) in whitened space; None before the first update, when the shift is 0 and no variance is summed.
        shift_variance, residual_variance: v_d and v_e, positive.

    Returns:
        The shift, and the summands ``weights`` (K,) a_c; ``weighted`` (K, d) a_c (mu_c - shift); ``shift`` (2,) squared size
        per coordinate of the shift and 1; ``residual`` (2,) the same of the residuals, and present classes.
    """
    d = means.shape[1]
    present = counts > 0.0
    safe = np.where(present, counts, 1.0)
    a = np.where(present, 1.0 / (residual_variance + 1.0 / safe), 0.0)
    known = np.where(present[:, None], means, 0.0)
    if class_means is None:
        sums = {"weights": a, "weighted": a[:, None] * known, "shift": np.zeros(2), "residual": np.zeros(2)}
        return np.zeros(d), sums
    precision = 1.0 / shift_variance + float(a.sum())
    shift: Floats = a @ (known - class_means) / precision
    gain = residual_variance * a
    residual = gain[:, None] * (known - class_means - shift)
    variance = np.where(present, residual_variance * (1.0 - gain) + gain**2 / precision, 0.0)
    spread = float(np.sum(residual**2) / d + variance.sum())
    return shift, {
        "weights": a,
        "weighted": a[:, None] * (known - shift),
        # A site without any class would only repeat the prior; it takes no part.
        "shift": np.array([float(shift @ shift) / d + 1.0 / precision, 1.0]) * float(present.any()),
        "residual": np.array([spread, float(present.sum())]),
    }


def two_way_update(sums: Mapping[str, Floats], shift_variance: float, residual_variance: float) -> tuple[Floats, float, float]:
    """The next (class_means (K, d), v_d, v_e) from the summands of :func:`two_way_local` summed over sites.

    A class without weight gets the mean of the others. The variances are kept where nothing was summed for them.
    """
    weights = sums["weights"]
    # Sums that arrive on a grid, or noised, leave about 0 where no site has the class.
    known = weights > 1e-9 * max(float(weights.max()), 0.0)
    if not known.any():
        raise ValueError("no class has weight at any site")
    class_means: Floats = sums["weighted"] / np.where(known, weights, 1.0)[:, None]
    class_means[~known] = class_means[known].mean(axis=0)
    return (
        class_means,
        _variance(sums["shift"], shift_variance),
        _variance(sums["residual"], residual_variance),
    )


def _variance(summed: Floats, last: float) -> float:
    """Mean of what was summed; never 0, from which expectation maximisation would not return."""
    return max(float(summed[0] / summed[1]), 1e-12) if summed[1] > 0.5 else last


def fit_two_way(site: SiteMoments, *, rounds: int = 10, shift_variance: float = 0.3, residual_variance: float = 0.3) -> TwoWay:
    """Fit the two-way reference to the moments of all sites.

    The shifts returned are those that :func:`two_way_local` gives against the returned reference, so a site that gets the
    reference alone finds the same.

    Args:
        site: moments, in the features' own units.
        rounds: rounds of expectation maximisation after the first class means; at least 1.
        shift_variance, residual_variance: v_d and v_e to start from, per coordinate of whitened space.
    """
    if rounds < 1 or not (shift_variance > 0.0 and residual_variance > 0.0):
        raise ValueError("the two-way fit needs at least one round and positive variances to start from")
    whiten, colour, within = whitening(pooled_within(site.within, site.degrees))
    counts = effective_counts(site.counts, site.sums_std, whiten)
    means = np.where(site.counts[:, :, None] > 0.0, site.means, 0.0) @ whiten
    v_d, v_e = shift_variance, residual_variance
    class_means, v_d, v_e = two_way_update(_all(counts, means, None, v_d, v_e)[1], v_d, v_e)
    for _ in range(rounds):
        class_means, v_d, v_e = two_way_update(_all(counts, means, class_means, v_d, v_e)[1], v_d, v_e)
    shifts, _ = _all(counts, means, class_means, v_d, v_e)
    return TwoWay(class_means @ colour, shifts @ colour, within, v_d, v_e, rounds, np.maximum(site.counts, 0.0).sum(axis=0))


def _all(
    counts: Floats, means: Floats, class_means: Floats | None, v_d: float, v_e: float
) -> tuple[Floats, dict[str, Floats]]:
    """Every site's step: shifts (S, d) and the sums."""
    steps = [two_way_local(n, mu, class_means, v_d, v_e) for n, mu in zip(counts, means, strict=True)]
    sums = {name: np.sum([step[name] for _, step in steps], axis=0) for name in steps[0][1]}
    return np.array([shift for shift, _ in steps]), sums


def two_way_map(
    shift: Floats, centre: Floats, within_site: Floats, within_pooled: Floats, degrees: float, *, tau: float = 0.4
) -> AffineMap:
    """The map x' = c + ((1 - tau) I + tau A)(x - delta - c) of one site.

    A carries the site's within-class covariance onto the pooled one, optimally. Before that the site's is shrunk to the pooled
    one by min(1, d / degrees): a site with fewer degrees of freedom than features is shifted only.

    Args:
        shift: (d,) delta.
        centre: (d,) c.
        within_site, within_pooled: (d, d), positive semidefinite.
        degrees: degrees of freedom of ``within_site``.
        tau: share of the covariance part that is applied, in [0, 1]; the shift is applied whole.
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError("tau must be between 0 and 1")
    d = len(shift)
    intensity = min(1.0, d / degrees) if degrees > 0.0 else 1.0
    if intensity == 1.0:
        matrix = np.eye(d)
    else:
        own = Gaussian(np.zeros(d), (1.0 - intensity) * within_site + intensity * within_pooled)
        matrix = (1.0 - tau) * np.eye(d) + tau * transport_map(own, Gaussian(np.zeros(d), within_pooled)).matrix
    return AffineMap(matrix, centre - matrix @ (shift + centre))
