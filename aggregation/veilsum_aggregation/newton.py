"""Generalised linear models by a few noised Newton steps in whitened coordinates.

A first release gives the Gram matrix A of the terms z = (1, x). With W = (A / n)^(-1/2), coefficients are beta = W gamma: in
gamma the information is near n v I, so one length bounds all records well and one noise suits all directions. Each later
release gives the score and the information at one gamma,

    g = sum c^2 z_w (y - mu),   H = sum c^2 v z_w z_w',   z_w = W z,  c = min(1, C / |z_w|),

and the next gamma is a Newton step of all releases so far: older scores are moved along H. Scores are weighted by the terms
alone, so each is an unbiased estimating equation, and the last gamma's error is that of the scores' sum. Measured:
docs/results.md, "Regression".

One step from a noised gamma is not the solution. Where a term tells two cells of records apart, as a level and the others of
its category, it is solved exactly: a cell whose Newton step in the linear predictor is x moves by
t(x) = log((1 + (1 - q) x) / (1 - q x)), q the mean of an event there and 0 of counts (:class:`Cells`). Older scores were
moved along H, where the cell's own means tell how they move, for which x is corrected (:func:`corrected`). Intervals of the
noise are therefore of the step, moved by t, and are combined with sampling's by their ends' distances (MOVER, Zou and Donner
2008).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.families import Family, link, mean_of
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

LONGEST_MOVE, HALVINGS = 100.0, 60
"""How far the linear predictor of a cell is followed, and how often that is halved to find where it goes."""

NO_VARIANCE = 1e-12
"""Below it a cell's variance does not divide."""

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


@dataclass(frozen=True)
class Cell:
    """Records that a term does not tell apart, at the point from which a step goes.

    Attributes:
        family: of the regression.
        at: mean of their linear predictor, offsets and all.
        spread: its standard deviation, where a mean has a bound: the part of them whose mean is at the bound does not move.
        most: M, the largest mean of counts.
        scale, shift: what the step of a fit x is as a step of this point's own mean and variance, scale x + shift.
    """

    family: Family
    at: float
    spread: float = 0.0
    most: float = math.inf
    scale: float = 1.0
    shift: float = 0.0

    @cached_property
    def mean(self) -> float:
        """q of events; of counts what one record is expected to have, :meth:`_expected`."""
        return float(mean_of("logistic", np.array(self.at), 1.0)[0]) if self.family == "logistic" else self._expected(self.at)

    @property
    def variance(self) -> float:
        return self.mean * (1.0 - self.mean) if self.family == "logistic" else self.mean

    def _expected(self, at: float) -> float:
        """E min(exp X, M) of a normal X of mean ``at``: exp(at + s^2 / 2) Phi(a - s) + M Phi(-a), a = (log M - at) / s."""
        if math.isinf(self.most) or self.spread == 0.0:
            return min(math.exp(at + self.spread**2 / 2.0), self.most)
        away = (math.log(self.most) - at) / self.spread
        below = math.exp(at + self.spread**2 / 2.0) * _normal(away - self.spread)
        return min(below + self.most * _normal(-away), self.most)

    def moved(self, x: float) -> float:
        """t(x), for a Newton step x of the linear predictor; infinite where it leads to no events, or to nothing else."""
        x = self.scale * x + self.shift
        if self.family == "logistic":
            top, bottom = 1.0 + (1.0 - self.mean) * x, 1.0 - self.mean * x
            return -math.inf if top <= 0.0 else math.inf if bottom <= 0.0 else math.log(top / bottom)
        if x <= -1.0:
            return -math.inf
        if math.isinf(self.most):
            return math.log1p(x)
        wanted = self.mean * (1.0 + x)
        if wanted >= self.most:
            return math.inf
        low = math.log(wanted) - self.spread**2 / 2.0  # without the bound; nowhere above the solution
        width = 1.0
        while self._expected(low + width) < wanted and width < LONGEST_MOVE:
            width *= 2.0
        for _ in range(HALVINGS):
            width /= 2.0
            low += width if self._expected(low + width) <= wanted else 0.0
        return low - self.at


def _normal(z: float) -> float:
    """Phi(z)."""
    return math.erfc(-z / math.sqrt(2.0)) / 2.0


ALONE = np.ones(1)
"""The shares of one release."""


@dataclass(frozen=True)
class Path:
    """Where a fit's releases were, and what of them is in its last step.

    Attributes:
        points: coefficients (r, p), of the last release the last.
        scores, information: what those of each release count (r,), of :func:`release_shares`.
    """

    points: Floats
    scores: Floats = field(default_factory=ALONE.copy)
    information: Floats = field(default_factory=ALONE.copy)


