"""Queries on files, by DuckDB within the process: it sees the tables that the configuration names and nothing else.

CSV and ndjson are read line by line as :mod:`veilsum_participant.data.lines` does, never sniffed: were types guessed from
records, one record could decide whether a query is accepted. A query's columns and types are those of its answer on empty
tables. They are parsed as the query asks for them, part by part, and again each time; nothing of them is held but what the
query joins, sorts or groups. Nothing is written, fetched or loaded, and nothing spills to a disk.
"""

from __future__ import annotations

import atexit
import glob
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from veilsum_node.errors import DataError, VeilsumError, raising
from veilsum_participant.data.csv_files import CsvReader
from veilsum_participant.data.json_files import has_key_twice, json_texts
from veilsum_participant.data.lines import Fault
from veilsum_participant.data.objects import state_of, written_to
from veilsum_participant.data.parquet_files import ParquetReader, check_pages, file_parts
from veilsum_participant.data.reader import (
    QueryReader,
    QueryRows,
    RowRequest,
    SourcePart,
    failed,
    missing_package,
)
from veilsum_participant.settings.forms import PLAIN, Dialect, is_document, is_json
from veilsum_participant.settings.query import SourceQuery, is_csv

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
_MISREAD = {"UHUGEINT", "BIT"}
"""DuckDB's types that Arrow takes for others: 2^128 - 1 for -1, bits for letters."""
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
            except _errors() as error:
                told = _of_the_query(str(error).splitlines()[0].rstrip("."), query.text)
                raise DataError(f"The {query}: {told}.", "Correct the query, or the files that it reads.") from error

    @contextmanager
    def opened(self) -> Iterator[_DuckRows]:
        with _connection() as connection:
            yield _DuckRows(connection, self.query, *_open(connection, self.query))


@dataclass
class _DuckRows(QueryRows):  # not ordered: it would hold all that it sorts
    texts: list[_Texts]
    files: list[Path]
    seen: list[tuple[int, ...]] = field(default_factory=list, init=False)

    def tables(self, asked: RowRequest) -> Iterator[Any]:
        import duckdb

        self.seen = self.seen or [*map(state_of, self.files)]
        with _waiting(self.connection):
            found = _answer(self.connection, self.query)
            if set() < set(asked.names) < set(found.columns):
                found = found.select(*map(duckdb.ColumnExpression, asked.names))
            _check_pages(found, self.files)
            reader = found.to_arrow_reader(asked.most)
        table = reader.schema.empty_table()
        while table is not None:
            yield table
            with _waiting(self.connection):
                batch = next(reader, None)
            table = None if batch is None else pa.Table.from_batches([batch])
        if [*map(state_of, self.files)] != self.seen:
            raise written_to(f"A file of the {self.query}")

    def told(self, error: Exception) -> VeilsumError | None:
        """A failure by its kind, with which an OSError's words begin where Arrow reads; a file that cannot be read by name."""
        if not isinstance(error, (*_errors(), OSError, pa.ArrowException)):
            return None
        kind = _KIND.match(str(error)) if isinstance(error, OSError) else None
        fault = next((text.fault for text in self.texts if text.fault is not None), None)
        return fault or failed(self.query, type(error).__name__ if kind is None else kind[0])


def _check_pages(found: Any, files: Sequence[Path]) -> None:
    """Hold what a query reads of Parquet files against their checksums, at which DuckDB does not look."""
    if files:
        plan = _words(json.loads(found.explain(format="json")))
        for file in files:
            check_pages(file, lambda name: _words(name) in plan)


def _words(plan: Any) -> str:
    """The letters and digits of all texts in a plan, among which are the names of all columns that are read of a file."""
    if isinstance(plan, dict):
        plan = [*plan.values()]
    return "".join(map(_words, plan)) if isinstance(plan, list) else re.sub(r"\W", "", str(plan))


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
class _Texts:
    """A table for DuckDB, which reads it anew, by Arrow's C interface, wherever a query names it.

    Attributes:
        schema: of the table.
        read: yields the table in parts.
        fault: why the last reading broke off, if it did: DuckDB passes on no more than that it did.
    """

    schema: Any
    read: Callable[[], Iterator[Any]]
    fault: VeilsumError | None = field(default=None, init=False)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Any]:
        try:
            for table in self.read():
                yield from table.to_batches()
                if _ending.is_set():
                    return
        except VeilsumError as error:
            self.fault = error
            raise


def _open(connection: Any, query: SourceQuery, *, empty: bool = False) -> tuple[list[_Texts], list[Path]]:
    """Show the query its tables, or ``empty`` ones, and nothing else from here on; return those of text, and Parquet files."""
    texts, files, zones = list[_Texts](), list[Path](), set[str]()
    for name, path in query.files.items():
        if is_json(path) or is_csv(path):
            if not texts:
                connection.execute("SET threads = 1")  # no thread but the one that asks comes back to the interpreter
            texts.append(_texts(path, query.dialect))
            connection.register(name, texts[-1].schema.empty_table() if empty else texts[-1])
        else:
            parts, columns = _parts(path, zones)
            files += map(Path, parts)
            connection.execute("SET allowed_paths = list_concat(current_setting('allowed_paths'), $1)", [parts])
            found = connection.read_parquet(parts, union_by_name=len(parts) > 1).project(columns)
            found.limit(0).create(name) if empty else found.create_view(name)
    if len(zones) == 1:  # else days are those of UTC
        (zone,) = zones
        odd = DataError(f"The {query}: its files' times are in a zone that DuckDB does not know.", "Write them in UTC.")
        with raising(odd, on=_errors()):
            connection.execute("SET TimeZone = $1", [f"GMT{zone}" if zone[:1] in ("+", "-") else zone])
    connection.execute("SET enable_external_access = false")
    return texts, files


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


