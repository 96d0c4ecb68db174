"""Read a dataset, whatever it comes from: all sources give the same typed columns, held against the schema in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import DataError, Misuse
from veilsum_participant.data import readers, typed
from veilsum_participant.data.images import check_images, pixel_columns
from veilsum_participant.data.queries import Answers, plain, query_rows, query_schema
from veilsum_participant.data.table import Table, check_types, require_columns, typed_table
from veilsum_participant.dataset_config import DatasetConfig
from veilsum_participant.query import Bucket, Images, Source, SourceQuery, pixel_names
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema


def check_structure(
    source: Source,
    schema: DatasetSchema,
    *,
    subject: str | None = None,
    header: bool | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Check that a source can be read under a schema, by its structure alone; no record is read, and none changes the outcome.

    Args:
        source, schema: what is read, and the columns wanted.
        subject: a further column, which tells whose record each is.
        header: of a file, as in :func:`veilsum_participant.data.readers.check_structure`.
        columns: of a CSV file and of a query, all that the owner says that there are, as there.

    Raises:
        DataError: as there; or the database does not accept the query, or its columns are not the schema's.
        Unavailable: the database is away.
        ConfigurationError: the database's URL, or a package that it needs, is missing.
    """
    if isinstance(source, Images):
        check_images(source)
        check_structure(source.table, _beside_pixels(source, schema), subject=subject, header=header, columns=columns)
    elif isinstance(source, Path | Bucket):
        readers.check_structure(source, schema, subject=subject, header=header, columns=columns)
    else:
        found = query_schema(source)
        require_columns(f"The {source} yields", columns, found.names)
        check_types(f"The {source}", found, schema, subject)


def named_in_records(offered: DatasetConfig) -> bool:
    """Whether the names of a dataset's columns stand in a line that could be a record: of CSV, and of a query on CSV."""
    if offered.file is not None:
        return offered.header and readers.is_csv(offered.file)
    return any(map(readers.is_csv_table, offered.files.values()))


def found_columns(source: Source, *, header: bool = True) -> list[str] | None:
    """The names of a source's columns as they stand there, for its owner's eyes alone; None where it has none of its own.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`check_structure`.
    """
    if isinstance(source, Images):
        return found_columns(source.table, header=header)
    if isinstance(source, SourceQuery):
        return list(query_schema(source).names)
    return readers.found_columns(source) if header or not readers.is_csv(source) else None


def read_table(source: Source, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None) -> Table:
    """Read the schema's columns, and the column ``subject``, from a source.

    Args:
        source, schema, subject, header: as in :func:`check_structure`.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`check_structure`, or the file is damaged, or the query fails.
    """
    if isinstance(source, Images):
        return _read_images(source, schema, subject, header)
    if isinstance(source, Path | Bucket):
        return readers.read_table(source, schema, subject=subject, header=header)
    found = query_rows(source)
    check_types(f"The {source}", found.schema, schema, subject)
    return typed_table(None, schema, subject, found)


def read_batches(
    source: Source,
    schema: DatasetSchema,
    rows: int,
    *,
    subject: str | None = None,
    header: bool | None = None,
    keep: NDArray[np.bool_] | None = None,
) -> Iterator[Table]:
    """What :func:`read_table` reads, in the same order, in tables of about so many rows, one at least.

    Args:
        source, schema, subject, header: as in :func:`check_structure`, without a query (:func:`ask_batches`).
        rows: of a table.
        keep: (n,) which of its rows are read; some are.

    Raises:
        DataError, ConfigurationError: as :func:`read_table`; or a source that has been changed has other rows than ``keep``.
    """
    if isinstance(source, SourceQuery):
        raise Misuse("A query is asked.")
    if isinstance(source, Images):
        for table in read_batches(
            source.table, _beside_pixels(source, schema), rows, subject=subject, header=header, keep=keep
        ):
            yield _with_pixels(source, table, schema)
        return

    def wanted(start: int, end: int) -> bool:
        return keep is None or bool(keep[start:end].any())

    for place, table in readers.read_batches(source, schema, rows, subject=subject, header=header, wanted=wanted):
        if keep is None:
            yield table
        elif len(kept := keep[place : place + table.rows]) != table.rows:
            raise changed(source)
        elif kept.any():
            yield table if kept.all() else table.filter(kept)


