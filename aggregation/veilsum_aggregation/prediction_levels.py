"""Sums by level of a prediction: functions of them with both errors, and solutions of estimating equations.

A level is an interval of the linear predictor h: the prediction itself of a number, the log odds of a probability, the
logarithm of a rate or of a relative hazard. Sums over records of f(h) are taken as sums over levels of

    (8 f(c) - f(c - w/2) - f(c + w/2)) / 6 = f(c) - w^2 f''(c) / 24 + O(w^4)

at a level's centre c and width w: Sheppard's correction, which leaves an error of order w^4 where h is spread smoothly
(Kendall and Stuart, The Advanced Theory of Statistics 1, chapter 3). Errors are those of first order, by noise and by sampling
apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer, NotEstimable, project, ratio_figure, student_figure
from veilsum_aggregation.group_means import kurtosis
from veilsum_aggregation.moments import NOISE_FLOOR

Function = Callable[[Floats], Floats]

Equations = Callable[[Floats], Callable[[Floats], Floats]]
"""At a point (k,): a function of sums (B, r) that is 0, (k,), where the point solves the equations. What depends on the point
alone is computed once for all sums."""

ADVICE = "more records, or more epsilon"
FEW = NotEstimable("the released count is within its noise", ADVICE)
FLAT = NotEstimable("the prediction varies too little against the noise", ADVICE)

ALIKE = NotEstimable("the records do not vary about what is predicted", "more records")

CERTAIN = 1e-14
"""A sampling variance that is none up to rounding, relative to the square of what it is of."""

LARGEST_COUNT = 5000
"""The largest count whose probability is added up; larger counts of a cohort are taken to be this one."""

STEPS = 60
"""Steps of Newton's method; more than any estimating equation here takes."""


