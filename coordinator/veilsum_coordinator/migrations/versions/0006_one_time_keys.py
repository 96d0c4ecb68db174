"""From version 0.2 on: sums stay, for proofs, with what all members answered and signed about them.

What is too long for one value, of sums and releases, lies in pieces. A sum that an earlier version left can be opened by
nobody: it is dropped, and its study ends, as does every study that sites have joined by then.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
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
    op.drop_column("coordinator_sum", "ciphertexts")
    op.drop_column("coordinator_sum", "sizes")
    op.add_column("coordinator_sum", sa.Column("total", sa.LargeBinary))
    op.add_column("coordinator_sum", sa.Column("size", sa.BigInteger))
    op.add_column("coordinator_sum", sa.Column("answers", sa.Text))
    op.execute(
        "INSERT INTO coordinator_progress (study, state) SELECT DISTINCT study, '{\"protocol\": 5}' FROM coordinator_member"
        " WHERE study NOT IN (SELECT study FROM coordinator_progress)"
    )
    op.create_table(
        "coordinator_consent",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("participant", sa.String(64), primary_key=True),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
