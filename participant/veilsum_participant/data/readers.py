"""Read CSV, Parquet and npz files into the columns that a schema names.

A file whose structure is wrong ends in one :class:`DataError`; what single cells hold is not judged here. Nothing is pickled,
no code from a file runs, and no column that the schema does not name is kept.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Table:
    """The columns of one file.

    Attributes:
        path: the file.
        columns: by name, an array of text (missing cells null or as written) or of float64 (missing cells null or NaN).
        rows: number of rows read.
        broken: 1-based data rows of a CSV file with too few or too many cells; they are not among ``rows``. Row numbers
            are known when the file was read with ``number_rows``, otherwise each entry is 0.
        first_line: the CSV file's line of data row 1 if no line is blank; None for other formats.
    """

    path: Path
    columns: dict[str, Any]
    rows: int
    broken: tuple[int, ...] = ()
    first_line: int | None = None


def read_table(path: Path, schema: DatasetSchema, *, number_rows: bool = False) -> Table:
    """Read the schema's columns from a file; the suffix says which format it has.

    Raises:
        DataError: the file or a column is missing, unreadable or not in the format; the message names file and column.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.", "Check the path in the participant's configuration.")
    names = [column.name for column in schema.columns]
    if schema.label is not None:
        names.append(schema.label.column)
    suffix = path.suffix.lower()
    try:
        if suffix in (".parquet", ".pq"):
            return _read_parquet(path, names)
        if suffix == ".npz":
            return _read_npz(path, schema, names)
        return _read_csv(path, schema, names, number_rows)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or 'damaged'}).", _CHECK_FORMAT) from error
    except (pa.ArrowException, zipfile.BadZipFile, EOFError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as {suffix or 'CSV'}.", _CHECK_FORMAT) from error


def _read_csv(path: Path, schema: DatasetSchema, names: Sequence[str], number_rows: bool) -> Table:
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
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
    _require(path, names, header)
    positions = {name: str(header.index(name)) for name in names}
    broken: list[int] = []

    def skip(row: Any) -> str:
        broken.append(0 if row.number is None else row.number - int(schema.header))
        return "skip"

    table = pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(
            column_names=[str(index) for index in range(len(header))],
            skip_rows=int(schema.header),
            encoding="latin-1" if encoding == "latin-1" else "utf8",  # anything but utf8 is transcoded; it skips a BOM
            use_threads=not number_rows,
        ),
        parse_options=pacsv.ParseOptions(invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(
            column_types={position: pa.string() for position in positions.values()},
            include_columns=list(positions.values()),
            strings_can_be_null=False,
        ),
    )
    columns = {name: pc.utf8_trim_whitespace(table[position].combine_chunks()) for name, position in positions.items()}
    return Table(path, columns, table.num_rows, tuple(broken), 1 + int(schema.header))


def _encoding(path: Path) -> str:
    """UTF-8 where the whole file is; otherwise Latin-1, which reads any bytes, so one odd letter costs no record."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            while file.read(1 << 20):
                pass
        except UnicodeDecodeError:
            return "latin-1"
    with path.open("rb") as raw:
        return "utf-8-sig" if raw.read(3) == b"\xef\xbb\xbf" else "utf-8"


def _read_parquet(path: Path, names: Sequence[str]) -> Table:
    _require(path, names, parquet.read_schema(path).names)
    table = parquet.read_table(path, columns=list(dict.fromkeys(names)))
    columns = {name: _plain(path, name, table[name].combine_chunks()) for name in names}
    return Table(path, columns, table.num_rows)


def _read_npz(path: Path, schema: DatasetSchema, names: Sequence[str]) -> Table:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: is a single array, not an npz archive.", "Save named arrays together.")
        with archive:
            arrays = {name: archive[name] for name in archive.files if name in {*names, "X", "y"}}
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
    _require(path, names, list(arrays))
    rows = {len(arrays[name]) if arrays[name].ndim == 1 else -1 for name in names}
    if len(rows) != 1 or -1 in rows:
        raise DataError(
            f"{path}: its arrays are not all one-dimensional and equally long.", "Store one value for each record."
        )
    columns = {name: _plain(path, name, _arrow(path, name, arrays[name])) for name in names}
    return Table(path, columns, rows.pop())


def _arrow(path: Path, name: str, values: Any) -> Any:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "latin-1")
    if values.dtype.kind in "biufU":
        return pa.array(values.astype(np.float64) if values.dtype.kind == "f" else values)
    raise DataError(f"{path}: column {name!r} holds {values.dtype}.", "Store numbers or texts.")


def _plain(path: Path, name: str, array: Any) -> Any:
    """Bring a typed column to float64 or trimmed text."""
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


def _require(path: Path, names: Sequence[str], present: Sequence[str]) -> None:
    """Insist that every named column is there, once."""
    for name in names:
        if name not in present:
            raise DataError(f"{path}: column {name!r} is missing.", did_you_mean(name, present))
        if list(present).count(name) > 1:
            raise DataError(f"{path}: column {name!r} stands more than once.", "Rename or remove all but one.")