@dataclass(frozen=True)
class Levels:
    """Noised sums by level.

    Attributes:
        centres, width: of the levels, (B,), which are of one width.
        sums: (B, r), of r functions of a record's outcome.
        noise: standard deviation of the noise of a sum, (r,).
        second: sums over a level's records of t t', t their r functions, (B, r, r), for the sampling error.
        ones: (r,): what makes 1 of t.
        shift: c of a number's x^2 - c.
    """

    centres: Floats
    width: float
    sums: Floats
    noise: Floats
    second: Floats
    ones: Floats
    shift: float = 0.0

    @cached_property
    def number(self) -> float:
        """Records."""
        return float((self.sums @ self.ones).sum())

    @property
    def drowned(self) -> bool:
        """Whether the number of records is within its noise."""
        std = math.sqrt(len(self.centres)) * float(np.linalg.norm(self.ones * self.noise))
        return not self.number > max(NOISE_FLOOR * std, 0.5)

    def smooth(self, function: Function) -> Floats:
        """What to multiply a level's number by for the sum of a function of h, (B,)."""
        half = self.width / 2.0
        ends = function(self.centres - half) + function(self.centres + half)
        return np.asarray((8.0 * function(self.centres) - ends) / 6.0, dtype=np.float64)

    def ratio(self, top: Floats, bottom: Floats) -> Answer:
        """The ratio of two linear functions (B, r) of the sums, by Fieller's rule."""
        square = self.noise**2
        noise = [float((one * two * square).sum()) for one, two in ((top, top), (top, bottom), (bottom, bottom))]
        sampling = [
            float(np.einsum("bi,bij,bj", one, self.second, two)) for one, two in ((top, top), (top, bottom), (bottom, bottom))
        ]
        over, under = float((top * self.sums).sum()), float((bottom * self.sums).sum())
        parts = [(part[0], -2.0 * part[1], part[2]) for part in (noise, sampling)]
        return ratio_figure(over, under, parts[0], parts[1], ADVICE)

    def over_expected(self, top: Floats, expected: Floats, squares: Floats | None = None) -> Answer:
        """What happened, a linear function (B, r), over what was ``expected`` of a record, (B,); neither is below 0.

        The sampling variance of a few events is what those few happen to show. So the interval also holds the ratios p that a
        score test does not reject, by which what happened has the variance p m - p^2 q: m the sum expected, q that of its
        ``squares`` for events, and 0 for counts, which are Poisson's then.
        """
        bottom = expected[:, None] * self.ones
        found, number = self.ratio(top, bottom), self.sums @ self.ones
        model = 0.0, float(number @ expected), 0.0 if squares is None else -float(number @ squares)
        noise = tuple(float((one * two * self.noise**2).sum()) for one, two in ((top, top), (top, bottom), (bottom, bottom)))
        scored = ratio_figure(float((top * self.sums).sum()), model[1], (noise[0], -2.0 * noise[1], noise[2]), model, ADVICE)
        if isinstance(found, NotEstimable) or isinstance(scored, NotEstimable):
            return found
        return found.reaching(scored).within(0.0, math.inf)

    def mean(self, top: Floats) -> Answer:
        """The mean over records of a linear function."""
        return self.ratio(top, np.broadcast_to(self.ones, top.shape))

    def solution(
        self, equations: Equations, start: Floats, floor: float = NOISE_FLOOR, *, scores: bool = True
    ) -> list[Answer]:
        """The point (k,) at which estimating equations of the sums (B, r) and a point are 0.

        Its covariance is J^-1 V J^-T, with J their derivative by the point and V the covariance of their value (Huber 1967).
        Of a few events V is what those few happen to show; so where the equations are the ``scores`` of a model whose
        information is -J, sampling errors are at least that model's; of others they are Student's, as of least squares (HC1).
        It is estimable where J's smallest eigenvalue is ``floor`` times as large as its noise.
        """
        point = start.astype(np.float64)
        for _ in range(STEPS):
            value, slope = equations(point)(self.sums), _jacobian(equations, point)(self.sums)
            if not np.isfinite(slope).all() or np.linalg.cond(slope) > 1e10:
                return [FLAT] * len(start)
            step = np.linalg.solve(slope, value)
            point = point - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-300))
            if float(np.abs(step).max()) < 1e-9:
                break
        else:
            return [FLAT] * len(start)
        derivative = _jacobian(equations, point)
        slope = derivative(self.sums)
        values, vectors = np.linalg.eigh(-(slope + slope.T) / 2.0)
        weakest = vectors[:, 0]
        of_weakest = _gradient(lambda sums: np.array([weakest @ -derivative(sums) @ weakest]), self.sums)[0]
        reach = math.sqrt(float((of_weakest**2 * self.noise**2).sum()))
        if not values[0] > max(floor * reach, 0.0):
            return [FLAT] * len(start)
        gradients = _gradient(equations(point), self.sums)
        inverse = np.linalg.inv(slope)
        noise, sampling = (inverse @ part @ inverse.T for part in self._variances(gradients))
        of_sampling = np.diag(sampling)
        if not noise.any() and (of_sampling <= CERTAIN * (1.0 + point**2)).any():
            return [ALIKE] * len(start)
        of_noise, degrees = np.sqrt(np.maximum(np.diag(noise), 0.0)), max(self.number - len(start), 1.0)
        of_sampling = np.maximum(of_sampling, -np.diag(inverse)) if scores else of_sampling * (1.0 + len(start) / degrees)
        errors = zip(point, of_noise, np.sqrt(np.maximum(of_sampling, 0.0)), strict=True)
        reach = math.inf if scores else degrees
        return [student_figure(float(at), float(noised), float(sampled), reach) for at, noised, sampled in errors]

    def _variances(self, gradients: Floats) -> tuple[Floats, Floats]:
        """Covariances (k, k) by noise and by sampling of functions with these gradients (k, B, r)."""
        noise = np.einsum("kbi,lbi,i->kl", gradients, gradients, self.noise**2)
        means = np.einsum("kbi,bi->k", gradients, self.sums)
        sampling = np.einsum("kbi,bij,lbj->kl", gradients, self.second, gradients) - np.outer(means, means) / self.number
        return noise, sampling


def _gradient(function: Function, sums: Floats) -> Floats:
    """Gradient of a function (k,) of the sums (B, r), by differences: (k, B, r)."""
    found = []
    for place in np.ndindex(sums.shape):
        step = 1e-4 * max(1.0, abs(float(sums[place])))
        above, below = sums.copy(), sums.copy()
        above[place] += step
        below[place] -= step
        found.append((function(above) - function(below)) / (2.0 * step))
    return np.stack(found, axis=1).reshape(-1, *sums.shape)


def _jacobian(equations: Equations, point: Floats) -> Function:
    """The equations' derivatives by the point, (k, k), as a function of the sums."""
    step = 1e-5
    moves = step * np.eye(len(point))
    beside = [(equations(point + move), equations(point - move)) for move in moves]
    return lambda sums: np.stack([(above(sums) - below(sums)) / (2.0 * step) for above, below in beside], axis=1)


def event_levels(centres: Floats, width: float, table: Floats, std: float) -> Levels:
    """Levels of log odds: records without and with the event, (B, 2), with noise of ``std`` in each."""
    counts = project(table)
    second = np.zeros((*table.shape, 2))
    second[:, [0, 1], [0, 1]] = counts
    return Levels(centres, width, table, np.full(2, std), second, np.ones(2))


@dataclass(frozen=True)
class OutcomeRange:
    """A bounded outcome: ``middle`` and ``half`` the middle and half the length of its range, in its unit."""

    middle: float
    half: float


