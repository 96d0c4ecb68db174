"""Standard errors of a fit that hold where its variance does not: the sandwich of records' noised scores (White 1980).

With the change U s of the coefficients for a score s, and M the sum of s s' over all records, their covariance is U M U'
whatever the variance of the outcome at each record, n / (n - p) times as much in small samples (HC1 of MacKinnon and White
1985). M is released with isotropic noise, standard deviation t on the diagonal and t / sqrt 2 beside it, so a variance
w'U M U'w has noise of t |U'w|^2. As the residual variance of a linear fit, it is taken one standard error above its
estimate, so that no interval is short because noise made it so; where that is more than half of what the interval is made
of, the noise of the coefficient among it, it is not told.

Of odds and rates U is the inverse of the released information, whose records have the weights of their scores.

The sandwich knows of a rare term only what its few records show: where none of three has the event, that they do not vary. The
fitted mean of such a cell has a variance of k times b^2, b being what one record with the event moves it by, and that k is
the estimate of a mean of which it tells little if it is small: sqrt(k^2 + 25) stands in its place, with which Wald's interval
of a Poisson mean covers .93 or more from a mean of .05 on. From 25 events on an interval is less than 1% longer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.cells import two_cells
from veilsum_aggregation.figures import FLAT, Answer, NotEstimable, Test
from veilsum_aggregation.regression import NO_REST, Fit

MOST_NOISE = 0.5
"""Noise of a robust variance, as a share of the variance that the interval has, up to which it is told. Of the robust variance
alone it would choose among results: that is larger where the noise of the scores led away from the records."""

FEW = 5.0
"""Squared residuals that count as few, in records with the event."""

WITHIN_NOISE = NotEstimable(
    "the robust variance is within its noise", "more records or epsilon, fewer terms, or the model's errors"
)


@dataclass(frozen=True)
class RobustFit(Fit):
    """A fit with robust errors; coefficients are those of the fit.

    Attributes:
        fit: with the errors of its own variance.
        products: M (q, q).
        std: t, of the noise on the diagonal of M.
        influence: U (p, q), the change of the coefficients for a score.
        records: n, noised.
        cells: mean terms (m, p) of all records, then of each cell that a term tells apart; empty if none are looked at.
        leverages: of each, one record's share in what is fitted to it (m,).
        known: variance of what is fitted to a cell as the fit itself tells it, 0 where it does not (m,): of scores that are
            shortened the released products know too little.
        lopsided: squared residual of a record with the event, in variances about the fit; 2 is that of a normal outcome.
        largest: squared residual that no record exceeds.
    """

    fit: Fit
    products: Floats
    std: float
    influence: Floats
    records: float
    cells: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    leverages: Floats = field(default_factory=lambda: np.zeros(0))
    known: Floats = field(default_factory=lambda: np.zeros(1))
    lopsided: float = 2.0
    largest: float = math.inf

    @property
    def coefficients(self) -> Floats:
        return self.fit.coefficients

    @property
    def untold(self) -> Floats:
        return self.fit.untold

    @property
    def untested(self) -> Floats:
        return self.fit.untested

    @property
    def drowned(self) -> NotEstimable | None:
        return self.fit.drowned

    @property
    def _correction(self) -> float:
        """n / (n - q), with q the coefficients that the records tell."""
        told = self.influence.shape[1]
        return self.records / max(self.records - told, 1.0) if self.records > told else 1.0

    @cached_property
    def _middle(self) -> Floats:
        """M one standard error of its noise above the estimate in every direction, and nowhere below it."""
        values, vectors = np.linalg.eigh(self.products + self.std * np.eye(len(self.products)))
        return np.asarray((vectors * np.maximum(values, self.std)) @ vectors.T, dtype=np.float64)

    @cached_property
    def covariances(self) -> tuple[Floats, Floats]:
        noise, model = self.fit.covariances
        sampling = self._correction * self.influence @ self._middle @ self.influence.T
        return noise, sampling + self._of_few(sampling, model) if self.cells.size else sampling

    def _of_few(self, sampling: Floats, model: Floats) -> Floats:
        """What cells of few events add, (p, p): in the direction in which a cell's fitted mean moves the coefficients."""
        moves = self.cells @ model
        of_model, own = (np.sum(each * self.cells, axis=1) for each in (moves, self.cells @ sampling))
        of_model = np.maximum(of_model, 1e-3 * of_model[0] + 1e-150)  # hardly less than of all records
        dispersion = own[0] / of_model[0]
        event = np.minimum(self.lopsided * dispersion * of_model, self.largest * self.leverages) * self.leverages  # b^2
        more = np.hypot(np.maximum(own, self.known), FEW * event) - own
        return np.asarray((moves.T * (more / of_model**2)) @ moves)

    def combination(self, weights: Floats) -> Answer:
        if (drowned := self.drowned or self.fit.hidden(weights)) is not None:
            return drowned
        noise, sampling = (float(weights @ matrix @ weights) for matrix in self.covariances)
        direction = self.influence.T @ weights
        if self._correction * self.std * float(direction @ direction) > MOST_NOISE * (noise + sampling) > 0.0:
            return WITHIN_NOISE
        if noise + sampling <= FLAT * float(weights @ self.fit.covariances[1] @ weights):
            return NO_REST
        return self.fit.figure(weights, noise, sampling)

    def all_slopes(self) -> Test | NotEstimable:
        """That of the fit by the robust covariance, if the variance of every combination of slopes is beyond its noise."""
        if (drowned := self.drowned) is not None:
            return drowned
        noise, sampling = self.covariances
        slopes, whole = self._told_slopes(), (noise + sampling)[1:, 1:]
        values, vectors = np.linalg.eigh(slopes.T @ whole @ slopes)
        vary = values > FLAT * max(float(values.max(initial=0.0)), 0.0)
        directions = self.influence[1:].T @ slopes @ vectors[:, vary] / np.sqrt(values[vary])
        if self._correction * self.std * float(np.linalg.norm(directions, 2) ** 2 if directions.size else 0.0) > MOST_NOISE:
            return WITHIN_NOISE
        return self.fit.wald(noise, sampling)


def spread_of(mean: float, square: float, least: float) -> float:
    """The standard deviation of an outcome by its noised mean and mean square, at least ``least``."""
    return max(math.sqrt(max(square - mean**2, 0.0)), least)


def mean_terms(gram: Floats, categories: Sequence[Sequence[int]]) -> Floats:
    """Mean terms (m, p) of all records, and then of every cell that a single term tells apart from the others.

    Args:
        gram: A (p, p) of (1, terms), terms in [-1, 1].
        categories: places of the terms that are levels of one category, whose first level has none.
    """
    mean = gram[0] / max(float(gram[0, 0]), 1.0)
    rows = [mean[None]]
    for places in categories:
        levels = np.repeat(mean[None], len(places) + 1, axis=0)
        levels[:, list(places)] = np.eye(len(places) + 1)[:, 1:]
        rows.append(levels)
    levelled = {place for places in categories for place in places}
    rows += [two_cells(gram, place)[0] for place in range(1, len(gram)) if place not in levelled]
    return np.vstack(rows)
