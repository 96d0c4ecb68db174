"""Standard errors of a fit that are clustered by site, from each site's noised score at the estimate.

Where effects differ between sites, those of one site err alike, and errors of independent records are too small for any site
but these. The sandwich (Liang and Zeger 1986) takes the scores s_k of whole sites for its middle: with the change U s_k of
the coefficients for a score, the variance of a combination w is K / (K - 1) sum_k (w' U s_k)^2, referred to Student's t with
K - 1 degrees (Cameron and Miller 2015). The scores of an exact fit add up to 0; here their mean is subtracted, which takes off
what the fit's own noise adds to all of them alike.

Each score comes with noise of a known variance, which adds K s^2 |U' w|^2 = h to that. Subtracting it from so few degrees of
freedom gives intervals that are too short, and below 0 none at all. Instead the uncertainty of the scores' variance is carried
through: if q was measured, the variance before the noise is q (K - 1) / c - h with c chi-squared of K - 1 degrees, as in
generalised confidence intervals (Weerahandi 1993). The estimate's error is then a normal with that variance, and the fit's own
noise, mixed over c. Without noise it is Student's t exactly. What noise hides is taken to be no less than the smaller of h and
the errors of independent records: without it the interval would be short where noise happens to cancel the scores.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import FLAT, Answer, Figure, NotEstimable, Test
from veilsum_aggregation.regression import NO_REST, Fit

FEWEST_SITES = 3
"""With two, the quantile of Student's t is 12.7."""

LEVEL = 0.05

SCORE_NOISE = 0.3
"""The bound of a record's score is so large that the noise is this share of the sampling error of a site's score."""


def score_bound(spread: float, std: float, least: float, most: float) -> float:
    """B, to which records' scores are shortened: where there is less noise, fewer are.

    Args:
        spread: sampling error of a value of a site's score.
        std: of the noise in it if B = 1.
        least, most: B lies between these.
    """
    return most if std == 0.0 else min(max(SCORE_NOISE * spread / std, least), most)


@dataclass(frozen=True)
class SiteErrors:
    """The errors of one estimate.

    Attributes:
        middle: q, K / (K - 1) times the sum of squares of what the sites' scores change, noise included.
        hidden: h, what their noise adds to it on average.
        noise: variance of the estimate by the noise of the fit.
        sampling: variance of the estimate if records are independent.
        sites: K.
    """

    middle: float
    hidden: float
    noise: float
    sampling: float
    sites: int

    @property
    def least(self) -> float:
        """The least value of the variance that noise hides."""
        return min(self.hidden, self.sampling)

    @cached_property
    def _variances(self) -> Floats:
        shares, _ = _chi_squared_nodes(self.sites - 1)
        return np.asarray(np.maximum(self.middle * shares - self.hidden, self.least) + self.noise)

    def beyond(self, distance: float) -> float:
        """Probability of an error of more than ``distance`` to either side."""
        from scipy.special import ndtr  # slow to import, and few results need it

        _, weights = _chi_squared_nodes(self.sites - 1)
        return float(weights @ (2.0 * ndtr(-distance / np.sqrt(np.maximum(self._variances, 1e-300)))))

    def half_width(self) -> float:
        """Half the length of the interval that errs with a probability of 5%."""
        from scipy.optimize import brentq

        longest = math.sqrt(self.middle + self.least + self.noise)
        if longest == 0.0:
            return 0.0
        while self.beyond(longest) > LEVEL:
            longest *= 2.0
        return float(brentq(lambda distance: self.beyond(distance) - LEVEL, 0.0, longest, xtol=1e-12 * longest, rtol=1e-12))

    def figure(self, value: float) -> Figure:
        """The estimate with its errors, that of the sites in place of sampling's."""
        half, between = self.half_width(), max(self.middle - self.hidden, self.least)
        errors = math.sqrt(self.noise), math.sqrt(between)
        return Figure(value, *errors, value - half, value + half, significance=self.beyond(abs(value)))


@lru_cache(maxsize=64)
def _chi_squared_nodes(degrees: int) -> tuple[Floats, Floats]:
    """Values of degrees / c and their weights, for means over c: by Gauss and Legendre's rule in the root of c's rank."""
    from scipy.special import gammaincinv

    nodes, weights = np.polynomial.legendre.leggauss(200)
    rank = (nodes + 1.0) / 2.0
    return degrees / (2.0 * gammaincinv(degrees / 2.0, rank**3)), weights / 2.0 * 3.0 * rank**2


@dataclass(frozen=True)
class ClusteredFit(Fit):
    """A fit whose intervals are clustered by site; coefficients and the joint test are those of the fit.

    Attributes:
        fit: with the errors of independent records.
        scores: of each site, (K, q).
        std: of the noise in each value of them.
        influence: U (coefficients, q), the change of the coefficients for a score.
    """

    fit: Fit
    scores: Floats
    std: float
    influence: Floats

    @property
    def coefficients(self) -> Floats:
        return self.fit.coefficients

    @property
    def untold(self) -> Floats:
        return self.fit.untold

    @property
    def covariances(self) -> tuple[Floats, Floats]:
        """Covariances of the coefficients (p, p): by the fit's noise, and by the sandwich less what scores' noise adds."""
        sites = len(self.scores)
        moved = (self.scores - self.scores.mean(axis=0)) @ self.influence.T
        middle = sites / (sites - 1) * moved.T @ moved - sites * self.std**2 * self.influence @ self.influence.T
        return self.fit.covariances[0], np.asarray(middle)

    @property
    def drowned(self) -> NotEstimable | None:
        if len(self.scores) < FEWEST_SITES:
            return NotEstimable(
                f"errors clustered by site need {FEWEST_SITES} sites; {len(self.scores)} took part", "more sites"
            )
        return self.fit.drowned

    def combination(self, weights: Floats) -> Answer:
        told = self.drowned or self.fit.combination(weights)
        if isinstance(told, NotEstimable):
            return told
        sites, direction = len(self.scores), self.influence.T @ weights
        hidden = sites * self.std**2 * float(direction @ direction)
        middle = self._middle(direction)
        if middle + told.noise_error**2 <= FLAT * told.sampling_error**2:
            return NO_REST
        found = SiteErrors(middle, hidden, told.noise_error**2, told.sampling_error**2, sites).figure(told.value)
        if math.isfinite(told.half_width):
            return found
        return replace(found, low=min(found.low, told.low), high=max(found.high, told.high), significance=told.p_value)

    def _middle(self, direction: Floats) -> float:
        """q of the scores' changes in a direction (q,)."""
        changes = self.scores @ direction
        return len(changes) / (len(changes) - 1) * float(np.sum((changes - changes.mean()) ** 2))

    def all_slopes(self) -> Test | NotEstimable:
        return self.fit.all_slopes()
