"""Queries on PostgreSQL, by ADBC: Arrow batches over libpq, each query in a read-only transaction of its own.

Where records come in batches and subjects count, the server sorts: its own disk holds them already, the site's never does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pyarrow as pa

from veilsum_node.errors import DataError, Unavailable, raising
from veilsum_participant.data.reader import (
    OpenRows,
    QueryReader,
    RowRequest,
    SourcePart,
    failed,
    missing_package,
    slow,
)
from veilsum_participant.data.typed import is_numeric
from veilsum_participant.settings.query import SourceQuery

_CANCELLED = "57014"
_PASSING = ("08", "57", "53", "40", "55P03")
"""Conditions that pass: no connection, a server that stops or starts, no resources, a conflict, a lock. Beside them, an error
without a code is one of the connection."""

SPACES = tuple(letter for letter in map(chr, range(0x3001)) if letter.isspace())
"""All that identifiers are trimmed of; no later letter is a space."""

_PARAMETERS = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""Parameters of libpq, unless the URL says otherwise: a server that vanishes is noticed within a minute."""


class PostgresReader(QueryReader):
    """Reads what a query on PostgreSQL yields."""

    def _schema(self) -> Any:
        """Schema of the query's answer; the server prepares the query and does not run it."""
        query = self.query
        with _cursor(query) as cursor:
            try:
                schema = cursor.adbc_execute_schema(_as_table(query))
            except _driver_error() as error:
                _raise_away(query, error)
                told = str(error).partition("ERROR:")[2].splitlines()
                message = f"The {query}: {told[0].strip() if told else 'is not accepted'} (SQLSTATE {error.sqlstate})."
                raise DataError(message, "Correct the query, or the rights of the database's role.") from None
        return _with_own_types(schema.empty_table()).schema

    @contextmanager
    def opened(self) -> Iterator[_ServerRows]:
        """See :meth:`Reader.opened`; all is read in one transaction, which sees one state."""
        with _cursor(self.query) as cursor:
            cursor.execute("SELECT current_setting('server_encoding')")
            (encoding,) = cursor.fetchone()
            kinds = {part.name: part.type for part in cursor.adbc_execute_schema(_as_table(self.query))}
            yield _ServerRows(cursor, self.query, encoding, kinds)


@dataclass
class _ServerRows(OpenRows):
    """A server-side cursor: the server's ``statement_timeout`` holds for each FETCH, not for what is computed between them."""

    cursor: Any
    query: SourceQuery
    encoding: str
    kinds: Mapping[str, Any]

    def orders(self, subject: str) -> bool:
        """Numbers that Arrow has always; texts where Unicode's composed forms can be compared as the participant does."""
        kind = self.kinds[subject]
        return _is_number(kind) or (self.encoding == "UTF8" and not is_numeric(kind))

    def parts(self, asked: RowRequest) -> Iterator[SourcePart]:
        text = _as_table(self.query)
        numerics = {name: kind for name, kind in self.kinds.items() if is_numeric(kind)}
        fewer = set() < set(asked.names) < set(self.kinds)
        if fewer or numerics:  # told as text: the driver loses its place at a number of 131,072 digits
            names = asked.names if fewer else self.kinds
            told = (f"{_quoted(name)}::text AS {_quoted(name)}" if name in numerics else _quoted(name) for name in names)
            text = f"SELECT {', '.join(told)} FROM ({text}) AS records"  # noqa: S608  the site's own
        if asked.order is not None:
            name = _quoted(asked.order)
            text += f" ORDER BY {name if _is_number(self.kinds[asked.order]) else _as_told(name)}"
        for table in self._copied(text) if asked.rows is None else self._fetched(text, asked.rows):
            if len({*table.column_names}) < table.num_columns:
                raise DataError("The query yields two columns of one name.", "Give each a name of its own: AS.")
            yield SourcePart(_with_own_types(table, numerics))

    def _copied(self, text: str) -> list[Any]:
        """All rows in the parts that the driver makes of them, which are quicker to judge one by one."""
        with _told(self.query):
            self.cursor.execute(text)
            whole = self.cursor.fetch_arrow_table()
        return [pa.Table.from_batches([part]) for part in whole.to_batches()] or [whole]

    def _fetched(self, text: str, rows: int) -> Iterator[Any]:
        with _told(self.query):
            self.cursor.execute("SET LOCAL cursor_tuple_fraction = 1")  # all rows will be read
            self.cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})  # COPY takes no FETCH
            self.cursor.execute(f"DECLARE records NO SCROLL CURSOR FOR {text}")
        left, count = float(self.query.timeout), rows
        first = True
        while first or count == rows:
            began = time.monotonic()
            with _told(self.query):
                self.cursor.execute(f"SET LOCAL statement_timeout = {max(1, round(1000 * left))}")
                self.cursor.execute(f"FETCH FORWARD {rows} FROM records")
                found = self.cursor.fetch_arrow_table()
            left -= time.monotonic() - began
            count, first = found.num_rows, False
            yield found
        with _told(self.query):
            self.cursor.execute("CLOSE records")


