"""Sums of wide tables at one site beside the same figures by numpy. CPU time of one core.

``statistics`` adds up x, its square and its absence for each column, rounded, and holds each record to its norm, and so does
the pass beside it. ``fedcgs`` forms each record's own product, truncated and rounded, where X'X is one product of matrices.
"""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.timing import fastest
from support.federation import schema_of
from support.studies import compiled
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records

SHAPES = (("statistics", 1000, 10_000), ("statistics", 30, 200_000), ("fedcgs", 30, 100_000), ("fedcgs", 100, 20_000))
QUICK = (("statistics", 300, 5_000), ("fedcgs", 30, 20_000))
_CELLS = 1 << 19


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Of each method and shape seconds of both, and their ratio."""
    shapes = QUICK if quick else SHAPES
    with threadpool_limits(1):
        return {f"{name}, {columns:,} x {records:,}": _row(name, columns, records) for name, columns, records in shapes}


def _row(method: str, columns: int, records: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    study = compiled(method, schema=schema_of(columns, 2, max_records=200_000), sites=("a", "b", "c"), epsilon=3.0)
    task = AgreedStudy(study).tasks[-1]
    plan, broadcast = task.plan(3, 3), task.task.example_broadcast(3)
    x = rng.uniform(-1.0, 1.0, (records, columns))
    here = Records(x, np.ones(x.shape, bool), rng.integers(0, 2, records))
    ours = fastest(lambda: compute_sum(plan, here, broadcast, SitePlace(0)))
    plain = fastest(lambda: _pass(x, here.present) if method == "statistics" else x.T @ x)
    beside = "numpy" if method == "statistics" else "X'X"
    return {"s": ours, f"{beside}, s": plain, "ratio": ours / plain}


def _pass(x: np.ndarray, present: np.ndarray) -> np.ndarray:
    total, step = np.zeros(3 * x.shape[1], np.int64), max(1, _CELLS // x.shape[1])
    for start in range(0, len(x), step):
        part, there = x[start : start + step], present[start : start + step]
        rows = np.rint(np.concatenate([part * 45.0, (part * part - 0.7) * 91.0, ~there * 64.0], axis=1))
        if (np.einsum("ij,ij->i", rows, rows) > 1e12).any():
            raise AssertionError("a record beyond its norm")
        total += rows.sum(axis=0).astype(np.int64)
    return total
