"""From class moments of each site to those of all, after each site's affine map: what a second release would give, free.

An affine map turns moments into moments, so what is learnt from class moments after an alignment needs no release but the
alignment's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from veilsum_aggregation.alignment import mapped_moments
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.references import site_blocks


def joined(release: Release, maps: Sequence[AffineMap] | None = None) -> Release:
    """The joint release that a per-site one of class moments adds up to, with second moments pooled over the classes.

    A site's are mapped by :func:`veilsum_aggregation.alignment.mapped_moments`. The noise of a mean or a central moment is
    turned by A alone: stated are root mean squares over the entries, sqrt(sum_k g_k) for sums and sqrt(sum_k g_k^2) for
    second moments, with the gains g_k = tr(A_k A_k^T) / m.

    Args:
        release: of class moments per site, with pooled second moments.
        maps: one a site, in the cohort's order; None for none.
    """
    sites = site_blocks(release)
    width = release.values["sums"].shape[-1]
    own = [AffineMap.identity(width)] * len(sites) if maps is None else maps
    moved = [mapped_moments(blocks, mapped) for blocks, mapped in zip(sites, own, strict=True)]
    gains = np.array([float(blocks.pop("gain")[0]) for blocks in moved])
    values: dict[str, Floats] = {name: np.asarray(sum(blocks[name] for blocks in moved)) for name in moved[0]}
    factors = {"counts": len(own) ** 0.5, "sums": float(gains.sum()) ** 0.5}
    both = float(np.sum(gains**2)) ** 0.5
    noise = {name: std * factors.get(name, both) for name, std in release.noise_std.items()}
    return replace(release, values=values, noise_std=noise)


def mapped_at_sites(kept: Release, aligned: Release) -> Release:
    """A release of the task "aligned-moments", with the noise that it holds: that of what the sites kept, as turned by maps.

    Args:
        kept: the sum of what the sites kept, whose noise is known.
        aligned: the sum after each site's map; its block ``gain`` is the sum of g_k as in :func:`joined`.
    """
    values = {name: array for name, array in aligned.values.items() if name != "gain"}
    gain = float(aligned.values["gain"][0]) / len(aligned.cohort)
    factors = {"counts": 1.0, "sums": max(gain, 0.0) ** 0.5}
    noise = {name: std * factors.get(name, gain) for name, std in kept.noise_std.items() if name in values}
    return replace(aligned, values=values, noise_std=noise)
