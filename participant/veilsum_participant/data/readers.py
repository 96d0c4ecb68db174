"""Read CSV, Parquet and npz files into the columns that a schema names. Parquet may come in parts: a folder, or a glob.

Whether a file can be read is a matter of its structure: of a CSV file's column names, and of names and types in the others,
which :func:`check_structure` looks at without reading a record. Beyond it nothing raises because of what a record holds, and
none changes how another is read; only a file that is damaged, or changes while it is read, ends in a :class:`DataError` then.
Nothing is pickled, no code from a file runs, and no column is kept but the schema's and the one that tells subjects apart.
"""

from __future__ import annotations

import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from veilsum_node.config import did_you_mean
from veilsum_node.errors import DataError, VeilsumError
from veilsum_node.wording import unreadable
from veilsum_participant.data import typed
from veilsum_participant.data.lines import Fault, first_byte, mended, mended_parts, read_header
from veilsum_participant.data.objects import StoredFile, reachable, stored_files
from veilsum_participant.query import Bucket
from veilsum_privacy.study.schema import DatasetSchema

_CHECK_FORMAT = "Is it really a CSV, Parquet or npz file, and whole?"
_HEADERS = threading.Lock()
"""While numpy reads the headers of arrays: two threads that parse syntax at once can fail, before Python 3.11.8
(https://github.com/python/cpython/issues/106905)."""
_GLOB = re.compile(r"[*?\[]")
_BLOCK = 1 << 26
"""Bytes of a CSV file that are parsed at a time; any line that is used is shorter, as Latin-1 too."""
_PART = 1 << 24
"""Bytes of a CSV file in one of its batches."""
_BUFFER = 1 << 16
_FETCH = 1 << 22
"""Bytes of each column of a Parquet file that are read at a time, from a disk and from S3."""


@dataclass(frozen=True)
class Table:
    """The columns of one file, or of a query.

    Attributes:
        path: the file; None for a query.
        columns: by name, an array of trimmed text (missing cells null or as written) or float64 (missing cells null or NaN).
        rows: number of rows read.
        subjects: the column that tells whose record each row is: trimmed text, or numbers in the file's own type, which keeps
            long numbers apart; None if none was asked for.
        broken: 1-based data rows of a CSV file that are not among ``rows``, in order, and why.
        header: whether the CSV file's first line names its columns; None for other formats.
    """

    path: Path | None
    columns: dict[str, Any]
    rows: int
    subjects: Any = None
    broken: Mapping[int, Fault] = field(default_factory=dict)
    header: bool | None = None

    def filter(self, keep: NDArray[np.bool_]) -> Table:
        """The rows (rows,) that are True, but for what is told of broken ones."""
        mask = pa.array(keep)
        columns = {name: column.filter(mask) for name, column in self.columns.items()}
        subjects = None if self.subjects is None else self.subjects.filter(mask)
        return Table(self.path, columns, int(keep.sum()), subjects, header=self.header)


_PARQUET = (".parquet", ".pq")