def asked_query(source: Source) -> SourceQuery | None:
    """The query that a source is, or that names its images; None without one."""
    table = source.table if isinstance(source, Images) else source
    return table if isinstance(table, SourceQuery) else None


def ask_batches(
    source: Source,
    answers: Answers,
    schema: DatasetSchema,
    rows: int,
    *,
    subject: str | None = None,
    ordered: bool = False,
    keep: Callable[[Any], NDArray[np.bool_]] | None = None,
) -> Iterator[Table]:
    """What a query yields, and the pixels of the images that its rows name, in tables of about so many rows, one at least.

    Args:
        source, answers: the query, or the images that it names; and where it is asked.
        schema, rows, subject: as in :func:`read_batches`.
        ordered: whether it is sorted by the subject.
        keep: by the column ``subject``, which rows are wanted.

    Raises:
        DataError, Unavailable: as :func:`veilsum_participant.data.queries.answers`.
    """
    own = _beside_pixels(source, schema) if isinstance(source, Images) else schema
    for found in map(plain, answers.batches(rows, order=subject if ordered else None)):
        check_types(f"The {asked_query(source)}", found.schema, own, subject)
        table = typed_table(None, own, subject, found)
        if keep is not None:
            table = table.filter(keep(table.subjects))
        yield _with_pixels(source, table, schema) if isinstance(source, Images) else table


def ask_identifiers(answers: Answers, subject: str, rows: int) -> Iterator[Any]:
    """The column ``subject`` of a query, in arrays of about so many rows, one at least."""
    return (typed.identifiers(plain(found)[subject]) for found in answers.column(rows, subject))


def changed(source: Source) -> DataError:
    """The error where a source has other rows than a moment ago."""
    if asked_query(source) is not None:
        return DataError(f"{source}: yields other rows than a moment ago.", "It must not depend on chance or on the time.")
    return DataError(f"{source}: was changed while it was read.", "Write it under another name, then rename it.")


def read_identifiers(source: Source, schema: DatasetSchema, subject: str, rows: int, *, header: bool | None) -> Iterator[Any]:
    """The column ``subject`` of a source without a query, in arrays of about so many rows, one at least.

    Raises:
        DataError: as :func:`read_table`.
    """
    if isinstance(source, Images):
        yield from read_identifiers(source.table, _beside_pixels(source, schema), subject, rows, header=header)
        return
    if isinstance(source, SourceQuery):
        raise Misuse("A query is asked.")
    for _, table in readers.read_batches(source, schema, rows, subject=subject, header=header, identifiers=True):
        yield table.subjects


def _beside_pixels(images: Images, schema: DatasetSchema) -> DatasetSchema:
    """The schema of what is read from the table itself: no pixels, and the column that names files."""
    pixels = set(pixel_names(images.shape))
    columns = [column for column in schema.columns if column.name not in pixels]
    if images.column not in {column.name for column in columns}:
        columns.append(CategoryColumn(name=images.column, categories=("a file", "another")))  # a text, whatever it says
    return schema.model_copy(update={"columns": tuple(columns)})


def _read_images(images: Images, schema: DatasetSchema, subject: str | None, header: bool | None) -> Table:
    """The table's columns, and the pixels of the image that each record names."""
    return _with_pixels(
        images, read_table(images.table, _beside_pixels(images, schema), subject=subject, header=header), schema
    )


def _with_pixels(images: Images, table: Table, schema: DatasetSchema) -> Table:
    wanted = [name for name in schema.file_columns if name not in table.columns]
    pixels, unread = pixel_columns(images, table.columns[images.column], wanted)
    columns = table.columns | pixels
    return replace(table, columns={name: columns[name] for name in schema.file_columns}, unread=unread)
