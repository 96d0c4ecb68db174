"""Queries on files, by DuckDB within the process: it sees the tables that the configuration names and nothing else.

DuckDB itself opens no file: it is given Arrow tables by what reads the same file as a dataset. Its own reader of Parquet fails
on a text that is not UTF-8 or a time that it cannot hold, and with it the whole query on one record; and were types of CSV or
ndjson guessed from records, one could decide whether a query is accepted. A query's columns and types are those of its answer
on empty tables. Files are read as the query asks for them, part by part, and again each time; nothing of them is held but what
the query joins, sorts or groups. Nothing is written, fetched or loaded, and nothing spills to a disk.
"""

from __future__ import annotations

import atexit
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from veilsum_node.errors import DataError, VeilsumError, raising
from veilsum_participant.data.conversions import risky_casts
from veilsum_participant.data.csv_files import CsvReader
from veilsum_participant.data.exchange import common, given, holds
from veilsum_participant.data.json_files import has_key_twice, json_texts
from veilsum_participant.data.lines import Fault
from veilsum_participant.data.parquet_files import ParquetReader, file_parts
from veilsum_participant.data.reader import (
    QueryReader,
    QueryRows,
    RowRequest,
    failed,
)
from veilsum_participant.settings.forms import PLAIN, Dialect, is_document, is_json
from veilsum_participant.settings.query import SourceQuery, is_csv

_Source: Any = getattr(getattr(duckdb, "_sources", None), "ArrowScanSource", object)
"""What DuckDB tells which columns it needs, if it does: what it tells nothing gives all."""

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_ASKED: dict[int, Any] = {}
"""Connections that a query runs on, by the thread that waits for it."""
_FREE = threading.Condition()
_PATIENCE = 20.0
"""Seconds that the end of the process waits for queries that are stopped."""
_ending = threading.Event()
_ROWS = 1 << 17
"""Rows of Parquet that are read at a time, about as many as DuckDB keeps together."""
_MISREAD = {"UHUGEINT", "BIT", "GEOMETRY"}
"""DuckDB's types that Arrow takes for others: 2^128 - 1 for -1, bits or bytes for letters."""
_KIND = re.compile(r"[A-Z][A-Za-z-]*( [A-Z][A-Za-z-]*){0,3}(?= Error: )")


class DuckReader(QueryReader):
    """Reads what a query on files yields."""

    def _schema(self) -> Any:
        """Schema of the query's answer on empty tables."""
        query = self.query
        with _connection() as connection:
            _open(connection, query, empty=True)
            try:
                return _answer(connection, query).to_arrow_table().schema
            except duckdb.Error as error:
                told = _of_the_query(str(error).splitlines()[0].rstrip("."), query.text)
                raise DataError(f"The {query}: {told}.", "Correct the query, or the files that it reads.") from error

    @contextmanager
    def opened(self) -> Iterator[_DuckRows]:
        with _connection() as connection:
            yield _DuckRows(connection, self.query, _open(connection, self.query))


@dataclass
class _DuckRows(QueryRows):  # not ordered: it would hold all that it sorts
    shown: list[_Shown]

    def tables(self, asked: RowRequest) -> Iterator[Any]:
        with _waiting(self.connection):
            found = _answer(self.connection, self.query)
            if set() < set(asked.names) < set(found.columns):
                found = found.select(*map(duckdb.ColumnExpression, asked.names))
            reader = found.to_arrow_reader(asked.most)
        table = reader.schema.empty_table()
        while table is not None:
            yield table
            with _waiting(self.connection):
                batch = next(reader, None)
            table = None if batch is None else pa.Table.from_batches([batch])

    def told(self, error: Exception) -> VeilsumError | None:
        """A failure by its kind, with which an OSError's words begin where Arrow reads; a file that cannot be read by name."""
        if not isinstance(error, (duckdb.Error, OSError, pa.ArrowException)):
            return None
        kind = _KIND.match(str(error)) if isinstance(error, OSError) else None
        fault = next((one.fault for one in self.shown if one.fault is not None), None)
        return fault or failed(self.query, type(error).__name__ if kind is None else kind[0])


_QUOTED = re.compile(r"([\"'`])(?:(.*?)\1(?!\1|\w))?", re.DOTALL)


def _of_the_query(told: str, text: str) -> str:
    """What DuckDB says, up to the first name that may be a cell of a first line: a field's, or one in quotation marks that
    the query does not have.
    """
    before, *fields = re.split(r"\b(?:STRUCT|UNION)\(", told, maxsplit=1)
    for found in _QUOTED.finditer(before):
        if found[2] is None or not _has(text, found[1], found[2]):
            return f"{before[: found.start()].rstrip()} …"
    return f"{before.rstrip()} …" if fields else told


