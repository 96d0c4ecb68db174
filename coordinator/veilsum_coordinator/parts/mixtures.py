"""Class mixtures from releases of the task "class-mixtures": of each site or of all, one component a class or several.

A record belongs to the nearest of its class's public centres, so several components take several releases: the first tells
each class's mean and spread, from which centres are laid out; each further one moves them to the means of their records.
Everything here is post-processing of releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.mixtures import Mixture, mixture_from_moments
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_coordinator.parts.federation import Release

Sampling = Literal["equal", "counts"]

SPREAD_OF_CENTRES = 0.5
"""Distance of the first centres from the class mean along each feature, as a share of the class's standard deviation."""


@dataclass(frozen=True)
class Components:
    """Moments of the components of each class in one release.

    Attributes:
        counts: (R, K, G): R is the participants of the study in their order where it is per site, else 1.
        sums, squares: (R, K, G, d).
        counts_std, sums_std, squares_std: noise of one entry of each.
    """

    counts: Floats
    sums: Floats
    squares: Floats
    counts_std: float
    sums_std: float
    squares_std: float

    @classmethod
    def of(cls, release: Release, participants: Sequence[str], *, per_site: bool) -> Components:
        """The components of a release; zeros for participants that are not in it."""
        values, noise = release.values, release.noise_std
        if per_site:
            rows = [participants.index(name) for name in release.cohort]
            placed = {}
            for name, found in values.items():
                placed[name] = np.zeros((len(participants), *found.shape[1:]))
                placed[name][rows] = found
        else:
            placed = {name: found[None] for name, found in values.items()}
        return cls(placed["counts"], placed["sums"], placed["squares"], noise["counts"], noise["sums"], noise["squares"])

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Components (R, K, G) whose count is beyond its noise."""
        found: NDArray[np.bool_] = self.counts > max(NOISE_FLOOR * self.counts_std, 0.0)
        return found

    def mixtures(self, sampling: Sampling) -> list[Mixture | None]:
        """The mixture of each class over all rows; None where even all of it together is within the noise.

        A component's variances are shrunk towards the class's pooled ones (:func:`mixture_from_moments`). Weights are the
        released counts, or with ``equal`` sampling the same for each row that has the class, and by counts within it.
        """
        result: list[Mixture | None] = []
        d = self.sums.shape[-1]
        for c in range(self.counts.shape[1]):
            counts, usable = self.counts[:, c], self.usable[:, c]
            mixture = mixture_from_moments(
                counts.ravel(),
                self.sums[:, c].reshape(-1, d),
                self.squares[:, c].reshape(-1, d),
                counts_std=self.counts_std,
                sums_std=self.sums_std,
                squares_std=self.squares_std,
            )
            if mixture is not None and sampling == "equal" and usable.any():
                known: Floats = np.where(usable, counts, 0.0)
                rows = known.sum(axis=1, keepdims=True)
                share = (known / np.where(rows > 0.0, rows, 1.0))[usable]
                mixture = Mixture(share / share.sum(), mixture.means, mixture.variances)
            result.append(mixture)
        return result

    def first_centres(self, components: int, seed: int) -> Floats:
        """Centres (R, K, components, d) around the mean of each row's class, from a release of one component a class.

        They lie at :data:`SPREAD_OF_CENTRES` standard deviations in random directions, the same for all rows and classes.
        Where a row's class is within its noise, the class's mean over all rows stands in; where that is too, zeros.
        """
        rows, k, _, d = self.sums.shape
        directions = SPREAD_OF_CENTRES * np.random.default_rng(seed).standard_normal((components, d))
        result = np.zeros((rows, k, components, d))
        for c, mixture in enumerate(self.mixtures("counts")):
            if mixture is None or mixture.variances is None:
                continue
            mean, variance = mixture.weights @ mixture.means, mixture.weights @ mixture.variances
            usable = self.usable[:, c, 0]
            own, spread = np.tile(mean, (rows, 1)), np.tile(variance, (rows, 1))
            if usable.any():
                own[usable], spread[usable] = mixture.means, mixture.variances
            result[:, c] = own[:, None] + np.sqrt(spread)[:, None] * directions
        return result

    def moved_centres(self, centres: Floats) -> Floats:
        """The means (R, K, G, d) of the components; a component within its noise stays where it was."""
        usable = self.usable[..., None]
        counts = np.where(usable, self.counts[..., None], 1.0)
        return np.where(usable, self.sums / counts, centres)
