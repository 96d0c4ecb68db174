"""A one-run audit: canaries in or out by the toss of a coin, one release or a few, and what the release tells of the coins.

Steinke, Nasr and Jagielski (2023) showed that one run with many canaries does what many runs with one do. Here the auditor
sees all of the site's computation but the coins and the noise, and the canaries stand at right angles, so their scores are
independent and normal: the bounds below are those of that, exactly.

Lower bounds on what a mechanism tells, from the scores of canaries that a coin put in or left out.

A score is what a release holds in a canary's own direction, in standard deviations of the noise that was declared. If nothing
else is in that direction, a canary that was left out scores as the noise alone, one that was in scores mu more, and mu is what
a Gaussian mechanism is measured by: the sensitivity over the noise's standard deviation. Canaries in orthogonal directions
meet independent noise, so each of them is a trial of its own, as many in one release as there are canaries.

Every bound holds with the stated confidence by the exact distribution of its statistic. An audit never proves privacy.

All of it is done on two bases: alone, where nobody else is, and in company of made-up units. What one unit changes is measured
beside others too, by putting it in and by taking it out, and must be the same whoever is there: else one unit acts through the
rows of the others, which no clip of its own row bounds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.audit.canaries import MOST, choose, join
from veilsum_privacy.audit.routes import ReleaseRoute
from veilsum_privacy.tasks.base import Records

_LARGEST = 1e6
_LEGENDRE = np.polynomial.legendre.leggauss(512)

LEVEL = 1e-6
"""Probability, at most, that an audit finds fault with a release that is as private as booked."""

CONFIDENCE = 0.95
"""Confidence of the bounds that are shown; they decide nothing."""

TRIALS = 2000
MOST_TRIALS = 100_000
MOST_RELEASES = 5000
MOST_VALUES = 2**24
"""Noised values of one audit; 2^24 take some ten seconds."""

_SURE = 0.99
_SLACK = 1e-6  # of the sensitivity: what floating-point sums leave of additivity


class NoCanary(Misuse):
    """Nothing can be said of a release: no made-up record moves it."""


@dataclass(frozen=True)
class Finding:
    """What an audit found. Every mu is of one release: the sensitivity over the noise's standard deviation.

    Attributes:
        canaries, releases, trials: canaries of a release; how many releases, half of them in company; coins that were tossed,
            the product.
        booked: mu that the ledger books for the release; ``booked_epsilon`` at ``delta``.
        company: made-up units beside which canaries were tried too.
        longest: the largest change that one unit makes to the sum before noise, put in or taken out, alone or in company, as a
            share of the booked sensitivity.
        interaction: by how much, at most, a value of the sum before noise is another one than what each unit adds alone makes
            up, as a share of the booked sensitivity.
        noise: standard deviation of the noise that was found, as a share of the booked one.
        lower, lower_epsilon: bounds from below with 95% confidence.
        general_epsilon: the same by a bound that asks nothing of the mechanism.
        limit: the bound from below that holds but for ``level``: what decides.
        level: probability, at most, that a release as private as booked is found at fault.
        sees_noise: the audit finds noise of this share of the booked deviation 99 times in 100.
        sees_shift: or canaries that move a release by so many times their own length; None where records are sampled.
        faults: what is wrong, in words; empty if nothing was found.
    """

    canaries: int
    releases: int
    trials: int
    values: int
    booked: float
    booked_epsilon: float
    delta: float
    company: int
    longest: float
    interaction: float
    noise: float
    lower: float
    lower_epsilon: float
    general_epsilon: float
    limit: float
    level: float
    sees_noise: float
    sees_shift: float | None
    faults: tuple[str, ...]

    @property
    def flagged(self) -> bool:
        """Whether the release tells more than was booked."""
        return bool(self.faults)


def audit(
    route: ReleaseRoute,
    units: Sequence[Records],
    company: Records,
    random: RandomSource,
    *,
    delta: float,
    level: float = LEVEL,
    trials: int = TRIALS,
) -> Finding:
    """Audit a route.

    Args:
        units: candidates for canaries, one unit of privacy each, whose subjects come after those of ``company``.
        company: records of made-up units, told apart by their subjects whatever the unit of privacy is; half of the coins are
            tossed beside them. None of them, and the audit is of units alone.
        random: where coins come from.
        delta: at which mu is shown as epsilon.
        level: probability, at most, that a release that is as private as booked is found at fault.
        trials: coins, at least; more where the booked mu is small, as far as :data:`MOST_VALUES`
            and :data:`MOST_RELEASES` go.

    Raises:
        NoCanary: no unit moves the release.
        Misuse: the site's code fails on them.
    """
    tried = _Changes(route, units, company)
    stages = tried.stages(max(1, (route.most_records - len(company)) // max(1, *map(len, units))))
    if not stages:
        raise NoCanary("No made-up record moves this release, so it cannot be audited.")
    rate, booked, longest = route.plan.declaration.sampling_rate, route.sensitivity / route.std, tried.longest
    wanted = max(trials, min(MOST_TRIALS, math.ceil((15.0 / (booked * longest * rate)) ** 2)))
    canaries, size, bases = len(stages[0].units), len(stages[0].start), len(stages)
    releases = max(1, min(-(-wanted // (canaries * bases)), MOST_VALUES // (size * bases), MOST_RELEASES // bases))
    scores = np.empty((bases, releases, canaries))
    coins = _coins(random, bases * releases, canaries).reshape(scores.shape)
    squares, count = 0.0, bases * releases * size
    for place, stage in enumerate(stages):
        for number, tossed in enumerate(coins[place]):
            opened = route.release(join([stage.base, *(unit for unit, put in zip(stage.units, tossed, strict=True) if put)]))
            scores[place, number] = stage.ways @ (opened.values - stage.start) / route.std
            squares += float((((opened.values - opened.known) / route.std) ** 2).sum())
    told = [(scores[place][coins[place]], scores[place][~coins[place]]) for place in range(bases)]
    each = level / (2 * bases)
    thresholds = [best_threshold(booked, rate, len(inside), len(outside), each) for inside, outside in told]

    def bound(at: float) -> float:
        shares, found = at / (2 * bases), booked * noise_bound(squares, count, at / 2)
        for (inside, outside), threshold in zip(told, thresholds, strict=True):
            if rate < 1:
                found = max(found, sampled_bound(inside, outside, rate, threshold, shares))
            else:
                found = max(found, release_bound(inside, outside, shares))
        return found

    lower, limit = bound(1 - CONFIDENCE), bound(level)
    faults = []
    if longest > 1 + 1e-9:
        faults.append(f"one unit changes the sum by {longest:.4g} times the sensitivity that is booked")
    if tried.interacts:
        faults.append(
            "the sum is not additive: what one unit changes depends on who else is there, by "
            f"{tried.interaction:.4g} times the sensitivity in one value"
        )
    if limit > booked:
        faults.append(f"the release tells mu {limit:.4g} at least, and {booked:.4g} is booked")
    return Finding(
        canaries=canaries,
        releases=bases * releases,
        trials=scores.size,
        values=size,
        booked=booked,
        booked_epsilon=gaussian_epsilon(booked, rate, delta),
        delta=delta,
        company=len(tried.members),
        longest=longest,
        interaction=tried.interaction,
        noise=math.sqrt(squares / count),
        lower=lower,
        lower_epsilon=gaussian_epsilon(lower, rate, delta),
        general_epsilon=_general(scores[0].ravel(), coins[0].ravel(), stages[0].length / route.std, delta),
        limit=limit,
        level=level,
        sees_noise=math.sqrt(float(stats.chi2.ppf(level / 2, count) / stats.chi2.ppf(_SURE, count))),
        sees_shift=None
        if rate < 1
        else max(
            (shift for inside, outside in told if (shift := _seen_shift(booked, longest, len(inside), len(outside), each))),
            default=None,
        ),
        faults=tuple(faults),
    )


@dataclass(frozen=True)
class _AuditBase:
    """A base with its canaries.

    Attributes:
        base, start: records that are always there, and the sum before noise of them.
        ways: (k, size) the direction in which each of them changes the sum.
        length: by how much, on average.
    """

    base: Records
    start: Floats
    units: Sequence[Records]
    ways: Floats
    length: float


class _Changes:
    """What units change in a sum before noise: put in and taken out, alone and in company.

    Attributes:
        members: the units of the company.
        longest: the largest change of one unit, as a share of the sensitivity.
        interaction: see :class:`Finding`.
        interacts: whether the release should be a sum over units and is none, beyond all rounding.
    """

    def __init__(self, route: ReleaseRoute, units: Sequence[Records], company: Records) -> None:
        self._route, self._units = route, units
        self._bases = [company.take(np.zeros(0, dtype=np.intp)), company][: 1 + (len(company) > 0)]
        self._starts = [route.before(base) for base in self._bases]
        whose = np.zeros(0, dtype=np.int64) if company.subjects is None else company.subjects
        self.members = [whose == subject for subject in np.unique(whose)]
        self.interaction = 0.0
        self.interacts = False
        self._norms = np.zeros((len(self._bases), len(units)))
        self._found: dict[tuple[int, int], Floats] = {}
        keeps = self._norms.size * len(self._starts[0]) <= MOST_VALUES
        for number, unit in enumerate(units):
            found = [self._added(place, unit) for place in range(len(self._bases))]
            if keeps:
                self._found.update({(place, number): vector for place, vector in enumerate(found)})
            self._norms[:, number] = [np.linalg.norm(vector) for vector in found]
            self._compare(found[-1], found[0], 2)
        longest = float(self._norms.max(initial=0.0))
        for member in self.members:
            left = self._starts[1] - route.before(company.take(~member))
            longest = max(longest, float(np.linalg.norm(left)))
            self._compare(left, self._added(0, company.take(member)), 2)
        self.longest = longest / route.sensitivity

    def stages(self, most: int) -> list[_AuditBase]:
        """Each base on which some unit moves the sum, with as many canaries on each."""
        route, places = self._route, [place for place, norms in enumerate(self._norms) if norms.max(initial=0.0) > 0]
        made = []
        for place in places:
            limit = min(most, MOST) if not self._apart else 1
            chosen, vectors = choose(self._units, self._norms[place], partial(self._change, place), limit)
            made.append((place, chosen, vectors))
        for place, chosen, vectors in made:
            if len(chosen) > 1:
                together = route.before(join([self._bases[place], *chosen])) - self._starts[place]
                self._compare(together, vectors.sum(axis=0), len(chosen) + 1)
        fewest = 1 if self._apart else min((len(chosen) for _, chosen, _ in made), default=1)
        found = []
        for place, chosen, whole in made:
            lengths = np.linalg.norm(whole[:fewest], axis=1)
            ways = whole[:fewest] / lengths[:, None]
            found.append(_AuditBase(self._bases[place], self._starts[place], chosen[:fewest], ways, float(lengths.mean())))
        return found

    @property
    def _apart(self) -> bool:
        """Whether canaries cannot stand together in one release, as their changes do not add up."""
        return self.interacts

    def _change(self, place: int, number: int) -> Floats:
        """What a unit changes, by its number; it was worked out before, and is kept where all of them fit into memory."""
        found = self._found.get((place, number))
        return self._added(place, self._units[number]) if found is None else found

    def _added(self, place: int, unit: Records) -> Floats:
        return self._route.before(join([self._bases[place], unit])) - self._starts[place]

    def _compare(self, found: Floats, alone: Floats, sums: int) -> None:
        """Note how far a change is from what it should be; each of so many sums that it is made of may be rounded."""
        most = float(np.abs(found - alone).max(initial=0.0))
        self.interaction = max(self.interaction, most / self._route.sensitivity)
        self.interacts = self.interacts or most > _SLACK * self._route.sensitivity + self._route.rounding * 2 * sums


def _coins(random: RandomSource, releases: int, canaries: int) -> NDArray[np.bool_]:
    drawn = np.frombuffer(random.bytes(-(-releases * canaries // 8)), dtype=np.uint8)
    return np.unpackbits(drawn)[: releases * canaries].reshape(releases, canaries).astype(np.bool_)


def _general(scores: Floats, coins: NDArray[np.bool_], shift: float, delta: float) -> float:
    """The bound of any mechanism, from guesses of the tenth of the coins of which the scores tell most."""
    sure = np.argsort(-np.abs(scores - shift / 2), kind="stable")[: max(1, len(scores) // 10)]
    right = int(((scores[sure] > shift / 2) == coins[sure]).sum())
    return guessing_bound(len(sure), right, len(scores), delta, 1 - CONFIDENCE)


def _seen_shift(booked: float, longest: float, inside: int, outside: int, level: float) -> float | None:
    """How much further than they do canaries would have to move a release, for an audit to see it 99 times in 100."""
    if inside < 2 or outside < 2:
        return None
    freedom, scale = inside + outside - 2, math.sqrt(1 / inside + 1 / outside)
    first = booked / scale
    least = _where(lambda t: above_t(t, freedom, first) <= level, first)
    return _where(lambda shift: above_t(least, freedom, shift) >= _SURE, first) * scale / (booked * longest)


def _where(reached: Callable[[float], bool], start: float) -> float:
    """The least number from ``start`` on from which something holds."""
    low, step = start, 1.0
    while not reached(low + step):
        step *= 2
    high = low + step
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


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
