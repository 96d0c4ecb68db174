"""Generalised linear models by a few noised Newton steps in whitened coordinates.

A first release gives the Gram matrix A of the terms z = (1, x). With W = (A / n)^(-1/2), coefficients are beta = W gamma: in
gamma the information is near n v I, so one length bounds all records well and one noise suits all directions. Each later
release gives the score and the information at one gamma,

    g = sum c^2 z_w (y - mu),   H = sum c^2 v z_w z_w',   z_w = W z,  c = min(1, C / |z_w|),

and the next gamma is a Newton step of all releases so far: older scores are moved along H. Scores are weighted by the terms
alone, so each is an unbiased estimating equation, and the last gamma's error is that of the scores' sum. Measured:
docs/results.md, "Regression". One step from a noised gamma is not the solution, for which it is solved in a term's cells
(:mod:`veilsum_aggregation.cells`).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.cells import Cells, Path
from veilsum_aggregation.families import Family, link
from veilsum_aggregation.figures import FLAT, Z95, Answer, Figure, NotEstimable, Test, chi_squared
from veilsum_aggregation.regression import Fit, told_directions, too_weak

REACH = 1.25
"""C in units of sqrt p, the root mean square of |z_w|: hardly a record is shortened."""

UNSHORTENED = 30.0
"""The same without noise, where length costs nothing: the fit is that of all records alike."""

OLD_INFORMATION, OLD_SCORE = 0.3, 0.1
"""What a release's information and score count against those of the next one, beside their variances: it was of a gamma
farther from the end."""

NOISY_STEPS = 3
"""Releases of a study with noise. Results of studies without, of so many releases, are computed as they were."""

LONGEST_STEP = 2.0
"""Radius in gamma of one step: at 1 a typical record's linear predictor changes by 1."""

WEAKEST, WEAKEST_STEP = 1.0, 0.5
"""The noise of H, as a share of its smallest eigenvalue, up to which intervals hold (measured): of fits that are solved in
cells, and of a step alone. H is lifted to its noise; a rule far above that would choose studies in which noise made H large:
their steps are too short, and stay near a point whose own error is in no interval."""

HIDDEN = NotEstimable("noise may hide that each slope is 0", "more records or epsilon, or merge levels")
"""Of a test whose slopes all have intervals that are open towards 0."""

EXCESS = 0.98
"""Largest part of the information that the score's variance is taken to lack because of shortening."""

FLOOR = 2.0
"""Eigenvalues of the Gram matrix are lifted to so many times its noise before they divide."""


def whitening(gram: Floats, std: float, grain: float = 0.0) -> Floats:
    """W (p, k) of a noised Gram matrix whose first entry is the number of records: of the k combinations that are told.

    It is symmetric where all are (:func:`~veilsum_aggregation.regression.told_directions`).
    """
    told, untold = told_directions(gram, std, grain)
    inner = told.T @ gram @ told if untold.size else gram
    if not told.size:
        return told
    values, vectors = np.linalg.eigh(inner)
    least = max(FLOOR * std * math.sqrt(2.0 * len(inner)), FLAT * max(float(values[-1]), 1e-300))
    number = max(float(gram[0, 0]), least)
    whiten = (vectors / np.sqrt(np.maximum(values, least) / number)) @ vectors.T
    return np.asarray(told @ whiten if untold.size else whiten, dtype=np.float64)


def padded(values: Floats, p: int) -> Floats:
    """A matrix (p, k) or vector (k,) with zeros up to (p, p) or (p,), as sites take it."""
    return np.pad(values, [(0, p - values.shape[0])] if values.ndim == 1 else [(0, 0), (0, p - values.shape[1])])


def first_point(family: Family, gram: Floats, outcomes: Floats, whiten: Floats, most: float, offset: float = 0.0) -> Floats:
    """gamma (k,) after one step from the model without terms.

    Args:
        gram: A (p, p).
        outcomes: sum c^2 z y, (p,), with the weights of ``gram``.
        whiten: W (p, k).
        most: largest mean of counts.
        offset: about what records' offsets add to the linear predictor.
    """
    number = max(float(gram[0, 0]), 1e-9)
    smallest, largest = (0.02, 0.98) if family == "logistic" else (1e-3 * most, most)
    mean = min(max(float(outcomes[0]) / number, smallest), largest)
    variance = mean * (1.0 - mean) if family == "logistic" else mean
    null = np.zeros(len(gram))
    null[0] = link(family, mean) - offset
    step = whiten.T @ (outcomes - mean * gram[:, 0]) / (variance * number)
    return np.asarray(np.linalg.pinv(whiten) @ null + limited(step), dtype=np.float64)


