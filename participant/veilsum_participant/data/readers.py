"""Read CSV, Parquet and npz files into the columns that a schema names.

A file whose structure is wrong ends in one :class:`DataError`; what single cells hold is not judged here. What one record
holds does not change how another is read, as long as the file is well formed (in a CSV file a quotation mark that is never
closed takes in the lines after it). Nothing is pickled, no code from a file runs, and no column is kept but the schema's and
the one that tells subjects apart.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet

from veilsum_privacy.config import did_you_mean
from veilsum_privacy.errors import DataError
from veilsum_privacy.schema import DatasetSchema

_CHECK_FORMAT = "Is it really a CSV, Parquet or npz file, and whole?"
_BLOCK = 1 << 26
"""Bytes of a CSV file that are parsed at a time; a single longer cell would make the file unreadable."""


@dataclass(frozen=True)
class Table:
    """The columns of one file.

    Attributes:
        path: the file.
        columns: by name, an array of text (missing cells null or as written) or of float64 (missing cells null or NaN).
        rows: number of rows read.
        subjects: the column that tells whose record each row is: trimmed text, or numbers in the file's own type, which keeps
            long numbers apart; None if none was asked for.
        broken: 1-based data rows of a CSV file with too few or too many cells; they are not among ``rows``.
        first_line: the CSV file's line of data row 1 if no line is blank; None for other formats.
    """

    path: Path
    columns: dict[str, Any]
    rows: int
    subjects: Any = None
    broken: tuple[int, ...] = ()
    first_line: int | None = None


def read_table(path: Path, schema: DatasetSchema, *, subject: str | None = None) -> Table:
    """Read the schema's columns, and the column ``subject``, from a file; the suffix says which format it has.

    Raises:
        DataError: the file or a column is missing, unreadable or not in the format; the message names file and column.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.", "Check the path.")
    names = [column.name for column in schema.columns]
    if schema.label is not None:
        names.append(schema.label.column)
    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".pq"):
            return _read_parquet(path, names, subject)
        if suffix == ".npz":
            return _read_npz(path, schema, names, subject)
        return _read_csv(path, schema, names, subject)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or 'damaged'}).", _CHECK_FORMAT) from error
    except DataError:
        raise
    except Exception as error:  # what the formats' libraries raise is many things and undocumented
        raise DataError(f"{path}: cannot be read as {suffix or 'CSV'}.", _CHECK_FORMAT) from error


def _read_csv(path: Path, schema: DatasetSchema, names: Sequence[str], subject: str | None) -> Table:
    mended = _as_utf8(path)
    with io.TextIOWrapper(path.open("rb") if mended is None else io.BytesIO(mended), encoding="utf-8-sig", newline="") as file:
        first = next((row for row in csv.reader(file) if row), None)
    if first is None:
        raise DataError(f"{path}: is empty.", _CHECK_FORMAT)
    if schema.header:
        header = [name.strip() for name in first]
    elif len(first) != len(schema.order):
        raise DataError(
            f"{path}: has {len(first)} columns, the schema's `order` names {len(schema.order)}.",
            "Name every column of the file in `order`, unused ones too, and separate cells by commas.",
        )
    else:
        header = list(schema.order)
    wanted = _with(names, subject)
    _require(path, wanted, header)
    positions = {name: str(header.index(name)) for name in wanted}
    broken: list[int] = []

    def skip(row: Any) -> str:
        broken.append(row.number - int(schema.header))
        return "skip"

    def parse(threads: bool, skip: Callable[[Any], str] | None) -> Any:
        with pa.OSFile(str(path), "rb") if mended is None else pa.BufferReader(mended) as raw:
            return pacsv.read_csv(
                raw,
                read_options=pacsv.ReadOptions(
                    column_names=[str(index) for index in range(len(header))],
                    skip_rows=int(schema.header),
                    use_threads=threads,
                    block_size=_BLOCK,
                ),
                parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
                convert_options=pacsv.ConvertOptions(
                    column_types={position: pa.string() for position in positions.values()},
                    include_columns=list(positions.values()),
                    strings_can_be_null=False,
                ),
            )

    # Arrow's threads get nothing of Python's: one that lets go of it while the interpreter ends aborts the process
    try:
        table = parse(True, None)
    except pa.ArrowInvalid:  # a row has too few or too many cells, or it is no CSV file
        table = parse(False, skip)  # on one thread, which numbers the rows as well
    read = {name: pc.utf8_trim_whitespace(table[position].combine_chunks()) for name, position in positions.items()}
    columns = {name: read[name] for name in names}
    subjects = None if subject is None else read[subject]
    return Table(path, columns, table.num_rows, subjects, tuple(broken), 1 + int(schema.header))


