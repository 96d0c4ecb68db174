"""How good predictions are, from noised sums by level: how they rank, their losses, explained deviance, calibration.

Every function takes the :class:`~veilsum_aggregation.prediction_levels.Levels` of one kind of prediction and gives its
measures by name, in the order in which people read them.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.concordance import area, concordance
from veilsum_aggregation.figures import Answer, Figure, NotEstimable, of_both, project
from veilsum_aggregation.group_means import chi_squared_ends
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_aggregation.prediction_levels import ADVICE, FEW, Equations, Function, Levels, OutcomeRange

FEW_EVENTS = NotEstimable("the released number of records with the event, or without it, is within its noise", ADVICE)

AREA, BRIER, LOG_LOSS, LIFT = "area under the ROC curve", "Brier score", "log loss", "deviance explained"
SKILL, SLOPE, INTERCEPT, RATIO = "Brier skill score", "calibration slope", "calibration intercept", "observed over expected"
ERROR, ROOT, EXPLAINED, DEVIANCE = "mean error", "root mean squared error", "R squared", "mean deviance"
CONCORDANCE = "concordance"

STEEP = 8.0
"""Noise floor of a hazard's calibration: its information is a ratio of noised sums, and skewed near its noise."""

OUTER = 2
"""Levels at either end that a hazard's calibration leaves out."""


def expit(h: Floats) -> Floats:
    """1 / (1 + exp(-h))."""
    return np.asarray(0.5 * (1.0 + np.tanh(h / 2.0)), dtype=np.float64)


def event_measures(levels: Levels) -> Iterator[tuple[str, Answer]]:
    """Measures of predicted probabilities: how they rank, their losses, and their calibration.

    ``deviance explained`` is 1 - (mean log loss) / (that of the constant guess), McFadden's R squared; ``Brier skill score``
    the same of the Brier score. Slope and intercept of calibration are of the logistic regression of the event on the log
    odds, the intercept with the slope at 1 (Cox 1958; Van Calster and others 2016): 1 and 0 are perfect.
    """
    std, totals = float(levels.noise[0]), levels.sums.sum(axis=0)
    names = AREA, BRIER, SKILL, LOG_LOSS, LIFT, RATIO, SLOPE, INTERCEPT
    if min(totals) <= max(NOISE_FLOOR * std * math.sqrt(len(levels.centres)), 0.5):
        yield from ((name, FEW_EVENTS) for name in names)
        return
    square = np.stack([levels.smooth(lambda h: expit(h) ** 2), levels.smooth(lambda h: expit(-h) ** 2)], axis=1)
    loss = np.stack([levels.smooth(lambda h: np.logaddexp(0.0, h)), levels.smooth(lambda h: np.logaddexp(0.0, -h))], axis=1)
    happened = np.zeros_like(square)
    happened[:, 1] = 1.0

    def both(point: Floats) -> Function:
        share = levels.smooth(lambda h: expit(point[0] + point[1] * h))
        first = levels.smooth(lambda h: expit(point[0] + point[1] * h) * h)

        def scores(sums: Floats) -> Floats:
            number = sums.sum(axis=1)
            return np.array([sums[:, 1].sum() - number @ share, sums[:, 1] @ levels.centres - number @ first])

        return scores

    slope = levels.solution(both, np.array([0.0, 1.0]))[1]
    intercept = levels.solution(_with_slope_one(both), np.zeros(1))[0]
    yield AREA, _untied(area(levels.sums[:, 0], levels.sums[:, 1], std), slope, levels)
    yield BRIER, _mean_loss(levels, square).within(0.0, 1.0)
    share = float(totals[1] / totals.sum())
    yield SKILL, _brier_skill(levels, square, np.broadcast_to([share**2, (1.0 - share) ** 2], square.shape), intercept)
    yield LOG_LOSS, _mean_loss(levels, loss).within(0.0, math.inf)
    constant = -math.log(1.0 - share), -math.log(share)
    yield LIFT, _skill(levels.ratio(loss, np.broadcast_to(constant, loss.shape)))
    yield RATIO, levels.over_expected(happened, levels.smooth(expit), square[:, 0])
    yield SLOPE, slope
    yield INTERCEPT, intercept


def _with_slope_one(equations: Equations) -> Equations:
    """The first of two equations, for the first coordinate of a point whose second is 1."""

    def first(point: Floats) -> Function:
        at = equations(np.array([point[0], 1.0]))
        return lambda sums: at(sums)[:1]

    return first


def _untied(found: Answer, slope: Answer, levels: Levels) -> Answer:
    """An area with what ties hide: within a level the odds of the event rise with the calibration slope b, so that the record
    with the event has the larger prediction in 1/2 + b w / 12 of the pairs, to first order in w."""
    if isinstance(found, NotEstimable) or isinstance(slope, NotEstimable):
        return found
    totals = levels.sums.sum(axis=0)
    tied = float(levels.sums[:, 0] @ levels.sums[:, 1]) / float(totals[0] * totals[1])
    return found.scaled(1.0, slope.value * levels.width / 12.0 * max(tied, 0.0)).within(0.0, 1.0)


