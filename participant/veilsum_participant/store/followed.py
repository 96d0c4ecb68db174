"""How far a site followed the model of a study whose steps it takes itself."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, Integer, LargeBinary, Table, delete, insert, select

from veilsum_participant.store.tables import METADATA
from veilsum_privacy.securesum.context import Pieces

FOLLOWED = Table(
    "participant_followed",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column(
        "data", LargeBinary, nullable=False
    ),  # in place 0 the marks, as JSON; behind it the model in pieces; -1: what was seen
)

_SEEN = -1

PIECE = 1 << 22
"""Bytes of a model in one row: a database driver holds several copies of what it writes or reads at once."""


@dataclass(frozen=True)
class FollowedRow:
    """What the site goes on with.

    Attributes:
        marks: what the next release is held to.
        model: after the last one, in safetensors.
    """

    marks: Mapping[str, Any]
    model: bytes = field(repr=False)


def keep_followed(connection: Connection, study: bytes, marks: Mapping[str, Any], model: Pieces) -> None:
    """Keep how far the site followed a study, in place of what was kept before."""
    drop_followed(connection, study)
    pieces = [json.dumps(marks).encode(), *_cut(model)]
    connection.execute(insert(FOLLOWED), [{"study": study, "place": place, "data": data} for place, data in enumerate(pieces)])


def find_followed(connection: Connection, study: bytes) -> FollowedRow | None:
    """How far the site followed a study; None before the first release."""
    query = select(FOLLOWED.c.data).where(FOLLOWED.c.study == study, FOLLOWED.c.place > _SEEN).order_by(FOLLOWED.c.place)
    marks, *model = connection.execute(query).scalars().all() or [None]
    return None if marks is None else FollowedRow(json.loads(marks), b"".join(model))


def keep_seen(connection: Connection, study: bytes, seen: bytes) -> None:
    """Keep what of its next release a site has seen when it consents; gone with the step that it takes of it."""
    connection.execute(delete(FOLLOWED).where(FOLLOWED.c.study == study, FOLLOWED.c.place == _SEEN))
    connection.execute(insert(FOLLOWED), {"study": study, "place": _SEEN, "data": seen})


def find_seen(connection: Connection, study: bytes) -> bytes | None:
    """What the site has seen of the release of the last round that it consented to, unless it took that step."""
    return connection.execute(select(FOLLOWED.c.data).where(FOLLOWED.c.study == study, FOLLOWED.c.place == _SEEN)).scalar()


def drop_followed(connection: Connection, study: bytes) -> None:
    """Forget it: the study is over."""
    connection.execute(delete(FOLLOWED).where(FOLLOWED.c.study == study))


def _cut(pieces: Pieces) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            yield bytes(memoryview(piece)[start : start + PIECE])
