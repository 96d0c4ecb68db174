"""Masked optimal transport between sites and the subsets of them that may turn up (FedAVOT's aggregation weights).

Sites have importance p, subsets A_j of them turn up with probability q_j. Sought is a plan T >= 0 on the pairs with i in A_j,
with row sums p and column sums q; in a round whose members are A_j, site i weighs T[i, j] / q_j. The plan of largest entropy
relative to q_j / |A_j| has a score for each site, and its weights are the softmax of the scores over the members. The scores
minimise the convex function

    D(u) = sum_j q_j log sum_{i in A_j} exp u_i - p . u

whose gradient is what the sites reach, p~(u), less p. For pairs this is the Bradley-Terry model. It is minimised here by
damped Newton steps, each solved by conjugate gradients that need two products with the mask. The scaling of rows and columns
in turn (IPFP) works on the same dual one block at a time.

Not every p can be reached: a set I of sites weighs at most q(N(I)), the probability that one of them turns up. Then the scores
diverge, p~ tends to the reachable distribution of least KL(p~ | p), and order by score shows which sites are in the way.
:func:`solve` decides by certificates, never by the number of steps. This module draws nothing and knows no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LARGEST_GAP = 50.0
"""Scores further apart than this give weights below 2e-22; gaps between neighbouring scores are cut to it."""
DAMPING = 1e-3
"""First damping, relative to p; it falls as steps succeed."""
SMALLEST_DAMPING = 1e-9
"""The damping does not fall below this."""
SEPARATION = 0.01
"""Rise of a slope that parts scores by 1 in a step, while p~ is far from the nearest."""
LARGEST_LIFT = 10.0
"""The most that scores are parted in one step."""
CONJUGATE_STEPS = 200
"""Bounds the work on one Newton step; a step that needs more is damped more."""
ROUNDING = 4e-16
"""Share of its terms below which a curvature is what rounding left of their difference; also an importance that is none."""
SUM_SLACK = 1e-9
"""How far the sum of importances or probabilities may be from 1 before they are divided by it."""
PATIENCE = 3
"""Steps in which the gap has to halve where p cannot be reached; else the blocking sets are approached from afar."""
PRICES = tuple(10.0 ** (power / 2) for power in range(11))
"""Prices of missing p, of which each is far above what the last one decided."""
PRICED_STEPS = 30
"""Newton steps at a price, at most; it takes two or three but at the first."""


@dataclass(frozen=True)
class Subsets:
    """M sets of sites, the rows of the mask, in compressed form.

    Attributes:
        indptr: (M + 1,), set j holds ``indices[indptr[j]:indptr[j + 1]]``.
        indices: numbers of sites from 0, different within a set.

    Raises:
        ValueError: no set is given, one is empty or names a site twice, or a number is negative.
    """

    indptr: Integers
    indices: Integers

    def __post_init__(self) -> None:
        object.__setattr__(self, "indptr", np.asarray(self.indptr, dtype=np.int64))
        object.__setattr__(self, "indices", np.asarray(self.indices, dtype=np.int64))
        if self.indptr.ndim != 1 or self.indices.ndim != 1 or len(self.indptr) < 2:
            raise ValueError("subsets need a list of starts and a list of sites, and at least one subset")
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.indices) or np.any(np.diff(self.indptr) < 1):
            raise ValueError("a subset must name a site, and starts must match the list of sites")
        if self.indices.min() < 0:
            raise ValueError("sites are numbered from 0")
        owners = np.repeat(np.arange(len(self)), self.sizes)
        keys = np.sort(owners * (self.indices.max() + 1) + self.indices)
        if np.any(keys[1:] == keys[:-1]):
            raise ValueError("a subset names a site twice")

    def __len__(self) -> int:
        """M."""
        return len(self.indptr) - 1

    def __getitem__(self, number: int) -> Integers:
        """Sites of set ``number``."""
        if not 0 <= number < len(self):
            raise IndexError(f"subset {number} of {len(self)}")
        return self.indices[self.indptr[number] : self.indptr[number + 1]]

    @property
    def sizes(self) -> Integers:
        """(M,) numbers of sites."""
        sizes: Integers = np.diff(self.indptr)
        return sizes

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> Subsets:
        """From one list of sites for each set."""
        sizes = [len(one) for one in lists]
        return cls(np.concatenate([[0], np.cumsum(sizes)]), np.array([site for one in lists for site in one], dtype=np.int64))

    @classmethod
    def all_pairs(cls, sites: int) -> Subsets:
        """All N (N - 1) / 2 pairs of N sites: (0, 1), (0, 2), ..., (1, 2), ..."""
        if sites < 2:
            raise ValueError("a pair needs two sites")
        return cls(np.arange(0, sites * (sites - 1) + 1, 2), np.stack(np.triu_indices(sites, 1), axis=1).ravel())


@dataclass(frozen=True)
class MaskedPlan:
    """Scores that decide every round's weights, and what they achieve.

    Attributes:
        scores: (N,) u, finite; the largest is 0. Only differences matter.
        reached: (N,) p~, the mean weight of each site over rounds.
        residual: sum of |p~ - p|, between 0 and 2.
        feasible: True if the residual is within the tolerance; False if ``blocking`` proves that no plan's is; None if
            neither was found.
        blocking: sites I with p(I) > q(N(I)), in order of number; empty unless ``feasible`` is False.
        excess: p(I) - q(N(I)) of these, 0 if there are none. No plan's residual is below twice the excess.
        gap: the residual or, if ``blocking`` is not empty, the sum of |p~ - p*| for a p* whose KL(p* | p) no plan undercuts:
            as it falls to 0, p~ becomes the reachable distribution of least KL. Within the tolerance unless steps ran out.
        iterations: Newton steps.
    """

    scores: Floats
    reached: Floats
    residual: float
    feasible: bool | None
    blocking: tuple[int, ...]
    excess: float
    gap: float
    iterations: int

    def weights(self, subset: Sequence[int] | Integers) -> Floats:
        """Weights (k,) of the k members of a round, which sum to 1: the softmax of their scores."""
        scores = self.scores[np.asarray(subset, dtype=np.int64)]
        grown = np.exp(scores - scores.max())
        weights: Floats = grown / grown.sum()
        return weights


def pair_probabilities(rates: Floats) -> Floats:
    """Probabilities of :meth:`Subsets.all_pairs` if two sites are drawn in turn without replacement, at given rates.

    q_ij = r_i r_j / (1 - r_i) + r_j r_i / (1 - r_j), r scaled to sum 1.

    Args:
        rates: (N,) not negative, two of them positive.

    Raises:
        ValueError: they are not, or one is so large that the others vanish beside it.
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim != 1 or not np.all(np.isfinite(rates) & (rates >= 0.0)) or np.count_nonzero(rates) < 2:
        raise ValueError("rates must be finite and not negative, and two of them positive")
    r = rates / rates.sum()
    if r.max() == 1.0:
        raise ValueError("one rate is so large that the others vanish beside it")
    odds = r / (1.0 - r)
    first, second = np.triu_indices(len(r), 1)
    pairs: Floats = odds[first] * r[second] + odds[second] * r[first]
    return pairs


