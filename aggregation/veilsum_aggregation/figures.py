"""Figures of noised sums: a value, what the noise and what sampling does to it, and one interval for both.

A standard error of the noise alone says how far a figure lies from what the records would give; as an interval for the
population it covers far too little. So both errors are given apart, and the interval is of both together. Where a noised
number divides, the interval is the set of values that the data do not reject (Fieller 1954): it holds at any size, and is
unbounded exactly where the denominator is within its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.moments import NOISE_FLOOR

FLAT = 1e-9
"""An eigenvalue below this share of the largest is 0 up to rounding."""

Z95 = 1.959963984540054
"""Standard normal quantile of 97.5%."""

MODEL_ERRORS = "of independent records"
"""What errors are called that are the model's own, beside robust or clustered ones."""


@dataclass(frozen=True)
class Figure:
    """A value with its errors.

    Attributes:
        value: the estimate.
        noise_error: its standard error from the noise alone.
        sampling_error: from sampling alone: how it would vary between samples of records of this size.
        low, high: 95% interval of both together; infinite where the sums do not bound it.
        significance: probability of a value so far from 0 if it is 0, where the error is not normal.
    """

    value: float
    noise_error: float
    sampling_error: float
    low: float
    high: float
    significance: float | None = None

    @property
    def p_value(self) -> float:
        """Probability of a value so far from 0 if it is 0, both errors being normal unless it says otherwise."""
        if self.significance is not None:
            return self.significance
        error = math.hypot(self.noise_error, self.sampling_error)
        return math.erfc(abs(self.value) / error / math.sqrt(2.0)) if error > 0.0 else float(self.value == 0.0)

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0

    @property
    def towards_zero(self) -> float:
        """Standard error of both by the interval's end on the side of 0; infinite where it is open."""
        return (self.value - self.low if self.value > 0.0 else self.high - self.value) / Z95

    @property
    def noise_share(self) -> float:
        """Share of the error's variance that is noise: near 1, the records could hardly show; 0 of an exact figure."""
        variance = self.noise_error**2 + self.sampling_error**2
        return self.noise_error**2 / variance if variance > 0.0 else 0.0

    def scaled(self, factor: float, shift: float = 0.0) -> Figure:
        """The figure of ``factor`` (above 0) times the quantity plus ``shift``; of a shifted one, errors are normal again."""
        ends = self.low * factor + shift, self.high * factor + shift
        errors = self.noise_error * factor, self.sampling_error * factor
        return Figure(self.value * factor + shift, *errors, *ends, None if shift else self.significance)

    def within(self, low: float, high: float) -> Figure:
        """The figure of a quantity that lies in [low, high]: value and interval are cut off there."""
        value = min(max(self.value, low), high)
        return replace(self, value=value, low=min(max(self.low, low), high), high=max(min(self.high, high), low))

    def reaching(self, other: Figure) -> Figure:
        """The figure whose interval holds also another's."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def widened(self, by: float) -> Figure:
        """The figure whose interval reaches so much further on both sides, for what rounding may have changed."""
        return replace(self, low=self.low - by, high=self.high + by) if by else self

    def root(self) -> Answer:
        """The standard deviation of a variance; errors by the delta method, interval by the ends' roots.

        A variance that noise left at 0 or below has none: 0 would say that the values do not differ.
        """
        if self.value <= 0.0 and self.noise_error > 0.0:
            return NotEstimable("the variance is within its noise", "more records, or more epsilon")
        value = math.sqrt(max(self.value, 0.0))
        slope = 2.0 * max(value, 0.5 * math.sqrt(max(self.high, 1e-12)) if math.isfinite(self.high) else value, 1e-6)
        ends = math.sqrt(max(self.low, 0.0)), math.sqrt(self.high) if math.isfinite(self.high) else math.inf
        return Figure(value, self.noise_error / slope, self.sampling_error / slope, *ends)

    def exponential(self, most: float = math.inf) -> Figure:
        """exp of the figure, such as an odds ratio, against 1, not 0; errors by the delta method, ends by its own. What is
        beyond e^700 is ``most``."""
        value, low, high = (math.exp(end) if end < 700.0 else most for end in (self.value, self.low, self.high))
        return Figure(value, value * self.noise_error, value * self.sampling_error, low, high, self.p_value)

    def to_json(self) -> dict[str, Any]:
        """``value``, both errors, and the interval's ends, infinite ones as None."""
        if not math.isfinite(self.value):
            return NotEstimable("the released sums give no number").to_json()
        errors = {"noise_error": self.noise_error, "sampling_error": self.sampling_error}
        low, high = (None if math.isinf(end) else end for end in (self.low, self.high))
        return {"value": self.value, **errors, "low": low, "high": high}


