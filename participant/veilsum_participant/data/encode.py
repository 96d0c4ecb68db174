"""Turn what a site's file or query holds into records for a task. In a study nothing raises because of what a record holds.

Numbers beyond their bounds are clamped to them; what cannot be understood counts as missing; a missing value is replaced by
the schema's public impute or marked absent. How often that happened is counted for the site alone and never leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.quality import ColumnCells
from veilsum_participant.data.reader import check_held
from veilsum_participant.data.sources import opened, tried
from veilsum_participant.data.subjects import number_subjects
from veilsum_participant.data.table import Table
from veilsum_participant.datasets import record_bytes
from veilsum_participant.settings.query import Source
from veilsum_privacy.mechanism.records import Records, join_batches
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn


@tried
def load_records(
    source: Source, schema: DatasetSchema, subject: str | None = None, *, header: bool | None = None
) -> tuple[Records, dict[str, ColumnCells]]:
    """Read a file, or a query, into records; with ``subject``, the column that tells whose record each is, sorted by subject.

    Records beyond ``schema.max_records`` are used as well. Were only the first of the file used, one more record at its head
    would push another one out, and the sum would change by two. It is the sum that is bounded by what ``max_records`` records
    can reach, which costs no privacy (:mod:`veilsum_privacy.computation.contribution`). What the owner of a CSV file says of
    its ``header`` has to be what the schema says.

    Raises:
        DataError: the file's structure is wrong (missing, unreadable, or without a column of the schema), it is damaged, or
            its records do not fit into memory; or the query fails.
        Unavailable: the database is away.
    """
    with opened(source, schema, subject=subject, header=header) as tables:
        return encode_tables(tables.read(), schema, source)


def encode_tables(
    tables: Iterable[Table], schema: DatasetSchema, source: object = "A table"
) -> tuple[Records, dict[str, ColumnCells]]:
    """The records of a source's tables, as :func:`load_records` has them: texts are let go with each table."""
    parts, identifiers, found, rows = list[Records](), list[Any](), dict[str, ColumnCells](), 0
    for table in tables:
        rows += table.rows
        check_held(source, rows * record_bytes(schema))
        parts.append(encode_table(table, schema, found))
        if table.subjects is not None:
            identifiers.append(table.subjects)
    records = join_batches(parts)
    if identifiers:
        subjects, _ = number_subjects(identifiers)
        order = np.argsort(subjects, kind="stable")  # those of one subject keep their order
        records = replace(records.take(order), subjects=subjects[order])
    return records, found


def encode_table(table: Table, schema: DatasetSchema, found: dict[str, ColumnCells] | None = None) -> Records:
    """The records of a table in its order, without subjects; what is ``found`` of its cells is added to, by column."""
    features, labels = np.zeros((table.rows, schema.width)), None
    present = np.zeros((table.rows, schema.width), dtype=np.bool_)
    places = iter(schema.places())
    for cells in judge_table(table.columns, schema):
        if found is not None:
            found.setdefault(cells.name, ColumnCells(cells.name)).add(cells.missing, cells.outside, cells.invalid)
        values, column, known = cells.values, cells.column, ~(cells.missing | cells.invalid)
        if column is None:
            labels = values
            continue
        _, place = next(places)
        if column.impute is not None:
            impute = column.categories.index(column.impute) if isinstance(column.impute, str) else column.impute
            values = np.where(known, values, impute)
            known = np.ones_like(known)
        if isinstance(column, NumberColumn):
            features[:, place] = np.where(known, scale(np.where(known, values, column.low), column), 0.0)[:, None]
        else:
            features[:, place] = values[:, None] == np.arange(column.width)
        present[:, place] = known[:, None]
    return Records(features, present, labels)


def scale(values: NDArray[np.float64], column: NumberColumn) -> NDArray[np.float64]:
    """Clamp to the public bounds and map [low, high] to [-1, 1]."""
    clamped = np.minimum(np.maximum(values, column.low), column.high)
    half = column.high / 2.0 - column.low / 2.0
    scaled: NDArray[np.float64] = np.minimum(np.maximum((clamped - column.low) / half - 1.0, -1.0), 1.0)
    return scaled
