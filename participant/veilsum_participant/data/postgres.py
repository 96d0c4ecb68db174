"""Queries on PostgreSQL, by ADBC: Arrow batches over libpq, each query in a read-only transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from veilsum_node.errors import DataError, Unavailable, VeilsumError
from veilsum_participant.data.queries import failed, missing_package, slow
from veilsum_participant.query import Query

_CANCELLED = "57014"
_PASSING = ("08", "57", "53", "40", "55P03")
"""Conditions that pass: no connection, a server that stops or starts, no resources, a conflict, a lock. Beside them, an error
without a code is one of the connection."""

_PARAMETERS = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""Of libpq, where the URL does not say otherwise: a server that vanishes is noticed within a minute."""


def schema(query: Query) -> Any:
    """See :func:`veilsum_participant.data.queries.query_schema`: the server prepares the query and does not run it."""
    with _cursor(query) as cursor:
        try:
            return cursor.adbc_execute_schema(_as_table(query))
        except _driver_error() as error:
            _raise_away(query, error)
            told = str(error).partition("ERROR:")[2].splitlines()
            message = f"The {query}: {told[0].strip() if told else 'is not accepted'} (SQLSTATE {error.sqlstate})."
            raise DataError(message, "Correct the query, or the rights of the database's role.") from None


def rows(query: Query) -> Any:
    """See :func:`veilsum_participant.data.queries.query_rows`."""
    with _cursor(query) as cursor:
        try:
            cursor.execute(_as_table(query))
            return cursor.fetch_arrow_table()
        except _driver_error() as error:  # its words may hold a record's
            if error.sqlstate == _CANCELLED:
                raise slow(query) from None
            _raise_away(query, error)
            raise failed(query, f"SQLSTATE {error.sqlstate}") from None


@contextmanager
def _cursor(query: Query) -> Iterator[Any]:
    """A cursor in a read-only transaction, whose statements may take as long as the query may."""
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise missing_package("adbc-driver-postgresql", "sql") from error
    connection = None
    try:
        connection = dbapi.connect(_with_parameters(query.url))
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = {1000 * query.timeout}")
            yield cursor
    except VeilsumError:
        raise
    except _driver_error() as error:
        _raise_away(query, error)
        raise failed(query, f"SQLSTATE {error.sqlstate}") from None
    finally:
        if connection is not None:
            with suppress(_driver_error()):  # it may be what broke
                connection.close()


def _as_table(query: Query) -> str:
    """The query as a table, which only one statement that reads can be: the same text is prepared and then run."""
    return f"SELECT * FROM (\n{query.text.rstrip().rstrip(';')}\n) AS records"  # noqa: S608  the site's own


def _driver_error() -> type[Any]:
    from adbc_driver_manager import Error

    return Error


def _raise_away(query: Query, error: Any) -> None:
    code = error.sqlstate
    if code is None or code.startswith(_PASSING):
        why = "cannot be reached" if code is None else f"answers with SQLSTATE {code}"
        message = f"The database of the {query} {why}."
        raise Unavailable(message, "Check that the server runs, and the URL, role and password in it.") from None


def _with_parameters(url: str) -> str:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))  # libpq knows no + for a space
    return urlunsplit(parts._replace(query=urlencode(_PARAMETERS | given, quote_via=quote)))