def solve(
    importance: Floats, subsets: Subsets, probabilities: Floats, tolerance: float = 1e-10, *, max_iterations: int = 200
) -> MaskedPlan:
    """Scores whose weights give every site its importance on average, or come as near as can be.

    Ends when the residual is within the tolerance, or when p~ is within the tolerance of the nearest that can be reached.
    Both are known, not guessed. If one of the sets I_k of the k highest scores has p(I_k) > q(N(I_k)), no plan reaches p. The
    distribution of least KL from p under the constraints of these sets alone is p times the slopes of the greatest convex
    minorant of the points (p(I_k), q(N(I_k))). Its KL bounds the least KL under all constraints from below, and that of p~,
    which a plan reaches, bounds it from above: where the two are equal, both are the solution. The steps are then taken
    towards this distribution in place of p, so that scores settle where p would have them diverge.

    Which sets these are the scores must first show. Where there are many, of slopes close to each other, as with importance of
    heavy tails, steps stop short of it; then the sets are approached by :func:`_approach`, which knows none of them.

    A site of no importance, or of so little that all such sites are within a tenth of the tolerance, has a score
    :data:`LARGEST_GAP` below all others. A subset of such sites
    alone weighs them alike; it makes p unreachable.

    Args:
        importance: (N,) p, not negative, sum 1.
        subsets: M sets of the N sites.
        probabilities: (M,) q, not negative, sum 1.
        tolerance: of the sum of absolute differences. Below about 1e-12 rounding may leave the answer undecided.
        max_iterations: Newton steps; after these the plan and its certificate are those so far.

    Raises:
        ValueError: the arguments are not as stated.
    """
    p, q = _distribution(importance, "importance"), _distribution(probabilities, "probabilities")
    if len(q) != len(subsets):
        raise ValueError(f"{len(q)} probabilities of {len(subsets)} subsets")
    if subsets.indices.max() >= len(p):
        raise ValueError(f"a subset names site {subsets.indices.max()}, there are {len(p)}")
    if not 0.0 < tolerance < 2.0:
        raise ValueError("the tolerance must lie between 0 and 2")
    p = np.where(p > max(ROUNDING, tolerance / (10.0 * len(p))), p, 0.0)  # less shows neither in sums nor in the residual
    dual = _Dual(p, subsets, q)
    alive = p > 0.0
    u = dual.start()
    point = dual.at(u)
    damping, smallest, gaps = DAMPING, math.inf, list[float]()
    iteration, approached = 0, False
    while True:
        sweep = dual.sweep(u)
        residual = float(np.abs(point.reached - p).sum())
        infeasible = 2.0 * sweep.excess > tolerance
        slopes = dual.slopes(sweep) if infeasible else np.ones(len(p))
        target = np.where(alive, p * slopes, point.reached) if infeasible else p
        gap = float(np.abs(point.reached - target).sum())
        gaps.append(gap)
        if gap <= tolerance or iteration >= max_iterations:
            break
        if infeasible and not approached and len(gaps) > PATIENCE and gap > gaps[-1 - PATIENCE] / 2.0:
            u, taken = _approach(dual, max_iterations - iteration)
            iteration, approached, damping = iteration + taken, True, DAMPING
            u = dual.closed(u)
            point = dual.at(u)
            continue
        step, solved = dual.newton(point, target, gap, damping * p)
        u, point, damping = _descend(dual, u, point, target, step, damping, solved)
        lifts = dual.lifts(sweep, slopes, min(SEPARATION, gap**0.5), -1.0 if infeasible else tolerance / (2 * len(p)))
        if lifts.any() and gap < smallest:  # of an order that is still wrong they could go round in circles
            u[sweep.order[1:]] -= np.cumsum(lifts)
            u = dual.closed(u)
            point = dual.at(u)
        smallest = min(gap, smallest)
        iteration += 1
    blocking = tuple(sorted(sweep.order[: sweep.size].tolist())) if infeasible else ()
    return MaskedPlan(
        scores=u - u.max(),
        reached=point.reached,
        residual=residual,
        feasible=False if infeasible else True if residual <= tolerance else None,
        blocking=blocking,
        excess=sweep.excess if infeasible else 0.0,
        gap=gap,
        iterations=iteration,
    )


