"""How far a site followed the model of a study whose steps it takes itself."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, Integer, LargeBinary, Table, bindparam, delete, func, insert, select, update

from veilsum_participant.store.tables import METADATA

if TYPE_CHECKING:
    from veilsum_privacy.securesum.context import Pieces

FOLLOWED = Table(
    "participant_followed",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("place", Integer, primary_key=True),
    # in place 0 the marks, as JSON; behind it the model in pieces; -1: what was seen
    Column("data", LargeBinary, nullable=False),
)

PIECE = 1 << 22
"""Bytes of a model in one row: a database driver holds several copies of what it writes or reads at once."""

_SEEN = -1

_HERE = FOLLOWED.c.study == bindparam("of")
_KEPT = select(FOLLOWED.c.data).where(_HERE, FOLLOWED.c.place > _SEEN).order_by(FOLLOWED.c.place)
_MARKS = select(FOLLOWED.c.data).where(_HERE, FOLLOWED.c.place == 0)
_COUNT = select(func.count()).where(_HERE, FOLLOWED.c.place > _SEEN)
_REPLACE = update(FOLLOWED).where(_HERE, FOLLOWED.c.place == bindparam("at"))
_FIND_SEEN = select(FOLLOWED.c.data).where(_HERE, FOLLOWED.c.place == _SEEN)
_DROP_SEEN = delete(FOLLOWED).where(_HERE, FOLLOWED.c.place == _SEEN)
_DROP = delete(FOLLOWED).where(_HERE)
_ADD = insert(FOLLOWED)


@dataclass(frozen=True)
class FollowedRow:
    """What the site goes on with.

    Attributes:
        marks: what the next release is held to.
        model: after the last one, in safetensors.
    """

    marks: Mapping[str, Any]
    model: bytes = field(repr=False)


def keep_followed(connection: Connection, study: bytes, marks: Mapping[str, Any], model: "Pieces") -> None:
    """Keep how far the site followed a study, in place of what was kept before and of what was seen since."""
    pieces = list(enumerate([json.dumps(marks).encode(), *_cut(model)]))
    if connection.execute(_COUNT, {"of": study}).scalar() == len(pieces):
        connection.execute(_DROP_SEEN, {"of": study})
        # written over, which takes SQLite a third of the time of rows that go and come
        connection.execute(_REPLACE, [{"of": study, "at": place, "data": data} for place, data in pieces])
    else:
        drop_followed(connection, study)
        connection.execute(_ADD, [{"study": study, "place": place, "data": data} for place, data in pieces])


def find_followed(connection: Connection, study: bytes, known: Mapping[str, Any] | None = None) -> FollowedRow | None:
    """How far the site followed a study, without the model where it is at ``known`` marks; None before the first release."""
    if known is not None and connection.execute(_MARKS, {"of": study}).scalar() == json.dumps(known).encode():
        return FollowedRow(known, b"")
    marks, *model = connection.execute(_KEPT, {"of": study}).scalars().all() or [None]
    return None if marks is None else FollowedRow(json.loads(marks), b"".join(model))


def keep_seen(connection: Connection, study: bytes, seen: bytes) -> None:
    """Keep what of its next release a site has seen when it consents; gone with the step that it takes of it."""
    connection.execute(_DROP_SEEN, {"of": study})
    connection.execute(_ADD, {"study": study, "place": _SEEN, "data": seen})


def find_seen(connection: Connection, study: bytes) -> bytes | None:
    """What the site has seen of the release of the last round that it consented to, unless it took that step."""
    return connection.execute(_FIND_SEEN, {"of": study}).scalar()


def drop_followed(connection: Connection, study: bytes) -> None:
    """Forget it: the study is over."""
    connection.execute(_DROP, {"of": study})


def _cut(pieces: "Pieces") -> Iterator[memoryview]:
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            yield memoryview(piece)[start : start + PIECE]
