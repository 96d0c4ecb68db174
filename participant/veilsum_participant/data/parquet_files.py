"""Read Parquet: a file, a folder, a glob, or S3."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from veilsum_node.errors import DataError
from veilsum_participant.data.formats import CHECK_FORMAT, no_file, readable
from veilsum_participant.data.objects import LOGS, AnyFile, StoredFile, check_whole, open_file, stored_files, unchanged
from veilsum_participant.data.reader import FileReader, Found, RowRequest, SourcePart
from veilsum_participant.settings.forms import PARQUET
from veilsum_participant.settings.query import Bucket

_NOTE = b"unused:key.."
_GLOB = re.compile(r"[*?\[]")
_BUFFER = 1 << 16
_FOOTER = 1 << 28
"""Bytes of the largest footer that is read; Arrow itself takes no more than 100 MB of texts in one."""
_FETCH = 1 << 22
"""Bytes of each column of a Parquet file that are read at a time, from a disk and from S3."""


def file_parts(path: Path | Bucket) -> Sequence[AnyFile]:
    """The files that a path means, in the order of their names: itself, all Parquet files in a folder, or all of a glob.

    Raises:
        DataError: there is none, or they are not all records (:func:`.check_whole`).
    """
    if isinstance(path, Bucket):
        return stored_files(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [part for part in path.rglob("*") if part.suffix.lower() in PARQUET and part.is_file()]
        what = "is a folder that holds no Parquet file; of other formats name a file"
    else:
        start = next((index for index, part in enumerate(path.parts) if _GLOB.search(part)), None)
        if start is None:
            raise no_file(path)
        found = [part for part in Path(*path.parts[:start]).glob(str(Path(*path.parts[start:]))) if part.is_file()]
        what = "no file has such a name"
    if not found:
        raise DataError(f"{path}: {what}.", "Check the path.")
    folders = {folder for part in found for folder in part.absolute().parents}
    logs = (
        log
        for folder in folders
        for log in (*(folder / name for name in LOGS), *(folder / "metadata").glob("*.metadata.json"))
    )
    below = [part.relative_to(path).as_posix() for part in found] if path.is_dir() else ()
    check_whole(path, below, logged=any(log.exists() for log in logs))
    return sorted(found)


@dataclass
class ParquetReader(FileReader):
    """Reads a Parquet file, all in a folder or of a glob, or objects."""

    file: Path | Bucket

    def layout(self) -> list[Found]:
        """The columns and types in the files' footers."""
        found = []
        with readable(self.file):
            for part in file_parts(self.file):
                with open_parquet(part) as file:
                    found.append(Found(str(part), f"{part} has", _written(file.schema_arrow).remove_metadata()))
        return found

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        place, given, read = 0, False, list(asked.names)
        with readable(self.file):
            for part in file_parts(self.file):
                with unchanged(part, self.seen), open_parquet(part) as file:
                    every = [*range(file.num_row_groups)]
                    for groups in [[group] for group in every] if asked.wanted else [every] if every else []:
                        end = place + sum(file.metadata.row_group(group).num_rows for group in groups)
                        if asked.wanted is None or asked.wanted(place, end):
                            for batch in file.iter_batches(asked.most, row_groups=groups, columns=read):
                                yield SourcePart(_in_its_zone(pa.Table.from_batches([batch])), place)
                                place, given = place + batch.num_rows, True
                        place = end
                    empty = file.schema_arrow.empty_table().select(read)
            if not place or not (given or asked.wanted):  # a footer may state rows that no page has
                yield SourcePart(_in_its_zone(empty))


def _written(found: Any) -> Any:
    """The columns and types of a file, with what only Arrow's note tells: zones of times, and which numbers are durations or
    of another type that nothing here reads, such as pandas' periods.
    """
    note = (found.metadata or {}).get(_NOTE)
    if note is None:
        return found
    try:
        told = pa.ipc.read_schema(pa.BufferReader(b64decode(note)))
    except (pa.ArrowInvalid, OSError, ValueError):
        return found
    for place, field in enumerate(found):
        own = told.field(field.name) if told.names.count(field.name) == 1 else field
        kind = own.type
        extension = getattr(kind, "extension_name", "") or (own.metadata or {}).get(b"ARROW:extension:name", b"")
        if pa.types.is_integer(field.type) and extension not in ("", b"", "arrow.bool8"):
            found = found.set(place, field.with_type(pa.opaque(field.type, "an extension of Arrow's", "Arrow")))
        timed = pa.types.is_timestamp(kind) and kind.tz is not None and pa.types.is_timestamp(field.type)
        if (timed and field.type.tz is not None) or (pa.types.is_duration(kind) and pa.types.is_integer(field.type)):
            found = found.set(place, field.with_type(pa.timestamp(field.type.unit, kind.tz) if timed else kind))
    return found


def _in_its_zone(table: Any) -> Any:
    """A table whose times are in the zone that they were written in, whose days a reader of the records means."""
    written = _written(table.schema)
    return table if written.equals(table.schema) else table.cast(written)


def open_parquet(path: AnyFile) -> Any:
    """Open a Parquet file by what Parquet itself says of its columns.

    What Arrow says beside it is left aside: it would make Arrow refuse all texts of a column for one that is not UTF-8.
    """
    with open_file(path) as file:
        end = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        if file.read(4) != b"PAR1" or length > min(end, _FOOTER):
            raise DataError(f"{path}: cannot be read: it is not a complete Parquet file.", CHECK_FORMAT)
        file.seek(end - length)
        footer = file.read(length + 8).replace(b"\x0cARROW:schema", b"\x0c" + _NOTE)
    metadata = parquet.read_metadata(pa.BufferReader(b"PAR1" + footer))
    asked = {"metadata": metadata, "pre_buffer": False, "page_checksum_verification": True}
    asked["coerce_int96_timestamp_unit"] = "ms"  # in nanoseconds, Arrow's own, the year 9999 of Spark and Hive is 1816
    if isinstance(path, StoredFile):
        return parquet.ParquetFile(path.open(), buffer_size=_FETCH, **asked)
    return parquet.ParquetFile(path, buffer_size=_BUFFER, **asked)
