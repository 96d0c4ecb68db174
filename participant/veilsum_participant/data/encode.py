"""Turn what a site's file or query holds into records for a task. In a study nothing raises because of what a record holds.

Numbers beyond their bounds are clamped to them; what cannot be understood counts as missing; a missing value is replaced by
the schema's public impute or marked absent. How often that happened is counted for the site alone and never leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_participant.data.cells import judge_categories, judge_column, judge_labels
from veilsum_participant.data.sources import opened, tried
from veilsum_participant.data.subjects import number_parts
from veilsum_participant.data.table import Table
from veilsum_participant.query import Source
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records, join_batches


@dataclass
class LocalCounts:
    """What was mended in a site's data; stays at the site.

    Attributes:
        used: records used.
        excess: how many more these are than the schema's ``max_records``.
        broken: lines of a CSV file that are no records, such as those with too few or too many cells, and are not used.
        clamped: by column, numbers outside their bounds.
        invalid: by column, cells that are no number, category or class.
        missing: by column, cells without a value.
        imputed: by column, cells that took the public impute.
        subjects: how many subjects the records are of, where the site named the column that tells.
        unidentified: records without an identifier; each is a subject of its own.
    """

    used: int = 0
    excess: int = 0
    broken: int = 0
    clamped: Counter[str] = field(default_factory=Counter)
    invalid: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    imputed: Counter[str] = field(default_factory=Counter)
    subjects: int | None = None
    unidentified: int = 0


def load_records(
    source: Source, schema: DatasetSchema, subject: str | None = None, *, header: bool | None = None
) -> tuple[Records, LocalCounts]:
    """Read a file, or a query, into records; with ``subject``, the column that tells whose record each is, sorted by subject.

    Records beyond ``schema.max_records`` are used as well. Were only the first of the file used, one more record at its head
    would push another one out, and the sum would change by two. It is the sum that is bounded by what ``max_records`` records
    can reach, which costs no privacy (:mod:`veilsum_privacy.computation.contribution`). What the owner of a CSV file says of
    its ``header`` has to be what the schema says.

    Raises:
        DataError: the file's structure is wrong (missing, unreadable, or without a column of the schema), or it is damaged;
            or the query fails.
        Unavailable: the database is away.
    """

    def whole() -> Iterator[tuple[Records, LocalCounts]]:
        with opened(source, schema, subject=subject, header=header) as tables:
            yield _encoded(tables.read(), schema)

    return next(tried(whole))


def encode_table(table: Table, schema: DatasetSchema) -> tuple[Records, LocalCounts]:
    """Turn the cells of a table into records, as :func:`load_records` does for a source's."""
    return _encoded([table], schema)


def _encoded(tables: Iterable[Table], schema: DatasetSchema) -> tuple[Records, LocalCounts]:
    """The records of a source's tables: texts are let go with each table."""
    parts, identifiers, counts = list[Records](), list[Any](), LocalCounts()
    for table in tables:
        parts.append(_cells(table, schema, counts))
        if table.subjects is not None:
            identifiers.append(table.subjects)
    counts.excess = max(0, counts.used - schema.max_records)
    records = join_batches(parts)
    return (_by_subject(records, identifiers, counts) if identifiers else records), counts


def _cells(table: Table, schema: DatasetSchema, counts: LocalCounts) -> Records:
    """The records of a table without subjects; ``counts`` is added to."""
    rows = table.rows
    counts.used += rows
    counts.broken += len(table.broken)
    features = np.zeros((rows, schema.width))
    present = np.zeros((rows, schema.width), dtype=np.bool_)
    for column, place in schema.places():
        if isinstance(column, NumberColumn):
            features[:, place], present[:, place] = _numbers(table.columns, column, schema, counts)
        else:
            features[:, place], present[:, place] = _indicators(table.columns[column.source], column, schema, counts)
    labels = None
    if schema.label is not None:
        name = schema.label.column
        cells = judge_labels(table.columns[name], schema.label, schema.missing)
        labels = cells.codes
        counts.missing[name] += int(np.count_nonzero(cells.missing))
        counts.invalid[name] += int(np.count_nonzero(cells.invalid))
    return Records(features, present, labels)


def _by_subject(records: Records, identifiers: list[Any], counts: LocalCounts) -> Records:
    """The records sorted by subject; those of one subject keep their order."""
    subjects, missing = number_parts(identifiers)
    counts.subjects, counts.unidentified = len(np.unique(subjects)), int(missing.sum())
    order = np.argsort(subjects, kind="stable")
    labels = records.labels[order] if records.labels is not None else None
    return Records(records.features[order], records.present[order], labels, subjects[order])


def scale(values: NDArray[np.float64], column: NumberColumn) -> NDArray[np.float64]:
    """Clamp to the public bounds and map [low, high] to [-1, 1]."""
    clamped = np.minimum(np.maximum(values, column.low), column.high)
    half = column.high / 2.0 - column.low / 2.0
    scaled: NDArray[np.float64] = np.minimum(np.maximum((clamped - column.low) / half - 1.0, -1.0), 1.0)
    return scaled


def _numbers(
    columns: Mapping[str, Any], column: NumberColumn, schema: DatasetSchema, counts: LocalCounts
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    cells = judge_column(columns, column, schema.missing)
    counts.missing[column.name] += int(np.count_nonzero(cells.missing))
    counts.invalid[column.name] += int(np.count_nonzero(cells.invalid))
    counts.clamped[column.name] += int(np.count_nonzero(cells.outside))
    values, known = cells.values, ~(cells.missing | cells.invalid)
    if column.impute is not None:
        counts.imputed[column.name] += int(np.count_nonzero(~known))
        values = np.where(known, values, column.impute)
        known = np.ones_like(known)
    scaled = np.where(known, scale(np.where(known, values, column.low), column), 0.0)
    return scaled[:, None], known[:, None]


def _indicators(
    array: object, column: CategoryColumn, schema: DatasetSchema, counts: LocalCounts
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    cells = judge_categories(array, column, schema.missing)
    counts.missing[column.name] += int(np.count_nonzero(cells.missing))
    counts.invalid[column.name] += int(np.count_nonzero(cells.invalid))
    codes = cells.codes
    if column.impute is not None:
        counts.imputed[column.name] += int(np.count_nonzero(codes < 0))
        codes = np.where(codes < 0, column.categories.index(column.impute), codes)
    indicators = (codes[:, None] == np.arange(column.width)).astype(np.float64)
    return indicators, np.broadcast_to((codes >= 0)[:, None], indicators.shape)
