"""Studies that wait for the operator's word, or had it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_participant.store.tables import all_rows, one_row, table


class PendingState(StrEnum):
    """Where the operator's word on a study stands."""

    WAITING = "waiting"
    APPROVED = "approved"
    DECLINED = "declined"
    REFUSED = "refused"


@dataclass(frozen=True)
class PendingRow:
    """A study that waits for the operator's word, or had it."""

    digest: bytes
    study: bytes
    signature: bytes
    certificate: bytes  # the analyst's, DER
    coordinator: str
    analyst: str
    time: int  # when it came
    state: PendingState
    reason: str = ""
    deadline: int | None = None  # until when the coordinator waits for an answer, as it said when it last asked

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", PendingState(self.state))


PENDING = table("participant_pending", PendingRow, "digest")

_FIND_PENDING = select(PENDING).where(PENDING.c.digest == bindparam("digest"))
_PENDING = select(PENDING).order_by(PENDING.c.time, PENDING.c.digest)


def add_pending(connection: Connection, **values: Any) -> None:
    """Store a study that waits for the operator's word; once for each digest."""
    connection.execute(upsert(PENDING).values(**values).on_conflict_do_nothing())


def find_pending(connection: Connection, digest: bytes) -> PendingRow | None:
    """The row of a study that waits, was approved or declined."""
    return one_row(PendingRow, connection.execute(_FIND_PENDING, {"digest": digest}))


def pending_studies(connection: Connection) -> list[PendingRow]:
    """All such rows, oldest first."""
    return all_rows(PendingRow, connection.execute(_PENDING))


def count_waiting(connection: Connection) -> int:
    """How many studies wait for the operator's word."""
    return int(connection.scalar(select(func.count()).where(PENDING.c.state == PendingState.WAITING)) or 0)


def change_pending(connection: Connection, digest: bytes, **values: Any) -> None:
    """Update such a row."""
    connection.execute(update(PENDING).where(PENDING.c.digest == digest).values(**values))


def drop_pending(connection: Connection, digest: bytes) -> None:
    """Forget such a row."""
    connection.execute(delete(PENDING).where(PENDING.c.digest == digest))
