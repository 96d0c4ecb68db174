"""Studies, sums and releases, as files had them before there were migrations; such a file keeps its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    if sa.inspect(op.get_bind()).has_table("coordinator_study"):
        return
    op.create_table(
        "coordinator_study",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("object", sa.LargeBinary, nullable=False),
        sa.Column("analyst", sa.String(64), nullable=False),
        sa.Column("submitted", sa.BigInteger, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("status", sa.LargeBinary),
    )
    op.create_table(
        "coordinator_sum",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("assignment", sa.LargeBinary, nullable=False),
        sa.Column("ciphertexts", sa.LargeBinary),
        sa.Column("receipts", sa.Text, nullable=False),
    )
    op.create_table(
        "coordinator_release",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("cohort", sa.Text, nullable=False),
        sa.Column("values", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
    )