def is_csv(path: Path | Bucket) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder and S3 hold Parquet."""
    if isinstance(path, Bucket):
        return False
    return path.suffix.lower() not in (*_PARQUET, ".npz") and not path.is_dir()


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _local(path: Path | Bucket) -> Path | None:
    """The path of a file on this machine."""
    return None if isinstance(path, Bucket) else path


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
        found = [part for part in path.rglob("*") if part.suffix.lower() in _PARQUET and part.is_file()]
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


def check_structure(
    path: Path | Bucket, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None
) -> None:
    """Check that a file can be read under a schema, by its structure alone; no record is read, and none changes the outcome.

    That is, of a CSV file its first line if it names the columns, else nothing but that the file is there; of a Parquet file
    the columns and types in its footer; of an npz archive the names, types and shapes in its arrays' headers.

    Args:
        path: the file.
        schema: of its columns.
        subject: a further column, which tells whose record each is.
        header: whether its owner says that a CSV file's first line names the columns. Were it the schema's word alone, a first
            record could be held against a study's column names. None where the schema is the owner's own.

    Raises:
        DataError: the file or a column is missing, of a type that holds neither numbers nor texts, or not in the format; or
            schema and owner differ about a CSV file's first line. The message names file and column.
    """
    with _readable(path):
        if isinstance(path, Path) and _is_npz(path):
            _npz_layout(path, schema, subject)
        elif isinstance(path, Path) and is_csv(path):
            _csv_layout(path, schema, subject, header)
        else:
            _parquet_layout(path, schema, subject)


def read_table(path: Path | Bucket, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None) -> Table:
    """Read the schema's columns, and the column ``subject``, from a file; the suffix says which format it has.

    Args:
        path: the file.
        schema: of its columns.
        subject: a further column, which tells whose record each is.
        header: as in :func:`check_structure`.

    Raises:
        DataError: as :func:`check_structure`, or the file is damaged.
    """
    with _readable(path):
        if isinstance(path, Path) and _is_npz(path):
            return _read_npz(path, schema, subject)
        if isinstance(path, Path) and is_csv(path):
            return _read_csv(path, schema, subject, header)
        return _read_parquet(path, schema, subject)


def read_batches(
    path: Path | Bucket,
    schema: DatasetSchema,
    rows: int,
    *,
    subject: str | None = None,
    header: bool | None = None,
    identifiers: bool = False,
    wanted: Callable[[int, int], bool] | None = None,
) -> Iterator[tuple[int, Table]]:
    """What :func:`read_table` reads, in the same order, in tables of about so many rows; an npz archive in one.

    Args:
        path, schema, subject, header: as in :func:`read_table`.
        rows: of a table. Of CSV the file's bytes decide.
        identifiers: whether the column ``subject`` alone is read.
        wanted: of a Parquet file, whether any row from one place to before another is asked for; others may be left out.

    Yields:
        The place of a table's first row among all, and the table; one at least, unless none is wanted.

    Raises:
        DataError: as :func:`read_table`.
    """
    names = [] if identifiers else _named(schema)
    with _readable(path):
        if isinstance(path, Path) and _is_npz(path):
            yield 0, _read_npz(path, schema, subject)
        elif isinstance(path, Path) and is_csv(path):
            yield from _csv_batches(path, schema, subject, header, names)
        else:
            yield from _parquet_batches(path, schema, subject, names, rows, wanted)


@contextmanager
def _readable(path: Path | Bucket) -> Iterator[None]:
    """Turn what reading may raise into a DataError; or into Unavailable where a store is away."""
    try:
        if isinstance(path, Bucket):
            with reachable(path):
                yield
            return
        if (_is_npz(path) or is_csv(path)) and not path.is_file():
            raise DataError(
                f"{path}: {'is a folder, not a file' if path.is_dir() else 'there is no such file'}.", "Check the path."
            )
        yield
    except OSError as error:
        advice = "Check path, user and permissions." if isinstance(error, PermissionError) else _CHECK_FORMAT
        raise DataError(f"{path}: {unreadable(error)}.", advice) from error
    except VeilsumError:
        raise
    except Exception as error:  # what the formats' libraries raise is many things and undocumented
        form = "Parquet" if isinstance(path, Bucket) else path.suffix.lower() or "CSV"
        raise DataError(f"{path}: cannot be read as {form} ({type(error).__name__}).", _CHECK_FORMAT) from error


def _csv_layout(path: Path, schema: DatasetSchema, subject: str | None, header: bool | None) -> tuple[list[str], int]:
    """All columns of a CSV file, and the byte after which its records begin."""
    if header not in (None, schema.header):
        advice = "State `header` under [datasets] in participant.toml as the file is, or use a schema that fits it."
        raise DataError(f"{path}: {header_conflict(schema)}", advice)
    names, start = read_header(path) if schema.header else (list(schema.order), first_byte(path))
    _require(path, _wanted(schema, subject), names)
    return names, start


def header_conflict(schema: DatasetSchema) -> str:
    """What schema and owner of a CSV file say of its first line where they differ."""
    said = ("holds records", "names the columns")
    return f"The schema says that a CSV file's first line {said[schema.header]}; its owner, that it {said[not schema.header]}."


def _read_csv(path: Path, schema: DatasetSchema, subject: str | None, header: bool | None) -> Table:
    names, start = _csv_layout(path, schema, subject, header)
    read, rows, broken = _parse_csv(path, start, names, _wanted(schema, subject))
    columns = {name: read[name] for name in _named(schema)}
    return Table(path, columns, rows, None if subject is None else read[subject], broken, schema.header)


def _csv_batches(
    path: Path, schema: DatasetSchema, subject: str | None, header: bool | None, names: list[str]
) -> Iterator[tuple[int, Table]]:
    order, start = _csv_layout(path, schema, subject, header)
    place = 0
    for text in mended_parts(path, start, len(order), _PART):
        read, rows, _ = _parse(lambda text=text: pa.BufferReader(text), order, _and(names, subject), {})  # type: ignore[misc]
        columns = {name: read[name] for name in names}
        yield place, Table(path, columns, rows, None if subject is None else read[subject], header=schema.header)
        place += rows


def csv_names(path: Path) -> list[str]:
    """The columns that a CSV file's first line names; no record is read.

    Raises:
        DataError: the file is missing, or a column stands twice.
    """
    with _readable(path):
        names, _ = read_header(path)
        _require(path, names, names)
        return names


def read_csv_texts(path: Path) -> Any:
    """All columns of a CSV file, whose first line names them, as an Arrow table of trimmed texts; broken lines are left out.

    Raises:
        DataError: as :func:`csv_names`, or the file is damaged.
    """
    names = csv_names(path)
    with _readable(path):
        read, _, _ = _parse_csv(path, read_header(path)[1], names, names)
        return pa.table(read)


def _parse_csv(path: Path, start: int, names: list[str], wanted: list[str]) -> tuple[dict[str, Any], int, dict[int, Fault]]:
    """The wanted columns of a CSV file's records, from the byte ``start`` on, as trimmed texts; how many; which are broken."""
    content, faults = mended(path, start, len(names))

    def opened() -> Any:
        if content is not None:
            return pa.BufferReader(content)
        raw = pa.OSFile(str(path), "rb")
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


