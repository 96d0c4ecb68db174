"""Read Parquet, in parts too: a folder, a glob, or S3. What libraries raise :mod:`.readers` makes a :class:`DataError`."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from veilsum_node.errors import DataError
from veilsum_participant.data import typed
from veilsum_participant.data.objects import StoredFile, stored_files
from veilsum_participant.data.table import (
    CHECK_FORMAT,
    Table,
    cells,
    check_types,
    named_texts,
    typed_table,
    wanted_columns,
    with_subject,
)
from veilsum_participant.query import Bucket
from veilsum_privacy.study.schema import DatasetSchema

SUFFIXES = (".parquet", ".pq")

_NOTE = b"unused:key.."
_GLOB = re.compile(r"[*?\[]")
_BUFFER = 1 << 16
_FETCH = 1 << 22
"""Bytes of each column of a Parquet file that are read at a time, from a disk and from S3."""


def file_parts(path: Path | Bucket) -> Sequence[Path | StoredFile]:
    """The files that a path means, in the order of their names: itself, all Parquet files in a folder, or all of a glob.

    Raises:
        DataError: there is none.
    """
    if isinstance(path, Bucket):
        return stored_files(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [part for part in path.rglob("*") if part.suffix.lower() in SUFFIXES and part.is_file()]
        what = "is a folder that holds no Parquet file; of other formats name a file"
    else:
        start = next((index for index, part in enumerate(path.parts) if _GLOB.search(part)), None)
        if start is None:
            raise DataError(f"{path}: there is no such file.", "Check the path.")
        found = [part for part in Path(*path.parts[:start]).glob(str(Path(*path.parts[start:]))) if part.is_file()]
        what = "no file has such a name"
    if not found:
        raise DataError(f"{path}: {what}.", "Check the path.")
    return sorted(found)


def parquet_schema(path: Path | Bucket) -> tuple[Sequence[Path | StoredFile], Any]:
    """See :func:`.readers.parquet_schema`."""
    parts = file_parts(path)
    schemas = []
    for part in parts:
        with _open_parquet(part) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    for part, found in zip(parts, schemas, strict=True):
        if not found.equals(schemas[0]):
            raise DataError(f"{part}: its columns or their types are not those of {parts[0].name}.", "Write all alike.")
    return parts, schemas[0]


def parquet_layout(
    path: Path | Bucket, schema: DatasetSchema, subject: str | None
) -> tuple[Sequence[Path | StoredFile], list[str], dict[str, Any]]:
    """The files to read, the columns, and what all files hold in each: a type of :func:`typed.common`."""
    parts = file_parts(path)
    found = []
    for part in parts:
        with _open_parquet(part) as file:
            found.append(_written(file.schema_arrow))
    names = wanted_columns(schema, subject)
    for part, one in zip(parts, found, strict=True):
        check_types(part, one, schema, subject)
    common = {}
    for name in names:
        kinds = [one.field(name).type for one in found]
        named = named_texts(schema, name) is not None
        kind = typed.common(kinds, numbered=name != subject)
        common[name] = pa.large_string() if named else kind
        if kind is None and (name == subject or not named):
            told = " and ".join(sorted({str(kind) for kind in kinds}))
            raise DataError(f"{path}: column {name!r} holds {told}.", "Store it as the same type in all files.")
    return parts, names, common


def read_parquet(path: Path | Bucket, schema: DatasetSchema, subject: str | None) -> Table:
    """See :func:`.readers.read_table`."""
    parts, wanted, common = parquet_layout(path, schema, subject)
    read: list[Table] = []
    for part in parts:
        with _open_parquet(part) as file:
            table = _in_its_zone(file.read(columns=wanted))
        read.append(typed_table(_local(path), schema, subject, table))
    if len(read) == 1:
        return read[0]
    columns = {name: typed.joined([part.columns[name] for part in read], common[name]) for name in schema.file_columns}
    subjects = None if subject is None else typed.joined([part.subjects for part in read], common[subject])
    return Table(_local(path), columns, sum(part.rows for part in read), subjects)


def parquet_batches(
    path: Path | Bucket,
    schema: DatasetSchema,
    subject: str | None,
    names: list[str],
    rows: int,
    wanted: Callable[[int, int], bool] | None,
) -> Iterator[tuple[int, Table]]:
    """See :func:`.readers.read_batches`; ``names`` are the columns wanted beside the subject."""
    parts, _, common = parquet_layout(path, schema, subject)
    place, read = 0, with_subject(names, subject)

    def typed_batch(table: Any) -> Table:
        columns = {name: cells(table[name], name, schema).cast(common[name]) for name in names}
        subjects = None if subject is None else typed.identifiers(table[subject]).cast(common[subject])
        return Table(_local(path), columns, table.num_rows, subjects)

    for part in parts:
        with _open_parquet(part) as file:
            for group in range(file.num_row_groups):
                end = place + file.metadata.row_group(group).num_rows
                if wanted is None or wanted(place, end):
                    for batch in file.iter_batches(rows, row_groups=[group], columns=read):
                        yield place, typed_batch(_in_its_zone(pa.Table.from_batches([batch])))
                        place += batch.num_rows
                place = end
            empty = file.schema_arrow.empty_table()
    if not place:
        yield 0, typed_batch(empty)


def _local(path: Path | Bucket) -> Path | None:
    """The path of a file on this machine."""
    return None if isinstance(path, Bucket) else path


def _written(found: Any) -> Any:
    """The columns and types of a file, with what only Arrow's note tells: which numbers are durations, and zones of times."""
    note = (found.metadata or {}).get(_NOTE)
    if note is None:
        return found
    try:
        told = pa.ipc.read_schema(pa.BufferReader(b64decode(note)))
    except (pa.ArrowInvalid, OSError, ValueError):
        return found
    for place, field in enumerate(found):
        kind = told.field(field.name).type if told.names.count(field.name) == 1 else field.type
        timed = pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_timestamp(field.type)
        if (timed and field.type.tz is not None) or (pa.types.is_duration(kind) and pa.types.is_integer(field.type)):
            found = found.set(place, field.with_type(pa.timestamp(field.type.unit, kind.tz) if timed else kind))
    return found


def _in_its_zone(table: Any) -> Any:
    """A table whose times are in the zone that they were written in, whose days a reader of the records means."""
    written = _written(table.schema)
    return table if written.equals(table.schema) else table.cast(written)


def _open_parquet(path: Path | StoredFile) -> Any:
    """Open a Parquet file by what Parquet itself says of its columns.

    What Arrow says beside it is left aside: it would make Arrow refuse all texts of a column for one that is not UTF-8.
    """
    with path.open("rb") as file:
        end = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        if file.read(4) != b"PAR1" or length > end:
            raise DataError(f"{path}: cannot be read: it is not a complete Parquet file.", CHECK_FORMAT)
        file.seek(end - length)
        footer = file.read(length + 8).replace(b"\x0cARROW:schema", b"\x0c" + _NOTE)
    metadata = parquet.read_metadata(pa.BufferReader(b"PAR1" + footer))
    asked = {"metadata": metadata, "pre_buffer": False, "page_checksum_verification": True}
    if isinstance(path, StoredFile):
        return parquet.ParquetFile(path.open(), buffer_size=_FETCH, **asked)
    return parquet.ParquetFile(path, buffer_size=_BUFFER, **asked)
