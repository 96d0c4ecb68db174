"""Which records an attempt was computed from waits for its charge."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("participant_attempt", sa.Column("snapshot", sa.LargeBinary(32)))
