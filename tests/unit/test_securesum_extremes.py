"""The corner that the issue of exactness turns on: the largest cohort and the longest vector at once."""

from __future__ import annotations

import numpy as np
import pytest

from support.securesum import exact_plan, make_cohort
from veilsum_privacy.securesum.contribution import open_sum

CONTEXT = bytes(32)


@pytest.mark.parametrize(("members", "size"), [(64, 60_000), (64, 1), (2, 300_000)])
def test_masked_sums_are_exact_at_the_corners(members: int, size: int) -> None:
    """Two 24-bit lanes at 64 members: every value of every member counts, and the opened sum is numpy's."""
    bound = 2**16
    plan = exact_plan(size, bound, members)
    cohort = make_cohort(members)
    rng = np.random.default_rng(members + size)
    expected = np.zeros(size, dtype=np.int64)
    total: list[np.ndarray] = []  # type: ignore[type-arg]
    for name in cohort.names:
        values = rng.integers(-bound, bound + 1, size)
        expected += values
        words = cohort.words(name, values, plan, CONTEXT)
        total = (
            [(a + b) % np.uint64(plan.parameters.plain_modulus) for a, b in zip(total, words, strict=True)] if total else words
        )
    np.testing.assert_array_equal(open_sum(total, plan, cohort.consents(CONTEXT)), expected)
