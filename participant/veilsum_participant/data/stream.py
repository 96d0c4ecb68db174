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

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools
from veilsum_node.errors import DataError
from veilsum_participant.data.encode import encode_table
from veilsum_participant.data.sources import SourceTables, changed, opened, tried
from veilsum_participant.data.subjects import BUCKETS, bucket_subjects, number_subjects, told
from veilsum_participant.datasets import BATCH, record_bytes
from veilsum_participant.settings.query import Source
from veilsum_privacy.mechanism.records import Records, join_batches
from veilsum_privacy.study.schema import DatasetSchema

_ALONE = 1 << 40
"""Number of the first subject without an identifier, where how many others there are is not known yet."""


@tried
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
    records = _records(source, schema, subject, header, rows, persons or rows)
    return chain([next(records)], records)


def _records(
    source: Source, schema: DatasetSchema, subject: str | None, header: bool | None, rows: int, persons: int
) -> Iterator[Records]:
    with opened(source, schema, subject=subject, header=header) as tables:
        if subject is None:
            for table in tables.read(rows):
                yield encode_table(table, schema)
        elif tables.rows.orders(subject):
            yield from _by_order(tables, rows)
        else:
            yield from _by_group(tables, rows, persons)


def _by_order(tables: SourceTables, rows: int) -> Iterator[Records]:
    """Records whose subjects ascend; each without an identifier is a subject of its own."""
    number, alone, last = -1, _ALONE, None
    held: list[Records] = []
    nobody = np.empty(0, dtype=np.int64)
    for table in tables.read(rows, ordered=True):
        identifiers, given = _told_apart(table.subjects)
        records = encode_table(table, tables.schema)
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
            raise DataError(f"{tables.source}: its database does not sort subjects as the site does.", _HOLD)
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


def _told_apart(subjects: Any) -> tuple[Any, NDArray[np.bool_]]:
    """A batch's identifiers, and which of its rows have one."""
    identifiers = told(subjects)
    return identifiers, np.asarray(pc.is_valid(identifiers).to_numpy(zero_copy_only=False), dtype=np.bool_)


_HOLD = "Raise the dataset's `memory` beyond its records, which are then held, or store the identifiers as numbers."


def _by_group(tables: SourceTables, rows: int, persons: int) -> Iterator[Records]:
    """Records of some groups of subjects after others: of a source in which each row keeps its place, a subject is a group; of
    another, a bucket is one, and rows without an identifier, each of which is a subject of its own, come with the first.
    """
    schema, steady = tables.schema, tables.rows.steady
    numbers = number_subjects(tables.identifiers(rows))[0] if steady else np.empty(0, dtype=np.int64)
    sizes = np.bincount(numbers, minlength=1 if steady else BUCKETS)
    for identifiers in () if steady else tables.identifiers(rows):
        sizes += np.bincount(bucket_subjects(identifiers) + 1, minlength=BUCKETS + 1)[1:]
    number = 0
    for first, last in _ranges(sizes, persons):
        most = int(sizes[first : last + 1].sum())
        features, present = np.empty((most, schema.width)), np.empty((most, schema.width), dtype=np.bool_)
        labels = None if schema.label is None else np.empty(most, dtype=np.int64)
        among = (numbers >= first) & (numbers <= last)
        found: list[Any] = []
        end = 0

        def keep(place: int, count: int, subjects: Any, first: int = first, last: int = last, among: Bools = among) -> Bools:
            if not steady:
                buckets = bucket_subjects(subjects)
                return ((buckets >= first) & (buckets <= last)) | ((buckets < 0) & (first == 0))
            if len(own := among[place : place + count]) != count:
                raise changed(tables.source)
            return own

        def wanted(start: int, end: int, among: Bools = among) -> bool:
            return bool(among[start:end].any())

        for table in tables.read(rows, subjects=not steady, keep=keep, wanted=wanted if steady else None):
            part = encode_table(table, schema)
            if not steady:
                identifiers, given = _told_apart(table.subjects)
                found.append(identifiers.drop_null())
                if not given.all():
                    others = part.take(~given)
                    yield replace(others, subjects=number + np.arange(len(others)))
                    number += len(others)
                    part = part.take(given)
            start, end = end, end + len(part)
            if end > most:
                raise changed(tables.source)
            features[start:end], present[start:end] = part.features, part.present
            if labels is not None and part.labels is not None:
                labels[start:end] = part.labels
        if end != most:
            raise changed(tables.source)
        own = numbers[among] if steady else number_subjects(found)[0] + number
        number = int(own.max(initial=number)) + 1
        yield from _slices(Records(features, present, labels, own), rows, np.argsort(own, kind="stable"))
        del features, present, labels  # before the next ones are read


def _slices(records: Records, rows: int, order: NDArray[np.intp] | None = None) -> Iterator[Records]:
    """Batches of so many records or more, that end with a subject; one at least. ``order`` sorts by subject what is not."""
    subjects, start = records.subjects, 0
    if subjects is not None and order is not None:
        subjects = subjects[order]

    while subjects is not None and len(records) - start > rows:
        end = int(np.searchsorted(subjects, subjects[start + rows - 1], side="right"))
        yield records.take(slice(start, end) if order is None else order[start:end])
        start = end
    if start < len(records) or not start:
        yield records.take(slice(start, len(records)) if order is None else order[start:])


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