def corrected(cells: Sequence[Cell], path: Path) -> Cell:
    """The last of a cell's points (r), for the step of a fit whose score and information are means of all releases.

    With m_i and v_i its mean and variance at a_i, w_i the shares of scores and v the mean of v_i by those of information,
    scores that were moved by v (a_r - a_i) have led to a step x = (y - k) / v of what was observed, y, with
    k = sum w_i (m_i + v (a_r - a_i)). That of the last point alone is (y - m_r) / v_r = (v x + k - m_r) / v_r.
    """
    last = cells[-1]
    variance = float(path.information @ [max(cell.variance, NO_VARIANCE) for cell in cells])
    known = float(path.scores @ [cell.mean + variance * (last.at - cell.at) for cell in cells])
    own = max(last.variance, NO_VARIANCE)
    return replace(last, scale=variance / own, shift=(known - last.mean) / own)


@dataclass(frozen=True)
class Contrast:
    """A combination of coefficients as the difference between the linear predictors of two cells of records.

    Attributes:
        rows: mean terms of the cell above and of the one below, (2, p).
        span: the difference, in units of the combination.
        cells: both, above and below.
        share: of the step's error the part that is the cell's above: the larger, the less information it has.
    """

    rows: Floats
    span: float
    cells: tuple[Cell, Cell]
    share: float

    def solved(self, step: Floats, error: float) -> float:
        """What a Newton step (p,) leads to, if its combination is ``error`` more; infinite where a cell would have no events,
        or nothing else."""
        (one, other), off = self.rows @ step, error * self.span
        above, below = self.cells
        return (above.moved(one + self.share * off) - below.moved(other + (self.share - 1.0) * off)) / self.span


@dataclass(frozen=True)
class Cells:
    """Of which records the terms are, as the first release tells it.

    Attributes:
        family: of the regression.
        gram: A (p, p) of (1, terms), terms in [-1, 1].
        categories: places of the terms that are levels of one category, whose first level has none.
        most: M, the largest mean of counts.
        offset: mean and standard deviation of what records' offsets add to the linear predictor.
    """

    family: Family
    gram: Floats
    categories: tuple[tuple[int, ...], ...] = ()
    most: float = math.inf
    offset: tuple[float, float] = (0.0, 0.0)

    def contrast(self, weights: Floats, path: Path) -> Contrast | None:
        """A combination (p,) of two levels, or of a number; None of any other.

        A number is taken for two cells that have its mean and variance, in shares that its bounds and mean suggest: an
        indicator has its own two.
        """
        used = np.flatnonzero(weights)
        if not used.size or used[0] == 0:
            return None
        total = max(float(self.gram[0, 0]), 1.0)
        mean = self.gram[0] / total
        for places in self.categories:
            if set(used) <= set(places):
                return self._of_levels(weights, path, mean, list(places), total)
        if used.size > 1:
            return None
        (place,), least = used, 1.0 / total
        share = min(max((1.0 + float(mean[place])) / 2.0, least), 1.0 - least)
        spread = math.sqrt(max(float(self.gram[place, place]) / total - float(mean[place]) ** 2, least))
        rows = np.array([mean, mean])
        rows[:, place] += [spread * math.sqrt((1.0 - share) / share), -spread * math.sqrt(share / (1.0 - share))]
        if weights[place] < 0.0:
            rows, share = rows[::-1], 1.0 - share
        return self._between(rows, weights, path, [int(place)], (share * total, (1.0 - share) * total))

    def _of_levels(self, weights: Floats, path: Path, mean: Floats, places: list[int], total: float) -> Contrast | None:
        """The first level, which has no place, stands last."""
        own = np.append(weights[places], -float(weights[places].sum()))
        sizes = np.append(mean[places], 1.0 - float(mean[places].sum())) * total
        above, below = np.flatnonzero(own > 0.0), np.flatnonzero(own < 0.0)
        if above.size != 1 or below.size != 1:
            return None
        pair = [int(above[0]), int(below[0])]
        rows = np.array([mean, mean])
        rows[:, places] = np.eye(len(own))[pair, :-1]
        numbers = max(float(sizes[pair[0]]), 1.0), max(float(sizes[pair[1]]), 1.0)
        return self._between(rows, weights, path, places, numbers)

    def _between(self, rows: Floats, weights: Floats, path: Path, places: list[int], numbers: tuple[float, float]) -> Contrast:
        """Of cells of so many records, in which the terms at ``places`` do not vary."""
        above, below = (corrected([self._cell(row, at, places) for at in path.points], path) for row in rows)
        one, other = (
            size * cell.scale * max(cell.variance, NO_VARIANCE) for size, cell in zip(numbers, (above, below), strict=True)
        )
        span = float((rows[0] - rows[1]) @ weights) / float(weights @ weights)
        return Contrast(rows, span, (above, below), other / (one + other))

    def _cell(self, row: Floats, at: Floats, places: list[int]) -> Cell:
        """The cell of these mean terms (p,) at coefficients (p,)."""
        others, number = np.array(at), max(float(self.gram[0, 0]), 1.0)
        others[places] = 0.0
        mean, square = float(self.gram[0] @ others) / number, float(others @ self.gram @ others) / number
        spread = math.sqrt(max(square - mean**2, 0.0) + self.offset[1] ** 2)
        return Cell(self.family, float(np.clip(row @ at + self.offset[0], -30.0, 30.0)), spread, self.most)


