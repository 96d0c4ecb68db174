"""A site keeps the model of a study whose steps it takes itself."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "participant_followed",
        sa.Column("study", sa.LargeBinary(32), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
