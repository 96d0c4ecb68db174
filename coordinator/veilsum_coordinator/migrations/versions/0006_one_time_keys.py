"""From version 0.2 on: sums stay, for proofs, with what all members answered and signed about them.

A sum that an earlier version left can be opened by nobody: it is dropped, and its study ends, as does every study that sites
have joined by then.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.drop_column("coordinator_sum", "ciphertexts")
    op.drop_column("coordinator_sum", "sizes")
    op.add_column("coordinator_sum", sa.Column("total", sa.LargeBinary))
    op.add_column("coordinator_sum", sa.Column("size", sa.BigInteger))
    op.add_column("coordinator_sum", sa.Column("answers", sa.Text))
    op.execute("DELETE FROM coordinator_sum_piece")
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
