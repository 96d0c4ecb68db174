"""Figures and tests as a result shows them: values with both errors, or why there is none and what would help."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from veilsum_aggregation.figures import Answer, Drowned, Figure, Test

Row = dict[str, Any]


def shown(answer: Answer) -> dict[str, Any]:
    """A figure as JSON; infinite ends of its interval become None."""
    if isinstance(answer, Drowned):
        return {"not_estimable": answer.reason, "advice": answer.advice}
    if not math.isfinite(answer.value):
        return {"not_estimable": "the released sums give no number", "advice": ""}
    ends = (None if math.isinf(end) else end for end in (answer.low, answer.high))
    low, high = ends
    errors = {"noise_error": answer.noise_error, "sampling_error": answer.sampling_error}
    return {"value": answer.value, **errors, "low": low, "high": high}


def test_row(name: str, of: str, found: Test | Drowned, **more: Any) -> Row:
    """A test as a row of a table."""
    row: Row = {"test": name, "of": of}
    told: Row
    if isinstance(found, Drowned):
        told = {"statistic": None, "degrees": None, "p_value": None, "noise_share": None}
        return row | told | {"note": f"not estimable: {found.reason}"} | more
    note = f"{len(found.left_out)} groups within noise are left out" if found.left_out else ""
    told = {"statistic": found.statistic, "degrees": found.degrees, "p_value": found.p_value, "noise_share": found.noise_share}
    return row | told | {"note": note} | more


def rescaled(answer: Answer, factor: float, shift: float) -> Answer:
    """An answer in the column's unit."""
    return answer if isinstance(answer, Drowned) else answer.scaled(factor, shift)


def widened(answer: Answer, by: float) -> Answer:
    """An answer whose interval reaches so much further on both sides, for what rounding may have changed."""
    if isinstance(answer, Drowned) or by == 0.0:
        return answer
    return replace(answer, low=answer.low - by, high=answer.high + by)


def root(answer: Answer) -> Answer:
    """The standard deviation of a variance; errors by the delta method, interval by the ends' roots.

    A variance that noise left at 0 or below has none: 0 would say that the values do not differ.
    """
    if isinstance(answer, Drowned):
        return answer
    if answer.value <= 0.0 and answer.noise_error > 0.0:
        return Drowned("the variance is within its noise", "more records, or more epsilon")
    value = math.sqrt(max(answer.value, 0.0))
    slope = 2.0 * max(value, 0.5 * math.sqrt(max(answer.high, 1e-12)) if math.isfinite(answer.high) else value, 1e-6)
    ends = math.sqrt(max(answer.low, 0.0)), math.sqrt(answer.high) if math.isfinite(answer.high) else math.inf
    return Figure(value, answer.noise_error / slope, answer.sampling_error / slope, *ends)
