"""Long values are written piece by piece, are what was given, and go with their transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, insert, select

from veilsum_node.database import Database, open_database
from veilsum_node.errors import Unavailable
from veilsum_node.long_values import LONG, fill, room_for

ROWS = Table("long_row", MetaData(), Column("id", Integer, primary_key=True), Column("data", LargeBinary))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    found = open_database(tmp_path / "a.db")
    with found.transaction() as connection:
        ROWS.metadata.create_all(connection)
    return found


def store(database: Database, number: int, pieces: list[bytes | memoryview]) -> None:
    with database.transaction() as connection:
        connection.execute(insert(ROWS).values(id=number, data=room_for(connection, pieces)))
        fill(connection, ROWS.c.data, [ROWS.c.id == number], pieces)


def stored(database: Database) -> dict[int, bytes]:
    with database.reading() as connection:
        return {row.id: bytes(row.data) for row in connection.execute(select(ROWS))}


@pytest.mark.parametrize("sizes", [[0], [5], [LONG - 1], [LONG], [LONG + 1], [3 * LONG + 7], [LONG // 2, LONG, 3], [5, 6]])
def test_what_is_stored_is_what_was_given(database: Database, sizes: list[int]) -> None:
    pieces: list[bytes | memoryview] = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    store(database, 1, [b"x" * LONG])
    store(database, 7, [memoryview(piece) for piece in pieces])
    assert stored(database) == {1: b"x" * LONG, 7: b"".join(pieces)}


def test_a_full_disk_is_typed_and_leaves_nothing(database: Database) -> None:
    with database.transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 300}")
    with pytest.raises(Unavailable):
        store(database, 1, [bytes(2 * LONG)])
    assert stored(database) == {}
