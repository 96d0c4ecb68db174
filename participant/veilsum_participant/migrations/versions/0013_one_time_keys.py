"""From version 0.2 on: sums under one-time keys, in which nothing is dealt or decrypted.

What was seen of peers is what the ledger keeps. An attempt keeps the challenge that it answered, and which records it was
computed from until its charge; a study that waits keeps until when; a site keeps the model of a study whose steps it takes
itself. What is open, and how often a task was answered, is found without reading what is over. What open studies of earlier
versions held is erased here; the site leaves them when it opens its state.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0008"

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
    op.execute("DROP TABLE IF EXISTS participant_peer")
    op.add_column("participant_attempt", sa.Column("snapshot", sa.LargeBinary(32)))
    for name in _BINARY:
        op.add_column("participant_attempt", sa.Column(name, sa.LargeBinary))
    op.add_column("participant_pending", sa.Column("deadline", sa.Integer))
    op.create_table(
        "participant_followed",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("participant_study_status", "participant_study", ["status"], if_not_exists=True)
    op.create_index("participant_attempt_open", "participant_attempt", ["state", "deadline"], if_not_exists=True)
    op.create_index("participant_attempt_round", "participant_attempt", ["study", "round"], if_not_exists=True)
    op.create_index("participant_attempt_label", "participant_attempt", ["study", "label", "state"], if_not_exists=True)