def limited(step: Floats, longest: float = LONGEST_STEP) -> Floats:
    """A step (p,) in gamma, shortened to ``longest``."""
    length = float(np.linalg.norm(step))
    return step * min(1.0, longest / length) if length > 0.0 else step


def release_shares(stds: Sequence[float], older: float) -> Floats:
    """What each release counts in a mean of all, by the variance of its noise and ``older`` for each later one.

    Of more than three without noise the last one alone counts: steps are then Newton's own, and converge as those do.
    """
    exact = [std for std in stds if std > 0.0]
    if not exact and len(stds) > NOISY_STEPS:
        return np.asarray(np.eye(len(stds))[-1], dtype=np.float64)
    weights = [
        older ** (len(stds) - 1 - place) / (std**2 if len(exact) == len(stds) else 1.0) for place, std in enumerate(stds)
    ]
    return np.array(weights) / sum(weights)


STILL = 0.25
"""Step in gamma at which a model still moves, whatever its error: where terms separate the outcomes, steps stay near 1 and
errors grow with them. What noise moves comes on top, :data:`TAIL` of its standard deviations."""

TAIL = 6.0

MOVING, SETTLED, SEPARATING = 0.05, 1e-3, 1.5
"""Without noise, a coefficient of a term in [-1, 1] has not settled that the last step moved by so much, and by this share of
its error: six steps settle what they can. What separates the outcomes moves by about 1 at most at each."""


def unconverged(step: Floats, noise: Floats, sampling: Floats) -> NotEstimable | None:
    """What to say where the last step d (k,) leaves an error of about |d| d / 2, for the curvature that it did not know of.

    Args:
        noise, sampling: covariances of gamma (k, k).
    """
    left, of_noise = float(np.linalg.norm(step)) * np.abs(step), np.diag(noise)
    if np.all(left <= np.sqrt(of_noise + np.diag(sampling))) and np.all(np.abs(step) <= STILL + TAIL * np.sqrt(of_noise)):
        return None
    return NotEstimable(
        "the last step was too long for the model to have converged",
        "more records or epsilon, fewer terms, none that separates the outcomes; or an outcome that is less rare",
    )


def nothing() -> Floats:
    """No directions, (0, 0)."""
    return np.zeros((0, 0))


def without(step: Floats, whiten: Floats, apart: Floats) -> Floats:
    """A step (k,) in gamma less what it moves the combinations ``apart`` (p, m) of coefficients."""
    if not apart.size:
        return step
    directions, _ = np.linalg.qr(np.linalg.pinv(whiten) @ apart)
    return np.asarray(step - directions @ (directions.T @ step), dtype=np.float64)


class Noised(Protocol):
    """A release: the noise of its score and of its information."""

    @property
    def score_std(self) -> float: ...

    @property
    def information_std(self) -> float: ...


