"""Read CSV files: each line by itself, as text. What libraries raise :mod:`.readers` makes a :class:`DataError`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from veilsum_node.errors import DataError
from veilsum_participant.data.lines import BATCH, Fault, first_byte, mended, mended_parts, read_header
from veilsum_participant.data.objects import AnyFile
from veilsum_participant.data.table import Table, require_columns, wanted_columns, with_subject
from veilsum_privacy.study.schema import DatasetSchema

_BLOCK = 1 << 26
"""Bytes of a CSV file that are parsed at a time; any line that is used is shorter, as Latin-1 too."""


def csv_layout(
    path: AnyFile, schema: DatasetSchema, subject: str | None, header: bool | None, columns: Sequence[str] = ()
) -> tuple[list[str], int]:
    """All columns of a CSV file, and the byte after which its records begin; ``columns`` are there as well."""
    if header not in (None, schema.header):
        advice = "State `header` under [datasets] in participant.toml as the file is, or use a schema that fits it."
        raise DataError(f"{path}: {header_conflict(schema)}", advice)
    names, start = read_header(path) if schema.header else (list(schema.order), first_byte(path))
    require_named(path, [*wanted_columns(schema, subject), *columns], names, read=schema.header)
    return names, start


def require_named(path: AnyFile, wanted: Sequence[str], names: Sequence[str], *, read: bool = True) -> None:
    """Insist on columns among the names that a CSV file's first line was ``read`` for, or that a schema's order says."""
    what = f"{path}: {'its first line' if read else 'the order of the schema'} names"
    require_columns(what, wanted, names, _FIRST_LINE if read else "")


_FIRST_LINE = "If its first line holds a record, state header = false, here and in the schema."


def header_conflict(schema: DatasetSchema) -> str:
    """What schema and owner of a CSV file say of its first line where they differ."""
    said = ("holds records", "names the columns")
    return f"The schema says that a CSV file's first line {said[schema.header]}; its owner, that it {said[not schema.header]}."


def read_csv(path: AnyFile, schema: DatasetSchema, subject: str | None, header: bool | None) -> Table:
    """See :func:`.readers.read_table`."""
    names, start = csv_layout(path, schema, subject, header)
    read, rows, broken = _parse_csv(path, start, names, wanted_columns(schema, subject))
    columns = {name: read[name] for name in schema.file_columns}
    return Table(path, columns, rows, None if subject is None else read[subject], broken, schema.header)


def csv_batches(
    path: AnyFile, schema: DatasetSchema, subject: str | None, header: bool | None, names: list[str]
) -> Iterator[tuple[int, Table]]:
    """See :func:`.readers.read_batches`; ``names`` are the columns wanted beside the subject."""
    order, start = csv_layout(path, schema, subject, header)
    place = 0
    for text in mended_parts(path, start, len(order), BATCH):
        read, rows, _ = _parse(lambda text=text: pa.BufferReader(text), order, with_subject(names, subject), {})  # type: ignore[misc]
        columns = {name: read[name] for name in names}
        yield place, Table(path, columns, rows, None if subject is None else read[subject], header=schema.header)
        place += rows


def csv_names(path: AnyFile) -> list[str]:
    """See :func:`.readers.csv_names`."""
    names, _ = read_header(path)
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two cells of its first line, which names the columns, are alike.", "Rename or remove one.")
    return names


def csv_texts(path: Path) -> Iterator[Any]:
    """See :func:`.readers.csv_texts`."""
    names = csv_names(path)
    for text in mended_parts(path, read_header(path)[1], len(names), BATCH):
        yield pa.table(_parse(lambda text=text: pa.BufferReader(text), names, names, {})[0])  # type: ignore[misc]


def _parse_csv(path: AnyFile, start: int, names: list[str], wanted: list[str]) -> tuple[dict[str, Any], int, dict[int, Fault]]:
    """The wanted columns of a CSV file's records, from the byte ``start`` on, as trimmed texts; how many; which are broken."""
    content, faults = mended(path, start, len(names))

    def opened() -> Any:
        if content is not None:
            return pa.BufferReader(content)
        raw = pa.OSFile(str(path), "rb") if isinstance(path, Path) else path.open()
        raw.seek(start)
        return raw

    return _parse(opened, names, wanted, faults)


def _parse(
    opened: Callable[[], Any], names: list[str], wanted: list[str], faults: Mapping[int, Fault]
) -> tuple[dict[str, Any], int, dict[int, Fault]]:
    """:func:`_parse_csv` of mended lines, of which some are known for faulty."""
    positions = {name: str(names.index(name)) for name in wanted}
    broken: dict[int, Fault] = {}

    def skip(row: Any) -> str:
        broken[row.number] = faults.get(row.number, Fault.CELLS)
        return "skip"

    def parse(threads: bool, skip: Callable[[Any], str] | None) -> Any:
        with opened() as raw:
            return pacsv.read_csv(
                raw,
                read_options=pacsv.ReadOptions(
                    column_names=[str(index) for index in range(len(names))], use_threads=threads, block_size=_BLOCK
                ),
                parse_options=pacsv.ParseOptions(newlines_in_values=False, invalid_row_handler=skip),
                convert_options=pacsv.ConvertOptions(
                    column_types={position: pa.large_string() for position in positions.values()},
                    include_columns=list(positions.values()),
                    strings_can_be_null=False,
                ),
            )

    # Arrow's threads get nothing of Python's: one that lets go of it while the interpreter ends aborts the process
    try:
        table = parse(True, None)
    except pa.ArrowInvalid:  # a row has too few or too many cells
        table = parse(False, skip)  # on one thread, which numbers the rows as well
    read = {name: pc.utf8_trim_whitespace(table[position].combine_chunks()) for name, position in positions.items()}
    return read, table.num_rows, broken
