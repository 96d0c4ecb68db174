"""What a site drew for the seeds of its pairs, which both sides of a pair contribute to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("participant_study", sa.Column("shares", sa.LargeBinary))
