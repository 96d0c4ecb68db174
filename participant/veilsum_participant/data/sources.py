"""Where a dataset comes from, a file or a query: both give the same typed columns, held against the schema in the same way."""

from __future__ import annotations

from pathlib import Path

from veilsum_participant.data import readers
from veilsum_participant.data.queries import query_rows, query_schema
from veilsum_participant.data.readers import Table, check_types, typed_table
from veilsum_participant.query import Source
from veilsum_privacy.study.schema import DatasetSchema


def check_structure(source: Source, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None) -> None:
    """Check that a source can be read under a schema, by its structure alone; no record is read, and none changes the outcome.

    Args:
        source, schema: what is read, and the columns wanted.
        subject: a further column, which tells whose record each is.
        header: of a file, as in :func:`veilsum_participant.data.readers.check_structure`.

    Raises:
        DataError: as there; or the database does not accept the query, or its columns are not the schema's.
        Unavailable: the database is away.
        ConfigurationError: the database's URL, or a package that it needs, is missing.
    """
    if isinstance(source, Path):
        readers.check_structure(source, schema, subject=subject, header=header)
    else:
        check_types(f"The {source}", query_schema(source), schema, subject)


def read_table(source: Source, schema: DatasetSchema, *, subject: str | None = None, header: bool | None = None) -> Table:
    """Read the schema's columns, and the column ``subject``, from a source.

    Args:
        source, schema, subject, header: as in :func:`check_structure`.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`check_structure`, or the file is damaged, or the query fails.
    """
    if isinstance(source, Path):
        return readers.read_table(source, schema, subject=subject, header=header)
    found = query_rows(source)
    check_types(f"The {source}", found.schema, schema, subject)
    return typed_table(None, schema, subject, found)
