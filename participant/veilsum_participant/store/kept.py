"""What was kept of a study for its later rounds: noised vectors, and what attempts trained."""

from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Column, Connection, Integer, LargeBinary, String, Table, bindparam, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_aggregation.arrays import Integers
from veilsum_participant.store.attempts import ATTEMPTS, PAID
from veilsum_participant.store.tables import METADATA

KEPT = Table(
    "participant_kept",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("label", String(64), primary_key=True),
    Column("vector", LargeBinary, nullable=False),  # the site's own noised vector, int64 little-endian
    Column("whole", LargeBinary),  # all that the site adds to the round's sum, where that is more
    Column("origin", LargeBinary(32)),  # digest of what it was computed from beside the records
)

STATES = Table(
    "participant_state",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("label", String(64), nullable=False),
    Column("arrays", LargeBinary, nullable=False),  # safetensors
)

_DROP_STATES = delete(STATES).where(STATES.c.study == bindparam("study"))
_PAID_STATE = (
    select(STATES.c.attempt, STATES.c.arrays)
    .join(ATTEMPTS, (STATES.c.study == ATTEMPTS.c.study) & (STATES.c.attempt == ATTEMPTS.c.attempt))
    .where(STATES.c.study == bindparam("study"), STATES.c.label == bindparam("label"), ATTEMPTS.c.state.in_(PAID))
    .order_by(STATES.c.attempt.desc())
    .limit(1)
)


@dataclass(frozen=True)
class KeptVector:
    """A task's noised vector that the site keeps.

    Attributes:
        own: the site's block, in grid units.
        whole: all that the site adds to the task's round.
        origin: :meth:`~veilsum_privacy.tasks.agreed.AgreedTask.kept_origin` of what it was computed from; None if an
            older version kept it, which did not say.
    """

    own: Integers = field(repr=False)
    whole: Integers = field(repr=False)
    origin: bytes | None


def keep_vector(connection: Connection, study: bytes, label: str, kept: KeptVector) -> None:
    """Keep a task's noised vector; once for each study and label."""
    rest = None if len(kept.whole) == len(kept.own) else kept.whole.astype("<i8").tobytes()
    own = kept.own.astype("<i8").tobytes()
    connection.execute(insert(KEPT).values(study=study, label=label, vector=own, whole=rest, origin=kept.origin))


def kept_vector(connection: Connection, study: bytes, label: str) -> Integers | None:
    """The noised vector that the site kept of a task, in grid units; None if it kept none."""
    found = find_kept(connection, study, label)
    return None if found is None else found.own


def find_kept(connection: Connection, study: bytes, label: str) -> KeptVector | None:
    """What the site kept of a task; None if it kept nothing."""
    row = connection.execute(select(KEPT).where(KEPT.c.study == study, KEPT.c.label == label)).first()
    if row is None:
        return None
    own, whole = (np.frombuffer(data, dtype="<i8").astype(np.int64) for data in (row.vector, row.whole or row.vector))
    return KeptVector(own, whole, row.origin)


def keep_state(connection: Connection, study: bytes, attempt: int, label: str, arrays: bytes) -> None:
    """Keep what an attempt trained, beside what the label's last paid attempt did; what other attempts of it did is erased."""
    paid = connection.execute(_PAID_STATE, {"study": study, "label": label}).first()
    base = None if paid is None else paid.attempt
    stale = STATES.c.attempt != (attempt if base is None else base)
    connection.execute(delete(STATES).where(STATES.c.study == study, STATES.c.label == label, stale))
    connection.execute(
        upsert(STATES).values(study=study, attempt=attempt, label=label, arrays=arrays).on_conflict_do_nothing()
    )


def paid_state(connection: Connection, study: bytes, label: str) -> bytes | None:
    """What the last paid attempt of a task trained; None if there is none."""
    paid = connection.execute(_PAID_STATE, {"study": study, "label": label}).first()
    return None if paid is None else bytes(paid.arrays)


def attempt_state(connection: Connection, study: bytes, attempt: int) -> bytes | None:
    """What an attempt trained; None if nothing is kept of it."""
    query = select(STATES.c.arrays).where(STATES.c.study == study, STATES.c.attempt == attempt)
    found = connection.execute(query).scalar()
    return None if found is None else bytes(found)


def drop_states(connection: Connection, study: bytes) -> None:
    """Forget all that was trained in a study."""
    connection.execute(_DROP_STATES, {"study": study})
