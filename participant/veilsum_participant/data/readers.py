"""Read CSV, Parquet and npz files into the columns that a schema names. Parquet may come in parts: a folder, or a glob.

Whether a file can be read is a matter of its structure: of a CSV file's column names, and of names and types in the others,
which :func:`check_structure` looks at without reading a record. Beyond it nothing raises because of what a record holds, and
none changes how another is read; only a file that is damaged, or changes while it is read, ends in a :class:`DataError` then.
Nothing is pickled, no code from a file runs, and no column is kept but the schema's and the one that tells subjects apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilsum_node.errors import DataError, VeilsumError
from veilsum_node.phrases import unreadable
from veilsum_participant.data import csv_files, lines, npz_files, parquet_files
from veilsum_participant.data.json_files import document, is_document, is_json
from veilsum_participant.data.objects import AnyFile, StoredFile, reachable, stored_csv
from veilsum_participant.data.table import CHECK_FORMAT, Table
from veilsum_participant.query import Bucket
from veilsum_privacy.study.schema import DatasetSchema


def is_csv(path: Path | Bucket) -> bool:
    """Whether a file counts as CSV: all but Parquet and npz files do, by their suffix; a folder holds Parquet.

    In S3 an object of CSV ends in .csv.
    """
    if isinstance(path, Bucket):
        return path.csv
    return path.suffix.lower() not in (*parquet_files.SUFFIXES, ".npz") and not path.is_dir()


def check_structure(
    path: Path | Bucket,
    schema: DatasetSchema,
    *,
    subject: str | None = None,
    header: bool | None = None,
    columns: Sequence[str] = (),
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
        columns: all that the owner says that a CSV file's first line names: what is wrong with that line is wrong for every
            study, whatever columns it asks for.

    Raises:
        DataError: the file or a column is missing, of a type that holds neither numbers nor texts, or not in the format; or
            schema and owner differ about a CSV file's first line. The message names file and column.
    """
    with _readable(path):
        if isinstance(path, Path) and _is_npz(path):
            npz_files.npz_layout(path, schema, subject)
        elif is_csv(path):
            csv_files.csv_layout(_csv(path), schema, subject, header, columns)
        else:
            parquet_files.parquet_layout(path, schema, subject)


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
            return npz_files.read_npz(path, schema, subject)
        if is_csv(path):
            return csv_files.read_csv(_csv(path), schema, subject, header)
        return parquet_files.read_parquet(path, schema, subject)


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
    names = [] if identifiers else list(schema.file_columns)
    with _readable(path):
        if isinstance(path, Path) and _is_npz(path):
            yield 0, npz_files.read_npz(path, schema, subject)
        elif is_csv(path):
            yield from csv_files.csv_batches(_csv(path), schema, subject, header, names)
        else:
            yield from parquet_files.parquet_batches(path, schema, subject, names, rows, wanted)


def csv_names(path: Path) -> list[str]:
    """The columns that a CSV file's first line names; no record is read.

    Raises:
        DataError: the file is missing, or a column stands twice.
    """
    with _readable(path):
        return csv_files.csv_names(path)


def is_csv_table(path: Path) -> bool:
    """Whether a table of a query on files is CSV, whose columns its first line names; of JSON there is one column."""
    return is_csv(path) and not is_json(path)


def found_columns(path: Path | Bucket) -> list[str] | None:
    """The names of a CSV or Parquet file's columns as they stand in it, for its owner's eyes alone; None of an npz archive.

    Raises:
        DataError: it is missing or not in its format.
    """
    with _readable(path):
        if is_csv(path):
            return csv_files.csv_names(_csv(path))
        return None if isinstance(path, Path) and _is_npz(path) else parquet_files.parquet_schema(path)[1].names


def csv_texts(path: Path) -> Iterator[Any]:
    """All columns of a CSV file, whose first line names them, as Arrow tables of trimmed texts; broken lines are left out.

    Raises:
        DataError: as :func:`csv_names`, or the file is damaged.
    """
    with _readable(path):
        yield from csv_files.csv_texts(path)


def json_lines(path: Path, left_out: Counter[lines.Fault] | None = None) -> Iterator[list[str]]:
    """The lines of a file or of a glob of several, batch by batch; see :func:`veilsum_participant.data.lines.texts`.

    Of a name that says so each file is one line, whatever its length (:mod:`veilsum_participant.data.json_files`).

    Raises:
        DataError: there is no file, or it cannot be read.
    """
    for part in parquet_files.file_parts(path):
        with _readable(path if isinstance(part, StoredFile) else part):
            if is_document(path):
                yield [lines.as_text(document(part))]
            else:
                yield from lines.texts(part) if left_out is None else lines.texts(part, left_out)


def parquet_schema(path: Path) -> tuple[Sequence[Path | StoredFile], Any]:
    """The files that a path of Parquet means, and the columns and types that each of them has; no record is read.

    Raises:
        DataError: there is none, one is damaged, or they differ.
    """
    with _readable(path):
        return parquet_files.parquet_schema(path)


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
        advice = "Check path, user and permissions." if isinstance(error, PermissionError) else CHECK_FORMAT
        raise DataError(f"{path}: {unreadable(error)}.", advice) from error
    except VeilsumError:
        raise
    except Exception as error:  # what the formats' libraries raise is many things and undocumented
        form = ("CSV" if path.csv else "Parquet") if isinstance(path, Bucket) else path.suffix.lower() or "CSV"
        raise DataError(f"{path}: cannot be read as {form} ({type(error).__name__}).", CHECK_FORMAT) from error


def _csv(path: Path | Bucket) -> AnyFile:
    return stored_csv(path) if isinstance(path, Bucket) else path


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"
