"""Studies, attempts and peers, as files had them before there were migrations; such a file keeps its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    if sa.inspect(op.get_bind()).has_table("participant_study"):
        return
    op.create_table(
        "participant_study",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("study", sa.LargeBinary, nullable=False),
        sa.Column("analyst", sa.String(64), nullable=False),
        sa.Column("enrolment", sa.LargeBinary, nullable=False),
        sa.Column("box_key", sa.LargeBinary),
        sa.Column("roster", sa.LargeBinary),
        sa.Column("roster_time", sa.Integer),
        sa.Column("secret_key", sa.LargeBinary),
        sa.Column("tag_key", sa.LargeBinary),
        sa.Column("dealer", sa.String(64)),
        sa.Column("seeds", sa.LargeBinary),
        sa.Column("strict_cohort", sa.Text),
        sa.Column("receipts", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
    )
    op.create_table(
        "participant_attempt",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("context", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("assignment", sa.LargeBinary, nullable=False),
        sa.Column("deadline", sa.Integer, nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("self_seed", sa.LargeBinary(32)),
        sa.Column("consent", sa.LargeBinary(32)),
        sa.Column("sizes", sa.Text),
        sa.Column("payload", sa.LargeBinary),
        sa.Column("receipt", sa.LargeBinary),
        sa.Column("receipt_signature", sa.LargeBinary),
        sa.Column("decrypted", sa.LargeBinary(32)),
    )
    op.create_table(
        "participant_peer",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("head", sa.LargeBinary(32), nullable=False),
    )
