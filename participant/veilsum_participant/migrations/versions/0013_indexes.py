"""What is open, and how often a task was answered, is found without reading what is over."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_index("participant_study_status", "participant_study", ["status"], if_not_exists=True)
    op.create_index("participant_attempt_open", "participant_attempt", ["state", "deadline"], if_not_exists=True)
    op.create_index("participant_attempt_round", "participant_attempt", ["study", "round"], if_not_exists=True)
    op.create_index("participant_attempt_label", "participant_attempt", ["study", "label", "state"], if_not_exists=True)