def _as_utf8(path: Path) -> bytes | None:
    """The file's bytes as UTF-8, None where it is UTF-8 already. A line that is not is read as Latin-1, which reads any bytes.

    So an odd letter costs no record; and as the other lines are read as they would be without it, it changes no other record.
    """
    with path.open(encoding="utf-8", newline="") as file:
        try:
            while file.read(1 << 20):
                pass
            return None
        except UnicodeDecodeError:
            pass
    with path.open("rb") as raw:
        return b"".join(_line_as_utf8(line) for line in raw)


def _line_as_utf8(line: bytes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1").encode()
    return line


def _read_parquet(path: Path, names: Sequence[str], subject: str | None) -> Table:
    wanted = _with(names, subject)
    _require(path, wanted, parquet.read_schema(path).names)
    table = parquet.read_table(path, columns=wanted)
    columns = {name: _plain(path, name, table[name].combine_chunks()) for name in names}
    subjects = None if subject is None else _identifiers(path, subject, table[subject].combine_chunks())
    return Table(path, columns, table.num_rows, subjects)


def _read_npz(path: Path, schema: DatasetSchema, names: Sequence[str], subject: str | None) -> Table:
    wanted = _with(names, subject)
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: is a single array, not an npz archive.", "Save named arrays together.")
        with archive:
            arrays = {name: archive[name] for name in archive.files if name in {*wanted, "X", "y"}}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):  # a member of another kind comes as bytes
            raise DataError(f"{path}: holds a member that is no array.", "Write it with numpy.savez.")
    except ValueError as error:
        raise DataError(f"{path}: holds an array that cannot be read.", "Store numbers or texts, not objects.") from error
    features = [column.name for column in schema.columns]
    if "X" in arrays and not all(name in arrays for name in features):
        x = arrays["X"]
        if x.ndim != 2 or x.shape[1] != len(features):
            raise DataError(
                f"{path}: array 'X' has shape {x.shape}, the schema has {len(features)} columns.",
                "X needs one row for each record and one column for each column of the schema, in its order.",
            )
        arrays |= {name: x[:, index] for index, name in enumerate(features)}
        if schema.label is not None and schema.label.column not in arrays and "y" in arrays:
            arrays[schema.label.column] = arrays["y"]
    _require(path, wanted, list(arrays))
    rows = {len(arrays[name]) if arrays[name].ndim == 1 else -1 for name in wanted}
    if len(rows) != 1 or -1 in rows:
        raise DataError(
            f"{path}: its arrays are not all one-dimensional and equally long.", "Store one value for each record."
        )
    columns = {name: _plain(path, name, _arrow(path, name, arrays[name])) for name in names}
    subjects = None if subject is None else _identifiers(path, subject, _arrow(path, subject, arrays[subject]))
    return Table(path, columns, rows.pop(), subjects)


def _arrow(path: Path, name: str, values: Any) -> Any:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "latin-1")
    if values.dtype.kind in "biufU":
        return pa.array(values.astype(np.float64) if values.dtype.kind == "f" else values)
    raise DataError(f"{path}: column {name!r} holds {values.dtype}.", "Store numbers or texts.")


def _check_text(path: Path, name: str, array: Any) -> None:
    """Insist that a column is what its type says, text UTF-8 above all: a damaged Parquet file holds any bytes."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {name!r} is damaged or not UTF-8.", _CHECK_FORMAT) from error


def _plain(path: Path, name: str, array: Any) -> Any:
    """Bring a typed column to float64 or trimmed text."""
    _check_text(path, name, array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(array, pa.int8()), pa.float64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pc.cast(array, pa.float64(), safe=False)
    if pa.types.is_null(kind):
        return pc.cast(array, pa.float64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_trim_whitespace(pc.cast(array, pa.string()))
    raise DataError(f"{path}: column {name!r} holds {kind}.", "Store it as numbers or texts.")


def _identifiers(path: Path, name: str, array: Any) -> Any:
    """Bring a typed column to trimmed text, or leave its numbers as they are: as float64 long ones would run together."""
    _check_text(path, name, array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_trim_whitespace(pc.cast(array, pa.string()))
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null, pa.types.is_boolean)
    if any(test(kind) for test in numbers):
        return array
    raise DataError(
        f"{path}: column {name!r} holds {kind}, by which subjects cannot be told apart.", "Store texts or numbers."
    )


def _with(names: Sequence[str], subject: str | None) -> list[str]:
    """The names of all columns to read, once each."""
    return list(dict.fromkeys([*names, subject] if subject is not None else names))


def _require(path: Path, names: Sequence[str], present: Sequence[str]) -> None:
    """Insist that every named column is there, once."""
    for name in names:
        if name not in present:
            raise DataError(f"{path}: column {name!r} is missing.", did_you_mean(name, present))
        if list(present).count(name) > 1:
            raise DataError(f"{path}: column {name!r} stands more than once.", "Rename or remove all but one.")
