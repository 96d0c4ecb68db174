"""The last step of a fit, solved exactly in the cells of records that a term tells apart.

One step from a noised point is not the solution. Where a term tells two cells of records apart, as a level and the others of
its category, it is solved exactly: a cell whose Newton step in the linear predictor is x moves by
t(x) = log((1 + (1 - q) x) / (1 - q x)), q the mean of an event there and 0 of counts (:class:`Cells`). Older scores were
moved along H, where the cell's own means tell how they move, for which x is corrected (:func:`corrected`). Intervals of the
noise are therefore of the step, moved by t, and are combined with sampling's by their ends' distances (MOVER, Zou and Donner
2008).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.families import Family, mean_of

LONGEST_MOVE, HALVINGS = 100.0, 60
"""How far the linear predictor of a cell is followed, and how often that is halved to find where it goes."""

NO_VARIANCE = 1e-12
"""Below it a cell's variance does not divide."""


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


def two_cells(gram: Floats, place: int) -> tuple[Floats, float]:
    """A number's two cells, which have its mean and variance in shares that its bounds and mean suggest: an indicator has its
    own two. Their mean terms (2, p), and the share of the upper one."""
    total = max(float(gram[0, 0]), 1.0)
    mean, least = gram[0] / total, min(1.0 / total, 0.5)
    share = min(max((1.0 + float(mean[place])) / 2.0, least), 1.0 - least)
    spread = math.sqrt(max(float(gram[place, place]) / total - float(mean[place]) ** 2, least))
    rows = np.array([mean, mean])
    rows[:, place] += [spread * math.sqrt((1.0 - share) / share), -spread * math.sqrt(share / (1.0 - share))]
    return rows, share


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

    def beyond(self, at: Floats) -> float:
        """The share of the records whose mean count exceeds M at coefficients (p,), if their linear predictors are normal."""
        cell = self._cell(self.gram[0] / max(float(self.gram[0, 0]), 1.0), at, [])
        return _normal((cell.at - math.log(self.most)) / max(cell.spread, 1e-9))

    def contrast(self, weights: Floats, path: Path) -> Contrast | None:
        """A combination (p,) of two levels, or of a number; None of any other.

        A number is taken for two cells (:func:`two_cells`).
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
        place = int(used[0])
        rows, share = two_cells(self.gram, place)
        if weights[place] < 0.0:
            rows, share = rows[::-1], 1.0 - share
        return self._between(rows, weights, path, [place], (share * total, (1.0 - share) * total))

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
