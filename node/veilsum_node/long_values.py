"""Long binary values, into a database piece by piece: SQLite would otherwise hold several copies of one at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, func, literal_column, select
from sqlalchemy.exc import OperationalError

Pieces = Sequence[bytes | memoryview]

LONG = 1 << 20
"""From how many bytes on a value is written in pieces."""


def room_for(connection: Connection, pieces: Pieces) -> Any:
    """What to insert for a value that :func:`fill` completes in the same transaction: room for it, or the value itself."""
    size = sum(map(len, pieces))
    if size < LONG or not _in_pieces(connection):
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return func.zeroblob(size)


def fill(connection: Connection, column: Column[Any], where: Sequence[ColumnElement[bool]], pieces: Pieces) -> None:
    """Write the value that room was made for; ``where`` names its row.

    Raises:
        OperationalError: as of a statement.
    """
    if sum(map(len, pieces)) < LONG or not _in_pieces(connection):
        return
    row: Any = connection.scalar(select(literal_column("rowid")).select_from(column.table).where(*where))
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)  # noqa: S101  as asked above
    try:
        with driver.blobopen(column.table.name, column.name, int(row)) as value:
            for piece in pieces:
                view = memoryview(piece)
                for start in range(0, len(view), LONG):
                    value.write(view[start : start + LONG])
    except sqlite3.Error as error:
        raise OperationalError("a long value", None, error) from error


def _in_pieces(connection: Connection) -> bool:
    return isinstance(connection.connection.driver_connection, sqlite3.Connection)