def number_levels(centres: Floats, width: float, sums: Floats, noise: Floats, shift: float) -> Levels:
    """Levels with a number x in [-1, 1] as outcome: sums of 1, x and x^2 - ``shift`` (B, 3), with noise of ``noise`` (3,).

    No sum tells third and fourth moments: they are those of the beta distribution with a level's mean and variance, with the
    heavier tail of :func:`~veilsum_aggregation.group_means.kurtosis`. Levels within noise take those of all records.
    """
    whole = _moments(sums.sum(axis=0), noise * math.sqrt(len(sums)), shift)
    second = np.zeros((len(sums), 3, 3))
    for level, own in enumerate(sums):
        count = max(float(own[0]), 0.0)
        known = own[0] > NOISE_FLOOR * noise[0]
        mean, variance = _moments(own, noise, shift) if known else whole
        second[level] = count * _products(mean, variance, shift)
    return Levels(centres, width, sums, noise, second, np.array([1.0, 0.0, 0.0]), shift)


def _moments(sums: Floats, noise: Floats, shift: float) -> tuple[float, float]:
    """Mean and a careful variance (:meth:`~veilsum_aggregation.group_means.NumberSums.careful_variance`)."""
    count = max(float(sums[0]), 1.0)
    mean = min(max(float(sums[1]) / count, -0.999), 0.999)
    value = float(sums[2]) / count + shift - mean**2
    error = math.hypot(float(noise[2]), 2.0 * mean * float(noise[1])) / count
    return mean, min(max(value, 0.0) + error, 1.0 - mean**2)


def _products(mean: float, variance: float, shift: float) -> Floats:
    """E t t' of t = (1, x, x^2 - shift)."""
    fourth = kurtosis(mean, variance) * variance**2
    third = _skewness(mean, variance) * variance**1.5
    raw2, raw3 = variance + mean**2, third + 3.0 * mean * variance + mean**3
    raw4 = fourth + 4.0 * mean * third + 6.0 * mean**2 * variance + mean**4
    q, xq, qq = raw2 - shift, raw3 - shift * mean, raw4 - 2.0 * shift * raw2 + shift**2
    return np.array([[1.0, mean, q], [mean, raw2, xq], [q, xq, qq]])


def _skewness(mean: float, variance: float) -> float:
    """Skewness of the beta distribution on [-1, 1]."""
    low, small = (mean + 1.0) / 2.0, variance / 4.0
    if not 0.0 < small < low * (1.0 - low):
        return 0.0
    nu = low * (1.0 - low) / small - 1.0
    a, b = low * nu, (1.0 - low) * nu
    return 2.0 * (b - a) * math.sqrt(nu + 1.0) / ((nu + 2.0) * math.sqrt(a * b))


def rate_levels(levels: Levels, products: float, noise: float, outcome: OutcomeRange, product: OutcomeRange) -> Levels:
    """Levels of a count, with y log y as a fourth function; what is told of it is the sum of all levels.

    The moments that the sampling error needs are those of the negative binomial distribution with a level's mean and variance.

    Args:
        levels: of :func:`number_levels`.
        products, noise: sum over all levels of y log y, scaled to [-1, 1] as ``product`` says, and the noise in it. Each level
            gets an equal part, so that functions that treat all levels' alike are right.
        outcome, product: of the count and of y log y.
    """
    many, shift = len(levels.sums), levels.shift
    sums = np.column_stack([levels.sums, np.full(many, products / many)])
    second, whole = np.zeros((many, 4, 4)), levels.sums.sum(axis=0)
    for level, own in enumerate(levels.sums):
        known = own[0] > NOISE_FLOOR * levels.noise[0]
        x, spread = _moments(own if known else whole, levels.noise, shift)
        mean = max(outcome.middle + outcome.half * x, 1e-3)
        y, share = _counts(mean, spread * outcome.half**2, outcome.middle + outcome.half)
        at = (y - outcome.middle) / outcome.half
        log = (y * np.log(np.maximum(y, 1.0)) - product.middle) / product.half
        t = np.stack([np.ones_like(at), at, at**2 - shift, log])
        second[level] = max(float(own[0]), 0.0) * (t * share) @ t.T
    ones = np.array([1.0, 0.0, 0.0, 0.0])
    return Levels(levels.centres, levels.width, sums, np.append(levels.noise, noise / math.sqrt(many)), second, ones, shift)


def _counts(mean: float, variance: float, most: float) -> tuple[Floats, Floats]:
    """Counts and their probabilities: negative binomial, of at least the variance of a Poisson distribution."""
    size = mean**2 / max(variance - mean, 1e-4 * mean)
    last = int(min(most, mean + 12.0 * math.sqrt(max(variance, mean)) + 20.0, LARGEST_COUNT))
    y = np.arange(last + 1, dtype=np.float64)
    steps = np.log((y[:-1] + size) / (y[:-1] + 1.0)) + math.log(mean / (size + mean))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    share = np.exp(logs - logs.max())
    return y, share / share.sum()
