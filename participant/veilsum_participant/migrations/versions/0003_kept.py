"""Noised statistics that the site keeps for later rounds of a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "participant_kept",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("label", sa.String(64), primary_key=True),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sa.Column("whole", sa.LargeBinary),
    )
