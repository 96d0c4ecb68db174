"""What a site has trained and needs again in the next round of a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "participant_state",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("arrays", sa.LargeBinary, nullable=False),
    )
