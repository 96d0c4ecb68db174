"""What a coordinator needs to go on with running studies: members, decisions, rounds, where each ciphertext of a sum ends."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "coordinator_member",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("enrolment", sa.LargeBinary, nullable=False),
        sa.Column("boxes", sa.LargeBinary),
    )
    op.create_table(
        "coordinator_progress",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_table(
        "coordinator_round",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("broadcast", sa.LargeBinary(32), nullable=False),
        sa.Column("allowed", sa.Text, nullable=False),
        sa.Column("assignment", sa.LargeBinary, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("received", sa.BigInteger, nullable=False),
    )
    op.add_column("coordinator_sum", sa.Column("sizes", sa.Text))