def _distribution(values: Floats, name: str) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values) & (values >= 0.0)) or abs(values.sum() - 1.0) > SUM_SLACK:
        raise ValueError(f"{name} must be a list of numbers that are not negative and sum to 1")
    result: Floats = values / values.sum()
    return result


@dataclass(frozen=True)
class _Point:
    """D, Y as a matrix (M, N) and p~ at some scores."""

    value: float
    weights: csr_array
    reached: Floats
    slack: float  # of the value, by rounding


@dataclass(frozen=True)
class _Sweep:
    """Sites by falling score, p and q(N) of the first k of them for k = 0, ..., and the k with the most excess."""

    order: Integers
    mass: Floats
    covered: Floats
    size: int
    excess: float


class _Dual:
    def __init__(self, p: Floats, subsets: Subsets, q: Floats) -> None:
        seen = q > 0.0
        sizes = subsets.sizes[seen]
        self.p, self.q = p, q[seen]
        self.alive = p > 0.0
        self.indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        self.indices = subsets.indices[np.repeat(seen, subsets.sizes)].astype(np.int32)
        self.owner = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self.mass = self.q[self.owner]

    def start(self) -> Floats:
        """Scores after one scaling of rows of the plan q_j / |A_j|."""
        share = np.bincount(self.indices, weights=self.mass / np.diff(self.indptr)[self.owner], minlength=len(self.p))
        u = np.zeros(len(self.p))
        u[self.alive] = np.log(self.p[self.alive])
        u[share > 0.0] -= np.log(share[share > 0.0])
        return self.closed(u)

    def closed(self, u: Floats) -> Floats:
        """The same weights but for 1e-22, without gaps above :data:`LARGEST_GAP`."""
        order = np.argsort(-u[self.alive], kind="stable")
        falling = u[self.alive][order]
        drops = np.minimum(falling[:-1] - falling[1:], LARGEST_GAP)
        values = np.empty(len(order))
        values[order] = -np.concatenate([[0.0], np.cumsum(drops)])
        result = np.full(len(u), values.min() - LARGEST_GAP)
        result[self.alive] = values
        return result

    def at(self, u: Floats) -> _Point:
        from scipy.sparse import csr_array  # loaded where there are masks, and not for every coordinator

        scores = u[self.indices]
        top = np.maximum.reduceat(scores, self.indptr[:-1])
        grown = np.exp(scores - top[self.owner])
        total = np.add.reduceat(grown, self.indptr[:-1])
        weights = grown / total[self.owner]
        reached = np.bincount(self.indices, weights=weights * self.mass, minlength=len(u)).astype(np.float64)
        parts = self.q * (top + np.log(total))
        value = float(parts.sum() - self.p @ u)
        slack = 1e-15 * float(np.abs(parts).sum() + self.p @ np.abs(u) + 1.0)
        matrix = csr_array((weights, self.indices, self.indptr), shape=(len(self.q), len(u)))
        return _Point(value, matrix, reached, slack)

    def priced(self, u: Floats, price: float) -> tuple[Floats, float]:
        """p exp(-u / w) scaled to sum 1, and w log of its sum before."""
        logs = np.where(self.alive, np.log(np.where(self.alive, self.p, 1.0)) - u / price, -np.inf)
        top = float(logs.max())
        grown = np.exp(logs - top)
        total = float(grown.sum())
        return grown / total, price * (math.log(total) + top)

    def newton(self, point: _Point, aim: Floats, gap: float, ridge: Floats) -> tuple[Floats, bool]:
        """Solve (H + diag(ridge)) d = aim - p~ by conjugate gradients, and tell if they came within a fraction of the gap.

        H = diag(p~) - Y^T diag(q) Y, preconditioned by its diagonal.
        """
        y, y_t = point.weights, point.weights.T
        within = np.bincount(self.indices, weights=self.mass * y.data * (1.0 - y.data), minlength=len(self.p))
        inverse = np.where(self.alive, 1.0 / np.where(self.alive, within + ridge, 1.0), 0.0)
        enough = max(min(0.1, gap), 0.01) * gap
        d = np.zeros(len(self.p))
        r = np.where(self.alive, aim - point.reached, 0.0)
        z = inverse * r
        direction, rz = z, float(r @ z)
        for _ in range(CONJUGATE_STEPS):
            if rz <= 0.0 or float(np.abs(r).sum()) <= enough:
                return d, True
            whole = (point.reached + ridge) * direction
            image = whole - y_t @ (self.q * (y @ direction))
            curvature = float(direction @ image)
            if not curvature > ROUNDING * float(direction @ whole):  # a step by what rounding left would have no end
                break
            length = rz / curvature
            d = d + length * direction
            r = np.where(self.alive, r - length * image, 0.0)
            z = inverse * r
            before, rz = rz, float(r @ z)
            direction = z + (rz / before) * direction
        return d, False

    def sweep(self, u: Floats) -> _Sweep:
        alive = np.flatnonzero(self.alive)
        order = alive[np.argsort(-u[alive], kind="stable")]
        rank = np.full(len(u), len(order))
        rank[order] = np.arange(len(order))
        first = np.minimum.reduceat(rank[self.indices], self.indptr[:-1])
        reached = np.bincount(first, weights=self.q, minlength=len(order) + 1)[: len(order)]
        mass: Floats = np.concatenate([[0.0], np.cumsum(self.p[order])])
        covered: Floats = np.concatenate([[0.0], np.cumsum(reached)])
        size = int(np.argmax(mass - covered))
        return _Sweep(order, mass, covered, size, float(mass[size] - covered[size]))

    def lifts(self, sweep: _Sweep, slopes: Floats, separation: float, tight: float) -> Floats:
        """How far to part each site's score from the next higher one, where no weight may pass between them.

        That is where slopes rise or, if none does, where p(I_k) is q(N(I_k)) but for ``tight``. Newton steps get there as
        well, but only by 1 a step.
        """
        lifts: Floats = np.minimum(np.diff(slopes[sweep.order]) / separation, LARGEST_LIFT)
        lifts[np.abs(sweep.covered - sweep.mass)[1:-1] <= tight] = LARGEST_LIFT
        return lifts

    def slopes(self, sweep: _Sweep) -> Floats:
        """The slopes of the greatest convex minorant of (p(I_k), q(N(I_k)))."""
        x, y = sweep.mass, sweep.covered
        corners: list[int] = [0]
        for k in range(1, len(x)):
            while len(corners) > 1:
                a, b = corners[-2], corners[-1]
                if (y[b] - y[a]) * (x[k] - x[a]) < (y[k] - y[a]) * (x[b] - x[a]):
                    break
                corners.pop()
            corners.append(k)
        at = np.array(corners)
        own = np.add.reduceat(self.p[sweep.order], at[:-1])  # of small ones differences of sums have few digits
        slopes = np.repeat(np.diff(y[at]) / own, np.diff(at))
        result = np.zeros(len(self.p))
        result[sweep.order] = slopes
        return result