class SolvedFit(Fit):
    """A fit by noised steps, of which the last is solved in the cells of the term that a figure is of.

    Attributes:
        cells: of records; None for figures of the step alone.
        releases: in order, one or more.
        apart: combinations (p, m) of coefficients that are told apart from the others.
    """

    apart: Floats
    cells: Cells | None
    releases: Sequence[Noised]

    @property
    @abstractmethod
    def last_step(self) -> tuple[Path, Floats]:
        """How the last step was come to, and the step (p,)."""

    @property
    @abstractmethod
    def gamma_information(self) -> tuple[Floats, float]:
        """The information of gamma (k, k) before it is floored, and the noise on its diagonal."""

    @property
    def reach(self) -> float:
        """The operator norm that its noise has, about s sqrt(2 k)."""
        return self.gamma_information[1] * math.sqrt(2.0 * len(self.gamma_information[0]))

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        values, vectors = np.linalg.eigh(self.gamma_information[0])
        return values, vectors

    @property
    def smallest(self) -> float:
        """Its smallest eigenvalue."""
        return float(self._spectrum[0][0])

    @cached_property
    def floored(self) -> Floats:
        """It (k, k) with no eigenvalue below its noise."""
        values, vectors = self._spectrum
        least = max(self.reach, FLAT * float(np.abs(values).max()), 1e-300)
        return np.asarray((vectors * np.maximum(values, least)) @ vectors.T, dtype=np.float64)

    @cached_property
    def shares(self) -> tuple[Floats, Floats]:
        """What the score and the information of each release count (r,)."""
        scores = release_shares([release.score_std for release in self.releases], OLD_SCORE)
        return scores, release_shares([release.information_std for release in self.releases], OLD_INFORMATION)

    @property
    def weakest(self) -> float:
        """:data:`WEAKEST` of this fit."""
        return WEAKEST if self.cells is not None else WEAKEST_STEP

    def hidden(self, weights: Floats) -> NotEstimable | None:
        """Also a combination that moves: however rare its term is, which the step of all together may not show."""
        if (untold := super().hidden(weights)) is not None or not self._moves(weights):
            return untold
        return NotEstimable(
            f"the last step still moved {self.named(weights) or 'the term'}, which may separate the outcomes",
            "leave it out, or merge it with another",
        )

    def _moves(self, weights: Floats) -> bool:
        if self.gamma_information[1] > 0.0:
            return False  # what noise moves, intervals hold
        moved, variance = abs(float(weights @ self.last_step[1])), float(weights @ self.covariances[1] @ weights)
        return moved > max(MOVING * float(np.abs(weights).max()), SETTLED * math.sqrt(max(variance, 0.0)))

    @property
    def moving(self) -> Floats:
        """Coefficients (p, m) that the last step still moves."""
        unit = np.eye(self.p)
        return unit[:, [self._moves(own) for own in unit]]

    @property
    def aside(self) -> Floats:
        """What the length of the step is not judged by (p, m): it is told, or not, by itself."""
        moving, longest = self.moving, float(np.abs(self.last_step[1]).max())
        return moving if moving.size and longest < SEPARATING else self.apart

    @property
    def untested(self) -> Floats:
        return np.hstack([self.untold.reshape(self.p, -1), self.moving])

    def figure(self, weights: Floats, noise: float, sampling: float) -> Answer:
        """By the step's ends, each solved in its cells; an end is open where noise may have hidden all events of a cell."""
        path, step = self.last_step
        contrast = self.cells.contrast(weights, path) if self.cells is not None and noise > 0.0 else None
        if contrast is None:
            return super().figure(weights, noise, sampling)
        start, reach = float(weights @ path.points[-1]), Z95 * math.sqrt(noise)
        low, value, high = (start + contrast.solved(step, error) for error in (-reach, 0.0, reach))
        # Where two cells may have no events their difference is anything.
        low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
        if math.isinf(low) and math.isinf(high):
            return NotEstimable(
                f"the last step, or its noise, is too long for what {self.named(weights) or 'the term'} tells",
                "more records or epsilon, or merge the level with another",
            )
        value = value if math.isfinite(value) else min(max(float(weights @ self.coefficients), low), high)
        error = math.sqrt(noise) if math.isinf(high - low) else (high - low) / 2.0 / Z95
        half = Z95 * math.sqrt(max(sampling, 0.0))
        below, above = math.hypot(value - low, half), math.hypot(high - value, half)
        deviations = Z95 * abs(value) / max(below if value > 0.0 else above, 1e-300)
        return Figure(value, error, half / Z95, value - below, value + above, math.erfc(deviations / math.sqrt(2.0)))

    def wald(self, noise: Floats, sampling: Floats) -> Test | NotEstimable:
        """By the values and errors of the told intervals, on the side of 0, which vary together as the step does: of one slope
        it is that slope's p-value. Slopes whose intervals are open there are left out: noise may hide that they are 0."""
        if self.cells is None or not noise.any():
            return super().wald(noise, sampling)
        unit = np.eye(self.p)
        slopes = [place for place in range(1, self.p) if self.hidden(unit[place]) is None]
        answers = {
            place: self.figure(unit[place], float(noise[place, place]), float(sampling[place, place])) for place in slopes
        }
        found = {place: each for place, each in answers.items() if isinstance(each, Figure) and each.towards_zero < math.inf}
        if slopes and not found:
            return HIDDEN
        told, apart = list(found), tuple(place for place in slopes if place not in found)
        by_noise = [math.sqrt(max(each.towards_zero**2 - each.sampling_error**2, 0.0)) for each in found.values()]
        scale = np.array(by_noise) / np.sqrt(noise[told, told])
        within = np.ix_(told, told)
        values = np.array([each.value for each in found.values()])
        return chi_squared(values, noise[within] * np.outer(scale, scale), sampling[within], len(told), apart)


@dataclass(frozen=True)
class NewtonRelease:
    """What one release tells.

    Attributes:
        at: gamma (p,).
        score: g (p,).
        information: H (p, p).
        score_std: of the noise in each value of g.
        information_std: of the noise on the diagonal of H; above it, 1 / sqrt 2 of that.
        excess: E (p, p) = sum c^2 (1 - c^2) v z_w z_w', by which H exceeds the score's variance; None where it is not told.
        excess_std: of its noise, as of H.
    """

    at: Floats
    score: Floats
    information: Floats
    score_std: float
    information_std: float
    excess: Floats | None = None
    excess_std: float = 0.0


