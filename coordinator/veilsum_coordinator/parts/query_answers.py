"""Answers to queries from the released sum: rows that people read, with both errors, and tests.

Every row is one figure or a few, with the levels of its group; what noise drowned says so and what would help.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numpy.typing import NDArray

from veilsum_aggregation.figures import Row
from veilsum_coordinator.parts.estimable import told_arrays, told_tables
from veilsum_coordinator.parts.federation import Federation
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.tasks.queries.base import QueryKind, ReleasedPart
from veilsum_privacy.tasks.tables import questions_of

TABLES = "statistics"
"""Label of the release."""


def answers(federation: Federation) -> Result:
    """Run the one round and answer every query.

    The summary has ``queries``, what was asked, and an item for each query with its rows, and one each for its tests and
    its other tables if it has any.
    """
    questions, release = questions_of(AgreedStudy(federation.study).task(TABLES).task), federation.sum(TABLES)
    smallest = int(federation.study.parameters.get("smallest_cell", 0))
    summary: dict[str, Any] = {"queries": [_asked(question) for question in questions], "cohort": len(release.cohort)}
    made: dict[str, NDArray[Any]] = {}
    # A table one shows what is missing, but a test compares it only where the study says that it is a level.
    asked = federation.study.parameters.get("query", ())
    told = {query.get("name") or query["kind"] for query in asked if query.get("missing") == "level"}
    for question in questions:
        query = question.query
        missing = not query.part_of or query.part_of in told
        part = ReleasedPart(query, release.values, release.noise_std, release.digest, smallest, missing)
        found = told_tables(f"query {query.name}", question.result_tables(part))
        summary |= {f"{query.name}{suffix}": rows for suffix, rows in found.items() if rows or not suffix}
        drawn = told_arrays(f"query {query.name}, arrays", partial(question.arrays, part))
        made |= {f"{query.name}{suffix}": values for suffix, values in drawn.items()}
    arrays = {name.replace("/", "."): values for name, values in release.values.items()} if not smallest else {}
    return Result("statistics", summary, {**arrays, **made})


def _asked(question: QueryKind) -> Row:
    query = question.query
    about = {"over": ", ".join(query.over), "by": ", ".join(query.by), "where": query.where, "part_of": query.part_of}
    return {"query": query.name, "kind": query.kind, **about}
