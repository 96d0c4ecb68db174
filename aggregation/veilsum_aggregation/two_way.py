"""The two-way reference of alignment: class means and site effects told apart, so that label shift enters no site's map.

In space whitened by the pooled within-class covariance the mean of class c at site k is

    mu_kc = m_c + delta_k + B_k (m_c - c) + e_kc + noise,

with a shift delta_k ~ N(0, v_d I), a slope B_k with entries N(0, v_b), a residual e_kc ~ N(0, v_e I), sampling noise
N(0, I / n_kc), and c the mean of the m_c. The slope says how a site turns and stretches the structure of the classes; without
it, v_b = 0, the model is additive. Shifts and slopes are found by best linear unbiased prediction given the m_c, the m_c by
weighted least squares given these, the variances by expectation maximisation. A class that a site lacks has no weight there.

A round is a local step (:func:`two_way_local`) and an update from sums over the sites (:func:`two_way_update`), so it runs
over secure sums as well. The slope adds nothing to what is summed: v_b is v_d over the mean of |m_c - c|^2, so that a class at
the usual distance from c is moved as much by a slope as by a shift (:func:`slope_variance`). So v_d is estimated from shifts
alone, and with slopes a round may lower the likelihood a little; sites that have slopes and no shifts are left as they are.

Here it is fitted to the moments of all sites at once; the same rounds run over secure sums, with the same result. A site's map
takes its effects out, and carries its within-class covariance towards the pooled one.

What is done here is post-processing: under differential privacy the moments are noised before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Bools, Floats
from veilsum_aggregation.gaussian import AffineMap, Gaussian, transport_map

_STRUCTURE = 1e-6
"""Mean squared distance of class means, in standard deviations within classes, below which they have no structure to turn."""

_START = 0.3
"""v_d and v_e that the fit begins with, per coordinate of whitened space."""

_FLOOR = 1e-5
"""Eigenvalues of the within-class covariance below this share of their mean are raised to it before whitening.

Indicators of one category sum to 1, so the covariance has directions without spread. The grid of secure sums leaves errors of
about 1e-8 there, which whitening must not magnify.
"""

_STRETCH = 10.0
"""How far a map stretches or shrinks features, at most, to take a slope out."""


@dataclass(frozen=True)
class ClassStatistics:
    """Class means of one site and its within-class covariance, or those of S sites along a first axis.

    Attributes:
        counts: (..., K) records; a class with no positive count is absent, and its mean is not read.
        means: (..., K, d).
        within: (..., d, d) positive semidefinite.
        degrees: (...,) degrees of freedom of ``within``, its weight in the pooled one: records less present classes.
        sums_std: noise of one coordinate of a class sum, of several sites the largest; 0 without noise.

    Raises:
        ValueError: the shapes do not fit.
    """

    counts: Floats
    means: Floats
    within: Floats
    degrees: Floats | float
    sums_std: float = 0.0

    def __post_init__(self) -> None:
        sites, d = self.means.shape[:-2], self.means.shape[-1]
        fits = self.counts.shape == self.means.shape[:-1] and self.within.shape == (*sites, d, d)
        if not fits or np.shape(self.degrees) != sites:
            raise ValueError(
                f"counts {self.counts.shape}, means {self.means.shape}, covariances {self.within.shape} and degrees "
                f"{np.shape(self.degrees)} do not fit"
            )


@dataclass(frozen=True)
class TwoWay:
    """The fitted reference, in the features' own units; the variances are per coordinate of whitened space.

    Attributes:
        class_means: (K, d); a class that no site has gets the centre.
        shifts: (S, d) shift of each site.
        within: (d, d) pooled within-class covariance, eigenvalues floored as for whitening.
        shift_variance: v_d.
        residual_variance: v_e.
        change: |new - old| / |new| of the class means in the last round; None after a single one.
        slope_variance: v_b, of an entry of a slope in whitened space; None in the additive model.
        slopes: (S, d, d) slope of each site; None in the additive model.
    """

    class_means: Floats
    shifts: Floats
    within: Floats
    shift_variance: float
    residual_variance: float
    change: float | None
    slope_variance: float | None = None
    slopes: Floats | None = None

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
    """Symmetric roots of a covariance (d, d): (W^-1/2, W^1/2, W), after eigenvalues below 1e-5 of their mean are raised to it.

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


