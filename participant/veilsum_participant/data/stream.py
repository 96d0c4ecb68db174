"""Records in batches, of a source that is larger than memory: together they are what
:func:`veilsum_participant.data.encode.load_records` reads, to the bit and in its order, and a subject's stand in one batch.

Where subjects count, their column is read first and alone. Then the source is read once for each so many records, of which
only those of the next subjects are kept. Parquet's groups of rows without one of theirs are skipped, so that a file in the
order of its subjects is read once in all. Nothing is written to a disk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from veilsum_participant.data.encode import encode_table
from veilsum_participant.data.sources import changed, read_batches, read_identifiers
from veilsum_participant.data.subjects import number_parts
from veilsum_participant.query import Bucket, Images, Query, Source
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records

BATCH = 1 << 24
"""Bytes of records that are read at a time."""


def record_bytes(schema: DatasetSchema) -> int:
    """Bytes of one record in memory."""
    return 9 * schema.width + 16


def comes_in_batches(source: Source, subject: str | None) -> bool:
    """Whether :func:`stream_records` takes less memory than all records do: of CSV, of Parquet, and of a query on files that
    names no subjects."""
    if isinstance(source, Images):
        return comes_in_batches(source.table, subject)
    if isinstance(source, Query):
        return subject is None and bool(source.files)
    return isinstance(source, Bucket) or source.suffix.lower() != ".npz"


def stream_records(
    source: Source,
    schema: DatasetSchema,
    subject: str | None,
    *,
    header: bool | None = None,
    rows: int | None = None,
    persons: int | None = None,
) -> Iterator[Records]:
    """Read a source under a schema, batch by batch; there is one at least.

    Args:
        source, schema, subject, header: as in :func:`veilsum_participant.data.encode.load_records`; without a subject, records
            are in the source's order.
        rows: records that are read at a time; about :data:`BATCH` without it.
        persons: records that are held where subjects count, if no person has more. As ``rows`` without it.

    Raises:
        DataError, ConfigurationError: as there; or a file is changed while it is read.
    """
    rows = rows or max(1, BATCH // record_bytes(schema))
    if subject is None:
        for table in read_batches(source, schema, rows, header=header):
            yield encode_table(table, schema)[0]
        return
    numbers, _ = number_parts(read_identifiers(source, schema, subject, rows, header=header))
    for first, last in _ranges(numbers, persons or rows):
        held = _persons(source, schema, header, rows, numbers, (numbers >= first) & (numbers <= last))
        yield from _slices(held, rows)
        del held  # before the next ones are read


def _persons(
    source: Source, schema: DatasetSchema, header: bool | None, rows: int, numbers: NDArray[np.int64], keep: NDArray[np.bool_]
) -> Records:
    """The records of some of the subjects, sorted by subject; those of one keep their order."""
    own = numbers[keep]
    order = np.argsort(own, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    features, present = np.empty((len(own), schema.width)), np.empty((len(own), schema.width), dtype=np.bool_)
    labels = None if schema.label is None else np.empty(len(own), dtype=np.int64)
    end = 0
    for table in read_batches(source, schema, rows, header=header, keep=keep if len(keep) else None):
        part = encode_table(table, schema)[0]
        start, end = end, end + len(part)
        if end > len(own):
            raise changed(source)
        features[places[start:end]], present[places[start:end]] = part.features, part.present
        if labels is not None and part.labels is not None:
            labels[places[start:end]] = part.labels
    if end != len(own):
        raise changed(source)
    return Records(features, present, labels, own[order])


def _slices(records: Records, rows: int) -> Iterator[Records]:
    """Batches of so many records or more, that end with a subject; one at least."""
    subjects, start = records.subjects, 0
    while subjects is not None and len(records) - start > rows:
        end = int(np.searchsorted(subjects, subjects[start + rows - 1], side="right"))
        yield records.take(slice(start, end))
        start = end
    if start < len(records) or not start:
        yield records.take(slice(start, len(records)))


def _ranges(numbers: NDArray[np.int64], rows: int) -> list[tuple[int, int]]:
    """First and last number of subjects with so many records together, or of one with more; no subjects are one range."""
    ends = np.cumsum(np.bincount(numbers, minlength=1))
    found, first = [], 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        last = max(first, int(np.searchsorted(ends, begin + rows, side="right")) - 1)
        found.append((first, last))
        first = last + 1
    return found