@cache
def _stops_at_exit() -> None:
    """Before what DuckDB, imported by now, does itself at the end, which fails queries that run."""
    atexit.register(_end)


def _end() -> None:
    """Stop queries before the interpreter ends: a thread that comes back to it from DuckDB then would abort the process."""
    with _FREE:
        _ending.set()
        for connection in _ASKED.values():
            connection.interrupt()
        _FREE.wait_for(lambda: not _ASKED, _PATIENCE)


@contextmanager
def _connection() -> Iterator[Any]:
    with raising(missing_package("duckdb", "sql"), on=ImportError):
        import duckdb
    _stops_at_exit()
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET enable_progress_bar = false")  # where somebody types, DuckDB draws one between what they see
    connection.execute("SET parquet_can_have_nan = true")  # or others' least and greatest number would decide on a NaN
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")  # or max() were told NaN then, and nothing read
    connection.execute("SET TimeZone = 'UTC'")  # or a day would be that of the machine's own zone
    try:
        yield connection
    finally:
        connection.close()


def _errors() -> tuple[type[Exception], ...]:
    import duckdb

    return (duckdb.Error,)


def _answer(connection: Any, query: SourceQuery) -> Any:
    """The relation of a query that is one SELECT statement."""
    import duckdb

    statements = connection.extract_statements(query.text)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise DataError(f"The {query} must be one SELECT statement.", "A query reads, and does nothing else.")
    found = connection.sql(statements[0])
    _told_apart(f"The {query}", found.columns)
    if wrong := _MISREAD & {str(kind) for kind in found.types}:
        told = f"The {query} yields a column of {min(wrong)}, which no other software reads as it is."
        raise DataError(told, "Store numbers or texts; a query can CAST.")
    return found


def _texts(path: Path, dialect: Dialect) -> _Texts:
    """A CSV file's columns as texts, or the values of JSON as one column, ``json``."""
    if is_json(path):
        file_parts(path)
        seen = dict[Path, tuple[int, ...]]()
        return _Texts(pa.schema({"json": pa.json_(pa.large_string())}), lambda: _json_texts(path, dialect, seen))
    reader = CsvReader(path, dialect=dialect)
    names = reader.columns() or []
    _told_apart(str(path), names)
    return _Texts(pa.schema(dict.fromkeys(names, pa.large_string())), lambda: map(_trimmed, reader.parts(RowRequest(names))))


def _told_apart(what: str, names: Sequence[str]) -> None:
    """Insist that columns differ in more than capitals: by the name of one DuckDB would give another."""
    if len({name.encode().lower() for name in names}) < len(names):  # of ASCII, as DuckDB compares them
        raise DataError(f"{what} has two columns of one name, capitals aside.", "Rename one; in a query, by AS.")


def _trimmed(part: SourcePart) -> Any:
    """The trimmed cells of a CSV file; broken lines are left out."""
    return pa.table({name: pc.utf8_trim_whitespace(part.table[name]) for name in part.table.column_names})


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


def _parts(path: Path, zones: set[str]) -> tuple[list[str], str]:
    """The Parquet files that a path means, which have to be alike, and the columns that a query may see; adds their zones.

    Alike but for what software that is told no types finds by what a record holds or lacks (:func:`_alike`).

    Not those of which only Arrow's note tells that their integers are none, such as durations: DuckDB does not read it.
    """
    found = ParquetReader(path).layout()
    _told_apart(str(path), found[0].schema.names)
    kinds = {name: {pa.null()} for name in found[0].schema.names}
    for other in found:
        for held, kind in zip(kinds.values(), other.schema.types, strict=False):
            held.add(kind)
        if other.schema.names != [*kinds] or not all(map(_alike, kinds.values())):
            first = Path(found[0].label).name
            raise DataError(f"{other.label}: its columns or their types are not those of {first}.", "Write all alike.")
    if odd_name := next((one.label for one in found if glob.has_magic(one.label)), ""):
        told = f"{odd_name}: has *, ? or [ in its name, which DuckDB takes for other files' names."
        raise DataError(told, "Rename it, or the folder above it.")
    zones |= {kind.tz for held in kinds.values() for kind in held if getattr(kind, "tz", None)}
    odd = [name for name, held in kinds.items() if any(isinstance(kind, pa.DurationType | pa.OpaqueType) for kind in held)]
    if len(odd) == len(kinds):
        raise DataError(f"{path}: none of its columns holds numbers or texts.", "Store these.")
    hidden = ", ".join(f'"{name.replace(chr(34), 2 * chr(34))}"' for name in odd)
    return [one.label for one in found], f"* EXCLUDE ({hidden})" if odd else "*"


def _alike(kinds: set[Any]) -> bool:
    """Whether DuckDB makes one column of parts of these Arrow types, without a loss: integers are fractions where one part has
    these, a part of nothing is of the others' type, decimals have the most digits of any, and lists are alike if what they
    hold is.
    """
    held = kinds - {pa.null()}
    if len(held) > 1 and all(map(pa.types.is_list, held)):
        return _alike({kind.value_type for kind in held})
    if len(held) > 1 and all(map(pa.types.is_decimal, held)):
        return bool(max(kind.precision - kind.scale for kind in held) + max(kind.scale for kind in held) <= 38)
    return len(held) < 2 or held == {pa.int64(), pa.float64()}
