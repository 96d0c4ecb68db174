"""Proportional hazards by a few noised Newton steps: a Cox regression whose baseline has a few coefficients.

The hazard of a record with terms x is exp(alpha_j + (x - centre)' W gamma) in piece j of warped time, alpha = B theta
(:mod:`veilsum_aggregation.baselines`). Cox's partial likelihood
has sums over everyone at risk at each event, in which a record stands many times; this likelihood is a sum over records, and
with as many periods as the events bear its coefficients are Cox's. A first release tells how many ended in which interval,
and the moments of the terms and of the events: whitening, periods of about equally many events, a baseline and a first
gamma. Each later release gives score and information at one point (theta, gamma), and the next point is a joint Newton step
of all releases so far; along theta many, for there a release tells the likelihood itself. The baseline's error is thus in
the covariance. Measured: docs/results.md, "Regression".

In gamma the terms have about the identity for their covariance at any data, so one length C bounds all records well. The
centre is the mean of the terms at the events: there the information of hazards and terms together is about 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.baselines import Baseline, LifeTable, Strata, first_baseline
from veilsum_aggregation.cells import Cells, Path
from veilsum_aggregation.figures import FLAT, NotEstimable
from veilsum_aggregation.newton import FLOOR, LONGEST_STEP, SolvedFit, limited, nothing, unconverged, without
from veilsum_aggregation.regression import told_directions, too_weak

STEPS = 8
"""Newton steps along the baseline at one release: four settle a shape whose log is .9 off (`tests/unit/test_cox.py`)."""

FIRST_STEP = 1.5
"""Longest first gamma: the association with the event overstates that with the hazard."""

SHORTEST, LONGEST = 1.25, 5.0
"""C in units of sqrt p, the root mean square of the whitened terms, lies between these. A shortened record weighs less, which
matters where hazards are not proportional: the fit is then of other weights than Cox's."""

LEAST_EVENTS = 3.0
"""Events, in units of the noise on the sum of their scores over all pieces of time, below which the hazards do not settle: of
twelve strata at 2 the ratio of a number was a standard error off."""

UNLIKE = 0.6
"""Standard deviation of strata's log hazards, and of what a baseline's still have to move before the last step."""

FEW_EVENTS = NotEstimable(
    "the events are too few against the noise in the hazards", "fewer strata, more records, or more epsilon"
)

INFORMATION_NOISE, SCORE_NOISE = 0.25, 1.0
"""C is so large that the noise of the information is this share of it, or the noise of the score this share of sampling's."""


@dataclass(frozen=True)
class FirstSums:
    """What the first release tells.

    Attributes:
        gram: A (p + 1, p + 1) = sum c^2 (1, x)(1, x)', with weights c <= 1.
        events: sum c^2 (1, x) of the records with an event, (p + 1,).
        gram_std: of the noise on the diagonal of A.
        tables: ends of follow-up, of each stratum.
        grain: what rounding changes an entry of A by at most, for each record.
    """

    gram: Floats
    events: Floats
    gram_std: float
    tables: tuple[LifeTable, ...]
    grain: float = 0.0


@dataclass(frozen=True)
class HazardModel:
    """The coordinates of a fit and where it begins.

    Attributes:
        whiten: W (p, k), symmetric where everything is told.
        centre: (p,).
        baseline: with m pieces and q coefficients.
        point: theta and gamma, (q + k,).
        events: how many there are, by the moments. Those of the baseline, of which no cell is below 0, are more where there is
            noise, and its steps shorter: with as many as there are, few hazards settle.
        untold: combinations of coefficients that W leaves out, (p + 1, p - k); the constant, the first, is in none.
        counted: of strata with noise, the baseline with the events that there are (:func:`_counted`).
    """

    whiten: Floats
    centre: Floats
    baseline: Baseline | Strata
    point: Floats
    events: float
    untold: Floats = field(default_factory=nothing)
    counted: Strata | None = None

    @property
    def q(self) -> int:
        """Coefficients of the baseline."""
        return int(self.baseline.basis.shape[1])