@dataclass(frozen=True)
class NotEstimable:
    """A figure that the released sums cannot tell. What is made of it cannot be told either, for the same reason.

    Attributes:
        reason: what is too small against what.
        advice: what would help.
    """

    reason: str
    advice: str = ""

    p_value: ClassVar[None] = None
    noise_share: ClassVar[None] = None
    half_width: ClassVar[float] = math.inf

    def scaled(self, factor: float, shift: float = 0.0) -> NotEstimable:
        """See :class:`Figure`; itself, as are the others."""
        return self

    def within(self, low: float, high: float) -> NotEstimable:
        return self

    def widened(self, by: float) -> NotEstimable:
        return self

    def root(self) -> NotEstimable:
        return self

    def exponential(self, most: float = math.inf) -> NotEstimable:
        return self

    def to_json(self) -> dict[str, Any]:
        """``not_estimable``, the reason, and ``advice``."""
        return {"not_estimable": self.reason, "advice": self.advice}


Answer = Figure | NotEstimable
Row = dict[str, Any]


@dataclass(frozen=True)
class Test:
    """A test of a hypothesis on noised sums.

    Attributes:
        statistic: chi-squared, or a standard normal's square.
        degrees: of freedom.
        p_value: probability of so large a value if the hypothesis holds; the noise is accounted for, so it is always valid.
        noise_share: share of the statistic's variance that is noise: near 1, the records could hardly show.
        left_out: groups or slopes of which noise hides what the test compares, and which it leaves out.
        note: what is to be known of the p-value.
    """

    statistic: float
    degrees: int
    p_value: float
    noise_share: float
    left_out: tuple[int, ...] = ()
    note: str = ""


def test_row(name: str, of: str, found: Test | NotEstimable, /, **more: Any) -> Row:
    """A test as a row of a table."""
    told: Row
    if isinstance(found, NotEstimable):
        told, note = dict.fromkeys(("statistic", "degrees", "p_value", "noise_share")), f"not estimable: {found.reason}"
    else:
        told = {name: getattr(found, name) for name in ("statistic", "degrees", "p_value", "noise_share")}
        note = f"left out as they are within noise: {len(found.left_out)} groups or terms" if found.left_out else found.note
    return {"test": name, "of": of} | told | {"note": note} | more


def normal_figure(value: float, noise_variance: float, sampling_variance: float) -> Figure:
    """A figure whose error is normal, with these variances; below 0, which rounding can make of none, they are 0."""
    noise_variance, sampling_variance = max(noise_variance, 0.0), max(sampling_variance, 0.0)
    half = Z95 * math.sqrt(noise_variance + sampling_variance)
    return Figure(value, math.sqrt(noise_variance), math.sqrt(sampling_variance), value - half, value + half)


def student_figure(value: float, noise_error: float, sampling_error: float, degrees: float) -> Figure:
    """A figure whose error from sampling is Student's, of so many degrees of freedom, and that from noise is normal: their
    reaches are added as standard errors are, and cover at least 95% (Banerjee 1960)."""
    half = math.hypot(Z95 * noise_error, student(degrees) * sampling_error)
    return Figure(value, noise_error, sampling_error, value - half, value + half)


