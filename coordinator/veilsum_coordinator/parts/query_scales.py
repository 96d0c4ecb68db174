"""The integer scale of each query of a release: its part of the budget, weighed by what one record can fulfil together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.tasks.queries.base import QueryKind
from veilsum_privacy.tasks.queries.kinds import build_questions
from veilsum_privacy.tasks.queries.language import EXACT_SCALE, WORD_SCALE, Columns, DerivedColumn, Query
from veilsum_privacy.tasks.queries.sensitivity import Incidence, balance, find_incidence
from veilsum_privacy.tasks.tables import TablesParameters

LANE = 2**23
"""What the sum of a cohort should stay below, so that a lane has 24 bits."""

FINEST_NORM, EXACT_LANE = 2**26, 2**44
"""Largest sensitivity of a task, and what a sum should stay below, where no noise takes a part of it."""

MOST_LIMBS = 32

MOST_SCALE = 256
"""More brings no more than a part in a thousand."""


def weigh(
    queries: Sequence[Query],
    derived: Sequence[DerivedColumn],
    columns: Columns,
    *,
    largest: int,
    fine: float = 1.0,
    least_table: int = 8,
    private: bool = True,
    exact_rows: int = 0,
) -> TablesParameters:
    """Give each query its integer scale, by the optimal weights of what one record can fulfil together.

    Up to some 10,000 records a lane has 24 bits; beyond that means need finer steps than it holds, and it grows. Without noise
    counts fill a lane of 46 bits, and where values are rounded, steps are so fine that only float64 shows (:func:`_exact`).

    Args:
        queries, derived, columns: of the study.
        largest: most records of the whole federation, by which a sum should fit a lane of 24 bits.
        fine: how much finer the steps are to which values are rounded, where they should not show even in sums of few values.
        least_table: least scale of a table; the coarser, the less weights are what they should be, by up to a tenth.
        private: whether there is noise.
        exact_rows: of a unit, as :meth:`veilsum_coordinator.parts.base.Inputs.exact_rows` has them.

    Raises:
        HostileInput: a query asks for what its kind cannot give, or for a column that is not there.
    """
    questions = build_questions(queries, columns)
    for question in questions:
        _check_possible(question, columns)
    incidence = find_incidence(questions, columns)
    if exact_rows and any(question.rounded for question in questions):
        return _exact(questions, derived, columns, incidence, largest, exact_rows)
    reference = [query.model_copy(update={"scale": 4096}) for query in queries]
    unit = [question.norm() / 4096.0**2 for question in build_questions(reference, columns)]
    costs = [question.figures() * question.query.importance for question in questions]
    weights = np.sqrt(balance(incidence, unit, costs))
    steps = fine * math.sqrt(largest)  # what rounding adds to a mean, 0.1 steps or so, stays well below its sampling error
    scales = [max(question.least_scale, steps if question.rounded else least_table) for question in questions]
    least = max(scale / weight for scale, weight in zip(scales, weights, strict=True))
    least = min(least, WORD_SCALE / float(weights.max()))  # the largest that a query may have, whatever the others need
    wanted = min(max(least, 0.95 * LANE / largest), max(least, MOST_SCALE / float(weights.min())))
    if not private:
        wanted = max(wanted, WORD_SCALE / float(weights.max()))
        norms = [math.ceil(each * (weight * wanted) ** 2) for each, weight in zip(unit, weights, strict=True)]
        reach = math.sqrt(incidence.largest_integer(norms))
        wanted *= min(1.0, 0.95 * min(FINEST_NORM, EXACT_LANE / largest) / max(reach, 1.0))
    best: tuple[float, TablesParameters] | None = None
    for size in np.unique(np.rint(np.linspace(max(least, 0.8 * wanted), max(least, wanted), 12))):
        scaled = [
            query.model_copy(update={"scale": max(1, round(size * weight))})
            for query, weight in zip(queries, weights, strict=True)
        ]
        parameters = _parameters(scaled, derived, columns, incidence)
        loss = sum(cost / query.scale**2 for cost, query in zip(costs, scaled, strict=True)) * parameters.sensitivity**2
        if best is None or loss < best[0]:
            best = loss, parameters
    if best is None:
        raise HostileInput("No query is asked.")
    return best[1]


def _exact(
    questions: Sequence[QueryKind],
    derived: Sequence[DerivedColumn],
    columns: Columns,
    incidence: Incidence,
    largest: int,
    rows: int,
) -> TablesParameters:
    """Values in steps of 2^-48, written in as few limbs as fit the sensitivity of a task and a lane of 46 bits.

    A limb below the highest is at most B/2, the lowest at most the value itself; limb j, what is left of a value F, is at
    most F / B^j and one for its rounding. So limb j of a row of e values and norm N has a squared norm of at most e B^2 / 4,
    but for the highest, and of at most (N / B^j + sqrt e)^2.
    """
    scales = [EXACT_SCALE if question.rounded else question.least_scale for question in questions]
    asked = [question.query.model_copy(update={"scale": scale}) for question, scale in zip(questions, scales, strict=True)]
    exact = build_questions(asked, columns)
    for limbs in range(2, MOST_LIMBS + 1):
        bits = math.ceil((EXACT_SCALE.bit_length() + 1) / limbs)
        norms = [_limb_norm(question, limbs, bits) for question in exact]
        sensitivity = math.isqrt(incidence.largest_integer(norms)) + 1
        if sensitivity * rows <= min(FINEST_NORM, EXACT_LANE // largest):
            return TablesParameters(
                queries=tuple(asked), derived=tuple(derived), sensitivity=sensitivity, limbs=limbs, limb_bits=bits
            )
    raise HostileInput(
        f"The exact sums of {largest} records do not fit.", "Lower the schema's max_records, or ask fewer queries at once."
    )


def _limb_norm(question: QueryKind, limbs: int, bits: int) -> int:
    """Bound on the squared norm of a record's row in limbs: a record stands in one group."""
    norm, entries = question.norm(), question.size // question.group_count
    most: int = entries * 4 ** (bits - 1)
    rest = [math.ceil((math.sqrt(norm) / 2.0 ** (bits * limb) + math.sqrt(entries)) ** 2) for limb in range(1, limbs)]
    return min(norm, most) + sum([min(each, most) for each in rest[:-1]], rest[-1])


def _parameters(
    queries: Sequence[Query], derived: Sequence[DerivedColumn], columns: Columns, incidence: Incidence
) -> TablesParameters:
    norms = [question.norm() for question in build_questions(queries, columns)]
    squared = incidence.largest_integer(norms)
    return TablesParameters(
        queries=tuple(queries), derived=tuple(derived), sensitivity=math.isqrt(squared - 1) + 1 if squared else 1
    )


def _check_possible(question: QueryKind, columns: Columns) -> None:
    """Refuse a condition that no record can meet."""
    if question.condition is not None and not find_incidence([question], columns).patterns.any():
        raise HostileInput(f"{question.what}: no record can meet {question.query.where!r}.", "Correct `where`.")
