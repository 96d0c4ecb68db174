"""Values that are too long for one column lie in pieces in a table of their own: a database driver holds several copies of
what it writes or reads at once.

A short value stands in its row; of a long one the row holds no byte, and the pieces are numbered from 0.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table, delete, insert, select

METADATA = MetaData()
"""Metadata of all of the coordinator's tables."""

LONG = 1 << 20
"""From how many bytes on a value lies in pieces."""

PIECE_VALUES = 1 << 16
"""Integers in each piece of a release but the last."""


def _pieces(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("study", LargeBinary(32), primary_key=True),
        Column("round", Integer, primary_key=True),
        Column("place", Integer, primary_key=True),
        Column("data", LargeBinary, nullable=False),
    )


SUM_PIECES = _pieces("coordinator_sum_piece")
"""A part of at most :data:`LONG` bytes each."""

RELEASE_PIECES = _pieces("coordinator_release_piece")
""":data:`PIECE_VALUES` integers each, little-endian int64."""


def write_pieces(
    connection: Connection, table: Table, study: bytes, number: int, pieces: Sequence[bytes | memoryview], first: int = 0
) -> None:
    """Store pieces of the value of a round, the first of them in this place."""
    rows = [{"study": study, "round": number, "place": first + index, "data": data} for index, data in enumerate(pieces)]
    connection.execute(insert(table), rows)


def read_pieces(connection: Connection, table: Table, study: bytes, number: int, places: Sequence[int]) -> Iterator[bytes]:
    """Some pieces of a value, one after the other."""
    for place in places:
        here = (table.c.study == study, table.c.round == number, table.c.place == place)
        yield bytes(connection.execute(select(table.c.data).where(*here)).scalar_one())


def read_whole(connection: Connection, table: Table, study: bytes, number: int) -> bytes:
    """All pieces of a value, one behind the other."""
    query = select(table.c.data).where(table.c.study == study, table.c.round == number).order_by(table.c.place)
    return b"".join(connection.execute(query).scalars())


def drop_pieces(connection: Connection, table: Table, study: bytes, number: int | None = None) -> None:
    """Drop the pieces of a round, or of all of a study's."""
    here = table.c.study == study
    connection.execute(delete(table).where(here if number is None else here & (table.c.round == number)))


def cut(values: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The same integers in arrays of :data:`PIECE_VALUES` each, the last one shorter; little-endian."""
    for start in range(0, len(values), PIECE_VALUES):
        yield values[start : start + PIECE_VALUES].astype("<i8", copy=False)