def _open_parquet(path: Path | StoredFile) -> Any:
    """Open a Parquet file by what Parquet itself says of its columns.

    What Arrow says beside it is left aside: it would make Arrow refuse all texts of a column for one that is not UTF-8.
    """
    with path.open("rb") as file:
        end = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        if file.read(4) != b"PAR1" or length > end:
            raise DataError(f"{path}: cannot be read: it is not a complete Parquet file.", _CHECK_FORMAT)
        file.seek(end - length)
        footer = file.read(length + 8).replace(b"\x0cARROW:schema", b"\x0cunused:key..")
    metadata = parquet.read_metadata(pa.BufferReader(b"PAR1" + footer))
    if isinstance(path, StoredFile):
        return parquet.ParquetFile(path.open(), metadata=metadata, buffer_size=_FETCH, pre_buffer=False)
    return parquet.ParquetFile(path, metadata=metadata, buffer_size=_BUFFER, pre_buffer=False)


def parquet_schema(path: Path) -> tuple[Sequence[Path | StoredFile], Any]:
    """The files that a path of Parquet means, and the columns and types that each of them has; no record is read.

    Raises:
        DataError: there is none, one is damaged, or they differ.
    """
    with _readable(path):
        parts = file_parts(path)
        schemas = []
        for part in parts:
            with _open_parquet(part) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        for part, found in zip(parts, schemas, strict=True):
            if not found.equals(schemas[0]):
                raise DataError(f"{part}: its columns or their types are not those of {parts[0].name}.", "Write all alike.")
        return parts, schemas[0]