class Noised(Protocol):
    """A release: the noise of its score and of its information."""

    @property
    def score_std(self) -> float: ...

    @property
    def information_std(self) -> float: ...


class SolvedFit(Fit):
    """A fit whose last step is solved in the cells of the term that a figure is of.

    Attributes:
        cells: of records; None for figures of the step alone.
        releases: in order, one or more.
    """

    cells: Cells | None
    releases: Sequence[Noised]

    @property
    @abstractmethod
    def last_step(self) -> tuple[Path, Floats]:
        """How the last step was come to, and the step (p,)."""

    @cached_property
    def shares(self) -> tuple[Floats, Floats]:
        """What the score and the information of each release count (r,)."""
        scores = release_shares([release.score_std for release in self.releases], OLD_SCORE)
        return scores, release_shares([release.information_std for release in self.releases], OLD_INFORMATION)

    @property
    def weakest(self) -> float:
        """:data:`WEAKEST` of this fit."""
        return WEAKEST if self.cells is not None else WEAKEST_STEP

    def figure(self, weights: Floats, noise: float, sampling: float) -> Answer:
        """By the step's ends, each solved in its cells; an end is open where noise may have hidden all events of a cell."""
        path, step = self.last_step
        contrast = self.cells.contrast(weights, path) if self.cells is not None and noise > 0.0 else None
        if contrast is None:
            return super().figure(weights, noise, sampling)
        start, reach = float(weights @ path.points[-1]), Z95 * math.sqrt(noise)
        low, value, high = (start + contrast.solved(step, error) for error in (-reach, 0.0, reach))
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

    def all_slopes(self) -> Test | NotEstimable:
        """By the values and errors of the told intervals, on the side of 0, which vary together as the step does: of one slope
        it is that slope's p-value. Slopes whose intervals are open there are left out: noise may hide that they are 0."""
        if self.cells is None or self.drowned is not None or not (noise := self.covariances[0]).any():
            return super().all_slopes()
        sampling, unit = self.covariances[1], np.eye(self.p)
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
        names: of the coefficients.
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

    @property
    def untold(self) -> Floats:
        return self.left_out

    @cached_property
    def _information(self) -> tuple[Floats, float]:
        """The mean information before it is floored, and its noise."""
        stds, (_, shares) = [release.information_std for release in self.releases], self.shares
        matrix = np.tensordot(shares, np.array([release.information for release in self.releases]), 1)
        return np.asarray(matrix, dtype=np.float64), float(np.sqrt((shares**2) @ np.square(stds)))

    @property
    def reach(self) -> float:
        """The operator norm that the noise of H has, about s sqrt(2 p)."""
        return self._information[1] * math.sqrt(2.0 * self.whiten.shape[1])

    @cached_property
    def _spectrum(self) -> tuple[Floats, Floats]:
        values, vectors = np.linalg.eigh(self._information[0])
        return values, vectors

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of H."""
        return float(self._spectrum[0][0])

    @cached_property
    def floored(self) -> Floats:
        """H (p, p) with no eigenvalue below its noise."""
        values, vectors = self._spectrum
        least = max(self.reach, FLAT * float(np.abs(values).max()), 1e-300)
        return np.asarray((vectors * np.maximum(values, least)) @ vectors.T, dtype=np.float64)

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
        inverse, (_, score_std), (_, information_std) = np.linalg.inv(self.floored), self._score, self._information
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
        return weak or unconverged(without(self.step, self.whiten, self.apart), *self._white_covariances)