def _approach(dual: _Dual, most: int) -> tuple[Floats, int]:
    """Scores in the order of the blocking sets, by plans for which p may be missed at a price; and the Newton steps taken.

    At a price w sought is the plan of least KL(T | q_j / |A_j|) + w KL(p~ | p). There always is one, and its scores minimise

        sum_j q_j log sum_{i in A_j} exp u_i + w log sum_i p_i exp(-u_i / w),

    whose gradient is p~ less p exp(-u / w) scaled to sum 1. As w grows p~ tends to the reachable distribution of least KL: a
    block of sites with p~ = s p has scores near -w log s, so that blocks part by themselves, and from one price to the next
    scores move by the difference of prices times -log s, with the slopes s of the sets that the order shows.
    """
    taken, last, u = 0, 0.0, dual.start()
    point = dual.at(u)
    for price in PRICES:
        if last:
            slopes = dual.slopes(dual.sweep(u))
            u = u - np.where(dual.alive, (price - last) * np.log(np.maximum(slopes, 1e-300)), 0.0)
            point = dual.at(u)
        last = price
        for _ in range(PRICED_STEPS):
            aim, value = dual.priced(u, price)
            gap = float(np.abs(point.reached - aim).sum())
            if gap < min(1e-3, 0.1 / price):
                break
            if taken >= most:
                return u, taken
            step, _ = dual.newton(point, aim, gap, aim / price + SMALLEST_DAMPING * dual.p)
            step *= min(1.0, max(LARGEST_LIFT, price) / max(float(np.ptp(step[dual.alive])), 1e-300))
            slope, start, length = float((point.reached - aim) @ step), point.value + float(dual.p @ u) + value, 1.0
            for _ in range(40):
                moved = u + length * step
                at = dual.at(moved)
                reached = at.value + float(dual.p @ moved) + dual.priced(moved, price)[1]
                if reached <= start + 1e-4 * length * slope + at.slack + point.slack:
                    break
                length /= 2.0
            u, point, taken = moved, at, taken + 1
    return u, taken


def _descend(
    dual: _Dual, u: Floats, point: _Point, target: Floats, step: Floats, damping: float, solved: bool
) -> tuple[Floats, _Point, float]:
    """The longest of the steps 1, 1/2, 1/4 ... that lowers D for the target as its slope promises, and the next damping."""
    # Where all weights are 0 or 1 D is almost linear, and a whole step would turn an order round again and again.
    step = step * min(1.0, LARGEST_LIFT / max(float(np.ptp(step[dual.alive])), LARGEST_LIFT))
    slope = float((point.reached - target) @ step)
    start = point.value + float((dual.p - target) @ u)
    length = 1.0
    for _ in range(60):
        moved = u + length * step
        at = dual.at(moved)
        if at.value + float((dual.p - target) @ moved) <= start + 1e-4 * length * slope + at.slack + point.slack:
            break
        length /= 2.0
    closed = dual.closed(moved)
    if np.ptp((closed - moved)[dual.alive]) > 1e-9:  # a gap was cut, which changes D but no weight
        at = dual.at(closed)
    full = length == 1.0 and solved
    return closed, at, max(damping / 10.0, SMALLEST_DAMPING) if full else min(4.0 * damping, 1.0)
