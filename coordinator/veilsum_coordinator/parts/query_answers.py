"""Answers to queries from the released sum: rows that people read, with both errors, and tests.

Every row is one figure or a few, with the levels of its group; what noise drowned says so and what would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from numpy.typing import NDArray

from veilsum_aggregation.figures import Row
from veilsum_coordinator.parts.estimable import told_rows
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.query_readers import READERS, SyntheticReader
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.tasks.queries.base import Encoding
from veilsum_privacy.tasks.tables import Tables

TABLES = "statistics"
"""Label of the release."""

RECORDS = " records"
"""After a query's name: the array of its synthetic records, and what their levels mean."""


def answers(federation: Federation) -> Result:
    """Run the one round and answer every query.

    The summary has ``queries``, what was asked, and an item for each query with its rows, and one each for its tests and
    its ratios if it has any.
    """
    task = AgreedStudy(federation.study).task(TABLES).task
    release = federation.sum(TABLES)
    smallest = int(federation.study.parameters.get("smallest_cell", 0))
    summary: dict[str, Any] = {"queries": [_asked(encoding) for encoding in encodings_of(task)], "cohort": len(release.cohort)}
    made: dict[str, NDArray[Any]] = {}
    # A table one shows what is missing, but a test compares it only where the study says that it is a level.
    asked = federation.study.parameters.get("query", ())
    told = {query.get("name") or query["kind"] for query in asked if query.get("missing") == "level"}
    for encoding in encodings_of(task):
        part_of = encoding.query.part_of
        reader = READERS[type(encoding)](encoding, release, smallest, not part_of or part_of in told)
        name = encoding.query.name
        summary[name] = told_rows(f"query {name}", reader.rows)
        if tests := told_rows(f"tests of query {name}", reader.tests):
            summary[f"{name} tests"] = tests
        if ratios := told_rows(f"ratios of query {name}", reader.ratios):
            summary[f"{name} ratios"] = ratios
        if isinstance(reader, SyntheticReader):
            summary[f"{name}{RECORDS}"] = told_rows(f"records of query {name}", partial(_drawn, reader, made))
            made |= {} if smallest else dict(reader.scales())
    arrays = {name.replace("/", "."): values for name, values in release.values.items()} if not smallest else {}
    return Result("statistics", summary, {**arrays, **made})


def _drawn(reader: SyntheticReader, made: dict[str, NDArray[Any]]) -> Iterator[Row]:
    """Put synthetic records among the arrays, and say what they mean."""
    made[f"{reader.encoding.query.name}{RECORDS}"] = reader.records()
    yield from reader.levels()


def encodings_of(task: Any) -> tuple[Encoding, ...]:
    """The encodings of a task on tables."""
    return task.encodings if isinstance(task, Tables) else ()


def _asked(encoding: Encoding) -> Row:
    query = encoding.query
    about = {"over": ", ".join(query.over), "by": ", ".join(query.by), "where": query.where, "part_of": query.part_of}
    return {"query": query.name, "kind": query.kind, **about}
