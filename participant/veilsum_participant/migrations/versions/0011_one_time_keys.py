"""Sums under one-time keys: nothing is dealt or decrypted, and an attempt keeps the challenge that it answered.

What open studies of earlier versions held is erased here; the site leaves them when it opens its state.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_BINARY = ("words", "fixed", "challenge", "answer", "answer_signature", "shown", "agreed")


def upgrade() -> None:
    op.execute("UPDATE participant_attempt SET payload = NULL")
    op.execute("UPDATE participant_attempt SET consent = NULL WHERE state IN ('reserved', 'payload')")
    op.execute(
        "UPDATE participant_study SET box_key = NULL, shares = NULL, seeds = NULL WHERE status IN ('enrolled', 'ready')"
    )
    for name in ("self_seed", "sizes", "decrypted", "consent_digest"):
        op.drop_column("participant_attempt", name)
    for name in ("secret_key", "tag_key", "dealer"):
        op.drop_column("participant_study", name)
    for name in _BINARY:
        op.add_column("participant_attempt", sa.Column(name, sa.LargeBinary))