def check_types(source: object, found: Any, schema: DatasetSchema, subject: str | None) -> None:
    """Check that an Arrow schema ``found`` in ``source`` has the columns to read, of types that can be read.

    Raises:
        DataError: a column is missing, or of a type that holds neither numbers nor texts.
    """
    wanted = _wanted(schema, subject)
    _require(source, wanted, found.names)
    for name in wanted:
        kind = found.field(name).type
        if not (typed.readable(kind) or (typed.is_date(kind) and name in schema.date_columns)):
            raise _unreadable(source, name, kind, subject)


def _parquet_layout(
    path: Path | Bucket, schema: DatasetSchema, subject: str | None
) -> tuple[Sequence[Path | StoredFile], list[str], dict[str, Any]]:
    """The files to read, the columns, and what all files hold in each: a type of :func:`typed.common`."""
    parts = file_parts(path)
    found = []
    for part in parts:
        with _open_parquet(part) as file:
            found.append(file.schema_arrow)
    names = _wanted(schema, subject)
    for part, one in zip(parts, found, strict=True):
        check_types(part, one, schema, subject)
    common = {}
    for name in names:
        kinds = [one.field(name).type for one in found]
        common[name] = typed.common(kinds, numbered=name != subject)
        if common[name] is None:
            told = " and ".join(sorted({str(kind) for kind in kinds}))
            raise DataError(f"{path}: column {name!r} holds {told}.", "Store it as the same type in all files.")
    return parts, names, common


def _read_parquet(path: Path | Bucket, schema: DatasetSchema, subject: str | None) -> Table:
    parts, wanted, common = _parquet_layout(path, schema, subject)
    read: list[Table] = []
    for part in parts:
        with _open_parquet(part) as file:
            table = file.read(columns=wanted)
        read.append(typed_table(_local(path), schema, subject, table))
    if len(read) == 1:
        return read[0]
    columns = {name: typed.joined([part.columns[name] for part in read], common[name]) for name in _named(schema)}
    subjects = None if subject is None else typed.joined([part.subjects for part in read], common[subject])
    return Table(_local(path), columns, sum(part.rows for part in read), subjects)


def _parquet_batches(
    path: Path | Bucket,
    schema: DatasetSchema,
    subject: str | None,
    names: list[str],
    rows: int,
    wanted: Callable[[int, int], bool] | None,
) -> Iterator[tuple[int, Table]]:
    parts, _, common = _parquet_layout(path, schema, subject)
    place, read = 0, _and(names, subject)

    def typed_batch(table: Any) -> Table:
        columns = {name: typed.values(table[name]).cast(common[name]) for name in names}
        subjects = None if subject is None else typed.identifiers(table[subject]).cast(common[subject])
        return Table(_local(path), columns, table.num_rows, subjects)

    for part in parts:
        with _open_parquet(part) as file:
            for group in range(file.num_row_groups):
                end = place + file.metadata.row_group(group).num_rows
                if wanted is None or wanted(place, end):
                    for batch in file.iter_batches(rows, row_groups=[group], columns=read):
                        yield place, typed_batch(pa.Table.from_batches([batch]))
                        place += batch.num_rows
                place = end
            empty = file.schema_arrow.empty_table()
    if not place:
        yield 0, typed_batch(empty)