def of_both(noise: Figure, sampling: Figure) -> Figure:
    """The figure ``noise``, which has an interval of noise alone, with one of both errors: to the distances to its ends those
    of ``sampling`` from its own value are added as standard errors are (Zou and Donner 2008)."""
    below = math.hypot(noise.value - noise.low, sampling.value - sampling.low)
    above = math.hypot(noise.high - noise.value, sampling.high - sampling.value)
    return Figure(noise.value, noise.noise_error, sampling.sampling_error, noise.value - below, noise.value + above)


ALIKE = 1e-14
"""A variance that rounding may be, of values in [-1, 1]."""


def exact_mean(number: float, value: float, variance: float, low: float, high: float) -> Figure:
    """The mean of values in [low, high] by Student's t, of one value anything; where all are alike, by :func:`all_alike`.

    Args:
        number: of values.
        value, variance: their mean and variance, the latter with the divisor ``number``.
    """
    if number < 1.5:
        return Figure(value, 0.0, (high - low) / 2.0, low, high)
    if variance <= ALIKE:
        return all_alike(value, number, low, high)
    return student_figure(value, 0.0, math.sqrt(variance / (number - 1.0)), number - 1.0).within(low, high)


def all_alike(value: float, number: float, low: float, high: float) -> Figure:
    """The mean of so many values in [low, high] that are all alike: the share that :func:`hidden_share` allows may be others.
    Of an event's indicator the interval is Clopper and Pearson's."""
    hidden = hidden_share(number)
    return Figure(value, 0.0, 0.0, value - hidden * (value - low), value + hidden * (high - value))


def student(degrees: float) -> float:
    """Student's t beyond which a fortieth lies: of 40 degrees or more by the series in 1 / degrees, to 1e-8 (Abramowitz and
    Stegun 26.7.5)."""
    if degrees < 40.0:
        from scipy.special import stdtrit  # as below; a plan asks for many records

        return float(stdtrit(degrees, 0.975))
    z = Z95
    terms = (
        z,
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
        (79.0 * z**9 + 776.0 * z**7 + 1482.0 * z**5 - 1920.0 * z**3 - 945.0 * z) / 92160.0,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def ratio_figure(
    top: float, bottom: float, noise: tuple[float, float, float], sampling: tuple[float, float, float], advice: str = ""
) -> Answer:
    """The ratio of two noised sums by Fieller's rule: all p with (top - p bottom)^2 <= z^2 Var(top - p bottom).

    Args:
        top, bottom: released sums.
        noise: (a, b, c) of the noise's variance of ``top - p bottom``, a + b p + c p^2.
        sampling: the same of sampling.
        advice: what would help where the denominator is within noise.
    """
    if not bottom > NOISE_FLOOR * math.sqrt(noise[2]) or not bottom > 0.0:
        return NotEstimable("the released count is within its noise", advice)
    value = top / bottom

    def variance(part: tuple[float, float, float]) -> float:
        return max(0.0, part[0] + part[1] * value + part[2] * value * value) / bottom**2

    a, b, c = (Z95**2 * (n + s) for n, s in zip(noise, sampling, strict=True))
    lead, half = bottom**2 - c, top * bottom + b / 2.0
    root = bottom**2 * (a + b * value + c * value * value) + b * b / 4.0 - a * c
    if lead <= 0.0 or root < 0.0:
        return Figure(value, math.sqrt(variance(noise)), math.sqrt(variance(sampling)), -math.inf, math.inf)
    low, high = (half - math.sqrt(root)) / lead, (half + math.sqrt(root)) / lead
    ends = min(low, value), max(high, value)  # which only rounding leaves outside
    return Figure(value, math.sqrt(variance(noise)), math.sqrt(variance(sampling)), *ends)


def project(table: Floats) -> Floats:
    """The nearest table without negative cells of the same sum: for display and synthetic records, never for intervals.

    Setting negative cells to 0 alone would add records; the projection (Duchi et al. 2008) takes them off the others.
    """
    flat, total = table.ravel(), float(table.sum())
    if total <= 0.0:
        return np.zeros_like(table)
    falling = np.sort(flat)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, flat.size + 1)
    last = int(np.flatnonzero(falling > over)[-1])
    return np.asarray(np.maximum(flat - over[last], 0.0).reshape(table.shape), dtype=np.float64)


