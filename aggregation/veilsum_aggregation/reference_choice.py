"""Whether an alignment suits sites, from released moments: whether sites differ, and whether that is to go.

With three classes or more a class that is left out at a site tells: its mean is predicted from the other sites, without and
with a shift of the site that its other classes show (:func:`held_out_errors`). Where sites do not differ, no shift predicts.
A slope is not asked for: it is fitted to few classes, and one that is left out is predicted worse than it is then aligned.

With two classes the one that is left says little, and sites may differ because their patients do: a shift that goes with the
share of the ill is information, which a reference would take out. So for two classes the classifier itself is asked: moments
are split into two parts with independent errors, by adding noise to one and taking it off the other (Oliveira, Lei and
Tibshirani 2024; Neufeld et al. 2024), and what is made of one is tried on the other (:func:`two_class_accuracy`).

All is post-processing of released moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.heads import LinearHead
from veilsum_aggregation.mixed_effects import two_way_local, two_way_update
from veilsum_aggregation.two_way import SiteMoments, effective_counts, fit_two_way, pooled_within, whitening

Blocks = Mapping[str, Floats]
MOST_CELLS, MOST_PRODUCTS = 500, 2e10
"""Classes at sites that are left out in turn, at most, and products that this may take; evenly chosen among all."""

ROUNDS_WITHOUT = 5
"""Rounds of a fit after a class was left out at a site, from the fit with it."""


def held_out_errors(site: SiteMoments, *, rounds: int = 10) -> tuple[float, float] | None:
    """Mean squared errors, per coordinate of whitened space, of class means that are predicted without the class at its site.

    Classes of a site count by their records, sites alike. What noise and sampling put into the mean left out is the same in
    both, and in nothing that it is predicted from, but for the variances of the model.

    Args:
        site: moments of all sites.
        rounds: of the fit before a class is left out.

    Returns:
        The error by the class's mean at the other sites, and by that of the additive model; None where no class is at two
        sites, so that nothing can be predicted.
    """
    whiten, _, _ = whitening(pooled_within(site.within, site.degrees))
    counts = effective_counts(site.counts, site.sums_std, whiten)
    means: Floats = np.where(counts[:, :, None] > 0.0, site.means, 0.0) @ whiten
    cells = np.argwhere((counts > 0.0) & ((counts > 0.0).sum(axis=0) > 1))
    if not len(cells):
        return None
    s, k, d = means.shape
    most = min(len(cells), MOST_CELLS, max(16, int(MOST_PRODUCTS / (s * k**2 * (k + d)))))
    fitted = fit_two_way(site, rounds=rounds)
    variances = fitted.shift_variance, fitted.residual_variance
    weights, plain, shifted = [], [], []
    for row, label in cells[np.unique(np.linspace(0, len(cells) - 1, most).astype(int))]:
        kept, class_means = counts.copy(), fitted.class_means @ whiten
        kept[row, label] = 0.0
        for _ in range(ROUNDS_WITHOUT):
            parts = two_way_local(kept, means, class_means, *variances)[1]
            class_means = two_way_update({name: part.sum(axis=0) for name, part in parts.items()}, *variances)[0]
        shift = two_way_local(kept[row], means[row], class_means, *variances)[0].shift
        own = means[row, label]
        weights.append(site.counts[row, label] / site.counts[row].sum())
        plain.append(np.sum((own - kept[:, label] @ means[:, label] / kept[:, label].sum()) ** 2) / d)
        shifted.append(np.sum((own - class_means[label] - shift) ** 2) / d)
    return float(np.average(plain, weights=weights)), float(np.average(shifted, weights=weights))


@dataclass(frozen=True)
class HalvedMoments:
    """Two parts of sites' class moments with independent errors.

    Attributes:
        fit: blocks of each site to make a classifier of, and ``noise`` the standard deviation of their noise.
        tried: blocks of each site to try it on.
    """

    fit: list[dict[str, Floats]]
    noise: dict[str, float]
    tried: list[dict[str, Floats]]


def split(
    sites: Sequence[Blocks], noise: Mapping[str, float], within: Floats, ratio: float, rng: np.random.Generator
) -> HalvedMoments:
    """Split class moments into parts whose errors, of variance v before, are independent, of v (1 + r^2) and v (1 + r^-2).

    The noise of every block is split, and of class sums the sampling error as well, with which second moments move along.

    Args:
        sites: blocks ``counts`` (K,), ``sums`` (K, m), ``squares`` (m,) and ``products`` (m (m - 1) / 2,) of each site.
        noise: standard deviation of an entry of each block.
        within: (m, m) within-class covariance, of which sampling errors are made.
        ratio: r; below 1 the part to fit to has less noise than the other.
        rng: of what is added and taken off.
    """
    values, vectors = np.linalg.eigh((within + within.T) / 2.0)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    fit: list[dict[str, Floats]] = []
    tried: list[dict[str, Floats]] = []
    for blocks in sites:
        drawn = {name: noise.get(name, 0.0) * rng.standard_normal(array.shape) for name, array in blocks.items()}
        counts = np.maximum(blocks["counts"], 0.0)[:, None]
        sampled = np.sqrt(counts) * (rng.standard_normal(blocks["sums"].shape) @ root.T)
        for part, factor in ((fit, ratio), (tried, -1.0 / ratio)):
            moved = {name: array + factor * drawn[name] for name, array in blocks.items()}
            sums = blocks["sums"] + factor * sampled
            moved["sums"] = moved["sums"] + factor * sampled
            known = np.maximum(counts, 1.0)
            change = (sums / known).T @ sums - (blocks["sums"] / known).T @ blocks["sums"]
            moved["squares"] = moved["squares"] + np.diag(change)
            if "products" in moved:
                moved["products"] = moved["products"] + change[np.triu_indices(len(change), 1)]
            part.append(moved)
    return HalvedMoments(fit, {name: std * (1.0 + ratio**2) ** 0.5 for name, std in noise.items()}, tried)


def two_class_accuracy(
    head: LinearHead, maps: Sequence[AffineMap], sites: Sequence[Blocks], counts: Floats, spreads: Sequence[Floats]
) -> float:
    """Share of two classes' records that a linear head tells rightly where classes are normal, averaged over the sites.

    With scores that differ by w x + b, of a class of mean m and covariance S it tells Phi((w m + b) / sqrt(w S w)) rightly.

    Args:
        head: over both classes.
        maps: of each site, through which its records go before.
        sites: blocks ``sums`` (2, m) of each site.
        counts: (sites, 2) records; a class of none is not read, a site of none not counted.
        spreads: (m, m) within-class covariance of each site.
    """
    found = []
    for mapped, blocks, number, spread in zip(maps, sites, counts, spreads, strict=True):
        if not number.sum() > 0.0:
            continue
        apart = head.weights[1] - head.weights[0]
        w, b = apart @ mapped.matrix, float(apart @ mapped.offset + head.bias[1] - head.bias[0])
        means = blocks["sums"] / np.where(number > 0.0, number, 1.0)[:, None]
        width = max(float(w @ spread @ w), 1e-300) ** 0.5
        found.append(float(number @ ndtr(np.array([-1.0, 1.0]) * (means @ w + b) / width) / number.sum()))
    return float(np.mean(found)) if found else 0.0