def _npz_layout(path: Path, schema: DatasetSchema, subject: str | None) -> dict[str, tuple[str, int | None]]:
    """For each column to read: the array of an npz archive that holds it, and which column of that one, None for all of it."""
    features = [column.name for column in schema.columns]
    wanted = _wanted(schema, subject)
    shapes, dtypes = _npz_headers(path, {*wanted, "X", "y"})
    layout: dict[str, tuple[str, int | None]] = {name: (name, None) for name in shapes}
    if "X" in shapes and not all(name in shapes for name in features):
        if len(shapes["X"]) != 2 or shapes["X"][1] != len(features):
            shape = ", ".join(["n", *map(str, shapes["X"][1:])])
            raise DataError(
                f"{path}: array 'X' has shape ({shape}), the schema has {len(features)} columns.",
                "X needs one row for each record and one column for each column of the schema, in its order.",
            )
        layout |= {name: ("X", index) for index, name in enumerate(features)}
        if schema.label is not None and "y" in shapes:
            layout.setdefault(schema.label.column, ("y", None))
    _require(path, wanted, list(layout))
    layout = {name: layout[name] for name in wanted}
    for name, (array, _) in layout.items():
        if not typed.readable_dtype(dtypes[array]):
            raise _unreadable(path, name, dtypes[array], subject)
    flat = all(len(shapes[array]) == (1 if column is None else 2) for array, column in layout.values())
    if not flat or len({shapes[array][0] for array, _ in layout.values()}) != 1:
        raise DataError(
            f"{path}: its arrays are not all one-dimensional and equally long.", "Store one value for each record."
        )
    return layout


def _npz_headers(path: Path, names: set[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, np.dtype[Any]]]:
    """Shapes and types of those arrays of an archive that have one of the names, from their headers alone."""
    shapes, dtypes = dict[str, tuple[int, ...]](), dict[str, np.dtype[Any]]()
    with path.open("rb") as file:  # by its path, a file that may not be read would only be "no archive"
        if not zipfile.is_zipfile(file):
            raise DataError(f"{path}: is not an npz archive.", "Save named arrays together, with numpy.savez.")
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name not in names:
                continue
            if name in shapes:
                raise DataError(f"{path}: array {name!r} occurs more than once.", "Rename or remove all but one.")
            with archive.open(member) as file:
                try:
                    version = np.lib.format.read_magic(file)
                except ValueError as error:
                    raise DataError(f"{path}: {name!r} is not an array.", "Write it with numpy.savez.") from error
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                with _HEADERS:
                    shapes[name], _, dtypes[name] = read(file)
    return shapes, dtypes


def _read_npz(path: Path, schema: DatasetSchema, subject: str | None) -> Table:
    layout = _npz_layout(path, schema, subject)
    with _HEADERS, np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name, _ in set(layout.values())}
    columns = {
        name: typed.from_numpy(arrays[array] if column is None else arrays[array][:, column])
        for name, (array, column) in layout.items()
    }
    return typed_table(path, schema, subject, columns, len(columns[_named(schema)[0]]))


def typed_table(path: Path | None, schema: DatasetSchema, subject: str | None, columns: Any, rows: int | None = None) -> Table:
    """The table of chunked columns, by name: an Arrow table, or a mapping with the number of its ``rows``."""
    read = {name: typed.values(columns[name]) for name in _named(schema)}
    count = columns.num_rows if rows is None else rows
    return Table(path, read, count, None if subject is None else typed.identifiers(columns[subject]))


def _unreadable(path: object, name: str, kind: object, subject: str | None) -> DataError:
    if name == subject:
        told = f"{path}: column {name!r} holds {kind}, by which subjects cannot be told apart."
        return DataError(told, "Store texts or numbers.")
    return DataError(f"{path}: column {name!r} holds {kind}.", "Store numbers or texts.")


def _named(schema: DatasetSchema) -> list[str]:
    """The schema's columns."""
    return list(schema.file_columns)


def _wanted(schema: DatasetSchema, subject: str | None) -> list[str]:
    """The names of all columns to read, once each."""
    return _and(_named(schema), subject)


def _and(names: list[str], subject: str | None) -> list[str]:
    return list(dict.fromkeys([*names, subject] if subject is not None else names))


def _require(path: object, names: Sequence[str], present: Sequence[str]) -> None:
    """Insist that every named column is there, once."""
    for name in names:
        if name not in present:
            raise DataError(f"{path}: column {name!r} is missing.", did_you_mean(name, present))
        if list(present).count(name) > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once.", "Rename or remove all but one.")