def delta_rule(function: Callable[[Floats], float], table: Floats, noise_std: float | Floats) -> tuple[float, float, float]:
    """Value, noise variance and sampling variance of a smooth functional of a noised table of disjoint cells.

    With J the numeric gradient: Var_noise = sum J_c^2 sigma_c^2, Var_sampling = sum J_c^2 N_c - (sum J_c N_c)^2 / N
    (multinomial delta method), at the nearest table without negative cells.
    """
    flat = table.ravel()
    noise = np.broadcast_to(np.asarray(noise_std, dtype=np.float64), table.shape).ravel()
    gradient = np.empty_like(flat)
    for place in range(flat.size):
        step = 1e-4 * max(1.0, abs(flat[place]))
        beside = [flat.copy(), flat.copy()]
        beside[0][place] += step
        beside[1][place] -= step
        gradient[place] = (function(beside[0].reshape(table.shape)) - function(beside[1].reshape(table.shape))) / (2.0 * step)
    counts = project(flat)
    total = max(float(counts.sum()), 1e-12)
    sampling = float(gradient**2 @ counts) - float(gradient @ counts) ** 2 / total
    return function(table), float(gradient**2 @ noise**2), max(sampling, 0.0)


NO_VARIANCE = NotEstimable("nothing varies that the test could compare")


def chi_squared(
    u: Floats, noise: Floats, sampling: Floats, degrees: int, left_out: tuple[int, ...] = ()
) -> Test | NotEstimable:
    """The test that a vector has mean 0: u' V^+ u with V the sum of both covariances, against chi-squared.

    Its degrees of freedom are V's rank: combinations that do not vary, beside :data:`FLAT` of the largest, do not count.

    Args:
        u: (k,).
        noise, sampling: (k, k) covariances, of rank ``degrees`` at most.
    """
    from scipy.special import chdtrc  # here, for a participant that only counts needs none of it

    whole = noise + sampling
    values, vectors = np.linalg.eigh((whole + whole.T) / 2.0)
    degrees = int(np.count_nonzero(values[-degrees:] > FLAT * max(float(values[-1]), 0.0))) if degrees > 0 else 0
    if degrees == 0:
        return NO_VARIANCE
    kept = vectors[:, -degrees:] / np.sqrt(values[-degrees:])
    statistic = float(((kept.T @ u) ** 2).sum())
    share = float(np.trace(kept.T @ noise @ kept)) / degrees
    return Test(statistic, degrees, float(chdtrc(degrees, statistic)), min(max(share, 0.0), 1.0), left_out)


def hidden_share(records: float) -> float:
    """The largest share, at 97.5%, with what nobody of so many records has: 1 - 0.025^(1 / n) (Clopper and Pearson 1934)."""
    return 1.0 - math.pow(0.025, 1.0 / max(records, 1.0))


def by_student(found: Figure) -> Figure:
    """A figure with its p-value by the Student's distribution that has the reach of its interval in standard errors."""
    error = math.hypot(found.noise_error, found.sampling_error)
    if not found.half_width > Z95 * error * (1.0 + FLAT) > 0.0:
        return found
    from scipy.special import stdtr, stdtridf

    degrees = float(stdtridf(0.975, found.half_width / error))
    return replace(found, significance=2.0 * float(stdtr(degrees, -abs(found.value) / error)))


def by_f(found: Test | NotEstimable, rest: float, factor: float = 1.0) -> Test | NotEstimable:
    """A test with its p-value by F: of the statistic over its degrees and ``factor``, and ``rest`` others."""
    if isinstance(found, NotEstimable):
        return found
    from scipy.special import fdtrc

    return replace(found, p_value=float(fdtrc(found.degrees, rest, found.statistic / found.degrees / factor)))
