"""The mixed model of class means at sites, one round of its fit at a time: class structure, site shifts and site slopes.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Bools, Floats

_STRUCTURE = 1e-6
"""Mean squared distance of class means, in standard deviations within classes, below which they have no structure to turn."""


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

    def coloured(self, whiten: Floats, colour: Floats) -> Effects:
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
    return (
        class_means,
        _variance(sums["shift"], shift_variance),
        _variance(sums["residual"], residual_variance),
    )


def slope_variance(sums: Mapping[str, Floats], class_means: Floats, shift_variance: float) -> float:
    """v_b = v_d / s^2, with s^2 the mean of |m_c - c|^2 over the classes that a site has.

    It is 0 where class means are one class's, or equal: there is no structure that a slope could turn.

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
