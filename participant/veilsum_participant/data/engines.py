"""Queries on any other database, by SQLAlchemy. Each cell becomes text by itself, as in a CSV file.

Such a database says what a query yields only by running it, which must not happen before the budget is reserved: the
configuration names the columns. SQLite opens its file to read only and stops at the timeout. Of another database both are up
to the role's rights and settings; only SQLite is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from veilsum_node.errors import ConfigurationError, DataError, Unavailable, VeilsumError
from veilsum_participant.data.lines import as_text
from veilsum_participant.data.reader import QueryReader, QueryRows, RowRequest, failed
from veilsum_participant.settings.query import SourceQuery

_BATCH = 10_000


class EngineReader(QueryReader):
    """Reads what a query on any other database yields."""

    def _schema(self) -> Any:
        """The columns that the configuration names, all of which are text."""
        query = self.query
        if not query.columns:
            raise ConfigurationError(
                f"The {query} needs `columns`.", "Name what it yields, under datasets in participant.toml."
            )
        with _connection(query):
            return _texts(query)

    @contextmanager
    def opened(self) -> Iterator[_EngineRows]:
        """See :meth:`Reader.opened`; of SQLite in one transaction, so that its file stays as it is."""
        with _connection(self.query) as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")
            yield _EngineRows(connection.connection.driver_connection, self.query, connection)


@dataclass
class _EngineRows(QueryRows):
    """They are not ordered: SQLite would write what it sorts to a file of its own; how another database sorts nobody knows."""

    engine: Connection

    def tables(self, asked: RowRequest) -> Iterator[Any]:
        result = self.engine.execution_options(stream_results=True).exec_driver_sql(self.query.text)
        if tuple(result.keys()) != self.query.columns:
            message = f"The {self.query} yields other columns than `columns` names."
            raise DataError(message, "Name them in the query's order.")
        for part in chain([()], result.partitions(asked.rows or _BATCH)):
            cells = zip(*part, strict=True) if part else [()] * len(self.query.columns)
            yield pa.table([pa.array(map(_text, column), pa.large_string()) for column in cells], _texts(self.query))

    def told(self, error: Exception) -> VeilsumError | None:
        if not isinstance(error, DBAPIError):
            return None
        return _away(self.query) if error.connection_invalidated else failed(self.query, type(error.orig).__name__)


def _texts(query: SourceQuery) -> Any:
    return pa.schema([(name, pa.large_string()) for name in query.columns])


@contextmanager
def _connection(query: SourceQuery) -> Iterator[Connection]:
    try:
        engine = create_engine(_read_only(make_url(query.url)), poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        message = f"The database's URL of the {query} names no database that this installation knows."
        raise ConfigurationError(message, "Use postgresql:// or sqlite:///, or install the driver.") from error
    try:
        connection = engine.connect()
    except DBAPIError:
        raise _away(query) from None
    with connection:
        if connection.dialect.name == "sqlite":
            connection.connection.driver_connection.text_factory = as_text  # type: ignore[union-attr]  # any bytes are text
            connection.exec_driver_sql("PRAGMA query_only = ON")
        yield connection


def _read_only(url: URL) -> URL:
    """SQLite would make a file that is not there."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return url
    return url.set(database=f"file:{url.database}").update_query_dict({"mode": "ro", "uri": "true"})


def _away(query: SourceQuery) -> Unavailable:
    return Unavailable(f"The database of the {query} cannot be reached.", "Check that it is there, and the URL in use.")


def _text(cell: object) -> str | None:
    """One cell as a CSV file would hold it."""
    if cell is None:
        return None
    if isinstance(cell, bool) or (isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53):
        return str(int(cell))  # SQLite holds 7 and 7.0 in one column, which are one number
    if isinstance(cell, bytes | memoryview):
        return as_text(bytes(cell))
    return cell if isinstance(cell, str) else str(cell)  # of a float as many digits as it takes; of a date ISO 8601