def _with_own_types(table: Any, told: Mapping[str, Any] | None = None) -> Any:
    """A table in which what the driver gives as other numbers is of a type of its own, money (coins) and OIDs (signed); and
    what it was ``told`` as text of the type by name that the query yields.
    """
    for place, part in enumerate(table.schema):
        name = (part.metadata or {}).get(b"POSTGRESQL:type")
        kind = pa.opaque(part.type, name.decode(), "PostgreSQL") if name in (b"money", b"oid") else (told or {}).get(part.name)
        if kind is not None:
            chunks = [pa.ExtensionArray.from_storage(kind, chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, pa.field(part.name, kind), pa.chunked_array(chunks, kind))
    return table


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_told(name: str) -> str:
    """A text as :mod:`veilsum_participant.data.subjects` compares it: trimmed and composed, in the order of its bytes."""
    spaces = "".join(f"\\{ord(space):04x}" for space in SPACES)
    return f"normalize(btrim({name}::text, U&'{spaces}')) COLLATE \"C\""


@contextmanager
def _told(query: SourceQuery) -> Iterator[None]:
    """A failure while records are read, by its code alone: the driver's words may hold a record's."""
    try:
        yield
    except _driver_error() as error:
        if error.sqlstate == _CANCELLED:
            raise slow(query) from None
        _raise_away(query, error)
        raise failed(query, f"SQLSTATE {error.sqlstate}") from None


@contextmanager
def _cursor(query: SourceQuery) -> Iterator[Any]:
    """A cursor in a read-only transaction, whose statements may take as long as the query may."""
    with raising(missing_package("adbc-driver-postgresql", "sql"), on=ImportError):
        from adbc_driver_postgresql import dbapi
    connection = None
    try:
        with _told(query):
            connection = dbapi.connect(_with_parameters(query.url))
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                cursor.execute(f"SET LOCAL statement_timeout = {1000 * query.timeout}")
                yield cursor
    finally:
        if connection is not None:
            with suppress(_driver_error()):  # it may be what broke
                connection.close()


def _as_table(query: SourceQuery) -> str:
    """The query as a table, which only one statement that reads can be: the same text is prepared and then run."""
    return f"SELECT * FROM (\n{query.text.rstrip().rstrip(';')}\n) AS records"  # noqa: S608  the site's own


def _driver_error() -> type[Any]:
    from adbc_driver_manager import Error

    return Error


def _raise_away(query: SourceQuery, error: Any) -> None:
    code = error.sqlstate
    if code is None or code.startswith(_PASSING):
        why = "cannot be reached" if code is None else f"answers with SQLSTATE {code}"
        message = f"The database of the {query} {why}."
        raise Unavailable(message, "Check that the server runs, and the URL, role and password in it.") from None


def _with_parameters(url: str) -> str:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))  # libpq knows no + for a space
    return urlunsplit(parts._replace(query=urlencode(_PARAMETERS | given, quote_via=quote)))
