"""From version 0.1 to 0.2: what proves a result later.

That is who decrypted each release and signed for it, and the roster of a finished study.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("coordinator_release", sa.Column("proof", sa.Text))
    op.add_column("coordinator_study", sa.Column("roster", sa.LargeBinary))
