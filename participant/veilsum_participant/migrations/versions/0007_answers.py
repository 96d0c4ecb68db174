"""When an analyst was told whether a budget bears a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "participant_answer",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("fits", sa.Boolean, primary_key=True),
        sa.Column("analyst", sa.String(64), nullable=False),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("time", sa.Integer, nullable=False),
    )
