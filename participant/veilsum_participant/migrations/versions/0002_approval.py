"""Studies that wait for the operator, how far a mirror was read, and the digest by which a consent is known again."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "participant_pending",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("study", sa.LargeBinary, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
        sa.Column("certificate", sa.LargeBinary, nullable=False),
        sa.Column("coordinator", sa.String(64), nullable=False),
        sa.Column("analyst", sa.String(64), nullable=False),
        sa.Column("time", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
    )
    op.create_table(
        "participant_mirror",
        sa.Column("coordinator", sa.String(64), primary_key=True),
        sa.Column("entry", sa.Integer, nullable=False),
    )
    op.add_column("participant_attempt", sa.Column("consent_digest", sa.LargeBinary(32)))
    _digest_consents(op.get_bind())


def _digest_consents(connection: sa.Connection) -> None:
    """Attempts whose consent is still there can be known again; those that were given up before cannot."""
    kept = connection.execute(
        sa.text("SELECT study, attempt, consent FROM participant_attempt WHERE consent IS NOT NULL")
    ).all()
    for study, attempt, consent in kept:
        connection.execute(
            sa.text("UPDATE participant_attempt SET consent_digest = :digest WHERE study = :study AND attempt = :attempt"),
            {"digest": hashlib.sha256(consent).digest(), "study": study, "attempt": attempt},
        )
