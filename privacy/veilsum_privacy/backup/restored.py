"""The mark of a restored participant: its ledger may lack what was spent since the backup, so that nothing may be released.

A state that finds receipts of its own that its ledger did not sign is marked likewise: another host runs with a copy of
it. The mark lies in the state itself, and in a backup before that is put in its place. A peer's ledger lifts it, or the
operator's word (:mod:`veilsum_participant.protocol.endorsement`). A backup of a marked state is marked.
"""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import inspect

RESTORED = sa.Table(
    "participant_restored",
    sa.MetaData(),
    sa.Column("made", sa.Integer, nullable=False),  # when the backup was made, Unix seconds
    sa.Column("head", sa.LargeBinary(32), nullable=False),  # where its ledger ends
    sa.Column("trusted", sa.Boolean, nullable=False),  # the operator takes the coordinator's mirror for the whole truth
)
"""One row while the mark stands; the table is missing where nothing was ever restored, so no migration makes it."""


@dataclass(frozen=True)
class Mark:
    """What a restored state, or one of which another copy has been at work, says of itself.

    Attributes:
        made: when the backup was made, or the other copy noticed, Unix seconds.
        head: hash of its last entry, 32 bytes.
        trusted: whether the next reading of the coordinator's mirror lifts the mark, by the operator's word.
    """

    made: int
    head: bytes
    trusted: bool


def put_mark(connection: sa.Connection, made: int, head: bytes) -> None:
    """Mark a state that bears no mark, in the caller's transaction."""
    RESTORED.create(connection, checkfirst=True)
    connection.execute(sa.insert(RESTORED).values(made=made, head=head, trusted=False))


def read_mark(connection: sa.Connection) -> Mark | None:
    """The mark that stands; None where there is none."""
    if not inspect(connection).has_table(RESTORED.name):
        return None
    row = connection.execute(sa.select(RESTORED).order_by(RESTORED.c.made).limit(1)).first()
    return None if row is None else Mark(int(row.made), bytes(row.head), bool(row.trusted))


def lift_mark(connection: sa.Connection) -> None:
    """Take the mark away."""
    connection.execute(sa.delete(RESTORED))
