"""Records in batches, of a source that is larger than memory: together they are what
:func:`veilsum_participant.data.encode.load_records` reads, to the bit and in its order, and a subject's stand in one batch.

Where subjects count, a file's column of them is read first and alone. Then the file is read once for each so many records, of
which only those of the next subjects are kept. Parquet's groups of rows without one of theirs are skipped, so that a file in
the order of its subjects is read once in all.

A query need not give its rows in the same order twice. Where its database sorts them by subject, it is read once, and what
comes is held against that order. Else, subjects are put into buckets by a hash, and the query is read once for each so many
records of next buckets: whatever it yields, a subject's records are in one bucket. Nothing is written to a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilsum_node.errors import DataError, Unavailable
from veilsum_participant.data import queries
from veilsum_participant.data.encode import encode_table
from veilsum_participant.data.queries import Answers
from veilsum_participant.data.sources import (
    ask_batches,
    ask_identifiers,
    asked_query,
    changed,
    read_batches,
    read_identifiers,
)
from veilsum_participant.data.subjects import BUCKETS, bucket_subjects, number_parts, told
from veilsum_participant.data.table import Table
from veilsum_participant.query import Bucket, Images, Source, SourceQuery
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records, join_batches

BATCH = 1 << 24
"""Bytes of records that are read at a time."""


_ALONE = 1 << 40
"""Number of the first subject without an identifier, where how many others there are is not known yet."""


def record_bytes(schema: DatasetSchema) -> int:
    """Bytes of one record in memory."""
    return 9 * schema.width + 16


def comes_in_batches(source: Source) -> bool:
    """Whether :func:`stream_records` takes less memory than all records do: of everything but npz files."""
    table = source.table if isinstance(source, Images) else source
    return isinstance(table, SourceQuery | Bucket) or table.suffix.lower() != ".npz"


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
            are in the source's order. Of a query, numbers of subjects are others.
        rows: records that are read at a time; about :data:`BATCH` without it.
        persons: records that are held where subjects count, if no person has more. As ``rows`` without it.

    Raises:
        DataError, ConfigurationError, Unavailable: as there; or a source is changed while it is read, or a database breaks off
            after the first batch.
    """
    rows = rows or max(1, BATCH // record_bytes(schema))
    if (query := asked_query(source)) is not None:

        def ask() -> Iterator[Records]:
            with queries.answers(query) as answers:
                yield from _asked(source, answers, schema, subject, rows, persons or rows)

        yield from _tried(ask)
    elif subject is None:
        for table in read_batches(source, schema, rows, header=header):
            yield encode_table(table, schema)[0]
    else:
        numbers, _ = number_parts(read_identifiers(source, schema, subject, rows, header=header))
        for first, last in _ranges(np.bincount(numbers, minlength=1), persons or rows):
            held = _persons(source, schema, header, rows, numbers, (numbers >= first) & (numbers <= last))
            yield from _slices(held, rows)
            del held  # before the next ones are read


def _tried(ask: Callable[[], Iterator[Records]]) -> Iterator[Records]:
    """Try again what breaks before its first batch: none has been taken for another yet."""
    for pause in queries.PAUSES:
        batches = ask()
        try:
            first = next(batches)
        except Unavailable:
            time.sleep(pause)
        else:
            yield first
            yield from batches
            return
    yield from ask()


def _asked(
    source: Source, answers: Answers, schema: DatasetSchema, subject: str | None, rows: int, persons: int
) -> Iterator[Records]:
    if subject is None:
        for table in ask_batches(source, answers, schema, rows):
            yield encode_table(table, schema)[0]
    elif answers.orders(subject):
        yield from _by_order(source, ask_batches(source, answers, schema, rows, subject=subject, ordered=True), schema, rows)
    else:
        yield from _by_bucket(source, answers, schema, subject, rows, persons)


def _by_order(source: Source, tables: Iterator[Table], schema: DatasetSchema, rows: int) -> Iterator[Records]:
    """Records whose subjects ascend; each without an identifier is a subject of its own."""
    number, alone, last = -1, _ALONE, None
    held: list[Records] = []
    nobody = np.empty(0, dtype=np.int64)
    for table in tables:
        identifiers, given, records = _told_apart(table, schema)
        if not given.all():
            others = records.take(~given)
            yield replace(others, subjects=alone + np.arange(len(others)))
            alone += len(others)
        present = identifiers.drop_null()
        if not len(present):
            held = held or [replace(records.take(given), subjects=nobody)]
            continue
        before = pa.concat_arrays([present[:1] if last is None else pa.array([last], present.type), present[:-1]])
        if pc.any(pc.less(present, before)).as_py():
            raise DataError(f"{asked_query(source)}: its database does not sort subjects as the site does.", _HOLD)
        starts = pc.not_equal(present, before).to_numpy(zero_copy_only=False).astype(np.int64)
        starts[0] |= last is None
        numbers = number + np.cumsum(starts)
        number, last = int(numbers[-1]), present[-1].as_py()
        held.append(replace(records.take(given), subjects=numbers))
        if starts.any():
            joined = join_batches(held)
            end = int(np.searchsorted(joined.subjects, number))  # type: ignore[arg-type]
            if end:
                yield from _slices(joined.take(slice(end)), rows)
            held = [joined.take(slice(end, len(joined)))]
    yield from _slices(join_batches(held), rows)


def _told_apart(table: Table, schema: DatasetSchema) -> tuple[Any, NDArray[np.bool_], Records]:
    """A batch's identifiers, which of its rows have one, and its records without subjects."""
    identifiers = told(table.subjects)
    given = np.asarray(pc.is_valid(identifiers).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return identifiers, given, encode_table(replace(table, subjects=None), schema)[0]


_HOLD = "Raise the dataset's `memory` beyond its records, which are then held, or store the identifiers as numbers."


def _by_bucket(
    source: Source, answers: Answers, schema: DatasetSchema, subject: str, rows: int, persons: int
) -> Iterator[Records]:
    """Records of some buckets of subjects after another; first those without an identifier, each a subject of its own."""
    sizes = np.zeros(BUCKETS + 1, dtype=np.int64)
    for identifiers in ask_identifiers(answers, subject, rows):
        sizes += np.bincount(bucket_subjects(identifiers) + 1, minlength=BUCKETS + 1)
    number = 0
    for first, last in _ranges(sizes[1:], persons):
        most = int(sizes[1 + first : 2 + last].sum())
        features, present = np.empty((most, schema.width)), np.empty((most, schema.width), dtype=np.bool_)
        labels = None if schema.label is None else np.empty(most, dtype=np.int64)
        found: list[Any] = []
        end = 0

        def wanted(identifiers: Any, first: int = first, last: int = last) -> NDArray[np.bool_]:
            buckets = bucket_subjects(identifiers)
            return ((buckets >= first) & (buckets <= last)) | ((buckets < 0) & (first == 0))

        for table in ask_batches(source, answers, schema, rows, subject=subject, keep=wanted):
            identifiers, given, part = _told_apart(table, schema)
            if not given.all():
                others = part.take(~given)
                yield replace(others, subjects=number + np.arange(len(others)))
                number += len(others)
                part = part.take(given)
            start, end = end, end + len(part)
            if end > most:
                raise changed(source)
            features[start:end], present[start:end] = part.features, part.present
            if labels is not None and part.labels is not None:
                labels[start:end] = part.labels
            found.append(identifiers.drop_null())
        if end != most:
            raise changed(source)
        numbers = number_parts(found)[0] + number
        number = int(numbers.max(initial=number)) + 1
        yield from _slices(Records(features, present, labels, numbers), rows, np.argsort(numbers, kind="stable"))
        del features, present, labels  # before the next ones are read


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


def _slices(records: Records, rows: int, order: NDArray[np.intp] | None = None) -> Iterator[Records]:
    """Batches of so many records or more, that end with a subject; one at least. ``order`` sorts by subject what is not."""
    subjects, start = records.subjects, 0
    if subjects is not None and order is not None:
        subjects = subjects[order]

    def part(start: int, end: int) -> Records:
        return records.take(slice(start, end) if order is None else order[start:end])

    while subjects is not None and len(records) - start > rows:
        end = int(np.searchsorted(subjects, subjects[start + rows - 1], side="right"))
        yield part(start, end)
        start = end
    if start < len(records) or not start:
        yield part(start, len(records))


def _ranges(sizes: NDArray[np.int64], rows: int) -> list[tuple[int, int]]:
    """First and last of subjects, or buckets, of these sizes with so many records together, or of one with more."""
    ends = np.cumsum(sizes)
    found, first = [], 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        last = max(first, int(np.searchsorted(ends, begin + rows, side="right")) - 1)
        found.append((first, last))
        first = last + 1
    return found