def _has(text: str, mark: str, name: str) -> bool:
    """Whether a query has a name in these quotation marks, or as a whole word that is part of no literal."""
    if f"{mark}{name}{mark}".lower() in text.lower():
        return True
    bare = re.sub(r"'[^']*'", "''", text)
    return name.isidentifier() and re.search(rf"\b{name}\b", bare, re.IGNORECASE) is not None


@dataclass
class _Shown(_Source):  # type: ignore[misc]
    """A table for DuckDB, which reads it anew, by Arrow's C interface, wherever a query names it.

    Attributes:
        schema: of the table.
        read: yields, in parts, the table of so many of its columns.
        fault: why the last reading broke off, if it did: DuckDB passes on no more than that it did.
    """

    schema: Any
    read: Callable[[list[str]], Iterator[Any]]
    fault: VeilsumError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.obj = self

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.stream(None, ())[0]

    def stream(self, columns: Sequence[int] | None, filters: Sequence[object]) -> tuple[object, bool]:
        """The columns at some places, one at least, or all; and whether it is these alone."""
        schema = self.schema if columns is None else pa.schema([self.schema[place] for place in columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema)).__arrow_c_stream__(), columns is not None

    def _batches(self, schema: Any) -> Iterator[Any]:
        try:
            for table in self.read(schema.names):
                yield from table.select(schema.names).cast(schema).to_batches()
                if _ending.is_set():
                    return
        except VeilsumError as error:
            self.fault = error
            raise


def _open(connection: Any, query: SourceQuery, *, empty: bool = False) -> list[_Shown]:
    """Show the query its tables, or ``empty`` ones, and nothing else from here on."""
    connection.execute("SET threads = 1")  # no thread but the one that asks comes back to the interpreter
    shown, zones = list[_Shown](), set[str]()
    for name, path in query.files.items():
        shown.append(_json(path, query.dialect) if is_json(path) else _table(path, query.dialect, zones))
        connection.register(name, shown[-1].schema.empty_table() if empty else shown[-1])
    if len(zones) == 1:  # else days are those of UTC
        (zone,) = zones
        odd = DataError(f"The {query}: its files' times are in a zone that DuckDB does not know.", "Write them in UTC.")
        with raising(odd, on=duckdb.Error):
            connection.execute("SET TimeZone = $1", [f"GMT{zone}" if zone[:1] in ("+", "-") else zone])
    connection.execute("SET enable_external_access = false")
    return shown


def risks(query: SourceQuery) -> list[str]:
    """The conversions of a query that can fail on a single cell, and the whole query with it (:mod:`.conversions`)."""
    with _connection() as connection:
        _open(connection, query, empty=True)
        for name in query.files:  # what is only shown has no plan that could be told
            connection.execute(f'CREATE TABLE memory.main."{name}" AS FROM temp.main."{name}"')
            connection.unregister(name)
        (told,) = connection.execute("SELECT json_serialize_plan($1)", [query.text]).fetchone()
    return sorted({*risky_casts(json.loads(told))})


@contextmanager
def _waiting(connection: Any) -> Iterator[None]:
    """Note that this thread waits for a query. Where the process ends, it asks for nothing more and stays here: what was cut
    short is not what the query yields.
    """
    with _FREE:
        stays = _ending.is_set()
        if not stays:
            _ASKED[threading.get_ident()] = connection
    if stays:
        threading.Event().wait()
    try:
        yield
    finally:
        if _ending.is_set():
            connection.close()
        with _FREE:
            del _ASKED[threading.get_ident()]
            _FREE.notify_all()
            stays = _ending.is_set()
        if stays:
            threading.Event().wait()


def _end() -> None:
    """Stop queries before the interpreter ends: a thread that comes back to it from DuckDB then would abort the process."""
    with _FREE:
        _ending.set()
        for connection in _ASKED.values():
            connection.interrupt()
        _FREE.wait_for(lambda: not _ASKED, _PATIENCE)


atexit.register(_end)  # before what DuckDB, imported by now, does itself at the end, which fails queries that run


@contextmanager
def _connection() -> Iterator[Any]:
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET enable_progress_bar = false")  # where somebody types, DuckDB draws one between what they see
    connection.execute("SET TimeZone = 'UTC'")  # or a day would be that of the machine's own zone
    try:
        yield connection
    finally:
        connection.close()


def _answer(connection: Any, query: SourceQuery) -> Any:
    """The relation of a query that is one SELECT statement."""
    statements = connection.extract_statements(query.text)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise DataError(f"The {query} must be one SELECT statement.", "A query reads, and does nothing else.")
    found = connection.sql(statements[0])
    _told_apart(f"The {query}", found.columns)
    if wrong := _MISREAD & {str(kind) for kind in found.types}:
        told = f"The {query} yields a column of {min(wrong)}, which no other software reads as it is."
        raise DataError(told, "Store numbers or texts; a query can CAST.")
    return found


