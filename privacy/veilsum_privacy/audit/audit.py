"""A one-run audit: canaries in or out by the toss of a coin, one release or a few, and what the release tells of the coins.

Steinke, Nasr and Jagielski (2023) showed that one run with many canaries does what many runs with one do. Here the auditor
sees all of the site's computation but the coins and the noise, and the canaries stand at right angles, so their scores are
independent and normal: the bounds in :mod:`.bounds` are those of that, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.audit.bounds import (
    above_t,
    best_threshold,
    gaussian_epsilon,
    guessing_bound,
    noise_bound,
    release_bound,
    sampled_bound,
)
from veilsum_privacy.audit.canaries import choose, join
from veilsum_privacy.audit.routes import ReleaseRoute
from veilsum_privacy.tasks.base import Records

LEVEL = 1e-6
"""Probability, at most, that an audit finds fault with a release that is as private as booked."""

CONFIDENCE = 0.95
"""Of the bounds that are shown; they decide nothing."""

TRIALS = 2000
MOST_TRIALS = 100_000
MOST_RELEASES = 5000
MOST_VALUES = 2**24
"""Noised values of one audit; 2^24 take some ten seconds."""

_SURE = 0.99


class NoCanary(Misuse):
    """Nothing can be said of a release: no made-up record moves it."""


@dataclass(frozen=True)
class Finding:
    """What an audit found. Every mu is of one release: the sensitivity over the noise's standard deviation.

    Attributes:
        canaries, releases, trials: canaries of a release; how many releases; coins that were tossed, the product.
        values: of a release.
        booked: mu that the ledger books for the release; ``booked_epsilon`` at ``delta``.
        longest: the largest change that one canary makes to the sum before noise, as a share of the booked sensitivity.
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
    longest: float
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
    base: Records,
    random: RandomSource,
    *,
    delta: float,
    level: float = LEVEL,
    trials: int = TRIALS,
) -> Finding:
    """Audit a route.

    Args:
        route: what is audited.
        units: candidates for canaries, one unit of privacy each.
        base: records that are always there.
        random: where coins come from.
        delta: at which mu is shown as epsilon.
        level: probability, at most, that a release that is as private as booked is found at fault.
        trials: coins, at least; more where the booked mu is small, as far as :data:`MOST_VALUES`
            and :data:`MOST_RELEASES` go.

    Raises:
        NoCanary: no unit moves the release.
        Misuse: the site's code fails on them.
    """
    start = route.before(base)
    chosen, vectors = choose(units, lambda unit: route.before(join([base, unit])) - start)
    if not chosen:
        raise NoCanary("No made-up record moves this release, so it cannot be audited.")
    if len(chosen) > 1 and not _additive(route, base, start, chosen, vectors):
        chosen, vectors = chosen[:1], vectors[:1]
    lengths = np.linalg.norm(vectors, axis=1)
    ways, longest = vectors / lengths[:, None], float(lengths.max()) / route.sensitivity
    rate, booked = route.plan.declaration.sampling_rate, route.sensitivity / route.std
    wanted = max(trials, min(MOST_TRIALS, math.ceil((15.0 / (booked * longest * rate)) ** 2)))
    releases = max(1, min(-(-wanted // len(chosen)), MOST_VALUES // len(start), MOST_RELEASES))
    scores, coins = np.empty((releases, len(chosen))), _coins(random, releases, len(chosen))
    squares = 0.0
    for number, tossed in enumerate(coins):
        opened = route.release(join([base, *(unit for unit, put in zip(chosen, tossed, strict=True) if put)]))
        scores[number] = ways @ (opened.values - start) / route.std
        squares += float((((opened.values - opened.known) / route.std) ** 2).sum())
    inside, outside = scores[coins], scores[~coins]
    threshold = best_threshold(booked, rate, len(inside), len(outside), level / 2)

    def bound(at: float) -> float:
        sampled = rate < 1
        told = sampled_bound(inside, outside, rate, threshold, at / 2) if sampled else release_bound(inside, outside, at / 2)
        return max(told, booked * noise_bound(squares, scores.shape[0] * len(start), at / 2))

    count, lower, limit = releases * len(start), bound(1 - CONFIDENCE), bound(level)
    faults = []
    if longest > 1 + 1e-9:
        faults.append(f"one unit changes the sum by {longest:.4g} times the sensitivity that is booked")
    if limit > booked:
        faults.append(f"the release tells mu {limit:.4g} at least, and {booked:.4g} is booked")
    return Finding(
        canaries=len(chosen),
        releases=releases,
        trials=scores.size,
        values=len(start),
        booked=booked,
        booked_epsilon=gaussian_epsilon(booked, rate, delta),
        delta=delta,
        longest=longest,
        noise=math.sqrt(squares / count),
        lower=lower,
        lower_epsilon=gaussian_epsilon(lower, rate, delta),
        general_epsilon=_general(scores.ravel(), coins.ravel(), float(lengths.mean()) / route.std, delta),
        limit=limit,
        level=level,
        sees_noise=math.sqrt(float(stats.chi2.ppf(level / 2, count) / stats.chi2.ppf(_SURE, count))),
        sees_shift=None if rate < 1 else _seen_shift(booked, longest, len(inside), len(outside), level / 2),
        faults=tuple(faults),
    )


def _additive(route: ReleaseRoute, base: Records, start: Floats, chosen: Sequence[Records], vectors: Floats) -> bool:
    """Whether canaries together change the sum by what each of them does alone."""
    together = route.before(join([base, *chosen])) - start
    return float(np.abs(together - vectors.sum(axis=0)).max()) <= 1e-6 * route.sensitivity


def _coins(random: RandomSource, releases: int, canaries: int) -> NDArray[np.bool_]:
    drawn = np.frombuffer(random.bytes(-(-releases * canaries // 8)), dtype=np.uint8)
    return np.unpackbits(drawn)[: releases * canaries].reshape(releases, canaries).astype(np.bool_)


def _general(scores: Floats, coins: NDArray[np.bool_], shift: float, delta: float) -> float:
    """The bound of any mechanism, from guesses of the tenth of the coins of which the scores tell most."""
    sure = np.argsort(-np.abs(scores - shift / 2), kind="stable")[: max(1, len(scores) // 10)]
    right = int(((scores[sure] > shift / 2) == coins[sure]).sum())
    return guessing_bound(len(sure), right, len(scores), delta, 1 - CONFIDENCE)


def _seen_shift(booked: float, longest: float, inside: int, outside: int, level: float) -> float | None:
    """By how much canaries would have to move a release more than they do, for an audit to see it 99 times in 100."""
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