def first_model(sums: FirstSums, hazard_std: float) -> HazardModel:
    """Coordinates and first point.

    Args:
        sums: of the first release.
        hazard_std: of the noise in each value of the last release's score of hazards.
    """
    p, gram, std = len(sums.gram) - 1, sums.gram, sums.gram_std
    number = max(float(gram[0, 0]), FLOOR * std, 1e-9)
    mean = gram[1:, 0] / number
    spread = gram[1:, 1:] / number - np.outer(mean, mean)
    told, untold = _told_terms(gram, spread, std, sums.grain)
    values, vectors = np.linalg.eigh(told.T @ spread @ told)
    least = max(FLOOR * std / number * math.sqrt(2.0 * p), FLAT * max(float(values.max(initial=0.0)), 1e-300))
    whiten = np.asarray(told @ (vectors / np.sqrt(np.maximum(values, least))) @ vectors.T, dtype=np.float64)
    weight = float(sums.events[0])
    centre = np.clip(sums.events[1:] / weight, -1.0, 1.0) if weight > FLOOR * std and weight > 0.0 else mean
    gamma = limited(whiten.T @ (centre - mean), FIRST_STEP)

    parts = tuple(first_baseline(table, hazard_std, len(sums.tables)) for table in sums.tables)
    baseline = parts[0] if len(parts) == 1 else Strata(parts)
    theta = baseline.basis.T @ (baseline.level + 0.5 * float(gamma @ gamma))
    return HazardModel(
        whiten,
        centre,
        baseline,
        np.concatenate([theta, gamma]),
        max(weight, FLOOR * std, 1.0),
        np.pad(untold, ((1, 0), (0, 0))),
        _counted(sums, parts) if len(parts) > 1 and sums.tables[0].std > 0.0 else None,
    )


def _counted(sums: FirstSums, parts: Sequence[Baseline]) -> Strata:
    """The baselines with as many events as the moments' share of all records has.

    Noised cells that are cut off at 0 add up to two or three times as many. A stratum has its life table's, as far as these
    differ from the share of its records by more than noise does, for log hazards that differ by :data:`UNLIKE`.
    """
    records = np.array([table.died.sum() + table.left.sum() + table.beyond for table in sums.tables])
    records = np.maximum(records, 0.05 * max(float(records.sum()), 1.0))
    events = max(float(records.sum() * sums.events[0]) / max(float(sums.gram[0, 0]), 1e-9), 1.0)
    even = events * records / records.sum()
    noise = np.array([len(table.died) * table.std**2 for table in sums.tables])
    told = (UNLIKE * even) ** 2 / ((UNLIKE * even) ** 2 + noise)
    own = np.maximum(even + told * ([float(table.died.sum()) for table in sums.tables] - even), 0.3 * even)
    own *= events / own.sum()
    return Strata(tuple(replace(part, events=part.events * n / part.events.sum()) for part, n in zip(parts, own, strict=True)))


def _told_terms(gram: Floats, spread: Floats, std: float, grain: float) -> tuple[Floats, Floats]:
    """Combinations of the terms that vary (p, k), and those that do not (p, p - k): with noise by their squares alone.

    Terms lie in [-1, 1]: what varies less than :data:`FLAT` of that is rounding, and W would be longer than sites take.
    """
    if std > 0.0:
        told, untold = told_directions(gram, std)
        return told[1:, 1:], untold[1:]
    values, vectors = np.linalg.eigh(spread)
    flat = values <= max(FLAT, FLAT * float(values[-1]), grain)
    return (vectors[:, ~flat], vectors[:, flat]) if flat.any() else (np.eye(len(spread)), vectors[:, :0])