def _mean_loss(levels: Levels, loss: Floats) -> Answer:
    """The mean of a loss (B, 2), most of which is that of few records where the event is rare, or where it is common.

    From sampling its interval is that of a multiple of a Poisson count with its mean and variance (Garwood 1936; Dobson and
    others 1991): of k = mean^2 / variance events, which a gamma distribution gives.
    """
    found, noise = levels.mean(loss), replace(levels, second=np.zeros_like(levels.second)).mean(loss)
    if isinstance(found, NotEstimable) or isinstance(noise, NotEstimable) or not min(found.value, found.sampling_error) > 0.0:
        return found
    value, events = found.value, (found.value / found.sampling_error) ** 2
    least, most = chi_squared_ends(2.0 * events)[1], chi_squared_ends(2.0 * events + 2.0)[0]
    low, high = min(least / (2.0 * events), 1.0), max(most / (2.0 * events), 1.0)
    return of_both(noise, replace(found, low=low * value, high=high * value))


def _brier_skill(levels: Levels, square: Floats, constant: Floats, intercept: Answer) -> Answer:
    """Of few events the variance is what those few happen to show. So the interval also holds that of the events which the
    predictions expect once their calibration's ``intercept`` is added, as :meth:`Levels.solution` has a model's errors."""
    found, expected = levels.ratio(square, constant), np.zeros_like(levels.second)
    risk = expit(levels.centres + (intercept.value if isinstance(intercept, Figure) else 0.0))
    expected[:, [0, 1], [0, 1]] = levels.second.sum(axis=(1, 2))[:, None] * np.stack([1.0 - risk, risk], axis=1)
    model = replace(levels, second=expected).ratio(square, constant)
    return _skill(found if isinstance(found, NotEstimable) or isinstance(model, NotEstimable) else found.reaching(model))


def _skill(found: Answer) -> Answer:
    """1 less the ratio of a model's loss to that of the constant guess.

    The guess that is best for the released sums stands in the ratio as a constant: the loss does not change with it, to first
    order, so that its own error does not count.
    """
    if isinstance(found, NotEstimable):
        return found
    told = 1.0 - found.high, 1.0 - found.low
    return Figure(1.0 - found.value, found.noise_error, found.sampling_error, *told).within(-math.inf, 1.0)


def number_measures(levels: Levels, outcome: OutcomeRange) -> Iterator[tuple[str, Answer]]:
    """Measures of predicted numbers, in the outcome's unit: R squared, errors, and calibration.

    ``R squared`` is 1 - (mean squared error) / (variance of the outcome): of the predictions as they are, so that it can be
    negative. ``mean error`` is observed less predicted; the slope is that of the outcome on the prediction.
    """
    names = EXPLAINED, ROOT, ERROR, SLOPE
    if levels.drowned:
        yield from ((name, FEW) for name in names)
        return
    middle, half, shift = outcome.middle, outcome.half, levels.shift

    def scaled(h: Floats) -> Floats:
        return (h - middle) / half

    square = levels.smooth(lambda h: scaled(h) ** 2)
    at = scaled(levels.centres)
    ones = np.ones_like(at)
    error = np.stack([square + shift, -2.0 * at, ones], axis=1)

    number, total, _ = levels.sums.sum(axis=0)
    middling = float(total / number)
    spread = np.broadcast_to([middling**2 + shift, -2.0 * middling, 1.0], error.shape)
    yield EXPLAINED, _skill(levels.ratio(error, spread))
    squared = levels.mean(error)
    yield ROOT, squared if isinstance(squared, NotEstimable) else _root(squared.scaled(half**2))
    off = levels.mean(np.stack([-at, ones, 0.0 * ones], axis=1))
    yield ERROR, off.scaled(half)

    def line(point: Floats) -> Function:
        def scores(sums: Floats) -> Floats:
            count, x = sums[:, 0], sums[:, 1]
            return np.array(
                [
                    x.sum() - point[0] * count.sum() - point[1] * (count @ at),
                    x @ at - point[0] * (count @ at) - point[1] * (count @ square),
                ]
            )

        return scores

    yield SLOPE, levels.solution(line, np.array([0.0, 1.0]), scores=False)[1]


def _root(figure: Figure) -> Answer:
    """The root of a mean square; errors by the delta method, its interval by the ends, which are at least as far away as those
    of chi-squared of the degrees of freedom that its sampling error has, as of a variance."""
    if not figure.value > 0.0:
        return NotEstimable("the squared error is within its noise", ADVICE)
    value = math.sqrt(figure.value)
    if figure.sampling_error > 0.0:
        degrees = 2.0 * (figure.value / figure.sampling_error) ** 2
        low, high = (figure.value * degrees / end for end in chi_squared_ends(degrees))
        figure = figure.reaching(replace(figure, low=low, high=high))
    ends = math.sqrt(max(figure.low, 0.0)), math.sqrt(figure.high) if math.isfinite(figure.high) else math.inf
    return Figure(value, figure.noise_error / (2.0 * value), figure.sampling_error / (2.0 * value), *ends)


