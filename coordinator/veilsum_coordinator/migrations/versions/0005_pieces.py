"""Pieces of sums and releases that are too long for one value."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for name in ("coordinator_sum_piece", "coordinator_release_piece"):
        op.create_table(
            name,
            sa.Column("study", sa.LargeBinary(32), primary_key=True),
            sa.Column("round", sa.Integer, primary_key=True),
            sa.Column("place", sa.Integer, primary_key=True),
            sa.Column("data", sa.LargeBinary, nullable=False),
        )
