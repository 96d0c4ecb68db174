"""Survival curves, cumulative incidence and log-rank tests from noised counts of intervals of time.

A record stands in one cell: its group, the interval in which its time ended, and how: censored, or by a cause. Longer times
stand past the horizon. At risk in interval b are r_b = all later ones + those that end in b, less half of the censored of b
(the actuarial assumption); h_b = d_b / r_b and S = prod (1 - h_b).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Z95, Figure, NotEstimable, Test, chi_squared, delta_rule, hidden_share, student
from veilsum_aggregation.moments import NOISE_FLOOR


@dataclass(frozen=True)
class SurvivalCounts:
    """Noised counts of one group.

    Attributes:
        ends: (bins, causes + 1): censored, then events by cause.
        beyond: past the horizon.
        std: of the noise in each count.
        edges: (bins + 1,) of the intervals, from the start to the horizon.
    """

    ends: Floats
    beyond: float
    std: float
    edges: tuple[float, ...]

    @property
    def bins(self) -> int:
        """Number of intervals."""
        return len(self.ends)

    @property
    def vector(self) -> Floats:
        """All counts, the last one those past the horizon."""
        return np.append(self.ends.ravel(), self.beyond)

    def at_risk(self) -> Floats:
        """r_b, (bins,)."""
        return _at_risk(self.ends, self.beyond)

    def told(self) -> int:
        """How many intervals there are before the first one whose number at risk is within its noise."""
        parts = np.arange(self.bins, 0, -1) * self.ends.shape[1] + 1
        floor = 4.0 * self.std * np.sqrt(parts)
        low = np.flatnonzero(self.at_risk() <= np.maximum(floor, 0.5))
        return int(low[0]) if low.size else self.bins

    @property
    def died_out(self) -> bool:
        """Whether it is known that all who were at risk had an event, so that nobody is later."""
        told = self.told()
        if self.std > 0.0 or not 0 < told < self.bins:
            return False
        return bool(self.ends[told - 1, 1:].sum() >= self.at_risk()[told - 1])


@dataclass(frozen=True)
class SurvivalCurve:
    """A survival curve at the ends of its intervals.

    Attributes:
        times: (k,), of the intervals that can be told.
        survival: a figure for each.
        at_risk: (k,) number at risk at the beginning of each interval.
        events: (k,) events in it.
        truncated: whether the curve ends before the horizon, because of noise.
    """

    times: tuple[float, ...]
    survival: tuple[Figure, ...]
    at_risk: tuple[float, ...]
    events: tuple[float, ...]
    truncated: bool


def survival_curve(counts: SurvivalCounts) -> SurvivalCurve | NotEstimable:
    """The life-table estimate, with Greenwood's sampling error and the noise's own, and an interval on the scale log(-log S).

    d log(1 - h_b) = -(dd_b - h_b dr_b) / (r_b (1 - h_b)). Where all at risk seem to have the event, S is 0 and the curve ends:
    its interval there reaches from 0 to what :func:`_alive` allows.
    """
    told = counts.told()
    if told == 0:
        return NotEstimable(
            "the number at risk is within its noise", "fewer intervals or groups, more records, or more epsilon"
        )
    risk, events = counts.at_risk()[:told], counts.ends[:told, 1:].sum(axis=1)
    alive, figures = _alive(counts, risk, events), list[Figure]()
    ended = [b for b, left in enumerate(alive) if left.value <= 0.0]
    told = min([told, *(b + 1 for b in ended)])
    risk, events = risk[:told], events[:told]
    hazard = np.clip(events / risk, 0.0, 1.0)
    last = told - 1 if ended else told
    survival = np.concatenate([[1.0], np.cumprod(1.0 - hazard)])
    greenwood = np.cumsum(hazard[:last] / (np.maximum(risk[:last], 1.0) * (1.0 - hazard[:last])))
    for b in range(last):
        noise, told_by = _log_noise(counts, hazard, risk, b), float(greenwood[b])
        figures.append(_survival_figure(float(survival[b + 1]), noise, told_by, float(risk[b])))
    if ended:
        before = figures[-1].high if figures else 1.0
        figures.append(Figure(0.0, float(survival[last]) * alive[last].noise_error, 0.0, 0.0, before * alive[last].high))
    cut = told < counts.bins and counts.std > 0.0
    return SurvivalCurve(counts.edges[1 : told + 1], tuple(figures), tuple(risk.tolist()), tuple(events.tolist()), cut)


def _alive(counts: SurvivalCounts, risk: Floats, events: Floats) -> list[Figure]:
    """Share of those at risk who have no event in each interval, with an upper end that holds where all seem to have one.

    Of those at risk, all with an event, that is what so few may hide (:func:`~veilsum_aggregation.figures.hidden_share`), and
    what the noise may.
    """
    found = []
    for b, (at_risk, died) in enumerate(zip(risk, events, strict=True)):
        cells = (counts.bins - 1 - b) * counts.ends.shape[1] + 1.25  # all later ones, and half of the censored of b
        error = counts.std * math.sqrt(cells) / float(at_risk)
        value = 1.0 - float(died / at_risk)
        found.append(Figure(value, error, 0.0, 0.0, min(max(value, 0.0) + hidden_share(float(at_risk)) + Z95 * error, 1.0)))
    return found


def _log_noise(counts: SurvivalCounts, hazard: Floats, risk: Floats, last: int) -> float:
    """Variance of log S after interval ``last`` from the noise of every count."""
    gradient = np.zeros(counts.ends.shape)
    beyond = 0.0
    for b in range(last + 1):
        scale = 1.0 / (risk[b] * (1.0 - hazard[b]))
        gradient[b, 1:] -= scale
        gradient[b] += hazard[b] * scale
        gradient[b, 0] -= 0.5 * hazard[b] * scale
        gradient[b + 1 :] += hazard[b] * scale
        beyond += hazard[b] * scale
    return float(counts.std**2 * ((gradient**2).sum() + beyond**2))


def _survival_figure(s: float, noise: float, sampling: float, risk: float) -> Figure:
    errors, error = (s * math.sqrt(noise), s * math.sqrt(sampling)), math.sqrt(noise + sampling)
    near = 1.0 - s <= NOISE_FLOOR * errors[0]
    low, high = s - Z95 * s * error, s + Z95 * s * error
    if 0.0 < s < 1.0 and not (near and s > 0.99):
        half = min(Z95 * error / abs(math.log(s)), 700.0)
        low, high = s ** math.exp(half), s ** math.exp(-half)
    if near:  # perhaps nobody had the event, which a share may have all the same
        low = min(low, s - math.hypot(hidden_share(risk), Z95 * s * error))
    return Figure(s, *errors, low, high).within(0.0, 1.0)


def survival_quantile(curve: SurvivalCurve, start: float, q: float) -> Figure | NotEstimable:
    """The time by which a share ``q`` has had an event: 0.5 for the median; Woodruff's interval from the curve's bands."""
    times = np.array([start, *curve.times])
    value = np.array([1.0, *(figure.value for figure in curve.survival)])
    low = np.array([1.0, *(figure.low for figure in curve.survival)])
    high = np.array([1.0, *(figure.high for figure in curve.survival)])
    ends = [_first_below(times, band, 1.0 - q) for band in (value, low, high)]
    if math.isinf(ends[0]):
        above = "" if math.isinf(ends[1]) else f"; with 97.5% it is above {ends[1]:g}"
        reason = f"the curve stays above {1.0 - q:g} to its end{above}"
        return NotEstimable(reason, "a longer horizon, more records, or more epsilon")
    slope = max((1.0 - value[-1]) / max(times[-1] - start, 1e-300), 1e-300)
    near = int(np.argmin(np.abs(value[1:] - (1.0 - q))))
    figure = curve.survival[near]
    return Figure(ends[0], figure.noise_error / slope, figure.sampling_error / slope, ends[1], ends[2])


def _first_below(times: Floats, band: Floats, level: float) -> float:
    below = np.flatnonzero(band <= level)
    if not below.size:
        return math.inf
    b = int(below[0])
    if b == 0 or band[b - 1] == band[b]:
        return float(times[b])
    return float(times[b - 1] + (band[b - 1] - level) / (band[b - 1] - band[b]) * (times[b] - times[b - 1]))


def restricted_mean(counts: SurvivalCounts) -> Figure | NotEstimable:
    """The mean of the time to the event, or to the horizon if that is earlier: the first edge and the area under the curve, by
    trapezoids, with errors by the delta rule.

    Without censoring it is the mean of numbers from 0 to the horizon. So of n records whose time is known, by an event or at
    the horizon, sampling has the reach of Student's t of n - 1 degrees, with Kaplan and Meier's (1958) factor n / (n - 1) on
    the variance. The interval is on the scale of the logit of its share of the horizon, on which it is skewed less and keeps
    within its bounds.
    """
    if counts.told() < counts.bins and not counts.died_out:
        return NotEstimable("the curve ends before the horizon", "a shorter horizon, more records, or more epsilon")
    lengths = np.diff(counts.edges)

    def area(vector: Floats) -> float:
        survival = np.concatenate([[1.0], np.cumprod(1.0 - _hazard(vector, counts.ends.shape))])
        return float(((survival[1:] + survival[:-1]) / 2.0) @ lengths)

    value, noise, sampling = delta_rule(area, counts.vector, counts.std)
    risk, events, horizon = counts.at_risk(), counts.ends[:, 1:].sum(axis=1), float(lengths.sum())
    degrees = max(float(events.sum()) + counts.beyond - 1.0, 1.0)
    half = math.hypot(Z95 * math.sqrt(noise), student(degrees) * math.sqrt(sampling * (1.0 + 1.0 / degrees)))
    low, high = value - half, value + half
    if NOISE_FLOOR * math.sqrt(noise) < min(value, horizon - value):
        share = value / horizon
        reach = min(half / horizon / (share * (1.0 - share)), 700.0)
        low, high = (horizon / (1.0 + math.exp(end) * (1.0 - share) / share) for end in (reach, -reach))
    died = np.flatnonzero(events > NOISE_FLOOR * counts.std * math.sqrt(counts.ends.shape[1] - 1.0))
    first = int(died[0]) if died.size else counts.bins - 1
    hidden = hidden_share(float(risk[first]))
    if not died.size:
        low = value - math.hypot(half, value * hidden)
    elif (
        died.size == 1 and risk[first] - events[first] < 0.5
    ):  # all in one interval: when in it is not known, nor whom the next
        before, after = float(lengths[:first].sum()), float(lengths[first + 1 :].sum())  # would miss
        low, high = min(low, before * (1.0 - hidden)), max(high, before + float(lengths[first]) + after * hidden)
    found = Figure(value, math.sqrt(noise), math.sqrt(sampling), low, high).within(0.0, horizon)
    return found.scaled(1.0, counts.edges[0])


def cumulative_incidence(counts: SurvivalCounts, cause: int) -> tuple[Figure, ...]:
    """The probability of an event by ``cause`` (from 1) by the end of each interval that can be told, others competing.

    The interval is on the scale log(-log F). Where nobody had it, or all, or who did is within the noise, others may as
    :func:`~veilsum_aggregation.figures.hidden_share` says.
    """
    figures: list[Figure] = []
    for last in range(counts.told()):

        def incidence(vector: Floats, last: int = last) -> float:
            ends = vector[:-1].reshape(counts.ends.shape)
            risk = _at_risk(ends, float(vector[-1]))
            before = np.concatenate([[1.0], np.cumprod(1.0 - _hazard(vector, counts.ends.shape))])
            return float((before[: last + 1] * ends[: last + 1, cause] / risk[: last + 1]).sum())

        value, noise, sampling = delta_rule(incidence, counts.vector, counts.std)
        errors, half = (math.sqrt(noise), math.sqrt(sampling)), Z95 * math.sqrt(noise + sampling)
        hidden, within = hidden_share(float(counts.at_risk()[last])), NOISE_FLOOR * errors[0]
        if within < value < 1.0 - within:  # as of a curve, on the scale log(-log)
            power = math.exp(min(half / (value * -math.log(value)), 700.0))
            low, high = value**power, value ** (1.0 / power)
        else:
            low = value - math.hypot(half, hidden * (value >= 1.0 - within))
            high = value + math.hypot(half, hidden * (value <= within))
        figures.append(Figure(value, *errors, low, high).within(0.0, 1.0))
    return tuple(figures)


def log_rank(groups: Sequence[SurvivalCounts]) -> Test | NotEstimable:
    """The test that all groups have one survival curve, up to the first interval in which one of them is within noise.

    Without noise it is of all intervals: where nobody of a group is at risk any more, it compares the others.

    U_g = sum_b (d_gb - d_b r_gb / r_b); sampling covariance sum_b d_b (r_b - d_b) / (r_b - 1) (diag(f) - f f') with
    f = r_gb / r_b, the hypergeometric distribution's; noise by the gradient of U.
    """
    told = min(group.told() for group in groups) if groups else 0
    if groups and not any(group.std for group in groups):
        told = groups[0].bins if sum(group.told() > 0 for group in groups) > 1 else 0
    if told == 0 or len(groups) < 2:
        return NotEstimable("the number at risk in a group is within its noise", "fewer intervals or groups, or more epsilon")
    shape, count = groups[0].ends.shape, len(groups)

    def scores(vector: Floats) -> Floats:
        tables = vector.reshape(count, -1)
        events = np.array([table[:-1].reshape(shape)[:told, 1:].sum(axis=1) for table in tables])
        risk = np.array([_at_risk(table[:-1].reshape(shape), float(table[-1]))[:told] for table in tables])
        shares = risk / np.maximum(risk.sum(axis=0), 1e-9)
        return np.asarray((events - events.sum(axis=0) * shares).sum(axis=1), dtype=np.float64)

    vector = np.concatenate([group.vector for group in groups])
    u = scores(vector)
    gradient = np.empty((count, vector.size))
    for place in range(vector.size):
        step = 1e-4 * max(1.0, abs(vector[place]))
        beside = vector.copy()
        beside[place] += step
        gradient[:, place] = (scores(beside) - u) / step
    std = np.concatenate([np.full(group.vector.size, group.std) for group in groups])
    noise = gradient * std**2 @ gradient.T
    events = np.array([group.ends[:told, 1:].sum(axis=1) for group in groups]).sum(axis=0)
    risk = np.array([group.at_risk()[:told] for group in groups])
    whole = risk.sum(axis=0)
    number = np.maximum(events, 0.0) * np.clip((whole - events) / np.maximum(whole - 1.0, 1.0), 0.0, 1.0)
    sampling = sum(
        (float(d) * (np.diag(f) - np.outer(f, f)) for d, f in zip(number, (risk / np.maximum(whole, 1e-9)).T, strict=True)),
        np.zeros((count, count)),
    )
    return chi_squared(u, noise, sampling, count - 1)


def _at_risk(ends: Floats, beyond: float) -> Floats:
    whole = ends.sum(axis=1)
    return np.asarray(np.cumsum(whole[::-1])[::-1] + beyond - ends[:, 0] / 2.0, dtype=np.float64)


def _hazard(vector: Floats, shape: tuple[int, ...]) -> Floats:
    ends = vector[:-1].reshape(shape)
    risk = np.maximum(_at_risk(ends, float(vector[-1])), 1e-9)
    return np.asarray(np.clip(ends[:, 1:].sum(axis=1) / risk, 0.0, 1.0), dtype=np.float64)