def fit_two_way(site: ClassStatistics, *, rounds: int = 10, slopes: bool = False) -> TwoWay:
    """Fit the two-way reference to the moments of all sites.

    The effects returned are those that :func:`two_way_local` gives against the returned reference, so a site that gets the
    reference alone finds the same.

    Args:
        site: moments of S sites, in the features' own units.
        rounds: rounds of expectation maximisation after the first class means; at least 1.
        slopes: whether sites have slopes beside shifts.

    Raises:
        ValueError: nothing tells a class, or a spread within classes.
    """
    if rounds < 1:
        raise ValueError("the two-way fit needs at least one round")
    degrees = np.asarray(site.degrees)
    if not (np.any(site.counts > 0.0) and np.all(degrees >= 0.0) and np.any(degrees > 0.0)):
        raise ValueError("no site has a class with records, or no degrees of freedom are left within classes")
    whiten, colour, within = whitening(pooled_within(site.within, degrees))
    counts = effective_counts(site.counts, site.sums_std, whiten)
    means = np.where(site.counts[:, :, None] > 0.0, site.means, 0.0) @ whiten
    v_d, v_e, v_b = _START, _START, 0.0
    parts = two_way_local(counts, means, None, v_d, v_e)[1]
    class_means: Floats = np.zeros(means.shape[1:])
    for _ in range(rounds + 1):
        before, sums = class_means, {name: part.sum(axis=0) for name, part in parts.items()}
        class_means, v_d, v_e = two_way_update(sums, v_d, v_e)
        v_b = slope_variance(sums, class_means, v_d) if slopes else 0.0
        effects, parts = two_way_local(counts, means, class_means, v_d, v_e, v_b)
    own = effects.coloured(whiten, colour)
    coloured: Floats = class_means @ colour
    return TwoWay(
        coloured,
        own.shift,
        within,
        v_d,
        v_e,
        relative_change(before @ colour, coloured) if rounds > 1 else None,
        v_b if slopes else None,
        own.slope if slopes else None,
    )


def relative_change(old: Floats, new: Floats) -> float:
    """|new - old| / |new|."""
    return float(np.linalg.norm(new - old) / max(float(np.linalg.norm(new)), float(np.finfo(np.float64).tiny)))


def two_way_map(
    shift: Floats,
    centre: Floats,
    within_site: Floats,
    within_pooled: Floats,
    degrees: float,
    *,
    tau: float = 0.4,
    slope: Floats | None = None,
) -> AffineMap:
    """The map x' = c + ((1 - tau) I + tau A) H (x - delta - c) of one site, with H = (I + B)^-1, in the additive model I.

    A carries the site's within-class covariance, after H, onto the pooled one, optimally. Before that the site's is shrunk to
    the pooled one: in the additive model by min(1, d / degrees), so that a site with fewer degrees of freedom than features is
    shifted only; with a slope by d / (d + degrees).

    With a slope the map is made in space whitened by the pooled covariance, so that it follows any affine change of the
    features. There a singular value s of I + B is inverted as 1 / s between 0.1 and 10, as 100 s below and as 0.1 above: H
    stretches by 10 at most, and is continuous where I + B is singular and the classes tell nothing of a direction.

    A moves class means as well. Where classes lie tens of standard deviations apart it can put them further from the
    reference than the slope brought them: take a smaller tau then.

    Args:
        shift: (d,) delta.
        centre: (d,) c.
        within_site, within_pooled: (d, d), positive semidefinite.
        degrees: degrees of freedom of ``within_site``.
        tau: share of the covariance part that is applied, in [0, 1]; shift and slope are applied whole.
        slope: (d, d) B; None for the additive model.
    """
    if not 0.0 <= tau <= 1.0:
        raise ValueError("tau must be between 0 and 1")
    d = len(shift)
    if slope is not None:
        whiten, colour, _ = whitening(within_pooled)
        undo, own = _undone(whiten @ slope @ colour), whiten @ within_site @ whiten
        matrix = colour @ _carried(undo, own, np.eye(d), d / (d + max(degrees, 0.0)), tau) @ whiten
    elif degrees > d:
        matrix = _carried(np.eye(d), within_site, within_pooled, d / degrees, tau)
    else:
        matrix = np.eye(d)
    return AffineMap(matrix, centre - matrix @ (shift + centre))