@dataclass(frozen=True)
class NewtonFit(SolvedFit):
    """Where the releases so far lead.

    Attributes:
        whiten: W (p, k).
        releases: in order, one or more, in k dimensions.
        names, numbers: as of :class:`~veilsum_aggregation.regression.Fit`.
        left_out: combinations (p, p - k) that W leaves out.
        apart: (p, m), combinations that are told apart from the others: what steps do along them is not looked at.
        cells: of records, for intervals that hold where a step is long; None for those of the step alone.
    """

    whiten: Floats
    releases: Sequence[NewtonRelease]
    names: tuple[str, ...] = ()
    left_out: Floats = field(default_factory=nothing)
    apart: Floats = field(default_factory=nothing)
    cells: Cells | None = None
    numbers: frozenset[str] = frozenset()

    @property
    def untold(self) -> Floats:
        return self.left_out

    @cached_property
    def gamma_information(self) -> tuple[Floats, float]:
        """The mean of all releases."""
        stds, (_, shares) = [release.information_std for release in self.releases], self.shares
        matrix = np.tensordot(shares, np.array([release.information for release in self.releases]), 1)
        return np.asarray(matrix, dtype=np.float64), float(np.sqrt((shares**2) @ np.square(stds)))

    @cached_property
    def _score(self) -> tuple[Floats, float]:
        """All scores, moved to the last gamma, and their noise."""
        stds, last = [release.score_std for release in self.releases], self.releases[-1].at
        shares, _ = self.shares
        moved = [release.score - self.floored @ (last - release.at) for release in self.releases]
        return np.asarray(np.tensordot(shares, np.array(moved), 1)), float(np.sqrt((shares**2) @ np.square(stds)))

    @cached_property
    def step(self) -> Floats:
        """From the last gamma, (p,), no longer than :data:`LONGEST_STEP`."""
        return limited(np.asarray(np.linalg.solve(self.floored, self._score[0]), dtype=np.float64))

    @property
    def point(self) -> Floats:
        """gamma (p,) after the step."""
        return np.asarray(self.releases[-1].at + self.step, dtype=np.float64)

    @cached_property
    def coefficients(self) -> Floats:
        return np.asarray(self.whiten @ self.point, dtype=np.float64)

    @property
    def last_step(self) -> tuple[Path, Floats]:
        points = np.array([self.whiten @ release.at for release in self.releases])
        return Path(points, *self.shares), np.asarray(self.whiten @ self.step)

    @property
    def influence(self) -> Floats:
        """U (p, p): how the coefficients change with the score at the last point."""
        return np.asarray(self.whiten @ np.linalg.inv(self.floored), dtype=np.float64)

    @cached_property
    def _white_covariances(self) -> tuple[Floats, Floats]:
        inverse, (_, score_std), (_, information_std) = np.linalg.inv(self.floored), self._score, self.gamma_information
        unit, d = np.eye(len(inverse)), self.step
        middle = score_std**2 * unit + information_std**2 / 2.0 * (float(d @ d) * unit + np.outer(d, d))
        return np.asarray(inverse @ middle @ inverse), self._sampling

    @property
    def _sampling(self) -> Floats:
        """H^-1 (H - E) H^-1, with of E what is beyond the reach of its noise, and at most :data:`EXCESS` of H."""
        last = self.releases[-1]
        if last.excess is None:
            return np.asarray(np.linalg.inv(self.floored))
        values, vectors = np.linalg.eigh(last.excess)
        beyond = np.maximum(values - last.excess_std * math.sqrt(2.0 * len(values)), 0.0)
        scales, axes = np.linalg.eigh(self.floored)
        root = (axes / np.sqrt(scales)) @ axes.T
        shares, turned = np.linalg.eigh(root @ (vectors * beyond) @ vectors.T @ root)
        return np.asarray(root @ (turned * (1.0 - np.clip(shares, 0.0, EXCESS))) @ turned.T @ root)

    @cached_property
    def covariances(self) -> tuple[Floats, Floats]:
        noise, sampling = (self.whiten @ matrix @ self.whiten.T for matrix in self._white_covariances)
        return np.asarray(noise), np.asarray(sampling)

    @property
    def drowned(self) -> NotEstimable | None:
        weak = too_weak(self.reach, self.smallest, self.weakest, self.named(self.whiten @ self._spectrum[1][:, 0]))
        return weak or unconverged(without(self.step, self.whiten, self.aside), *self._white_covariances)
