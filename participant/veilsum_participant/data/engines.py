"""Queries on any other database, by SQLAlchemy. Each cell becomes text by itself, as in a CSV file.

Such a database says what a query yields only by running it, which must not happen before the budget is reserved: the
configuration names the columns. SQLite opens its file to read only and stops at the timeout. Of another database both are up
to the role's rights and settings; only SQLite is tested.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from veilsum_node.errors import ConfigurationError, DataError, Unavailable
from veilsum_participant.data.lines import as_text
from veilsum_participant.data.reader import OpenRows, QueryReader, RowRequest, SourcePart, failed, slow
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
            yield _EngineRows(connection, self.query)


@dataclass
class _EngineRows(OpenRows):
    """They are not ordered: SQLite would write what it sorts to a file of its own; how another database sorts nobody knows."""

    connection: Connection
    query: SourceQuery

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        query, left = self.query, float(self.query.timeout)
        found: Iterator[Sequence[Any]] | None = None
        part: Sequence[Any] = ()
        while True:
            began = time.monotonic()
            with _watched(self.connection, query, left):
                if found is None:
                    options = self.connection.execution_options(stream_results=True)
                    result = options.exec_driver_sql(query.text)
                    found = result.partitions(asked.rows or _BATCH)
                    yielded = tuple(result.keys())
                elif not (part := next(found, ())):
                    return
            left -= time.monotonic() - began
            if yielded != query.columns:
                message = f"The {query} yields other columns than `columns` names."
                raise DataError(message, "Name them in the query's order.")
            cells = zip(*part, strict=True) if part else [()] * len(yielded)
            yield SourcePart(pa.table([pa.array(map(_text, column), pa.large_string()) for column in cells], _texts(query)))


@contextmanager
def _watched(connection: Connection, query: SourceQuery, seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, of SQLite. A failure is told by its kind alone: its words may hold a record's."""
    raw = connection.connection.driver_connection
    ended = threading.Event()

    def stop() -> None:
        ended.set()
        raw.interrupt()  # type: ignore[union-attr]

    watch = threading.Timer(max(0.0, seconds), stop)
    if hasattr(raw, "interrupt"):  # SQLite's has it
        watch.start()
    try:
        yield
    except DBAPIError as error:
        if ended.is_set():
            raise slow(query) from None
        if error.connection_invalidated:
            raise _away(query) from None
        raise failed(query, type(error.orig).__name__) from None
    finally:
        watch.cancel()


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