def longest_terms(model: HazardModel, score_std: float, information_std: float) -> float:
    """C of a step: where there is more noise records are shortened more, and early steps need only lead near the end.

    Args:
        model: with its events.
        score_std, information_std: of the noise of the step's score and, on the diagonal, information, on terms of length 1.
    """
    p, total = model.whiten.shape[1], model.events
    length = LONGEST
    if score_std > 0.0:
        reach = math.sqrt(INFORMATION_NOISE * total / (information_std * math.sqrt(2.0 * p)))
        length = min(reach, SCORE_NOISE * math.sqrt(total) / score_std) / math.sqrt(p)
    return min(max(length, SHORTEST), LONGEST) * math.sqrt(p)


@dataclass(frozen=True)
class HazardRelease:
    """What one release tells, in units of the whitened terms.

    Attributes:
        at: theta and gamma, (q + p,).
        hazards: score of the log hazards of pieces, (m,).
        score: of gamma, (p,).
        cross: information of those and gamma, (m, p).
        information: of gamma, (p, p).
        hazard_std, score_std, cross_std, information_std: of the noise in each value; of the information on its diagonal,
            above it 1 / sqrt 2 of that.
    """

    at: Floats
    hazards: Floats
    score: Floats
    cross: Floats
    information: Floats
    hazard_std: float
    score_std: float
    cross_std: float
    information_std: float


