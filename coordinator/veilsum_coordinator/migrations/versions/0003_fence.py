"""Which coordinator writes: the epoch that the last one to start began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "coordinator_fence",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("token", sa.LargeBinary(16), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
    )