def _carried(undo: Floats, own: Floats, pooled: Floats, intensity: float, tau: float) -> Floats:
    """((1 - tau) I + tau A) H (d, d), where A carries the site's covariance, shrunk and after H, onto the pooled one."""
    source = undo @ ((1.0 - intensity) * own + intensity * pooled) @ undo.T
    source = (source + source.T) / 2.0  # whitening magnifies roundings where the pooled covariance is close to singular
    carry = transport_map(Gaussian(np.zeros(len(own)), source), Gaussian(np.zeros(len(own)), pooled)).matrix
    result: Floats = ((1.0 - tau) * np.eye(len(own)) + tau * carry) @ undo
    return result


def _undone(slope: Floats) -> Floats:
    """(I + B)^-1 (d, d), bounded as :func:`two_way_map` says."""
    left, values, right = np.linalg.svd(np.eye(len(slope)) + slope)
    inverses = np.minimum(1.0 / np.clip(values, 1.0 / _STRETCH, _STRETCH), _STRETCH**2 * values)
    result: Floats = (right.T * inverses) @ left.T
    return result


@dataclass(frozen=True)
class Effects:
    """Predicted effects of one site, or of S of them along a first axis.

    Attributes:
        shift: (..., d) delta.
        scores: (..., K, d) precision times deviation, zero for absent classes: slopes are made of them.
        axes: (K, d) v_b (m_c - c).
    """

    shift: Floats
    scores: Floats
    axes: Floats

    @property
    def slope(self) -> Floats:
        """(..., d, d) B, which acts on m_c - c; zeros in the additive model."""
        result: Floats = np.swapaxes(self.scores, -1, -2) @ self.axes
        return result

    def coloured(self, whiten: Floats, colour: Floats) -> "Effects":
        """The same effects in the features' own units, by the symmetric roots (d, d) of :func:`two_way.whitening`."""
        return Effects(self.shift @ colour, self.scores @ colour, self.axes @ whiten)


def two_way_local(
    counts: Floats,
    means: Floats,
    class_means: Floats | None,
    shift_variance: float,
    residual_variance: float,
    slope_variance: float = 0.0,
) -> tuple[Effects, dict[str, Floats]]:
    """A site's step: its effects given the reference, and what it adds to the sums that update the reference.

    With a_c = 1 / (v_e + 1 / n_c) and M the rows m_c - c, let P = (diag(1 / a) + v_b M M^T)^-1, which is diag(a) in the
    additive model, and p = 1 / v_d + 1^T P 1. Then delta = 1^T P (mu - m) / p, of posterior variance 1 / p a coordinate. The
    scores are r = P (mu - m - delta), which is the inverse covariance of mu applied to mu - m. B = v_b r^T M, the effects on
    the class means are f = delta + v_b M M^T r, and the residual e has posterior mean v_e r and variance
    v_e - v_e^2 (P_cc - (P 1)_c^2 / p).

    Args:
        counts: (..., K) records or effective counts; 0 for an absent class. All arrays may hold S sites along a first axis.
        means: (..., K, d) in whitened space; those of absent classes are not read.
        class_means: (K, d) in whitened space; None before the first update, when no effect is taken out.
        shift_variance, residual_variance: v_d and v_e, positive.
        slope_variance: v_b, not negative; 0 is the additive model.

    Returns:
        The effects, and the summands ``weights`` (..., K) a_c; ``weighted`` (..., K, d) a_c (mu_c - f_c); ``shift`` (..., 2)
        squared size per coordinate of the shift and 1; ``residual`` (..., 2) the same of the residuals, and present classes.
    """
    k, d = means.shape[-2:]
    present = counts > 0.0
    a = np.where(present, 1.0 / (residual_variance + 1.0 / np.where(present, counts, 1.0)), 0.0)
    known = np.where(present[..., None], means, 0.0)
    if class_means is None:
        none = Effects(np.zeros((*counts.shape[:-1], d)), np.zeros_like(known), np.zeros((k, d)))
        nothing = np.zeros((*counts.shape[:-1], 2))
        return none, {"weights": a, "weighted": a[..., None] * known, "shift": nothing, "residual": nothing}
    spread = class_means - class_means.mean(axis=0)
    p = _precision(a, spread, slope_variance)
    rows = p.sum(axis=-1)
    total = 1.0 / shift_variance + rows.sum(axis=-1)
    deviation = known - class_means  # of an absent class anything: its row of p is 0
    shift = np.einsum("...c,...cd->...d", rows, deviation) / total[..., None]
    scores = p @ (deviation - shift[..., None, :])
    effects = Effects(shift, scores, slope_variance * spread)
    fitted = shift[..., None, :] + spread @ (effects.axes.T @ scores)
    diagonal = np.diagonal(p, axis1=-2, axis2=-1) - rows**2 / total[..., None]
    variance = np.where(present, residual_variance * (1.0 - residual_variance * diagonal), 0.0)
    size = residual_variance**2 * np.sum(scores**2, axis=(-2, -1)) / d + variance.sum(axis=-1)
    moved = np.sum(shift**2, axis=-1) / d + 1.0 / total
    anything = present.any(axis=-1)  # a site without any class would only repeat the prior; it takes no part
    return effects, {
        "weights": a,
        "weighted": a[..., None] * (known - fitted),
        "shift": np.stack([moved * anything, 1.0 * anything], axis=-1),
        "residual": np.stack([size, present.sum(axis=-1, dtype=np.float64)], axis=-1),
    }


