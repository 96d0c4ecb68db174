"""Long values are written piece by piece, are what was given, and go with their transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, insert, literal, select

from support.postgres import server
from veilsum_node.database import Database, open_database
from veilsum_node.errors import Damage, Unavailable
from veilsum_node.long_values import LONG, fill, room_for

ROWS = Table("long_row", MetaData(), Column("id", Integer, primary_key=True), Column("data", LargeBinary))


def made(place: Path | str) -> Database:
    found = open_database(place)
    with found.transaction() as connection:
        ROWS.metadata.create_all(connection)
    return found


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return made(tmp_path / "a.db")


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


def test_a_server_is_given_the_whole_value() -> None:
    database = made(server().new_database())
    store(database, 1, [b"a" * LONG, b"b"])
    assert stored(database) == {1: b"a" * LONG + b"b"}


def test_room_is_made_for_long_values_alone(database: Database) -> None:
    """Others are passed on as they are, without a copy."""
    with database.transaction() as connection:
        for value in (b"a", b"a" * (LONG - 1)):
            assert room_for(connection, [value]) is value
        assert not isinstance(room_for(connection, [b"a" * LONG]), bytes)


def test_a_value_that_cannot_be_written_is_a_fault_of_the_database(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(insert(ROWS).values(id=1, data=literal(5)))

    def fill_number() -> None:
        with database.transaction() as connection:
            fill(connection, ROWS.c.data, [ROWS.c.id == 1], [bytes(LONG)])

    with pytest.raises(Damage):
        fill_number()


def test_a_full_disk_is_typed_and_leaves_nothing(database: Database) -> None:
    with database.transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 300}")
    with pytest.raises(Unavailable):
        store(database, 1, [bytes(2 * LONG)])
    assert stored(database) == {}
