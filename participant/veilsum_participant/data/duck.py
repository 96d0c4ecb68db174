"""Queries on files, by DuckDB within the process: it sees the tables that the configuration names and nothing else.

CSV and ndjson are read line by line as :mod:`veilsum_participant.data.lines` does, never sniffed: were types guessed from
records, one record could decide whether a query is accepted. A query's columns and types are those of its answer on empty
tables. Nothing is written, fetched or loaded, and nothing spills to a disk.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from veilsum_node.errors import DataError
from veilsum_participant.data.lines import as_text
from veilsum_participant.data.parquet_files import file_parts
from veilsum_participant.data.queries import failed, missing_package, slow
from veilsum_participant.data.readers import csv_names, is_csv, parquet_schema, read_csv_texts
from veilsum_participant.query import Query

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_KIND = re.compile(r"[A-Z][A-Za-z-]*( [A-Z][A-Za-z-]*){0,3}(?= Error: )")


def schema(query: Query) -> Any:
    """See :func:`veilsum_participant.data.queries.query_schema`."""
    with _connection() as connection:
        for name, path in query.files.items():
            _add_empty(connection, name, path)
        connection.execute("SET enable_external_access = false")
        try:
            return _answer(connection, query).to_arrow_table().schema
        except _errors() as error:
            told = str(error).splitlines()[0].rstrip(".")
            raise DataError(f"The {query}: {told}.", "Correct the query, or the files that it reads.") from error


def rows(query: Query) -> Any:
    """See :func:`veilsum_participant.data.queries.query_rows`."""
    with _connection() as connection:
        _open(connection, query)
        with _watched(connection, query, query.timeout):
            return _answer(connection, query).to_arrow_table()


@contextmanager
def answers(query: Query) -> Iterator[_Answers]:
    """See :func:`veilsum_participant.data.queries.answers`."""
    with _connection() as connection:
        _open(connection, query)
        yield _Answers(connection, query)


@dataclass
class _Answers:
    connection: Any
    query: Query

    def orders(self, subject: str) -> bool:
        """Never: it would hold all that it sorts."""
        return False

    def batches(self, rows: int, *, order: str | None = None) -> Iterator[Any]:
        return self._read(rows, None)

    def column(self, rows: int, name: str) -> Iterator[Any]:
        return self._read(rows, name)

    def _read(self, rows: int, name: str | None) -> Iterator[Any]:
        import duckdb

        left = float(self.query.timeout)
        reader = None
        while True:
            began = time.monotonic()
            with _watched(self.connection, self.query, left):
                if reader is None:
                    found = _answer(self.connection, self.query)
                    if name is not None:
                        found = found.select(duckdb.ColumnExpression(name))
                    reader = found.to_arrow_reader(rows)
                    yielded = reader.schema.empty_table()
                else:
                    batch = next(reader, None)
                    if batch is None:
                        return
                    yielded = pa.Table.from_batches([batch])
            left -= time.monotonic() - began
            yield yielded


def _open(connection: Any, query: Query) -> None:
    """Show the query its tables, and nothing else from here on."""
    for name, path in query.files.items():
        _add(connection, name, path)
    connection.execute("SET enable_external_access = false")


@contextmanager
def _watched(connection: Any, query: Query, seconds: float) -> Iterator[None]:
    """Interrupt what takes longer. A failure is told by its kind alone: what the database says may hold a record's words.

    What fails while Arrow reads batches is an OSError whose text begins with the kind.
    """
    ended = threading.Event()

    def stop() -> None:
        ended.set()
        connection.interrupt()

    watch = threading.Timer(max(0.0, seconds), stop)
    watch.start()
    try:
        yield
    except (*_errors(), OSError, pa.ArrowException) as error:
        if ended.is_set():
            raise slow(query) from None
        kind = _KIND.match(str(error)) if isinstance(error, OSError) else None
        raise failed(query, type(error).__name__ if kind is None else kind[0]) from None
    finally:
        watch.cancel()


@contextmanager
def _connection() -> Iterator[Any]:
    try:
        import duckdb
    except ImportError as error:
        raise missing_package("duckdb", "sql") from error
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        yield connection
    finally:
        connection.close()


def _errors() -> tuple[type[Exception], ...]:
    import duckdb

    return (duckdb.Error,)


def _answer(connection: Any, query: Query) -> Any:
    """The relation of a query that is one SELECT statement."""
    import duckdb

    statements = connection.extract_statements(query.text)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise DataError(f"The {query} must be one SELECT statement.", "A query reads, and does nothing else.")
    return connection.sql(statements[0])


def _add_empty(connection: Any, name: str, path: Path) -> None:
    """Make a table with the columns of a file and without its records."""
    if _is_lines(path):
        file_parts(path)
        _add_lines(connection, name, [])
    elif is_csv(path):
        connection.register(name, pa.table({column: pa.array([], pa.large_string()) for column in csv_names(path)}))
    else:
        connection.read_parquet(_parts(path)).limit(0).create(name)


def _add(connection: Any, name: str, path: Path) -> None:
    if _is_lines(path):
        lines: list[str] = []
        for part in file_parts(path):
            with part.open("rb") as file:
                lines += map(as_text, file.read().split(b"\n"))
        _add_lines(connection, name, lines)
    elif is_csv(path):
        connection.register(name, read_csv_texts(path))
    else:
        parts = _parts(path)
        connection.execute("SET allowed_paths = list_concat(current_setting('allowed_paths'), $1)", [parts])
        connection.read_parquet(parts).create_view(name)


def _add_lines(connection: Any, name: str, lines: list[str]) -> None:
    """Make a table of one column, ``json``, of the lines that are JSON."""
    texts = connection.from_arrow(pa.table({"json": pa.array(lines, pa.large_string())}))
    texts.filter("json_valid(json)").project("json::JSON AS json").create(name)


def _parts(path: Path) -> list[str]:
    return [str(part) for part in parquet_schema(path)[0]]


def _is_lines(path: Path) -> bool:
    return path.suffix.lower() in (".ndjson", ".jsonl")
