"""Releases in the journal: a row each, and of a long one its values in pieces beside it.

Functions of an open connection take part in their caller's transaction.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select

from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.storage.long_values import (
    LONG,
    PIECE_VALUES,
    RELEASE_PIECES,
    cut,
    read_pieces,
    read_whole,
    write_pieces,
)
from veilsum_coordinator.storage.records import RELEASES
from veilsum_node.database import Database
from veilsum_node.errors import StateError
from veilsum_privacy.results.release_names import begin_release_digest


def write_release(
    connection: Connection, study: bytes, number: int, row: Mapping[str, Any], values: Integers, stored: bytes | None
) -> bytes:
    """Store a release, or see that it is the one that is stored; returns its digest.

    Args:
        row: its columns but for the values and their digest.
        values: (size,) int64, in grid units.
        stored: digest of the round's release that is stored already; None for none.

    Raises:
        StateError: another one is stored.
    """
    size = 8 * len(values)
    digest, long, whole = begin_release_digest(study, number, row["attempt"], size), size >= LONG, b""
    for place, piece in enumerate(cut(values)):
        data = piece.tobytes()
        digest.update(data)
        if stored is None and long:
            write_pieces(connection, RELEASE_PIECES, study, number, [data], place)
        whole = b"" if long else whole + data
    key = digest.digest()
    if stored is None:
        connection.execute(insert(RELEASES).values(study=study, round=number, values=whole, digest=key, **row))
    elif stored != key:
        raise StateError("A different release of this round is already stored.", "Run `veilsum coordinator check`.")
    return key


def read_digest(connection: Connection, study: bytes, number: int) -> bytes | None:
    """The digest of a round's release; None if there is none."""
    found = connection.scalar(select(RELEASES.c.digest).where(RELEASES.c.study == study, RELEASES.c.round == number))
    return None if found is None else bytes(found)


def read_releases(database: Database, study: bytes) -> list[dict[str, Any]]:
    """A study's releases in order, with all their values."""
    with database.reading() as connection:
        query = select(RELEASES).where(RELEASES.c.study == study).order_by(RELEASES.c.round)
        rows = [dict(row) for row in connection.execute(query).mappings()]
        return [{**row, "values": read_release(connection, study, row["round"], row["values"])} for row in rows]


def read_release(connection: Connection, study: bytes, number: int, values: bytes) -> bytes:
    """All values of a release, little-endian int64; ``values``: of its row, which holds those of a short one."""
    if values:
        return bytes(values)
    return read_whole(connection, RELEASE_PIECES, study, number)


def read_values(connection: Connection, study: bytes, number: int, start: int, stop: int) -> Integers:
    """Some of the integers of a release, (stop - start,) int64."""
    here = (RELEASES.c.study == study, RELEASES.c.round == number)
    if connection.execute(select(func.length(RELEASES.c["values"])).where(*here)).scalar_one():
        row = connection.execute(select(RELEASES.c["values"]).where(*here)).scalar_one()
        return np.frombuffer(row, dtype="<i8")[start:stop].astype(np.int64)
    first, last = start // PIECE_VALUES, -(-stop // PIECE_VALUES)
    pieces = read_pieces(connection, RELEASE_PIECES, study, number, range(first, last))
    parts = [np.frombuffer(piece, dtype="<i8") for piece in pieces]
    begin = start - first * PIECE_VALUES
    return np.concatenate(parts)[begin : begin + stop - start].astype(np.int64, copy=False)