def two_way_update(sums: Mapping[str, Floats], shift_variance: float, residual_variance: float) -> tuple[Floats, float, float]:
    """The next (class_means (K, d), v_d, v_e) from the summands of :func:`two_way_local` summed over sites.

    A class without weight gets the mean of the others. The variances are kept where nothing was summed for them.
    """
    known = _known(sums["weights"])
    if not known.any():
        raise ValueError("no class has weight at any site")
    class_means: Floats = sums["weighted"] / np.where(known, sums["weights"], 1.0)[:, None]
    class_means[~known] = class_means[known].mean(axis=0)
    return (class_means, _variance(sums["shift"], shift_variance), _variance(sums["residual"], residual_variance))


def slope_variance(sums: Mapping[str, Floats], class_means: Floats, shift_variance: float) -> float:
    """v_b = v_d / s^2, with s^2 the mean of |m_c - c|^2 over the classes that a site has.

    It is 0 where class means are one class's, or equal: a slope has nothing to turn.

    Args:
        sums: that the class means were made from by :func:`two_way_update`.
        class_means: (K, d) in whitened space.
        shift_variance: v_d.
    """
    spread = class_means - class_means.mean(axis=0)
    # Classes that no site has lie at the mean: they add nothing to the sum, and are not counted.
    size = float(np.sum(spread**2)) / float(_known(sums["weights"]).sum())
    return shift_variance / size if size > _STRUCTURE else 0.0


def _precision(weights: Floats, spread: Floats, variance: float) -> Floats:
    """(diag(1 / a) + v_b M M^T)^-1 (..., K, K) with zeros for absent classes, by a matrix whose eigenvalues are 1 or more."""
    roots = np.sqrt(weights)
    scaled = roots[..., None] * spread
    inner = np.eye(len(spread)) + variance * (scaled @ np.swapaxes(scaled, -1, -2))
    inverse = np.linalg.inv(inner)
    result: Floats = roots[..., :, None] * (inverse + np.swapaxes(inverse, -1, -2)) / 2.0 * roots[..., None, :]
    return result


def _known(weights: Floats) -> Bools:
    """Which classes any site has. Sums that arrive on a grid, or noised, leave about 0 where none has."""
    result: Bools = weights > 1e-9 * max(float(weights.max()), 0.0)
    return result


def _variance(summed: Floats, last: float) -> float:
    """Mean of what was summed; never 0, from which expectation maximisation would not return."""
    return max(float(summed[0] / summed[1]), 1e-12) if summed[1] > 0.5 else last
