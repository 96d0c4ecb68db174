"""The baseline of a proportional hazards model: a few periods, in each of which the hazard follows a power of time.

Where the noise leaves few events to a period there are few periods, and a hazard that is constant in each would put what
time does down to the terms, if follow-up depends on these. So time is warped: a Weibull hazard, k t^(k - 1), is fitted to
the first release's noised life table, and sites count time as t^k, in which the hazard of a period is constant
(:mod:`veilsum_privacy.tasks.hazard_step`). The log of k is fitted again, with the terms, where its own score tells something:
for that a period is several pieces.

The log hazards of the pieces, of warped time, are B theta. B has orthonormal columns, one for each period and one for log k,
so that the noise in each value of B' r is that in one piece's score r.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats

MOST_PERIODS = 20
"""The most periods of time that a study may declare; where a period has several pieces, the most pieces."""

EVENTS = 16.0
"""Events of a period, in units of the noise on its own score."""

PIECES = 3
"""About how many pieces all periods have together, which tell log k: the noise of its score grows with their square root
(decision 91)."""

MISFIT = 0.5
"""Standard deviation by which log k of the life table may differ from log k given the terms."""

UNKNOWN = 0.6
"""Standard error of log k from which on the life table tells nothing, and hazards are constant in a period."""

SHORTEST = 1e-6
"""Length of the slope in log k, about pieces, below which they have none."""

HELD = 1e9
"""Information with which a coefficient does not move."""

SHAPES = 0.7
"""Standard deviation of log k over what is studied: what the life table does not tell is drawn to k = 1."""

LARGEST_SHAPE = 1.6
"""Bound on |log k|: k lies between .2 and 5."""


@dataclass(frozen=True)
class LifeTable:
    """Ends of follow-up by interval.

    Attributes:
        died, left: events and censored records by interval, (b,).
        beyond: records past the last interval.
        ends: of the intervals, (b + 1,), of time from 0 to 1.
        std: of the noise in each of ``died``.
        entered: records that enter in each interval, (b,); None where all enter at the start.
    """

    died: Floats
    left: Floats
    beyond: float
    ends: Floats
    std: float = 0.0
    entered: Floats | None = None

    @property
    def total(self) -> float:
        """Events, at least 1."""
        return max(float(self.died.sum()), 1.0)

    @property
    def at_risk(self) -> Floats:
        """On average over an interval, (b,), at least 1."""
        ending = self.died + self.left
        later = _later(ending) + self.beyond + 0.5 * ending
        if self.entered is not None:
            later = later - _later(self.entered) - 0.5 * self.entered
        return np.asarray(np.maximum(later, 1.0), dtype=np.float64)

    def between(self, amounts: Floats, ends: Floats) -> Floats:
        """Amounts by interval, added up between other ends as if spread evenly within an interval."""
        added = np.concatenate([[0.0], np.cumsum(amounts)])
        return np.asarray(np.diff(np.interp(ends, self.ends, added)), dtype=np.float64)


def _later(amounts: Floats) -> Floats:
    """What follows each interval (b,)."""
    return np.append(np.cumsum(amounts[::-1])[::-1][1:], 0.0)


@dataclass(frozen=True)
class Baseline:
    """Periods and their pieces.

    Attributes:
        ends: of the pieces, (m + 1,).
        basis: B (m, q), orthonormal.
        events: expected in each piece, (m,).
        level: log hazards where no term has to do with the hazard, (m,).
        periods: how many.
        shape: k of the first release; 1 where hazards are constant in a period.
        unit: of the last coefficient, if it is that of log k: so much for each 1; 0 where there is none.
        known: information about that coefficient from the first release.
    """

    ends: Floats
    basis: Floats
    events: Floats
    level: Floats
    periods: int
    shape: float = 1.0
    unit: float = 0.0
    known: float = 0.0

    @property
    def places(self) -> NDArray[np.intp]:
        """Where its pieces lie in what sites send."""
        return np.arange(len(self.basis))

    @property
    def every_ends(self) -> tuple[Floats, ...]:
        """Ends of the pieces of each stratum: there is one."""
        return (self.ends,)

    @property
    def powers(self) -> tuple[float, ...]:
        """k of each stratum."""
        return (self.shape,)

    @property
    def held(self) -> "Baseline":
        """With the shape that the life table has."""
        return replace(self, known=HELD)

    def expected(self, score: Floats) -> Floats:
        """Events expected in each piece (m,), at a point with this score of the hazards (m,)."""
        groups = (self.basis[:, : self.periods] > 0.0).astype(np.float64)
        events = groups.T @ self.events
        left = np.maximum(events - groups.T @ score, 0.3 * events)
        return np.asarray(self.events * (groups @ (left / events)), dtype=np.float64)

    def told(self, theta: Floats) -> dict[str, object]:
        """What a result says, at theta (q,)."""
        if self.shape == 1.0 and not self.unit:
            return {"periods": self.periods, "hazard": "constant in each period"}
        moved = float(np.clip(theta[-1] / self.unit, -5.0, 5.0)) if self.unit else 0.0
        power = self.shape * math.exp(moved) - 1.0
        return {"periods": self.periods, "hazard": f"in each period a constant times the time to the power of {power:.2f}"}

    @property
    def prior(self) -> Floats:
        """Information (q, q) about theta, beside that of the records: what is known of log k."""
        found = np.zeros((self.basis.shape[1],) * 2)
        found[self.periods :, self.periods :] = self.known
        return found

    def hazards(self, theta: Floats) -> Floats:
        """Log hazards (m,) at theta (q,)."""
        return np.asarray(self.basis @ theta, dtype=np.float64)


@dataclass(frozen=True)
class Strata:
    """Baselines of strata, one after another, as one: each has its own periods and coefficients."""

    parts: tuple[Baseline, ...]

    @property
    def basis(self) -> Floats:
        return _blocks(part.basis for part in self.parts)

    @property
    def events(self) -> Floats:
        return np.concatenate([part.events for part in self.parts])

    @property
    def level(self) -> Floats:
        return np.concatenate([part.level for part in self.parts])

    @property
    def prior(self) -> Floats:
        return _blocks(part.prior for part in self.parts)

    @property
    def places(self) -> NDArray[np.intp]:
        return np.concatenate([part.places + at * MOST_PERIODS for at, part in enumerate(self.parts)])

    @property
    def every_ends(self) -> tuple[Floats, ...]:
        return tuple(part.ends for part in self.parts)

    @property
    def powers(self) -> tuple[float, ...]:
        return tuple(part.shape for part in self.parts)

    @property
    def held(self) -> "Strata":
        return Strata(tuple(part.held for part in self.parts))

    def expected(self, score: Floats) -> Floats:
        ends = np.cumsum([len(part.basis) for part in self.parts])[:-1]
        return np.concatenate([part.expected(own) for part, own in zip(self.parts, np.split(score, ends), strict=True)])

    def told(self, theta: Floats) -> dict[str, object]:
        return {"periods": sum(part.periods for part in self.parts), "hazard": f"of each of {len(self.parts)} strata its own"}

    def hazards(self, theta: Floats) -> Floats:
        return np.asarray(self.basis @ theta, dtype=np.float64)


def log_shape(table: LifeTable) -> tuple[float, float]:
    """log k, and its standard error.

    By scoring of the events' means mu_b = lambda Y_b (e_b^k - s_b^k), Y_b at risk in the interval from s_b to e_b, with
    variances mu_b and the noise's, and a normal prior of standard deviation :data:`SHAPES`. Without noise and prior this is
    the maximum likelihood of a Weibull life table.
    """
    at_risk, found, error = table.at_risk, 0.0, SHAPES
    for _ in range(50):
        width, slope = _powers(table.ends, found)
        mean = at_risk * width
        mean = mean * (table.total / float(mean.sum()))
        weight = 1.0 / np.maximum(mean + table.std**2, 1e-9)
        jacobian = np.column_stack([mean, mean * slope])
        information = jacobian.T @ (jacobian * weight[:, None]) + np.diag([0.0, SHAPES**-2])
        score = jacobian.T @ (weight * (table.died - mean)) - [0.0, found / SHAPES**2]
        error = math.sqrt(float(np.linalg.inv(information)[1, 1]))
        step = float(np.clip(np.linalg.solve(information, score)[1], -0.5, 0.5))
        found = float(np.clip(found + step, -LARGEST_SHAPE, LARGEST_SHAPE))
        if abs(step) < 1e-6:
            break
    return found, error


def _powers(ends: Floats, log_k: float) -> tuple[Floats, Floats]:
    """e^k - s^k between ends, and the derivative of its log by log k."""
    k = math.exp(log_k)
    times = np.maximum(ends, 0.0)
    logs = np.log(np.where(times > 0.0, times, 1.0))
    powers = np.where(times > 0.0, times, 0.0) ** k
    width = np.maximum(np.diff(powers), 1e-12)
    return width, np.diff(powers * logs) * k / width


def first_baseline(table: LifeTable, hazard_std: float, strata: int = 1) -> Baseline:
    """As the first release has it.

    Args:
        table: of the first release.
        hazard_std: of the noise in each value of the last release's score of hazards.
        strata: how many share the pieces; one of a single period has two at least, which a shape takes.
    """
    count = MOST_PERIODS if hazard_std == 0.0 else int(np.clip(table.total / (EVENTS * hazard_std), 1.0, MOST_PERIODS))
    periods = _periods(table, count)
    count = len(periods) - 1
    pieces = max(2 if count == 1 else 1, round(PIECES / count / strata)) if hazard_std > 0.0 else 1
    log_k, error = log_shape(table) if hazard_std > 0.0 else (0.0, 0.0)
    if error > UNKNOWN or abs(log_k) >= LARGEST_SHAPE:
        pieces, log_k = 1, 0.0
    ends = _pieces(table, periods, pieces, log_k)
    width, slope = _powers(ends, log_k)
    groups = np.repeat(np.eye(count), pieces, axis=0)

    events = np.maximum(table.between(np.maximum(table.died, 0.0), periods), 0.3 * table.total / count)
    spent = np.diff(table.ends) * table.at_risk
    exposed = np.maximum(table.between(spent, ends), 1e-6 * float(spent.sum())) * width / np.diff(ends)
    level = np.log(events / (groups.T @ exposed))
    expected = exposed * (groups @ np.exp(level))
    basis = groups / math.sqrt(pieces)
    found = Baseline(ends, basis, expected, groups @ level, count, math.exp(log_k))
    rest = slope - basis @ (basis.T @ slope)
    long = float(np.linalg.norm(rest))
    if pieces == 1 or long < SHORTEST:
        return found
    basis = np.column_stack([basis, rest / long])
    return replace(found, basis=basis, unit=long, known=1.0 / (error**2 + MISFIT**2) / long**2)


def _pieces(table: LifeTable, periods: Floats, pieces: int, log_k: float) -> Floats:
    """Ends of pieces with about equally many expected events, so many to a period."""
    middles, found = (table.ends[1:] + table.ends[:-1]) / 2.0, [periods[:1]]
    for start, end in pairwise(periods):
        grid = start + (end - start) * np.linspace(0.0, 1.0, 501)
        at_risk = np.interp((grid[1:] + grid[:-1]) / 2.0, middles, table.at_risk)
        added = np.concatenate([[0.0], np.cumsum(_powers(grid, log_k)[0] * at_risk)])
        found += [np.interp(np.linspace(0.0, added[-1], pieces + 1)[1:-1], added, grid), np.array([end])]
    return np.concatenate(found)


def _periods(table: LifeTable, count: int) -> Floats:
    """Ends of periods with about equally many events, of those of intervals.

    Where in an interval its events are nobody knows: times in whole months are all at one point, and a part of it had none.
    """
    died = np.concatenate([[0.0], np.cumsum(np.maximum(table.died, 0.0))])
    targets = np.linspace(0.0, 1.0, count + 1)[1:-1] * died[-1]
    inner = np.flatnonzero((died > 0.0) & (died < died[-1]))
    nearest = inner[np.abs(died[inner, None] - targets).argmin(axis=0)] if inner.size else inner
    return np.asarray(table.ends[np.unique([0, *nearest, len(died) - 1])], dtype=np.float64)


def _blocks(parts: Iterable[Floats]) -> Floats:
    from scipy.linalg import block_diag  # slow to import, where nobody asks for strata

    return np.asarray(block_diag(*parts), dtype=np.float64)
