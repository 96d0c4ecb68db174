"""Records of one's own as sites: frames, a folder of one file a site, or one table with a column that names the site.

Cells are read as a participant reads them, so that a simulated site holds the records that the real one would.
"""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from veilsum_node.config import did_you_mean
from veilsum_node.errors import DataError, Misuse
from veilsum_node.phrases import counted
from veilsum_participant.data.sources import check_structure, read_table
from veilsum_participant.data.subjects import number_subjects
from veilsum_participant.data.table import Table
from veilsum_participant.settings.declared_files import declared
from veilsum_participant.settings.query import Source
from veilsum_privacy.study.schema import DatasetSchema

LOG = logging.getLogger("veilsum.tables")

SUFFIXES = (".csv", ".data", ".parquet", ".pq", ".npz")
"""Files of a folder that are sites; others, such as a schema, are left aside. Collections of old have CSV in ``.data``."""


def site_files(folder: Path, *, least: int = 2) -> dict[str, Path]:
    """The files of a folder by the names of their sites, which are the files' own.

    Raises:
        DataError: it is not a folder, holds fewer than ``least`` files of records, or two whose names are alike.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist.", "Name a folder with one CSV, Parquet or npz file a site.")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if len(files) < least:
        raise DataError(
            f"{folder} holds {counted(len(files), 'file')} of records;"
            f" {'a federation has at least two sites' if least > 1 else 'a domain has at least one'}.",
            "Store one CSV, Parquet or npz file a site in it, or give one file and the column that names the site.",
        )
    names = [site_name(path.stem) for path in files]
    _require_distinct(names, [path.name for path in files])
    return dict(zip(names, files, strict=True))


def site_name(text: str) -> str:
    """A site's name made of a text: lower-case letters, digits, dots, hyphens and underscores; at most 64 of them.

    Raises:
        DataError: nothing is left of it.
    """
    folded = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[._-]*-[._-]*", "-", re.sub(r"[^a-z0-9._-]+", "-", folded))[:64].strip("-._")
    if not name:
        raise DataError(f"{text!r} cannot be a site's name.", "Use one with letters or digits.")
    return name


def read_sites(
    source: Path,
    schema: DatasetSchema,
    *,
    site_column: str | None = None,
    subject: str | None = None,
    least: int = 2,
    dialect: Sequence[str] = (),
) -> dict[str, pa.Table]:
    """Read a folder of one file a site, or one file whose column names the site, as tables by site.

    Args:
        site_column: names the site of each record; needed for a file, and only for that.
        subject: a further column, which tells whose record each is.
        least: fewest files of a folder.
        dialect: how its files are written (:func:`veilsum_participant.settings.dataset_config.declared`).

    Raises:
        DataError: a file or column is missing or unreadable, a record names no site, or there are fewer than two sites.
        Misuse: a column of sites for a folder, or none for a file.
    """
    if source.is_dir():
        if site_column is not None:
            raise Misuse(
                f"{source} is a folder, whose files are the sites; a site column belongs to one file.",
                "Leave the site column out, or name one file.",
            )
        files = site_files(source, least=least)
        return {name: read_records(declared(path, dialect), schema, subject) for name, path in files.items()}
    if site_column is None:
        raise Misuse(f"{source} is one file.", "Name the column that says which site a record is of, or a folder.")
    file = declared(source, dialect)
    return split_sites(
        read_records(file, schema, subject), read_table(file, schema, subject=site_column).subjects, site_column
    )


def split_sites(table: pa.Table, sites: Any, column: str) -> dict[str, pa.Table]:
    """The rows of each site, by its name; ``sites`` says whose each row is.

    Raises:
        DataError: a record names no site, two sites' names are alike, or there are fewer than two.
    """
    return {name: table.take(rows) for name, rows in rows_by_name(sites, column, "site").items()}


def rows_by_name(values: Any, column: str, what: str) -> dict[str, NDArray[np.int64]]:
    """The numbers of the rows of each site or domain, by its name; ``values`` says whose each row is.

    Raises:
        DataError: a record names none, two names are alike, or there are fewer than two.
    """
    numbers, missing = number_subjects([values])
    if missing.any():
        raise DataError(
            f"{counted(int(missing.sum()), 'record')} name no {what} in {column!r}.", "Fill the column in, or leave them out."
        )
    _, firsts = np.unique(numbers, return_index=True)
    originals = [str(values[int(first)].as_py()) for first in firsts]
    if len(originals) < 2:
        raise DataError(f"Column {column!r} names one {what}; at least two are needed.", "Name another column.")
    names = [site_name(text) for text in originals]
    _require_distinct(names, originals)
    parts = {name: np.flatnonzero(numbers == number).astype(np.int64) for number, name in enumerate(names)}
    return dict(sorted(parts.items()))


def deal_rows(table: pa.Table, sites: int, seed: int) -> dict[str, pa.Table]:
    """The rows of one table dealt to sites at random, evenly.

    Raises:
        Misuse: fewer rows than sites.
    """
    if not 2 <= sites <= table.num_rows:
        raise Misuse(
            f"{counted(table.num_rows, 'record')} cannot be dealt to {sites} sites.",
            "Use two sites or more; each needs a record.",
        )
    order = np.random.default_rng(seed).permutation(table.num_rows)
    parts = np.array_split(order, sites)
    width = len(str(sites))
    return {f"site-{number:0{width}d}": table.take(np.sort(rows)) for number, rows in enumerate(parts, start=1)}


def as_table(frame: Any, what: str) -> pa.Table:
    """A frame of pandas, polars, DuckDB or any other library that speaks Arrow, or a mapping of columns, as an Arrow table.

    Raises:
        DataError: it is none of these, or a column holds what Arrow cannot.
    """
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif isinstance(frame, Mapping):
            table = pa.table(dict(frame))
        elif type(frame).__module__.split(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            raise DataError(
                f"{what}: a {type(frame).__name__} is not a table.",
                "Give a frame of pandas or polars, an Arrow table, a mapping of columns, or a path.",
            )
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as a table: {error}", "Use columns of numbers, texts or dates.") from error
    columns = {name: _plain(table[name]) for name in table.column_names}
    return pa.table(columns)


def column_values(table: pa.Table, name: str, what: str) -> Any:
    """One column as an array.

    Raises:
        DataError: there is none of the name.
    """
    if name not in table.column_names:
        raise DataError(f"{what}: column {name!r} is missing.", did_you_mean(name, table.column_names))
    return table[name].combine_chunks()


def write_sites(
    tables: Mapping[str, pa.Table], directory: Path, schema: DatasetSchema, subject: str | None = None
) -> dict[str, Path]:
    """Write each site's table as a Parquet file and check that a participant can read it.

    Raises:
        DataError: a column is missing or holds neither numbers nor texts.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, table in tables.items():
        path = directory / f"{name}.parquet"
        parquet.write_table(table, path)
        try:
            check_structure(path, schema, subject=subject)
        except DataError as error:  # the file's place says nothing to who gave a frame
            raise DataError(f"site {name}: {error.message.removeprefix(f'{path}: ')}", error.advice) from error
        files[name] = path
    return files