def rate_measures(levels: Levels, outcome: OutcomeRange, product: OutcomeRange) -> Iterator[tuple[str, Answer]]:
    """Measures of predicted means of counts: Poisson deviance, how much of it is explained, and calibration.

    The deviance is 2 mean(y log y - y h + exp h - y); explained is its share of the constant guess's. Slope and intercept are
    of the Poisson regression of the count on the logarithm of its prediction, with errors that hold for any variance.

    Args:
        levels: of :func:`rate_levels`.
        outcome, product: of the count and of y log y.
    """
    names = RATIO, DEVIANCE, LIFT, SLOPE, INTERCEPT
    total = outcome.middle * levels.sums[:, 0].sum() + outcome.half * levels.sums[:, 1].sum()
    of_counts = outcome.middle * float(levels.noise[0]), outcome.half * float(levels.noise[1])
    if levels.drowned or not total > NOISE_FLOOR * math.sqrt(len(levels.centres)) * math.hypot(*of_counts):
        yield from ((name, FEW) for name in names)
        return
    h, zeros, mean = levels.centres, np.zeros_like(levels.centres), levels.smooth(np.exp)
    counted = np.stack([zeros + outcome.middle, zeros + outcome.half, zeros, zeros], axis=1)
    yield RATIO, levels.over_expected(counted, mean)
    deviance = -2.0 * (h + 1.0)[:, None] * counted
    deviance += 2.0 * np.stack([mean + product.middle, zeros, zeros, zeros + product.half], axis=1)
    yield DEVIANCE, levels.mean(deviance).within(0.0, math.inf)

    mean_count = float((counted * levels.sums).sum()) / levels.number
    products = np.stack([zeros + product.middle, zeros, zeros, zeros + product.half], axis=1)
    guess = np.stack([zeros + mean_count, zeros, zeros, zeros], axis=1)
    constant = 2.0 * (products - (math.log(mean_count) + 1.0) * counted + guess)
    yield LIFT, _skill(levels.ratio(deviance, constant))

    def both(point: Floats) -> Function:
        first = levels.smooth(lambda h: np.exp(point[0] + point[1] * h))
        times = levels.smooth(lambda h: np.exp(point[0] + point[1] * h) * h)

        def scores(sums: Floats) -> Floats:
            number, counts = sums[:, 0], (counted * sums).sum(axis=1)
            return np.array([counts.sum() - number @ first, counts @ h - number @ times])

        return scores

    yield SLOPE, levels.solution(both, np.array([0.0, 1.0]))[1]
    yield INTERCEPT, levels.solution(_with_slope_one(both), np.zeros(1))[0]


def hazard_measures(centres: Floats, width: float, ends: Floats, beyond: Floats, std: float) -> Iterator[tuple[str, Answer]]:
    """Measures of predicted log relative hazards: Harrell's C, and the slope of calibration.

    The slope is the coefficient of the prediction in a proportional-hazards model whose baseline is constant within the
    intervals of time, of which records have half where their time ended in it. The :data:`OUTER` levels at either end are left
    out of it: the few records there are far away, and the noise of their numbers would count most.

    Args:
        centres, width: of the levels, (B,).
        ends: by level, interval of time, and ending: censored, or a cause of the event, (B, J, K).
        beyond: those whose time did not end in any interval, (B,).
        std: of the noise in each count.
    """
    levels, intervals, kinds = ends.shape
    table = np.concatenate([ends.reshape(levels, -1), beyond[:, None]], axis=1)
    counts = project(table)
    second = np.zeros((*table.shape, table.shape[1]))
    diagonal = np.arange(table.shape[1])
    second[:, diagonal, diagonal] = counts
    found = Levels(centres, width, table, np.full(table.shape[1], std), second, np.ones(table.shape[1]))
    events = float(ends[:, :, 1:].sum())
    if events <= max(NOISE_FLOOR * std * math.sqrt(ends[:, :, 1:].size), 0.5):
        yield from ((name, FEW_EVENTS) for name in (CONCORDANCE, SLOPE))
        return
    yield CONCORDANCE, concordance(ends, beyond, std)

    inner = np.ones(levels)
    inner[:OUTER] = inner[levels - OUTER :] = 0.0

    def score(point: Floats) -> Function:
        weight = found.smooth(lambda h: np.exp(point[0] * h)) * inner
        times = found.smooth(lambda h: np.exp(point[0] * h) * h) * inner

        def scores(sums: Floats) -> Floats:
            inside = sums[:, :-1].reshape(levels, intervals, kinds)
            died, ended = inside[:, :, 1:].sum(axis=2), inside.sum(axis=2)
            later = sums[:, -1:] + np.cumsum(ended[:, ::-1], axis=1)[:, ::-1] - ended
            exposed = later + 0.5 * ended
            risk = weight @ exposed
            usable = risk > 0.0
            mean = np.where(usable, (times @ exposed) / np.where(usable, risk, 1.0), 0.0)
            return np.array([float((died * (centres[:, None] - mean) * usable * inner[:, None]).sum())])

        return scores

    yield SLOPE, found.solution(score, np.ones(1), STEEP)[0]
