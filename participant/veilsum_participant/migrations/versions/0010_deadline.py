"""Until when the coordinator waits for an answer is kept with a study that waits."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("participant_pending", sa.Column("deadline", sa.Integer))
