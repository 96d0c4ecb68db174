"""The studies that the site enrolled in, with their keys.

Enrolments as the store keeps them: a study's own, and those of its roster.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Index, bindparam, func, insert, select, update

from veilsum_node.errors import HostileInput
from veilsum_participant.store.tables import all_rows, one_row, table

if TYPE_CHECKING:
    from veilsum_privacy.securesum.roster import Enrolment


class StudyState(StrEnum):
    """Where a site stands in a study; it holds the study's keys while it is enrolled or ready."""

    ENROLLED = "enrolled"
    READY = "ready"
    LEFT = "left"
    ENDED = "ended"


TAKING_PART = (StudyState.ENROLLED, StudyState.READY)


@dataclass(frozen=True, repr=False)
class StudyRow:
    """A study that the site enrolled in. It holds a key and seeds, so it shows nothing of itself."""

    digest: bytes
    status: StudyState
    study: bytes
    analyst: str
    enrolment: bytes  # JSON of hexadecimal: certificate, body, signature
    box_key: bytes | None
    roster: bytes | None  # JSON: list of enrolments
    roster_time: int | None  # when the whole roster was verified
    shares: bytes | None  # JSON: name -> hexadecimal; this site's own of the pairs' seeds
    seeds: bytes | None  # JSON: name -> hexadecimal
    receipts: int = 0
    round: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", StudyState(self.status))


STUDIES = table("participant_study", StudyRow, "digest")
Index("participant_study_status", STUDIES.c.status)  # a site has been in many, and looks at those that are open every second

# Statements are made once: to put one together takes longer than the database takes to carry it out.
_STUDY = select(STUDIES).where(STUDIES.c.digest == bindparam("digest"))
_METHOD = select(STUDIES.c.study).where(STUDIES.c.digest == bindparam("digest"))
_OPEN_STUDIES = select(STUDIES).where(STUDIES.c.status.in_(TAKING_PART))
_SIGNED_STUDIES = select(STUDIES.c.digest, STUDIES.c.study).where(STUDIES.c.status.in_(TAKING_PART))
_CHANGE_STUDY = update(STUDIES).where(STUDIES.c.digest == bindparam("of_digest"))


def add_study(connection: Connection, **values: Any) -> None:
    """Store a new study; a digest is enrolled once (primary key)."""
    connection.execute(insert(STUDIES), values)


def find_study(connection: Connection, digest: bytes) -> StudyRow | None:
    return one_row(StudyRow, connection.execute(_STUDY, {"digest": digest}))


def find_method(connection: Connection, digest: bytes) -> str | None:
    """The method of a study; None if the site does not know it, or an older version wrote it in another way."""
    from veilsum_privacy.study.study import parse_study

    study = connection.execute(_METHOD, {"digest": digest}).scalar()
    try:
        return None if study is None else parse_study(study).method
    except HostileInput:
        return None


def count_enrolled(connection: Connection) -> int:
    """How many studies the site is enrolled in."""
    return int(connection.scalar(select(func.count()).where(STUDIES.c.status.in_(TAKING_PART))) or 0)


def open_studies(connection: Connection) -> list[StudyRow]:
    """Studies that hold keys."""
    return all_rows(StudyRow, connection.execute(_OPEN_STUDIES))


def signed_studies(connection: Connection) -> list[tuple[bytes, bytes]]:
    """Digest and signed bytes of the studies that hold keys: their rows hold whole rosters, and are looked at every second."""
    return [(bytes(digest), bytes(study)) for digest, study in connection.execute(_SIGNED_STUDIES)]


def change_study(connection: Connection, digest: bytes, **values: Any) -> None:
    """Update the study's row."""
    connection.execute(_CHANGE_STUDY, {"of_digest": digest, **values})


def dump_enrolments(enrolments: "list[Enrolment]") -> bytes:
    """Serialise enrolments for the store."""
    return json.dumps([[part.hex() for part in (item.certificate, item.body, item.signature)] for item in enrolments]).encode()


def load_enrolments(data: bytes) -> "list[Enrolment]":
    from veilsum_privacy.securesum.roster import Enrolment

    return [Enrolment(*(bytes.fromhex(part) for part in parts)) for parts in json.loads(data)]
