"""Masked transport at sizes of real federations, to 1e-8: all pairs of 1000 sites, and 100,000 subsets of ten of 10,000 sites.

"98%" names importance close to what availability allows: of every first k sites together ("each set"), of one site, or of 100
sites. CPU time of one core; certificates are recomputed from the weights by code of this file.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from veilsum_aggregation.masked_transport import Subsets, pair_probabilities, solve

Floats = NDArray[np.float64]
TOLERANCE = 1e-8


def _scaled(values: Floats) -> Floats:
    return values / values.sum()


def pairs(sites: int) -> list[tuple[str, Floats, Subsets, Floats]]:
    """Instances over all pairs."""
    i, k, subsets = np.arange(1.0, sites + 1), np.arange(sites + 1), Subsets.all_pairs(sites)
    even = np.full(len(subsets), 1 / len(subsets))
    reach = 1 - (sites - k) * (sites - k - 1) / (sites * (sites - 1))
    first = {number: np.where(i <= number, 0.98 * reach[number] / number, 0.0) for number in (1, sites // 10)}
    filled = {number: np.where(i <= number, p, (1 - p.sum()) / (sites - number)) for number, p in first.items()}
    return [
        ("rates N + i, p 2N + 1 - i", _scaled(2 * sites + 1 - i), subsets, pair_probabilities(sites + i)),
        ("even, p exp(-i/N)", _scaled(np.exp(-i / sites)), subsets, even),
        ("even, 98%, each set", 0.98 * np.diff(reach) + 0.02 / sites, subsets, even),
        ("even, 98%, one site", filled[1], subsets, even),
        (f"even, 98%, {sites // 10} sites", filled[sites // 10], subsets, even),
        ("infeasible, rates i, p N + 1 - i", _scaled(sites + 1 - i), subsets, pair_probabilities(i)),
    ]


def tens(sites: int, number: int) -> list[tuple[str, Floats, Subsets, Floats]]:
    """Instances over random subsets of ten."""
    random = np.random.default_rng(0)
    members = np.array([random.choice(sites, 10, replace=False) for _ in range(number)])
    subsets = Subsets(np.arange(0, 10 * number + 1, 10), members.ravel())
    q = _scaled(random.random(number) + 0.1)
    shares = q[:, None] * random.dirichlet(np.ones(10), number)
    reachable = np.bincount(members.ravel(), weights=shares.ravel(), minlength=sites)
    return [
        ("p of random shares", _scaled(reachable), subsets, q),
        ("p exp(-i/N)", _scaled(np.exp(-np.arange(sites) / sites)), subsets, q),
        ("infeasible, p lognormal", _scaled(np.exp(2.0 * random.standard_normal(sites))), subsets, q),
        ("infeasible, p i^-1.5", _scaled(np.arange(1.0, sites + 1) ** -1.5), subsets, q),
    ]


def solved(name: str, p: Floats, subsets: Subsets, q: Floats) -> dict[str, Any]:
    """Figures of one instance.

    Raises:
        AssertionError: it was left undecided, or the residual is not what the weights give.
    """
    start = time.process_time()
    plan = solve(p, subsets, q, TOLERANCE)
    seconds = time.process_time() - start
    grown = np.exp(plan.scores)[subsets.indices] if plan.scores.min() > -600 else None
    if grown is not None:
        owner = np.repeat(np.arange(len(subsets)), subsets.sizes)
        shares = grown / np.bincount(owner, weights=grown)[owner] * q[owner]
        residual = float(np.abs(np.bincount(subsets.indices, weights=shares, minlength=len(p)) - p).sum())
        if abs(residual - plan.residual) > TOLERANCE:
            raise AssertionError(f"a residual of {residual} was reported as {plan.residual}")
    if plan.feasible is None or plan.gap > TOLERANCE:
        raise AssertionError(f"undecided: {name}")
    return {
        "name": name,
        "sites": len(p),
        "subsets": len(subsets),
        "seconds": seconds,
        "steps": plan.iterations,
        "feasible": "yes" if plan.feasible else "no",
        "residual": plan.residual,
        "blocking": len(plan.blocking),
    }


def measure(*, quick: bool = False) -> list[dict[str, Any]]:
    """Figures of all instances; quick: all pairs of 100 sites and 1000 subsets of ten of 200."""
    instances = pairs(100) + tens(200, 1000) if quick else pairs(1000) + tens(10_000, 100_000)
    with threadpool_limits(1):
        return [solved(*one) for one in instances]


def table(result: list[dict[str, Any]]) -> str:
    """As a Markdown table."""
    lines = ["| masked transport, one core | sites | subsets | s | steps | feasible | residual | blocking |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |")
    lines += [
        f"| {one['name']} | {one['sites']:,} | {one['subsets']:,} | {one['seconds']:.2f} | {one['steps']} "
        f"| {one['feasible']} | {one['residual']:.2g} | {one['blocking']} |"
        for one in result
    ]
    return "\n".join(lines)
