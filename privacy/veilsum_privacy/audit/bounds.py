"""Lower bounds on what a mechanism tells, from the scores of canaries that a coin put in or left out.

A score is what a release holds in a canary's own direction, in standard deviations of the noise that was declared. If nothing
else is in that direction, a canary that was left out scores as the noise alone, one that was in scores mu more, and mu is what
a Gaussian mechanism is measured by: the sensitivity over the noise's standard deviation. Canaries in orthogonal directions
meet independent noise, so each of them is a trial of its own, as many in one release as there are canaries.

Every bound holds with the stated confidence by the exact distribution of its statistic. An audit never proves privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

from veilsum_aggregation.arrays import Floats

_LARGEST = 1e6
_LEGENDRE = np.polynomial.legendre.leggauss(512)


def release_bound(inside: Floats, outside: Floats, level: float) -> float:
    """Lower bound on mu from scores alone, whatever the noise was declared to be: the two-sample t statistic, inverted.

    With scores normal about mu and 0, t is noncentral of n + m - 2 degrees of freedom and noncentrality mu / sqrt(1/n + 1/m).
    If canaries move their scores by no more than mu, some by less, t only becomes smaller in distribution: its numerator has a
    smaller mean, and its denominator a noncentral chi-square in place of a central one, independent of it.

    Args:
        inside, outside: scores of canaries that were in, and of those left out; any common unit.
        level: probability, at most, that the bound exceeds mu.
    """
    n, m = len(inside), len(outside)
    if n < 2 or m < 2:
        return 0.0
    freedom, scale = n + m - 2, math.sqrt(1 / n + 1 / m)
    spread = math.sqrt((((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()) / freedom)
    difference = float(inside.mean() - outside.mean())
    if spread == 0:
        return math.inf if difference > 0 else 0.0
    statistic = difference / (spread * scale)

    def surprise(shift: float) -> float:
        return above_t(statistic, freedom, shift / scale) - level

    return _root(surprise, statistic * scale) if surprise(0.0) < 0 else 0.0


def above_t(statistic: float, freedom: int, shift: float) -> float:
    """Probability that noncentral t exceeds a value: the mean of Phi(shift - t s) over s = chi / sqrt(freedom), by quadrature.

    To 1e-12 for 8 degrees of freedom and more; library routines fail to converge for the many degrees that are needed here.
    """
    first, last = (math.sqrt(float(end(1e-15, freedom)) / freedom) for end in (stats.chi2.ppf, stats.chi2.isf))
    nodes, weights = _LEGENDRE
    middle, half = (first + last) / 2, (last - first) / 2
    s = middle + half * nodes
    density = 2 * freedom * s * stats.chi2.pdf(freedom * s**2, freedom)
    return float(half * (weights * density * special.ndtr(shift - statistic * s)).sum())


def noise_bound(squares: float, count: int, level: float) -> float:
    """Lower bound on 1 / f where the noise has f times the standard deviation that was declared.

    Args:
        squares: of what was added to sums that are known exactly, in declared standard deviations, added up: f^2 times a
            chi-square variable of ``count`` degrees of freedom.
        count: how many values.
        level: probability, at most, that the bound exceeds 1 / f.
    """
    if not count:
        return 0.0
    return math.sqrt(float(stats.chi2.ppf(level, count)) / squares) if squares > 0 else math.inf


def sampled_bound(inside: Floats, outside: Floats, rate: float, threshold: float, level: float) -> float:
    """Lower bound on mu of a Gaussian mechanism whose records are sampled with probability ``rate``, by counting scores.

    Above a threshold where noise alone lies with probability a, a canary that was in lies with probability
    (1 - q) a + q Phi(mu - z(a)), and no test of a mechanism of this mu and q does better at this a (its likelihood ratio grows
    with the score). Clopper-Pearson limits of both rates, at half the level each, make a bound of what was counted.

    Args:
        threshold: stated before the scores are seen.
    """
    above, below = int((inside > threshold).sum()), int((outside <= threshold).sum())
    return _counted_bound(above, len(inside), below, len(outside), rate, level)


def _counted_bound(above: int, inside: int, below: int, outside: int, rate: float, level: float) -> float:
    low = _lower_rate(above, inside, level / 2)
    high = 1.0 - _lower_rate(below, outside, level / 2)
    taken = (low - (1 - rate) * high) / rate
    if high >= 1 or taken <= 0:
        return 0.0
    return max(0.0, float(special.ndtri(min(taken, 1 - 1e-16)) - special.ndtri(high)))


def best_threshold(mu: float, rate: float, inside: int, outside: int, level: float) -> float:
    """The threshold at which :func:`sampled_bound` is largest for the counts that this mu and rate lead to expect."""
    thresholds = np.linspace(0.0, mu + 4.0, 81)
    above = special.ndtr(-thresholds)
    taken = (1 - rate) * above + rate * special.ndtr(mu - thresholds)
    bounds = [
        _counted_bound(round(inside * p), inside, round(outside * (1 - a)), outside, rate, level)
        for p, a in zip(taken, above, strict=True)
    ]
    return float(thresholds[int(np.argmax(bounds))])


def guessing_bound(guesses: int, right: int, canaries: int, delta: float, level: float) -> float:
    """Lower bound on epsilon of any mechanism, from guesses of coins (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    With (epsilon, delta) right guesses among r of m canaries exceed v with a probability of at most
    P(B >= v) + 2 m delta max_i P(v - i <= B < v) / i, where B is binomial of r and e^epsilon / (1 + e^epsilon). It asks
    nothing of the mechanism, so it is far from what a Gaussian one tells.

    Args:
        guesses: r, how many coins were guessed; which, must not depend on the coins but through the release.
        right: v, how many rightly.
        canaries: m.
    """
    steps = np.arange(1, right + 1)

    def surprise(epsilon: float) -> float:
        binomial = stats.binom(guesses, special.expit(epsilon))
        below = np.cumsum(binomial.pmf(right - steps)) / steps
        return float(binomial.sf(right - 1) + 2 * canaries * delta * below.max(initial=0.0)) - level

    return _root(surprise, 1.0) if guesses and surprise(0.0) < 0 else 0.0


def gaussian_epsilon(mu: float, rate: float, delta: float) -> float:
    """Exact epsilon at ``delta`` of one release of a Gaussian mechanism with sampling: of adding the record.

    Where N(mu, 1) is sampled with probability q against N(0, 1) the likelihood ratio exceeds e^epsilon above
    x = mu / 2 + ln((e^epsilon - 1 + q) / q) / mu. With q = 1 it is Balle and Wang's
    (2018, theorem 8), and removing costs the same.
    """
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def excess(epsilon: float) -> float:
        point = mu / 2 + math.log1p(math.expm1(min(epsilon, 700.0)) / rate) / mu
        above = (1 - rate) * special.ndtr(-point) + rate * special.ndtr(mu - point)
        return delta - float(above - np.exp(epsilon + special.log_ndtr(-point)))

    return _root(excess, max(mu, 1.0)) if excess(0.0) < 0 else 0.0


def _lower_rate(count: int, of: int, level: float) -> float:
    """Clopper and Pearson's one-sided lower limit."""
    return float(stats.beta.ppf(level, count, of - count + 1)) if count else 0.0


def _root(rising: Callable[[float], float], guess: float) -> float:
    """Where a rising function that is negative at 0 becomes zero, from below; infinite beyond any number of use."""
    high = max(guess, 1e-6)
    while rising(high) < 0:
        high *= 2
        if high > _LARGEST:
            return math.inf
    return float(optimize.brentq(rising, 0.0, high, xtol=1e-12, rtol=1e-12))
