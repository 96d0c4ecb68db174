"""What a regression's first release tells: moments of terms and outcome, and of which terms nothing finite can be said.

Odds and rate ratios as rounds of a study: a release a Newton step, from the first release's moments on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from veilsum_aggregation import families, newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.cells import Cells
from veilsum_aggregation.figures import NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR, symmetric
from veilsum_aggregation.newton import NewtonFit, NewtonRelease
from veilsum_aggregation.regression import Fit, UntoldFit, told_directions
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_privacy.tasks.newton_step import EXCESS, POINT, WHITEN, in_units
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.coefficients import TermSums, infinite_terms, term_names
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression


@dataclass(frozen=True)
class FirstMoments:
    """Second moments of (1, terms, outcome) as they were released.

    Attributes:
        release: of the first sum.
        question: of terms and outcome.
    """

    release: Release
    question: LinearRegression

    @cached_property
    def part(self) -> ReleasedPart:
        """The question's part of it."""
        return ReleasedPart(self.question.query, self.release.values, self.release.noise_std)

    @cached_property
    def moments(self) -> Floats:
        """(p + 1, p + 1), the outcome last, scaled to [-1, 1]."""
        return self.part.moments

    @property
    def gram(self) -> Floats:
        """Gram matrix of (1, terms), (p, p)."""
        return self.moments[:-1, :-1]

    @property
    def std(self) -> float:
        """Standard deviation of the noise on the diagonal."""
        return self.part.std("diagonal")

    @property
    def events(self) -> Floats:
        """Sum of the outcome in its own units, and of its product with each term, (p,)."""
        return np.asarray(
            self.moments[:-1, -1] * self.question.outcome.half + self.moments[:-1, 0] * self.question.outcome.middle,
            dtype=np.float64,
        )

    @property
    def rate(self) -> float:
        """Mean of the outcome in its own units, at least 0."""
        mean = np.array([float(self.moments[0, -1]) / max(float(self.moments[0, 0]), 1.0)])
        return max(float(in_units(mean, self.question.outcome)[0]), 0.0)

    @property
    def spread(self) -> tuple[float, float]:
        """Mean and mean square of the outcome about the middle of its bounds, in its own units."""
        records, half = max(float(self.moments[0, 0]), 1.0), self.question.outcome.half
        return float(self.moments[0, -1]) / records * half, float(self.moments[-1, -1]) / records * half**2

    @property
    def lopsided(self) -> float:
        """4 / (1 - m^2), m the mean of the outcome in [-1, 1]: of an event the inverse of its variance of 0 and 1."""
        records = max(float(self.moments[0, 0]), 1.0)
        mean = float(self.moments[0, -1]) / records
        return 4.0 / max(1.0 - mean**2, 4.0 / records)

    @cached_property
    def sums(self) -> TermSums:
        """What the release tells of the outcome of odds, rates and hazards."""
        cross = self.part.std("cross")
        std = math.hypot(cross * self.question.outcome.half, self.std * self.question.outcome.middle)
        return TermSums(self.moments[:-1, 0], self.events, std, self.question.outcome.half * self.part.grain)

    def no_outcome(self, family: str) -> NotEstimable | None:
        """What to say where nobody has the event, or everybody; None where some have it."""
        records, events = float(self.sums.records[0]), float(self.sums.events[0])
        floor = max(0.5 + self.sums.grain * records, NOISE_FLOOR * self.sums.std)
        what = "count above 0" if family == "poisson" else "event"
        if events <= floor:
            return NotEstimable(f"no record has the {what}, or too few against the noise", "more records, or more epsilon")
        if family == "logistic" and records - events <= floor:
            return NotEstimable("every record has the event, or nearly, against the noise", "more records, or more epsilon")
        return None

    def infinite(
        self, fit: Fit, family: str, most: float, reference: Mapping[str, str] | None = None, offset: float = 0.0
    ) -> dict[str, NotEstimable]:
        """Terms without a finite coefficient, and why; what is expected of a level is so at the mean of its other terms.

        Args:
            fit: of odds, rates or hazards.
            family: of the regression.
            most: the largest mean of counts.
            reference: of categories that are not compared with their first level.
            offset: about what records' offsets add to the linear predictor.
        """
        if isinstance(fit, UntoldFit):
            return {}
        sums = self.sums
        known = self.gram / np.maximum(self.gram[:, :1], 1e-9)
        eta = np.where(sums.records > 0.0, known @ fit.coefficients + offset, 0.0)
        if family == "cox":
            share = float(sums.events[0]) / max(float(sums.records[0]), 1.0)
            fitted = sums.records * share * np.exp(np.minimum(eta - eta[0], 50.0))
        else:
            fitted = sums.records * families.mean_of("logistic" if family == "logistic" else "poisson", eta, most)[0]
        what = "a count above 0" if family == "poisson" else "the event"
        compared = reference or {}
        found = infinite_terms(self.question, sums, fitted, f"nobody has {what}", compared)
        if family == "logistic":
            rest = sums.records - fitted
            found |= infinite_terms(self.question, sums.rest, rest, "everybody has the event", compared)
        return found


def fit_newton(
    federation: Federation,
    first: FirstMoments,
    steps: Sequence[str],
    family: families.Family,
    most: float,
    offsets: tuple[float, float] = (0.0, 0.0),
) -> NewtonFit:
    """Run the rounds of these labels; W and the first point are of the moments.

    Args:
        federation: of the study.
        first: what the first release told; its cohort takes part.
        steps: labels of the rounds.
        family: of the regression.
        most: the largest mean of counts.
        offsets: mean and standard deviation of what records' offsets add to the linear predictor.
    """
    gram, std, grain = first.gram, first.std, first.part.grain
    whiten, (_, untold) = newton.whitening(gram, std, grain), told_directions(gram, std, grain)
    cells = Cells(family, gram, first.question.categories, most, offsets)
    offset = offsets[0] + offsets[1] ** 2 / 2.0
    point, released = newton.first_point(family, gram, first.events, whiten, most, offset), list[NewtonRelease]()
    names = term_names(first.question)
    for label in steps:
        broadcast = {WHITEN: newton.padded(whiten, len(gram)), POINT: newton.padded(point, len(gram))}
        released.append(newton_release(federation.sum(label, broadcast, members=first.release.cohort), point))
        fit = NewtonFit(whiten, tuple(released), names, untold, cells=cells, numbers=first.question.numeric)
        point = fit.point
    return fit


def newton_release(release: Release, at: Floats) -> NewtonRelease:
    """What a round at a point (k,) tells; further values are zeros and noise."""
    values, stds, k = release.values, release.noise_std, len(at)

    def matrix(before: str = "") -> Floats:
        diagonal = values[f"{before}diagonal"]
        none = np.zeros(len(diagonal) * (len(diagonal) - 1) // 2)
        return symmetric(diagonal, values.get(f"{before}cross", none))[:k, :k]

    found = NewtonRelease(at, values["score"][:k], matrix(), stds["score"], stds["diagonal"])
    if f"{EXCESS}diagonal" not in values:
        return found
    return replace(found, excess=matrix(EXCESS), excess_std=stds[f"{EXCESS}diagonal"])
