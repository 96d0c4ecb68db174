"""Ask the database that a query names, whichever engine it takes.

:func:`query_schema` finds a query's columns and types without a record: PostgreSQL prepares the query, DuckDB answers it on
empty tables, and of any other database the configuration names the columns. Only :func:`query_rows` reads records. The query
is the site's and never a study's; it runs in a read-only transaction and for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pyarrow as pa

from veilsum_node.errors import ConfigurationError, DataError, Unavailable
from veilsum_participant.query import SourceQuery

PAUSES = (1.0, 5.0)
"""Seconds between the tries of a query whose connection breaks while records are read: what fails after them is charged."""


def query_schema(query: SourceQuery) -> Any:
    """The Arrow schema of what a query yields; no record is read, and none changes the outcome.

    Raises:
        DataError: the database does not accept the query.
        Unavailable: the database is away.
        ConfigurationError: its URL, or a package that it needs, is missing.
    """
    schema, _ = _engine(query.url)
    return pa.schema([(part.name, _plain_type(part.type)) for part in schema(query)])


def query_rows(query: SourceQuery) -> Any:
    """What a query yields, as an Arrow table. A connection that breaks is tried again after :data:`PAUSES`.

    Raises:
        DataError: the query fails, or does not end in time; the message says no more than the kind of fault.
        Unavailable: the database stays away.
        ConfigurationError: as :func:`query_schema`.
    """
    _, rows = _engine(query.url)
    for pause in PAUSES:
        try:
            return plain(rows(query))
        except Unavailable:
            time.sleep(pause)
    return plain(rows(query))


class Answers(Protocol):
    """A query that may be asked again and again of the same records: of a transaction's, or of files that nobody changes."""

    def orders(self, subject: str) -> bool:
        """Whether :meth:`batches` can sort by the column, as :func:`veilsum_participant.data.subjects.told` compares it."""
        ...

    def batches(self, rows: int, *, order: str | None = None) -> Iterator[Any]:
        """What the query yields, as Arrow tables of so many rows, one at least; the query's time runs while it is asked."""
        ...

    def column(self, rows: int, name: str) -> Iterator[Any]:
        """One of its columns, in the same way."""
        ...


@contextmanager
def answers(query: SourceQuery) -> Iterator[Answers]:
    """Ask a query's database for batches. A connection that breaks is the caller's to try again.

    Raises:
        DataError, Unavailable, ConfigurationError: as :func:`query_rows`, here or as batches are taken.
    """
    asked: Callable[[SourceQuery], AbstractContextManager[Answers]]
    if not query.url:
        from veilsum_participant.data.duck import answers as asked
    elif _is_postgres(query.url):
        from veilsum_participant.data.postgres import answers as asked
    else:
        from veilsum_participant.data.engines import answers as asked
    with asked(query) as found:
        yield found


def plain(table: Any) -> Any:
    """An Arrow table with the types that files have; see :func:`query_schema`.

    Raises:
        DataError: two columns have one name.
    """
    if len(set(table.column_names)) < table.num_columns:
        raise DataError("The query yields two columns of one name.", "Give each a name of its own: AS.")
    columns = {}
    for part in table.schema:
        column, kind = table[part.name], part.type
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif _plain_type(kind) != kind:
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
        columns[part.name] = column
    return pa.table(columns)


def _is_postgres(url: str) -> bool:
    return url.partition(":")[0] in ("postgresql", "postgres")


def _engine(url: str) -> tuple[Callable[[SourceQuery], Any], Callable[[SourceQuery], Any]]:
    """What finds the schema of a query and what reads its rows, for the database of a URL."""
    if not url:
        from veilsum_participant.data import duck

        return duck.schema, duck.rows
    if _is_postgres(url):
        from veilsum_participant.data import postgres

        return postgres.schema, postgres.rows
    from veilsum_participant.data import engines

    return engines.schema, engines.rows


def slow(query: SourceQuery) -> DataError:
    """The error where a query does not end in time."""
    return DataError(f"The {query} did not end within {query.timeout} s.", "Make it faster, or raise its timeout.")


def failed(query: SourceQuery, kind: str) -> DataError:
    """The error where a query fails on records, by the kind of fault alone: what the database says may hold a value."""
    return DataError(f"The {query} failed ({kind}).", "Run the query yourself. Records that it cannot convert must give NULL.")


def missing_package(name: str, extra: str) -> ConfigurationError:
    """The error where a package of one of the distribution's extras is not installed."""
    return ConfigurationError(f"The package {name} is not installed.", f"Install veilsum with its extra {extra!r}.")


def _plain_type(kind: Any) -> Any:
    """A type as files have it: of a dictionary its values, of an extension whose storage is text the text."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if isinstance(kind, pa.BaseExtensionType) and pa.types.is_string(kind.storage_type):
        return kind.storage_type  # NUMERIC and JSON of PostgreSQL
    return kind