def _table(path: Path, dialect: Dialect, zones: set[str]) -> _Shown:
    """A CSV file's columns as trimmed texts, without broken lines; or Parquet files, which have to be alike, and whose times'
    zones are added.

    Alike but for what software that is told no types finds by what a record holds or lacks (:func:`.exchange.common`). No
    column is shown that DuckDB does not hold (:func:`.exchange.holds`).
    """
    reader: CsvReader | ParquetReader = ParquetReader(path)
    if csv := is_csv(path):
        reader = CsvReader(path, dialect=dialect)
        reader.columns()
    first, *others = reader.layout()
    _told_apart(str(path), first.schema.names)
    kinds = dict(zip(first.schema.names, first.schema.types, strict=True))
    for other in others:
        if other.schema.names == [*kinds]:
            kinds = {name: common((kind, other.schema.field(name).type)) for name, kind in kinds.items()}
        if other.schema.names != [*kinds] or None in kinds.values():
            told = f"{other.label}: its columns or their types are not those of {Path(first.label).name}."
            raise DataError(told, "Write all alike.")
    zones |= {kind.tz for kind in kinds.values() if getattr(kind, "tz", None)}
    kinds = {name: given(pa.array([], kind)).type for name, kind in kinds.items() if holds(kind)}
    if not kinds:
        raise DataError(f"{path}: none of its columns holds numbers or texts.", "Store these.")

    def read(asked: list[str]) -> Iterator[Any]:
        for part in reader.parts(RowRequest(asked, _ROWS)):
            cells = part.table.columns if csv else [_as(part.table[name], kinds[name]) for name in asked]
            yield pa.table([*map(pc.utf8_trim_whitespace, cells)] if csv else cells, asked)

    return _Shown(pa.schema(kinds), read)


def _as(column: Any, kind: Any) -> Any:
    """A column of one part of a table, as the type that the whole has."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    return given(column.combine_chunks()).cast(kind, safe=False)  # an integer beside fractions may lose digits


def _told_apart(what: str, names: Sequence[str]) -> None:
    """Insist that columns differ in more than capitals: by the name of one DuckDB would give another."""
    if len({name.encode().lower() for name in names}) < len(names):  # of ASCII, as DuckDB compares them
        raise DataError(f"{what} has two columns of one name, capitals aside.", "Rename one; in a query, by AS.")


def _json(path: Path, dialect: Dialect) -> _Shown:
    """The values of JSON as one column, ``json``."""
    file_parts(path)
    seen = dict[Path, tuple[int, ...]]()
    return _Shown(pa.schema({"json": pa.json_(pa.large_string())}), lambda _: _json_texts(path, dialect, seen))


def _json_texts(path: Path, dialect: Dialect, seen: dict[Path, tuple[int, ...]]) -> Iterator[Any]:
    """The values of JSON, chosen before a query sees them: within it, a condition of its own might be tried first.

    Of a document that is an array, its elements.
    """
    kind = pa.json_(pa.large_string())
    with _connection() as connection:
        for lines in json_texts(path, dialect, Counter(), seen):
            valid = _judged(connection, lines)
            found = lines if valid.true_count == len(lines) else lines.filter(valid)
            if is_document(path):
                texts = connection.from_arrow(pa.table({"json": found}))
                each = texts.project("unnest(if(json_type(json) = 'ARRAY', json_extract(json, '$[*]'), [json])) AS json")
                found = each.to_arrow_table()["json"].cast(pa.large_string()).combine_chunks()
            yield pa.table({"json": pa.ExtensionArray.from_storage(kind, found)})


def _judged(connection: Any, lines: Any) -> Any:
    """Which lines of an Arrow array are JSON."""
    told = connection.from_arrow(pa.table({"json": lines})).project("json_valid(json) AS valid").to_arrow_table()
    return told["valid"].combine_chunks()


def count_texts(path: Path, dialect: Dialect = PLAIN) -> tuple[int, int, int]:
    """Count what a query sees of a CSV file, or of a file or glob of JSON.

    Returns:
        How many records it holds, or values, a document being one; how many lines, or documents, are left out; and how many
        values hold an object with one key twice, of which DuckDB takes the first and others the last.

    Raises:
        DataError: the file does not exist, or it cannot be read.
    """
    left_out: Counter[Fault] = Counter()
    read = valid = twice = 0
    if not is_json(path):
        reader = CsvReader(path, dialect=dialect)
        parts = [(part.table.num_rows, len(part.broken)) for part in reader.parts(RowRequest((reader.columns() or [])[:1]))]
        return sum(rows for rows, _ in parts), sum(broken for _, broken in parts), 0
    with _connection() as connection:
        for lines in json_texts(path, dialect, left_out, {}):
            read += len(lines) if is_document(path) else pc.not_equal(pc.utf8_trim_whitespace(lines), "").true_count
            found = lines.filter(_judged(connection, lines))
            valid += len(found)
            twice += sum(map(has_key_twice, found.to_pylist()))
    return valid, read - valid + left_out.total(), twice