def read_records(path: Source, schema: DatasetSchema, subject: str | None) -> pa.Table:
    """The schema's columns of a file, and the one that tells subjects apart.

    Raises:
        DataError: it cannot be read, a column is missing, or none of its rows matches the schema.
    """
    read = read_used(path, schema, subject)
    columns = dict(read.columns)
    if subject is not None:
        columns.setdefault(subject, read.subjects)
    return pa.table(columns)


def read_used(path: Source, schema: DatasetSchema, subject: str | None = None) -> Table:
    """As :func:`.read_table`; who reads the file is told where some of its rows are not used.

    Raises:
        DataError: as there, or none is.
    """
    read = read_table(path, schema, subject=subject)
    if read.broken and not read.rows:
        raise DataError(
            f"{path}: none of its {len(read.broken)} rows matches the schema.",
            "Separate cells by commas, or state the dialect.",
        )
    if read.broken:
        LOG.warning("%s: rows with another number of cells, or an open quotation mark, are not used", path)
    return read


def _plain(column: Any) -> Any:
    """A column without a dictionary (pandas' categories, polars' enums), which participants' files do not have."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = pc.cast(column, pa.large_string())
    return column


def _require_distinct(names: list[str], originals: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            alike = [original for own, original in zip(names, originals, strict=True) if own == name]
            raise DataError(f"Sites {', '.join(map(repr, alike))} would all be named {name!r}.", "Rename all but one.")
