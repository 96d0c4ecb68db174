"""Whether an opaque map makes of a record what it makes of it alone: tried on made-up records, before there are others.

A graph needs no trial, for its primitives are maps of one record by construction. What one record in a million sets off, no
trial sees.
"""

from __future__ import annotations

import numpy as np

from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap

TRIED = 32
"""Made-up records that are tried together."""

ALONE = 8
"""How many of these are tried by themselves."""


def impurity(compute: OpaqueMap, width: int, *, tried: int = TRIED, alone: int = ALONE) -> str | None:
    """In which company a map gives a record other values than otherwise, to the last bit; None where it does in none.

    Records are at random in [-1, 1], at bounds, at zero, and equal to one another. Asked for in this order: all, all
    backwards, halves, some alone, and all again.

    Args:
        compute: a map of rows (n, width) to rows (n, size), as :data:`.evaluation.OpaqueMap`.
        width: of a row.
        tried: made-up records together.
        alone: how many of these are tried by themselves.
    """
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1.0, 1.0, (tried, width))
    rows[1], rows[2], rows[3] = 1.0, -1.0, 0.0
    rows[4], rows[tried - 2] = rows[0], rows[0]
    whole, half = compute(rows), tried // 2
    if len(whole) != tried:
        return "whatever the company, for it gives another number of rows"
    found_by = {
        "in reverse": compute(rows[::-1].copy())[::-1],
        "in halves": np.concatenate([compute(rows[:half].copy()), compute(rows[half:].copy())]),
        "alone": np.concatenate([compute(rows[place : place + 1].copy()) for place in range(alone)]),
        "the second time": compute(rows),
        "beside its like": whole[[4, tried - 2]],
    }
    for how, found in found_by.items():
        wanted = whole[[0, 0]] if how == "beside its like" else whole[: len(found)]
        if found.shape != wanted.shape or not np.array_equal(found, wanted, equal_nan=True):
            return how
    return None