@dataclass(frozen=True)
class HazardFit(SolvedFit):
    """Where the releases so far lead. The first coefficient, a constant's, is 0: it is part of the baseline.

    Attributes:
        model: coordinates.
        releases: in order, one or more.
        length: C of the last release.
        names, numbers: as of :class:`~veilsum_aggregation.regression.Fit`.
        apart, cells: as of :class:`~veilsum_aggregation.newton.NewtonFit`; events of a cell are counts, of a mean that is its
            hazards' sum over time.
    """

    model: HazardModel
    releases: Sequence[HazardRelease]
    length: float = 1.0
    names: tuple[str, ...] = ()
    apart: Floats = field(default_factory=nothing)
    cells: Cells | None = None
    numbers: frozenset[str] = frozenset()

    @property
    def untold(self) -> Floats:
        return self.model.untold

    @cached_property
    def _averages(self) -> tuple[Floats, Floats, Floats, float, float]:
        """Of each piece what is expected in it (m,), its information with gamma (m, p), that of gamma (p, p); the noise of the
        second and the third."""
        stds, (_, shares) = [release.information_std for release in self.releases], self.shares
        mean = {
            name: np.tensordot(shares, np.array([getattr(release, name) for release in self.releases]), 1)
            for name in ("hazards", "cross", "information")
        }
        cross_stds = [release.cross_std for release in self.releases]
        noise = [float(np.sqrt((shares**2) @ np.square(each))) for each in (cross_stds, stds)]
        return self.model.baseline.expected(mean["hazards"]), mean["cross"], mean["information"], noise[0], noise[1]

    @cached_property
    def _information(self) -> tuple[Floats, Floats, Floats, float, float]:
        """Information of theta (q, q), of both (q, p) and of gamma (p, p); the noise of the second and the third.

        That of a piece's log hazard are its expected events. What is known of the shape beforehand counts as well.
        """
        expected, cross, information, cross_std, information_std = self._averages
        return *self._of_baseline(expected, cross), information, cross_std, information_std

    def _of_baseline(self, expected: Floats, cross: Floats) -> tuple[Floats, Floats]:
        baseline = self.model.baseline
        return baseline.basis.T @ (baseline.basis * expected[:, None]) + baseline.prior, baseline.basis.T @ cross

    @cached_property
    def _explained(self) -> Floats:
        """What the information of gamma (p, p) loses because the baseline is fitted as well, less what noise adds to it."""
        hazards, cross, _, cross_std, _ = self._information
        inverse = np.linalg.inv(hazards)
        return np.asarray(cross.T @ inverse @ cross - cross_std**2 * np.trace(inverse) * np.eye(cross.shape[1]))

    @cached_property
    def gamma_information(self) -> tuple[Floats, float]:
        """Given theta."""
        return self._information[2] - self._explained, self._information[4]

    def _joint(self, factors: Floats) -> Floats:
        """The joint information (q + p, q + p) where the hazards of pieces (m,) have been multiplied."""
        expected, cross, _, _, _ = self._averages
        hazards, both = self._of_baseline(expected * factors, cross * factors[:, None])
        given = self.floored * float(factors @ expected) / float(expected.sum())  # goes with the events that are expected
        return np.block([[hazards, both], [both.T, given + both.T @ np.linalg.solve(hazards, both)]])

    @cached_property
    def _matrix(self) -> Floats:
        """The same at the last point."""
        return self._joint(np.ones(len(self.model.baseline.basis)))

    @cached_property
    def _score(self) -> tuple[Floats, Floats]:
        """All scores, moved to the last point, and the variance of their noise, (q + p,)."""
        last, basis = self.releases[-1].at, self.model.baseline.basis
        prior, q = self.model.baseline.prior, self.model.q
        shares, _ = self.shares
        moved = [
            np.concatenate([basis.T @ release.hazards - prior @ release.at[:q], release.score])
            - self._matrix @ (last - release.at)
            for release in self.releases
        ]
        sizes = self.model.q, self.model.whiten.shape[1]
        noise = [
            np.repeat([release.hazard_std**2, release.score_std**2], sizes) * share**2
            for release, share in zip(self.releases, shares, strict=True)
        ]
        return np.asarray(np.tensordot(shares, np.array(moved), 1)), np.sum(noise, axis=0)

    @cached_property
    def _solved(self) -> tuple[Floats, Floats]:
        """The step (q + p,), and the factors (m,) that it multiplies hazards by.

        What is expected in a piece, and its information with gamma, go with its hazard: along theta the likelihood is known
        and not only its slope, so that a shape which moves far is not an effect of second order.
        """
        expected, cross, _, _, _ = self._averages
        basis, prior, q = self.model.baseline.basis, self.model.baseline.prior, self.model.q
        found = np.zeros(q + cross.shape[1])
        factors = np.ones(len(basis))
        for _ in range(STEPS):
            grown = np.concatenate([basis.T @ (expected * (factors - 1.0)), cross.T @ (factors - 1.0)])
            matrix = self._joint(factors)
            grown[:q] += prior @ found[:q]
            found = found + np.linalg.solve(matrix, self._score[0] - grown - matrix[:, q:] @ found[q:])
            found[:q] = basis.T @ np.clip(basis @ found[:q], -1.0, 1.0)
            found[q:] = limited(found[q:], LONGEST_STEP)
            factors = np.exp(basis @ found[:q])
        return found, factors

    @property
    def step(self) -> Floats:
        """From the last point, (q + p,): gamma no farther than :data:`~veilsum_aggregation.newton.LONGEST_STEP`."""
        return self._solved[0]

    @property
    def point(self) -> Floats:
        """theta and gamma, (q + p,), after the step."""
        return np.asarray(self.releases[-1].at + self.step, dtype=np.float64)

    @cached_property
    def coefficients(self) -> Floats:
        gamma = self.point[self.model.q :]
        return np.concatenate([[0.0], self.model.whiten @ gamma])

    @property
    def last_step(self) -> tuple[Path, Floats]:
        """With a constant that makes the linear predictor 0 at the centre, of which the baseline is, solved apart.

        Of the last point alone: corrected for older scores, by whose points the baseline moved as well, intervals cover less
        (decision 115).
        """
        q, centred = self.model.q, np.concatenate([[-self.model.centre @ self.model.whiten], self.model.whiten])
        return Path((centred @ self.releases[-1].at[q:])[None]), np.asarray(centred @ self.step[q:])

    @property
    def baseline(self) -> Floats:
        """What each hazard's score explains of the terms' score (m, p): information of both over that of hazards."""
        hazards, cross, _, _, _ = self._information
        return np.asarray(self.model.baseline.basis @ np.linalg.solve(hazards, cross), dtype=np.float64)

    @property
    def influence(self) -> Floats:
        """U (1 + p, p): how the coefficients change with the terms' score less what the baseline explains of it."""
        inverse = np.linalg.inv(self._joint(self._solved[1]))[self.model.q :, self.model.q :]
        return np.pad(self.model.whiten @ inverse, ((1, 0), (0, 0)))

    @cached_property
    def _white_covariances(self) -> tuple[Floats, Floats]:
        """Covariances of gamma (p, p), by noise and by sampling.

        With d = (a, g) the step, the noise of the information adds that of the information times d to the score's.
        """
        inverse, variance = np.linalg.inv(self._joint(self._solved[1])), self._score[1]
        _, _, _, cross_std, information_std = self._information
        q, p = self.model.q, self.model.whiten.shape[1]
        a, g = self.step[:q], self.step[q:]
        middle = np.diag(variance)
        middle[:q, :q] += cross_std**2 * float(g @ g) * np.eye(q)
        middle[q:, q:] += (cross_std**2 * float(a @ a) + information_std**2 / 2.0 * float(g @ g)) * np.eye(p)
        middle[q:, q:] += information_std**2 / 2.0 * np.outer(g, g)
        of_baseline, longer = self._short_steps
        middle[q:, q:] += of_baseline
        noise = inverse @ middle @ inverse
        return np.asarray(noise[q:, q:]), np.asarray(inverse[q:, q:] * longer)

    @cached_property
    def _short_steps(self) -> tuple[Floats, float]:
        """What the baseline has left to move adds to the noise of the terms' score (p, p), and the variance of sampling over
        the inverse of the information.

        A baseline of more events than there are takes short steps, which few events need against the noise. But before the
        hazards are at their end so is the information, and terms that differ between strata take up what is left of them.
        """
        expected, cross, _, cross_std, _ = self._averages
        factors, counted, p = self._solved[1], self.model.counted, cross.shape[1]
        if counted is None:
            return np.zeros((p, p)), 1.0
        shares = self.shares[1]
        true = counted.expected(np.tensordot(shares, np.array([release.hazards for release in self.releases]), 1))
        grown = float(np.clip(counted.events.sum() / true.sum(), 0.5, 1.5))
        taken, both = self._of_baseline(expected * factors, cross * factors[:, None])
        whole, _ = self._of_baseline(true * factors, cross)
        left = (np.linalg.inv(whole) - np.linalg.inv(taken)) * (UNLIKE * np.diag(whole))
        middle = both.T @ left @ left.T @ both - cross_std**2 * float(np.sum(left**2)) * np.eye(p)
        values, vectors = np.linalg.eigh(middle)
        return (vectors * np.maximum(values, 0.0)) @ vectors.T, float(factors @ expected) / float(expected.sum()) / grown

    @cached_property
    def covariances(self) -> tuple[Floats, Floats]:
        whiten = self.model.whiten
        noise, sampling = (np.pad(whiten @ matrix @ whiten.T, ((1, 0), (1, 0))) for matrix in self._white_covariances)
        return noise, sampling

    @property
    def drowned(self) -> NotEstimable | None:
        noise = self.releases[-1].hazard_std * math.sqrt(len(self.model.baseline.basis))
        if self.model.events < LEAST_EVENTS * noise:
            return FEW_EVENTS
        whiten = self.model.whiten
        direction = np.concatenate([[0.0], whiten @ self._spectrum[1][:, 0]])
        step = without(self.step[self.model.q :], whiten, self.aside[1:])
        weak = too_weak(self.reach, self.smallest, self.weakest, self.named(direction))
        return weak or unconverged(step, *self._white_covariances)
